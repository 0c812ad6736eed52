"""The retention policy and its config: which segments expire, and why the others are kept.

A segment expires by one of three rules:

    rule                    applies to                 a segment expires if
    A   log start offset    every cleanup policy       the next segment begins at or below the log start offset
    B   retention.bytes     policies with delete       the remaining segments still have at least this size
    C   retention.ms        policies with delete       the newest record is older than this

A limit of -1 deletes nothing.  The size is that of the `.log` files.  `log_view.largest_timestamp_or_mtime_ms` finds
the time of the newest record: the largest timestamp of the appends or of the time index, else the modification time.

Invariants
* Expired segments are a prefix of the log below the high watermark.
* The rules are applied in this order.  Each rule is applied to the segments that the previous rule kept.
* One segment always remains.  If every segment expires, an empty segment is first created at the log end offset.

Source: kafka-log 03 §2, §3, §6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from sediment.segment_io.format.layout import INT64_MAX

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

DELETE = "delete"
TIERED_REASON = (
    "the topic is tiered: only the broker knows which segments remote storage contains, and applies local.retention.ms "
    "and local.retention.bytes"
)


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Fields are named like Kafka's keys, with underscores, and have Kafka's defaults (kafka-log 06 §1)."""

    cleanup_policy: tuple[str, ...] = (DELETE,)
    """Any of `compact` and `delete`; without `delete`, segments expire only by the log start offset (03 §2)."""

    retention_ms: int = 604_800_000
    """A segment expires when its newest record is older than this.  -1 means no limit."""

    retention_bytes: int = -1
    """A segment expires if the newer segments have at least this many bytes.  A value below 0 means no limit."""

    remote_storage_enable: bool = False
    """The log is tiered: a segment may expire only after it has been copied to remote storage (03 §6)."""

    remote_log_copy_disable: bool = False
    """The log no longer copies segments to remote storage, so the ordinary rules apply again."""

    @property
    def is_tiered(self) -> bool:
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def deletes(self) -> bool:
        return DELETE in self.cleanup_policy


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The properties of a segment that the rules use.

    If no record has a timestamp, `largest_timestamp_ms` is the modification time of the file.
    """

    base_offset: int
    log_bytes: int
    largest_timestamp_ms: int


class Rule(StrEnum):
    LOG_START = "log-start-offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


class KeepReason(StrEnum):
    """The reasons to keep a segment; a report shows the first reason that applies."""

    TIERED = "tiered"
    UNVERIFIED = "unclean-shutdown"
    HIGH_WATERMARK = "above-high-watermark"
    EMPTY = "active-and-empty"
    POLICY = "policy-without-delete"
    UNLIMITED = "no-limit"
    WITHIN_LIMITS = "within-limits"
    AFTER_KEPT = "behind-a-kept-segment"
    NO_ROOM = "no-room-to-roll"


@dataclass(frozen=True, slots=True)
class SegmentDecision:
    """The decision on one segment: exactly one of `rule` and `kept` is set.

    `goes_at_ms` is the time at which the segment will expire by retention.ms if nothing is appended.  It is None if the
    segment expires now or never expires by time.  It is also None if the segment is kept for a reason other than time.
    """

    segment: SegmentState
    rule: Rule | None
    kept: KeepReason | None
    goes_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The result of one retention run; `fates` are sorted by base offset, so the expired segments come first.

    `log_start_before` and `log_start_offset` are the offsets before and after the run.  `rolls_active` is True if an
    empty segment must first be created at the log end offset.
    """

    fates: tuple[SegmentDecision, ...]
    log_start_before: int
    log_start_offset: int
    rolls_active: bool

    def keeping_active(self) -> RetentionPlan:
        """Return the plan that keeps the active segment, for a disk that is too full for a new segment."""
        if not self.rolls_active:
            return self
        *others, active = self.fates
        start = max(active.segment.base_offset, self.log_start_before) if others else self.log_start_before
        kept = SegmentDecision(active.segment, None, KeepReason.NO_ROOM)
        return RetentionPlan((*others, kept), self.log_start_before, start, False)

    @property
    def deleted(self) -> tuple[SegmentDecision, ...]:
        return tuple(fate for fate in self.fates if fate.rule is not None)

    @property
    def kept(self) -> tuple[SegmentDecision, ...]:
        return tuple(fate for fate in self.fates if fate.rule is None)

    @property
    def deleted_bytes(self) -> int:
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
    """Decide which `segments` expire; offsets are absolute, and ends are exclusive.

    `segments` are sorted, and the last one is active.  After an unclean stop, `unverified_from_offset` is the base
    offset of the first unverified segment.  This segment and all later segments are kept.
    """
    # Every segment of a tiered log is kept, because no file shows which segments are in remote storage.
    if config.is_tiered or not segments:
        fates = [SegmentDecision(segment, None, KeepReason.TIERED) for segment in segments]
        return RetentionPlan(tuple(fates), log_start_offset, log_start_offset, False)
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    limit = high_watermark if unverified_from_offset is None else min(high_watermark, unverified_from_offset)
    may_expire = [
        # An empty active segment is kept.
        end <= limit and not (index == len(segments) - 1 and segment.log_bytes == 0)
        for index, (segment, end) in enumerate(zip(segments, ends, strict=True))
    ]
    rules: list[Rule] = []
    for rule, is_expired in _rules(segments, ends, config, log_start_offset, now_ms):
        while len(rules) < len(segments) and may_expire[len(rules)] and is_expired(len(rules)):
            rules.append(rule)
    rolls = len(rules) == len(segments)
    following = log_end_offset if rolls else segments[len(rules)].base_offset
    fates = [SegmentDecision(segment, rule, None) for segment, rule in zip(segments, rules, strict=False)]
    goes_at_ms: int | None = None
    for index in range(len(rules), len(segments)):
        kept = _why_kept(segments, ends, index, len(rules), config, high_watermark, unverified_from_offset, now_ms)
        if config.deletes and config.retention_ms >= 0:
            goes_at_ms = max(goes_at_ms or 0, _goes_at_ms(segments[index], config))
        comes = may_expire[index] and goes_at_ms is not None and goes_at_ms <= INT64_MAX
        fates.append(SegmentDecision(segments[index], None, kept, goes_at_ms if comes else None))
    start = max(log_start_offset, following) if rules else log_start_offset
    return RetentionPlan(tuple(fates), log_start_offset, start, rolls)


def plan_view(view: LogView, config: RetentionConfig, *, now_ms: int) -> RetentionPlan:
    """Run `plan_retention` on the view of a log; if the high watermark is unknown, use the log start offset."""
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
    return tuple(
        SegmentState(ref.base_offset, ref.log_bytes, times.largest_timestamp_ms)
        for ref, times in zip(view.listing.segments, view.segment_times, strict=True)
    )


_Predicate = Callable[[int], bool]


def _rules(
    segments: Sequence[SegmentState], ends: Sequence[int], config: RetentionConfig, log_start_offset: int, now_ms: int
) -> Iterable[tuple[Rule, _Predicate]]:
    """Yield the rules that apply, in Kafka's order, each with a function that tests the segment at a given index."""
    last = len(segments) - 1
    yield Rule.LOG_START, lambda index: index < last and ends[index] <= log_start_offset
    if not config.deletes:
        return
    if config.retention_bytes >= 0:
        left_bytes = [0, *accumulate(segment.log_bytes for segment in reversed(segments[1:]))][::-1]
        yield Rule.SIZE, lambda index: left_bytes[index] >= config.retention_bytes
    if config.retention_ms >= 0:
        yield Rule.TIME, lambda index: _goes_at_ms(segments[index], config) <= now_ms


def _goes_at_ms(segment: SegmentState, config: RetentionConfig) -> int:
    return segment.largest_timestamp_ms + config.retention_ms + 1


def _why_kept(
    segments: Sequence[SegmentState],
    ends: Sequence[int],
    index: int,
    first_kept: int,
    config: RetentionConfig,
    high_watermark: int,
    unverified_from_offset: int | None,
    now_ms: int,
) -> KeepReason:
    if unverified_from_offset is not None and ends[index] > unverified_from_offset:
        return KeepReason.UNVERIFIED
    if ends[index] > high_watermark:
        return KeepReason.HIGH_WATERMARK
    if index == len(segments) - 1 and segments[index].log_bytes == 0:
        return KeepReason.EMPTY
    if not config.deletes:
        return KeepReason.POLICY
    if config.retention_ms < 0 and config.retention_bytes < 0:
        return KeepReason.UNLIMITED
    is_old = config.retention_ms >= 0 and _goes_at_ms(segments[index], config) <= now_ms
    return KeepReason.AFTER_KEPT if is_old and index > first_kept else KeepReason.WITHIN_LIMITS


def explain_retention(fate: SegmentDecision, config: RetentionConfig) -> str:
    match fate.rule or fate.kept:
        case Rule.LOG_START:
            return "the whole segment is below the log start offset"
        case Rule.SIZE:
            return f"the newer segments still have at least retention.bytes={config.retention_bytes}"
        case Rule.TIME:
            return f"its newest record is older than retention.ms={config.retention_ms}"
        case KeepReason.TIERED:
            return TIERED_REASON
        case KeepReason.UNVERIFIED:
            return "the last stop was not clean, and the segment is not verified"
        case KeepReason.HIGH_WATERMARK:
            return "it ends above the high watermark"
        case KeepReason.EMPTY:
            return "it is the active segment, and it is empty"
        case KeepReason.POLICY:
            policy = ",".join(config.cleanup_policy) or "empty"
            return f"cleanup.policy is {policy}, and the segment ends at or above the log start offset"
        case KeepReason.UNLIMITED:
            return "retention.ms and retention.bytes have no limit"
        case KeepReason.NO_ROOM:
            return "the disk is full, and an empty segment must be created before the active segment is deleted"
        case KeepReason.AFTER_KEPT:
            return "it is old enough, but an older segment is kept"
        case _:
            return "it is within retention.ms and retention.bytes"
