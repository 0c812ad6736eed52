"""Cleaning of one partition in a Spark task.

1. Open the log and select the cleanable range.
2. Plan the groups, check the free space, choose a strategy.
3. Strategy `split`: scan if needed and return; many tasks clean the partition later.
   Strategy `whole`: sweep the log into `.part` files.
4. Finish the writes while the task starts its next partition.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from sediment.compaction.strategy import KeyEquality, Strategy, choose_strategy
from sediment.compaction.write_behind import WriteBehind
from sediment.jobs.cleaning.estimates import SAMPLE_BYTES, check_headroom, task_resources
from sediment.jobs.cleaning.options import KEEP, CleaningTask
from sediment.jobs.reporting.stage_timer import CLEAN, PLAN, VIEW, StageTimer
from sediment.jobs.rewriting.result import CleaningResult, SplitPlan, SurveyResult, result_of, to_commit
from sediment.jobs.spark.task_environment import OnBytes, task_environment, throttled
from sediment.jobs.spark.task_pool import Pending, completed
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptIndexError,
    SourceChangedError,
)
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange
    from sediment.compaction.estimate import Estimate
    from sediment.segment_io.partition.listing import SegmentRef
    from sediment.segment_io.partition.log_view import LogView

_WRITER = WriteBehind()  # shared by all partitions of this process


def clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    return start_partition(task, attempt).finish()


def start_partition(task: CleaningTask, attempt: str) -> Pending[CleaningResult]:
    """Clean one partition except for its last writes, so that the next partition can start during those writes."""
    with ExitStack() as stack:

        def start() -> Pending[CleaningResult]:
            fs, on_bytes = stack.enter_context(task_environment(task))
            return start_cleaning(task, fs, on_bytes, attempt, _WRITER)

        started = result_of(task, start)
        if isinstance(started, CleaningResult):
            return completed(started)
        environment = stack.pop_all()

    def finish() -> CleaningResult:
        with environment:
            return result_of(task, started.finish)

    return Pending(finish)


def start_cleaning(
    task: CleaningTask, fs: Fs, on_bytes: OnBytes, attempt: str, writer: WriteBehind
) -> Pending[CleaningResult]:
    """Clean one partition except for the last writes of `writer`; pass the size of each read to `on_bytes`.

    Raises:
        SedimentError, OSError: the partition cannot be cleaned; no `.part` file of the attempt remains.
    """
    from sediment.compaction.clean_log import CleaningMode, scan_log, sweep_log
    from sediment.compaction.estimate import estimate_segments
    from sediment.compaction.grouping import plan_cleaning

    timer = StageTimer()
    view, cleanable = open_and_select(task, fs, on_bytes)
    timer.lap(VIEW)
    result = _selected(cleanable)
    if cleanable.blocked_by is not None:
        return completed(replace(result, seconds_by_stage=timer.seconds()))
    plan = plan_cleaning(view, cleanable, task.config, now_ms=task.now_ms)

    @cache
    def estimate() -> Estimate:
        path = task.listing.path
        return estimate_segments(path, plan.segments, task.config, fs, now_ms=task.now_ms, sample_bytes=SAMPLE_BYTES)

    check_headroom(plan, fs, writer, estimate)
    resources = task_resources(task)
    strategy = choose_strategy(plan, resources, estimate).strategy
    timer.lap(PLAN)
    if strategy is Strategy.SPLIT:
        try:
            boundaries = scan_log(plan, fs, only_if_needed=True, progress=on_bytes)
        except (CorruptBatchError, CorruptIndexError):
            if task.options.on_corruption != KEEP:
                raise
            strategy = Strategy.WHOLE
        else:
            timer.lap(CLEAN)
            split = SplitPlan(plan, boundaries, resources.task_memory_bytes)
            return completed(replace(result, strategy=strategy.value, to_split=split, seconds_by_stage=timer.seconds()))
    mode = CleaningMode(
        keep_unreadable=task.options.on_corruption == KEEP,
        exact_keys=task.options.key_equality is KeyEquality.EXACT,
        encoding=task.options.encoding,
    )
    swept = sweep_log(plan, fs, writer, Attempt(task.run_id, attempt, on_bytes), mode)
    timer.lap(CLEAN)

    def finish() -> CleaningResult:
        timer.restart()
        swap = swept.written()
        timer.lap(CLEAN)
        check_listed(task, fs, at_end=True)
        cleaned = replace(result, strategy=strategy.value, seconds_by_stage=timer.seconds())
        cleaned = to_commit(cleaned, swap, drop_keyless=task.options.drop_keyless)
        if cleaned.swap is None:
            swept.discard()
        return cleaned

    # A dry run writes nothing, but must check the segments for changes as soon as it has read them.
    return completed(finish()) if task.dry_run else Pending(finish)


def survey_partition(task: CleaningTask, _attempt: str) -> SurveyResult | CleaningResult:
    from sediment.compaction.grouping import plan_cleaning

    def survey() -> SurveyResult | CleaningResult:
        with throttled(task.rate_limit) as on_bytes:
            view, cleanable = open_and_select(task, Fs(), on_bytes)
        if cleanable.blocked_by is not None:
            return _selected(cleanable)
        plan = plan_cleaning(view, cleanable, task.config, now_ms=task.now_ms)
        return SurveyResult(cleanable, plan.log_bytes)

    return result_of(task, survey)


def open_and_select(task: CleaningTask, fs: Fs, on_bytes: OnBytes | None = None) -> tuple[LogView, CleanableRange]:
    """Return a view of the task's partition, and the range that may be cleaned.

    With --force, the clean part of a log without dirty records is searched for expired tombstones; `on_bytes` is called
    with the size of each read.
    """
    # Imported late, because these modules compile kernels that the driver never needs.
    from sediment.compaction.cleanable_range import cleanable_range
    from sediment.compaction.expired_horizons import clean_again
    from sediment.segment_io.partition.log_view import open_view

    check_listed(task, fs)
    config, options = task.config, task.options
    view = open_view(
        task.listing,
        task.checkpoints,
        fs,
        now_ms=task.now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        first_batch_timestamps=config.max_compaction_lag_ms < INT64_MAX,
    )
    now_ms = task.now_ms
    cleanable = cleanable_range(view, config, now_ms=now_ms, force=options.force, from_start=options.from_start)
    if options.force:
        cleanable = clean_again(cleanable, view, config, fs, now_ms=now_ms, progress=on_bytes)
    return view, cleanable


def check_listed(task: CleaningTask, fs: Fs, *, at_end: bool = False) -> None:
    # A dry run holds no lock, so it repeats this check at the end.
    if at_end and not task.dry_run:
        return
    listing = task.listing
    listed, found = task.on_disk or listing.segments, list_log(listing.partition, listing.path, fs).segments
    what = "the segments differ from those that the driver listed"
    advice = "check whether another disk is mounted at this path, or another process writes to it"
    if task.dry_run:
        if at_end:
            what = "the segments changed while they were read"
        advice = (
            "a dry run takes no lock, so stop the broker or work on a copy; "
            "if no broker runs, check which disk is mounted here"
        )
    # During a dry run or a hand-off, the broker or engine may append to the active segment and roll it.
    may_grow = task.dry_run or task.options.hand_off is not None
    if found != listed and not (may_grow and _is_grown(listed, found)):
        raise SourceChangedError(what, partition=str(listing.partition), path=str(listing.path), advice=advice)


def _is_grown(listed: tuple[SegmentRef, ...], found: tuple[SegmentRef, ...]) -> bool:
    if not listed:
        return True
    *closed, active = listed
    *same, grown = found[: len(listed)] or (None,)
    return (
        grown is not None
        and same == closed
        and grown.base_offset == active.base_offset
        and grown.log_bytes >= active.log_bytes
    )


def _selected(cleanable: CleanableRange) -> CleaningResult:
    result = CleaningResult(
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        reset_checkpoint=cleanable.force_checkpoint,
        dirty_ratio=cleanable.cleanable_ratio,
    )
    if cleanable.blocked_by is None:
        return result
    return replace(result, reason_code=cleanable.blocked_by.value, reason=cleanable.reason)


def roll_active(task: CleaningTask, fs: Fs) -> CleaningTask:
    """Roll the active segment and return the task for the log after the roll; a dry run only simulates the roll.

    If a roll would not make the log cleanable, return the task unchanged.
    """
    from sediment.engine.directory.roll import perform_roll, plan_roll

    listing, config = task.listing, task.config
    view, _ = open_and_select(task, fs)
    roll = plan_roll(
        view, fs, index_interval_bytes=config.index_interval_bytes, segment_index_bytes=config.segment_index_bytes
    )
    if roll is None:
        return task
    rolled = replace(task, listing=roll.listing, on_disk=listing.segments)
    if open_and_select(rolled, fs)[1].blocked_by is not None:
        return task
    if task.dry_run:
        return rolled
    perform_roll(roll, fs)
    return replace(task, listing=list_log(listing.partition, listing.path, fs))
