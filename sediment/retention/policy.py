"""Which segments of a log retention lets go, and for each of the others why it stays.  Pure.

    A   log start offset    every cleanup policy       the next segment begins at or below the log start offset
    B   retention.bytes     policies with delete       what is left still holds that much
    C   retention.ms        policies with delete       the newest record is older than that

Invariants: what goes is a prefix of the log and lies below the high watermark; the rules run in this order, each on
what the one before left; one segment is always left, so that where every segment goes an empty one is rolled first, at
the log end offset; an empty active segment stays.

Source: kafka-log 03 §2, §3, §6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from sediment.retention.config import RetentionConfig
from sediment.segment_io.format.layout import INT64_MAX

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView


@dataclass(frozen=True, slots=True)
class SegmentState:
    """What the rules look at; `largest_timestamp_ms` is the modification time where no record has a timestamp."""

    base_offset: int
    log_bytes: int
    largest_timestamp_ms: int


class Rule(StrEnum):
    """Which rule lets a segment go."""

    LOG_START = "log-start-offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


class KeepReason(StrEnum):
    """Why a segment stays; of several reasons the one that is looked at first."""

    TIERED = "tiered"
    UNVERIFIED = "unclean-shutdown"
    HIGH_WATERMARK = "above-high-watermark"
    EMPTY = "active-and-empty"
    POLICY = "policy-without-delete"
    UNLIMITED = "no-limit"
    WITHIN_LIMITS = "within-limits"
    BEHIND_KEPT = "behind-a-kept-segment"
    NO_ROOM = "no-room-to-roll"


@dataclass(frozen=True, slots=True)
class SegmentDecision:
    """What becomes of one segment: exactly one of `rule` and `kept` is set.

    `goes_at_ms` is the clock at which retention.ms lets it go if nothing is appended; None where no clock does, for a
    segment that goes now, and for one that is held by anything else.
    """

    segment: SegmentState
    rule: Rule | None
    kept: KeepReason | None
    goes_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What one run of retention does to a log; `fates` ascend, those of segments that go come first.

    `log_start_before` and `log_start_offset` are those before and afterwards.  With `rolls_active` an empty segment is
    made at the log end offset first.
    """

    fates: tuple[SegmentDecision, ...]
    log_start_before: int
    log_start_offset: int
    rolls_active: bool

    def keeping_active(self) -> RetentionPlan:
        """The same without the active segment, where there is no room to roll the one that would follow it."""
        if not self.rolls_active:
            return self
        *others, active = self.fates
        start = max(active.segment.base_offset, self.log_start_before) if others else self.log_start_before
        kept = SegmentDecision(active.segment, None, KeepReason.NO_ROOM)
        return RetentionPlan((*others, kept), self.log_start_before, start, False)

    @property
    def deleted(self) -> tuple[SegmentDecision, ...]:
        """The segments that go."""
        return tuple(fate for fate in self.fates if fate.rule is not None)

    @property
    def kept(self) -> tuple[SegmentDecision, ...]:
        """The segments that stay."""
        return tuple(fate for fate in self.fates if fate.rule is None)

    @property
    def deleted_bytes(self) -> int:
        """`.log` bytes of the segments that go."""
        return sum(fate.segment.log_bytes for fate in self.deleted)


def plan_retention(
    segments: Sequence[SegmentState],
    config: RetentionConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
    unverified_from_offset: int | None = None,
) -> RetentionPlan:
    """Decide about `segments`, ascending, the last one active; offsets are absolute, ends exclusive.

    `unverified_from_offset` is the base of the segment from which on nothing is verified after a stop that was not
    clean: nothing from there on goes.  Of a tiered log nothing goes, because what remote storage holds no file tells.
    """
    if config.is_tiered or not segments:
        fates = [SegmentDecision(segment, None, KeepReason.TIERED) for segment in segments]
        return RetentionPlan(tuple(fates), log_start_offset, log_start_offset, False)
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    limit = high_watermark if unverified_from_offset is None else min(high_watermark, unverified_from_offset)
    may_go = [
        end <= limit and not (place == len(segments) - 1 and segment.log_bytes == 0)
        for place, (segment, end) in enumerate(zip(segments, ends, strict=True))
    ]
    rules: list[Rule] = []
    for rule, lets_go in _rules(segments, ends, config, log_start_offset, now_ms):
        while len(rules) < len(segments) and may_go[len(rules)] and lets_go(len(rules)):
            rules.append(rule)
    rolls = len(rules) == len(segments)
    following = log_end_offset if rolls else segments[len(rules)].base_offset
    fates = [SegmentDecision(segment, rule, None) for segment, rule in zip(segments, rules, strict=False)]
    goes_at_ms: int | None = None
    for place in range(len(rules), len(segments)):
        kept = _why_kept(segments, ends, place, len(rules), config, high_watermark, unverified_from_offset, now_ms)
        if config.deletes and config.retention_ms >= 0:
            goes_at_ms = max(goes_at_ms or 0, _goes_at_ms(segments[place], config))
        comes = may_go[place] and goes_at_ms is not None and goes_at_ms <= INT64_MAX
        fates.append(SegmentDecision(segments[place], None, kept, goes_at_ms if comes else None))
    start = max(log_start_offset, following) if rules else log_start_offset
    return RetentionPlan(tuple(fates), log_start_offset, start, rolls)


def plan_view(view: LogView, config: RetentionConfig, *, now_ms: int) -> RetentionPlan:
    """`plan_retention` of a log as its files show it; a high watermark not known is the log start offset."""
    return plan_retention(
        segment_states(view),
        config,
        log_start_offset=view.log_start_offset,
        high_watermark=view.log_start_offset if view.high_watermark is None else view.high_watermark,
        log_end_offset=view.log_end_offset,
        now_ms=now_ms,
        unverified_from_offset=view.unverified_from_offset,
    )


def segment_states(view: LogView) -> tuple[SegmentState, ...]:
    """The segments of a view as the rules want them."""
    return tuple(
        SegmentState(ref.base_offset, ref.log_bytes, times.largest_timestamp_ms)
        for ref, times in zip(view.listing.segments, view.segment_times, strict=True)
    )


_Predicate = Callable[[int], bool]


def _rules(
    segments: Sequence[SegmentState], ends: Sequence[int], config: RetentionConfig, log_start_offset: int, now_ms: int
) -> Iterable[tuple[Rule, _Predicate]]:
    """The rules that hold, in Kafka's order; a predicate takes the place of a segment that nothing else holds."""
    last = len(segments) - 1
    yield Rule.LOG_START, lambda place: place < last and ends[place] <= log_start_offset
    if not config.deletes:
        return
    if config.retention_bytes >= 0:
        left_bytes = [0, *accumulate(segment.log_bytes for segment in reversed(segments[1:]))][::-1]
        yield Rule.SIZE, lambda place: left_bytes[place] >= config.retention_bytes
    if config.retention_ms >= 0:
        yield Rule.TIME, lambda place: _goes_at_ms(segments[place], config) <= now_ms


def _goes_at_ms(segment: SegmentState, config: RetentionConfig) -> int:
    """The first clock at which the segment is older than retention.ms."""
    return segment.largest_timestamp_ms + config.retention_ms + 1


def _why_kept(
    segments: Sequence[SegmentState],
    ends: Sequence[int],
    place: int,
    first_kept: int,
    config: RetentionConfig,
    high_watermark: int,
    unverified_from_offset: int | None,
    now_ms: int,
) -> KeepReason:
    if unverified_from_offset is not None and ends[place] > unverified_from_offset:
        return KeepReason.UNVERIFIED
    if ends[place] > high_watermark:
        return KeepReason.HIGH_WATERMARK
    if place == len(segments) - 1 and segments[place].log_bytes == 0:
        return KeepReason.EMPTY
    if not config.deletes:
        return KeepReason.POLICY
    if config.retention_ms < 0 and config.retention_bytes < 0:
        return KeepReason.UNLIMITED
    is_old = config.retention_ms >= 0 and _goes_at_ms(segments[place], config) <= now_ms
    return KeepReason.BEHIND_KEPT if is_old and place > first_kept else KeepReason.WITHIN_LIMITS


def explain_retention(fate: SegmentDecision, config: RetentionConfig) -> str:
    """One clause for a person: why the segment goes or stays."""
    match fate.rule or fate.kept:
        case Rule.LOG_START:
            return "all of it lies below the log start offset"
        case Rule.SIZE:
            return f"the segments behind it still hold retention.bytes={config.retention_bytes}"
        case Rule.TIME:
            return f"its newest record is older than retention.ms={config.retention_ms}"
        case KeepReason.TIERED:
            return (
                "the topic is tiered: only the broker knows which segments remote storage holds, and applies "
                "local.retention.ms and local.retention.bytes"
            )
        case KeepReason.UNVERIFIED:
            return "the last stop was not clean and nothing is verified from the recovery point on"
        case KeepReason.HIGH_WATERMARK:
            return "it reaches above the high watermark"
        case KeepReason.EMPTY:
            return "it is the active segment and empty"
        case KeepReason.POLICY:
            policy = ",".join(config.cleanup_policy) or "empty"
            return f"cleanup.policy is {policy}, and it reaches the log start offset"
        case KeepReason.UNLIMITED:
            return "retention.ms and retention.bytes have no limit"
        case KeepReason.NO_ROOM:
            return "the disk is full, and an empty segment has to be made before the active one goes"
        case KeepReason.BEHIND_KEPT:
            return "it is old enough, but an older segment stays"
        case _:
            return "it is within retention.ms and retention.bytes"
