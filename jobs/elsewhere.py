"""`sediment compact LOG_DIR … --output DIR_OR_URI`: the cleaned log directory is written elsewhere.

    driver    look at the place · list · claim                              checkpoints · compare the source · manifest
    tasks                                  working directory · view · plan · clean -> output · copy -> output

A task works in a directory of its own that holds links to the files of its partition, or, of a source behind a URI,
copies of them.  So whatever would be finished, rolled or rebuilt in the partition is, there; the source is only read.
What is cleaned goes straight to the output.

Invariants: nothing in a source changes, and no lock is taken there: instead it is listed again at the end, and the
output is complete only if it still is as it was.  Every partition is in the output, cleaned, or byte for byte where it
was not to be cleaned or could not be; where neither can be had the output stays incomplete.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.compaction.strategy import Strategy
from sediment.engine.lock import DirectoryLock
from sediment.engine.publish import PublishedFile, Publisher, PublishingFs, check_place, file_chunks
from sediment.engine.swap import finish_interrupted, replaced_files
from sediment.engine.uncleanable import Uncleanable, read_uncleanable, update_uncleanable
from sediment.jobs.cleaning import (
    CleaningResult,
    CleaningTask,
    CompactOptions,
    Pace,
    clean_with,
    executors,
    paced,
    roll_active,
    with_errors,
)
from sediment.jobs.cleaning_report import quarantined, report_of, untouched, with_swap
from sediment.jobs.directories import LogDirectory
from sediment.jobs.kafka_keys import DOUBLE_MAX
from sediment.jobs.log_lines import log_partition
from sediment.jobs.options import CommonOptions
from sediment.jobs.progress import Progress
from sediment.jobs.report import FAILED, SKIPPED, PartitionReport, RunReport, human_bytes
from sediment.jobs.sentences import task_lost, told
from sediment.jobs.session import spark_context
from sediment.jobs.spread import Answer, spread
from sediment.jobs.stages import COMMIT, LIST, SPARK, StageClock
from sediment.jobs.stopping import RunStopped, cancel_when, interruptible
from sediment.jobs.unstated_settings import warn_of_unstated_lag, why_not_compacted
from sediment.segment_io.checkpoints import format_offset_checkpoint
from sediment.segment_io.errors import (
    NoSpaceError,
    NotALogDirectoryError,
    SedimentError,
    SourceChangedError,
    UsageError,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.listing import LogListing, list_log
from sediment.segment_io.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    DELETED_SUFFIX,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    METADATA_PARTITION,
    PART_SUFFIX,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    UNCLEANABLE_FILE,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.partition_directories import find_partitions
from sediment.segment_io.stores import ListedFs, Store, StoredFile

if TYPE_CHECKING:
    from sediment.segment_io.log_dir import LogDirCheckpoints

_LOCAL = Fs()
_STOPPED = "stopped"
_GIVEN_UP = "output-incomplete"


@dataclass(frozen=True, slots=True)
class PublishTask:
    """One partition's work: `files` of its folder in `source` as the driver listed them, by name.

    Without `cleaning` it is copied as it is.
    """

    partition: TopicPartition
    source: Store
    files: Mapping[str, StoredFile]
    output: Store
    run_id: str
    cleaning: CleaningTask | None = None
    dry_run: bool = False
    scratch: Path | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def folder(self) -> str:
        """The name of the partition's directory in source and output."""
        return str(self.partition)

    def weight(self) -> int:
        """Bytes of all files: what tasks are packed by."""
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True, slots=True)
class PublishResult:
    """`files` are those of the partition in the output; None: it is not there as a whole, for `trouble`.

    `cleaning` is what cleaning found, `listing` the log that it found it in; both None where nothing was to be cleaned.
    """

    files: tuple[PublishedFile, ...] | None
    cleaning: CleaningResult | None = None
    listing: LogListing | None = None
    trouble: tuple[str, str] | None = None


# ---------------------------------------------------------------------------------------------------------- in a task
def publish_partition(task: PublishTask, attempt: str) -> PublishResult:
    """Clean one partition into the output and copy the rest of it; errors of this partition are part of the result."""
    try:
        with paced(task.pace) as used:
            _check_listed(task)
            if task.cleaning is None:
                return PublishResult(_copied(task, attempt, used))
            with _working_directory(task, used) as work:
                return _cleaned(task, task.cleaning, work, attempt, used)
    except (SedimentError, OSError) as error:
        return PublishResult(None, trouble=told(error))


def _check_listed(task: PublishTask) -> None:
    if _files_of(task.source, task.folder) != task.files:
        raise SourceChangedError(
            "the files are not those that the driver listed",
            partition=task.folder,
            path=f"{task.source}/{task.folder}",
            advice="another disk is mounted under this path, or another process writes to it; stop the broker or work "
            "on a copy",
        )


def _files_of(source: Store, folder: str) -> dict[str, StoredFile]:
    return _in_folder(source.files(folder), folder)


def stand_in_files(names: Iterable[str], folders: Container[str]) -> list[str]:
    """Return those of `names` that tell of a log directory: files beside the partitions, and the metadata log.

    With a metadata log the partitions' own metadata counts too.  A bucket may hold objects of any name, so only files
    directly in the directory or in one of `folders` are taken.
    """
    listed = [(name, *name.rpartition("/")) for name in names]
    metadata = str(METADATA_PARTITION)
    has_metadata = any(folder == metadata for _, folder, _, _ in listed)
    found = []
    for name, folder, slash, file in listed:
        is_beside = not slash and name not in folders
        is_inside = folder in folders and (folder == metadata or (has_metadata and file == PARTITION_METADATA_FILE))
        if (is_beside or is_inside) and file not in ("", ".", ".."):
            found.append(name)
    return found


def _in_folder(files: Mapping[str, StoredFile], folder: str) -> dict[str, StoredFile]:
    """Those directly in a folder, by their names in it, without what the next start would remove unread."""
    start = f"{folder}/"
    names = {name.removeprefix(start): file for name, file in files.items() if name.startswith(start)}
    return {name: file for name, file in names.items() if "/" not in name and not _is_left_out(name)}


def _is_left_out(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.state in (PART_SUFFIX, DELETED_SUFFIX)


@contextmanager
def _working_directory(task: PublishTask, used: Callable[[int], None]) -> Iterator[Path]:
    """A directory with the partition's files, whose names may change and whose contents may not."""
    top = Path(tempfile.mkdtemp(prefix=f"sediment-{task.run_id}-", dir=task.scratch))
    try:
        work = top / task.folder
        work.mkdir()
        if task.source.is_path:
            for name in task.files:
                (work / name).symlink_to(Path(task.source.where) / task.folder / name)
        else:
            _fetch(task, work, used)
        yield work
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _fetch(task: PublishTask, work: Path, used: Callable[[int], None]) -> None:
    needed, free = task.weight(), _LOCAL.free_bytes(work)
    if free < needed:
        raise NoSpaceError(
            f"the partition has {needed} bytes and the disk that it is fetched to has {free} free",
            partition=task.folder,
            path=str(work),
            advice="name a directory on a larger disk with --scratch",
        )
    for name, file in task.files.items():
        _LOCAL.write_new(work / name, _counted(task.source.chunks(f"{task.folder}/{name}"), used))
        _LOCAL.set_mtime_ns(work / name, file.mtime_ns)


def _counted(chunks: Iterator[bytes], used: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        used(len(chunk))


def _copied(task: PublishTask, attempt: str, used: Callable[[int], None]) -> tuple[PublishedFile, ...]:
    """The partition as it is, straight from the source."""
    if task.dry_run:
        return ()
    publisher = Publisher(task.output, task.run_id)
    task.output.make_folder(task.folder)
    copied = []
    for name, file in task.files.items():
        path = f"{task.folder}/{name}"
        chunks = _counted(task.source.chunks(path), used)
        made = publisher.publish(path, chunks, attempt=attempt, mtime_ns=file.mtime_ns)
        if made.size_bytes != file.size_bytes:
            _check_listed(task)
        copied.append(made)
    task.output.sync(task.folder)
    return tuple(copied)


def _cleaned(
    task: PublishTask, cleaning: CleaningTask, work: Path, attempt: str, used: Callable[[int], None]
) -> PublishResult:
    """Clean the partition that lies in `work`; what is not rewritten is copied from there."""
    publisher = None if task.dry_run else Publisher(task.output, task.run_id)
    fs = PublishingFs(publisher, task.folder, used)
    if publisher is not None:
        task.output.make_folder(task.folder)
    shown = f"{task.source}/{task.folder}"

    def clean() -> tuple[LogListing, CleaningResult]:
        with _told_of(work, shown):
            if finish_interrupted(work, fs):
                ready = replace(cleaning, listing=list_log(task.partition, work, fs))
            else:
                ready = replace(cleaning, listing=replace(cleaning.listing, path=work))
            if cleaning.options.roll_active:
                ready = roll_active(ready, fs)
            return ready.listing, clean_with(ready, fs, used, attempt)

    found = with_errors(cleaning, clean)
    if isinstance(found, CleaningResult):
        listing, result = cleaning.listing, found
        fs.discard()
    else:
        listing, result = replace(found[0], path=cleaning.listing.path), found[1]
    if publisher is None:
        return PublishResult((), result, listing)
    files: list[PublishedFile] = []
    gone: set[str] = set()
    if result.swap is not None:
        gone = {name for group in result.swap.groups for name in replaced_files(work, group, _LOCAL)}
        files += [fs.take(part) for part in result.swap.parts()]
    for entry in _LOCAL.scan(work):
        if entry.name not in gone and not _is_left_out(entry.name):
            chunks = _counted(file_chunks(work / entry.name, entry.size_bytes), used)
            name = f"{task.folder}/{entry.name}"
            files.append(publisher.publish(name, chunks, attempt=attempt, mtime_ns=entry.mtime_ns))
    task.output.sync(task.folder)
    return PublishResult(tuple(files), result, listing)


@contextmanager
def _told_of(work: Path, shown: str) -> Iterator[None]:
    """Let errors name the source rather than the working directory."""
    try:
        yield
    except SedimentError as error:
        if error.path is not None:
            error.path = error.path.replace(str(work), shown)
        raise
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = error.filename.replace(str(work), shown)
        raise


# -------------------------------------------------------------------------------------------------------- on the driver
def compact_elsewhere(options: CommonOptions, own: CompactOptions, stop: threading.Event) -> RunReport:
    """Write the selected partitions of `options.log_dirs`, compacted, to `own.output`.

    `stop`, once set, ends the run; the output then stays incomplete, as it does wherever a partition cannot be written.

    Raises:
        UsageError: a directory, the output, a setting or a combination of options is wrong; nothing was touched.
        DirectoryInUseError: a broker or another run holds the output.
        OwnershipError: the output was taken over by another run.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        run = _Run(options, own, stop, stack)
        reports = run.perform()
    ordered = tuple(sorted(reports, key=lambda report: (report.log_dir, report.partition)))
    seconds = time.monotonic() - started
    return RunReport(run.run_id, "compact", options.now_ms, seconds, own.dry_run, ordered, run.clock.seconds())


@dataclass(slots=True)
class _Source:
    """A source: where it is, what was listed there, and its directory or a stand-in with its small files."""

    store: Store
    files: dict[str, StoredFile]
    path: Path
    marks: Mapping[TopicPartition, Uncleanable] = field(default_factory=dict)
    directory: LogDirectory | None = None

    @property
    def opened(self) -> LogDirectory:
        """What the directory says about itself."""
        assert self.directory is not None
        return self.directory


class _Run:
    """One run of the command on the driver; the stack ends what it holds: the output's lock, scratch, Spark."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        assert own.output is not None
        self.run_id = uuid.uuid4().hex[:12]
        self.clock = StageClock()
        self._options = options
        self._own = own
        self._stop = stop
        self._give_up = threading.Event()
        self._stack = stack
        self._output = Store(own.output)
        self._publisher = Publisher(self._output, self.run_id)
        self._sources: list[_Source] = []
        self._source_of: dict[TopicPartition, _Source] = {}
        self._files: list[PublishedFile] = []
        self._cleaned: dict[TopicPartition, int] = {}
        self._damaged: list[Uncleanable] = []

    def perform(self) -> list[PartitionReport]:
        """List, claim, clean and copy, complete; a report for every selected partition."""
        _check_options(self._own)
        stores = [Store(where) for where in self._options.given_log_dirs]
        check_place(self._output, stores)
        with interruptible():  # a bucket may take its time, and nothing is written yet
            self._open(stores)
            prepared = [self._prepare(partition, source) for partition, source in self._source_of.items()]
        self.clock.lap(LIST)
        if not prepared:
            return []
        if not self._own.dry_run:
            self._claim()
        reports = self._publish(prepared)
        self.clock.restart()
        if not self._own.dry_run:
            reports = self._complete(reports)
        self.clock.lap(COMMIT)
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
            self._sources.append(_Source(store, files, path))
        shown = {source.path: str(source.store) for source in self._sources}
        with ExitStack() as naming:
            for path, name in shown.items():
                naming.enter_context(_told_of(path, name))
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
                        advice="write one of them to an output of its own",
                    )
                self._source_of[partition] = source
        if not self._source_of and not (self._options.partitions and self._options.allow_empty_selection):
            raise UsageError("no partition is selected", path=str(self._sources[0].store), advice="look at --partition")
        _check_alike(self._sources)

    def _stand_in(self, store: Store, files: Mapping[str, StoredFile]) -> Path:
        """A directory of this machine that says of itself what one behind a URI says: its small files and folders."""
        path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-", dir=self._own.scratch)))
        there = store.folders()
        folders = {*find_partitions(store, there), str(METADATA_PARTITION)}.intersection(there)
        for folder in folders:
            (path / folder).mkdir()
        for name in stand_in_files(files, folders):
            _LOCAL.write_new(path / name, store.chunks(name))
        return path

    def _prepare(self, partition: TopicPartition, source: _Source) -> tuple[PublishTask, PartitionReport | None]:
        """The task of a partition, and its report where it is to be copied as it is."""
        files = _in_folder(source.files, str(partition))
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
            with _told_of(source.path, str(source.store)):
                settings = source.opened.settings_of(partition, _LOCAL)
                config = settings.for_topic(partition.topic)
        except (SedimentError, OSError) as error:
            return task, untouched(listing, FAILED, *told(error))
        if why := why_not_compacted(partition, settings, config):
            return task, untouched(listing, SKIPPED, *why)
        mark = source.marks.get(partition)
        if mark is not None and mark.holds_for(listing) and not self._own.retry_quarantined:
            self._damaged.append(mark)
            return task, quarantined(listing, mark)
        cleaning = CleaningTask(
            listing,
            source.opened.checkpoints.of(partition),
            config.compaction,
            self._own,
            self._options.now_ms,
            self.run_id,
        )
        return replace(task, cleaning=cleaning), None

    # -------------------------------------------------------------------------------------------------------- output
    def _claim(self) -> None:
        path = self._output.local_path
        if path is not None:
            self._output.make_folder("")
            self._stack.enter_context(DirectoryLock(path))
            check_place(self._output, [source.store for source in self._sources])
        before = self._publisher.begin()
        if before is not None:
            self._tell(f"{self._output} is what run {before} left incomplete; starting over")

    def _publish(self, prepared: Sequence[tuple[PublishTask, PartitionReport | None]]) -> list[PartitionReport]:
        tasks = [task for task, _ in prepared]
        copied = {task.partition: report for task, report in prepared if report is not None}
        total_bytes = sum(task.weight() for task in tasks)
        reports = []
        with Progress(self._options.messages(), len(tasks), total_bytes) as progress:
            try:
                sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
            except RunStopped:
                return [self._lost(task, None, None) for task in tasks]
            self.clock.lap(SPARK)
            pace = self._pace(sc)
            tasks = [replace(task, pace=pace) for task in tasks]
            self._stack.enter_context(cancel_when(self._stop, sc, self.run_id))
            self._stack.enter_context(cancel_when(self._give_up, sc, self.run_id))
            for answers in spread(
                sc, tasks, publish_partition, PublishTask.weight, group=self.run_id, is_stopped=self._is_over
            ):
                for answer in answers:
                    reports.append(self._settle(answer, copied.get(answer.work.partition)))
                    progress.advance(answer.work.weight())
        return reports

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._give_up.is_set()

    def _pace(self, sc: Any) -> Pace:
        rates = [source.opened.settings.broker_value("log.cleaner.io.max.bytes.per.second") for source in self._sources]
        rate = min(rate for rate in rates if isinstance(rate, float))
        return Pace(
            bytes_per_second=rate / executors(sc) if rate < DOUBLE_MAX else None,
            throttle_name=f"sediment-{self.run_id}.throttle",
        )

    def _settle(self, answer: Answer[PublishTask, PublishResult], copied: PartitionReport | None) -> PartitionReport:
        task, result = answer.work, answer.result
        if result is None or result.files is None:
            return self._lost(task, result, answer.error)
        self._files += result.files
        if copied is not None or result.cleaning is None or task.cleaning is None or result.listing is None:
            assert copied is not None
            return self._placed(copied, task)
        found = replace(task.cleaning, listing=result.listing)
        report = report_of(found, result.cleaning)
        self.clock.add([result.cleaning.seconds_by_stage])
        if result.cleaning.uncleanable is not None:
            self._damaged.append(result.cleaning.uncleanable)
        if result.cleaning.swap is not None:
            self._cleaned[task.partition] = result.cleaning.swap.next_dirty_offset
            report = with_swap(report, result.listing, result.cleaning.swap)
        elif not result.cleaning.failed and result.cleaning.reset_checkpoint is not None:
            self._cleaned[task.partition] = result.cleaning.reset_checkpoint
        return self._placed(report, task)

    def _lost(self, task: PublishTask, result: PublishResult | None, error: Exception | None) -> PartitionReport:
        """The report of a partition that is not in the output; whatever follows is not tried."""
        if self._stop.is_set():
            code, reason = _STOPPED, "the run was stopped before this partition was written"
        elif result is not None and result.trouble is not None:
            code, reason = result.trouble
        elif self._give_up.is_set():
            code, reason = _GIVEN_UP, "another partition could not be written"
        else:
            code, reason = task_lost(error)
        self._give_up.set()
        listing = list_log(task.partition, Path(str(task.source)) / task.folder, ListedFs(task.files))
        return self._placed(untouched(listing, FAILED, code, reason), task)

    def _placed(self, report: PartitionReport, task: PublishTask) -> PartitionReport:
        return replace(report, log_dir=str(task.source))

    # ---------------------------------------------------------------------------------------------------- completion
    def _complete(self, reports: list[PartitionReport]) -> list[PartitionReport]:
        """Write what belongs to the whole directory, then the manifest, unless something is missing or changed."""
        if self._give_up.is_set():
            self._tell(f"{self._output} is not complete; run again to start over", style="red")
            return reports
        changed = self._changed_partitions()
        if changed is not None:
            self._tell(f"{self._output} is not complete: the source changed while it was read", style="red")
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
        self._tell(f"{self._output} is complete: {len(files)} files, {size}")
        return reports

    def _changed_partitions(self) -> set[str] | None:
        """Partitions that are not as they were listed; empty where it is the files beside them, None: nothing is."""
        changed: set[str] = set()
        beside = False
        for source in self._sources:
            now = source.store.files()
            selected = {str(partition) for partition in source.opened.partitions}
            for name in {name for name, _ in now.items() ^ source.files.items()}:
                folder, _, rest = name.rpartition("/")
                if not folder:
                    beside = beside or rest in _DIRECTORY_FILES
                elif folder in selected and not _is_left_out(rest):
                    changed.add(folder)
        return changed if changed or beside else None

    def _directory_files(self) -> Iterator[PublishedFile]:
        for name, content in self._checkpoints():
            yield self._publisher.publish(name, [content], attempt="driver")
        marks = self._marks()
        if marks is not None:
            yield self._publisher.publish(UNCLEANABLE_FILE, [marks], attempt="driver")
        if self._sources[0].opened.checkpoints.clean_shutdown:
            content = _LOCAL.read_bytes(self._sources[0].path / CLEAN_SHUTDOWN_FILE)
            yield self._publisher.publish(CLEAN_SHUTDOWN_FILE, [content], attempt="driver")

    def _checkpoints(self) -> Iterator[tuple[str, bytes]]:
        """The checkpoint files, of the partitions that are in the output."""
        cleaner = {**self._merged(lambda said: said.first_dirty), **self._cleaned}
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
        """What `.sediment-uncleanable` is to hold; marks go by modification times, which only this machine keeps.

        Copies have ctimes of their own, so they go without a fingerprint.
        """
        if not self._damaged or self._output.local_path is None:
            return None
        with tempfile.TemporaryDirectory(prefix="sediment-", dir=self._own.scratch) as place:
            update_uncleanable(Path(place), _LOCAL, add=[replace(mark, fingerprint=None) for mark in self._damaged])
            return _LOCAL.read_bytes(Path(place) / UNCLEANABLE_FILE)

    def _tell(self, sentence: str, *, style: str | None = None) -> None:
        self._options.messages().print(f"sediment: {sentence}", style=style, soft_wrap=True, markup=False)


_MERGED_FILES: tuple[tuple[str, Callable[[Any], Mapping[TopicPartition, int] | None]], ...] = (
    (RECOVERY_POINT_FILE, lambda said: said.recovery_point),
    (LOG_START_FILE, lambda said: said.log_start),
    (HIGH_WATERMARK_FILE, lambda said: said.high_watermark),
)
_DIRECTORY_FILES = frozenset({CLEANER_FILE, CLEAN_SHUTDOWN_FILE, *(name for name, _ in _MERGED_FILES)})


def _check_options(own: CompactOptions) -> None:
    for option, given, why in (
        ("--hand-off", own.hand_off is not None, "there is nothing for an engine to commit"),
        ("--keep-originals", own.keep_originals is not None, "the source keeps them"),
        ("--keep-before", own.keep_before is not None, "the source keeps it"),
        ("--max-bytes", own.max_bytes is not None, "an output is complete or of no use"),
        ("--strategy split", own.strategy is Strategy.SPLIT, "one task writes a partition"),
        ("--max-seconds", own.max_seconds is not None, "an output is complete or of no use"),
    ):
        if given:
            raise UsageError(f"{option} does not go with --output: {why}", advice="leave one of them out")


def _check_alike(sources: Sequence[_Source]) -> None:
    """What an absent file means holds for a whole directory: several sources must mean the same."""
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
                    f"of {first.store} and {other.store} only one has {name}, so they cannot become one directory",
                    advice="write each of them to an output of its own",
                )
