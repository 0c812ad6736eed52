"""Log directories of a run: the entries of the `--config` file, their selected partitions and their checkpoints.

`cluster_settings.open_directories` adds the settings that apply to the directories.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.log_config import LogConfig
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import CorruptCheckpointError, NotALogDirectoryError, SettingsError, UsageError
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.mounts import MOUNT_TABLE, network_filesystem
from sediment.segment_io.partition.checkpoint_files import (
    LOG_DIRECTORY_FILES,
    LogDirCheckpoints,
    read_checkpoints,
    read_meta_properties,
    read_partition_metadata,
)
from sediment.segment_io.partition.partition_directories import find_live_partitions, holds_live_partition

if TYPE_CHECKING:
    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata

_LOGGER = logging.getLogger(__name__)

_DEFAULT_LOG_DIR = Path("/tmp/kafka-logs")  # Kafka's default if a file has neither log.dirs nor log.dir
_COMMA = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class SelectedDirectory:
    """One entry of a broker's `log.dirs`; `meta` is None if the directory has no meta.properties that can be read."""

    path: Path
    meta: MetaProperties | None
    partitions: tuple[TopicPartition, ...]
    checkpoints: LogDirCheckpoints
    settings: Settings = field(default_factory=Settings)
    metadata: ClusterMetadata | None = field(default=None, repr=False)
    all_partitions: tuple[TopicPartition, ...] = ()
    """All partitions of the directory that a broker would load, selected or not."""

    meta_fault: CorruptCheckpointError | None = None
    """The fault of a meta.properties that cannot be read; a broker does not start on it."""

    @property
    def topic_ids(self) -> Mapping[str, str] | None:
        """The ids of the cluster's topics, 22 characters, by topic name; None without metadata."""
        return None if self.metadata is None else self.metadata.topic_ids

    @property
    def is_unclean(self) -> bool:
        """True if a broker has used the directory, and either did not stop cleanly or is still running."""
        return not self.checkpoints.clean_shutdown and self.checkpoints.recovery_point is not None

    def settings_of(self, partition: TopicPartition, fs: Fs, *, name: str | None = None) -> Settings:
        """Return the settings for a partition; `name` is the name of its directory, if this is not the usual `TOPIC-N`.

        If a topic was deleted while the broker was down, the cluster no longer knows the topic.  The broker's next
        start then renames the partition's directory to `-stray`.  Such a topic is neither compacted nor expired unless
        `--set` gives its policy.
        """
        if self.topic_ids is None:
            return self.settings
        known = self.topic_ids.get(partition.topic)
        own = read_partition_metadata(fs, self.path / (name or str(partition)) / PARTITION_METADATA_FILE)
        if known is not None and own in (None, known):
            return self.settings
        _LOGGER.warning(
            "%s: the cluster has no such topic%s; a broker's start would rename the partition to -stray, so its "
            "cleanup.policy counts as empty",
            self.path / (name or str(partition)),
            f" of id {own}" if own else "",
        )
        return self.settings.with_metadata({partition.topic: {"cleanup.policy": ""}}, self.settings.broker_overrides)

    def config_of(self, partition: TopicPartition, fs: Fs, *, name: str | None = None) -> LogConfig:
        return self.settings_of(partition, fs, name=name).for_topic(partition.topic)


def configured_log_dirs(settings: Settings) -> tuple[Path, ...]:
    """Return the entries of `log.dirs`, or of `log.dir`, in the `--config` file; empty if the file has neither.

    Source: kafka-log 06 §2.
    """
    text = settings.config_file.get("log.dirs") or settings.config_file.get("log.dir") or ""
    if "\0" in text:
        raise SettingsError("log.dirs in --config contains a null character", advice="correct the file")
    return tuple(dict.fromkeys(Path(name) for name in _COMMA.split(text.strip()) if name))


def configured_metadata_dirs(settings: Settings) -> tuple[Path, ...]:
    named = settings.config_file.get("metadata.log.dir", "").strip()
    return ((Path(named),) if named else ()) + configured_log_dirs(settings)


def configured_node_dirs(settings: Settings, fs: Fs) -> tuple[Path, ...]:
    apart, *_ = configured_metadata_dirs(settings) or (None,)
    is_apart = apart is not None and keeps_metadata_apart(settings) and fs.is_directory(apart)
    return configured_log_dirs(settings) + ((apart,) if is_apart and apart is not None else ())


def keeps_metadata_apart(settings: Settings) -> bool:
    named = settings.config_file.get("metadata.log.dir", "").strip()
    entries = {without_links(path) for path in configured_log_dirs(settings)}
    return bool(named) and without_links(Path(named)) not in entries


def is_of_other_directories(settings: Settings, directories: Sequence[Path], fs: Fs) -> bool:
    """Return True if the `--config` file belongs to a broker with other log directories."""
    if not settings.is_broker_file:
        return False
    entries = {without_links(path) for path in configured_log_dirs(settings) or (_DEFAULT_LOG_DIR,)}
    others = [path for path in directories if without_links(path) not in entries]
    metadata_dirs = {without_links(path) for path in configured_metadata_dirs(settings)}
    # The file belongs to the broker of the given directories under two conditions.  Its `log.dirs` contains at least
    # one of these directories, and each of the others is a `metadata.log.dir` without partitions.
    return len(others) == len(directories) or any(
        without_links(path) not in metadata_dirs
        or find_live_partitions(path, (entry.name for entry in fs.scan(path) if entry.is_directory))
        for path in others
    )


def check_node(settings: Settings, path: Path, meta: MetaProperties | None) -> None:
    if meta is None or meta.node_id is None or settings.node_id in (None, meta.node_id):
        return
    raise SettingsError(
        f"--config is the file of node {settings.node_id}, and this is a directory of node {meta.node_id}",
        path=str(path),
        advice="give the file of this node",
    )


def open_directory(path: Path, selection: Selection, fs: Fs) -> SelectedDirectory:
    if not fs.is_directory(path):
        raise NotALogDirectoryError(
            "no such directory", path=str(path), advice="name an entry of the broker's log.dirs"
        )
    names = fs.scan(path)
    if any(parse_segment_file(entry.name) for entry in names if entry.is_file):
        raise NotALogDirectoryError(
            "this is the directory of one partition",
            path=str(path),
            advice=f"give the parent directory, and select the partition: {path.parent} --partition {path.name}",
        )
    folders = [entry.name for entry in names if entry.is_directory]
    if not any(entry.name in LOG_DIRECTORY_FILES for entry in names) and not holds_live_partition(folders):
        raise NotALogDirectoryError(
            "not a Kafka log directory: it contains neither topic-partition directories nor checkpoint files",
            path=str(path),
            advice="name an entry of the broker's log.dirs",
        )
    found = find_live_partitions(path, folders)
    if not any(entry.name in LOG_DIRECTORY_FILES for entry in names):
        _check_holds_no_log_directories(path, found, fs)
    meta, fault = readable_meta(path, fs)
    selected = tuple(sorted(each for each in found if selection.includes(str(each))))
    return SelectedDirectory(
        path,
        meta,
        selected,
        read_checkpoints(path, fs),
        all_partitions=tuple(sorted(found)),
        meta_fault=fault,
    )


def _check_holds_no_log_directories(path: Path, partitions: Iterable[TopicPartition], fs: Fs) -> None:
    """Refuse the parent of log directories whose names, such as data-1, look like those of partitions."""
    entries = [
        path / str(partition)
        for partition in partitions
        if any(fs.exists(path / str(partition) / name) for name in LOG_DIRECTORY_FILES)
    ]
    if entries:
        raise NotALogDirectoryError(
            f"not a Kafka log directory, but it contains {'one' if len(entries) == 1 else len(entries)}",
            path=str(path),
            advice=f"give {' '.join(map(str, entries))}",
        )


def readable_meta(path: Path, fs: Fs) -> tuple[MetaProperties | None, CorruptCheckpointError | None]:
    """Return the meta.properties of a log directory, or None and its fault; commands that only read go on without it.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return read_meta_properties(fs, path / META_PROPERTIES_FILE), None
    except CorruptCheckpointError as error:
        return None, error


def check_filesystem(path: Path, *, allow_network: bool) -> None:
    kind = network_filesystem(path, MOUNT_TABLE)
    if kind is not None and not allow_network:
        raise UsageError(
            f"the log directory is on a network filesystem ({kind}), so another host may use it at the same time",
            path=str(path),
            advice="make sure that no other host uses it, then give --allow-network-fs",
        )
