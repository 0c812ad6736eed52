"""`sediment compact LOG_DIR … --output DIR_OR_URI`: write a compacted copy of the log directory.

1. The driver checks the output, lists the sources, and claims the output.
2. Tasks view and plan the partitions.  They clean each partition into the output, or copy it to the output.
3. The driver compares the sources with their listing, then writes the checkpoints and the manifest.

Invariants: the run neither changes nor locks a source.  The output contains every partition; a partition that was
skipped or failed is copied unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sediment.engine.copying.stand_in import errors_naming
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.cleaning.estimates import Shares, shares
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.cleaning.output_task import PublishResult, PublishTask, of_publishing, publish_partition
from sediment.jobs.cleaning.report import settled, untouched
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import RunStopped, cancel_when, interruptible
from sediment.jobs.publishing.output_directory import (
    OUTPUT_INCOMPLETE,
    SOURCE_CHANGED,
    OutputDirectory,
    OutputSource,
)
from sediment.jobs.publishing.partition_output import CopyTask, copy_files, copy_tasks, of_copy, with_rate_share
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, PartitionReport
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, SPARK, StageTimer
from sediment.jobs.rewriting.destination import Destination
from sediment.jobs.rewriting.partition_task import InOutput
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Run, Work
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.old_formats import warn_of_old_formats
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.task_pool import Jobs, TaskResult, run_on_executors
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files, list_log
from sediment.segment_io.stores import ListedFs

_LOCAL = Fs()


class CleanedCopy(Destination[PartitionReport]):
    """The output of a run of `compact`; it stays incomplete after a stop or if a partition cannot be written."""

    copies = True

    def __init__(self, run: Run[PartitionReport], own: CompactOptions, output: str) -> None:
        super().__init__(run)
        self._own = own
        self._give_up = threading.Event()
        self._output = OutputDirectory(output, run.options, run.run_id, run.stack, scratch=own.scratch)
        self._files: list[ManifestFile] = []
        self._cleaned: dict[TopicPartition, int] = {}
        self._marked: list[Uncleanable] = []

    # ------------------------------------------------------------------------------------------------------- sources
    def opening(self) -> AbstractContextManager[object]:
        """Let a signal end the command, because a bucket can be slow to list, and nothing is written yet."""
        return interruptible()

    def open(self) -> list[SelectedDirectory]:
        self.directories = self._output.open()
        warn_of_unstated_lag(self.directories)
        warn_of_old_formats(self.directories)
        return self.directories

    def naming(self, directory: SelectedDirectory) -> AbstractContextManager[object]:
        return errors_naming(str(self._source(directory).store), directory.path)

    def _source(self, directory: SelectedDirectory) -> OutputSource:
        return next(source for source in self._output.sources if source.path == directory.path)

    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing:
        listing = self._listed(partition)
        check_segments_are_files(partition, listing.path, _LOCAL)
        return listing

    def _listed(self, partition: TopicPartition) -> LogListing:
        source = self._output.source_of[partition]
        files = source.by_folder.get(str(partition), {})
        return list_log(partition, Path(str(source.store)) / str(partition), ListedFs(files))

    def unlisted(
        self, _directory: SelectedDirectory, partition: TopicPartition, code: str, reason: str
    ) -> PartitionReport:
        return untouched(self._listed(partition), FAILED, code, reason)

    def marks(self, directory: SelectedDirectory) -> Mapping[TopicPartition, Uncleanable]:
        return self._source(directory).marks

    def settle(self, listing: LogListing) -> LogListing | None:
        """Return `listing`, because the partition's task completes an interrupted replacement in a copy."""
        return listing

    def rolled(self, task: CleaningTask) -> CleaningTask | None:
        return task

    def begin(self, _planned: Sequence[Work]) -> Mapping[Path, tuple[LogListing, CleaningResult]]:
        self._output.claim()
        return {}

    # -------------------------------------------------------------------------------------------------------- output
    def clean(self, tasks: Sequence[CleaningTask]) -> Iterator[PartitionReport]:
        run = self.run
        copied = {row.partition: row for row in run.take_rows()}
        self._marked += [
            self._output.source_of[partition].marks[partition]
            for partition in self._output.source_of
            if str(partition) in copied and copied[str(partition)].status == QUARANTINED
        ]
        cleanings = {task.listing.partition: task for task in tasks}
        publishing = [self._task(partition, cleanings.get(partition)) for partition in self._output.source_of]
        total_bytes = sum(task.weight() for task in publishing)
        with Progress(run.options.messages(), len(publishing), total_bytes, phase="cleaning") as progress:
            try:
                with progress.starting_spark():
                    sc = run.spark()
            except RunStopped:
                yield from (self._lost(task, None, None) for task in publishing)
                return
            run.timer.lap(SPARK)
            limit = run.rate_limit(self.directories)
            shared = shares(sc, total_bytes, asked=self._own.strategy)
            run.stack.enter_context(cancel_when(self._give_up, sc, run.run_id))
            publishing = [
                replace(
                    task,
                    rate_limit=limit,
                    cleaning=None if task.cleaning is None else replace(task.cleaning, rate_limit=limit),
                )
                for task in publishing
            ]
            for each in self._published(sc, publishing, shared):
                run.timer.restart()
                report = self._settled(each, copied.get(each.item.folder))
                run.timer.lap(COMMIT)
                yield report
                progress.advance(each.item.weight())

    def _task(self, partition: TopicPartition, cleaning: CleaningTask | None) -> PublishTask:
        source, run = self._output.source_of[partition], self.run
        return PublishTask(
            partition,
            source.store,
            source.by_folder.get(str(partition), {}),
            self._output.store,
            run.run_id,
            dry_run=run.dry_run,
            scratch=self._own.scratch,
            cleaning=cleaning,
        )

    def _published(
        self, sc: Any, tasks: Sequence[PublishTask], shared: Shares
    ) -> Iterator[TaskResult[PublishTask, PublishResult]]:
        for results in run_on_executors(
            sc,
            tasks,
            publish_partition,
            PublishTask.weight,
            group=self.run.run_id,
            is_stopped=self._is_over,
            prepare=partial(_with_shares, shared),
            jobs=Jobs(PublishResult.asks_for_splits, partial(self._published_in_splits, sc)),
            title=titled("write", _folder),
            figures=of_publishing,
        ):
            yield from results

    def _published_in_splits(self, sc: Any, task: PublishTask, found: PublishResult, slots: int) -> PublishResult:
        # Imported late, because this module compiles kernels that the driver needs only for splits.
        from sediment.jobs.cleaning.splits import clean_partition_in_splits, in_one_task

        cleaning, asked = task.cleaning, found.cleaning
        assert cleaning is not None and asked is not None
        timer = StageTimer()
        timer.add([asked.seconds_by_stage])
        cleaned = clean_partition_in_splits(sc, cleaning, asked, InOutput(task), slots)
        if cleaned is None:
            publish = partial(publish_partition, replace(task, cleaning=cleaning.as_whole()))
            return in_one_task(sc, cleaning, publish, of_publishing)
        timer.lap(CLEAN)
        result, files = replace(cleaned.result, seconds_by_stage=timer.seconds()), cleaned.files
        if task.dry_run:
            return PublishResult((), result, cleaning.listing)
        copies = copy_tasks(task, task.staying_after(result.swap, cleaning.listing))
        for results in run_on_executors(
            sc,
            copies,
            copy_files,
            CopyTask.weight,
            group=self.run.run_id,
            is_stopped=self._is_over,
            prepare=with_rate_share,
            title=titled("copy files of", CopyTask.folder),
            figures=of_copy,
        ):
            for each in results:
                if each.error is not None:
                    raise each.error
                assert each.result is not None
                if each.result.files is None:
                    return PublishResult(None, error=each.result.error)
                files += each.result.files
        return PublishResult(files, result, cleaning.listing)

    def _is_over(self) -> bool:
        return self.run.stop.is_set() or self._give_up.is_set()

    def _settled(
        self, finished: TaskResult[PublishTask, PublishResult], copied: PartitionReport | None
    ) -> PartitionReport:
        task, result = finished.item, finished.result
        if result is None or result.files is None:
            return self._lost(task, result, finished.error)
        self._files += result.files
        if copied is not None or result.cleaning is None or task.cleaning is None or result.listing is None:
            assert copied is not None
            return self._located(copied, task)
        self.run.timer.add([result.cleaning.seconds_by_stage])
        if result.cleaning.uncleanable is not None:
            self._marked.append(result.cleaning.uncleanable)
        report, offset = settled(replace(task.cleaning, listing=result.listing), result.cleaning)
        if offset is not None:
            self._cleaned[task.partition] = offset
        return self._located(report, task)

    def _lost(self, task: PublishTask, result: PublishResult | None, error: Exception | None) -> PartitionReport:
        if not self.run.stop.is_set() and result is not None and result.error is not None:
            code, reason = result.error
        elif not self.run.stop.is_set() and self._give_up.is_set():
            code, reason = OUTPUT_INCOMPLETE, "another partition could not be written"
        else:
            code, reason = self.run.why_lost(error, "written")
        self._give_up.set()
        listing = list_log(task.partition, Path(str(task.source)) / task.folder, ListedFs(task.files))
        return self._located(untouched(listing, FAILED, code, reason), task)

    def _located(self, report: PartitionReport, task: PublishTask) -> PartitionReport:
        return replace(report, log_dir=str(task.source))

    # ---------------------------------------------------------------------------------------------------- completion
    def complete(self, rows: Sequence[PartitionReport]) -> list[PartitionReport]:
        if not rows:
            return []
        self.run.timer.restart()
        changed = self._completed()
        self.run.timer.lap(COMMIT)
        if changed is None:
            return list(rows)
        code, reason = SOURCE_CHANGED
        return [
            replace(row, status=FAILED, reason_code=code, reason=reason)
            if not changed or row.partition in changed
            else row
            for row in rows
        ]

    def _completed(self) -> set[str] | None:
        if self._give_up.is_set():
            self._output.abandon()
            return None
        return self._output.complete(self._files, first_dirty=self._cleaned, marks=self._marked)


def _folder(task: PublishTask) -> str:
    return task.folder


def _with_shares(shared: Shares, task: PublishTask, slots: LiveSlots) -> PublishTask:
    cleaning = None if task.cleaning is None else shared.given(task.cleaning, slots)
    return replace(task, rate_limit=task.rate_limit.over(slots), cleaning=cleaning)
