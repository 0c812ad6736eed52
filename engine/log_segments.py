"""The segments of a live log in their order, and where in them an offset or a time lies.

Invariants
* The segments ascend by base offset, the last one is active; there is always one, but while a log is being emptied.
* Nothing here writes to a file; a segment that is taken out has let go of its files.

Source: kafka-log 04 §8, §9.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from sediment.engine.segment import FoundBatch, FoundRecord, Segment
from sediment.retention.policy import SegmentState
from sediment.segment_io.indexes import AbortedTransaction, collect_aborted


class LogSegments:
    """The segments of one log; whoever changes or asks holds the log's lock."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = {segment.base_offset: segment for segment in segments}
        self._bases: list[int] = []
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
        """The base offsets, ascending."""
        return tuple(self._bases)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment."""
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size_bytes for segment in self._segments.values())

    def sizes_bytes(self) -> dict[int, int]:
        """Bytes of each `.log` file, by base offset."""
        return {base_offset: segment.size_bytes for base_offset, segment in self._segments.items()}

    def states(self) -> tuple[SegmentState, ...]:
        """What retention looks at."""
        return tuple(SegmentState(s.base_offset, s.size_bytes, s.largest_timestamp_ms) for s in self)

    # ----------------------------------------------------------------------------------------------------------- change
    def add(self, segment: Segment) -> None:
        """Take a segment in; the last one by offset is active."""
        self._segments[segment.base_offset] = segment
        self._reorder()

    def remove(self, base_offsets: Iterable[int]) -> None:
        """Take segments out and let go of their files."""
        for base_offset in base_offsets:
            self._segments.pop(base_offset).release()
        self._reorder()

    def replace(self, base_offsets: Iterable[int], replacements: Iterable[Segment]) -> None:
        """Take segments out and others in."""
        for base_offset in base_offsets:
            self._segments.pop(base_offset).release()
        self._segments.update({segment.base_offset: segment for segment in replacements})
        self._reorder()

    # ------------------------------------------------------------------------------------------------------------- find
    def between(self, from_offset: int, to_offset: int) -> list[Segment]:
        """Segments from the one that holds `from_offset` to those that begin below `to_offset`."""
        if from_offset >= to_offset:
            return []
        first = max(bisect_right(self._bases, from_offset) - 1, 0)
        return [self._segments[base_offset] for base_offset in self._bases[first:] if base_offset < to_offset]

    def find(self, offset: int) -> tuple[Segment, FoundBatch] | None:
        """The first batch whose last offset is at least `offset`, and its segment."""
        for base_offset in self._bases[max(bisect_right(self._bases, offset) - 1, 0) :]:
            found = self._segments[base_offset].find(offset)
            if found is not None:
                return self._segments[base_offset], found
        return None

    def find_timestamp(self, target_ms: int, start_offset: int) -> FoundRecord | None:
        """The first record at or above `start_offset` of the first segment that reaches `target_ms`."""
        for segment in self:
            if segment.largest_timestamp_ms >= target_ms:
                return segment.find_timestamp(target_ms, start_offset)
        return None

    def find_largest_timestamp(self) -> FoundRecord | None:
        """The first record that has the largest timestamp."""
        latest = max(self, key=lambda segment: segment.largest.timestamp_ms)
        return None if latest.largest.timestamp_ms < 0 else latest.find_largest_timestamp()

    def aborted(
        self, segment: Segment, start_offset: int, end_position: int, log_end_offset: int
    ) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions that touch a read from `start_offset` to byte `end_position` of `segment`.

        Source: kafka-log 04 §8 step 7.
        """
        place = self._bases.index(segment.base_offset)
        bound = segment.upper_bound(end_position)
        if bound is not None:
            upper = bound.offset
        else:
            upper = self._bases[place + 1] if place + 1 < len(self._bases) else log_end_offset
        indexes = (self._segments[base_offset].transaction_index.index() for base_offset in self._bases[place:])
        return collect_aborted(indexes, start_offset, upper)

    # -------------------------------------------------------------------------------------------------------------- end
    def release(self) -> None:
        """Let go of all files."""
        for segment in self._segments.values():
            segment.release()
