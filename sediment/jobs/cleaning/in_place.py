"""Cleaning in place: tasks write parts beside the segments, and the driver commits them.

1. Without Spark, if every partition is so small or so clean that there is nothing to clean.
2. With a limit: plan all partitions, and choose (`limits`).
3. Clean the partitions in tasks, and those that need splits in jobs of many tasks (`splits`).
4. When a Spark task is done, commit its partitions, several at the same time (`commit_threads`).  Then write the
   quarantine marks, and the checkpoints if a write is due (`cleaner_checkpoints`).

Invariants: only the driver renames files.  Replaced files are removed in the background, and the locks are held until
the last of these files is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.engine.directory.lockstep import Steps, perform
from sediment.engine.directory.originals.backup_links import snapshot_log_dir, snapshot_partition
from sediment.engine.directory.originals.kept_in import kept_in
from sediment.engine.directory.uncleanable import Uncleanable, read_uncleanable, update_uncleanable
from sediment.jobs.cleaning.cleaner_checkpoints import CleanerCheckpoints
from sediment.jobs.cleaning.commit_threads import CommitThreads
from sediment.jobs.cleaning.estimates import Shares, shares
from sediment.jobs.cleaning.limits import Cleaned, within_limits
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions, check_apart
from sediment.jobs.cleaning.report import is_rewritten, partly_committed, settled
from sediment.jobs.cleaning.split_jobs import cleaning_in_splits
from sediment.jobs.cleaning.task import roll_active, start_partition, survey_partition
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import RunStopped
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import COMPACTED, FAILED, PartitionReport
from sediment.jobs.reporting.stage_timer import COMMIT, SPARK, SURVEY
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.figures import of_cleaning
from sediment.jobs.rewriting.in_place import DirectoriesInPlace
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failed_task, failure
from sediment.jobs.rewriting.run import Run, check_outside
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.old_formats import warn_of_old_formats
from sediment.jobs.settings.running_brokers import UNCLEAN
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_pool import TaskResult, run_here, run_pending
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.mounts import network_filesystem
from sediment.segment_io.partition.listing import LogListing

_LOGGER = logging.getLogger(__name__)

_FEW = 1000  # partitions; the driver can open this many logs in the time that Spark needs to start
_STOPPED = "the run was stopped before this partition was done"
_WORTH_WATCHING_BYTES = 256 << 20  # a smaller partition is finished before its progress would be useful


class CleanedInPlace(DirectoriesInPlace[PartitionReport]):
    def __init__(self, run: Run[PartitionReport], own: CompactOptions) -> None:
        log_dirs = run.options.log_dirs
        originals = kept_in(own.keep_originals, log_dirs, shares=True)
        super().__init__(run, originals, allow_network_fs=own.allow_network_fs)
        self.own = own
        self.before = kept_in(own.keep_before, log_dirs, shares=False)
        self._marks: dict[Path, Mapping[TopicPartition, Uncleanable]] = {}
        self.locked: Sequence[Path] = log_dirs
        self._threads = CommitThreads(run.stop, in_lockstep=not any(map(network_filesystem, log_dirs)))
        self.removals = self._threads.removals
        self._checkpoints = CleanerCheckpoints(run.fs, lambda log_dir: self._locks[log_dir].check())

    def kept(self) -> dict[str, Any]:
        return super().kept() | {"before": self.before and str(self.before)}

    # ---------------------------------------------------------------------------------------------------------- opening
    def open(self) -> list[SelectedDirectory]:
        run, log_dirs = self.run, self.run.options.log_dirs
        self.read_directories(locked=self.locked, before_of=None if self.before is None else self.before.of)
        if not run.dry_run:
            if self.before is not None:
                for path in log_dirs:
                    snapshot_log_dir(path, self.before.of(path), run.options.now_ms, run.fs)
            self.place_tokens()
        run.stack.callback(self._checkpoints.write)
        run.stack.callback(self._threads.finish_removals)
        run.stack.callback(self._threads.finish_commits)
        warn_of_unstated_lag(self.directories)
        warn_of_old_formats(self.directories)
        if run.dry_run:
            self.warn_in_dry_run()
        for directory in self.directories:
            if self._is_unclean(directory):
                _LOGGER.warning(
                    "%s: the last stop of the broker was not clean; offsets past the recovery points stay unchanged "
                    "until `sediment recover` has repaired the directory",
                    directory.path,
                )
        self._marks = {path: read_uncleanable(path, run.fs) for path in log_dirs}
        return self.directories

    def check_places(self) -> None:
        log_dirs = self.run.options.log_dirs
        super().check_places()
        check_outside(self.before, log_dirs)
        if self.originals is not None and self.before is not None:
            for path in log_dirs:
                check_apart(self.originals.of(path), self.before.of(path))

    def _is_unclean(self, directory: SelectedDirectory) -> bool:
        return directory.is_unclean and str(directory.path) not in self.running

    def unlisted(
        self, directory: SelectedDirectory, partition: TopicPartition, code: str, reason: str
    ) -> PartitionReport:
        return PartitionReport(str(partition), str(directory.path), FAILED, code, reason)

    def marks(self, directory: SelectedDirectory) -> Mapping[TopicPartition, Uncleanable]:
        return self._marks[directory.path]

    def settle(self, listing: LogListing) -> LogListing | None:
        completed = super().settle(listing)
        if completed is not None and completed is not listing:
            self._keep_before(listing.partition, listing.path.parent)
        return completed

    def rolled(self, task: CleaningTask) -> CleaningTask | None:
        if not self.run.dry_run:
            self._keep_before(task.listing.partition, task.log_dir)
        try:
            return roll_active(task, self.run.fs)
        except TASK_ERRORS as error:
            (report,) = self.commit_all([TaskResult(task, failed_task(task, error), None)])
            self.run.add(report)
            return None

    # --------------------------------------------------------------------------------------------------------- cleaning
    def clean(self, tasks: Sequence[CleaningTask]) -> Iterator[PartitionReport]:
        if not tasks:
            return
        run, own = self.run, self.own
        left_alone = self._nothing_to_clean(tasks)
        if left_alone is not None:
            yield from left_alone
            return
        total_bytes = sum(task.weight() for task in tasks)
        progress = run.stack.enter_context(Progress(run.options.messages(), len(tasks), total_bytes, phase="cleaning"))
        try:
            with progress.starting_spark():
                sc = run.spark()
        except RunStopped:
            yield from self.commit_all([TaskResult(task, None, None) for task in tasks])
            return
        run.timer.lap(SPARK)
        limit = run.rate_limit(self.directories, most_seconds=own.max_seconds)
        shared = shares(sc, total_bytes, asked=own.strategy)
        chosen = [replace(task, rate_limit=limit) for task in tasks]
        if own.is_limited:
            chosen, without_work, beyond = within_limits(run, chosen, shared, own.max_bytes)
            for report in [*self.commit_all(without_work), *beyond]:
                yield report
                progress.advance(report.bytes_before)
            run.timer.lap(SURVEY)
        watched = {task.listing.path: task for task in chosen if task.weight() >= _WORTH_WATCHING_BYTES}
        progress.watch(lambda: sum(_swept_bytes(task, run.fs) for task in list(watched.values())))
        for results in cleaned(run, sc, chosen, shared, in_order=own.is_limited):
            for each in results:
                watched.pop(each.item.listing.path, None)
            run.timer.restart()
            reports = self.commit_all(results)
            run.timer.lap(COMMIT)
            run.timer.add(each.result.seconds_by_stage for each in results if each.result)
            for report in reports:
                yield report
                progress.advance(report.bytes_before)

    def _nothing_to_clean(self, tasks: Sequence[CleaningTask]) -> list[PartitionReport] | None:
        """Return a report for each task if no partition can be cleaned now; return None if one may be cleanable."""
        # Opening a log loads compiled code.  The driver therefore opens logs only if their sizes suggest that there is
        # nothing to clean.
        if self.run.options.asks_for_spark or len(tasks) > _FEW or any(task.expected_bytes() for task in tasks):
            return None
        results: list[Cleaned] = []
        for each in run_here(tasks, survey_partition):
            if not isinstance(each.result, CleaningResult):
                return None
            results.append(TaskResult(each.item, each.result, None))
        self.run.timer.lap(SURVEY)
        return self.commit_all(results)

    # ----------------------------------------------------------------------------------------------------------- commit
    def commit_all(self, results: Sequence[Cleaned]) -> list[PartitionReport]:
        pairs = [(each.item, each.result or failure(*self.run.why_lost(each.error, "clean"))) for each in results]
        is_one_swap = sum(result.swap is not None for _, result in pairs) < 2
        steps = list(map(self._committed, pairs))
        committed = list(map(perform, steps)) if is_one_swap else self._threads.perform_all(steps)
        reports = [self._explained(report) for report, _ in committed]
        if not self.run.dry_run:
            self._record(pairs, reports, [offset for _, offset in committed])
        return reports

    def _committed(self, pair: tuple[CleaningTask, CleaningResult]) -> Steps[tuple[PartitionReport, int | None]]:
        task, result = pair
        if result.swap is not None and not self.run.dry_run:
            done: list[CleanedGroup] = []
            try:
                is_whole = not self.run.stop.is_set() and (yield from self.replace_segments(result.swap, done))
            except TASK_ERRORS as error:
                return partly_committed(task, result, result.swap, done, *describe(error)), None
            if not is_whole:
                return partly_committed(task, result, result.swap, done, STOPPED, _STOPPED), None
        return settled(task, result)

    def keep(self, swap: PreparedSwap) -> None:
        with self._threads.keeping:
            super().keep(swap)
            if swap.parts():
                self._keep_before(swap.partition, Path(swap.directory).parent)

    def _explained(self, report: PartitionReport) -> PartitionReport:
        """In a dry run, name the broker that runs on the directory as the reason why it is unclean."""
        if report.reason_code != UNCLEAN:
            return report
        return replace(report, reason=self.running.get(report.log_dir, report.reason))

    def _record(
        self,
        pairs: Sequence[tuple[CleaningTask, CleaningResult]],
        reports: Sequence[PartitionReport],
        offsets: Sequence[int | None],
    ) -> None:
        marked: dict[Path, list[Uncleanable]] = {}
        unmarked: dict[Path, list[TopicPartition]] = {}
        for (task, result), report, offset in zip(pairs, reports, offsets, strict=True):
            partition, log_dir = task.listing.partition, task.log_dir
            if offset is not None:
                self._checkpoints.add(log_dir, partition, offset)
            if result.uncleanable is not None:
                marked.setdefault(log_dir, []).append(result.uncleanable)
            elif report.status == COMPACTED and not report.corrupt_batches and partition in self._marks[log_dir]:
                unmarked.setdefault(log_dir, []).append(partition)
        for log_dir in {*marked, *unmarked}:
            try:
                update_uncleanable(log_dir, self.run.fs, add=marked.get(log_dir, ()), remove=unmarked.get(log_dir, ()))
            except OSError as error:
                self.run.options.messages().print(
                    f"sediment: could not record the quarantined partitions: {describe(error)[1]}",
                    style="red",
                    markup=False,
                )
        self._checkpoints.write_if_due()

    def _keep_before(self, partition: TopicPartition, log_dir: Path) -> None:
        """Hard-link a partition before this run changes it, even if an interrupted run has already changed it."""
        if self.before is not None:
            snapshot_partition(partition, log_dir, self.before.of(log_dir), self.run.fs)

    # ---------------------------------------------------------------------------------------------------------- closing
    def complete(self, rows: Sequence[PartitionReport]) -> list[PartitionReport]:
        """Write the checkpoints, and complete the catalogue of originals, which needs the outcome of the removals."""
        self._checkpoints.write()
        unwritten = {
            (str(log_dir), str(partition)): why for (log_dir, partition), why in self._checkpoints.unwritten().items()
        }
        completed = [_with_checkpoint(row, unwritten) for row in rows] if unwritten else list(rows)
        if self._kept is not None:
            self._threads.finish_removals()
            self.catalogue = self._kept.end(map(self._with_removal, completed))
        return completed

    def concluded(self, rows: Sequence[PartitionReport]) -> list[PartitionReport]:
        concluded = list(map(self._with_removal, rows))
        for before, after in zip(rows, concluded, strict=True):
            if after is not before:
                self.run.log(after)
        return concluded

    def _with_removal(self, report: PartitionReport) -> PartitionReport:
        error = self._threads.not_removed.get(Path(report.log_dir, report.partition))
        if error is None or not is_rewritten(report):
            return report
        code, reason = describe(error)
        if report.status == FAILED:
            code, reason = report.reason_code or code, f"{report.reason}; {reason}"
        return replace(report, status=FAILED, reason_code=code, reason=reason)


def _with_checkpoint(report: PartitionReport, unwritten: Mapping[tuple[str, str], str]) -> PartitionReport:
    why = unwritten.get((report.log_dir, report.partition))
    if why is None:
        return report
    reason = f"the segments are clean, but the checkpoint was not written: {why}"
    return replace(report, status=FAILED, reason_code="checkpoint-not-written", reason=reason)


# ----------------------------------------------------------------------------------------------------------- the tasks
def cleaned(
    run: Run[PartitionReport], sc: Any, tasks: Sequence[CleaningTask], shares: Shares, *, in_order: bool
) -> Iterator[list[Cleaned]]:
    return run_pending(
        sc,
        tasks,
        start_partition,
        CleaningTask.weight if in_order else CleaningTask.expected_bytes,
        group=run.run_id,
        in_order=in_order,
        is_stopped=run.stop.is_set,
        prepare=shares.given,
        jobs=cleaning_in_splits(sc),
        title=titled("clean", CleaningTask.partition),
        figures=of_cleaning,
    )


def _swept_bytes(task: CleaningTask, fs: Fs) -> int:
    """Estimate, from the written parts, how many bytes of a partition are swept; a sweep starts at the log end."""
    try:
        named = [parse_segment_file(entry.name) for entry in fs.scan(task.listing.path) if task.run_id in entry.name]
    except OSError:
        return 0
    lowest = min((name.base_offset for name in named if name is not None), default=INT64_MAX)
    return sum(segment.log_bytes for segment in task.listing.segments if segment.base_offset >= lowest)
