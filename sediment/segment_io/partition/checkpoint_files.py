"""Reading and replacing the checkpoint and property files of logs; `format.checkpoints` defines their formats.

Invariants: reading changes nothing.  For a missing file, None is returned, never an empty value, because a loader
treats the two cases differently.  Every entry is checked before a file is changed.  `Fs.replace_file` replaces the
whole file, so a crash leaves the old or the new content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sediment.segment_io.format.checkpoints import (
    EpochEntry,
    MetaProperties,
    format_leader_epochs,
    format_meta_properties,
    format_offset_checkpoint,
    format_partition_metadata,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs


def read_offset_checkpoint(fs: Fs, path: Path) -> dict[TopicPartition, int] | None:
    """Return offsets by partition; None if the file is absent.  Raises as `parse_offset_checkpoint`."""
    content = _read(fs, path)
    return None if content is None else parse_offset_checkpoint(content, path=str(path))


def write_offset_checkpoint(
    fs: Fs, path: Path, entries: Mapping[TopicPartition, int], *, like: Path | None = None
) -> None:
    """Replace the file durably; a new file gets the owner, group and mode of `like`.

    Raises:
        UsageError: as `format_offset_checkpoint`; the file is unchanged.
    """
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

    If nothing changes, do not write the file.  Unlike a broker, keep entries of unknown partitions.  A new file gets
    the owner, group and mode of `like`.

    Raises:
        CorruptCheckpointError: the file exists and is malformed.
        UsageError: as `format_offset_checkpoint`; the file is unchanged.
    """
    before = read_offset_checkpoint(fs, path)
    gone = set(remove)
    after = {key: offset for key, offset in {**(before or {}), **entries}.items() if key not in gone}
    if after != before and (after or before is not None):
        write_offset_checkpoint(fs, path, after, like=like)


def read_leader_epochs(fs: Fs, path: Path) -> tuple[EpochEntry, ...] | None:
    """Return entries by ascending epoch; None if the file is absent.  Raises as `parse_leader_epochs`."""
    content = _read(fs, path)
    return None if content is None else parse_leader_epochs(content, path=str(path))


def write_leader_epochs(fs: Fs, path: Path, entries: Iterable[EpochEntry]) -> None:
    """Replace the file; durable when it returns."""
    fs.replace_file(path, format_leader_epochs(entries))


def read_partition_metadata(fs: Fs, path: Path) -> str | None:
    """Return the topic id; None if the file is absent.  Raises as `parse_partition_metadata`."""
    content = _read(fs, path)
    return None if content is None else parse_partition_metadata(content, path=str(path))


def write_partition_metadata(fs: Fs, path: Path, topic_id: str) -> None:
    """Replace the file; durable when it returns."""
    fs.replace_file(path, format_partition_metadata(topic_id))


def read_meta_properties(fs: Fs, path: Path) -> MetaProperties | None:
    """Return the properties of a log directory; None if the file is absent.  Raises as `parse_meta_properties`."""
    content = _read(fs, path)
    return None if content is None else parse_meta_properties(content, path=str(path))


def write_meta_properties(fs: Fs, path: Path, meta: MetaProperties) -> None:
    """Replace the file; durable when it returns."""
    fs.replace_file(path, format_meta_properties(meta))


def _read(fs: Fs, path: Path) -> bytes | None:
    try:
        return fs.read_bytes(path)
    except FileNotFoundError:
        return None
