r"""Slices: byte ranges of segments that cover a range of offsets and times, and are cut at batches with index entries.

    bounds ----> segments that can contain them         from base offsets, and from the largest indexed timestamp
             \-> first and last position in a segment   from the entries of its offset index and time index
              \-> cuts in between, every slice_bytes    at each cut, a batch with a valid CRC begins

A log in use changes while it is read: segments roll, retention removes segments, and compaction replaces segments.  So
a slice is identified by its offsets.  Its positions are valid only for the file in which they were found.  If another
file has replaced that file, `current_slices` finds new positions for the same offsets.

Invariants: an index entry is used only if the log confirms it.  Every record within the bounds is in a slice; slices
may also contain other records.  Planning needs no compiled code.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import google_crc32c
import numpy as np

from sediment.segment_io.errors import NotALogDirectoryError, SourceChangedError
from sediment.segment_io.format.index_sanity import Int64s
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CRC,
    INT64_MAX,
    INT64_MIN,
    LEGACY_ATTRIBUTES,
    LEGACY_CRC,
    LEGACY_CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
)
from sediment.segment_io.format.names import (
    DELETED_SUFFIX,
    SegmentFileKind,
)
from sediment.segment_io.format.offset_index import OffsetIndex, parse_offset_index
from sediment.segment_io.format.time_index import TimeIndex, parse_time_index
from sediment.segment_io.fs import Fs, created_ns, open_to_read
from sediment.segment_io.partition.index_files import read_entries
from sediment.segment_io.partition.live_segments import LiveSegment, live_segments
from sediment.segment_io.partition.sources import Source

SLICE_BYTES = 128 << 20
LARGEST_VERIFIED_BYTES = 64 << 20
_LAST_SLICE_BYTES = 64 << 10
_LARGER = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of offsets and a range of timestamps in ms; ends are exclusive, and 2^63 - 1 means no end."""

    first_offset: int = INT64_MIN
    end_offset: int = INT64_MAX
    first_timestamp_ms: int = INT64_MIN
    end_timestamp_ms: int = INT64_MAX

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(
            max(self.first_offset, other.first_offset),
            min(self.end_offset, other.end_offset),
            max(self.first_timestamp_ms, other.first_timestamp_ms),
            min(self.end_timestamp_ms, other.end_timestamp_ms),
        )

    def is_empty(self) -> bool:
        return self.first_offset >= self.end_offset or self.first_timestamp_ms >= self.end_timestamp_ms


ALL = Bounds()
_Cut: TypeAlias = tuple[int, int]  # the position and the offset at which a slice begins or ends


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes [start_position, end_position) of a segment, which contained the offsets [start_offset, end_offset).

    `inode` and `created_ns` belonged to the `.log` when the positions were found; -1 and None if the file no longer
    existed.  Filesystems use inodes again, so the inode alone does not identify a file.
    """

    source: Source
    segment: LiveSegment
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    inode: int
    created_ns: int | None = None

    @property
    def path(self) -> Path:
        return self.segment.path(self.source.directory, SegmentFileKind.LOG)

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position


# ------------------------------------------------------------------------------------------------------------ planning
def plan_slices(source: Source, bounds: Bounds, fs: Fs, *, slice_bytes: int = SLICE_BYTES) -> tuple[Slice, ...]:
    if bounds.is_empty():
        return ()
    return tuple(
        found
        for segment in live_segments(source, fs)
        if _can_hold(source, segment, bounds)
        for found in _cut(source, segment, bounds, lambda cuts: pairwise(cuts.cuts(slice_bytes)))
    )


def slices_from_end(source: Source, bounds: Bounds, fs: Fs) -> Iterator[Slice]:
    """Yield the slices that can contain records within `bounds`, in descending order.

    The slices cover the same bytes as the slices of `plan_slices`.  The last slice of a segment is small, and each
    earlier slice is larger than the slice after it.  The position of a cut is looked up only when the caller requests
    the slice.
    """
    if bounds.is_empty():
        return
    for segment in reversed(live_segments(source, fs)):
        if _can_hold(source, segment, bounds):
            yield from _cut(source, segment, bounds, _Cuts.from_end)


def current_slices(stale: Slice, fs: Fs) -> tuple[Slice, ...]:
    bounds = Bounds(first_offset=stale.start_offset, end_offset=stale.end_offset)
    try:
        return plan_slices(stale.source, bounds, fs, slice_bytes=INT64_MAX)
    except NotALogDirectoryError as error:
        raise SourceChangedError(
            "the partition or segment was removed while it was read",
            partition=str(stale.source.partition),
            path=str(stale.path),
            advice="run again; a broker or another tool is at work in this directory",
        ) from error


def _can_hold(source: Source, segment: LiveSegment, bounds: Bounds) -> bool:
    if segment.ref.log_bytes == 0 or segment.end_offset <= bounds.first_offset:
        return False
    if segment.base_offset >= bounds.end_offset:
        return False
    if segment.is_active or bounds.first_timestamp_ms == INT64_MIN:
        return True
    # The last entry of an inactive segment has the segment's largest timestamp.
    index = _time_index(source, segment)
    return not len(index) or index.last_entry.timestamp_ms >= bounds.first_timestamp_ms


def _cut(
    source: Source, segment: LiveSegment, bounds: Bounds, pairs_of: Callable[[_Cuts], Iterable[tuple[_Cut, _Cut]]]
) -> Iterator[Slice]:
    path = segment.path(source.directory, SegmentFileKind.LOG)
    try:
        descriptor = open_to_read(path)
    except FileNotFoundError:
        # The listed file no longer exists; the reader of the slice will plan new slices for the same offsets.
        yield Slice(source, segment, 0, segment.ref.log_bytes, _first(segment, bounds), _end(segment, bounds), -1)
        return
    try:
        inode, created = os.fstat(descriptor).st_ino, created_ns(descriptor)
        for (start, offset), (end, next_offset) in pairs_of(_Cuts(source, segment, bounds, descriptor)):
            yield Slice(source, segment, start, end, offset, next_offset, inode, created)
    finally:
        os.close(descriptor)


def _first(segment: LiveSegment, bounds: Bounds) -> int:
    return max(segment.base_offset, bounds.first_offset)


def _end(segment: LiveSegment, bounds: Bounds) -> int:
    return min(segment.end_offset, bounds.end_offset)


@dataclass(frozen=True, slots=True)
class _Cuts:
    source: Source
    segment: LiveSegment
    bounds: Bounds
    descriptor: int

    def cuts(self, slice_bytes: int) -> list[_Cut]:
        start, end, index = self._ends(slice_bytes)
        return [start, *(() if index is None else self._between(index, start[0], end[0], slice_bytes)), end]

    def from_end(self) -> Iterator[tuple[_Cut, _Cut]]:
        slice_bytes = _LAST_SLICE_BYTES
        start, end, index = self._ends(slice_bytes)
        while True:
            cut = None if index is None else self._before(index, start[0], end[0] - slice_bytes)
            yield cut or start, end
            if cut is None:
                return
            end, slice_bytes = cut, min(slice_bytes * _LARGER, SLICE_BYTES)

    def _ends(self, slice_bytes: int) -> tuple[_Cut, _Cut, OffsetIndex | None]:
        segment, bounds = self.segment, self.bounds
        inside = (
            bounds.first_offset > segment.base_offset
            or bounds.end_offset < segment.end_offset
            or bounds.first_timestamp_ms != INT64_MIN
        )
        start, end = 0, segment.ref.log_bytes
        index = _offset_index(self.source, segment) if inside or end > slice_bytes else None
        if index is not None:
            start = self._start(index)
            end = self._end(index, start)
        return (start, _first(segment, bounds)), (end, _end(segment, bounds)), index

    def _start(self, index: OffsetIndex) -> int:
        """Return the position of the last verified entry that is before all records within the bounds.

        Return 0 if there is none.
        """
        target = self.bounds.first_offset
        if self.bounds.first_timestamp_ms != INT64_MIN:
            times = _time_index(self.source, self.segment)
            target = max(target, times.lookup(self.bounds.first_timestamp_ms).offset)
        slot = _search(index.relative_offsets, target - index.base_offset, "right") - 1
        while slot >= 0:
            if self._verified(index, slot) is not None:
                return index[slot].position
            slot -= 1
        return 0

    def _end(self, index: OffsetIndex, start: int) -> int:
        """Return the position of the first verified entry after which all offsets are above the bounds.

        Without such an entry, return the end of the file.
        """
        # All batches after an entry's batch are above the entry's offset.  The entry's batch may begin below that
        # offset.
        slot = _search(index.relative_offsets, self.bounds.end_offset - 1 - index.base_offset, "left") + 1
        for later in range(slot, len(index)):
            if index[later].position > start and self._verified(index, later) is not None:
                return index[later].position
        return self.segment.ref.log_bytes

    def _before(self, index: OffsetIndex, start: int, highest: int) -> _Cut | None:
        for slot in range(_search(index.positions, highest, "right") - 1, -1, -1):
            position = index[slot].position
            if position <= start:
                return None
            offset = self._verified(index, slot) if position <= highest else None
            if offset is not None:
                return position, offset
        return None

    def _between(self, index: OffsetIndex, start: int, end: int, slice_bytes: int) -> list[_Cut]:
        found: list[_Cut] = []
        last = start
        while last + slice_bytes < end:
            offset = None
            for slot in range(_search(index.positions, last + slice_bytes, "left"), len(index)):
                last = index[slot].position
                if last >= end:
                    return found
                offset = self._verified(index, slot)
                if offset is not None:
                    found.append((last, offset))
                    break
            if offset is None:
                return found
        return found

    def _verified(self, index: OffsetIndex, slot: int) -> int | None:
        entry = index[slot]
        size_bytes = self.segment.ref.log_bytes
        return verified_batch(self.descriptor, entry.position, size_bytes, self.segment.base_offset, entry.offset)


def verified_batch(descriptor: int, position: int, size_bytes: int, lowest: int, highest: int) -> int | None:
    """Return the base offset of the batch at `position` of a file of `size_bytes`.

    Return None if the batch cannot be verified.  The CRC must be valid, and the base offset must be within [lowest,
    highest].

    Source: kafka-log 01 §7.1.
    """
    header = os.pread(descriptor, BATCH_HEADER_BYTES, position)
    if len(header) <= MAGIC:
        return None
    length = int.from_bytes(header[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
    batch_bytes = LOG_OVERHEAD_BYTES + length
    magic = header[MAGIC]
    legacy = magic < 2
    shortest = LEGACY_ATTRIBUTES + 1 if legacy else BATCH_HEADER_BYTES
    if not shortest <= batch_bytes <= min(size_bytes - position, LARGEST_VERIFIED_BYTES) or magic > 2:
        return None
    base_offset = int.from_bytes(header[:8], "big", signed=True)
    # The exact base offset is unknown, because an index entry contains a last offset: that of its batch, or that of the
    # append that began with the batch.
    if not lowest <= base_offset <= highest:
        return None
    batch = os.pread(descriptor, batch_bytes, position)
    if legacy:
        stored = int.from_bytes(batch[LEGACY_CRC : LEGACY_CRC + 4], "big")
        good = zlib.crc32(memoryview(batch)[LEGACY_CRC_START:]) == stored
        # A compressed message of magic 0 or 1 is never verified, because its header does not contain the base offset.
        return base_offset if good and not batch[LEGACY_ATTRIBUTES] & CODEC_MASK else None
    stored = int.from_bytes(batch[CRC : CRC + 4], "big")
    return base_offset if google_crc32c.value(batch[ATTRIBUTES:]) == stored else None


def _offset_index(source: Source, segment: LiveSegment) -> OffsetIndex:
    content = read_entries(segment.path(source.directory, SegmentFileKind.OFFSET_INDEX), OFFSET_ENTRY_BYTES)
    return parse_offset_index(content, segment.base_offset, preallocated=True)


def _time_index(source: Source, segment: LiveSegment) -> TimeIndex:
    content = read_entries(segment.path(source.directory, SegmentFileKind.TIME_INDEX), TIME_ENTRY_BYTES)
    index = parse_time_index(content, segment.base_offset, preallocated=True)
    inside = _search(index.relative_offsets, segment.end_offset - segment.base_offset, "left")
    return replace(index, timestamps=index.timestamps[:inside], relative_offsets=index.relative_offsets[:inside])


def _search(column: Int64s, target: int, side: Literal["left", "right"]) -> int:
    """Return np.searchsorted; `target` may exceed the range of int64."""
    return int(np.searchsorted(column, max(min(target, INT64_MAX), INT64_MIN), side=side))


# ------------------------------------------------------------------------------------------------------------- reading
@contextmanager
def opened(part: Slice, *, or_deleted: bool = False) -> Iterator[int | None]:
    """Open the file of a slice; yield the descriptor, or None if the slice's positions were found in a different file.

    With `or_deleted`, the file may also have the suffix `.deleted`.
    """
    descriptor = _opened(part, part.path)
    if descriptor is None and or_deleted:
        # Under this suffix, a broker keeps a removed or replaced file for `file.delete.delay.ms`.
        descriptor = _opened(part, Path(f"{part.path}{DELETED_SUFFIX}"))
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_replaced(part: Slice) -> bool:
    try:
        descriptor = open_to_read(part.path)
    except FileNotFoundError:
        return True
    try:
        return not _is_file_of(part, descriptor)
    finally:
        os.close(descriptor)


def _is_file_of(part: Slice, descriptor: int) -> bool:
    return (os.fstat(descriptor).st_ino, created_ns(descriptor)) == (part.inode, part.created_ns)


def _opened(part: Slice, path: Path) -> int | None:
    try:
        descriptor = open_to_read(path)
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    ref = part.segment.ref
    # A `.log` only grows, so the slice is valid if the file is the same one and not smaller.
    grown = _is_file_of(part, descriptor) and status.st_size >= ref.log_bytes
    # On another host, inodes cannot be compared, so the size and modification time must be the same.
    same = (status.st_size, status.st_mtime_ns) == (ref.log_bytes, ref.mtime_ns)
    if grown or same:
        return descriptor
    os.close(descriptor)
    return None
