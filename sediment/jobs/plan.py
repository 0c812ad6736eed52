"""`sediment plan LOG_DIR …`: what compaction and retention would do with each partition now, and why not more.

    driver    list · select                                            table or JSON
    tasks                     view · rules · sample (or --exact: clean in memory)

Invariants: nothing is written and no lock is taken; what was looked at is checked to be unchanged at the end; what is
said of a rule is what the rule itself says, and with --exact every figure of the cleaning is that of `compact`.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import json
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from sediment.compaction.strategy import KeyEquality
from sediment.engine.directory.uncleanable import read_uncleanable
from sediment.jobs.cleaning.report import compacted, quarantined
from sediment.jobs.cleaning.task import (
    SAMPLE_BYTES,
    CleaningResult,
    CleaningTask,
    CompactOptions,
    clean_partition,
    estimated,
    find_resources,
    open_and_select,
    strategy_for,
)
from sediment.jobs.command_line.options import CommonOptions, common_options, key_equality_option
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.reporting.error_text import describe, describe_lost_task
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, SCHEMA, PartitionReport, human_bytes, utc_time
from sediment.jobs.settings.running_brokers import UNCLEAN, warn_of_running
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted, why_not_expired
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.retention.config import RetentionConfig
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError, SedimentError, SourceChangedError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, list_log

if TYPE_CHECKING:
    from sediment.compaction.estimate import Estimate
    from sediment.compaction.policy import CleanableRange
    from sediment.segment_io.partition.log_view import LogView

CLEANABLE = "cleanable"
BLOCKED = "blocked"
_NO_SPLITS = "splits do not hold for what the log turned out to hold"


# ----------------------------------------------------------------------------------------------------------- the answer
@dataclass(frozen=True, slots=True)
class RetentionOutlook:
    """What retention would delete now: base offsets of `segments` and their bytes.

    `log_start_offset` is the one afterwards, `next_at_ms` the clock at which retention.ms lets the next segment go.
    `reason_code` and `reason` say why nothing can be decided, where that is so.
    """

    segments: tuple[int, ...] = ()
    bytes: int = 0
    log_start_offset: int | None = None
    next_at_ms: int | None = None
    reason_code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition.  Offsets are log offsets, bytes are `.log` bytes; None where not known.

    `status` is cleanable, blocked (by the rule `reason_code`), failed or quarantined.  `unblocks_at_ms` is when time
    alone ends what blocks.  `clean_bytes`, `cleanable_bytes` and `dirty_ratio` are Kafka's.  What cleaning leaves
    (`bytes_after`, `messages_written` and the tombstones) is estimated from a sample unless `is_exact`; `segments`,
    `groups_rewritten` and `messages_read` are known only then.  `tombstones_waiting` are those that are left, and from
    `first_delete_horizon_ms` to `last_delete_horizon_ms` on their batches lose them.
    """

    partition: str
    log_dir: str
    status: str
    reason_code: str | None
    reason: str | None
    cleanup_policy: tuple[str, ...] = ()
    unblocks_at_ms: int | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_end_offset: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    next_dirty_offset: int | None = None
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    dirty_ratio: float | None = None
    must_compact: bool | None = None
    strategy: str | None = None
    strategy_reason: str | None = None
    is_exact: bool = False
    sampled_bytes: int = 0
    keys: int | None = None
    messages_read: int | None = None
    messages_written: int | None = None
    bytes_before: int = 0
    bytes_after: int | None = None
    bytes_back: int | None = None
    segments_before: int = 0
    segments: tuple[int, ...] | None = None
    groups: int | None = None
    groups_rewritten: int | None = None
    groups_skipped: int | None = None
    tombstones_waiting: int | None = None
    first_delete_horizon_ms: int | None = None
    last_delete_horizon_ms: int | None = None
    retention: RetentionOutlook | None = None


@dataclass(frozen=True, slots=True)
class PlanRun:
    """One run; `now_ms` is the clock of every rule."""

    run_id: str
    command: str
    now_ms: int
    seconds: float
    partitions: tuple[PartitionPlan, ...]

    def failed(self) -> bool:
        """Whether the exit status is to be 1."""
        return any(partition.status in (FAILED, QUARANTINED) for partition in self.partitions)


# ------------------------------------------------------------------------------------------------------------ in a task
@dataclass(frozen=True, slots=True)
class PlanningTask:
    """One partition's work; `cleaning` is the dry run that --exact makes.

    `quarantine` is the report with which `compact` leaves a damaged partition alone.  `compaction_held` and
    `retention_held` (reason code, sentence) say why its settings keep `compact` and `expire` from it.  `at_work` is the
    sentence for an unclean log whose broker runs.
    """

    cleaning: CleaningTask
    retention: RetentionConfig
    is_exact: bool
    quarantine: PartitionReport | None
    compaction_held: tuple[str, str] | None
    retention_held: tuple[str, str] | None
    at_work: str | None

    def is_cleaned(self) -> bool:
        """Whether `compact` would have a task for the partition, whatever that finds."""
        return self.cleaning.config.compacts and self.quarantine is None

    def weight(self) -> int:
        """What tasks are packed by: the bytes that are read."""
        log_bytes = self.cleaning.weight()
        return log_bytes if self.is_exact else min(log_bytes, SAMPLE_BYTES)


@dataclass(frozen=True, slots=True)
class SplitsToClean:
    """A plan whose figures many tasks have to find: what `compact` would do in splits, as `asked`."""

    found: PartitionPlan
    asked: CleaningResult


def plan_partition(task: PlanningTask, attempt: str) -> PartitionPlan | SplitsToClean:
    """Look at one partition; errors of it are part of the answer."""
    found = _start(task.cleaning.listing, task.cleaning.config.cleanup_policy)
    try:
        return _plan_partition(task, found, attempt)
    except CorruptCheckpointError as error:
        code, sentence = describe(error)
        return replace(found, status=FAILED, reason_code=code, reason=sentence)
    except CorruptDataError as error:
        code, sentence = describe(error)
        return replace(found, status=QUARANTINED, reason_code=code, reason=sentence)
    except (SedimentError, OSError) as error:
        code, sentence = describe(error)
        return replace(found, status=FAILED, reason_code=code, reason=sentence)


def _start(listing: LogListing, cleanup_policy: tuple[str, ...]) -> PartitionPlan:
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


def _plan_partition(task: PlanningTask, found: PartitionPlan, attempt: str) -> PartitionPlan | SplitsToClean:
    from sediment.compaction.policy import explain_range

    cleaning = task.cleaning
    listing, config, fs = cleaning.listing, cleaning.config, Fs()
    if listing.is_replacement_open():
        reason = "an earlier run or broker was interrupted here; the next run or start finishes that first"
        return replace(found, reason_code="interrupted", reason=reason)
    view, cleanable = open_and_select(cleaning, fs)
    found = replace(
        found,
        log_start_offset=view.log_start_offset,
        high_watermark=view.high_watermark,
        last_stable_offset=view.last_stable_offset,
        log_end_offset=view.log_end_offset,
        retention=_retention(task, view),
        reason_code=None if cleanable.blocked_by is None else cleanable.blocked_by.value,
        reason=explain_range(cleanable, view, config),
        unblocks_at_ms=cleanable.unblocks_at_ms,
    )
    if task.at_work is not None and found.reason_code == UNCLEAN:
        found = replace(found, reason=task.at_work)
    if task.compaction_held is not None:
        code, reason = task.compaction_held
        found = replace(found, reason_code=code, reason=reason)
    in_splits: SplitsToClean | None = None
    if config.compacts:
        cleaned = _with_cleaning(task, found, view, cleanable, attempt)
        if isinstance(cleaned, SplitsToClean):
            in_splits, found = cleaned, cleaned.found
        else:
            found = cleaned
    if list_log(listing.partition, listing.path, fs).segments[:-1] != listing.segments[:-1]:
        raise SourceChangedError(
            "the segments changed while they were looked at",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="run again; a broker or another tool is at work in this directory",
        )
    if task.quarantine is not None:
        why = task.quarantine
        return replace(found, status=QUARANTINED, reason_code=why.reason_code, reason=why.reason, unblocks_at_ms=None)
    return in_splits or found


def _retention(task: PlanningTask, view: LogView) -> RetentionOutlook:
    from sediment.retention.policy import plan_view

    if task.retention_held is not None:
        code, reason = task.retention_held
        return RetentionOutlook(log_start_offset=view.log_start_offset, reason_code=code, reason=reason)
    doomed = plan_view(view, task.retention, now_ms=task.cleaning.now_ms)
    return RetentionOutlook(
        segments=tuple(fate.segment.base_offset for fate in doomed.deleted),
        bytes=doomed.deleted_bytes,
        log_start_offset=doomed.log_start_offset,
        next_at_ms=next((fate.goes_at_ms for fate in doomed.kept), None),
    )


def _with_cleaning(
    task: PlanningTask, found: PartitionPlan, view: LogView, cleanable: CleanableRange, attempt: str
) -> PartitionPlan | SplitsToClean:
    """The plan with what compaction says of the partition."""
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
        return _with_tombstones(found, _estimate(task, view, cleanable.first_dirty_offset))
    plan = plan_cleaning(view, cleanable, cleaning.config, now_ms=cleaning.now_ms)
    choice = strategy_for(cleaning, plan, Fs())
    found = replace(
        found,
        status=CLEANABLE,
        next_dirty_offset=plan.end_offset,
        strategy=choice.strategy.value,
        strategy_reason=choice.reason,
        groups=len(plan.groups),
    )
    if task.is_exact:
        result = clean_partition(cleaning, attempt)
        return SplitsToClean(found, result) if result.to_split is not None else _exactly(cleaning, found, result)
    estimate = _estimate(task, view, cleanable.first_uncleanable_offset)
    cleaned_bytes = sum(group.log_bytes for group in plan.groups)
    back = cleaned_bytes - estimate.log_bytes
    return replace(
        _with_tombstones(found, estimate),
        keys=estimate.keys,
        messages_written=estimate.messages,
        bytes_back=back,
        bytes_after=found.bytes_before - back,
    )


def _estimate(task: PlanningTask, view: LogView, end_offset: int) -> Estimate:
    """What cleaning the rolled segments below `end_offset` leaves."""
    cleaning = task.cleaning
    segments = [segment for segment in view.listing.segments[:-1] if segment.base_offset < end_offset]
    return estimated(view.listing.path, segments, cleaning.config, Fs(), now_ms=cleaning.now_ms)


def _with_tombstones(found: PartitionPlan, estimate: Estimate) -> PartitionPlan:
    return replace(
        found,
        sampled_bytes=estimate.sampled_bytes,
        tombstones_waiting=estimate.tombstones_waiting,
        first_delete_horizon_ms=estimate.first_horizon_ms,
        last_delete_horizon_ms=estimate.last_horizon_ms,
    )


def _exactly(cleaning: CleaningTask, found: PartitionPlan, result: CleaningResult) -> PartitionPlan:
    """The plan with the figures of `result`, which is what `compact` does, done in memory."""
    if result.swap is None:
        status = QUARANTINED if result.uncleanable is not None else FAILED
        return replace(found, status=status, reason_code=result.reason_code, reason=result.reason)
    report = compacted(cleaning, result)
    if report.strategy != found.strategy:
        found = replace(found, strategy=report.strategy, strategy_reason=_NO_SPLITS)
    return replace(
        found,
        is_exact=True,
        next_dirty_offset=report.next_dirty_offset,
        messages_read=report.messages_read,
        messages_written=report.messages_written,
        bytes_after=report.bytes_after,
        bytes_back=report.bytes_before - report.bytes_after,
        segments=report.segments,
        groups_rewritten=report.groups_rewritten,
        groups_skipped=report.groups_skipped,
        tombstones_waiting=report.tombstones_waiting,
        first_delete_horizon_ms=report.first_delete_horizon_ms,
        last_delete_horizon_ms=report.last_delete_horizon_ms,
    )


# -------------------------------------------------------------------------------------------------------- on the driver
def plan(options: CommonOptions, own: CompactOptions, *, exact: bool) -> PlanRun:
    """Explain the selected partitions of `options.log_dirs`; `own` is what `compact` would be given, as a dry run.

    Raises:
        UsageError: a directory or setting is wrong.
    """
    started = time.monotonic()
    run_id = uuid.uuid4().hex[:12]
    answers: list[PartitionPlan] = []
    with ExitStack() as stack:
        tasks: list[PlanningTask] = []
        for prepared in _prepare(options, own, run_id, exact=exact):
            if isinstance(prepared, PlanningTask):
                tasks.append(prepared)
            else:
                answers.append(prepared)
        if tasks:
            progress = stack.enter_context(Progress(options.messages(), len(tasks), sum(t.weight() for t in tasks)))
            sc = stack.enter_context(spark_context(options.master, "sediment plan"))
            there = find_resources(sc, sum(task.cleaning.weight() for task in tasks if task.is_cleaned()), asked=None)
            tasks = [replace(task, cleaning=replace(task.cleaning, resources=there)) for task in tasks]
            to_split: list[tuple[PlanningTask, SplitsToClean]] = []
            for packed in run_on_executors(sc, tasks, plan_partition, PlanningTask.weight, group=run_id):
                for answer in packed:
                    if isinstance(answer.result, SplitsToClean):
                        to_split.append((answer.work, answer.result))
                        continue
                    answers.append(answer.result or _lost(answer.work, answer.error))
                    progress.advance(answer.work.weight())
            for task, in_splits in to_split:
                answers.append(_exactly_in_splits(sc, task, in_splits))
                progress.advance(task.weight())
    ordered = tuple(sorted(answers, key=lambda partition: (partition.log_dir, partition.partition)))
    return PlanRun(run_id, "plan", options.now_ms, time.monotonic() - started, ordered)


def _prepare(
    options: CommonOptions, own: CompactOptions, run_id: str, *, exact: bool
) -> Sequence[PlanningTask | PartitionPlan]:
    fs = Fs()
    prepared: list[PlanningTask | PartitionPlan] = []
    directories = options.open_directories(fs)
    warn_of_unstated_lag(directories)
    running = warn_of_running(directories)
    for directory in directories:
        marks = read_uncleanable(directory.path, fs)
        for partition in directory.partitions:
            try:
                listing = list_log(partition, directory.path / str(partition), fs)
                settings = directory.settings_of(partition, fs)
                config = settings.for_topic(partition.topic)
            except (SedimentError, OSError) as error:
                code, sentence = describe(error)
                prepared.append(PartitionPlan(str(partition), str(directory.path), FAILED, code, sentence))
                continue
            checkpoints = directory.checkpoints.of(partition)
            cleaning = CleaningTask(listing, checkpoints, config.compaction, own, options.now_ms, run_id)
            mark = marks.get(partition)
            alone = quarantined(listing, mark) if mark is not None and mark.holds_for(listing) else None
            prepared.append(
                PlanningTask(
                    cleaning,
                    config.retention,
                    exact,
                    quarantine=alone,
                    compaction_held=why_not_compacted(partition, settings, config),
                    retention_held=why_not_expired(partition, checkpoints, settings, config),
                    at_work=running.get(str(directory.path)),
                )
            )
    return prepared


def _exactly_in_splits(sc: Any, task: PlanningTask, in_splits: SplitsToClean) -> PartitionPlan:
    # The rooms of splits load compiled loops, which a plan without one does not need on the driver.
    from sediment.jobs.cleaning.splits import clean_partition_in_splits

    try:
        result = clean_partition_in_splits(sc, task.cleaning, in_splits.asked)
    except Exception as error:
        return _lost(task, error)
    return _exactly(task.cleaning, in_splits.found, result)


def _lost(task: PlanningTask, error: Exception | None) -> PartitionPlan:
    code, sentence = describe_lost_task(error)
    found = _start(task.cleaning.listing, task.cleaning.config.cleanup_policy)
    return replace(found, status=FAILED, reason_code=code, reason=sentence)


# ------------------------------------------------------------------------------------------------------------- the text
def run_json(run: PlanRun) -> str:
    """The one JSON object of `--json`."""
    return json.dumps({"schema": SCHEMA, **asdict(run), "seconds": round(run.seconds, 3)})


def print_run(run: PlanRun, console: Console) -> None:
    """The table for people, then a sentence or two for each partition."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("partition", "compaction", "dirty", "bytes", "back", "tombstones", "retention"):
        is_text = column in ("partition", "compaction")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for partition in run.partitions:
        about = "" if partition.is_exact or partition.status != CLEANABLE else "≈ "
        retention = partition.retention
        table.add_row(
            partition.partition,
            f"{partition.status}: {partition.reason_code}" if partition.reason_code else partition.status,
            "" if partition.dirty_ratio is None else f"{partition.dirty_ratio:.0%}",
            human_bytes(partition.bytes_before),
            "" if not partition.bytes_back else about + human_bytes(partition.bytes_back),
            "" if not partition.tombstones_waiting else f"{about}{partition.tombstones_waiting:,}",
            "" if retention is None or not retention.segments else human_bytes(retention.bytes),
        )
    console.print(table)
    for partition in run.partitions:
        console.print(
            f"{partition.partition}: {'; '.join(_sentences(partition))}", soft_wrap=True, markup=False, highlight=False
        )
    back = sum(partition.bytes_back or 0 for partition in run.partitions)
    gone = sum(partition.retention.bytes for partition in run.partitions if partition.retention is not None)
    console.print(
        f"compaction would give back {human_bytes(back)}, retention {human_bytes(gone)} ({run.seconds:.1f} s)",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _sentences(partition: PartitionPlan) -> list[str]:
    said = [partition.reason or ""]
    if partition.unblocks_at_ms is not None:
        said.append(f"time ends that at {utc_time(partition.unblocks_at_ms)}")
    if partition.strategy is not None:
        said.append(f"strategy {partition.strategy}: {partition.strategy_reason}")
    first_ms, last_ms = partition.first_delete_horizon_ms, partition.last_delete_horizon_ms
    if partition.tombstones_waiting and first_ms is not None and last_ms is not None:
        until = f" to {utc_time(last_ms)}" if last_ms != first_ms else ""
        said.append(f"tombstones may go from {utc_time(first_ms)}{until}, by a cleaning after that")
    elif partition.tombstones_waiting:
        said.append("tombstones have no delete horizon, so cleaning keeps them")
    retention = partition.retention
    if retention is not None and retention.reason is not None:
        said.append(f"retention leaves it alone: {retention.reason}")
    elif retention is not None and retention.segments:
        count = len(retention.segments)
        said.append(f"retention deletes {count} segments, {human_bytes(retention.bytes)}")
    elif retention is not None and retention.next_at_ms is not None:
        said.append(f"retention deletes the next segment at {utc_time(retention.next_at_ms)}")
    return said


@click.command("plan")
@common_options
@click.option("--exact", is_flag=True, help="Read the keys: figures are those of what compact then does.")
@click.option("--force", is_flag=True, help="Plan as if the dirty ratio were ignored.")
@click.option("--from-start", is_flag=True, help="Plan as if the cleaner checkpoint were ignored.")
@key_equality_option
def command(options: CommonOptions, exact: bool, force: bool, from_start: bool, key_equality: str) -> None:
    """Explain what compaction and retention would do with LOG_DIR... now; writes nothing."""
    own = CompactOptions(force=force, dry_run=True, from_start=from_start, key_equality=KeyEquality(key_equality))
    run = plan(options, own, exact=exact)
    options.conclude(run, run_json, print_run)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, which `__main__` is not on an executor.
    from sediment.jobs.plan import command as importable

    importable()
