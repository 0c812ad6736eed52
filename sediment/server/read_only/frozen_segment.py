"""One segment of a read-only log: searches by offset and by time, which skip unreadable ranges.

    offset -> offset index -> header scan -> batch          each checksum is verified once, before its batch is returned

A batch is returned only if its checksum and its offsets were verified.  Verified ranges are stored in memory, so each
byte is verified only once.  After an error, the whole segment is read once, from its first byte.  The result is the
*survey*:

    | batch | batch | unreadable | batch | batch |          its index file is not used any more
    '---- run ------'            '--- run -------'

Reading continues after an unreadable range at the first of these positions:
1. a good batch right after the bad batches, if their length fields lead to it
2. a good batch that has an offset index entry
3. the end of the segment

If a search from an index entry finds no batch, all headers are searched once.

Invariants: only a survey and the search of all headers have a cost that depends on the size of the segment. Bytes in an
unreadable range are never trusted, because a record may contain bytes that look like batches.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_buffer
from sediment.segment_io.compiled.status import INCOMPLETE
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT, read_headers
from sediment.segment_io.partition.slices import verified_batch
from sediment.segment_io.segment.reader import HeaderScan
from sediment.segment_io.segment.search import (
    BY_EXACT_TIMESTAMP,
    BY_LAST_OFFSET,
    BY_TIMESTAMP,
    FoundBatch,
    find_in_file,
)
from sediment.segment_io.segment.timestamp_search import FoundRecord, WantedTime, find_record
from sediment.server.read_only.open_segments import (
    OffsetEntries,
    OpenSegment,
    SegmentFiles,
    good_rows,
    int32s,
    sparse_entries,
)

_VERIFIED_BYTES = 1 << 20
_VERIFIED_ROWS = 1 << 12
_BAD_BATCH = "a batch fails its checksum or its offsets are out of order"
_TORN = "the segment ends inside a batch"


class Run(NamedTuple):
    start_position: int
    end_position: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class UnservedRange:
    """`from_offset` is one above the last offset before this range."""

    path: str
    start_position: int
    end_position: int
    from_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Survey:
    runs: tuple[Run, ...]
    offsets: OffsetEntries

    def readable_end(self, start: int, end: int) -> int:
        number = bisect_right(self.runs, start, key=attrgetter("start_position")) - 1
        return min(max(self.runs[number].end_position, start), end) if number >= 0 else start


class VerifiedRanges:
    """Disjoint byte ranges in ascending order; one thread at a time may add ranges while others look ranges up."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        # Starts and ends are replaced in one assignment, so that a look-up never combines old starts with new ends.
        self._ranges: tuple[list[int], list[int]] = ([], [])

    def end_of(self, position: int) -> int:
        starts, ends = self._ranges
        slot = bisect_right(starts, position) - 1
        return max(ends[slot], position) if slot >= 0 else position

    def add(self, start: int, end: int) -> None:
        starts, ends = self._ranges
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        self._ranges = (
            [*starts[:first], min([start, *starts[first:last]]), *starts[last:]],
            [*ends[:first], max([end, *ends[first:last]]), *ends[last:]],
        )


class FrozenSegment:
    """Any thread may call the methods."""

    __slots__ = (
        "_guard",
        "_nothing_from",
        "_on_unreadable",
        "_survey",
        "_verified",
        "base_offset",
        "end_position",
        "files",
    )

    def __init__(self, files: SegmentFiles, on_unreadable: Callable[[UnservedRange], None]) -> None:
        self.files = files
        self.base_offset = files.base_offset
        self.end_position = files.size_bytes
        self._on_unreadable = on_unreadable
        self._nothing_from: int | None = None
        self._verified = VerifiedRanges()
        self._survey: _Survey | None = None
        self._guard = threading.Lock()

    # ------------------------------------------------------------------------------------------------------------- read
    def locate(self, opened: OpenSegment, offset: int) -> FoundBatch | None:
        if self._survey is None:
            entries = opened.offsets
            slot = bisect_right(entries.relative_offsets, offset - self.base_offset) - 1
            position = entries.positions[slot] if slot >= 0 else 0
            try:
                found = find_in_file(opened.file, position, self.end_position, BY_LAST_OFFSET, offset)
                is_hidden = found is None and position > 0 and self._has_batch_from(opened, offset)
            except CorruptDataError as error:
                self._make_survey(opened, error.what)
            else:
                if found is not None:
                    is_first = slot >= 0 and found.position == position
                    if not is_first or found.base_offset <= self.base_offset + entries.relative_offsets[slot]:
                        return found
                elif not is_hidden:
                    return None
                self._make_survey(opened, "the offset index points to a batch with other offsets")
        return self._locate_in_runs(opened, offset)

    def _has_batch_from(self, opened: OpenSegment, offset: int) -> bool:
        # If a search from an index entry finds no such batch, this proves nothing, because the entry may point into a
        # record. So the first call reads all headers, from the first byte, and stores the offset after the last batch.
        if offset >= self.files.end_offset:
            return False
        if self._nothing_from is None:
            scan = HeaderScan(Path(self.files.log), size_bytes=self.end_position)
            ends = (int(span.rows["last_offset"].max()) + 1 for span in scan.spans(opened.file))
            self._nothing_from = max(ends, default=self.base_offset)
        return offset < self._nothing_from

    def _locate_in_runs(self, opened: OpenSegment, offset: int) -> FoundBatch | None:
        survey = self._survey
        assert survey is not None
        number = bisect_left(survey.runs, offset, key=attrgetter("last_offset"))
        if number == len(survey.runs):
            return None
        run, entries = survey.runs[number], survey.offsets
        slot = bisect_right(entries.relative_offsets, offset - self.base_offset) - 1
        position = max(entries.positions[slot] if slot >= 0 else 0, run.start_position)
        return find_in_file(opened.file, position, run.end_position, BY_LAST_OFFSET, offset)

    def verified_end(self, opened: OpenSegment, start: int, end: int) -> int:
        """If the result is `start`, the next call of `locate` finds the next good batch."""
        if self._survey is not None:
            return self._survey.readable_end(start, end)
        good = self._verified.end_of(start)
        if good >= end:
            return end
        good, reason = _verify(opened, self.files, good, min(end, self.end_position), self.end_position)
        with self._guard:
            self._verified.add(start, good)
        if good >= end:
            return end
        self._make_survey(opened, reason)
        return good

    def upper_bound(self, opened: OpenSegment, end_position: int) -> int | None:
        entries = opened.offsets if self._survey is None else self._survey.offsets
        slot = bisect_left(entries.positions, end_position)
        return self.base_offset + entries.relative_offsets[slot] if slot < len(entries.positions) else None

    # ------------------------------------------------------------------------------------------------------------- time
    def first_record_since(
        self, opened: OpenSegment, indexed_offset: int, wanted: WantedTime, *, only_quick: bool
    ) -> FoundRecord | None:
        from_offset = max(indexed_offset, wanted.start_offset)
        for batch in self._batches(opened, from_offset, BY_TIMESTAMP, wanted.timestamp_ms):
            record = find_record(opened.file, batch, wanted, only_quick=only_quick)
            if record is not None:
                return record
        return None

    def first_batch_at(self, opened: OpenSegment, indexed_offset: int, timestamp_ms: int) -> FoundBatch | None:
        return next(self._batches(opened, indexed_offset, BY_EXACT_TIMESTAMP, timestamp_ms), None)

    def _batches(self, opened: OpenSegment, from_offset: int, kind: int, target_ms: int) -> Iterator[FoundBatch]:
        # A search by time cannot detect that the entry points to a later batch. So a search by offset first checks the
        # entry, and makes the survey if the entry is wrong.
        if self._survey is None:
            self.locate(opened, from_offset)
        while True:
            try:
                yield from self._good_batches(opened, from_offset, kind, target_ms)
            except CorruptDataError as error:
                if self._survey is not None:
                    raise
                self._make_survey(opened, error.what)
            else:
                return

    def _good_batches(self, opened: OpenSegment, from_offset: int, kind: int, target_ms: int) -> Iterator[FoundBatch]:
        survey = self._survey
        entries = opened.offsets if survey is None else survey.offsets
        slot = bisect_right(entries.relative_offsets, from_offset - self.base_offset) - 1
        first = entries.positions[slot] if slot >= 0 else 0
        for run in (Run(0, self.end_position, -1),) if survey is None else survey.runs:
            position = max(first, run.start_position)
            while (batch := find_in_file(opened.file, position, run.end_position, kind, target_ms)) is not None:
                position = batch.position + batch.size_bytes
                if self.verified_end(opened, batch.position, position) < position:
                    yield from self._good_batches(opened, batch.base_offset, kind, target_ms)
                    return
                yield batch

    # ----------------------------------------------------------------------------------------------------------- survey
    def _make_survey(self, opened: OpenSegment, reason: str) -> None:
        with self._guard:
            if self._survey is not None:
                return
            survey, unreadable = _survey(opened, self.files, self.end_position, reason)
            self._survey = survey
        for found in unreadable:
            self._on_unreadable(found)


class _Buffers(threading.local):
    """Buffers for verification, one set for each thread, because an allocation costs as much as the checksums."""

    def __init__(self) -> None:
        self.bytes = padded_buffer(_VERIFIED_BYTES)
        self.rows = np.zeros(_VERIFIED_ROWS, dtype=BATCH_ROW)


_buffers = _Buffers()


def _verify(opened: OpenSegment, files: SegmentFiles, start: int, until: int, end_position: int) -> tuple[int, str]:
    # If all batches are good, the end is `until` or later.
    buffer, rows = _buffers.bytes, _buffers.rows
    good, previous = start, files.base_offset - 1
    while good < until:
        wanted = min(buffer.size - PADDING_BYTES, end_position - good)
        filled = opened.file.read_into(buffer.data[:wanted], good)
        address = buffer.ctypes.data
        status, count, end, needed = read_headers(address, 0, filled, good, rows)
        found = rows[:count]
        valid = good_rows(address, -good, found, previous, files.end_offset)
        if count:
            previous = int(found["last_offset"][-1])
        if valid < count:
            return int(found["position"][valid]), _BAD_BATCH
        good += end
        if count:
            continue
        if status != INCOMPLETE or not filled < needed <= end_position - good:
            return good, _TORN if status == INCOMPLETE else STATUS_TEXT[status]
        buffer = padded_buffer(needed)
    return good, ""


def _survey(
    opened: OpenSegment, files: SegmentFiles, end_position: int, reason: str
) -> tuple[_Survey, list[UnservedRange]]:
    runs: list[Run] = []
    unreadable: list[UnservedRange] = []
    relative_offsets: list[int] = []
    positions: list[int] = []
    position, next_offset = 0, files.base_offset
    while position < end_position:
        start = position
        spans = HeaderScan(Path(files.log), start, size_bytes=end_position).spans(opened.file.descriptor)
        why = _TORN
        try:
            for span in spans:
                address, shift = span.buffer.ctypes.data, span.start - span.position
                count = good_rows(address, shift, span.rows, next_offset - 1, files.end_offset)
                if count:
                    rows = span.rows[:count]
                    offsets_found, positions_found = sparse_entries(rows, files.base_offset)
                    positions += positions_found.tolist()
                    relative_offsets += offsets_found.tolist()
                    position = int(rows["position"][-1] + rows["size_bytes"][-1])
                    next_offset = int(rows["last_offset"][-1]) + 1
                if count < len(span.rows):
                    why = _BAD_BATCH
                    break
        except CorruptDataError as error:
            why = error.what
        if position > start:
            runs.append(Run(start, position, next_offset - 1))
        if position < end_position:
            resumed = _next_good(opened, files, position, end_position, next_offset)
            unreadable.append(UnservedRange(files.log, position, resumed, next_offset, why))
            position = resumed
    if not unreadable:
        unreadable.append(UnservedRange(str(files.offset_index), 0, 0, files.base_offset, reason))
    entries = OffsetEntries(int32s(relative_offsets), int32s(positions))
    return _Survey(tuple(runs), entries), unreadable


def _next_good(opened: OpenSegment, files: SegmentFiles, position: int, end_position: int, next_offset: int) -> int:
    descriptor, highest = opened.file.descriptor, files.end_offset - 1
    header = opened.file.read(position, 12)
    following = position + 12 + int.from_bytes(header[8:12], "big", signed=True)
    if position < following < end_position:
        found = verified_batch(descriptor, following, end_position, next_offset, highest)
        if found is not None:
            return following
    entries = opened.offsets
    for slot in range(bisect_right(entries.positions, position), len(entries.positions)):
        offset = files.base_offset + entries.relative_offsets[slot]
        if verified_batch(descriptor, entries.positions[slot], end_position, next_offset, offset) is not None:
            return entries.positions[slot]
    return end_position
