"""The driver of `plan`: it prepares the tasks, runs them here or on Spark, and cleans in memory for --exact."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from sediment.compaction.keyless_records import KEYLESS_RECORDS
from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.uncleanable import read_uncleanable
from sediment.jobs.cleaning.estimates import SAMPLE_BYTES, Shares, find_resources, shares
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.cleaning.report import quarantined, settled
from sediment.jobs.cleaning.split_jobs import cleaning_in_splits
from sediment.jobs.cleaning.task import clean_partition
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.planning.report import CLEANABLE, PartitionPlan
from sediment.jobs.planning.task import ENCODED, PlanningTask, left_alone, plan_partition, start_plan, with_keyless
from sediment.jobs.process.overlapped import overlapped
from sediment.jobs.reporting.error_text import describe, describe_lost_task
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED
from sediment.jobs.rewriting.figures import of_cleaning
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.future_replicas import FutureReplica, future_replicas
from sediment.jobs.settings.known_logs import known_of_log
from sediment.jobs.settings.old_formats import warn_of_old_formats
from sediment.jobs.settings.policy_warnings import policy_warning
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.jobs.settings.topic_ids import topic_ids_of
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted, why_not_expired
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.release import has_spark
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.slots import available_slots
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.jobs.spark.two_processes import run_here_in_two
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files, list_log

_LOGGER = logging.getLogger(__name__)

# In the time that Spark needs to start, one process can sample this many bytes, that is, decode their records.
_LITTLE_BYTES = 1 << 30
_QUICK_SAMPLE_BYTES, _LEAST_SAMPLE_BYTES = 256 << 20, 1 << 20  # without Spark: for all partitions, and for each one
_NO_SPLITS = "the log cannot be split (transactions or unordered offsets); one task cleans it"


def prepare(
    options: CommonOptions, of_compact: CompactOptions, run_id: str, *, is_exact: bool, encoding: Encoding | None
) -> Sequence[PlanningTask | PartitionPlan]:
    """Return the tasks, and the plans of partitions whose files or settings cannot be read."""
    fs = Fs()
    prepared: list[PlanningTask | PartitionPlan] = []
    directories = options.open_directories(fs)
    warn_of_unstated_lag(directories)
    warn_of_old_formats(directories)
    running = warn_of_running(directories)
    topic_ids = topic_ids_of(directories, fs)
    copies = _copies(directories, running, fs)
    for directory in directories:
        marks = read_uncleanable(directory.path, fs)
        listings = overlapped(partial(_listed, directory, fs), directory.partitions)
        for partition, listing in zip(directory.partitions, listings, strict=True):
            try:
                if isinstance(listing, Exception):
                    raise listing
                settings = directory.settings_of(partition, fs)
                config = settings.for_topic(partition.topic)
                # A running broker may not have written the file yet.
                is_running = str(directory.path) in running
                fault = None if is_running else topic_ids[directory.path].fault(partition, listing.path)
            except (SedimentError, OSError) as error:
                code, text = describe(error)
                prepared.append(PartitionPlan(str(partition), str(directory.path), FAILED, code, text))
                continue
            checkpoints = directory.checkpoints.of(partition)
            retention_held = why_not_expired(partition, checkpoints, settings, config)
            warning = policy_warning(partition.topic, config, expires=retention_held is None)
            cleaning = CleaningTask(listing, checkpoints, config.compaction, of_compact, options.now_ms, run_id)
            mark = marks.get(partition)
            alone = quarantined(listing, mark) if mark is not None and mark.holds_for(listing) else None
            prepared.append(
                PlanningTask(
                    cleaning,
                    config.retention,
                    is_exact,
                    quarantine=alone,
                    compaction_held=why_not_compacted(partition, settings, config),
                    retention_held=retention_held,
                    at_work=running.get(str(directory.path)),
                    encoding=encoding,
                    warnings=(
                        *(str(each) for each in (fault, warning) if each is not None),
                        *map(str, copies.get(partition, ())),
                    ),
                    known=None if is_running else known_of_log(directory, partition, settings),
                )
            )
    return prepared


def _listed(directory: SelectedDirectory, fs: Fs, partition: TopicPartition) -> LogListing | Exception:
    try:
        listing = list_log(partition, directory.path / str(partition), fs)
        check_segments_are_files(partition, listing.path, fs)
    except (SedimentError, OSError) as error:
        return error
    return listing


def _copies(
    directories: Sequence[SelectedDirectory], running: Mapping[str, str], fs: Fs
) -> dict[TopicPartition, list[FutureReplica]]:
    """Return the future replicas by partition; warn of those whose log is in none of the directories."""
    if running:
        return {}  # a broker is moving logs
    found: dict[TopicPartition, list[FutureReplica]] = {}
    with_log = {partition for directory in directories for partition in directory.all_partitions}
    for replicas in future_replicas(directories, fs).values():
        for replica in replicas:
            found.setdefault(replica.partition, []).append(replica)
            if replica.partition not in with_log:
                _LOGGER.warning("%s: %s", replica.log_dir, replica)
    return found


def plan_each(
    options: CommonOptions, tasks: Sequence[PlanningTask], stack: ExitStack, *, group: str
) -> tuple[list[PartitionPlan], Mapping[Path, tuple[CleaningTask, PartitionPlan]]]:
    """Return the plans, and the partitions for --exact to clean, by directory.

    If this function starts Spark, `stack` stops it.
    """
    plans: list[PartitionPlan] = []
    to_clean: dict[Path, tuple[CleaningTask, PartitionPlan]] = {}
    quick = None if options.asks_for_spark else _quick(tasks)
    tasks = quick or tasks
    with Progress(options.messages(), len(tasks), sum(task.weight() for task in tasks), phase="planning") as progress:
        sc = None
        if quick is None:
            with progress.starting_spark():
                sc = stack.enter_context(spark_context(options.master, "sediment plan"))
        cleaned_bytes = sum(task.cleaning.weight() for task in tasks if task.is_cleaned())
        if sc is None:
            resources = find_resources(None, cleaned_bytes, asked=None)
            tasks = [replace(task, cleaning=replace(task.cleaning, resources=resources)) for task in tasks]
            found_by_task = run_here_in_two(tasks, plan_partition)
        else:
            found_by_task = chain.from_iterable(
                run_on_executors(
                    sc,
                    tasks,
                    plan_partition,
                    PlanningTask.weight,
                    group=group,
                    prepare=partial(_with_shares, shares(sc, cleaned_bytes, asked=None)),
                    title=titled("plan", PlanningTask.partition),
                )
            )
        for each in found_by_task:
            found = each.result or _lost(each.item.cleaning, each.error)
            if each.item.is_exact and found.status == CLEANABLE:
                to_clean[each.item.cleaning.listing.path] = each.item.cleaning, found
            else:
                plans.append(found)
            progress.advance(each.item.weight())
    return plans, to_clean


def _with_shares(shared: Shares, task: PlanningTask, slots: LiveSlots) -> PlanningTask:
    return replace(task, cleaning=shared.given(task.cleaning, slots))


def _quick(tasks: Sequence[PlanningTask]) -> list[PlanningTask] | None:
    """Return the tasks, with smaller samples, if this process can plan them in the time of a Spark run; None otherwise.

    With one task slot, Spark is never faster; and it may not be installed.
    """
    all_bytes = _QUICK_SAMPLE_BYTES // (1 if tasks[0].encoding is None else 1 + ENCODED)
    sample_bytes = min(SAMPLE_BYTES, max(all_bytes // len(tasks), _LEAST_SAMPLE_BYTES))
    quick = [replace(task, sample_bytes=sample_bytes) for task in tasks]
    if sum(task.effort_bytes() for task in quick) > _LITTLE_BYTES and available_slots() > 1 and has_spark():
        return None
    return quick


def exact_plans(
    options: CommonOptions,
    planned: Mapping[Path, tuple[CleaningTask, PartitionPlan]],
    stack: ExitStack,
    *,
    group: str,
) -> list[PartitionPlan]:
    plans: list[PartitionPlan] = []
    sc = stack.enter_context(spark_context(options.master, "sediment plan"))
    tasks = [task for task, _ in planned.values()]
    with Progress(options.messages(), len(tasks), sum(task.weight() for task in tasks), phase="cleaning") as progress:

        def add(task: CleaningTask, exact: PartitionPlan) -> None:
            plans.append(exact)
            progress.advance(task.weight())

        for results in run_on_executors(
            sc,
            tasks,
            clean_partition,
            CleaningTask.weight,
            group=group,
            jobs=cleaning_in_splits(sc),
            title=titled("clean in memory", CleaningTask.partition),
            figures=of_cleaning,
        ):
            for each in results:
                if each.result is None:
                    add(each.item, _lost(each.item, each.error))
                else:
                    _, found = planned[each.item.listing.path]
                    add(each.item, _exactly(each.item, found, each.result))
    return plans


def _exactly(cleaning: CleaningTask, found: PartitionPlan, result: CleaningResult) -> PartitionPlan:
    if result.reason_code == KEYLESS_RECORDS:
        left = left_alone(found, result.reason or "", result.records_without_key)
        return replace(left, is_exact=True)
    if result.swap is None:
        status = QUARANTINED if result.uncleanable is not None else FAILED
        return replace(found, status=status, reason_code=result.reason_code, reason=result.reason)
    report, _ = settled(cleaning, result)
    if report.strategy != found.strategy:
        found = replace(found, strategy=report.strategy, strategy_reason=_NO_SPLITS)
    found = with_keyless(found, report.records_without_key, is_sampled=False)
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


def _lost(task: CleaningTask, error: Exception | None) -> PartitionPlan:
    code, text = describe_lost_task(error)
    found = start_plan(task.listing, task.config.cleanup_policy)
    return replace(found, status=FAILED, reason_code=code, reason=text)
