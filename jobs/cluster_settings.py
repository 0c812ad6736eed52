"""What settings hold in each log directory, once its cluster's own metadata was asked (commands.md, topic settings).

    --config ──┐
    --set ─────┼─> Settings of the run ──┐
               ┘                         ├──> LogDirectory.settings ──> LogDirectory.settings_of(partition)
    __cluster_metadata-0 ────────────────┘                                 + the topic id in partition.metadata

The metadata log lies in one of a node's log directories and speaks for all of them: directories of a run that have the
same cluster and node id in meta.properties share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.jobs.directories import LogDirectory, open_directory
from sediment.jobs.kafka_keys import BROKER_KEYS
from sediment.jobs.settings import Settings
from sediment.segment_io.checkpoints import read_meta_properties
from sediment.segment_io.fs import Fs
from sediment.segment_io.log_dir import LogDirCheckpoints
from sediment.segment_io.names import META_PROPERTIES_FILE, METADATA_PARTITION, TopicPartition

if TYPE_CHECKING:
    from sediment.segment_io.metadata_log import ClusterMetadata


def open_directories(paths: Sequence[Path], patterns: Sequence[str], settings: Settings, fs: Fs) -> list[LogDirectory]:
    """`open_directory` for each of `paths`, with the settings of the run as they hold there.

    Raises:
        NotALogDirectoryError, CorruptCheckpointError: as `open_directory`.
        CorruptBatchError, UnsupportedDataError, SourceChangedError: the metadata log cannot be read.
        SettingsError: a bare `--set cleanup.policy` for several topics of which no metadata tells.

    Source: commands.md; kafka-log 06.
    """
    directories = [open_directory(path, patterns, fs) for path in paths]
    said = {directory.path: _metadata(directory.path, fs) for directory in directories}
    for directory in directories:
        if said[directory.path] is None:
            said[directory.path] = _from_same_node(directory, directories, said)
    topics = {partition.topic for directory in directories for partition in directory.partitions}
    settings.check_selection(topics, have_metadata=all(metadata is not None for metadata in said.values()))
    return [_with_settings(directory, settings, said[directory.path]) for directory in directories]


def settings_of_logs(logs: Iterable[tuple[TopicPartition, Path]], settings: Settings, fs: Fs) -> list[Settings | None]:
    """The settings of partitions by their directories, wherever those are; None where no metadata tells of one.

    Raises:
        CorruptCheckpointError, CorruptBatchError, UnsupportedDataError, SourceChangedError: as `open_directories`.
    """
    opened: dict[Path, LogDirectory] = {}
    found: list[Settings | None] = []
    for partition, path in logs:
        log_dir = path.parent
        if log_dir not in opened:
            meta = read_meta_properties(fs, log_dir / META_PROPERTIES_FILE)
            alone = LogDirectory(log_dir, meta, (), LogDirCheckpoints(None, None, None, None, clean_shutdown=False))
            opened[log_dir] = _with_settings(alone, settings, _metadata(log_dir, fs))
        known = opened[log_dir].topic_ids is not None
        found.append(opened[log_dir].settings_of(partition, fs, name=path.name) if known else None)
    return found


def _metadata(log_dir: Path, fs: Fs) -> ClusterMetadata | None:
    if not fs.is_directory(log_dir / str(METADATA_PARTITION)):
        return None
    # It loads compiled loops, which a directory without a metadata log need not wait for.
    from sediment.segment_io.metadata_log import read_cluster_metadata

    return read_cluster_metadata(log_dir, fs)


def _from_same_node(
    directory: LogDirectory, others: Iterable[LogDirectory], said: dict[Path, ClusterMetadata | None]
) -> ClusterMetadata | None:
    meta = directory.meta
    if meta is None or meta.cluster_id is None or meta.node_id is None:
        return None
    for other in others:
        if other.meta is not None and (other.meta.cluster_id, other.meta.node_id) == (meta.cluster_id, meta.node_id):
            found = said[other.path]
            if found is not None:
                return found
    return None


def _with_settings(directory: LogDirectory, settings: Settings, metadata: ClusterMetadata | None) -> LogDirectory:
    if metadata is None:
        return replace(directory, settings=settings)
    # Dynamic broker configs hold passwords too; nothing but what says something about logs is kept.
    node_id = directory.meta.node_id if directory.meta else None
    broker = {name: text for name, text in metadata.configs_of_broker(node_id).items() if name in BROKER_KEYS}
    return replace(
        directory, settings=settings.with_metadata(metadata.topic_configs, broker), topic_ids=metadata.topic_ids
    )
