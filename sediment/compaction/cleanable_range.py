"""The range of a log that may be cleaned now, the dirty ratio, and the rule that blocks the cleaner.

    log start        first dirty                       first uncleanable     active base      log end
        |--- clean ---|--------- cleanable -------------|---- not yet --------|---- active ----|

    first dirty             the cleaner checkpoint; the log start if the checkpoint is missing or outside the log
    first uncleanable       the lowest of: last stable offset, active base, first segment within min.compaction.lag.ms
    age of a segment        `log_view.largest_timestamp_or_mtime_ms`
    dirty ratio             cleanable bytes / (clean + cleanable bytes); it must exceed min.cleanable.dirty.ratio
    max.compaction.lag.ms   if the first batch of a dirty segment is older than this, the ratio does not matter
    dirty segments          Kafka's nonActiveLogSegmentsFrom, here `_Segments.rolled_from`

Invariants
* `first_uncleanable_offset` is the base of a segment.  It is at most the base offset of the active segment, and at most
  the last stable offset (and so at most the high watermark).  After an unclean stop, it is also at most the base offset
  of the segment that contains the recovery point.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import TypeVar

from sediment.compaction.config import CompactionConfig
from sediment.segment_io.dates import suspect_date
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.partition.hanging_transactions import describe_open_transaction, how_to_end
from sediment.segment_io.partition.log_view import LogView, SegmentTimes

_Log = TypeVar("_Log")


class BlockingRule(StrEnum):
    """The rules that can prevent cleaning; the values are the `reason_code`s of reports."""

    NOT_COMPACTED = "not-compacted"
    NO_HIGH_WATERMARK = "no-high-watermark"
    NOTHING_DIRTY = "nothing-dirty"
    ACTIVE_SEGMENT = "active-segment"
    UNCLEAN = "unclean"
    OPEN_TRANSACTION = "open-transaction"
    HIGH_WATERMARK = "high-watermark"
    MIN_COMPACTION_LAG = "min-compaction-lag"
    DIRTY_RATIO = "dirty-ratio"


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """The cleanable part of a log; offsets are absolute, and the end of a range is exclusive.

    If `first_dirty_offset` is in the middle of a segment, both `clean_bytes` and `cleanable_bytes` include the whole
    segment.  `must_compact` is True if the maximum compaction lag is exceeded.  If `force_checkpoint` is not None, this
    cleaner checkpoint is written even if the log is not cleaned.  `unblocks_at_ms` is the time at which the log becomes
    cleanable if nothing else changes.  It is None if time alone does not make the log cleanable.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    cleanable_bytes: int
    clean_bytes: int
    cleanable_ratio: float
    must_compact: bool
    force_checkpoint: int | None
    blocked_by: BlockingRule | None
    unblocks_at_ms: int | None
    reason: str = ""


def cleanable_range(
    view: LogView, config: CompactionConfig, *, now_ms: int, force: bool = False, from_start: bool = False
) -> CleanableRange:
    """Return the range of `view` that may be cleaned at `now_ms`.

    `force` ignores the dirty ratio; `from_start` ignores the cleaner checkpoint.  The view needs
    `first_batch_timestamp_ms` if `max.compaction.lag.ms` is set.

    Source: kafka-log 02 §2.1-§2.3.
    """
    first_dirty, force_checkpoint = _first_dirty(view, from_start=from_start)
    rules = _Rules(view, config, force, first_dirty, force_checkpoint, _Segments.of(view))
    now = rules.at(now_ms)
    unblocks_at_ms = rules.first_unblocked_ms() if now.blocked_by else None
    return replace(now, unblocks_at_ms=unblocks_at_ms, reason=_explain(now, view, config, now_ms))


def filthiest_first(logs: Iterable[tuple[_Log, CleanableRange]]) -> list[_Log]:
    """Return the logs that may be cleaned, largest cleanable ratio first; the maximum lag does not affect the order.

    Source: Kafka's LogCleanerManager.grabFilthiestCompactedLog; kafka-log 02 §2, steps 3-5.
    """
    cleanable = [(log, found) for log, found in logs if found.blocked_by is None]
    return [log for log, found in sorted(cleanable, key=lambda pair: -pair[1].cleanable_ratio)]


def _explain(cleanable: CleanableRange, view: LogView, config: CompactionConfig, now_ms: int) -> str:
    match cleanable.blocked_by:
        case None:
            cleaned = (
                f"offsets {cleanable.first_dirty_offset} to {cleanable.first_uncleanable_offset} can be cleaned "
                f"at dirty ratio {cleanable.cleanable_ratio:.3f}"
            )
            return f"{cleaned}; {_explain_unstable(view, now_ms)}" if _ends_at_unstable(cleanable, view) else cleaned
        case BlockingRule.NOT_COMPACTED:
            return "cleanup.policy does not contain compact"
        case BlockingRule.NO_HIGH_WATERMARK:
            return "replication-offset-checkpoint does not list the partition, so the high watermark is unknown"
        case BlockingRule.NOTHING_DIRTY:
            return f"the log has no records at or above first dirty offset {cleanable.first_dirty_offset}"
        case BlockingRule.ACTIVE_SEGMENT:
            return (
                f"all records at or above first dirty offset {cleanable.first_dirty_offset} are in the active segment "
                f"{view.listing.segments[-1].base_offset}"
            )
        case BlockingRule.UNCLEAN:
            return (
                f"the last stop was not clean, and segment {view.unverified_from_offset} and all later ones are "
                "not cleaned until `sediment recover` or a broker has verified them"
            )
        case BlockingRule.OPEN_TRANSACTION:
            return _explain_unstable(view, now_ms)
        case BlockingRule.HIGH_WATERMARK:
            return f"the high watermark {view.high_watermark} is inside or below the first dirty segment"
        case BlockingRule.MIN_COMPACTION_LAG:
            young = (
                f"segment {cleanable.first_uncleanable_offset} contains records younger than "
                f"min.compaction.lag.ms {config.min_compaction_lag_ms}"
            )
            dated = suspect_date(_newest_ms(view, cleanable.first_uncleanable_offset), now_ms)
            return young if dated is None else f"{young}; its newest record is {dated}"
        case BlockingRule.DIRTY_RATIO:
            return (
                f"the dirty ratio {cleanable.cleanable_ratio:.3f} is not above "
                f"min.cleanable.dirty.ratio {config.min_cleanable_dirty_ratio}"
            )


def _newest_ms(view: LogView, base_offset: int) -> int:
    bases = [segment.base_offset for segment in view.listing.segments]
    return view.segment_times[bases.index(base_offset)].largest_timestamp_ms


def _ends_at_unstable(cleanable: CleanableRange, view: LogView) -> bool:
    bases = _Segments.of(view).bases
    is_undecided = view.high_watermark is not None and view.last_stable_offset < view.high_watermark
    first = cleanable.first_uncleanable_offset
    return is_undecided and first < bases[-1] and first <= view.last_stable_offset < bases[bisect_right(bases, first)]


def _explain_unstable(view: LogView, now_ms: int) -> str:
    listing = view.listing
    undecided = [entry for entry in view.producers if entry.has_open_transaction]
    first = min(undecided, key=lambda entry: entry.current_txn_first_offset, default=None)
    if first is None or first.current_txn_first_offset > view.last_stable_offset:
        return (
            f"the transaction that begins at offset {view.last_stable_offset} ended at or above the high watermark "
            f"{view.high_watermark}; start the broker, which raises the high watermark"
        )
    others = f" ({len(undecided) - 1} more open after it)" if len(undecided) > 1 else ""
    end = how_to_end(listing.partition, listing.path.parent, first.current_txn_first_offset)
    return f"{describe_open_transaction(first, now_ms)}{others}; {end}"


def _first_dirty(view: LogView, *, from_start: bool) -> tuple[int, int | None]:
    """Return the first dirty offset and, if the stored checkpoint is outside the log, a new checkpoint (02 §2.1)."""
    start, checkpoint = view.log_start_offset, view.first_dirty_checkpoint
    if from_start or checkpoint is None:
        return start, None
    if checkpoint < start or checkpoint > view.log_end_offset:
        return start, start
    return checkpoint, None


@dataclass(frozen=True, slots=True)
class _Segments:
    bases: list[int]
    bytes_below: list[int]  # bytes_below[n]: sum of the sizes of the first n segments

    @classmethod
    def of(cls, view: LogView) -> _Segments:
        sizes = {segment.base_offset: segment.log_bytes for segment in view.listing.segments}
        sizes = sizes or {view.log_start_offset: 0}
        return cls(list(sizes), [0, *accumulate(sizes.values())])

    @property
    def active(self) -> int:
        return len(self.bases) - 1

    def holding(self, offset: int) -> int:
        return max(bisect_right(self.bases, offset) - 1, 0)

    def rolled_from(self, offset: int) -> range:
        """Source: Kafka's LogSegments.nonActiveLogSegmentsFrom."""
        return range(self.holding(offset), self.active)

    def bytes_between(self, offset: int, end: int) -> int:
        return max(self.bytes_below[end] - self.bytes_below[self.holding(offset)], 0)

    def clean_bytes(self, first_dirty_offset: int) -> int:
        return self.bytes_below[bisect_left(self.bases, first_dirty_offset)]


@dataclass(frozen=True, slots=True)
class _Rules:
    view: LogView
    config: CompactionConfig
    force: bool
    first_dirty_offset: int
    force_checkpoint: int | None
    segments: _Segments

    def at(self, now_ms: int) -> CleanableRange:
        bounds = self._bounds(now_ms)
        upper = max(self.first_dirty_offset, min(bounds.values()))
        end = self.segments.holding(upper)
        cleanable_bytes = self.segments.bytes_between(self.first_dirty_offset, end)
        clean_bytes = self.segments.clean_bytes(self.first_dirty_offset)
        total_bytes = clean_bytes + cleanable_bytes
        found = CleanableRange(
            first_dirty_offset=self.first_dirty_offset,
            first_uncleanable_offset=self.segments.bases[end],
            cleanable_bytes=cleanable_bytes,
            clean_bytes=clean_bytes,
            cleanable_ratio=cleanable_bytes / total_bytes if total_bytes else 0.0,
            must_compact=self._must_compact(now_ms),
            force_checkpoint=self.force_checkpoint if self.config.compacts else None,
            blocked_by=None,
            unblocks_at_ms=None,
        )
        return replace(found, blocked_by=self._blocked_by(found, bounds))

    def first_unblocked_ms(self) -> int | None:
        moments = {self._times(index).largest_timestamp_ms + self._min_lag_ms for index in self._dirty()}
        moments.add(self._first_overdue_ms())
        reached = sorted(moment for moment in moments if moment <= INT64_MAX)
        # The rules change their result only when the minimum lag of a segment ends, or the maximum lag is exceeded.
        # Both events can only unblock a log, so a binary search finds the first time at which the log is not blocked.
        found = bisect_left(reached, True, key=lambda moment: self.at(moment).blocked_by is None)
        return reached[found] if found < len(reached) else None

    def _bounds(self, now_ms: int) -> dict[BlockingRule, int]:
        bounds = {}
        if self.view.unverified_from_offset is not None:
            # Kafka does not limit the range after an unclean stop, because a broker repairs the log first.
            bounds[BlockingRule.UNCLEAN] = self.view.unverified_from_offset
        bounds[BlockingRule.OPEN_TRANSACTION] = self.view.last_stable_offset
        if self.view.last_stable_offset == self.view.high_watermark:
            bounds[BlockingRule.HIGH_WATERMARK] = bounds.pop(BlockingRule.OPEN_TRANSACTION)
        for index in self._dirty() if self._min_lag_ms > 0 else ():
            if self._times(index).largest_timestamp_ms > now_ms - self._min_lag_ms:
                bounds[BlockingRule.MIN_COMPACTION_LAG] = self.segments.bases[index]
                break
        bounds[BlockingRule.ACTIVE_SEGMENT] = self.segments.bases[-1]
        return bounds

    def _blocked_by(self, found: CleanableRange, bounds: dict[BlockingRule, int]) -> BlockingRule | None:
        if not self.config.compacts:
            return BlockingRule.NOT_COMPACTED
        if self.view.high_watermark is None:
            return BlockingRule.NO_HIGH_WATERMARK
        if found.cleanable_bytes == 0:
            return self._blocking_bound(bounds)
        if self.force or found.must_compact or found.cleanable_ratio > self.config.min_cleanable_dirty_ratio:
            return None
        return BlockingRule.DIRTY_RATIO

    def _blocking_bound(self, bounds: dict[BlockingRule, int]) -> BlockingRule:
        first, segments = self.first_dirty_offset, self.segments
        if first >= self.view.log_end_offset or segments.bytes_between(first, len(segments.bases)) == 0:
            return BlockingRule.NOTHING_DIRTY
        if segments.bytes_between(first, segments.active) == 0:
            return BlockingRule.ACTIVE_SEGMENT
        return min(bounds, key=lambda rule: segments.holding(bounds[rule]))

    def _must_compact(self, now_ms: int) -> bool:
        return self._first_overdue_ms() <= now_ms

    def _first_overdue_ms(self) -> int:
        """Return the first time at which a dirty segment exceeds the maximum lag; else a time far in the future."""
        firsts = (self._times(index).first_batch_timestamp_ms for index in self._dirty())
        earliest_ms = min((first for first in firsts if first > 0), default=INT64_MAX)
        return earliest_ms + max(self.config.max_compaction_lag_ms, 0) + 1

    @property
    def _min_lag_ms(self) -> int:
        return max(self.config.min_compaction_lag_ms, 0)

    def _dirty(self) -> range:
        return self.segments.rolled_from(self.first_dirty_offset)

    def _times(self, index: int) -> SegmentTimes:
        return self.view.segment_times[index]
