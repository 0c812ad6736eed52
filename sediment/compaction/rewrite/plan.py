"""The plan of a rewrite: a task for each segment that has verdicts, and the verdicts that cannot be applied.

    verdicts   | ......... | ........ | .. | ....... | .........
    segments   |     0     |    12    | 20   active            |
                                         ^ bound              ^ log end
                 rewritten, each separately      not reached

The bound is the last stable offset of the view.  Records below the bound are replicated and verified, and are not part
of an open transaction.  Records below the log start offset that are still on disk are also rewritten.

If the records are selected by key, no offset is known yet.  Then every segment has a task, which searches and rewrites
the segment in one scan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.verdicts import Action, Int64s, NotReached, Reason, Verdicts
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.log_view import LogView


@dataclass(frozen=True, slots=True)
class Reach:
    """The limits of one partition: the bound below which records may be changed, and the offsets that explain it.

    Batches whose last offset is `bound` or higher are not changed.  The other fields determine the reason why a verdict
    is not applied.  They are the end offsets of the fully replicated records, of the verified records, and of the log.
    """

    bound: int
    replicated_end: int
    verified_end: int
    log_end: int

    @classmethod
    def of(cls, view: LogView) -> Reach:
        return cls(
            view.last_stable_offset,
            view.log_start_offset if view.high_watermark is None else view.high_watermark,
            view.log_end_offset if view.unverified_from_offset is None else view.unverified_from_offset,
            view.log_end_offset,
        )

    def not_reached(self, offsets: Int64s) -> NotReached:
        # An offset below the bound gets the same reason as the bound itself, because the batch of this offset ends at
        # or above the bound.
        at = np.maximum(offsets, self.bound)
        reasons = np.full(offsets.size, Reason.OPEN_TRANSACTION, dtype=np.uint8)
        reasons[at >= self.replicated_end] = Reason.ABOVE_HIGH_WATERMARK
        reasons[at >= self.verified_end] = Reason.UNVERIFIED
        reasons[at >= self.log_end] = Reason.NO_RECORD
        return NotReached(offsets, reasons)


@dataclass(frozen=True, slots=True, eq=False)
class KeyVerdicts:
    keys: KeySet
    action: Action
    replacement: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class SegmentRewriteTask:
    """`end_offset` is the base offset of the next segment, or INT64_MAX for the active segment.

    `verdicts` is None if the records are selected by key.
    """

    partition: TopicPartition
    directory: Path
    segment: SegmentRef
    end_offset: int
    verdicts: Verdicts | None
    reach: Reach
    config: CompactionConfig


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """The tasks of one partition, in ascending order, and the verdicts that belong to no task.

    `next_dirty_offset` is the cleaner checkpoint after the rewrite.
    """

    partition: TopicPartition
    directory: Path
    tasks: tuple[SegmentRewriteTask, ...]
    not_reached: NotReached
    next_dirty_offset: int


@dataclass(frozen=True, slots=True)
class RewriteStats:
    """A compressed message of magic 0 or 1 counts as one record if no verdict concerns it."""

    scanned: int = 0
    dropped: int = 0
    tombstoned: int = 0
    replaced: int = 0

    @property
    def matched(self) -> int:
        return self.dropped + self.tombstoned + self.replaced


@dataclass(frozen=True, slots=True, eq=False)
class MatchedRecords:
    """The matches of a search by key: their ascending `offsets`, int64[n]; `scanned` data records were searched."""

    offsets: Int64s
    scanned: int


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """`matches` is None if the records were not selected by key."""

    group: CleanedGroup
    stats: RewriteStats
    not_reached: NotReached
    matches: MatchedRecords | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    swap: PreparedSwap
    segments: tuple[RewrittenSegment, ...]
    not_reached: NotReached


def plan_rewrite(view: LogView, verdicts: Verdicts, config: CompactionConfig) -> RewritePlan:
    reach, listing, offsets = Reach.of(view), view.listing, verdicts.offsets
    tasks = []
    for task in plan_key_rewrite(view, config):
        own = verdicts.between(task.segment.base_offset, min(task.end_offset, reach.bound))
        if len(own):
            tasks.append(replace(task, verdicts=own))
    below = offsets[: np.searchsorted(offsets, listing.segments[0].base_offset if listing.segments else reach.bound)]
    beyond = offsets[np.searchsorted(offsets, reach.bound) :]
    return RewritePlan(
        listing.partition,
        listing.path,
        tuple(tasks),
        NotReached.joined([NotReached.of(below, Reason.NO_RECORD), reach.not_reached(beyond)]),
        _next_dirty_offset(view, verdicts),
    )


def plan_key_rewrite(view: LogView, config: CompactionConfig) -> tuple[SegmentRewriteTask, ...]:
    reach, listing = Reach.of(view), view.listing
    ends = [*(segment.base_offset for segment in listing.segments), INT64_MAX][1:]
    return tuple(
        SegmentRewriteTask(listing.partition, listing.path, segment, end_offset, None, reach, config)
        for segment, end_offset in zip(listing.segments, ends, strict=True)
    )


def collect_rewrite(plan: RewritePlan, segments: Iterable[RewrittenSegment]) -> Rewrite:
    ordered = tuple(sorted(segments, key=lambda done: done.group.sources[0].base_offset))
    groups = tuple(done.group for done in ordered)
    return Rewrite(
        PreparedSwap(plan.partition, str(plan.directory), groups, plan.next_dirty_offset),
        ordered,
        NotReached.joined([plan.not_reached, *(done.not_reached for done in ordered)]),
    )


def _next_dirty_offset(view: LogView, verdicts: Verdicts) -> int:
    checkpoint = view.log_start_offset if view.first_dirty_checkpoint is None else view.first_dirty_checkpoint
    new_keys = verdicts.offsets[verdicts.actions == Action.REPLACE_KEY]
    # An older record may have the same key, so the next cleaning must start at the record with the new key.
    return min([checkpoint, *(int(offset) for offset in new_keys[:1])])
