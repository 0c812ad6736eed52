"""Commands whose tasks rewrite one segment each, and keep every offset: `erase` and `reencode`.

1. Select: list the partition, and complete an interrupted replacement.
2. Plan every partition, in tasks.  Then let the command approve the plans, or end the run before any change.
3. Rewrite the segments, in tasks.  A dry run rewrites them in memory, so its figures are exact.
4. Commit each partition after all of its segments are written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import RunStopped
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, SKIPPED
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, PLAN, SPARK
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.destination import SegmentDestination
from sediment.jobs.rewriting.figures import of_segment
from sediment.jobs.rewriting.flow import Command
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
from sediment.jobs.rewriting.report import UNCHANGED, RewriteReport, Rewritten, listed, segments_after
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failure
from sediment.jobs.rewriting.run import Run
from sediment.jobs.rewriting.to_output import NewLogDirectory
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.job_names import titled
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files
from sediment.segment_io.uris import without_secret

Own = TypeVar("Own", bound=RewriteOptions)

INTERRUPTED = "interrupted"
INTERNAL_TOPIC = "internal-topic"
NO_HIGH_WATERMARK = "no-high-watermark"


def destination_of(
    run: Run[Rewritten], own: RewriteOptions, *, output_keeps_failed: bool
) -> SegmentDestination[Rewritten]:
    """Return the destination that the options name.

    With `output_keeps_failed`, an output gets an identical copy of a failed partition; without it, a failure leaves the
    output incomplete.
    """
    if own.output is not None:
        return NewLogDirectory(run, own.output, keeps_failed=output_keeps_failed)
    return DirectoriesInPlace(run, own.kept_in(run.options), allow_network_fs=own.allow_network_fs)


def report_fields(
    run: Run[Rewritten], own: RewriteOptions, destination: SegmentDestination[Rewritten], rows: Sequence[Rewritten]
) -> dict[str, Any]:
    return {
        **run.header(rows),
        "dry_run": run.dry_run,
        "output": None if own.output is None else without_secret(own.output),
        **destination.kept(),
        "seconds_by_stage": run.timer.seconds(),
    }


class SegmentRewriting(Command[SelectedPartition, PlannedPartition, Rewritten], Generic[Own, Rewritten]):
    def __init__(self, run: Run[Rewritten], own: Own, destination: SegmentDestination[Rewritten]) -> None:
        self._run = run
        self._own = own
        self._destination = destination

    # ------------------------------------------------------------------------------------ decisions of a command
    @abstractmethod
    def _rewrites(
        self, sc: Any, partitions: Sequence[SelectedPartition]
    ) -> Iterator[tuple[SelectedPartition, PartitionRewrite | CleaningResult]]:
        """Yield the rewrite of each partition, or its failure."""

    def _approve(self, _sc: Any, planned: Sequence[PlannedPartition]) -> Sequence[PlannedPartition]:
        return planned

    @abstractmethod
    def _report(self, report: RewriteReport, planned: PlannedPartition | None) -> Rewritten:
        """Return the command's report of a partition; `planned` is None if the run did not plan the partition.

        The status of `report` is "" if the partition was rewritten, UNCHANGED if nothing had to change, or else the
        status of an error.
        """

    # ----------------------------------------------------------------------------------------------------- selection
    def select(self, directory: SelectedDirectory, listing: LogListing) -> SelectedPartition | None:
        run, destination, partition = self._run, self._destination, listing.partition
        if partition.topic in INTERNAL_TOPICS and not run.options.selection.names_topic(partition.topic):
            reason = f"internal topics are skipped by default; to change this one, give --partition {partition}"
            self._leave(listed(listing, SKIPPED, INTERNAL_TOPIC, reason))
            return None
        checkpoints = directory.checkpoints.of(partition)
        if checkpoints.high_watermark is None and checkpoints.high_watermark_file:
            reason = "the replication checkpoint does not list the partition"
            self._leave(listed(listing, SKIPPED, NO_HIGH_WATERMARK, reason))
            return None
        check_segments_are_files(partition, listing.path, run.fs)
        settled = destination.settle(listing)
        if settled is None:
            self._leave(self._interrupted(listing))
            return None
        settings = directory.settings_of(partition, run.fs)
        return SelectedPartition(settled, directory, settings, settings.for_topic(partition.topic))

    def _leave(self, report: RewriteReport) -> None:
        self._run.add(self._finished(report, None))

    def _interrupted(self, listing: LogListing) -> RewriteReport:
        what = "an earlier run or broker was interrupted here"
        if self._own.output is not None:
            reason = f"{what}; run `sediment recover` first, on the directory or on a copy"
            return listed(listing, FAILED, INTERRUPTED, reason)
        return listed(listing, SKIPPED, INTERRUPTED, f"{what}; run without --dry-run to finish its work first")

    # ------------------------------------------------------------------------------------------------ plan and rewrite
    def plan(self, selected: Sequence[SelectedPartition]) -> Sequence[PlannedPartition] | None:
        run = self._run
        try:
            sc = run.spark()
        except RunStopped:
            stopped = failure(*run.why_lost(None, "planned"))
            for each in selected:
                run.add(self._failed(each.listing, stopped, None))
            return None
        run.timer.lap(SPARK)
        total_bytes = sum(each.listing.log_bytes() for each in selected)
        with Progress(run.options.messages(), len(selected), total_bytes, phase="planning") as progress:
            planned: list[PlannedPartition] = []
            for found in self._planned(sc, selected):
                if isinstance(found, PlannedPartition):
                    planned.append(found)
                else:
                    run.add(found)
                    progress.advance(0)
        run.timer.lap(PLAN)
        approved = self._approve(sc, planned)
        run.timer.restart()
        return approved

    def rewrite(self, planned: Sequence[PlannedPartition]) -> Iterator[Rewritten]:
        run = self._run
        with self._progress(planned, "rewriting") as progress:
            for each in self._rewritten(run.spark(), planned, in_memory=run.dry_run):
                yield self._settled(each)
                run.timer.lap(COMMIT)
                progress.advance(each.plan.log_bytes())

    def _progress(self, planned: Sequence[PlannedPartition], phase: str) -> Progress:
        total_bytes = sum(each.plan.log_bytes() for each in planned)
        return Progress(self._run.options.messages(), len(planned), total_bytes, phase=phase)

    def _rehearsed(self, sc: Any, planned: Sequence[PlannedPartition]) -> list[PlannedPartition]:
        copies = [PlannedPartition(each.selected, each.plan) for each in planned]
        with self._progress(copies, "counting") as progress:
            for each in self._rewritten(sc, copies, in_memory=True):
                progress.advance(each.plan.log_bytes())
        return copies

    def _planned(self, sc: Any, selected: Sequence[SelectedPartition]) -> Iterator[PlannedPartition | Rewritten]:
        in_task = self._task_fields(in_memory=self._run.dry_run)
        by_path = {each.listing.path: each for each in selected}
        tasks: list[RewriteTask] = []
        for each, found in self._rewrites(sc, selected):
            if isinstance(found, CleaningResult):
                yield self._failed(each.listing, found, None)
                continue
            tasks.append(
                RewriteTask(
                    each.listing,
                    self._destination.place_of(each.listing),
                    **in_task,
                    rewrite=found,
                    checkpoints=each.directory.checkpoints.of(each.partition),
                    config=each.config.compaction,
                )
            )
        for results in self._run.in_tasks(
            tasks,
            plan_rewrite_of,
            RewriteTask.weight,
            least_rounds=1,
            prepare=RewriteTask.with_rate_share,
            title=titled("plan", RewriteTask.partition),
        ):
            for done in results:
                plan = done.result or failure(*self._run.why_lost(done.error, "planned"))
                if isinstance(plan, CleaningResult):
                    yield self._failed(done.item.listing, plan, None)
                else:
                    yield PlannedPartition(by_path[done.item.listing.path], plan)

    def _task_fields(self, *, in_memory: bool) -> dict[str, Any]:
        run = self._run
        return {
            "now_ms": run.options.now_ms,
            "run_id": run.run_id,
            "dry_run": in_memory,
            "rate_limit": run.rate_limit(self._destination.directories),
        }

    def _segment_function(self) -> Callable[[SegmentTask, str], WrittenSegment | CleaningResult]:
        return rewrite_segment_task

    def _rewritten(
        self, sc: Any, planned: Sequence[PlannedPartition], *, in_memory: bool
    ) -> Iterator[PlannedPartition]:
        """Yield each partition as soon as all of its segments have a result; with `in_memory`, write no file."""
        in_task = self._task_fields(in_memory=in_memory)
        by_path = {each.listing.path: each for each in planned}
        yield from (each for each in planned if not each.plan.segments)
        tasks = [
            SegmentTask(
                replace(each.listing, segments=(work.segment,)),
                self._destination.place_of(each.listing),
                **in_task,
                rewrite=work,
            )
            for each in planned
            for work in each.plan.segments
        ]
        for results in self._run.in_tasks(
            tasks,
            self._segment_function(),
            SegmentTask.weight,
            prepare=SegmentTask.with_rate_share,
            title=titled("rewrite segments of", SegmentTask.partition),
            figures=of_segment,
        ):
            self._run.timer.lap(CLEAN)
            for done in results:
                each = by_path[done.item.listing.path]
                result = done.result or failure(*self._run.why_lost(done.error, "rewritten"))
                if isinstance(result, CleaningResult):
                    each.failure = each.failure or result
                else:
                    each.results.append(result.result)
                    each.files += result.files
                each.finished += 1
                if each.finished == len(each.plan.segments):
                    yield each

    # ---------------------------------------------------------------------------------------------------------- commit
    def _settled(self, planned: PlannedPartition) -> Rewritten:
        if planned.failure is not None:
            return self._failed(planned.listing, planned.failure, planned)
        groups = tuple(sorted((each.group for each in planned.results), key=lambda group: group.sources[0].base_offset))
        changed = [group for group in groups if group.parts]
        if changed and not self._run.dry_run:
            try:
                is_done = not self._run.stop.is_set() and self._destination.commit(
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
        return self._finished(report, planned)

    # --------------------------------------------------------------------------------------------------------- reports
    def _failed(self, listing: LogListing, why: CleaningResult, planned: PlannedPartition | None) -> Rewritten:
        status = FAILED
        if why.uncleanable is not None:
            status = QUARANTINED
            if not self._run.dry_run:
                try:
                    self._destination.mark(listing, why.uncleanable)
                except OSError as error:
                    self._run.options.messages().print(
                        f"sediment: could not record the quarantined partition: {describe(error)[1]}",
                        style="red",
                        markup=False,
                    )
        replaced = 0 if planned is None else len(planned.replaced)
        with_segments = replace(listed(listing, status, why.reason_code, why.reason), segments_rewritten=replaced)
        return self._finished(self._as_it_is(with_segments, listing), planned)

    def _as_it_is(self, report: RewriteReport, listing: LogListing) -> RewriteReport:
        try:
            now = self._destination.listing_now(listing)
        except (SedimentError, OSError):
            return report
        left = tuple(segment.base_offset for segment in now.segments)
        return replace(report, bytes_after=now.log_bytes(), segments=left)

    def unlisted(self, directory: SelectedDirectory, partition: TopicPartition, code: str, reason: str) -> Rewritten:
        return self._finished(RewriteReport(str(partition), str(directory.path), FAILED, code, reason), None)

    def unchanged(self, listing: LogListing, why: CleaningResult) -> Rewritten:
        return self._failed(listing, why, None)

    def _finished(self, report: RewriteReport, planned: PlannedPartition | None) -> Rewritten:
        return self._report(replace(report, log_dir=self._destination.shown(report.log_dir)), planned)
