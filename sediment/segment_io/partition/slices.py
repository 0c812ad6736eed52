r"""Which bytes of which segments answer for a range of offsets and times, cut where indexes say that batches begin.

    bounds ----> segments that can hold them        by base offsets, and by the largest timestamp that is indexed
             \-> first and last byte inside of one   by the entries of its offset and time index
              \-> cuts in between, every slice_bytes  each verified: a batch whose CRC is right begins there

A log that is in use changes under its readers: segments roll, retention removes them, compaction replaces them.  A
slice therefore answers for offsets; its positions hold as long as the file is the one they were taken from, and if it
is not, `current_slices` takes them anew.

Invariants: indexes are hints, believed only where the log agrees; nothing that lies within the bounds is ever left out,
what lies outside may be included; a listing never shows a replacement half done.  No compiled code is needed to plan.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import crc32c
import numpy as np

from sediment.segment_io.errors import NotALogDirectoryError, SourceChangedError
from sediment.segment_io.format.indexes import Int64s, OffsetIndex, TimeIndex, parse_offset_index, parse_time_index
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
from sediment.segment_io.fs import Fs, open_to_read
from sediment.segment_io.partition.index_files import read_entries
from sediment.segment_io.partition.live_segments import LiveSegment, live_segments
from sediment.segment_io.partition.sources import Source

SLICE_BYTES = 128 << 20
LARGEST_VERIFIED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets and timestamps in ms of the records that are asked for; ends are exclusive, and 2^63 - 1 is no end."""

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
        """Whether no record can be within them."""
        return self.first_offset >= self.end_offset or self.first_timestamp_ms >= self.end_timestamp_ms


ALL = Bounds()


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes [start_position, end_position) of a segment, which held the offsets [start_offset, end_offset).

    `inode` is that of the `.log` when positions were taken.
    """

    source: Source
    segment: LiveSegment
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    inode: int

    @property
    def path(self) -> Path:
        """Of the `.log`."""
        return self.segment.path(self.source.directory, SegmentFileKind.LOG)

    @property
    def size_bytes(self) -> int:
        """How much is to be read."""
        return self.end_position - self.start_position


# ------------------------------------------------------------------------------------------------------------ planning
def plan_slices(source: Source, bounds: Bounds, fs: Fs, *, slice_bytes: int = SLICE_BYTES) -> tuple[Slice, ...]:
    """The slices of a partition that can hold records within `bounds`, ascending, of about `slice_bytes` at most.

    Raises:
        NotALogDirectoryError: the directory or the named segment does not exist.
    """
    if bounds.is_empty():
        return ()
    return tuple(
        piece
        for segment in live_segments(source, fs)
        if _can_hold(source, segment, bounds)
        for piece in _cut(source, segment, bounds, slice_bytes)
    )


def current_slices(stale: Slice, fs: Fs) -> tuple[Slice, ...]:
    """The slices that now answer for the offsets of `stale`, whose file is no longer the one it was taken from."""
    bounds = Bounds(first_offset=stale.start_offset, end_offset=stale.end_offset)
    try:
        return plan_slices(stale.source, bounds, fs, slice_bytes=INT64_MAX)
    except NotALogDirectoryError as error:
        raise SourceChangedError(
            "the partition or segment went away while it was read",
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
    # The last entry of a segment that is no longer written to has its largest timestamp.
    index = _time_index(source, segment)
    return not len(index) or index.last_entry.timestamp_ms >= bounds.first_timestamp_ms


def _cut(source: Source, segment: LiveSegment, bounds: Bounds, slice_bytes: int) -> Iterator[Slice]:
    path = segment.path(source.directory, SegmentFileKind.LOG)
    try:
        descriptor = open_to_read(path)
    except FileNotFoundError:
        # Listed and gone: whoever reads the slice will look for its offsets anew.
        yield Slice(source, segment, 0, segment.ref.log_bytes, _first(segment, bounds), _end(segment, bounds), -1)
        return
    try:
        inode = os.fstat(descriptor).st_ino
        cuts = _Cuts(source, segment, bounds, descriptor).cuts(slice_bytes)
        for (start, offset), (end, next_offset) in pairwise(cuts):
            yield Slice(source, segment, start, end, offset, next_offset, inode)
    finally:
        os.close(descriptor)


def _first(segment: LiveSegment, bounds: Bounds) -> int:
    return max(segment.base_offset, bounds.first_offset)


def _end(segment: LiveSegment, bounds: Bounds) -> int:
    return min(segment.end_offset, bounds.end_offset)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The search for cuts in one open segment."""

    source: Source
    segment: LiveSegment
    bounds: Bounds
    descriptor: int

    def cuts(self, slice_bytes: int) -> list[tuple[int, int]]:
        """(position, offset) where slices begin, and where the last one ends."""
        segment, bounds = self.segment, self.bounds
        size_bytes = segment.ref.log_bytes
        start, end = 0, size_bytes
        inside = (
            bounds.first_offset > segment.base_offset
            or bounds.end_offset < segment.end_offset
            or bounds.first_timestamp_ms != INT64_MIN
        )
        places: list[tuple[int, int]] = []
        if inside or size_bytes > slice_bytes:
            index = _offset_index(self.source, segment)
            start = self._start(index)
            end = self._end(index, start)
            places = self._between(index, start, end, slice_bytes)
        return [(start, _first(segment, bounds)), *places, (end, _end(segment, bounds))]

    def _start(self, index: OffsetIndex) -> int:
        """The last verified entry that nothing within the bounds precedes; 0 where there is none."""
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
        """The first verified entry from which on all offsets are above the bounds; the file's end where there is none.

        What follows an entry is above it, but the batch of the entry itself need not be.
        """
        slot = _search(index.relative_offsets, self.bounds.end_offset - 1 - index.base_offset, "left") + 1
        for later in range(slot, len(index)):
            if index[later].position > start and self._verified(index, later) is not None:
                return index[later].position
        return self.segment.ref.log_bytes

    def _between(self, index: OffsetIndex, start: int, end: int, slice_bytes: int) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        last = start
        while last + slice_bytes < end:
            offset = None
            for slot in range(_search(index.positions, last + slice_bytes, "left"), len(index)):
                last = index[slot].position
                if last >= end:
                    return places
                offset = self._verified(index, slot)
                if offset is not None:
                    places.append((last, offset))
                    break
            if offset is None:
                return places
        return places

    def _verified(self, index: OffsetIndex, slot: int) -> int | None:
        """The base offset of the batch at an entry, None where there is no such batch."""
        entry = index[slot]
        size_bytes = self.segment.ref.log_bytes
        return verified_batch(self.descriptor, entry.position, size_bytes, self.segment.base_offset, entry.offset)


def verified_batch(descriptor: int, position: int, size_bytes: int, lowest: int, highest: int) -> int | None:
    """The base offset of the batch at `position` of a file of `size_bytes`; None where none is known to be there.

    Its checksum must be right and its base offset within [lowest, highest], because an entry names the last offset of
    its batch, or of the append that began there.  A compressed wrapper of magic 0 or 1 hides its base offset.

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
    if not lowest <= base_offset <= highest:
        return None
    batch = os.pread(descriptor, batch_bytes, position)
    if legacy:
        stored = int.from_bytes(batch[LEGACY_CRC : LEGACY_CRC + 4], "big")
        good = zlib.crc32(memoryview(batch)[LEGACY_CRC_START:]) == stored
        return base_offset if good and not batch[LEGACY_ATTRIBUTES] & CODEC_MASK else None
    stored = int.from_bytes(batch[CRC : CRC + 4], "big")
    return base_offset if crc32c.crc32c(memoryview(batch)[ATTRIBUTES:]) == stored else None


def _offset_index(source: Source, segment: LiveSegment) -> OffsetIndex:
    content = read_entries(segment.path(source.directory, SegmentFileKind.OFFSET_INDEX), OFFSET_ENTRY_BYTES)
    return parse_offset_index(content, segment.base_offset, preallocated=True)


def _time_index(source: Source, segment: LiveSegment) -> TimeIndex:
    """The time index as far as its entries belong into the segment."""
    content = read_entries(segment.path(source.directory, SegmentFileKind.TIME_INDEX), TIME_ENTRY_BYTES)
    index = parse_time_index(content, segment.base_offset, preallocated=True)
    inside = _search(index.relative_offsets, segment.end_offset - segment.base_offset, "left")
    return replace(index, timestamps=index.timestamps[:inside], relative_offsets=index.relative_offsets[:inside])


def _search(column: Int64s, target: int, side: Literal["left", "right"]) -> int:
    """np.searchsorted for a target of any size."""
    return int(np.searchsorted(column, max(min(target, INT64_MAX), INT64_MIN), side=side))


# ------------------------------------------------------------------------------------------------------------- reading
@contextmanager
def opened(piece: Slice, *, or_deleted: bool = False) -> Iterator[int | None]:
    """A descriptor of the slice's file, None where that is no longer the file of its positions.

    A file is never changed but at its end, so the same inode that is long enough holds what it held; where inodes mean
    nothing, on another host, size and time stand for it.  `or_deleted` opens the file under its name with `.deleted`
    too, where a broker keeps what it removed or replaced for `file.delete.delay.ms`.
    """
    descriptor = _opened(piece, piece.path)
    if descriptor is None and or_deleted:
        descriptor = _opened(piece, Path(f"{piece.path}{DELETED_SUFFIX}"))
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _opened(piece: Slice, path: Path) -> int | None:
    try:
        descriptor = open_to_read(path)
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    ref = piece.segment.ref
    grown = status.st_ino == piece.inode and status.st_size >= ref.log_bytes
    same = (status.st_size, status.st_mtime_ns) == (ref.log_bytes, ref.mtime_ns)
    if grown or same:
        return descriptor
    os.close(descriptor)
    return None
