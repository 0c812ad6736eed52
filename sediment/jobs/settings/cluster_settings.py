"""Settings of each log directory: the settings of the run combined with the metadata of the directory's cluster.

    --config ──┐
    --set ─────┼─> Settings of the run ──┐
               ┘                         ├──> LogDirectory.settings ──> LogDirectory.settings_of(partition)
    __cluster_metadata-0 ────────────────┘                                 + the topic id in partition.metadata

These places are searched, in this order:

1. the directory that `--metadata` names;
2. the log directory itself;
3. the other directories of the run whose meta.properties has the same cluster id and node id;
4. `metadata.log.dir` and `log.dirs` of the `--config` file, if the cluster and the node id are the same.

Invariants: a run changes a KRaft node's directory only with the node's metadata, or with a `--set topic:` for every
selected topic.  A checkpoint without topics, as on a formatted node, is not metadata.

Source: docs/reference/commands.md, Settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.jobs.settings.directories import (
    SelectedDirectory,
    check_node,
    configured_metadata_dirs,
    open_directory,
    readable_meta,
)
from sediment.jobs.settings.linked_partitions import check_linked_partitions
from sediment.jobs.settings.old_formats import is_older_than_format_2
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import CorruptCheckpointError, SettingsError, UsageError
from sediment.segment_io.format.meta_properties import KRAFT_META_VERSION, ZOOKEEPER_META_VERSION, MetaProperties
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    METADATA_PARTITION,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints
from sediment.segment_io.partition.clean_shutdown_file import is_without_broker
from sediment.segment_io.partition.formatted_directory import has_metadata_log

if TYPE_CHECKING:
    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata

_LOGGER = logging.getLogger(__name__)

_OF_ZOOKEEPER = "this is a broker of ZooKeeper: a metadata log from a migration may be outdated"
_IN_MIGRATION = (
    "the migration from ZooKeeper has not ended, and the log may be outdated if this is still a broker of ZooKeeper; "
    "give the broker's file with --config"
)
_MOST_NAMED = 3
_STALE = f", and {BOOTSTRAP_FILE} may be older than a broker's changes, because the node was not stopped cleanly"


# ------------------------------------------------------------------------------------------------------------- settings
def open_directories(
    paths: Sequence[Path],
    selection: Selection,
    settings: RunSettings,
    fs: Fs,
    *,
    names: Sequence[str] = (),
    allow_empty: bool = False,
    in_place: bool = False,
) -> list[SelectedDirectory]:
    """Open each of `paths` with `open_directory`, and add the settings of the run that apply to the directory.

    `in_place` is True if the run changes data according to these settings.
    """
    directories = [open_directory(path, selection, fs) for path in paths]
    check_linked_partitions(directories, fs)
    own = {each.path: settings.of_directory(each.path, each.meta) for each in directories}
    if len(settings.nodes) > 1:
        _check_one_cluster(directories)
    if not allow_empty:
        partitions = [str(partition) for directory in directories for partition in directory.all_partitions]
        selection.check(partitions, where=", ".join(names or map(str, paths)))
    known: dict[Path, ClusterMetadata | None] = {}
    first = settings.nodes[0]
    if first.metadata_dir is not None and not (
        has_metadata_log(fs, first.metadata_dir) or _metadata(first.metadata_dir, known, fs)
    ):
        raise UsageError(
            f"--metadata {first.metadata_dir} does not contain {METADATA_PARTITION}",
            advice="give the node's log directory that contains it: metadata.log.dir, or else the first entry of "
            "log.dirs",
        )
    found = {each.path: _metadata_of(each, directories, own[each.path], known, fs) for each in directories}
    topics = {partition.topic for directory in directories for partition in directory.partitions}
    first.check_selection(topics, have_metadata=all(metadata is not None for metadata in found.values()))
    opened = [_with_settings(each, own[each.path], found[each.path], fs) for each in directories]
    for directory in opened:
        if in_place:
            _check_known(directory)
        elif directory.meta_fault is not None:
            _LOGGER.warning("a broker does not start on this directory: %s", directory.meta_fault)
    return opened


def warn_of_refusals(directories: Iterable[SelectedDirectory]) -> None:
    """Warn of directories that a dry run reads, but that a run would refuse to change (`in_place`)."""
    for directory in directories:
        try:
            _check_known(directory)
        except (SettingsError, CorruptCheckpointError) as error:
            _LOGGER.warning("a run without --dry-run refuses this directory: %s", error)


def settings_of_logs(logs: Iterable[tuple[TopicPartition, Path]], settings: Settings, fs: Fs) -> list[Settings | None]:
    opened: dict[Path, SelectedDirectory] = {}
    known: dict[Path, ClusterMetadata | None] = {}
    found: list[Settings | None] = []
    for partition, path in logs:
        log_dir = path.parent
        if log_dir not in opened:
            meta, _ = readable_meta(log_dir, fs)
            checkpoints = LogDirCheckpoints(None, None, None, None, clean_shutdown=False)
            alone = SelectedDirectory(log_dir, meta, (), checkpoints)
            opened[log_dir] = _with_settings(alone, settings, _metadata_of(alone, [alone], settings, known, fs), fs)
        is_known = opened[log_dir].settings.topic_overrides is not None
        found.append(opened[log_dir].settings_of(partition, fs, name=path.name) if is_known else None)
    return found


# ------------------------------------------------------------------------------------------------------------- metadata
def find_metadata(log_dirs: Sequence[Path], settings: Settings, fs: Fs) -> dict[Path, ClusterMetadata | None]:
    checkpoints = LogDirCheckpoints(None, None, None, None, clean_shutdown=False)
    directories = [SelectedDirectory(path, readable_meta(path, fs)[0], (), checkpoints) for path in log_dirs]
    known: dict[Path, ClusterMetadata | None] = {}
    return {directory.path: _metadata_of(directory, directories, settings, known, fs) for directory in directories}


def _metadata_of(
    directory: SelectedDirectory,
    directories: Sequence[SelectedDirectory],
    settings: Settings,
    known: dict[Path, ClusterMetadata | None],
    fs: Fs,
) -> ClusterMetadata | None:
    if settings.metadata_dir is not None:
        _check_cluster(directory, settings.metadata_dir, fs)
    places = tuple(_metadata_places(directory, directories, settings, fs))
    logs = tuple(place for place in places if has_metadata_log(fs, place))
    if settings.metadata_dir is None and is_of_zookeeper(settings, directory.meta, lambda: _first(logs, known, fs)):
        # A broker of ZooKeeper has its topics' configs there.  It writes a metadata log during a migration.
        if logs:
            _LOGGER.warning(
                "%s is ignored, because %s",
                logs[0] / str(METADATA_PARTITION),
                _OF_ZOOKEEPER if settings.is_zookeeper else _IN_MIGRATION,
            )
        return None
    # A new clone has no metadata log yet: until a broker starts on it, `bootstrap.checkpoint` contains the configs of
    # its topics.  The marker of a clean stop proves that no broker has started.  The marker must be in the checkpoint's
    # directory and in the directory that the checkpoint applies to.
    if not logs and not is_without_broker(fs, directory.path):
        return None
    # A metadata log takes precedence even if it is empty, because a controller may have changed the configs after the
    # clone.
    return _first(logs or places, known, fs)


def _first(places: Sequence[Path], known: dict[Path, ClusterMetadata | None], fs: Fs) -> ClusterMetadata | None:
    found = (_metadata(place, known, fs) for place in places)
    return next((metadata for metadata in found if metadata is not None), None)


def _metadata_places(
    directory: SelectedDirectory, directories: Sequence[SelectedDirectory], settings: Settings, fs: Fs
) -> Iterator[Path]:
    if settings.metadata_dir is not None:
        yield settings.metadata_dir
        return
    yield directory.path
    for other in directories:
        if _is_same_node(directory.meta, other.meta):
            yield other.path
    for place in configured_metadata_dirs(settings):
        if (has_metadata_log(fs, place) or fs.exists(place / BOOTSTRAP_FILE)) and _is_same_node(
            directory.meta, readable_meta(place, fs)[0]
        ):
            yield place


def _is_same_node(one: MetaProperties | None, other: MetaProperties | None) -> bool:
    if one is None or other is None or one.cluster_id is None or one.node_id is None:
        return False
    return (one.cluster_id, one.node_id) == (other.cluster_id, other.node_id)


def _check_cluster(directory: SelectedDirectory, metadata_dir: Path, fs: Fs) -> None:
    theirs, _ = readable_meta(metadata_dir, fs)
    own_id, their_id = (None if meta is None else meta.cluster_id for meta in (directory.meta, theirs))
    if own_id is not None and their_id is not None and own_id != their_id:
        raise UsageError(
            f"--metadata {metadata_dir} belongs to cluster {their_id}, but this directory to cluster {own_id}",
            path=str(directory.path),
            advice="name a directory of the same cluster",
        )


def _check_one_cluster(directories: Iterable[SelectedDirectory]) -> None:
    first: SelectedDirectory | None = None
    for directory in directories:
        if directory.meta is None or directory.meta.cluster_id is None:
            continue
        first = first or directory
        if first.meta is not None and directory.meta.cluster_id != first.meta.cluster_id:
            raise UsageError(
                f"the --config files belong to several clusters: {first.path} is of cluster {first.meta.cluster_id}, "
                f"and {directory.path} of cluster {directory.meta.cluster_id}",
                advice="run once for each cluster",
            )


def _check_known(directory: SelectedDirectory) -> None:
    if directory.meta_fault is not None:
        raise directory.meta_fault
    meta, settings = directory.meta, directory.settings
    check_node(settings, directory.path, meta)
    if is_older_than_format_2(directory):
        raise SettingsError(
            "a broker before Kafka 0.11 wrote this directory, and such a broker cannot read what Sediment writes",
            path=str(directory.path),
            advice="start a broker of Kafka 0.11 or newer on it first, or write the result of compact to another "
            "directory with --output",
        )
    if meta is None or meta.version != KRAFT_META_VERSION or settings.topic_overrides is not None:
        return
    topics = {partition.topic for partition in directory.partitions}
    uncovered = sorted(topic for topic in topics if "cleanup.policy" not in settings.topic_sets.get(topic, {}))
    if uncovered and settings.is_zookeeper:
        raise SettingsError(
            f"--config is the file of a broker of ZooKeeper, and this is a directory of KRaft node {meta.node_id}",
            path=str(directory.path),
            advice="give the file with which the node ran last",
        )
    if uncovered:
        first, *others = uncovered
        more = f", and the same for {_named(others)}, or select fewer topics" if others else ""
        is_stale = (directory.path / BOOTSTRAP_FILE).exists() and not is_without_broker(Fs(), directory.path)
        ways = [f"name the node's directory that contains {METADATA_PARTITION} with --metadata DIR"]
        ways += ["start a broker on the directory and stop it"] if is_stale else []
        ways += [] if configured_metadata_dirs(settings) else ["give the broker's file with --config FILE"]
        raise SettingsError(
            f"this is a directory of KRaft node {meta.node_id}, but {METADATA_PARTITION}, which contains its topics' "
            f"configs, was not found{_STALE if is_stale else ''}",
            path=str(directory.path),
            advice=f"{', '.join(ways)}, or give --set {first}:cleanup.policy=…{more}",
        )


def _named(topics: Sequence[str]) -> str:
    named, others = ", ".join(topics[:_MOST_NAMED]), len(topics) - _MOST_NAMED
    return f"{named} and {others} more" if others > 0 else named


def _metadata(log_dir: Path, known: dict[Path, ClusterMetadata | None], fs: Fs) -> ClusterMetadata | None:
    if log_dir not in known:
        known[log_dir] = _read_metadata(log_dir, fs)
    return known[log_dir]


def _read_metadata(log_dir: Path, fs: Fs) -> ClusterMetadata | None:
    if not has_metadata_log(fs, log_dir) and not fs.exists(log_dir / BOOTSTRAP_FILE):
        return None
    # Imported late, because this loads compiled kernels, which a directory without metadata does not need.
    from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata

    metadata = read_cluster_metadata(log_dir, fs)
    if metadata is not None and metadata.unreadable_snapshot is not None:
        _LOGGER.warning(
            "%s: the metadata comes from an older snapshot and the log, because this file is unreadable; a broker does "
            "not start until it is moved away",
            log_dir / str(METADATA_PARTITION) / metadata.unreadable_snapshot,
        )
    return metadata


def is_of_zookeeper(
    settings: Settings, meta: MetaProperties | None, metadata: Callable[[], ClusterMetadata | None]
) -> bool:
    """Return True if the broker of a directory has its topics' configs in ZooKeeper, or may have them there.

    `metadata` reads the metadata log of the node.
    """
    if settings.is_zookeeper or settings.quorum or meta is None or meta.version != ZOOKEEPER_META_VERSION:
        return settings.is_zookeeper
    # A broker that was migrated to KRaft keeps the version.  As long as the migration can be undone, only the file with
    # which the broker ran last says what it is.
    found = metadata()
    return found is None or found.is_in_migration


def with_described_configs(settings: Settings, meta: MetaProperties | None) -> Settings:
    node_id = settings.node_id if meta is None or meta.node_id is None else meta.node_id
    return replace(settings, is_zookeeper=is_of_zookeeper(settings, meta, lambda: None)).of_described_node(node_id)


def _with_settings(
    directory: SelectedDirectory, settings: Settings, metadata: ClusterMetadata | None, fs: Fs
) -> SelectedDirectory:
    meta = directory.meta
    if metadata is None:
        return replace(directory, settings=with_described_configs(settings, meta))
    if settings.topic_configs is not None:
        raise UsageError(
            "--topic-configs is given for a directory whose metadata log contains the configs of the topics",
            path=str(directory.path),
            advice="leave out --topic-configs and --broker-configs",
        )
    if meta is None and settings.metadata_dir is not None:
        # A copy without meta.properties belongs to the node in --metadata, so the dynamic configs of this node apply.
        meta, _ = readable_meta(settings.metadata_dir, fs)
    of_node = settings.of_node(metadata, None if meta is None else meta.node_id)
    return replace(directory, settings=of_node, metadata=metadata)
