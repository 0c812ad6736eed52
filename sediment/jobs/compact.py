"""`sediment compact LOG_DIR …`: lock, list, finish what was interrupted, spread the cleaning, commit, account.

    driver    lock · list · finish_interrupted            commit (one group at a time, ascending) · checkpoint · report
    tasks                                       view · plan · clean

Invariants: only the driver renames; a partition is committed as a whole task result, its checkpoint after its last
group; whatever fails in one partition leaves that partition as it was and the others go on.  With a limit on the run
all partitions are surveyed first and cleaned filthiest first; what the limit leaves over is as it was.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.compaction.strategy import KeyEquality, Strategy
from sediment.engine.directory.backup_catalogue import OriginalPartition, partition_before, segment_file_names
from sediment.engine.directory.backup_links import (
    BackupLinks,
    check_backup_path,
    check_originals_path,
    snapshot_log_dir,
    snapshot_partition,
)
from sediment.engine.directory.lock import DirectoryLock, place_run_token, remove_run_token
from sediment.engine.directory.spool import check_announced, spool_swap
from sediment.engine.directory.swap import commit, discard_parts, finish_interrupted, make_durable
from sediment.engine.directory.uncleanable import Uncleanable, read_uncleanable, update_uncleanable
from sediment.jobs.cleaning.backup_links import catalogue_of_run, end_originals
from sediment.jobs.cleaning.report import quarantined, report_of, untouched, with_swap
from sediment.jobs.cleaning.task import (
    FAIL,
    KEEP,
    CleaningResult,
    CleaningTask,
    CompactOptions,
    RateLimit,
    SurveyResult,
    executors,
    failure,
    find_resources,
    roll_active,
    start_partition,
    survey_partition,
    with_errors,
)
from sediment.jobs.command_line.options import CommonOptions, common_options, key_equality_option
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.stderr_log import log_partition
from sediment.jobs.delta_lake.paths import is_uri, outside_log_dirs
from sediment.jobs.reporting.error_text import describe, describe_lost_task
from sediment.jobs.reporting.run_report import (
    COMPACTED,
    FAILED,
    SKIPPED,
    PartitionReport,
    RunReport,
    print_report,
    report_json,
)
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, LIST, SPARK, SURVEY, StageTimer
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.kafka_keys import DOUBLE_MAX
from sediment.jobs.settings.running_brokers import UNCLEAN, warn_of_running
from sediment.jobs.settings.unstated_settings import warn_of_unstated_lag, why_not_compacted
from sediment.jobs.spark.cancellation import RunStopped, cancel_when, stop_on_signals
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import TaskResult, run_on_executors, run_pending
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    SedimentError,
    UsageError,
)
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import CLEANER_FILE, LOCK_FILE, TopicPartition, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import update_offset_checkpoint, write_offset_checkpoint
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_dir import read_checkpoints

if TYPE_CHECKING:
    from sediment.compaction.policy import CleanableRange

_LOGGER = logging.getLogger(__name__)

_WORTH_SYNCING_TOGETHER = 8  # swaps: so few are synced as fast one by one
_SYNCS_AT_ONCE = 8
_WORTH_WATCHING_BYTES = 256 << 20  # a smaller partition is done before a look at it says much

MAX_BYTES = "max-bytes"
HANDED_OFF = "handed-off"
STOPPED = "stopped"


def compact(options: CommonOptions, own: CompactOptions, stop: threading.Event | None = None) -> RunReport:
    """Compact the selected partitions of `options.log_dirs`, with Spark if there is anything to clean.

    `stop`, once set, ends the run after the group being committed; what was not done is reported as failed.

    Raises:
        UsageError: a directory or setting is wrong; nothing was touched.
        DirectoryInUseError: a broker or another run holds a directory.
    """
    if own.strategy is Strategy.SPLIT and own.key_equality is KeyEquality.EXACT:
        raise UsageError(
            "--strategy split does not go with --key-equality exact: tasks tell each other of hashes, never of keys",
            advice="leave one of them out",
        )
    if own.output is not None:
        from sediment.jobs.cleaning.output_run import compact_to_output

        return compact_to_output(options, own, stop or threading.Event())
    for log_dir in filter(is_uri, options.given_log_dirs):
        raise UsageError(
            "what lies behind a URI is only read", path=log_dir, advice="say with --output where the result goes"
        )
    started = time.monotonic()
    with ExitStack() as stack:
        run = _Run(options, own, stop or threading.Event(), stack)
        reports = run.perform()
    ordered = tuple(sorted(reports, key=lambda report: (report.log_dir, report.partition)))
    seconds = time.monotonic() - started
    return RunReport(run.run_id, "compact", options.now_ms, seconds, own.dry_run, ordered, run.clock.seconds())


class _Run:
    """One run of the command on the driver; the stack ends what it holds: locks, tokens, Spark."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        self.run_id = uuid.uuid4().hex[:12]
        self.clock = StageTimer()
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._bytes_per_second = DOUBLE_MAX
        self._fs = Fs()
        self._locks: dict[Path, DirectoryLock] = {}
        self._marks: dict[Path, Mapping[TopicPartition, Uncleanable]] = {}
        self._handed_over: dict[Path, set[str]] = {}
        self._synced: dict[Path, Future[None]] = {}
        self._running: Mapping[str, str] = {}
        self._started = time.time()
        self._originals: BackupLinks | None = None

    def perform(self) -> list[PartitionReport]:
        """Lock, list, clean, commit; a report for every selected partition."""
        reports: list[PartitionReport] = []
        tasks: list[CleaningTask] = []
        for directory in self._open_directories():
            for prepared in self._prepare(directory):
                if isinstance(prepared, CleaningTask):
                    tasks.append(prepared)
                else:
                    reports.append(self._logged(prepared))
        self.clock.lap(LIST)
        if tasks:
            tasks, unlisted = self._begin_originals(tasks)
            reports.extend(unlisted)
        if tasks:
            reports.extend(self._clean_and_commit(tasks))
            if self._originals is not None:
                end_originals(self._originals, reports)
        return reports

    def _begin_originals(self, tasks: Sequence[CleaningTask]) -> tuple[list[CleaningTask], list[PartitionReport]]:
        """Write the catalogue of the files that the tasks may replace, before the first of them is replaced.

        Returns the tasks that are in it, and reports of those whose files cannot be read.
        """
        if self._own.keep_originals is None or self._own.dry_run:
            return list(tasks), []
        listed: list[CleaningTask] = []
        failed: list[PartitionReport] = []
        before: list[OriginalPartition] = []
        checkpoints = {path: read_checkpoints(path, self._fs) for path in self._locks}
        for task in tasks:
            partition, directory = task.listing.partition, task.listing.path
            try:
                names = segment_file_names(directory, self._fs)
                before.append(
                    partition_before(partition, directory, checkpoints[directory.parent], names, None, self._fs)
                )
                listed.append(task)
            except (SedimentError, OSError) as error:
                failed.append(PartitionReport(str(partition), str(directory.parent), FAILED, *describe(error)))
        header = catalogue_of_run(self._options, "compact", self.run_id, checkpoints, before)
        self._originals = BackupLinks(self._own.keep_originals, header, self._fs)
        self._originals.begin()
        return listed, failed

    def _open_directories(self) -> list[SelectedDirectory]:
        """Check every directory and the selection before anything is touched; read them again under their locks."""
        options = self._options
        own = self._own
        if own.keep_before is not None and len(options.log_dirs) != 1:
            raise UsageError("--keep-before keeps one log directory", advice="run once for each LOG_DIR")
        if (
            own.keep_before is not None
            and own.keep_originals is not None
            and (own.keep_before.resolve() == own.keep_originals.resolve())
        ):
            raise UsageError(
                "--keep-before and --keep-originals name one directory", advice="name a directory for each of them"
            )
        options.open_directories(self._fs, in_place=not own.dry_run)
        for path in options.log_dirs:
            for place in filter(None, (own.keep_originals, own.keep_before)):
                outside_log_dirs(str(place), [path])
            if not own.dry_run:
                check_filesystem(path, allow_network=own.allow_network_fs)
        if own.hand_off is not None:
            self._check_hand_off(own.hand_off)
        if not own.dry_run:
            for path in options.log_dirs:
                if own.keep_originals is not None:
                    check_originals_path(own.keep_originals, path, self._fs)
                if own.keep_before is not None:
                    check_backup_path(own.keep_before, path, self._fs)
                if own.hand_off is None:
                    self._locks[path] = self._stack.enter_context(DirectoryLock(path))
                if own.keep_before is not None:
                    snapshot_log_dir(path, own.keep_before, self._fs)
                place_run_token(path, self.run_id)
                self._stack.callback(remove_run_token, path)
        directories = options.open_directories(self._fs, in_place=not own.dry_run)
        warn_of_unstated_lag(directories)
        if own.dry_run:
            self._running = warn_of_running(directories)
        for directory in directories:
            rate = directory.settings.broker_value("log.cleaner.io.max.bytes.per.second")
            assert isinstance(rate, float)
            self._bytes_per_second = min(self._bytes_per_second, rate)
            if directory.is_unclean and own.hand_off is None and str(directory.path) not in self._running:
                _LOGGER.warning(
                    "%s: the last stop of the broker was not clean; what lies behind the recovery points is left as it "
                    "is until `sediment recover` has repaired the directory",
                    directory.path,
                )
        self._marks = {path: read_uncleanable(path, self._fs) for path in options.log_dirs}
        return directories

    def _check_hand_off(self, folder: Path) -> None:
        """An engine owns the directories and looks into `folder`, and this is the only run that leaves swaps there."""
        own = self._own
        for option, given in (
            ("--dry-run", own.dry_run),
            ("--roll-active", own.roll_active),
            ("--keep-originals", own.keep_originals is not None),
            ("--keep-before", own.keep_before is not None),
        ):
            if given:
                raise UsageError(f"--hand-off leaves the directories to their engine, {option} does not go with it")
        check_announced(folder, self._options.log_dirs, self._fs)
        self._stack.enter_context(DirectoryLock(folder))

    def _prepare(self, directory: SelectedDirectory) -> Iterator[CleaningTask | PartitionReport]:
        """A task for each partition that is to be compacted, a report for each that is not."""
        for partition in directory.partitions:
            try:
                yield self._prepare_partition(directory, partition)
            except (SedimentError, OSError) as error:
                code, sentence = describe(error)
                yield PartitionReport(str(partition), str(directory.path), FAILED, code, sentence)

    def _prepare_partition(
        self, directory: SelectedDirectory, partition: TopicPartition
    ) -> CleaningTask | PartitionReport:
        path = directory.path / str(partition)
        settings = directory.settings_of(partition, self._fs)
        config = settings.for_topic(partition.topic)
        listing = list_log(partition, path, self._fs)
        if why := why_not_compacted(partition, settings, config):
            return untouched(listing, SKIPPED, *why)
        if listing.is_replacement_open() and self._own.dry_run:
            return untouched(
                listing,
                SKIPPED,
                "interrupted",
                "an earlier run or broker was interrupted here; a run without --dry-run finishes that first",
            )
        if not self._own.dry_run and self._own.hand_off is None and finish_interrupted(path, self._fs):
            listing = list_log(partition, path, self._fs)
            self._keep_before(partition, directory.path)
        mark = self._marks[directory.path].get(partition)
        looks_again = self._own.retry_quarantined or self._own.on_corruption == KEEP
        if mark is not None and mark.holds_for(listing) and not looks_again:
            return quarantined(listing, mark)
        checkpoints = directory.checkpoints.of(partition)
        task = CleaningTask(listing, checkpoints, config.compaction, self._own, self._options.now_ms, self.run_id)
        if not self._own.roll_active:
            return task
        if not self._own.dry_run:
            self._keep_before(partition, directory.path)
        rolled = with_errors(task, lambda: roll_active(task, self._fs))
        return rolled if isinstance(rolled, CleaningTask) else self._settle_all([TaskResult(task, rolled, None)])[0]

    def _clean_and_commit(self, tasks: Sequence[CleaningTask]) -> list[PartitionReport]:
        reports: list[PartitionReport] = []
        total_bytes = sum(task.weight() for task in tasks)
        progress = self._stack.enter_context(Progress(self._options.messages(), len(tasks), total_bytes))
        try:
            sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
        except RunStopped:
            return [
                self._logged(report) for report in self._settle_all([TaskResult(task, None, None) for task in tasks])
            ]
        self.clock.lap(SPARK)
        self._stack.enter_context(cancel_when(self._stop, sc, self.run_id))
        pace, there = self._pace(sc), find_resources(sc, total_bytes, asked=self._own.strategy)
        chosen: Sequence[CleaningTask] = [replace(task, pace=pace, resources=there) for task in tasks]
        if self._own.is_limited:
            chosen, left = self._choose(sc, chosen)
            reports.extend(map(self._logged, left))
            self.clock.lap(SURVEY)
            progress.advance(sum(report.bytes_before for report in left), partitions=len(left))
        in_order = self._own.is_limited
        open_tasks = {task.listing.path: task for task in chosen}
        progress.watch(lambda: sum(_swept_bytes(task, self._fs) for task in list(open_tasks.values())))
        for answers in self._cleaned(sc, chosen, in_order=in_order):
            for answer in answers:
                del open_tasks[answer.work.listing.path]
            self.clock.restart()
            settled = self._settle_all(answers)
            self.clock.lap(COMMIT)
            self.clock.add(answer.result.seconds_by_stage for answer in answers if answer.result)
            for report in settled:
                reports.append(self._logged(report))
                progress.advance(report.bytes_before)
        if not self._own.dry_run:
            # The tokens first: an attempt that lost, frozen on a host that has not noticed, may still want to write.
            for path in self._options.log_dirs:
                remove_run_token(path)
            for task in tasks:
                handed_over = self._handed_over.get(task.listing.path, ())
                discard_parts(task.listing.path, self.run_id, self._fs, keep=handed_over)
        return reports

    def _cleaned(
        self, sc: Any, tasks: Sequence[CleaningTask], *, in_order: bool
    ) -> Iterator[list[TaskResult[CleaningTask, CleaningResult]]]:
        """The answers of all tasks; partitions that are to be split come last, one by one, each with all slots."""
        to_split: list[tuple[CleaningTask, CleaningResult]] = []
        for answers in run_pending(
            sc,
            tasks,
            start_partition,
            CleaningTask.weight if in_order else CleaningTask.expected_bytes,
            group=self.run_id,
            in_order=in_order,
            is_stopped=self._stop.is_set,
        ):
            done = []
            for answer in answers:
                if answer.result is not None and answer.result.to_split is not None:
                    to_split.append((answer.work, answer.result))
                else:
                    done.append(answer)
            yield done
        for task, asked in to_split:
            # The rooms of splits load compiled loops, which a run without one does not need on the driver.
            from sediment.jobs.cleaning.splits import clean_partition_in_splits

            if self._stop.is_set():
                yield [TaskResult(task, failure(STOPPED, "the run was stopped before this partition"), None)]
                continue
            clock = StageTimer()
            clock.add([asked.seconds_by_stage])
            try:
                result = clean_partition_in_splits(sc, task, asked)
            except Exception as error:
                yield [TaskResult(task, None, error)]
                continue
            clock.lap(CLEAN)
            yield [TaskResult(task, replace(result, seconds_by_stage=clock.seconds()), None)]

    def _logged(self, report: PartitionReport) -> PartitionReport:
        if report.reason_code == UNCLEAN:
            report = replace(report, reason=self._running.get(report.log_dir, report.reason))
        log_partition(self.run_id, "compact", report)
        return report

    def _pace(self, sc: Any) -> RateLimit:
        """The limits of this run as one executor has to keep them."""
        rate = self._bytes_per_second
        seconds = self._own.max_seconds
        return RateLimit(
            bytes_per_second=rate / executors(sc) if rate < DOUBLE_MAX else None,
            throttle_name=f"sediment-{self.run_id}.throttle",
            deadline_s=None if seconds is None else self._started + seconds,
        )

    def _choose(self, sc: Any, tasks: Sequence[CleaningTask]) -> tuple[list[CleaningTask], list[PartitionReport]]:
        """The tasks that fit --max-bytes, filthiest first, and a report for every other partition."""
        from sediment.compaction.policy import filthiest_first

        reports: list[PartitionReport] = []
        cleanable: list[tuple[tuple[CleaningTask, int], CleanableRange]] = []
        for answers in run_on_executors(
            sc, tasks, survey_partition, CleaningTask.weight, group=self.run_id, is_stopped=self._stop.is_set
        ):
            for answer in answers:
                found = answer.result or self._lost(answer.error)
                if isinstance(found, SurveyResult):
                    cleanable.append(((answer.work, found.cleaned_bytes), found.cleanable))
                else:
                    reports.extend(self._settle_all([TaskResult(answer.work, found, None)]))
        chosen = []
        left_bytes = INT64_MAX if self._own.max_bytes is None else self._own.max_bytes
        for task, needed_bytes in filthiest_first(cleanable):
            if needed_bytes <= left_bytes:
                chosen.append(task)
                left_bytes -= needed_bytes
                continue
            reason = (
                f"cleaning it reads {needed_bytes} bytes, and of --max-bytes {self._own.max_bytes} this run has "
                f"{left_bytes} left; run again to go on"
            )
            reports.append(untouched(task.listing, SKIPPED, MAX_BYTES, reason))
        return chosen, reports

    def _settle_all(self, answers: Sequence[TaskResult[CleaningTask, CleaningResult]]) -> list[PartitionReport]:
        """Commit what a task prepared, then write each directory's checkpoint and its marks once."""
        reports = []
        checkpoints: dict[Path, dict[TopicPartition, int]] = {}
        damaged: dict[Path, list[Uncleanable]] = {}
        mended: dict[Path, list[TopicPartition]] = {}
        self._sync_together([answer.result.swap for answer in answers if answer.result and answer.result.swap])
        for answer in answers:
            result = answer.result or self._lost(answer.error)
            report, offset = self._settle(answer.work, result)
            reports.append(report)
            partition, log_dir = answer.work.listing.partition, answer.work.listing.path.parent
            if offset is not None:
                checkpoints.setdefault(log_dir, {})[partition] = offset
            if result.uncleanable is not None:
                damaged.setdefault(log_dir, []).append(result.uncleanable)
            elif report.status == COMPACTED and not report.corrupt_batches and partition in self._marks[log_dir]:
                mended.setdefault(log_dir, []).append(partition)
        if self._own.dry_run or self._own.hand_off is not None:
            return reports
        for log_dir in {*damaged, *mended}:
            try:
                update_uncleanable(log_dir, self._fs, add=damaged.get(log_dir, ()), remove=mended.get(log_dir, ()))
            except OSError as error:
                self._options.messages().print(
                    f"sediment: what was quarantined is not remembered: {describe(error)[1]}", style="red", markup=False
                )
        for log_dir, offsets in checkpoints.items():
            try:
                _update_checkpoint(self._fs, log_dir / CLEANER_FILE, offsets)
            except (SedimentError, OSError) as error:
                late = f"its segments are clean, but the checkpoint was not written: {describe(error)[1]}"
                reports = [
                    replace(report, status=FAILED, reason_code="checkpoint-not-written", reason=late)
                    if report.log_dir == str(log_dir) and report.partition in map(str, offsets)
                    else report
                    for report in reports
                ]
        return reports

    def _lost(self, error: Exception | None) -> CleaningResult:
        if self._stop.is_set():
            return failure(STOPPED, "the run was stopped before this partition was clean")
        return failure(*describe_lost_task(error))

    def _sync_together(self, swaps: Sequence[PreparedSwap]) -> None:
        """Make many small swaps durable at once before the first of them is committed: flushes then share the disk."""
        self._synced = {}
        if self._own.dry_run or self._own.hand_off is not None or len(swaps) < _WORTH_SYNCING_TOGETHER:
            return
        with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="sediment-sync") as pool:
            for swap in swaps:
                if swap.parts():
                    self._synced[Path(swap.directory)] = pool.submit(make_durable, swap, self._fs)

    def _settle(self, task: CleaningTask, result: CleaningResult) -> tuple[PartitionReport, int | None]:
        """Commit one partition: its report, and what its checkpoint is to become."""
        report = report_of(task, result)
        swap = result.swap
        if swap is None:
            return report, None if result.failed else result.reset_checkpoint
        if not self._own.dry_run:
            where = "before this partition"
            try:
                finished = not self._stop.is_set()
                if finished:
                    finished = self._commit(task, swap)
                    where = "in this partition"
            except (SedimentError, OSError) as error:
                code, sentence = describe(error)
                return replace(report, status=FAILED, reason_code=code, reason=sentence), None
            if not finished:
                return replace(report, status=FAILED, reason_code=STOPPED, reason=f"the run was stopped {where}"), None
        if self._own.hand_off is not None:
            report = replace(report, reason_code=HANDED_OFF, reason=f"left in {self._own.hand_off} for the engine")
        return with_swap(report, task.listing, swap), swap.next_dirty_offset

    def _commit(self, task: CleaningTask, swap: PreparedSwap) -> bool:
        """Commit a swap, or leave it to the engine that owns the directory; False where the run was stopped in it."""
        if self._own.hand_off is not None:
            spool_swap(swap, self._own.hand_off, self.run_id, self._fs)
            self._handed_over[task.listing.path] = {part.part_name for part in swap.parts()}
            return True
        if self._originals is not None:
            self._originals.keep_swap(swap)
        if swap.parts():
            self._keep_before(swap.partition, task.listing.path.parent)
        lock, synced = self._locks[task.listing.path.parent], self._synced.get(Path(swap.directory))
        if synced is not None:
            synced.result()
        is_durable = synced is not None
        return commit(swap, self._fs, before_group=lock.check, should_stop=self._stop.is_set, is_durable=is_durable)

    def _keep_before(self, partition: TopicPartition, log_dir: Path) -> None:
        """Link a partition that is about to change, or that an interrupted run just changed."""
        if self._own.keep_before is not None:
            snapshot_partition(partition, log_dir, self._own.keep_before, self._fs)


def _update_checkpoint(fs: Fs, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Set `offsets`; a file that cannot be understood counts as empty here too and is replaced."""
    like = path.with_name(LOCK_FILE)
    try:
        update_offset_checkpoint(fs, path, offsets, like=like)
    except CorruptCheckpointError:
        write_offset_checkpoint(fs, path, offsets, like=like)


def _swept_bytes(task: CleaningTask, fs: Fs) -> int:
    """About how much of a partition was swept, as the parts of finished groups tell: it goes from the end."""
    if task.weight() < _WORTH_WATCHING_BYTES:
        return 0
    try:
        named = [parse_segment_file(entry.name) for entry in fs.scan(task.listing.path) if task.run_id in entry.name]
    except OSError:
        return 0
    lowest = min((name.base_offset for name in named if name is not None), default=INT64_MAX)
    return sum(segment.log_bytes for segment in task.listing.segments if segment.base_offset >= lowest)


@click.command("compact")
@common_options
@click.option("--force", is_flag=True, help="Ignore the dirty ratio; an empty dirty range still changes nothing.")
@click.option("--dry-run", is_flag=True, help="Clean in memory, write nothing, report what would be.")
@click.option("--from-start", is_flag=True, help="Ignore the cleaner checkpoint: everything is dirty.")
@click.option(
    "--strategy",
    type=click.Choice(["auto", *(strategy.value for strategy in Strategy)]),
    default="auto",
    show_default=True,
    help="Clean a partition as a whole, by one task, or in splits, by many; auto: as size, keys and slots suggest.",
)
@key_equality_option
@click.option(
    "--on-corruption",
    type=click.Choice([FAIL, KEEP]),
    default=FAIL,
    show_default=True,
    help="A partition with a damaged batch: leave it alone and remember why, or clean what can be read.",
)
@click.option("--retry-quarantined", is_flag=True, help="Look again at partitions that were left alone for damage.")
@click.option("--roll-active", is_flag=True, help="Roll the last segment of a stopped copy, so that it is cleaned too.")
@click.option(
    "--keep-originals",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Link the files that are replaced into DIR first; it must be on the same filesystem.",
)
@click.option(
    "--keep-before",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Link all files of partitions that change into DIR first: the BEFORE of verify.  A directory for each run.",
)
@click.option("--max-bytes", type=click.IntRange(min=0), metavar="N", help="Clean at most N bytes of log in this run.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Begin nothing more after N seconds; end what runs.",
)
@click.option(
    "--hand-off",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Leave what is cleaned in DIR for the running engine that owns LOG_DIR, and commit nothing.",
)
@click.option(
    "--output",
    metavar="DIR_OR_URI",
    help="Write a complete log directory there and leave LOG_DIR as it is; needed where LOG_DIR is a URI.",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="With --output: where partitions behind a URI are fetched to (default: $TMPDIR).",
)
@click.option("--allow-network-fs", is_flag=True, help="Work on NFS and its like; no other host may use the directory.")
def command(options: CommonOptions, strategy: str, key_equality: str, **own_options: Any) -> None:
    """Compact the partitions of LOG_DIR... whose cleanup.policy has compact."""
    own = CompactOptions(
        strategy=None if strategy == "auto" else Strategy(strategy),
        key_equality=KeyEquality(key_equality),
        **own_options,
    )
    with stop_on_signals() as stop:
        report = compact(options, own, stop)
    options.conclude(report, report_json, print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, which `__main__` is not on an executor.
    from sediment.jobs.compact import command as importable

    importable()
