"""LogListing: the names and sizes of the files in a partition directory, with the leftovers of interrupted changes.

Invariants: a listing opens no file.  `segments` are sorted by base offset, and the last one is active.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import CorruptDataError, NotALogDirectoryError
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, TRANSACTION_ENTRY_BYTES
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    INDEX_KINDS,
    SWAP_SUFFIX,
    SegmentFileKind,
    SegmentFileName,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import FileEntry, Fs

_MARKERS_LOST = 1 << 16  # of a log whose end is lost; so a small file is always read


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment and the sizes of its files.

    If a later listing has the same sizes, the segment is considered unchanged; this check opens no file.  Sizes are
    file lengths in bytes; the size of a missing index is None.
    """

    base_offset: int
    log_bytes: int
    offset_index_bytes: int | None
    time_index_bytes: int | None
    transaction_index_bytes: int | None
    mtime_ns: int

    @property
    def has_endless_transaction_index(self) -> bool:
        """True if the index has far more entries than the log can have markers; such an index is not read."""
        markers = self.log_bytes // BATCH_HEADER_BYTES + _MARKERS_LOST
        return (self.transaction_index_bytes or 0) // TRANSACTION_ENTRY_BYTES > markers


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that an interrupted replacement, deletion or task did not remove."""

    name: str
    parsed: SegmentFileName


@dataclass(frozen=True, slots=True)
class LogListing:
    """Files of one partition directory; `snapshots` are the offsets of producer snapshots, in ascending order.

    If the base offset of a segment is in `swapped`, the files of the segment still have the suffix `.swap`.
    """

    partition: TopicPartition
    path: Path
    segments: tuple[SegmentRef, ...]
    snapshots: tuple[int, ...]
    leftovers: tuple[Leftover, ...]
    swapped: frozenset[int] = frozenset()

    def file(self, segment: SegmentRef, kind: SegmentFileKind) -> Path:
        suffix = SWAP_SUFFIX if segment.base_offset in self.swapped else ""
        return self.path / (segment_file_name(segment.base_offset, kind) + suffix)

    def log_bytes(self) -> int:
        return sum(segment.log_bytes for segment in self.segments)

    def is_replacement_open(self) -> bool:
        """Return True if a replacement was interrupted, so that only the next start decides which segments remain."""
        # `.deleted` files and part files are ignored, because they will only be removed.  For example, `.deleted` files
        # remain if a broker stops within a minute after it cleaned a log.
        return any(leftover.parsed.state in (CLEANED_SUFFIX, SWAP_SUFFIX) for leftover in self.leftovers)


def list_log(partition: TopicPartition, path: Path, fs: Fs) -> LogListing:
    """As in a broker, anything but a regular file is ignored."""
    if not fs.is_directory(path):
        raise NotALogDirectoryError("no such partition directory", partition=str(partition), path=str(path))
    live: dict[int, dict[SegmentFileKind, FileEntry]] = {}
    snapshots: list[int] = []
    leftovers: list[Leftover] = []
    for entry in fs.scan(path):
        parsed = parse_segment_file(entry.name) if entry.is_file else None
        if parsed is None:
            continue
        if parsed.state:
            leftovers.append(Leftover(entry.name, parsed))
        elif parsed.kind is SegmentFileKind.SNAPSHOT:
            snapshots.append(parsed.base_offset)
        else:
            live.setdefault(parsed.base_offset, {})[parsed.kind] = entry
    segments = tuple(_segment(base, files) for base, files in sorted(live.items()) if SegmentFileKind.LOG in files)
    return LogListing(partition, path, segments, tuple(sorted(snapshots)), tuple(leftovers))


def segments_without_file(path: Path, fs: Fs) -> list[str]:
    """Return the names of logs that are no regular files, such as links to a disk that is not mounted.

    `list_log` leaves them out, so their records are not read.  A directory is no segment.
    """
    if not fs.is_directory(path):
        return []
    parsed = {name: parse_segment_file(name) for name in fs.special_files(path)}
    return [name for name, file in parsed.items() if file and file.kind is SegmentFileKind.LOG and not file.state]


def check_segments_are_files(partition: TopicPartition, path: Path, fs: Fs) -> None:
    """Check that no log of a partition is left out of its listing; a run on the other segments would miss its records.

    Raises:
        CorruptDataError: a log is not a regular file.
    """
    for name in segments_without_file(path, fs):
        raise CorruptDataError(
            "a segment is not a regular file, or its link is dangling",
            partition=str(partition),
            path=str(path / name),
            advice="mount the target of the link, or move the entry away; a broker would start with a gap here",
        )


def stat_segment(directory: Path, base_offset: int, fs: Fs, *, suffix: str = "") -> SegmentRef | None:
    found = {
        kind: fs.entry(directory / (segment_file_name(base_offset, kind) + suffix))
        for kind in (SegmentFileKind.LOG, *INDEX_KINDS)
    }
    files = {kind: entry for kind, entry in found.items() if entry is not None}
    return _segment(base_offset, files) if SegmentFileKind.LOG in files else None


def _segment(base_offset: int, files: Mapping[SegmentFileKind, FileEntry]) -> SegmentRef:
    def size(kind: SegmentFileKind) -> int | None:
        return files[kind].size_bytes if kind in files else None

    log = files[SegmentFileKind.LOG]
    return SegmentRef(
        base_offset=base_offset,
        log_bytes=log.size_bytes,
        offset_index_bytes=size(SegmentFileKind.OFFSET_INDEX),
        time_index_bytes=size(SegmentFileKind.TIME_INDEX),
        transaction_index_bytes=size(SegmentFileKind.TRANSACTION_INDEX),
        mtime_ns=log.mtime_ns,
    )
