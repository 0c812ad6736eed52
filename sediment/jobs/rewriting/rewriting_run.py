"""Run of a rewriting command on the driver.

1. Open the directories, list the selected partitions, and complete interrupted replacements.
2. Plan every partition, in tasks.
3. Let the command approve the plans, or end the run before any change.
4. Begin, and rewrite the segments, in tasks.  A dry run rewrites them in memory, so its figures are exact.
5. Commit each partition after all of its segments are written.
6. Make the reports, and complete the destination.

The `destination` performs the steps that depend on where the new segments are written.

Invariants: a partition is committed only if all of its segments were rewritten.  A partition that fails stays
unchanged, and the others continue.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.jobs.cleaning.cleaning_run import rate_limit, why_lost
from sediment.jobs.cleaning.result import TASK_ERRORS, CleaningResult, failure
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import RunStopped, cancel_when
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, SKIPPED
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, LIST, PLAN, SPARK, StageTimer
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.destination import Destination
from sediment.jobs.rewriting.in_place import DirectoriesInPlace
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.rewriting.partition_task import (
    PartitionRewrite,
    RewriteTask,
    SegmentTask,
    WrittenSegment,
    plan_rewrite_of,
    rewrite_segment_task,
)
from sediment.jobs.rewriting.planned_partition import PlannedPartition, SelectedPartition
from sediment.jobs.rewriting.report import UNCHANGED, RewriteReport, listed, segments_after
from sediment.jobs.rewriting.to_output import NewLogDirectory
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.session import encrypting_files, encrypts_files, spark_context
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files

Report = TypeVar("Report", bound=RewriteReport)
Own = TypeVar("Own", bound=RewriteOptions)

INTERRUPTED = "interrupted"
INTERNAL_TOPIC = "internal-topic"
NO_HIGH_WATERMARK = "no-high-watermark"


class RewritingRun(ABC, Generic[Own, Report]):
    """Run of a rewriting command; the exit stack releases locks and tokens, and stops Spark."""

    command: ClassVar[str]
    has_secrets: ClassVar[bool] = False
    """True if what the run sends to its tasks must not lie in the clear in Spark's local directories."""

    output_keeps_failed: ClassVar[bool]
    """True if the output gets an identical copy of a failed partition; False if a failure leaves it incomplete."""

    def __init__(self, options: CommonOptions, own: Own, stop: threading.Event, stack: ExitStack) -> None:
        self.run_id = new_run_id()
        self.timer = StageTimer()
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._fs = Fs()
        self._sc: Any = None
        self._shows_secrets = False
        """True if Spark was started without encryption of its files, and the run has secrets."""
        self._directories: list[SelectedDirectory] = []
        self._destination: Destination = (
            DirectoriesInPlace(self.command, self.run_id, options, own, stop, stack)
            if own.output is None
            else NewLogDirectory(
                own.output, self.run_id, options, own, stop, stack, keeps_failed=self.output_keeps_failed
            )
        )

    @property
    def catalogue(self) -> Path | None:
        """The catalogue of the original files that the run kept; None if the run kept none."""
        return self._destination.catalogue

    # ------------------------------------------------------------------------------------ decisions of a command
    @abstractmethod
    def _why_not(self, selected: SelectedPartition) -> tuple[str, str] | None:
        """Return the reason code and text if the command skips the partition, else None.

        Raises:
            SedimentError: the partition fails.
        """

    @abstractmethod
    def _rewrites(
        self, sc: Any, partitions: Sequence[SelectedPartition]
    ) -> Iterator[tuple[SelectedPartition, PartitionRewrite | CleaningResult]]:
        """Yield the rewrite of each partition, or its failure."""

    @abstractmethod
    def _approve(self, sc: Any, planned: Sequence[PlannedPartition]) -> Sequence[PlannedPartition]:
        """Return the plans to carry out; an error ends the run before anything changes."""

    @abstractmethod
    def _report(self, report: RewriteReport, planned: PlannedPartition | None) -> Report:
        """Return the command's report of a partition; `planned` is None if the run did not plan the partition.

        The status of `report` is "" if the partition was rewritten, UNCHANGED if nothing had to change, or else the
        status of an error.
        """

    def _finish(self, reports: list[Report]) -> list[Report]:
        """Perform the last steps of the command while the locks are held, and return the final reports."""
        return reports

    # ------------------------------------------------------------------------------------------------------ the run
    def perform(self) -> list[Report]:
        """Return a report for every selected partition."""
        self._directories = self._destination.open()
        reports: list[Report] = []
        selected: list[SelectedPartition] = []
        for directory in self._directories:
            for each in self._select(directory):
                if isinstance(each, SelectedPartition):
                    selected.append(each)
                else:
                    reports.append(self._logged(each, None))
        self.timer.lap(LIST)
        if selected:
            reports.extend(self._plan_and_rewrite(selected))
        return self._finish(reports if self._own.dry_run else self._completed(reports))

    def _completed(self, reports: Sequence[Report]) -> list[Report]:
        """Complete the destination, and return the reports that result."""
        failed = self._destination.complete(reports, self._spark)
        completed = list(reports)
        for index, (code, reason) in failed.items():
            report = completed[index]
            completed[index] = replace(
                report,
                status=FAILED,
                reason_code=code,
                reason=reason,
                bytes_after=report.bytes_before,
                segments_rewritten=0,
            )
            log_partition(self.run_id, self.command, completed[index])
        return completed

    def _spark(self) -> Any:
        """Return the SparkContext of the run, whose jobs end with the run.

        Raises:
            RunStopped: a signal arrived before Spark had started.
        """
        if self._sc is None:
            name = f"sediment {self.command}"
            settings = encrypting_files if self.has_secrets else None
            self._sc = self._stack.enter_context(spark_context(self._options.master, name, settings))
            self._stack.enter_context(cancel_when(self._stop, self._sc, self.run_id))
            self._shows_secrets = self.has_secrets and not encrypts_files(self._sc)
        return self._sc

    # ----------------------------------------------------------------------------------------------------- selection
    def _select(self, directory: SelectedDirectory) -> Iterator[SelectedPartition | RewriteReport]:
        for partition in directory.partitions:
            try:
                yield self._select_partition(directory, partition)
            except (SedimentError, OSError) as error:
                yield RewriteReport(str(partition), str(directory.path), FAILED, *describe(error))

    def _select_partition(
        self, directory: SelectedDirectory, partition: TopicPartition
    ) -> SelectedPartition | RewriteReport:
        listing = self._destination.listing(directory, partition)
        if partition.topic in INTERNAL_TOPICS and not self._options.selection.names_topic(partition.topic):
            reason = f"internal topics are skipped by default; to change this one, give --partition {partition}"
            return listed(listing, SKIPPED, INTERNAL_TOPIC, reason)
        checkpoints = directory.checkpoints.of(partition)
        if checkpoints.high_watermark is None and checkpoints.high_watermark_file:
            reason = "the replication checkpoint does not list the partition"
            return listed(listing, SKIPPED, NO_HIGH_WATERMARK, reason)
        check_segments_are_files(partition, listing.path, self._fs)
        settled = self._destination.settle(listing)
        if settled is None:
            return self._interrupted(listing)
        listing = settled
        settings = directory.settings_of(partition, self._fs)
        selected = SelectedPartition(listing, directory, settings, settings.for_topic(partition.topic))
        if why := self._why_not(selected):
            return listed(listing, SKIPPED, *why)
        return selected

    def _interrupted(self, listing: LogListing) -> RewriteReport:
        what = "an earlier run or broker was interrupted here"
        if self._own.output is not None:
            reason = f"{what}; run `sediment recover` first, on the directory or on a copy"
            return listed(listing, FAILED, INTERRUPTED, reason)
        return listed(listing, SKIPPED, INTERRUPTED, f"{what}; run without --dry-run to finish its work first")

    # ------------------------------------------------------------------------------------------------ plan and rewrite
    def _plan_and_rewrite(self, selected: Sequence[SelectedPartition]) -> Iterator[Report]:
        total_bytes = sum(each.listing.log_bytes() for each in selected)
        try:
            sc = self._spark()
        except RunStopped:
            stopped = failure(*why_lost(self._stop, None, "planned"))
            yield from (self._failed(each.listing, stopped, None) for each in selected)
            return
        self.timer.lap(SPARK)
        with Progress(self._options.messages(), len(selected), total_bytes, phase="planning") as progress:
            planned: list[PlannedPartition] = []
            for each in self._planned(sc, selected):
                if isinstance(each, PlannedPartition):
                    planned.append(each)
                else:
                    yield each
                    progress.advance(0)
        self.timer.lap(PLAN)
        approved = self._approve(sc, planned)
        self.timer.restart()
        if not self._own.dry_run:
            barred = self._destination.begin(approved)
            yield from (self._failed(listing, why, None) for listing, why in barred)
            barred_paths = {listing.path for listing, _ in barred}
            approved = [each for each in approved if each.listing.path not in barred_paths]
        with self._progress(approved, "rewriting") as progress:
            for each in self._rewritten(sc, approved, in_memory=self._own.dry_run):
                yield self._settled(each)
                self.timer.lap(COMMIT)
                progress.advance(each.plan.log_bytes())
        if not self._own.dry_run:
            self._destination.end(approved)

    def _progress(self, planned: Sequence[PlannedPartition], phase: str) -> Progress:
        total_bytes = sum(each.plan.log_bytes() for each in planned)
        return Progress(self._options.messages(), len(planned), total_bytes, phase=phase)

    def _rehearsed(self, sc: Any, planned: Sequence[PlannedPartition]) -> list[PlannedPartition]:
        """Rewrite all segments in memory, and return copies of the plans with the results."""
        copies = [PlannedPartition(each.selected, each.plan) for each in planned]
        with self._progress(copies, "counting") as progress:
            for each in self._rewritten(sc, copies, in_memory=True):
                progress.advance(each.plan.log_bytes())
        return copies

    def _planned(self, sc: Any, selected: Sequence[SelectedPartition]) -> Iterator[PlannedPartition | Report]:
        limit = rate_limit(sc, self.run_id, self._directories)
        by_path = {each.listing.path: each for each in selected}
        tasks: list[RewriteTask] = []
        for each, found in self._rewrites(sc, selected):
            if isinstance(found, CleaningResult):
                yield self._failed(each.listing, found, None)
                continue
            tasks.append(
                RewriteTask(
                    each.listing,
                    each.directory.checkpoints.of(each.partition),
                    each.config.compaction,
                    found,
                    self._destination.place_of(each.listing),
                    self._options.now_ms,
                    self.run_id,
                    self._own.dry_run,
                    limit,
                )
            )
        for results in run_on_executors(
            sc,
            tasks,
            plan_rewrite_of,
            RewriteTask.weight,
            group=self.run_id,
            least_rounds=1,
            is_stopped=self._stop.is_set,
        ):
            for done in results:
                plan = done.result or failure(*why_lost(self._stop, done.error, "planned"))
                if isinstance(plan, CleaningResult):
                    yield self._failed(done.item.listing, plan, None)
                else:
                    yield PlannedPartition(by_path[done.item.listing.path], plan)

    def _segment_function(self) -> Callable[[SegmentTask, str], WrittenSegment | CleaningResult]:
        """Return the function of the tasks that rewrite segments."""
        return rewrite_segment_task

    def _rewritten(
        self, sc: Any, planned: Sequence[PlannedPartition], *, in_memory: bool
    ) -> Iterator[PlannedPartition]:
        """Yield each partition as soon as all of its segments have a result; with `in_memory`, write no file."""
        limit = rate_limit(sc, self.run_id, self._directories)
        by_path = {each.listing.path: each for each in planned}
        yield from (each for each in planned if not each.plan.segments)
        tasks = [
            SegmentTask(
                replace(each.listing, segments=(work.segment,)),
                work,
                self._destination.place_of(each.listing),
                self._options.now_ms,
                self.run_id,
                in_memory,
                limit,
            )
            for each in planned
            for work in each.plan.segments
        ]
        for results in run_on_executors(
            sc, tasks, self._segment_function(), SegmentTask.weight, group=self.run_id, is_stopped=self._stop.is_set
        ):
            self.timer.lap(CLEAN)
            for done in results:
                each = by_path[done.item.listing.path]
                result = done.result or failure(*why_lost(self._stop, done.error, "rewritten"))
                if isinstance(result, CleaningResult):
                    each.failure = each.failure or result
                else:
                    each.results.append(result.result)
                    each.files += result.files
                each.finished += 1
                if each.finished == len(each.plan.segments):
                    yield each

    # ---------------------------------------------------------------------------------------------------------- commit
    def _settled(self, planned: PlannedPartition) -> Report:
        """Commit a partition and return its report."""
        if planned.failure is not None:
            return self._failed(planned.listing, planned.failure, planned)
        groups = tuple(sorted((each.group for each in planned.results), key=lambda group: group.sources[0].base_offset))
        changed = [group for group in groups if group.parts]
        if changed and not self._own.dry_run:
            try:
                is_done = not self._stop.is_set() and self._destination.commit(
                    planned,
                    PreparedSwap(
                        planned.selected.partition,
                        str(planned.listing.path),
                        groups,
                        planned.plan.next_dirty_offset or 0,
                    ),
                )
            except TASK_ERRORS as error:
                return self._failed(planned.listing, failure(*describe(error)), planned)
            if not is_done:
                stopped = failure(STOPPED, "the run was stopped before this partition was rewritten completely")
                return self._failed(planned.listing, stopped, planned)
        after = segments_after(planned.listing, groups)
        report = replace(
            listed(planned.listing, "" if changed else UNCHANGED),
            bytes_after=sum(size for _, size in after),
            segments=tuple(base for base, _ in after),
            segments_rewritten=len(changed),
        )
        return self._logged(report, planned)

    # --------------------------------------------------------------------------------------------------------- reports
    def _failed(self, listing: LogListing, why: CleaningResult, planned: PlannedPartition | None) -> Report:
        """Return the report of a partition that was not rewritten because of an error; mark corrupt data."""
        status = FAILED
        if why.uncleanable is not None:
            status = QUARANTINED
            if not self._own.dry_run:
                try:
                    self._destination.mark(listing, why.uncleanable)
                except OSError as error:
                    self._options.messages().print(
                        f"sediment: could not record the quarantined partition: {describe(error)[1]}",
                        style="red",
                        markup=False,
                    )
        replaced = 0 if planned is None else len(planned.replaced)
        with_segments = replace(listed(listing, status, why.reason_code, why.reason), segments_rewritten=replaced)
        return self._logged(self._as_it_is(with_segments, listing), planned)

    def _as_it_is(self, report: RewriteReport, listing: LogListing) -> RewriteReport:
        """Return `report` with the segments now in the directory."""
        try:
            now = self._destination.listing_now(listing)
        except (SedimentError, OSError):
            return report
        left = tuple(segment.base_offset for segment in now.segments)
        return replace(report, bytes_after=now.log_bytes(), segments=left)

    def _logged(self, report: RewriteReport, planned: PlannedPartition | None) -> Report:
        finished = self._report(replace(report, log_dir=self._destination.shown(report.log_dir)), planned)
        log_partition(self.run_id, self.command, finished)
        return finished
