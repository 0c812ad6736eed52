"""`sediment compact LOG_DIR … --output DIR_OR_URI`: write a compacted copy of the log directory.

1. The driver checks the output, lists the sources, and claims the output.
2. Tasks view and plan the partitions.  They clean each partition into the output, or copy it to the output.
3. The driver compares the sources with their listing, then writes the checkpoints and the manifest.

The module `output_task` contains the tasks.  Partitions that are cleaned in splits are cleaned last, one at a time,
because each of them uses all task slots.

Invariants: the run neither changes nor locks a source.  Instead of a lock, the run lists the source again at the end.
It completes the output only if nothing in the source changed.  The output contains every partition; a partition that
was skipped or failed is copied unchanged.  If a partition can neither be cleaned nor copied, the output stays
incomplete.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sediment.engine.copying.stand_in import errors_naming
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.cleaning.cleaning_run import CleaningRun
from sediment.jobs.cleaning.estimates import find_resources
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.cleaning.output_task import OutputPlace, PublishResult, PublishTask, publish_partition
from sediment.jobs.cleaning.report import quarantined, settled, untouched
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import RunStopped, cancel_when, interruptible
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.publishing.output_directory import (
    OUTPUT_INCOMPLETE,
    SOURCE_CHANGED,
    OutputDirectory,
    OutputSource,
)
from sediment.jobs.publishing.partition_output import CopyTask, copy_files, copy_tasks
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, SKIPPED, PartitionReport
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, LIST, SPARK, StageTimer
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import NotStartedError, TaskResult, run_on_executors
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import check_segments_are_files, list_log
from sediment.segment_io.stores import ListedFs

_LOCAL = Fs()


class OutputRun(CleaningRun):
    """Compaction to an output; the output stays incomplete after a stop or if a partition cannot be written."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        super().__init__(options, own, stop, stack)
        assert own.output is not None
        self._give_up = threading.Event()
        self._output = OutputDirectory(own.output, options, self.run_id, stack, scratch=own.scratch)
        self._files: list[ManifestFile] = []
        self._cleaned: dict[TopicPartition, int] = {}
        self._marked: list[Uncleanable] = []

    def perform(self) -> list[PartitionReport]:
        """List, claim, clean, copy and complete; return a report for every selected partition."""
        with interruptible():  # a bucket can be slow to list, and nothing is written yet
            warn_of_unstated_lag(self._output.open())
            prepared = [self._prepare(partition, source) for partition, source in self._output.source_of.items()]
        self.timer.lap(LIST)
        if not prepared:
            return []
        if not self._own.dry_run:
            self._output.claim()
        reports = self._publish(prepared)
        self.timer.restart()
        if not self._own.dry_run:
            reports = self._complete(reports)
        self.timer.lap(COMMIT)
        for report in reports:
            log_partition(self.run_id, "compact", report)
        return reports

    def _prepare(self, partition: TopicPartition, source: OutputSource) -> tuple[PublishTask, PartitionReport | None]:
        """Return the task of a partition; if the partition is only copied, also add its report."""
        files = source.by_folder.get(str(partition), {})
        task = PublishTask(
            partition,
            source.store,
            files,
            self._output.store,
            self.run_id,
            dry_run=self._own.dry_run,
            scratch=self._own.scratch,
        )
        path = Path(str(source.store)) / str(partition)
        listing = list_log(partition, path, ListedFs(files))
        try:
            check_segments_are_files(partition, path, _LOCAL)
            with errors_naming(str(source.store), source.path):
                settings = source.opened.settings_of(partition, _LOCAL)
                config = settings.for_topic(partition.topic)
        except (SedimentError, OSError) as error:
            return task, untouched(listing, FAILED, *describe(error))
        if why := why_not_compacted(partition, settings, config):
            return task, untouched(listing, SKIPPED, *why)
        mark = source.marks.get(partition)
        if mark is not None and mark.holds_for(listing) and not self._own.retry_quarantined:
            self._marked.append(mark)
            return task, quarantined(listing, mark)
        return replace(task, cleaning=self._task(source.opened, listing, config.compaction)), None

    # -------------------------------------------------------------------------------------------------------- output
    def _publish(self, prepared: Sequence[tuple[PublishTask, PartitionReport | None]]) -> list[PartitionReport]:
        tasks = [task for task, _ in prepared]
        copied = {task.partition: report for task, report in prepared if report is not None}
        total_bytes = sum(task.weight() for task in tasks)
        reports = []
        with Progress(self._options.messages(), len(tasks), total_bytes, phase="cleaning") as progress:
            try:
                with progress.starting_spark():
                    sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
            except RunStopped:
                return [self._lost(task, None, None) for task in tasks]
            self.timer.lap(SPARK)
            limit = self._rate_limit(sc, [source.opened for source in self._output.sources])
            resources = find_resources(sc, total_bytes, asked=self._own.strategy)
            tasks = [
                replace(
                    task,
                    rate_limit=limit,
                    cleaning=None if task.cleaning is None else replace(task.cleaning, resources=resources),
                )
                for task in tasks
            ]
            self._stack.enter_context(cancel_when(self._stop, sc, self.run_id))
            self._stack.enter_context(cancel_when(self._give_up, sc, self.run_id))
            for each in self._published(sc, tasks):
                reports.append(self._settle(each, copied.get(each.item.partition)))
                progress.advance(each.item.weight())
        return reports

    def _published(self, sc: Any, tasks: Sequence[PublishTask]) -> Iterator[TaskResult[PublishTask, PublishResult]]:
        """Yield the results of all partitions."""
        to_split: list[OutputPlace] = []
        for results in run_on_executors(
            sc, tasks, publish_partition, PublishTask.weight, group=self.run_id, is_stopped=self._is_over
        ):
            for each in results:
                asked = None if each.result is None else each.result.cleaning
                if asked is not None and asked.to_split is not None:
                    assert each.item.cleaning is not None
                    to_split.append(OutputPlace(each.item, each.item.cleaning, asked))
                else:
                    yield each
        for place in to_split:
            yield self._published_in_splits(sc, place)

    def _published_in_splits(self, sc: Any, place: OutputPlace) -> TaskResult[PublishTask, PublishResult]:
        # Imported late, because this module compiles kernels that the driver needs only for splits.
        from sediment.jobs.cleaning.splits import clean_partition_in_splits

        task = place.publishing
        if self._is_over():
            return TaskResult(task, None, NotStartedError("the run was stopped"))
        timer = StageTimer()
        try:
            result = clean_partition_in_splits(sc, place)
        except Exception as error:
            return TaskResult(task, None, error)
        timer.lap(CLEAN)
        self.timer.add([timer.seconds()])
        files = [*(result.files or ())]
        for results in run_on_executors(
            sc, copy_tasks(task, result.left), copy_files, CopyTask.weight, group=self.run_id, is_stopped=self._is_over
        ):
            for each in results:
                if each.result is None or each.result.files is None:
                    failed = None if each.result is None else PublishResult(None, error=each.result.error)
                    return TaskResult(task, failed, each.error)
                files += each.result.files
        return TaskResult(task, result if result.files is None else replace(result, files=tuple(files)), None)

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._give_up.is_set()

    def _settle(
        self, finished: TaskResult[PublishTask, PublishResult], copied: PartitionReport | None
    ) -> PartitionReport:
        """Return the report of a partition; `copied` is the report if the partition is copied without cleaning."""
        task, result = finished.item, finished.result
        if result is None or result.files is None:
            return self._lost(task, result, finished.error)
        self._files += result.files
        if copied is not None or result.cleaning is None or task.cleaning is None or result.listing is None:
            assert copied is not None
            return self._located(copied, task)
        self.timer.add([result.cleaning.seconds_by_stage])
        if result.cleaning.uncleanable is not None:
            self._marked.append(result.cleaning.uncleanable)
        report, offset = settled(replace(task.cleaning, listing=result.listing), result.cleaning)
        if offset is not None:
            self._cleaned[task.partition] = offset
        return self._located(report, task)

    def _lost(self, task: PublishTask, result: PublishResult | None, error: Exception | None) -> PartitionReport:
        """Report a partition that could not be written to the output, and start no further partition."""
        if not self._stop.is_set() and result is not None and result.error is not None:
            code, reason = result.error
        elif not self._stop.is_set() and self._give_up.is_set():
            code, reason = OUTPUT_INCOMPLETE, "another partition could not be written"
        else:
            code, reason = self._why_lost(error, "written")
        self._give_up.set()
        listing = list_log(task.partition, Path(str(task.source)) / task.folder, ListedFs(task.files))
        return self._located(untouched(listing, FAILED, code, reason), task)

    def _located(self, report: PartitionReport, task: PublishTask) -> PartitionReport:
        return replace(report, log_dir=str(task.source))

    # ---------------------------------------------------------------------------------------------------- completion
    def _complete(self, reports: list[PartitionReport]) -> list[PartitionReport]:
        """Complete the output if no partition is missing and no source has changed."""
        if self._give_up.is_set():
            self._output.abandon()
            return reports
        changed = self._output.complete(self._files, first_dirty=self._cleaned, marks=self._marked)
        if changed is None:
            return reports
        code, reason = SOURCE_CHANGED
        return [
            replace(report, status=FAILED, reason_code=code, reason=reason)
            if not changed or report.partition in changed
            else report
            for report in reports
        ]
