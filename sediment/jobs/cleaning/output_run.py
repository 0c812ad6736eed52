"""`sediment compact LOG_DIR … --output DIR_OR_URI`: write a compacted copy of the log directory.

    driver    check the output · list · claim                            checkpoints · compare the source · manifest
    tasks                                       view · plan · clean -> output · copy -> output

`output_task` has the work of a task.  Partitions to clean in splits come last, one at a time, and each uses all slots.

Invariants: nothing in a source changes and no lock is taken there.  Instead the run lists the source again at the end,
and completes the output only if the source is unchanged.  The output holds every partition: cleaned, or as an identical
copy if it was skipped or failed.  If a partition can neither be cleaned nor copied, the output stays incomplete.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.engine.copying.stand_in import errors_naming, make_stand_in
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.output import Publisher, check_output_path
from sediment.engine.directory.uncleanable import Uncleanable, read_uncleanable, update_uncleanable
from sediment.jobs.cleaning.cleaning_run import CleaningRun
from sediment.jobs.cleaning.estimates import find_resources
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.cleaning.output_task import (
    CopyTask,
    OutputPlace,
    PublishResult,
    PublishTask,
    copy_files,
    copy_tasks,
    files_by_folder,
    is_left_out,
    publish_partition,
)
from sediment.jobs.cleaning.report import quarantined, settled, untouched
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.reporting.run_report import FAILED, SKIPPED, PartitionReport
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, LIST, SPARK, StageTimer
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted
from sediment.jobs.spark.cancellation import RunStopped, cancel_when, interruptible
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import NotStartedError, TaskResult, run_on_executors
from sediment.segment_io.errors import (
    NotALogDirectoryError,
    SedimentError,
    UsageError,
)
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    UNCLEANABLE_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.stores import ListedFs, Store, StoredFile

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_dir_checkpoints import LogDirCheckpoints

_LOCAL = Fs()
_GIVEN_UP = "output-incomplete"


@dataclass(slots=True)
class _Source:
    """A source: its store, the files listed there, and its directory or a local stand-in with its small files."""

    store: Store
    files: dict[str, StoredFile]
    by_folder: dict[str, dict[str, StoredFile]]
    path: Path
    marks: Mapping[TopicPartition, Uncleanable] = field(default_factory=dict)
    directory: SelectedDirectory | None = None

    @property
    def opened(self) -> SelectedDirectory:
        """The directory with its settings and checkpoints."""
        assert self.directory is not None
        return self.directory


class OutputRun(CleaningRun):
    """Compaction to an output; the output stays incomplete after a stop or if a partition cannot be written."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        super().__init__(options, own, stop, stack)
        assert own.output is not None
        self._give_up = threading.Event()
        self._output = Store(own.output)
        self._publisher = Publisher(self._output, self.run_id)
        self._sources: list[_Source] = []
        self._source_of: dict[TopicPartition, _Source] = {}
        self._files: list[ManifestFile] = []
        self._cleaned: dict[TopicPartition, int] = {}
        self._marked: list[Uncleanable] = []

    def perform(self) -> list[PartitionReport]:
        """List, claim, clean, copy and complete; return a report for every selected partition."""
        stores = [Store(where) for where in self._options.given_log_dirs]
        check_output_path(self._output, stores)
        with interruptible():  # a bucket may be slow, and nothing has been written so far
            self._open(stores)
            prepared = [self._prepare(partition, source) for partition, source in self._source_of.items()]
        self.timer.lap(LIST)
        if not prepared:
            return []
        if not self._own.dry_run:
            self._claim()
        reports = self._publish(prepared)
        self.timer.restart()
        if not self._own.dry_run:
            reports = self._complete(reports)
        self.timer.lap(COMMIT)
        for report in reports:
            log_partition(self.run_id, "compact", report)
        return reports

    # ------------------------------------------------------------------------------------------------------- sources
    def _open(self, stores: Sequence[Store]) -> None:
        for store in stores:
            files = store.files()
            if not files:
                raise NotALogDirectoryError(
                    "no such directory", path=str(store), advice="name an entry of the broker's log.dirs"
                )
            path = Path(store.where) if store.is_path else self._stand_in(store, files)
            self._sources.append(_Source(store, files, files_by_folder(files), path))
        shown = {source.path: str(source.store) for source in self._sources}
        with ExitStack() as naming:
            for path, name in shown.items():
                naming.enter_context(errors_naming(name, path))
            options = self._options
            opened = options.open_directories(_LOCAL, paths=list(shown))
        warn_of_unstated_lag(opened)
        for source, directory in zip(self._sources, opened, strict=True):
            source.directory = directory
            source.marks = read_uncleanable(source.path, _LOCAL)
            for partition in directory.partitions:
                if partition in self._source_of:
                    raise UsageError(
                        f"{self._source_of[partition].store} and {source.store} both hold {partition}",
                        advice="write them to different outputs",
                    )
                self._source_of[partition] = source
        if not self._source_of and not (self._options.selection.is_narrowed and self._options.allow_empty_selection):
            raise UsageError("no partition is selected", path=str(self._sources[0].store), advice="check --partition")
        _check_alike(self._sources)

    def _stand_in(self, store: Store, files: Mapping[str, StoredFile]) -> Path:
        """Return a local directory with copies of the small files and folders of the directory at a URI."""
        path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-", dir=self._own.scratch)))
        make_stand_in(store, files, path)
        return path

    def _prepare(self, partition: TopicPartition, source: _Source) -> tuple[PublishTask, PartitionReport | None]:
        """Return the task of a partition; add a report if the partition is only copied."""
        files = source.by_folder.get(str(partition), {})
        task = PublishTask(
            partition,
            source.store,
            files,
            self._output,
            self.run_id,
            dry_run=self._own.dry_run,
            scratch=self._own.scratch,
        )
        path = Path(str(source.store)) / str(partition)
        listing = list_log(partition, path, ListedFs(files))
        try:
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
    def _claim(self) -> None:
        path = self._output.local_path
        if path is not None:
            self._output.make_folder("")
            self._stack.enter_context(DirectoryLock(path))
            check_output_path(self._output, [source.store for source in self._sources])
        before = self._publisher.begin()
        if before is not None:
            self._print(f"{self._output} was left incomplete by run {before}; starting over")

    def _publish(self, prepared: Sequence[tuple[PublishTask, PartitionReport | None]]) -> list[PartitionReport]:
        tasks = [task for task, _ in prepared]
        copied = {task.partition: report for task, report in prepared if report is not None}
        total_bytes = sum(task.weight() for task in tasks)
        reports = []
        with Progress(self._options.messages(), len(tasks), total_bytes, phase="cleaning") as progress:
            try:
                sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
            except RunStopped:
                return [self._lost(task, None, None) for task in tasks]
            self.timer.lap(SPARK)
            limit = self._rate_limit(sc, [source.opened for source in self._sources])
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
        # Imported late: it compiles kernels that the driver needs only for splits.
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
                    return TaskResult(task, each.result, each.error)
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
        """Return the report of a partition that is missing in the output; start no other partition."""
        if not self._stop.is_set() and result is not None and result.error is not None:
            code, reason = result.error
        elif not self._stop.is_set() and self._give_up.is_set():
            code, reason = _GIVEN_UP, "another partition could not be written"
        else:
            code, reason = self._why_lost(error, "written")
        self._give_up.set()
        listing = list_log(task.partition, Path(str(task.source)) / task.folder, ListedFs(task.files))
        return self._located(untouched(listing, FAILED, code, reason), task)

    def _located(self, report: PartitionReport, task: PublishTask) -> PartitionReport:
        return replace(report, log_dir=str(task.source))

    # ---------------------------------------------------------------------------------------------------- completion
    def _complete(self, reports: list[PartitionReport]) -> list[PartitionReport]:
        """Write the files of the whole directory, then the manifest, unless a partition is missing or has changed."""
        if self._give_up.is_set():
            self._print(f"{self._output} is not complete; run again to start over", style="red")
            return reports
        changed = self._changed_partitions()
        if changed is not None:
            self._print(f"{self._output} is not complete: the source changed while it was read", style="red")
            return [
                replace(
                    report,
                    status=FAILED,
                    reason_code="source-changed",
                    reason="the source changed while it was read; stop the broker or work on a copy",
                )
                if not changed or report.partition in changed
                else report
                for report in reports
            ]
        files = [*self._files, *self._directory_files()]
        self._publisher.finish(
            files, sources=[str(source.store) for source in self._sources], now_ms=self._options.now_ms
        )
        size = human_bytes(sum(file.size_bytes for file in files))
        self._print(f"{self._output} is complete: {len(files)} files, {size}")
        return reports

    def _changed_partitions(self) -> set[str] | None:
        """Return the partitions that changed since the listing; empty if only other files did, None if nothing did."""
        changed: set[str] = set()
        beside = False
        for source in self._sources:
            now = source.store.files()
            selected = {str(partition) for partition in source.opened.partitions}
            for name in {name for name, _ in now.items() ^ source.files.items()}:
                folder, _, rest = name.rpartition("/")
                if not folder:
                    beside = beside or rest in _DIRECTORY_FILES
                elif folder in selected and not is_left_out(rest):
                    changed.add(folder)
        return changed if changed or beside else None

    def _directory_files(self) -> Iterator[ManifestFile]:
        for name, content in self._checkpoints():
            yield self._publisher.publish(name, [content], attempt="driver")
        marks = self._marks()
        if marks is not None:
            yield self._publisher.publish(UNCLEANABLE_FILE, [marks], attempt="driver")
        if self._sources[0].opened.checkpoints.clean_shutdown:
            content = _LOCAL.read_bytes(self._sources[0].path / CLEAN_SHUTDOWN_FILE)
            yield self._publisher.publish(CLEAN_SHUTDOWN_FILE, [content], attempt="driver")

    def _checkpoints(self) -> Iterator[tuple[str, bytes]]:
        """Yield the checkpoint files of the partitions in the output, as (name, content)."""
        cleaner = {**self._merged(lambda checkpoints: checkpoints.first_dirty), **self._cleaned}
        if cleaner:
            yield CLEANER_FILE, format_offset_checkpoint(dict(sorted(cleaner.items())))
        for name, read in _MERGED_FILES:
            if read(self._sources[0].opened.checkpoints) is not None:
                yield name, format_offset_checkpoint(self._merged(read))

    def _merged(
        self, read: Callable[[LogDirCheckpoints], Mapping[TopicPartition, int] | None]
    ) -> dict[TopicPartition, int]:
        entries = (
            (partition, offset)
            for source in self._sources
            for partition, offset in (read(source.opened.checkpoints) or {}).items()
            if self._source_of.get(partition) is source
        )
        return dict(sorted(entries))

    def _marks(self) -> bytes | None:
        """Return the content of `.sediment-uncleanable`; a source at a URI has no marks.

        A store keeps no modification times, from which marks are checked.  Marks of copies have no fingerprint, because
        a copied file has a new ctime.
        """
        if not self._marked or self._output.local_path is None:
            return None
        with tempfile.TemporaryDirectory(prefix="sediment-", dir=self._own.scratch) as scratch:
            marks = [replace(mark, fingerprint=None) for mark in self._marked]
            update_uncleanable(Path(scratch), _LOCAL, add=marks)
            return _LOCAL.read_bytes(Path(scratch) / UNCLEANABLE_FILE)

    def _print(self, text: str, *, style: str | None = None) -> None:
        self._options.messages().print(f"sediment: {text}", style=style, soft_wrap=True, markup=False)


_MERGED_FILES: tuple[tuple[str, Callable[[Any], Mapping[TopicPartition, int] | None]], ...] = (
    (RECOVERY_POINT_FILE, lambda checkpoints: checkpoints.recovery_point),
    (LOG_START_FILE, lambda checkpoints: checkpoints.log_start),
    (HIGH_WATERMARK_FILE, lambda checkpoints: checkpoints.high_watermark),
)
_DIRECTORY_FILES = frozenset({CLEANER_FILE, CLEAN_SHUTDOWN_FILE, *(name for name, _ in _MERGED_FILES)})


def _check_alike(sources: Sequence[_Source]) -> None:
    """Check that all sources have the same checkpoint files, because a missing checkpoint has a meaning of its own."""
    first = sources[0]
    for other in sources[1:]:
        pairs = [
            (name, read(first.opened.checkpoints) is None, read(other.opened.checkpoints) is None)
            for name, read in _MERGED_FILES
        ]
        one_is_clean, another_is_clean = (source.opened.checkpoints.clean_shutdown for source in (first, other))
        pairs.append((CLEAN_SHUTDOWN_FILE, one_is_clean, another_is_clean))
        for name, one, another in pairs:
            if one != another:
                raise UsageError(
                    f"only one of {first.store} and {other.store} has {name}, so they cannot become one directory",
                    advice="write each of them to a separate output",
                )
