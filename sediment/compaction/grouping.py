"""The groups of segments that are cleaned together, and the plan of one partition.

The limits apply to the sources.  If the indexes of a cleaned segment need more room, `segment.writer` keeps the entries
that fit.  Kafka fails in this case.

    log size       the logs of a group together have at most segment.bytes
    index size     the offset index entries of a group have at most segment.index.bytes; so do its time index entries
    offsets        no offset of a group is more than 2^31 - 1 above the group's base offset

Invariants: groups are in log order and cover the log from its start.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sediment.compaction.cleanable_range import CleanableRange
from sediment.compaction.config import CompactionConfig
from sediment.segment_io.format.layout import INT32_MAX, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.log_view import LogView


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """`last_offset` is the largest offset that the last segment can contain.

    If the range ends with the group, it is one less than the first uncleanable offset.
    """

    segments: tuple[SegmentRef, ...]
    last_offset: int

    @property
    def base_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def log_bytes(self) -> int:
        return sum(segment.log_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    view: LogView
    range: CleanableRange
    end_offset: int
    groups: tuple[SegmentGroup, ...]
    config: CompactionConfig
    now_ms: int

    @property
    def segments(self) -> tuple[SegmentRef, ...]:
        return tuple(segment for group in self.groups for segment in group.segments)

    @property
    def dirty_base_offset(self) -> int:
        first = self.range.first_dirty_offset
        return max((s.base_offset for s in self.segments if s.base_offset <= first), default=0)

    @property
    def dirty_segments(self) -> tuple[SegmentRef, ...]:
        return tuple(s for s in self.segments if s.base_offset >= self.dirty_base_offset)

    @property
    def log_bytes(self) -> int:
        return sum(group.log_bytes for group in self.groups)

    @property
    def may_hold_transactions(self) -> bool:
        """Return True if indexes or snapshots mention transactions; the sweep detects all other transactions."""
        return (
            bool(self.view.aborted)
            or any(segment.transaction_index_bytes for segment in self.view.listing.segments)
            or any(e.coordinator_epoch >= 0 or e.current_txn_first_offset >= 0 for e in self.view.producers)
        )


def plan_cleaning(view: LogView, cleanable: CleanableRange, config: CompactionConfig, *, now_ms: int) -> CleaningPlan:
    """An empty dirty range results in no groups and leaves the checkpoint unchanged.

    Source: kafka-log 02 §3.
    """
    upper = cleanable.first_uncleanable_offset
    if upper <= cleanable.first_dirty_offset:
        return CleaningPlan(view, cleanable, cleanable.first_dirty_offset, (), config, now_ms)
    groups = group_segments(view.listing.segments, upper, upper, config)
    return CleaningPlan(view, cleanable, upper, groups, config, now_ms)


def group_segments(
    segments: Sequence[SegmentRef], end_offset: int, first_uncleanable_offset: int, config: CompactionConfig
) -> tuple[SegmentGroup, ...]:
    """Group segments greedily, from the log's first segment through the segment that contains `end_offset` - 1.

    Source: kafka-log 02 §5.
    """
    groups: list[SegmentGroup] = []
    members: list[SegmentRef] = []
    total = _Sizes(0, 0, 0)
    last_offset = 0
    for segment, last_of_segment in _with_last_offsets(segments, end_offset, first_uncleanable_offset):
        sizes = _Sizes.of(segment)
        joined = total.plus(sizes)
        # For an empty segment, only the sizes matter, because it has no offsets.
        spans = segment.log_bytes > 0 and members and last_of_segment - members[0].base_offset > INT32_MAX
        if members and (spans or not joined.within(config)):
            groups.append(SegmentGroup(tuple(members), last_offset))
            members, joined = [], sizes
        members.append(segment)
        total, last_offset = joined, last_of_segment
    if members:
        groups.append(SegmentGroup(tuple(members), last_offset))
    return tuple(groups)


def isolate(groups: Sequence[SegmentGroup], bases: Container[int]) -> tuple[SegmentGroup, ...]:
    isolated: list[SegmentGroup] = []
    for group in groups:
        runs: list[list[SegmentRef]] = []
        for segment in group.segments:
            if runs and segment.base_offset not in bases and runs[-1][-1].base_offset not in bases:
                runs[-1].append(segment)
            else:
                runs.append([segment])
        ends = [*(run[0].base_offset - 1 for run in runs[1:]), group.last_offset]
        isolated.extend(SegmentGroup(tuple(run), end) for run, end in zip(runs, ends, strict=True))
    return tuple(isolated)


def _with_last_offsets(
    segments: Sequence[SegmentRef], end_offset: int, first_uncleanable_offset: int
) -> Iterator[tuple[SegmentRef, int]]:
    chosen = [segment for segment in segments if segment.base_offset < end_offset]
    for segment, following in pairwise(chosen):
        yield segment, following.base_offset - 1
    if chosen:
        yield chosen[-1], first_uncleanable_offset - 1


@dataclass(frozen=True, slots=True)
class _Sizes:
    log_bytes: int
    offset_index_bytes: int
    time_index_bytes: int

    @classmethod
    def of(cls, segment: SegmentRef) -> _Sizes:
        return cls(
            segment.log_bytes,
            # Count only whole index entries, because trimming an index removes all other bytes.  The size of a missing
            # index is 0.  The new index may then become too large, so the writer keeps only the entries that fit.
            (segment.offset_index_bytes or 0) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES,
            (segment.time_index_bytes or 0) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES,
        )

    def plus(self, other: _Sizes) -> _Sizes:
        return _Sizes(
            self.log_bytes + other.log_bytes,
            self.offset_index_bytes + other.offset_index_bytes,
            self.time_index_bytes + other.time_index_bytes,
        )

    def within(self, config: CompactionConfig) -> bool:
        return (
            self.log_bytes <= config.segment_bytes
            and self.offset_index_bytes <= config.segment_index_bytes
            and self.time_index_bytes <= config.segment_index_bytes
        )
