"""The plan of one partition, made in a task: its view, the rules that apply, and a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from sediment.compaction.keyless_records import KEYLESS_RECORDS, loses_mostly_keyless, why_left_alone
from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.strategy import choose_strategy
from sediment.engine.directory.missing_records import KnownOfLog, losses_in_files
from sediment.jobs.cleaning.estimates import SAMPLE_BYTES, task_resources
from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.cleaning.task import check_listed, open_and_select
from sediment.jobs.planning.report import BLOCKED, CLEANABLE, PartitionPlan, RetentionOutlook
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, PartitionReport
from sediment.jobs.settings.running_brokers import UNCLEAN
from sediment.retention.date_warnings import date_warnings
from sediment.retention.policy import RetentionConfig, plan_view
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError, SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.hanging_transactions import hanging_warning
from sediment.segment_io.partition.listing import LogListing

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange
    from sediment.compaction.estimate import Estimate
    from sediment.segment_io.partition.log_view import LogView

_PARTITION_BYTES = 256 << 10  # opening a log takes as long as sampling this many bytes
_HEADERS = 16  # reading the headers of this many bytes takes as long as sampling one byte
ENCODED = 8  # encoding one byte again takes as long as sampling this many bytes
_READ_FOR_WARNINGS_BYTES = 4 << 20  # of a log that would not be sampled otherwise


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """One partition to plan; `cleaning` is the task that cleans the partition in memory for --exact.

    `compaction_held` and `retention_held` (reason code, text) name the setting that makes `compact` or `expire` skip
    the partition.  `at_work` is the reason to report for a log that looks unclean only because a broker is running.
    `known` is None if a broker is at work, so that its files need not agree.
    """

    cleaning: CleaningTask
    retention: RetentionConfig
    is_exact: bool
    quarantine: PartitionReport | None
    compaction_held: tuple[str, str] | None
    retention_held: tuple[str, str] | None
    at_work: str | None
    encoding: Encoding | None
    warnings: tuple[str, ...] = ()
    known: KnownOfLog | None = None
    sample_bytes: int = SAMPLE_BYTES

    def is_cleaned(self) -> bool:
        """Return True if `compact` would start a task for the partition, even if nothing is cleanable."""
        return self.cleaning.config.compacts and self.quarantine is None

    def weight(self) -> int:
        return min(self.cleaning.weight(), self.sample_bytes)

    def partition(self) -> TopicPartition:
        return self.cleaning.listing.partition

    def effort_bytes(self) -> int:
        listing = self.cleaning.listing
        last = listing.snapshots[-1] if listing.snapshots else 0
        replayed_bytes = sum(segment.log_bytes for segment in listing.segments if segment.base_offset >= last)
        sampled_bytes = self.weight() * (1 if self.encoding is None else 1 + ENCODED)
        searched_bytes = self.cleaning.weight() if self.cleaning.options.force and self._looks_idle() else 0
        return _PARTITION_BYTES + sampled_bytes + (replayed_bytes + searched_bytes) // _HEADERS

    def _looks_idle(self) -> bool:
        first_dirty, segments = self.cleaning.checkpoints.first_dirty, self.cleaning.listing.segments
        return first_dirty is not None and bool(segments) and first_dirty >= segments[-1].base_offset


def plan_partition(task: PlanningTask, _attempt: str) -> PartitionPlan:
    """Plan one partition; its errors are part of the result.

    With `is_exact`, the figures about cleaning are not set.
    """
    found = replace(start_plan(task.cleaning.listing, task.cleaning.config.cleanup_policy), warnings=task.warnings)
    try:
        return _plan_partition(task, found)
    except CorruptCheckpointError as error:
        code, text = describe(error)
        return replace(found, status=FAILED, reason_code=code, reason=text)
    except CorruptDataError as error:
        code, text = describe(error)
        return replace(found, status=QUARANTINED, reason_code=code, reason=text)
    except (SedimentError, OSError) as error:
        code, text = describe(error)
        return replace(found, status=FAILED, reason_code=code, reason=text)


def start_plan(listing: LogListing, cleanup_policy: tuple[str, ...]) -> PartitionPlan:
    size_bytes = listing.log_bytes()
    return PartitionPlan(
        partition=str(listing.partition),
        log_dir=str(listing.path.parent),
        status=BLOCKED,
        reason_code=None,
        reason=None,
        cleanup_policy=cleanup_policy,
        bytes_before=size_bytes,
        bytes_after=size_bytes,
        bytes_back=0,
        segments_before=len(listing.segments),
    )


def _plan_partition(task: PlanningTask, found: PartitionPlan) -> PartitionPlan:
    cleaning = task.cleaning
    listing, config, fs = cleaning.listing, cleaning.config, Fs()
    if listing.is_replacement_open():
        reason = "an earlier run or broker was interrupted here; the next run or broker start first finishes that work"
        return replace(found, reason_code="interrupted", reason=reason)
    view, cleanable = open_and_select(cleaning, fs)
    retention, date_warnings_found = _retention(task, view)
    found = replace(
        found,
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        last_stable_offset=view.last_stable_offset,
        log_end_offset=view.log_end_offset,
        retention=retention,
        warnings=(*found.warnings, *date_warnings_found),
        reason_code=None if cleanable.blocked_by is None else cleanable.blocked_by.value,
        reason=cleanable.reason,
        unblocks_at_ms=cleanable.unblocks_at_ms,
    )
    if task.at_work is not None and found.reason_code == UNCLEAN:
        found = replace(found, reason=task.at_work)
    if task.encoding is not None:
        from sediment.compaction.reencode.estimate import estimate_reencode

        size = estimate_reencode(view, task.encoding, config, fs, sample_bytes=task.sample_bytes)
        found = replace(found, reencoded_bytes=size.log_bytes, reencode_sampled_bytes=size.sampled_bytes)
    if task.compaction_held is not None:
        code, reason = task.compaction_held
        found = replace(found, reason_code=code, reason=reason)
    if config.compacts:
        found = _with_cleaning(task, found, view, cleanable)
    elif warning := hanging_warning(listing.partition, listing.path.parent, view.producers, cleaning.now_ms):
        found = replace(found, warnings=(*found.warnings, warning))
    if task.known is not None:
        most_bytes = task.sample_bytes if config.compacts else _READ_FOR_WARNINGS_BYTES
        losses = losses_in_files(listing, task.known, fs, most_bytes_read=most_bytes)
        found = replace(found, warnings=(*found.warnings, *map(str, losses.missing), *losses.warnings))
    check_listed(cleaning, fs, at_end=True)
    if task.quarantine is not None:
        why = task.quarantine
        return replace(found, status=QUARANTINED, reason_code=why.reason_code, reason=why.reason, unblocks_at_ms=None)
    return found


def _retention(task: PlanningTask, view: LogView) -> tuple[RetentionOutlook, tuple[str, ...]]:
    if task.retention_held is not None:
        code, reason = task.retention_held
        return RetentionOutlook(log_start_offset=view.log_start_offset, reason_code=code, reason=reason), ()
    plan = plan_view(view, task.retention, now_ms=task.cleaning.now_ms)
    outlook = RetentionOutlook(
        segments=tuple(fate.segment.base_offset for fate in plan.deleted),
        bytes=plan.deleted_bytes,
        log_start_offset=plan.log_start_offset,
        next_at_ms=next((fate.goes_at_ms for fate in plan.kept), None),
    )
    return outlook, date_warnings(plan, task.retention, now_ms=task.cleaning.now_ms)


def _with_cleaning(task: PlanningTask, found: PartitionPlan, view: LogView, cleanable: CleanableRange) -> PartitionPlan:
    from sediment.compaction.grouping import plan_cleaning

    cleaning = task.cleaning
    found = replace(
        found,
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        clean_bytes=cleanable.clean_bytes,
        cleanable_bytes=cleanable.cleanable_bytes,
        dirty_ratio=cleanable.cleanable_ratio,
        must_compact=cleanable.must_compact,
    )
    if cleanable.blocked_by is not None or task.quarantine is not None:
        return _with_leftovers(task, found, view, cleanable.first_dirty_offset)
    plan = plan_cleaning(view, cleanable, cleaning.config, now_ms=cleaning.now_ms)
    estimate = cache(lambda: _estimate(task, view, cleanable.first_uncleanable_offset))
    choice = choose_strategy(plan, task_resources(cleaning), estimate)
    found = replace(
        found,
        status=CLEANABLE,
        next_dirty_offset=plan.end_offset,
        strategy=choice.strategy.value,
        strategy_reason=choice.reason,
        groups=len(plan.groups),
    )
    if task.is_exact:
        return found
    dropped = estimate().messages_read - estimate().messages
    if not cleaning.options.drop_keyless and loses_mostly_keyless(estimate().records_without_key, dropped):
        about = "about " if task.sample_bytes < plan.log_bytes else ""
        reason = why_left_alone(estimate().records_without_key, dropped, about=about)
        return left_alone(found, reason, estimate().records_without_key, sampled_bytes=estimate().sampled_bytes)
    back = plan.log_bytes - estimate().log_bytes
    found = with_keyless(found, estimate().records_without_key, is_sampled=task.sample_bytes < plan.log_bytes)
    return replace(
        _with_tombstones(found, estimate()),
        keys=estimate().keys,
        messages_written=estimate().messages,
        bytes_back=back,
        bytes_after=found.bytes_before - back,
    )


def _estimate(task: PlanningTask, view: LogView, end_offset: int) -> Estimate:
    from sediment.compaction.estimate import estimate_segments

    cleaning = task.cleaning
    segments = [segment for segment in view.listing.segments[:-1] if segment.base_offset < end_offset]
    return estimate_segments(
        view.listing.path,
        segments,
        cleaning.config,
        Fs(),
        now_ms=cleaning.now_ms,
        sample_bytes=task.sample_bytes,
    )


def _with_leftovers(task: PlanningTask, found: PartitionPlan, view: LogView, first_dirty_offset: int) -> PartitionPlan:
    """Return the plan of a log that is not cleaned, with its tombstones and its records without a key.

    The clean part and the rest of the log, which includes the active segment, share the sample by their sizes.
    """
    from sediment.compaction.estimate import estimate_segments, estimate_uncleaned

    *rolled, active = view.listing.segments or (None,)
    clean = [segment for segment in rolled if segment.base_offset < first_dirty_offset]
    rest = [*rolled[len(clean) :], *([active] if active is not None else [])]
    clean_bytes, rest_bytes = (sum(segment.log_bytes for segment in part) for part in (clean, rest))
    share = min(task.sample_bytes / max(clean_bytes + rest_bytes, 1), 1.0)
    estimate = estimate_segments(
        view.listing.path,
        clean,
        replace(task.cleaning.config, delete_retention_ms=None),  # nothing gets a horizon, because nothing is cleaned
        Fs(),
        now_ms=task.cleaning.now_ms,
        sample_bytes=round(clean_bytes * share),
    )
    uncleaned = estimate_uncleaned(view.listing.path, rest, Fs(), sample_bytes=round(rest_bytes * share))
    without_key = estimate.records_without_key + uncleaned.records_without_key
    return replace(
        _with_tombstones(with_keyless(found, without_key, is_sampled=share < 1), estimate),
        sampled_bytes=estimate.sampled_bytes + uncleaned.sampled_bytes,
        tombstones_expired=estimate.tombstones_expired,
        tombstones_not_cleaned=uncleaned.tombstones,
    )


def with_keyless(found: PartitionPlan, count: int, *, is_sampled: bool) -> PartitionPlan:
    about = "about " if is_sampled else ""
    them = "1 record has" if count == 1 else f"{count:,} records have"
    warning = f"{about}{them} no key, and the next cleaning drops every such record, also in a broker"
    return replace(found, records_without_key=count, warnings=(*found.warnings, warning) if count else found.warnings)


def left_alone(found: PartitionPlan, reason: str, records_without_key: int, *, sampled_bytes: int = 0) -> PartitionPlan:
    return replace(
        found,
        status=BLOCKED,
        reason_code=KEYLESS_RECORDS,
        reason=reason,
        next_dirty_offset=None,
        strategy=None,
        strategy_reason=None,
        groups=None,
        records_without_key=records_without_key,
        sampled_bytes=sampled_bytes,
    )


def _with_tombstones(found: PartitionPlan, estimate: Estimate) -> PartitionPlan:
    return replace(
        found,
        sampled_bytes=estimate.sampled_bytes,
        tombstones_waiting=estimate.tombstones_waiting,
        first_delete_horizon_ms=estimate.first_horizon_ms,
        last_delete_horizon_ms=estimate.last_horizon_ms,
    )
