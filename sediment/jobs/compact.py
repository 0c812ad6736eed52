"""`sediment compact LOG_DIR …`: compact log directories in place.

1. The driver locks and lists the directories, and finishes interrupted replacements (`finish_interrupted`).
2. Tasks view, plan and clean the partitions.
3. The driver commits the groups of each partition, one at a time, in ascending order.  Then it writes the checkpoint.
4. The driver makes the report.

Invariants: only the driver renames files.  Its threads commit several partitions at the same time, each partition in
one thread.  A partition is committed after its task has finished, and the checkpoint is written after the partition's
last group.  Replaced files are removed in the background, and the locks are held until the last of these files is
removed.  The report shows every failed removal.  A partition that fails stays unchanged, and the others continue.  If
the run has a limit, it first plans all partitions and then cleans them, the filthiest first; partitions beyond the
limit stay unchanged.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.compaction.keyless_records import KEYLESS_RECORDS
from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock, place_run_token, remove_run_token
from sediment.engine.directory.originals.backup_links import (
    backup_directory,
    originals_directory,
    snapshot_log_dir,
    snapshot_partition,
)
from sediment.engine.directory.originals.kept_in import kept_in
from sediment.engine.directory.removals import Removals, wait_for_all
from sediment.engine.directory.spool import check_announced, spool_swap
from sediment.engine.directory.swap import commit, discard_parts
from sediment.engine.directory.uncleanable import Uncleanable, read_uncleanable, update_uncleanable
from sediment.jobs.cleaning.backup_links import KeptOriginals, begin_originals
from sediment.jobs.cleaning.cleaning_run import CleaningRun, perform_run, update_cleaner_checkpoint
from sediment.jobs.cleaning.estimates import find_resources
from sediment.jobs.cleaning.options import KEEP, CleaningTask, CompactOptions, check_apart
from sediment.jobs.cleaning.report import (
    how_to_state_delete_retention,
    partly_committed,
    quarantined,
    settled,
    untouched,
)
from sediment.jobs.cleaning.result import TASK_ERRORS, CleaningResult, SurveyResult, failed_task, failure
from sediment.jobs.cleaning.task import roll_active, start_partition, survey_partition
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.process.cancellation import RunStopped, cancel_when, stop_on_signals
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.columns import TableColumn, change_column, name_and_status, status_counts
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import (
    COMPACTED,
    FAILED,
    QUARANTINED,
    SKIPPED,
    CompactionRunReport,
    PartitionReport,
)
from sediment.jobs.reporting.screen import Screen, named
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, LIST, SPARK, SURVEY, StageTimer
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.settings.cluster_settings import warn_of_refusals
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.running_brokers import UNCLEAN, warn_of_running
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import TaskResult, run_here, run_on_executors, run_pending
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import check_segments_are_files, list_log

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange

_LOGGER = logging.getLogger(__name__)

_FEW = 1000  # partitions; the driver can open this many logs in the time that Spark needs to start
_LIMITS = ("max-bytes", "max-seconds")
_COMMITS_AT_ONCE = 16  # a commit mostly waits for the disk, which combines the syncs of many threads into one flush
_STOPPED = "the run was stopped before this partition was done"
_WORTH_WATCHING_BYTES = 256 << 20  # a smaller partition is finished before its progress would be useful

MAX_BYTES = "max-bytes"
HANDED_OFF = "handed-off"


def compact(options: CommonOptions, own: CompactOptions, stop: threading.Event | None = None) -> CompactionRunReport:
    """Compact the selected partitions of `options.log_dirs`; start Spark only if there is anything to clean.

    Setting `stop` ends the run after the group in progress; partitions without a result are reported as failed.

    Raises:
        UsageError: a directory, a setting or a combination of options is wrong; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
        OwnershipError: another run took over the output.
    """
    own.validate(options)
    run_type: type[CleaningRun] = _CompactionRun
    if own.output is not None:
        from sediment.jobs.cleaning.output_run import OutputRun

        run_type = OutputRun
    return perform_run(run_type, options, own, stop or threading.Event())


class _CompactionRun(CleaningRun):
    """Compaction of log directories in place."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        super().__init__(options, own, stop, stack)
        self._fs = Fs()
        self._directories: list[SelectedDirectory] = []
        self._locks: dict[Path, DirectoryLock] = {}
        self._marks: dict[Path, Mapping[TopicPartition, Uncleanable]] = {}
        self._handed_over: dict[Path, set[str]] = {}
        self._running: Mapping[str, str] = {}
        self._originals: KeptOriginals | None = None
        self.originals = kept_in(own.keep_originals, options.log_dirs, shares=True)
        self.before = kept_in(own.keep_before, options.log_dirs, shares=False)
        self._keeping = threading.Lock()  # all partitions share the directories for kept files
        self._committers = ThreadPoolExecutor(_COMMITS_AT_ONCE, thread_name_prefix="sediment-commit")
        self._commits: list[Future[tuple[PartitionReport, int | None]]] = []
        self._removals = Removals()
        self._not_removed: Mapping[Path, SedimentError] = {}

    def perform(self) -> list[PartitionReport]:
        """Lock, list, clean and commit; return a report for every selected partition."""
        reports: list[PartitionReport] = []
        tasks: list[CleaningTask] = []
        self._directories = self._open_directories()
        for directory in self._directories:
            for prepared in self._prepare(directory):
                if isinstance(prepared, CleaningTask):
                    tasks.append(prepared)
                else:
                    reports.append(self._logged(prepared))
        self.timer.lap(LIST)
        if tasks:
            tasks, unlisted = self._begin_originals(tasks)
            reports.extend(unlisted)
        if tasks:
            reports.extend(self._clean_and_commit(tasks))
            if self._originals is not None:
                self._finish_removals()
                self.catalogue = self._originals.end(map(self._with_removal, reports))
        return reports

    def concluded(self, reports: Sequence[PartitionReport]) -> list[PartitionReport]:
        """Return the reports, with a failure for each partition whose replaced files could not be removed."""
        concluded = list(map(self._with_removal, reports))
        for before, after in zip(reports, concluded, strict=True):
            if after is not before:
                log_partition(self.run_id, "compact", after)
        return concluded

    def _with_removal(self, report: PartitionReport) -> PartitionReport:
        error = self._not_removed.get(Path(report.log_dir, report.partition))
        if error is None or not _is_rewritten(report):
            return report
        code, reason = describe(error)
        if report.status == FAILED:
            code, reason = report.reason_code or code, f"{report.reason}; {reason}"
        return replace(report, status=FAILED, reason_code=code, reason=reason)

    def _finish_commits(self) -> None:
        """Wait for commits that still run after an interruption; each ends after its current group of segments."""
        if not all(each.done() for each in self._commits):
            self._stop.set()
        wait_for_all(self._commits, self._stop.set)
        self._committers.shutdown()

    def _finish_removals(self) -> None:
        self._not_removed = self._removals.finish()

    def _begin_originals(self, tasks: Sequence[CleaningTask]) -> tuple[list[CleaningTask], list[PartitionReport]]:
        """Write the catalogue of the files that the tasks may replace; call this before a task replaces a file.

        Returns the tasks in the catalogue, and reports for the tasks whose files cannot be read.
        """
        if self.originals is None or self._own.dry_run:
            return list(tasks), []
        self._originals, failed = begin_originals(
            self._options,
            "compact",
            self.run_id,
            self.originals,
            [task.listing for task in tasks],
            self._fs,
        )
        unlisted = {listing.path for listing, _, _ in failed}
        reports = [
            PartitionReport(str(listing.partition), str(listing.path.parent), FAILED, code, text)
            for listing, code, text in failed
        ]
        return [task for task in tasks if task.listing.path not in unlisted], reports

    def _open_directories(self) -> list[SelectedDirectory]:
        """Check every directory and the selection before any change; then lock the directories and read them again."""
        options = self._options
        own = self._own
        options.open_directories(self._fs, in_place=not own.dry_run)
        for path in options.log_dirs:
            for kept in filter(None, (self.originals, self.before)):
                outside_log_dirs(str(kept.of(path)), options.log_dirs)
            if self.originals is not None and self.before is not None:
                check_apart(self.originals.of(path), self.before.of(path))
            if not own.dry_run:
                check_filesystem(path, allow_network=own.allow_network_fs)
        if own.hand_off is not None:
            check_announced(own.hand_off, options.log_dirs, self._fs)
            self._stack.enter_context(DirectoryLock(own.hand_off))
        if not own.dry_run:
            for path in options.log_dirs:
                if self.originals is not None:
                    self._stack.enter_context(originals_directory(self.originals.of(path), path, self._fs))
                if self.before is not None:
                    self._stack.enter_context(backup_directory(self.before.of(path), path, self._fs))
                if own.hand_off is None:
                    self._locks[path] = self._stack.enter_context(DirectoryLock(path))
                if self.before is not None:
                    snapshot_log_dir(path, self.before.of(path), options.now_ms, self._fs)
                place_run_token(path, self.run_id)
                self._stack.callback(remove_run_token, path)
        self._stack.callback(self._finish_removals)
        self._stack.callback(self._finish_commits)
        directories = options.open_directories(self._fs, in_place=not own.dry_run)
        warn_of_unstated_lag(directories)
        if own.dry_run:
            warn_of_refusals(directories)
            self._running = warn_of_running(directories)
        for directory in directories:
            if directory.is_unclean and own.hand_off is None and str(directory.path) not in self._running:
                _LOGGER.warning(
                    "%s: the last stop of the broker was not clean; offsets past the recovery points stay unchanged "
                    "until `sediment recover` has repaired the directory",
                    directory.path,
                )
        self._marks = {path: read_uncleanable(path, self._fs) for path in options.log_dirs}
        return directories

    def _prepare(self, directory: SelectedDirectory) -> Iterator[CleaningTask | PartitionReport]:
        """Yield a task for each partition to compact, and a report for each other partition."""
        for partition in directory.partitions:
            try:
                yield self._prepare_partition(directory, partition)
            except (SedimentError, OSError) as error:
                code, text = describe(error)
                yield PartitionReport(str(partition), str(directory.path), FAILED, code, text)

    def _prepare_partition(
        self, directory: SelectedDirectory, partition: TopicPartition
    ) -> CleaningTask | PartitionReport:
        path = directory.path / str(partition)
        settings = directory.settings_of(partition, self._fs)
        config = settings.for_topic(partition.topic)
        listing = list_log(partition, path, self._fs)
        if why := why_not_compacted(partition, settings, config):
            return untouched(listing, SKIPPED, *why)
        check_segments_are_files(partition, path, self._fs)
        if listing.is_replacement_open() and self._own.dry_run:
            return untouched(
                listing,
                SKIPPED,
                "interrupted",
                "an earlier run or broker was interrupted here; run without --dry-run to finish its work first",
            )
        if not self._own.dry_run and self._own.hand_off is None and finish_interrupted(path, self._fs):
            listing = list_log(partition, path, self._fs)
            self._keep_before(partition, directory.path)
        mark = self._marks[directory.path].get(partition)
        looks_again = self._own.retry_quarantined or self._own.on_corruption == KEEP
        if mark is not None and mark.holds_for(listing) and not looks_again:
            return quarantined(listing, mark)
        task = self._task(directory, listing, config.compaction)
        if not self._own.roll_active:
            return task
        if not self._own.dry_run:
            self._keep_before(partition, directory.path)
        try:
            return roll_active(task, self._fs)
        except TASK_ERRORS as error:
            return self._settle_all([TaskResult(task, failed_task(task, error), None)])[0]

    def _nothing_to_clean(self, tasks: Sequence[CleaningTask]) -> list[PartitionReport] | None:
        """Return a report for each task if no partition can be cleaned now; return None if one may be cleanable.

        Opening a log loads compiled code.  The driver therefore opens logs only if their sizes suggest that there is
        nothing to clean.
        """
        if self._options.asks_for_spark or len(tasks) > _FEW or any(task.expected_bytes() for task in tasks):
            return None
        results: list[TaskResult[CleaningTask, CleaningResult]] = []
        for each in run_here(tasks, survey_partition):
            if not isinstance(each.result, CleaningResult):
                return None
            results.append(TaskResult(each.item, each.result, None))
        self.timer.lap(SURVEY)
        return [self._logged(report) for report in self._settle_all(results)]

    def _clean_and_commit(self, tasks: Sequence[CleaningTask]) -> list[PartitionReport]:
        if (left_alone := self._nothing_to_clean(tasks)) is not None:
            return left_alone
        reports: list[PartitionReport] = []
        total_bytes = sum(task.weight() for task in tasks)
        progress = self._stack.enter_context(
            Progress(self._options.messages(), len(tasks), total_bytes, phase="cleaning")
        )
        try:
            with progress.starting_spark():
                sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
        except RunStopped:
            return [
                self._logged(report) for report in self._settle_all([TaskResult(task, None, None) for task in tasks])
            ]
        self.timer.lap(SPARK)
        self._stack.enter_context(cancel_when(self._stop, sc, self.run_id))
        limit = self._rate_limit(sc, self._directories)
        resources = find_resources(sc, total_bytes, asked=self._own.strategy)
        chosen: Sequence[CleaningTask] = [replace(task, rate_limit=limit, resources=resources) for task in tasks]
        if self._own.is_limited:
            chosen, left = self._choose(sc, chosen)
            reports.extend(map(self._logged, left))
            self.timer.lap(SURVEY)
            progress.advance(sum(report.bytes_before for report in left), partitions=len(left))
        in_order = self._own.is_limited
        open_tasks = {task.listing.path: task for task in chosen}
        progress.watch(lambda: sum(_swept_bytes(task, self._fs) for task in list(open_tasks.values())))
        for results in self._cleaned(sc, chosen, in_order=in_order):
            for each in results:
                del open_tasks[each.item.listing.path]
            self.timer.restart()
            settled = self._settle_all(results)
            self.timer.lap(COMMIT)
            self.timer.add(each.result.seconds_by_stage for each in results if each.result)
            for report in settled:
                reports.append(self._logged(report))
                progress.advance(report.bytes_before)
        if not self._own.dry_run:
            # Remove the tokens first, because a task attempt on a host that was suspended may still try to write.
            for path in self._options.log_dirs:
                remove_run_token(path)
            for task in tasks:
                handed_over = self._handed_over.get(task.listing.path, ())
                discard_parts(task.listing.path, self.run_id, self._fs, keep=handed_over)
        return reports

    def _cleaned(
        self, sc: Any, tasks: Sequence[CleaningTask], *, in_order: bool
    ) -> Iterator[list[TaskResult[CleaningTask, CleaningResult]]]:
        """Yield the results of all tasks; partitions with splits are cleaned last, one at a time, on all task slots."""
        to_split: list[tuple[CleaningTask, CleaningResult]] = []
        for results in run_pending(
            sc,
            tasks,
            start_partition,
            CleaningTask.weight if in_order else CleaningTask.expected_bytes,
            group=self.run_id,
            in_order=in_order,
            is_stopped=self._stop.is_set,
        ):
            done = []
            for each in results:
                if each.result is not None and each.result.to_split is not None:
                    to_split.append((each.item, each.result))
                else:
                    done.append(each)
            yield done
        for task, asked in to_split:
            yield [self._cleaned_in_splits(sc, task, asked)]

    def _cleaned_in_splits(
        self, sc: Any, task: CleaningTask, asked: CleaningResult
    ) -> TaskResult[CleaningTask, CleaningResult]:
        # Imported late, because this module compiles kernels that the driver needs only for splits.
        from sediment.jobs.cleaning.splits import SplitInPlace, clean_partition_in_splits

        if self._stop.is_set():
            return TaskResult(task, failure(STOPPED, _STOPPED), None)
        timer = StageTimer()
        timer.add([asked.seconds_by_stage])
        try:
            result = clean_partition_in_splits(sc, SplitInPlace(task, asked))
        except Exception as error:
            return TaskResult(task, None, error)
        timer.lap(CLEAN)
        return TaskResult(task, replace(result, seconds_by_stage=timer.seconds()), None)

    def _logged(self, report: PartitionReport) -> PartitionReport:
        if report.reason_code == UNCLEAN:
            report = replace(report, reason=self._running.get(report.log_dir, report.reason))
        log_partition(self.run_id, "compact", report)
        return report

    def _choose(self, sc: Any, tasks: Sequence[CleaningTask]) -> tuple[list[CleaningTask], list[PartitionReport]]:
        """Return the tasks that fit into --max-bytes, filthiest first, and reports of all other partitions."""
        from sediment.compaction.cleanable_range import filthiest_first

        reports: list[PartitionReport] = []
        cleanable: list[tuple[tuple[CleaningTask, int], CleanableRange]] = []
        for results in run_on_executors(
            sc, tasks, survey_partition, CleaningTask.weight, group=self.run_id, is_stopped=self._stop.is_set
        ):
            for each in results:
                found = each.result or self._lost(each.error)
                if isinstance(found, SurveyResult):
                    cleanable.append(((each.item, found.cleaned_bytes), found.cleanable))
                else:
                    reports.extend(self._settle_all([TaskResult(each.item, found, None)]))
        chosen = []
        left_bytes = INT64_MAX if self._own.max_bytes is None else self._own.max_bytes
        for task, needed_bytes in filthiest_first(cleanable):
            if needed_bytes <= left_bytes:
                chosen.append(task)
                left_bytes -= needed_bytes
                continue
            reason = (
                f"its cleaning reads {needed_bytes} bytes, but only {left_bytes} of --max-bytes {self._own.max_bytes} "
                "are left; run again to continue"
            )
            reports.append(untouched(task.listing, SKIPPED, MAX_BYTES, reason))
        return chosen, reports

    def _settle_all(self, results: Sequence[TaskResult[CleaningTask, CleaningResult]]) -> list[PartitionReport]:
        """Commit the swaps of a Spark task; then write each directory's checkpoint and quarantine marks once."""
        reports = []
        checkpoints: dict[Path, dict[TopicPartition, int]] = {}
        marked: dict[Path, list[Uncleanable]] = {}
        unmarked: dict[Path, list[TopicPartition]] = {}
        settled_results = [(each.item, each.result or self._lost(each.error)) for each in results]
        for (task, result), (report, offset) in zip(settled_results, self._settle_each(settled_results), strict=True):
            reports.append(report)
            partition, log_dir = task.listing.partition, task.listing.path.parent
            if offset is not None:
                checkpoints.setdefault(log_dir, {})[partition] = offset
            if result.uncleanable is not None:
                marked.setdefault(log_dir, []).append(result.uncleanable)
            elif report.status == COMPACTED and not report.corrupt_batches and partition in self._marks[log_dir]:
                unmarked.setdefault(log_dir, []).append(partition)
        if self._own.dry_run or self._own.hand_off is not None:
            return reports
        for log_dir in {*marked, *unmarked}:
            try:
                update_uncleanable(log_dir, self._fs, add=marked.get(log_dir, ()), remove=unmarked.get(log_dir, ()))
            except OSError as error:
                self._options.messages().print(
                    f"sediment: could not record the quarantined partitions: {describe(error)[1]}",
                    style="red",
                    markup=False,
                )
        for log_dir, offsets in checkpoints.items():
            try:
                update_cleaner_checkpoint(self._fs, log_dir, offsets)
            except (SedimentError, OSError) as error:
                late = f"the segments are clean, but the checkpoint was not written: {describe(error)[1]}"
                reports = [
                    replace(report, status=FAILED, reason_code="checkpoint-not-written", reason=late)
                    if report.log_dir == str(log_dir) and report.partition in map(str, offsets)
                    else report
                    for report in reports
                ]
        return reports

    def _lost(self, error: Exception | None) -> CleaningResult:
        return failure(*self._why_lost(error, "clean"))

    def _settle_each(
        self, results: Sequence[tuple[CleaningTask, CleaningResult]]
    ) -> Iterable[tuple[PartitionReport, int | None]]:
        """Finish each partition; if there are several swaps to commit, commit them in several threads."""
        if sum(result.swap is not None for _, result in results) < 2:
            return starmap(self._settle, results)
        running = [self._committers.submit(self._settle, task, result) for task, result in results]
        self._commits = running
        return [each.result() for each in running]

    def _settle(self, task: CleaningTask, result: CleaningResult) -> tuple[PartitionReport, int | None]:
        """Commit one partition; return its report, and its new first dirty offset if the checkpoint must change."""
        if result.swap is not None and not self._own.dry_run:
            done: list[CleanedGroup] = []
            try:
                finished = not self._stop.is_set() and self._commit(task, result.swap, done)
            except TASK_ERRORS as error:
                return partly_committed(task, result, result.swap, done, *describe(error)), None
            if not finished:
                return partly_committed(task, result, result.swap, done, STOPPED, _STOPPED), None
        if result.swap is not None and self._own.hand_off is not None:
            result = replace(
                result, reason_code=HANDED_OFF, reason=f"in {self._own.hand_off}, for the engine to commit"
            )
        return settled(task, result)

    def _commit(self, task: CleaningTask, swap: PreparedSwap, done: list[CleanedGroup]) -> bool:
        """Commit a swap, or leave it to the engine that owns the directory; return False if a stop prevented it.

        Each replaced group is added to `done`, even if the commit of a later group fails.
        """
        if self._own.hand_off is not None:
            spool_swap(swap, self._own.hand_off, self.run_id, self._fs)
            self._handed_over[task.listing.path] = {part.part_name for part in swap.parts()}
            return True
        with self._keeping:
            if self._originals is not None:
                self._originals.keep_swap(swap)
            if swap.parts():
                self._keep_before(swap.partition, task.listing.path.parent)
        lock = self._locks[task.listing.path.parent]
        return commit(
            swap,
            self._fs,
            before_group=lock.check,
            should_stop=self._stop.is_set,
            after_group=done.append,
            removals=self._removals,
        )

    def _keep_before(self, partition: TopicPartition, log_dir: Path) -> None:
        """Hard-link a partition before this run changes it, even if an interrupted run has already changed it."""
        if self.before is not None:
            snapshot_partition(partition, log_dir, self.before.of(log_dir), self._fs)


def _swept_bytes(task: CleaningTask, fs: Fs) -> int:
    """Estimate, from the written parts, how many bytes of a partition are swept; a sweep starts at the log end."""
    if task.weight() < _WORTH_WATCHING_BYTES:
        return 0
    try:
        named = [parse_segment_file(entry.name) for entry in fs.scan(task.listing.path) if task.run_id in entry.name]
    except OSError:
        return 0
    lowest = min((name.base_offset for name in named if name is not None), default=INT64_MAX)
    return sum(segment.log_bytes for segment in task.listing.segments if segment.base_offset >= lowest)


# ----------------------------------------------------------------------------------------------------------- the screen
def _is_rewritten(partition: PartitionReport) -> bool:
    """Return True if the run compacted the partition, or a part of it before a stop or an error."""
    return partition.status == COMPACTED or partition.groups_rewritten > 0


def _after(partition: PartitionReport, number: int) -> int | None:
    """Return `number`, which describes the log after the run; return None if the run changed nothing."""
    return number if _is_rewritten(partition) else None


def _saved(partition: PartitionReport) -> int:
    return partition.bytes_before - partition.bytes_after if _is_rewritten(partition) else 0


def _saved_share(partitions: Sequence[PartitionReport]) -> str:
    rewritten = list(filter(_is_rewritten, partitions))
    before = sum(partition.bytes_before for partition in rewritten)
    return f"{sum(map(_saved, rewritten)) / before:.0%}" if before else "0%" if rewritten else ""


COLUMNS: tuple[TableColumn[PartitionReport], ...] = (
    *name_and_status(),
    change_column(
        "segments", lambda row: row.segments_before, lambda row: _after(row, len(row.segments)), shown=str, rank=2
    ),
    change_column(
        "records",
        lambda row: _after(row, row.messages_read),
        lambda row: row.messages_written,
        shown="{:,}".format,
        rank=1,
    ),
    change_column("bytes", lambda row: row.bytes_before, lambda row: _after(row, row.bytes_after), shown=human_bytes),
    TableColumn("saved", _saved_share, _saved, rank=3),
)


def print_report(report: CompactionRunReport, screen: Screen) -> None:
    """Print the table for people, the reasons and the summary."""
    screen.partitions(report.partitions, COLUMNS, dry_run=report.dry_run)
    screen.failed(report.partitions)
    for partition in report.partitions:
        if partition.status not in (FAILED, QUARANTINED) and partition.corrupt_batches:
            screen.say(f"{partition.partition}: {partition.reason}", style="yellow")
    for limit in _LIMITS:
        left = [partition.partition for partition in report.partitions if partition.reason_code == limit]
        if left:
            screen.say(f"not done because of --{limit}: {named(left)}")
    lossy = [each for each in report.partitions if _is_rewritten(each) and each.records_without_key]
    if lossy:
        lost = counted(sum(each.records_without_key for each in lossy), "record")
        verb = "would be" if report.dry_run else "were" if lost != "1 record" else "was"
        screen.say(f"{named([each.partition for each in lossy])}: {lost} without a key {verb} dropped", style="yellow")
    kept = [partition.partition for partition in report.partitions if _only_keeps_tombstones(partition)]
    if kept:
        screen.say(
            f"{named(kept)}: tombstones and markers without a delete horizon remain, because delete.retention.ms is "
            f"not stated; {how_to_state_delete_retention('TOPIC')}",
            style="yellow",
        )
    skipped = [p for p in report.partitions if p.status == SKIPPED and p.reason_code not in _LIMITS]
    screen.reasons((p for p in skipped if p.reason_code == KEYLESS_RECORDS), style="yellow")
    screen.reasons(p for p in skipped if p.reason_code != KEYLESS_RECORDS)
    screen.say(_summary(report))


def _only_keeps_tombstones(partition: PartitionReport) -> bool:
    """Return True if the cleaning kept tombstones but no corrupt batches; corrupt batches have their own line."""
    return partition.keeps_tombstones and not partition.corrupt_batches


def _summary(report: CompactionRunReport) -> str:
    done = status_counts(report.partitions, dry_run=report.dry_run) or "no partitions"
    rewritten = list(filter(_is_rewritten, report.partitions))
    before = sum(partition.bytes_before for partition in rewritten)
    after = sum(partition.bytes_after for partition in rewritten)
    if after > before:
        verb = "would grow" if report.dry_run else "grew"
    else:
        verb = "would shrink" if report.dry_run else "shrank"
    size = f"; {human_bytes(before)} {verb} to {human_bytes(after)}" if rewritten else ""
    kept = f"; the replaced files are in {report.originals}" if report.catalogue else ""
    if report.before and rewritten and not report.dry_run:
        kept += f"; the files before the run are in {report.before}"
    return f"{done}{size}{kept} in {report.seconds:.1f} s (run {report.run_id})"


@log_command("compact", CompactOptions, COLUMNS)
def command(options: CommonOptions, own: CompactOptions) -> None:
    """Compact the partitions of LOG_DIR... whose cleanup.policy includes compact.

    SIGINT or SIGTERM ends the run after the current group of segments is committed.  The run then prints its report and
    exits with status 1.
    """
    with stop_on_signals() as stop:
        report = compact(options, own, stop)
    options.conclude(report, print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is a different module.
    from sediment.jobs.compact import command as importable

    importable()
