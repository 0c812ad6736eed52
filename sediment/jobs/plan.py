"""`sediment plan LOG_DIR …`: explain what compaction and retention would do with each partition now.

1. The driver lists and selects the partitions.
2. Tasks view each partition, apply the rules, and take a sample.
3. With --exact, tasks also clean the partitions in memory.

Invariants: nothing is written and no lock is taken.  After reading a partition, or cleaning it in memory for --exact, a
task checks that its segments are still the listed segments.  The rule that blocks a partition also provides the
explanation.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sediment.compaction.keyless_records import KEYLESS_RECORDS, loses_mostly_keyless, why_left_alone
from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.strategy import KeyEquality
from sediment.engine.directory.missing_records import KnownOfLog, losses_in_files
from sediment.engine.directory.originals.history import read_history
from sediment.engine.directory.originals.retained import bytes_only_in
from sediment.engine.directory.uncleanable import read_uncleanable
from sediment.jobs.cleaning.estimates import SAMPLE_BYTES, find_resources, strategy_for
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.cleaning.report import quarantined, settled
from sediment.jobs.cleaning.task import check_listed, clean_partition, open_and_select
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, option, together
from sediment.jobs.command_line.encoding_options import EncodingOptions
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.shared_options import key_equality_option
from sediment.jobs.reporting.columns import TableColumn, bytes_column, status_column, text_column
from sediment.jobs.reporting.error_text import describe, describe_lost_task
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import (
    AFTER_PARTITIONS,
    FAILED,
    QUARANTINED,
    PartitionOutcome,
    PartitionReport,
    RunReport,
    in_order,
)
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.future_replicas import FutureReplica, future_replicas
from sediment.jobs.settings.known_logs import known_of_log
from sediment.jobs.settings.policy_warnings import policy_warning
from sediment.jobs.settings.running_brokers import UNCLEAN, warn_of_running
from sediment.jobs.settings.topic_ids import topic_ids_of
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted, why_not_expired
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.slots import available_slots
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.jobs.spark.two_processes import run_here_in_two
from sediment.retention.date_warnings import date_warnings
from sediment.retention.policy import RetentionConfig, plan_view
from sediment.segment_io.dates import at_date, date_text
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError, SedimentError
from sediment.segment_io.format.names import TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.hanging_transactions import hanging_warning
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files, list_log

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange
    from sediment.compaction.estimate import Estimate
    from sediment.segment_io.partition.log_view import LogView

_LOGGER = logging.getLogger(__name__)

CLEANABLE = "cleanable"
BLOCKED = "blocked"
# In the time that Spark needs to start, one process can sample this many bytes, that is, decode their records.
_LITTLE_BYTES = 1 << 30
_PARTITION_BYTES = 256 << 10  # opening a log takes as long as sampling this many bytes
_HEADERS = 16  # reading the headers of this many bytes takes as long as sampling one byte
_ENCODED = 8  # encoding one byte again takes as long as sampling this many bytes
_QUICK_SAMPLE_BYTES, _LEAST_SAMPLE_BYTES = 256 << 20, 1 << 20  # without Spark: for all partitions, and for each one
_READ_FOR_WARNINGS_BYTES = 4 << 20  # of a log that would not be sampled otherwise
# The rules of a log that `compact --force` may clean, or clean again because of its expired tombstones.
_FORCED = frozenset(
    {"nothing-dirty", "active-segment", "dirty-ratio", "min-compaction-lag", "open-transaction", "high-watermark"}
)
_NO_SPLITS = "the log cannot be split (transactions or unordered offsets); one task cleans it"


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class RetentionOutlook:
    """Base offsets of the segments that retention would delete now, and their total bytes.

    `log_start_offset` is the log start after the deletion.  `next_at_ms` is the time at which retention.ms expires the
    next segment.  `reason_code` and `reason` are set if retention cannot decide, because a setting or a checkpoint
    entry is missing.
    """

    segments: tuple[int, ...] = ()
    bytes: int = 0
    log_start_offset: int | None = None
    next_at_ms: int | None = None
    reason_code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlan(PartitionOutcome):
    """Plan of one partition.  Offsets are log offsets, bytes are `.log` bytes, and None means "not known".

    `status` is cleanable, blocked (by the rule `reason_code`), failed or quarantined.  `unblocks_at_ms` is the time at
    which the partition becomes cleanable even without further appends.  `clean_bytes`, `cleanable_bytes` and
    `dirty_ratio` are computed as in Kafka.  `bytes_after`, `messages_written`, `records_without_key` and the tombstones
    are estimated from a sample unless `is_exact`.  `segments`, `groups_rewritten` and `messages_read` are known only if
    `is_exact`.  `records_without_key` counts the records that cleaning would drop because they have no key; in a
    blocked log, it counts all such records.  `tombstones_waiting` counts the tombstones that remain; their delete
    horizons are from `first_delete_horizon_ms` to `last_delete_horizon_ms`.  In a blocked log, `tombstones_expired`
    counts the tombstones in the clean part that have expired, and `tombstones_not_cleaned` those above the clean part.
    `reencoded_bytes` estimates the size of the log after a re-encoding without compaction, from a sample of
    `reencode_sampled_bytes`.  `warnings` are sentences about anything else that endangers the partition's
    records.
    """

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
    records_without_key: int | None = None
    tombstones_waiting: int | None = None
    tombstones_expired: int | None = None
    tombstones_not_cleaned: int | None = None
    first_delete_horizon_ms: int | None = None
    last_delete_horizon_ms: int | None = None
    reencoded_bytes: int | None = None
    reencode_sampled_bytes: int | None = None
    retention: RetentionOutlook | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanReport(RunReport[PartitionPlan]):
    """Report of a run of `plan`.

    `codec`, `level` and `batch_bytes` describe the encoding for which sizes are estimated.  `originals_bytes` is the
    size of the files that exist only in the directory `originals`; None without --originals.
    """

    row_type: ClassVar[type] = PartitionPlan

    codec: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    level: int | None = field(default=None, metadata=AFTER_PARTITIONS)
    batch_bytes: int | None = field(default=None, metadata=AFTER_PARTITIONS)
    originals: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    originals_bytes: int | None = field(default=None, metadata=AFTER_PARTITIONS)


# ------------------------------------------------------------------------------------------------------------ in a task
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

    def effort_bytes(self) -> int:
        listing = self.cleaning.listing
        last = listing.snapshots[-1] if listing.snapshots else 0
        replayed_bytes = sum(segment.log_bytes for segment in listing.segments if segment.base_offset >= last)
        sampled_bytes = self.weight() * (1 if self.encoding is None else 1 + _ENCODED)
        searched_bytes = self.cleaning.weight() if self.cleaning.options.force and self._looks_idle() else 0
        return _PARTITION_BYTES + sampled_bytes + (replayed_bytes + searched_bytes) // _HEADERS

    def _looks_idle(self) -> bool:
        first_dirty, segments = self.cleaning.checkpoints.first_dirty, self.cleaning.listing.segments
        return first_dirty is not None and bool(segments) and first_dirty >= segments[-1].base_offset


def plan_partition(task: PlanningTask, _attempt: str) -> PartitionPlan:
    """Plan one partition; its errors are part of the result.

    With `is_exact`, the figures about cleaning are not set.
    """
    found = replace(_start(task.cleaning.listing, task.cleaning.config.cleanup_policy), warnings=task.warnings)
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
    choice = strategy_for(cleaning, plan, estimate)
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
        return _left_alone(found, reason, estimate().records_without_key, sampled_bytes=estimate().sampled_bytes)
    back = plan.log_bytes - estimate().log_bytes
    found = _with_keyless(found, estimate().records_without_key, is_sampled=task.sample_bytes < plan.log_bytes)
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
        _with_tombstones(_with_keyless(found, without_key, is_sampled=share < 1), estimate),
        sampled_bytes=estimate.sampled_bytes + uncleaned.sampled_bytes,
        tombstones_expired=estimate.tombstones_expired,
        tombstones_not_cleaned=uncleaned.tombstones,
    )


def _with_keyless(found: PartitionPlan, count: int, *, is_sampled: bool) -> PartitionPlan:
    about = "about " if is_sampled else ""
    them = "1 record has" if count == 1 else f"{count:,} records have"
    warning = f"{about}{them} no key, and the next cleaning drops every such record, also in a broker"
    return replace(found, records_without_key=count, warnings=(*found.warnings, warning) if count else found.warnings)


def _left_alone(
    found: PartitionPlan, reason: str, records_without_key: int, *, sampled_bytes: int = 0
) -> PartitionPlan:
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


# -------------------------------------------------------------------------------------------------------- on the driver
@dataclass(frozen=True, slots=True)
class PlanOptions:
    exact: bool = option(
        False,
        "Read every key, and compute the exact result of `compact` instead of an estimate.",
        from_settings=ONE_COMMAND,
    )
    force: bool = option(
        False,
        "Plan for `compact --force`, which ignores the dirty ratio and drops expired tombstones even without dirty "
        "records.",
    )
    from_start: bool = option(
        False, "Plan for `compact --from-start`, which ignores cleaner-offset-checkpoint.", from_settings=ONE_COMMAND
    )
    drop_keyless: bool = option(
        False,
        "Plan for `compact --drop-keyless`, which also cleans partitions that mostly lose records without a key.",
    )
    key_equality: KeyEquality = key_equality_option()
    encoding: Encoding | None = together(EncodingOptions)
    originals: Directory | None = option(
        None,
        "Also report how much disk space is used by the files in DIR, the --keep-originals directory of earlier runs.",
        from_settings=ONE_COMMAND,
    )

    def of_compact(self) -> CompactOptions:
        return CompactOptions(
            force=self.force,
            dry_run=True,
            from_start=self.from_start,
            drop_keyless=self.drop_keyless,
            key_equality=self.key_equality,
        )


def plan(options: CommonOptions, own: PlanOptions) -> PlanReport:
    encoding = own.encoding
    history = None if own.originals is None else read_history(own.originals, Fs())
    started = time.monotonic()
    run_id = new_run_id()
    plans: list[PartitionPlan] = []
    with ExitStack() as stack:
        tasks: list[PlanningTask] = []
        for prepared in _prepare(options, own, run_id):
            if isinstance(prepared, PlanningTask):
                tasks.append(prepared)
            else:
                plans.append(prepared)
        if tasks:
            found, to_clean = _plan_each(options, tasks, stack, group=run_id)
            plans += found
            if to_clean:
                plans += _exact_plans(options, to_clean, stack, group=run_id)
    report = PlanReport(
        run_id=run_id,
        command="plan",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        partitions=in_order(plans),
        codec=None if encoding is None else encoding.codec_name,
        level=None if encoding is None else encoding.level,
        batch_bytes=None if encoding is None else encoding.batch_bytes,
    )
    if history is None or own.originals is None:
        return report
    size_bytes = bytes_only_in(history, own.originals)
    return replace(report, originals=str(own.originals.absolute()), originals_bytes=size_bytes)


def _prepare(options: CommonOptions, own: PlanOptions, run_id: str) -> Sequence[PlanningTask | PartitionPlan]:
    fs, of_compact = Fs(), own.of_compact()
    prepared: list[PlanningTask | PartitionPlan] = []
    directories = options.open_directories(fs)
    warn_of_unstated_lag(directories)
    running = warn_of_running(directories)
    topic_ids = topic_ids_of(directories, fs)
    copies = _copies(directories, running, fs)
    for directory in directories:
        marks = read_uncleanable(directory.path, fs)
        for partition in directory.partitions:
            try:
                listing = list_log(partition, directory.path / str(partition), fs)
                check_segments_are_files(partition, listing.path, fs)
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
                    own.exact,
                    quarantine=alone,
                    compaction_held=why_not_compacted(partition, settings, config),
                    retention_held=retention_held,
                    at_work=running.get(str(directory.path)),
                    encoding=own.encoding,
                    warnings=(
                        *(str(each) for each in (fault, warning) if each is not None),
                        *map(str, copies.get(partition, ())),
                    ),
                    known=None if is_running else known_of_log(directory, partition, settings),
                )
            )
    return prepared


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


def _plan_each(
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
        resources = find_resources(sc, cleaned_bytes, asked=None)
        tasks = [replace(task, cleaning=replace(task.cleaning, resources=resources)) for task in tasks]
        if sc is None:
            found_by_task = run_here_in_two(tasks, plan_partition)
        else:
            found_by_task = chain.from_iterable(
                run_on_executors(sc, tasks, plan_partition, PlanningTask.weight, group=group)
            )
        for each in found_by_task:
            found = each.result or _lost(each.item.cleaning, each.error)
            if each.item.is_exact and found.status == CLEANABLE:
                to_clean[each.item.cleaning.listing.path] = each.item.cleaning, found
            else:
                plans.append(found)
            progress.advance(each.item.weight())
    return plans, to_clean


def _quick(tasks: Sequence[PlanningTask]) -> list[PlanningTask] | None:
    """Return the tasks, with smaller samples, if this process can plan them in the time of a Spark run; None otherwise.

    With one task slot, Spark is never faster.
    """
    all_bytes = _QUICK_SAMPLE_BYTES // (1 if tasks[0].encoding is None else 1 + _ENCODED)
    sample_bytes = min(SAMPLE_BYTES, max(all_bytes // len(tasks), _LEAST_SAMPLE_BYTES))
    quick = [replace(task, sample_bytes=sample_bytes) for task in tasks]
    if sum(task.effort_bytes() for task in quick) > _LITTLE_BYTES and available_slots() > 1:
        return None
    return quick


def _exact_plans(
    options: CommonOptions,
    planned: Mapping[Path, tuple[CleaningTask, PartitionPlan]],
    stack: ExitStack,
    *,
    group: str,
) -> list[PartitionPlan]:
    plans: list[PartitionPlan] = []
    to_split: list[tuple[CleaningTask, CleaningResult]] = []
    sc = stack.enter_context(spark_context(options.master, "sediment plan"))
    tasks = [task for task, _ in planned.values()]
    with Progress(options.messages(), len(tasks), sum(task.weight() for task in tasks), phase="cleaning") as progress:

        def add(task: CleaningTask, exact: PartitionPlan) -> None:
            plans.append(exact)
            progress.advance(task.weight())

        for results in run_on_executors(sc, tasks, clean_partition, CleaningTask.weight, group=group):
            for each in results:
                if each.result is None:
                    add(each.item, _lost(each.item, each.error))
                elif each.result.to_split is not None:
                    to_split.append((each.item, each.result))
                else:
                    _, found = planned[each.item.listing.path]
                    add(each.item, _exactly(each.item, found, each.result))
        for task, asked in to_split:
            _, found = planned[task.listing.path]
            add(task, _exactly_in_splits(sc, task, found, asked))
    return plans


def _exactly_in_splits(sc: Any, task: CleaningTask, found: PartitionPlan, asked: CleaningResult) -> PartitionPlan:
    # Imported late, because this module compiles kernels that the driver needs only for splits.
    from sediment.jobs.cleaning.splits import clean_in_place

    try:
        result = clean_in_place(sc, task, asked)
    except Exception as error:
        return _lost(task, error)
    return _exactly(task, found, result)


def _exactly(cleaning: CleaningTask, found: PartitionPlan, result: CleaningResult) -> PartitionPlan:
    if result.reason_code == KEYLESS_RECORDS:
        left = _left_alone(found, result.reason or "", result.records_without_key)
        return replace(left, is_exact=True)
    if result.swap is None:
        status = QUARANTINED if result.uncleanable is not None else FAILED
        return replace(found, status=status, reason_code=result.reason_code, reason=result.reason)
    report, _ = settled(cleaning, result)
    if report.strategy != found.strategy:
        found = replace(found, strategy=report.strategy, strategy_reason=_NO_SPLITS)
    found = _with_keyless(found, report.records_without_key, is_sampled=False)
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
    found = _start(task.listing, task.config.cleanup_policy)
    return replace(found, status=FAILED, reason_code=code, reason=text)


# ------------------------------------------------------------------------------------------------------------- the text
def print_report(report: PlanReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, is_idle=_is_idle)
    screen.reasons(report.partitions, key=_situation, explain=_explained, is_idle=_is_idle)
    screen.warnings(report.partitions)
    back = sum(partition.bytes_back or 0 for partition in report.partitions)
    gone = sum(partition.retention.bytes for partition in report.partitions if partition.retention is not None)
    screen.say(f"compaction would free {human_bytes(back)}, retention {human_bytes(gone)} ({report.seconds:.1f} s)")
    estimated = [partition for partition in report.partitions if partition.reencoded_bytes is not None]
    if estimated:
        before = sum(partition.bytes_before for partition in estimated)
        after = sum(partition.reencoded_bytes or 0 for partition in estimated)
        sampled = sum(partition.reencode_sampled_bytes or 0 for partition in estimated)
        screen.say(
            f"re-encoding would leave about {human_bytes(after)} of {human_bytes(before)}, estimated from a sample of "
            f"{human_bytes(sampled)}"
        )
    if report.originals_bytes is not None:
        held = human_bytes(report.originals_bytes)
        screen.say(f"a vacuum of all originals in {report.originals} would free {held}")


def _compacts(partition: PartitionPlan) -> str:
    if partition.status == BLOCKED:
        return f"no: {partition.reason_code}" if partition.reason_code else "no"
    if partition.status == CLEANABLE:
        return "yes"
    return f"{partition.status}: {partition.reason_code}" if partition.reason_code else partition.status


def _about(rows: Sequence[PartitionPlan]) -> str:
    return "" if all(row.is_exact or row.status != CLEANABLE for row in rows) else "≈ "


def _dirty(rows: Sequence[PartitionPlan]) -> str:
    return f"{rows[0].dirty_ratio:.0%}" if len(rows) == 1 and rows[0].dirty_ratio is not None else ""


def _back(rows: Sequence[PartitionPlan]) -> str:
    total = sum(row.bytes_back or 0 for row in rows)
    return _about(rows) + human_bytes(total) if total else ""


def _tombstones(rows: Sequence[PartitionPlan]) -> str:
    total = sum(row.tombstones_waiting or 0 for row in rows)
    return f"{_about(rows)}{total:,}" if total else ""


def _retained(partition: PartitionPlan) -> int | None:
    retention = partition.retention
    return retention.bytes if retention is not None and retention.segments else None


def _cleanable_at(partition: PartitionPlan) -> str:
    return "" if partition.unblocks_at_ms is None else date_text(partition.unblocks_at_ms)


def _is_idle(partition: PartitionPlan) -> bool:
    return partition.status == BLOCKED and _retained(partition) is None


COLUMNS: tuple[TableColumn[PartitionPlan], ...] = (
    text_column("partition", lambda row: row.partition),
    status_column("compact now?", _compacts),
    TableColumn("dirty", _dirty, lambda row: row.dirty_ratio, rank=1, adds_up=False),
    bytes_column("bytes", lambda row: row.bytes_before, rank=3),
    TableColumn("saves", _back, lambda row: row.bytes_back, rank=1),
    TableColumn("tombstones", _tombstones, lambda row: row.tombstones_waiting, rank=4),
    bytes_column("expires", _retained, rank=2),
    text_column("cleanable at", _cleanable_at, rank=5),
)


def _situation(partition: PartitionPlan) -> object:
    """Return a key; partitions with the same key share a line, because their explanations differ only in numbers."""
    retention = partition.retention
    return (
        partition.status,
        partition.reason_code,
        partition.strategy,
        bool(partition.tombstones_waiting),
        bool(partition.tombstones_expired),
        bool(partition.tombstones_not_cleaned),
        retention and (retention.reason_code, bool(retention.segments), retention.next_at_ms is None),
    )


def _explained(partition: PartitionPlan) -> str:
    return "; ".join(each for each in _explanations(partition) if each)


def _explanations(partition: PartitionPlan) -> list[str]:
    texts = [partition.reason or ""]
    if partition.unblocks_at_ms is not None:
        texts.append(f"becomes cleanable {at_date(partition.unblocks_at_ms)}")
    if partition.strategy is not None:
        texts.append(f"strategy {partition.strategy}: {partition.strategy_reason}")
    first_ms, last_ms = partition.first_delete_horizon_ms, partition.last_delete_horizon_ms
    if partition.tombstones_waiting and first_ms is not None and last_ms is not None:
        first, last = date_text(first_ms), date_text(last_ms)
        when = at_date(first_ms) if last == first else f"between {first} and {last}"
        texts.append(
            f"tombstones expire {when}; after that time, the next compaction of new records drops them, and `compact "
            "--force` does so without new records"
        )
    elif partition.tombstones_waiting and partition.status == BLOCKED:
        texts.append(
            "tombstones in the clean part have no delete horizon; the next compaction, or `compact --from-start`, "
            "gives them one if delete.retention.ms is stated"
        )
    elif partition.tombstones_waiting:
        texts.append("tombstones have no delete horizon, so compaction keeps them")
    texts += _tombstones_left(partition)
    if partition.reencoded_bytes is not None:
        texts.append(f"re-encoding would leave about {human_bytes(partition.reencoded_bytes)}")
    retention = partition.retention
    if retention is not None and retention.reason is not None:
        texts.append(f"retention skips it: {retention.reason}")
    elif retention is not None and retention.segments:
        segments = counted(len(retention.segments), "segment")
        texts.append(f"retention deletes {segments}, {human_bytes(retention.bytes)}")
    elif retention is not None and retention.next_at_ms is not None:
        texts.append(f"retention deletes the next segment {at_date(retention.next_at_ms)}")
    return texts


def _tombstones_left(partition: PartitionPlan) -> list[str]:
    about = "about " if partition.sampled_bytes < partition.bytes_before else ""
    texts = []
    if partition.tombstones_expired and partition.reason_code in _FORCED:
        verb = "has" if partition.tombstones_expired == 1 else "have"
        texts.append(
            f"{about}{_many(partition.tombstones_expired, 'tombstone')} {verb} expired; the next "
            "compaction of new records drops them, and `compact --force` drops them now"
        )
    if partition.tombstones_not_cleaned and partition.reason_code == "active-segment":
        verb = "is" if partition.tombstones_not_cleaned == 1 else "are"
        texts.append(
            f"{about}{_many(partition.tombstones_not_cleaned, 'tombstone')} {verb} in the active segment, which is "
            "cleaned only after it is rolled; if no broker uses the directory, `compact --roll-active` rolls it"
        )
    return texts


def _many(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


@log_command("plan", PlanOptions, COLUMNS)
def command(options: CommonOptions, own: PlanOptions) -> None:
    """Explain what compaction and retention would do to LOG_DIR... now; write nothing.

    With --codec, --level or --batch-bytes, also estimate the size of each log after `reencode` with these options.
    """
    options.conclude(plan(options, own), print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is another module.
    from sediment.jobs.plan import command as importable

    importable()
