"""Log directories as a run sees them: which they are, which partitions are selected, what their checkpoints say."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.checkpoints import read_meta_properties
from sediment.segment_io.errors import NotALogDirectoryError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.log_dir import LogDirCheckpoints, read_checkpoints
from sediment.segment_io.names import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    METADATA_TOPIC,
    RECOVERY_POINT_FILE,
    REMOTE_INDEX_CACHE,
    DirectoryState,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
)

_MARKS = frozenset({META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE})


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One entry of a broker's `log.dirs`; `directory_id` is from meta.properties, None where it has none."""

    path: Path
    directory_id: str | None
    partitions: tuple[TopicPartition, ...]
    checkpoints: LogDirCheckpoints


def open_directory(path: Path, patterns: Sequence[str], fs: Fs) -> LogDirectory:
    """Read what a log directory says about itself and select its live partitions by name or glob.

    Raises:
        NotALogDirectoryError: `path` is missing, a partition's directory, or holds neither partitions nor checkpoints.
        CorruptCheckpointError: a checkpoint file cannot be read; a broker would take the directory offline.
    """
    if not fs.is_directory(path):
        raise NotALogDirectoryError(
            "no such directory", path=str(path), advice="name an entry of the broker's log.dirs"
        )
    names = fs.scan(path)
    if any(parse_segment_file(entry.name) for entry in names if not entry.is_directory):
        raise NotALogDirectoryError(
            "this is the directory of one partition",
            path=str(path),
            advice=f"name its parent and select it: {path.parent} --partition {path.name}",
        )
    found = [partition for entry in names if entry.is_directory and (partition := _live_partition(entry.name))]
    if not found and not any(entry.name in _MARKS for entry in names):
        raise NotALogDirectoryError(
            "not a Kafka log directory: it holds neither topic-partition directories nor checkpoint files",
            path=str(path),
            advice="name an entry of the broker's log.dirs",
        )
    meta = read_meta_properties(fs, path / META_PROPERTIES_FILE) if fs.exists(path / META_PROPERTIES_FILE) else None
    selected = tuple(sorted(p for p in found if not patterns or any(fnmatch.fnmatchcase(str(p), g) for g in patterns)))
    return LogDirectory(path, meta.directory_id if meta else None, selected, read_checkpoints(path, fs))


def _live_partition(name: str) -> TopicPartition | None:
    if name == REMOTE_INDEX_CACHE:
        return None
    try:
        partition, state = parse_partition_directory(name)
    except UsageError:
        return None
    return partition if state is DirectoryState.LIVE and partition.topic != METADATA_TOPIC else None
