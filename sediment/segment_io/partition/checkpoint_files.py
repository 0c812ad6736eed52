"""Reading and replacing the checkpoint and property files of logs.

Invariants: reading changes nothing.  Every entry is checked before a file is changed.  This module is separate from
`log_view`, so that the driver can read checkpoints without loading compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.checkpoints import (
    EpochEntry,
    format_leader_epochs,
    format_offset_checkpoint,
    format_partition_metadata,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from sediment.segment_io.format.meta_properties import MetaProperties, format_meta_properties, parse_meta_properties
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.clean_shutdown_file import read_clean_shutdown

LOG_DIRECTORY_FILES = frozenset(
    {META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE}
)
"""The files of a log directory; if a broker has used the directory, at least one of them exists."""


def read_offset_checkpoint(fs: Fs, path: Path) -> dict[TopicPartition, int] | None:
    content = _read(fs, path)
    return None if content is None else parse_offset_checkpoint(content, path=str(path))


def write_offset_checkpoint(
    fs: Fs, path: Path, entries: Mapping[TopicPartition, int], *, like: Path | None = None
) -> None:
    fs.replace_file(path, format_offset_checkpoint(entries), like=like)


def update_offset_checkpoint(
    fs: Fs,
    path: Path,
    entries: Mapping[TopicPartition, int],
    remove: Iterable[TopicPartition] = (),
    *,
    like: Path | None = None,
) -> None:
    """Set `entries`, remove the partitions in `remove`, and keep all other entries.

    If nothing changes, do not write the file.  Unlike a broker, keep entries of unknown partitions.
    """
    before = read_offset_checkpoint(fs, path)
    gone = set(remove)
    after = {key: offset for key, offset in {**(before or {}), **entries}.items() if key not in gone}
    if after != before and (after or before is not None):
        write_offset_checkpoint(fs, path, after, like=like)


def read_leader_epochs(fs: Fs, path: Path) -> tuple[EpochEntry, ...] | None:
    content = _read(fs, path)
    return None if content is None else parse_leader_epochs(content, path=str(path))


def write_leader_epochs(fs: Fs, path: Path, entries: Iterable[EpochEntry], *, like: Path | None = None) -> None:
    fs.replace_file(path, format_leader_epochs(entries), like=like)


def read_partition_metadata(fs: Fs, path: Path) -> str | None:
    content = _read(fs, path)
    return None if content is None else parse_partition_metadata(content, path=str(path))


def write_partition_metadata(fs: Fs, path: Path, topic_id: str) -> None:
    fs.replace_file(path, format_partition_metadata(topic_id))


def read_meta_properties(fs: Fs, path: Path) -> MetaProperties | None:
    content = _read(fs, path)
    return None if content is None else parse_meta_properties(content, path=str(path))


def write_meta_properties(fs: Fs, path: Path, meta: MetaProperties) -> None:
    fs.replace_file(path, format_meta_properties(meta))


def _read(fs: Fs, path: Path) -> bytes | None:
    try:
        return fs.read_bytes(path)
    # For a missing file, None is returned, not an empty value, because a loader treats a missing and an empty file
    # differently.
    except FileNotFoundError:
        return None


# ------------------------------------------------------------------------------------------- checkpoints of a directory
@dataclass(frozen=True, slots=True)
class PartitionCheckpoints:
    """The entries of one partition in the checkpoint files, and a flag that is True after a clean stop of the broker.

    An offset is None if its file is missing or does not list the partition.  But if the file of `recovery_point` exists
    and does not list the partition, `recovery_point` is 0.  A directory that has no recovery point file and no marker
    of a clean stop is a bare copy.
    """

    first_dirty: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    recovery_point: int | None = None
    high_watermark_file: bool = False
    clean_shutdown: bool = False


@dataclass(frozen=True, slots=True)
class LogDirCheckpoints:
    first_dirty: Mapping[TopicPartition, int] | None
    log_start: Mapping[TopicPartition, int] | None
    high_watermark: Mapping[TopicPartition, int] | None
    recovery_point: Mapping[TopicPartition, int] | None
    clean_shutdown: bool

    def only(self, partition: TopicPartition) -> LogDirCheckpoints:
        def entry(file: Mapping[TopicPartition, int] | None) -> Mapping[TopicPartition, int] | None:
            return None if file is None else {key: file[key] for key in (partition,) if key in file}

        return replace(
            self,
            first_dirty=entry(self.first_dirty),
            log_start=entry(self.log_start),
            high_watermark=entry(self.high_watermark),
            recovery_point=entry(self.recovery_point),
        )

    def of(self, partition: TopicPartition) -> PartitionCheckpoints:
        return PartitionCheckpoints(
            first_dirty=(self.first_dirty or {}).get(partition),
            log_start=(self.log_start or {}).get(partition),
            high_watermark=(self.high_watermark or {}).get(partition),
            recovery_point=None if self.recovery_point is None else self.recovery_point.get(partition, 0),
            high_watermark_file=self.high_watermark is not None,
            clean_shutdown=self.clean_shutdown,
        )


def log_start_entries(starts: Iterable[tuple[TopicPartition, int, int]]) -> dict[TopicPartition, int]:
    """Return the entries of a log start checkpoint: the logs that start above the base offset of their first segment.

    `starts` contains, for each log, its partition, its log start offset and the base offset of its first segment.

    Source: kafka-log 03 §4 (LogManager.checkpointLogStartOffsetsInDir).
    """
    return {
        partition: log_start_offset
        for partition, log_start_offset, first_base_offset in starts
        if log_start_offset > first_base_offset
    }


def read_checkpoints(
    log_dir: Path, fs: Fs, *, on_unreadable: Callable[[Path, CorruptCheckpointError | OSError], None] | None = None
) -> LogDirCheckpoints:
    """A malformed cleaner checkpoint is treated as missing, so the cleaner then begins at the log start.

    With `on_unreadable`, every malformed or unreadable file is treated as missing.  `on_unreadable` is called with the
    path of the file and the error.

    Raises:
        CorruptCheckpointError: a checkpoint other than the cleaner's is malformed; a broker would take the directory
            offline.

    Source: kafka-log 01 §9, 02 §2, 05 §1.
    """

    def read(name: str) -> dict[TopicPartition, int] | None:
        try:
            return read_offset_checkpoint(fs, log_dir / name)
        except (CorruptCheckpointError, OSError) as error:
            if on_unreadable is not None:
                on_unreadable(log_dir / name, error)
            elif name != CLEANER_FILE or isinstance(error, OSError):
                raise
            return None

    def has_clean_marker() -> bool:
        try:
            return read_clean_shutdown(fs, log_dir) is not None
        except OSError as error:
            if on_unreadable is None:
                raise
            on_unreadable(log_dir / CLEAN_SHUTDOWN_FILE, error)
            return False

    return LogDirCheckpoints(
        first_dirty=read(CLEANER_FILE),
        log_start=read(LOG_START_FILE),
        high_watermark=read(HIGH_WATERMARK_FILE),
        recovery_point=read(RECOVERY_POINT_FILE),
        clean_shutdown=has_clean_marker(),
    )
