"""The segments of a live log in order, and the search for an offset in them.

    find                         finds the first batch at or above an offset, in the offset's segment or a later one
    between                      is logSegments(from, to); the first segment is the one that contains `from`
    nonActiveLogSegmentsFrom     is implemented in `compaction.cleanable_range`, `_Segments.rolled_from`

Invariants
* The segments are sorted by base offset, and the last one is active.  At least one segment exists, except while a log
  is emptied.
* No function here writes to a file; a removed segment has released its files.
* The first read with TXN_COMMITTED finds every segment with aborted transactions.  So if a log has no transactions,
  later reads search only one segment.

Source: kafka-log 04 §8.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice

from sediment.engine.live.log.segment import Segment
from sediment.retention.policy import SegmentState
from sediment.segment_io.format.transaction_index import AbortedTxn, TransactionIndex
from sediment.segment_io.segment.search import FoundBatch


class LogSegments:
    """The segments of one log; every caller holds the log's lock."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = {segment.base_offset: segment for segment in segments}
        self._bases: list[int] = []
        self._with_aborted: list[int] | None = None
        """The sorted base offsets of the segments that can have aborted transactions; None before the first search."""
        self._reorder()

    def _reorder(self) -> None:
        self._bases = sorted(self._segments)
        if self._bases:
            self.active = self._segments[self._bases[-1]]

    def __iter__(self) -> Iterator[Segment]:
        return (self._segments[base_offset] for base_offset in self._bases)

    def __reversed__(self) -> Iterator[Segment]:
        return (self._segments[base_offset] for base_offset in reversed(self._bases))

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(self._bases)

    @property
    def first_base_offset(self) -> int:
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments.values())

    def sizes_bytes(self) -> dict[int, int]:
        return {base_offset: segment.size_bytes for base_offset, segment in self._segments.items()}

    def states(self) -> tuple[SegmentState, ...]:
        return tuple(SegmentState(s.base_offset, s.size_bytes, s.largest_timestamp_ms) for s in self)

    # ----------------------------------------------------------------------------------------------------------- change
    def add(self, segment: Segment) -> None:
        self._segments[segment.base_offset] = segment
        self._reorder()
        self._note_aborted(segment)

    def remove(self, base_offsets: Iterable[int]) -> None:
        self._discard(base_offsets)
        self._reorder()

    def replace(self, base_offsets: Iterable[int], replacements: Iterable[Segment]) -> None:
        self._discard(base_offsets)
        added = {segment.base_offset: segment for segment in replacements}
        self._segments.update(added)
        self._reorder()
        for segment in added.values():
            self._note_aborted(segment)

    def _discard(self, base_offsets: Iterable[int]) -> None:
        removed = set(base_offsets)
        for base_offset in removed:
            self._segments.pop(base_offset).release()
        if self._with_aborted is not None:
            self._with_aborted = [base_offset for base_offset in self._with_aborted if base_offset not in removed]

    def add_aborted(self, transactions: tuple[AbortedTxn, ...]) -> None:
        self.active.add_aborted(transactions)
        self._note_aborted(self.active)

    def _note_aborted(self, segment: Segment) -> None:
        known = self._with_aborted
        if known is not None and segment.base_offset not in known[-1:] and len(segment.transaction_index.index()):
            insort(known, segment.base_offset)

    # ------------------------------------------------------------------------------------------------------------- find
    def between(self, from_offset: int, to_offset: int) -> list[Segment]:
        if from_offset >= to_offset:
            return []
        first = max(bisect_right(self._bases, from_offset) - 1, 0)
        return [self._segments[base_offset] for base_offset in self._bases[first:] if base_offset < to_offset]

    def find(self, offset: int) -> tuple[Segment, FoundBatch] | None:
        for base_offset in islice(self._bases, max(bisect_right(self._bases, offset) - 1, 0), None):
            found = self._segments[base_offset].find(offset)
            if found is not None:
                return self._segments[base_offset], found
        return None

    def base_offset_after(self, segment: Segment) -> int | None:
        index = bisect_right(self._bases, segment.base_offset)
        return self._bases[index] if index < len(self._bases) else None

    def transaction_indexes_from(self, segment: Segment) -> Iterator[TransactionIndex]:
        if self._with_aborted is None:
            self._with_aborted = [each.base_offset for each in self if len(each.transaction_index.index())]
        later = islice(self._with_aborted, bisect_left(self._with_aborted, segment.base_offset), None)
        return (self._segments[base_offset].transaction_index.index() for base_offset in later)

    # -------------------------------------------------------------------------------------------------------------- end
    def release(self) -> None:
        for segment in self._segments.values():
            segment.release()
