"""`sediment compact LOG_DIR …`: lock, list, finish what was interrupted, spread the cleaning, commit, account.

    driver    lock · list · finish_interrupted            commit (one group at a time, ascending) · checkpoint · report
    tasks                                       view · plan · clean

Invariants: only the driver renames; a partition is committed as a whole task result, its checkpoint after its last
group; whatever fails in one partition leaves that partition as it was and the others go on.  With a limit on the run
all partitions are surveyed first and cleaned filthiest first; what the limit leaves over is as it was.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sediment.compaction.config import CompactionConfig
from sediment.compaction.handoff import CleanStats, PreparedSwap
from sediment.engine.hand_off import check_announced, hand_over
from sediment.engine.lock import DirectoryLock, check_run_token, place_run_token, remove_run_token
from sediment.engine.originals import check_place, keep_originals
from sediment.engine.swap import commit, discard_parts, finish_interrupted
from sediment.engine.throttle import Throttle
from sediment.engine.uncleanable import Uncleanable, read_uncleanable, uncleanable_after, update_uncleanable
from sediment.jobs.cluster_settings import open_directories
from sediment.jobs.delta_tables import outside_log_dirs
from sediment.jobs.directories import LogDirectory, check_filesystem, open_directory
from sediment.jobs.kafka_keys import DOUBLE_MAX
from sediment.jobs.log_lines import log_partition
from sediment.jobs.options import EXIT_DONE, EXIT_FAILED, CommonOptions, common_options
from sediment.jobs.progress import Progress
from sediment.jobs.report import (
    ACTIVE_SEGMENT,
    CLEAN_SEGMENT,
    COMPACTED,
    DIRTY_SEGMENT,
    FAILED,
    KEPT_SEGMENT,
    QUARANTINED,
    REWRITTEN_SEGMENT,
    SKIPPED,
    PartitionReport,
    RunReport,
    StripSegment,
    print_report,
    report_json,
    utc_time,
)
from sediment.jobs.sentences import told
from sediment.jobs.session import spark_context
from sediment.jobs.spread import Answer, spread
from sediment.jobs.stages import CLEAN, COMMIT, LIST, PLAN, SPARK, SURVEY, VIEW, StageClock
from sediment.segment_io.checkpoints import update_offset_checkpoint, write_offset_checkpoint
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    CorruptDataError,
    LimitReachedError,
    NoSpaceError,
    SedimentError,
    SourceChangedError,
    UsageError,
)
from sediment.segment_io.format import INT64_MAX
from sediment.segment_io.fs import Buffer, Fs, PretendingFs
from sediment.segment_io.listing import LogListing, SegmentRef, list_log
from sediment.segment_io.log_dir import PartitionCheckpoints
from sediment.segment_io.names import CLEANER_FILE, LOCK_FILE, TopicPartition, parse_segment_file

if TYPE_CHECKING:
    from sediment.compaction.grouping import CleaningPlan
    from sediment.compaction.policy import CleanableRange
    from sediment.segment_io.view import LogView

_Result = TypeVar("_Result")

_LOGGER = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_POLL_SECONDS = 0.2
_WORTH_WATCHING_BYTES = 256 << 20  # a smaller partition is done before a look at it says much
SAMPLE_BYTES = 32 << 20  # of a log that is too large to be looked at as a whole
_WRITE_BYTES = 8 << 20  # what is written between two looks at the throttle

FAIL = "fail"
MAX_BYTES, MAX_SECONDS = "max-bytes", "max-seconds"
HANDED_OFF = "handed-off"


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What `compact` itself takes (commands.md)."""

    force: bool
    dry_run: bool
    from_start: bool
    on_corruption: str = FAIL
    """What becomes of a partition with a damaged batch: `fail` leaves it alone and marks it."""

    roll_active: bool = False
    keep_originals: Path | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    retry_quarantined: bool = False
    allow_network_fs: bool = False
    hand_off: Path | None = None
    """The folder of the engine that owns the directories: it commits what is left there, this run commits nothing."""

    @property
    def is_limited(self) -> bool:
        """Whether the run may end before everything is done, so that the order matters."""
        return self.max_bytes is not None or self.max_seconds is not None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast and how long tasks may work.

    `bytes_per_second` is for all tasks of one executor together, which share the file `throttle_name` in Spark's
    folder of the run; `deadline_s` is a moment in seconds since the epoch.  None: no limit.
    """

    bytes_per_second: float | None = None
    throttle_name: str = ""
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """One partition's work, as it goes to an executor.

    `on_disk` are the segments where they are not those of `listing`: a dry run pretends a roll.
    """

    listing: LogListing
    checkpoints: PartitionCheckpoints
    config: CompactionConfig
    options: CompactOptions
    now_ms: int
    run_id: str
    on_disk: tuple[SegmentRef, ...] | None = None
    pace: Pace = Pace()

    def weight(self) -> int:
        """Bytes of log: what tasks are packed by."""
        return self.listing.log_bytes()


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """What a task found and prepared: a `swap` to commit, or the `reason` why there is none.

    `failed` tells an error from a partition that simply has nothing to do; `reset_checkpoint` is a first dirty offset
    that replaces an impossible one even where nothing was cleaned.  `uncleanable` is the mark that damage leaves.
    """

    swap: PreparedSwap | None
    first_dirty_offset: int | None
    first_uncleanable_offset: int | None
    reset_checkpoint: int | None
    reason_code: str | None
    reason: str | None
    failed: bool
    uncleanable: Uncleanable | None = None
    dirty_ratio: float | None = None
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a survey says of a partition that may be cleaned; `cleaned_bytes` are those that cleaning reads."""

    cleanable: CleanableRange
    cleaned_bytes: int


# ------------------------------------------------------------------------------------------------------------ in a task
class _RunFs(Fs):
    """Writes only as long as the run's token is there: a task that outlives its run leaves nothing behind."""

    def __init__(self, log_dir: Path, run_id: str, count: Callable[[int], None]) -> None:
        self._log_dir = log_dir
        self._run_id = run_id
        self._count = count

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        check_run_token(self._log_dir, self._run_id)
        return super().write_new(path, self._counted(chunks))

    def _counted(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            for start in range(0, len(view), _WRITE_BYTES):
                piece = view[start : start + _WRITE_BYTES]
                yield piece
                self._count(len(piece))


@contextmanager
def _paced(pace: Pace) -> Iterator[Callable[[int], None]]:
    """What a task calls with the bytes that it read or wrote: it waits for the throttle and ends at the deadline."""
    throttle = None
    if pace.bytes_per_second is not None:
        from pyspark import SparkFiles

        throttle = Throttle(Path(SparkFiles.getRootDirectory()) / pace.throttle_name, pace.bytes_per_second)

    def used(count: int) -> None:
        left_seconds = math.inf if pace.deadline_s is None else pace.deadline_s - time.time()
        if throttle is not None and left_seconds > 0:
            throttle.take(count, most_seconds=left_seconds)
        if pace.deadline_s is not None and time.time() >= pace.deadline_s:
            raise LimitReachedError("the time of --max-seconds is over", advice="run again to go on")

    try:
        used(0)
        yield used
    finally:
        if throttle is not None:
            throttle.close()


def clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    """View, plan and clean one partition; errors of this partition are part of the result."""
    return _with_errors(task, lambda: _clean_partition(task, attempt))


def survey_partition(task: CleaningTask, _attempt: str) -> Prospect | CleaningResult:
    """View and plan one partition; the result that cleaning would have where there is nothing to clean."""
    return _with_errors(task, lambda: _survey_partition(task))


def _with_errors(task: CleaningTask, work: Callable[[], _Result]) -> _Result | CleaningResult:
    try:
        return work()
    except LimitReachedError as error:
        return replace(_failure(MAX_SECONDS, str(error)), failed=False)
    except CorruptDataError as error:
        code, reason = told(error)
        if isinstance(error, CorruptCheckpointError):
            return _failure(code, reason)
        mark = uncleanable_after(error, task.listing, reason_code=code, reason=reason, since_ms=task.now_ms)
        return replace(_failure(code, reason), uncleanable=mark)
    except (SedimentError, OSError) as error:
        return _failure(*told(error))


def _failure(code: str, reason: str) -> CleaningResult:
    return CleaningResult(None, None, None, None, code, reason, failed=True)


def look_at(task: CleaningTask, fs: Fs) -> tuple[LogView, CleanableRange]:
    """The view of a task's partition and what of it may be cleaned.

    Raises:
        SourceChangedError: the segments are not those that the driver listed.
        SedimentError: whatever `open_view` raises.
    """
    # The driver needs none of these: kernels are loaded where they run.
    from sediment.compaction.policy import cleanable_range
    from sediment.segment_io.view import open_view

    listing, config = task.listing, task.config
    found = list_log(listing.partition, listing.path, fs).segments
    listed = task.on_disk or listing.segments
    if task.options.hand_off is not None:
        # The engine goes on writing to the active segment, and rolls it.
        listed = listed[:-1]
        found = found[: len(listed)]
    if found != listed:
        raise SourceChangedError(
            "the segments are not those that the driver listed",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="another disk is mounted under this path, or another process writes to it",
        )
    view = open_view(
        listing,
        task.checkpoints,
        fs,
        now_ms=task.now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        first_batch_timestamps=config.max_compaction_lag_ms < INT64_MAX,
    )
    options = task.options
    return view, cleanable_range(view, config, now_ms=task.now_ms, force=options.force, from_start=options.from_start)


def _blocked(view: LogView, cleanable: CleanableRange, config: CompactionConfig) -> CleaningResult | None:
    from sediment.compaction.policy import explain

    if cleanable.blocked_by is None:
        return None
    return CleaningResult(
        None,
        cleanable.first_dirty_offset,
        cleanable.first_uncleanable_offset,
        cleanable.force_checkpoint,
        cleanable.blocked_by.value,
        explain(cleanable, view, config),
        failed=False,
        dirty_ratio=cleanable.cleanable_ratio,
    )


def _survey_partition(task: CleaningTask) -> Prospect | CleaningResult:
    from sediment.compaction.grouping import plan_cleaning

    with _paced(task.pace):
        view, cleanable = look_at(task, Fs())
    blocked = _blocked(view, cleanable, task.config)
    if blocked is not None:
        return blocked
    plan = plan_cleaning(view, cleanable, task.config, now_ms=task.now_ms)
    return Prospect(cleanable, sum(group.log_bytes for group in plan.groups))


def _clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    from sediment.compaction.cleaner import clean_log
    from sediment.compaction.grouping import plan_cleaning
    from sediment.compaction.strategy import choose_strategy

    clock = StageClock()
    options, config, listing = task.options, task.config, task.listing
    if not options.dry_run:
        check_run_token(listing.path.parent, task.run_id)
    with _paced(task.pace) as used:
        fs = PretendingFs() if options.dry_run else _RunFs(listing.path.parent, task.run_id, used)
        view, cleanable = look_at(task, fs)
        clock.lap(VIEW)
        blocked = _blocked(view, cleanable, config)
        if blocked is not None:
            return replace(blocked, seconds_by_stage=clock.seconds())
        plan = plan_cleaning(view, cleanable, config, now_ms=task.now_ms)
        _check_headroom(plan, fs)
        clock.lap(PLAN)
        try:
            swap = clean_log(plan, fs, run_id=task.run_id, attempt=attempt, progress=used)
        except BaseException:
            if not options.dry_run:
                discard_parts(listing.path, task.run_id, fs, attempt=attempt)
            raise
    clock.lap(CLEAN)
    before = (task.on_disk or listing.segments)[:-1]
    if options.dry_run and list_log(listing.partition, listing.path, fs).segments[:-1] != before:
        raise SourceChangedError(
            "the segments changed while they were read",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="stop the broker or work on a copy; a dry run takes no lock",
        )
    return CleaningResult(
        swap,
        cleanable.first_dirty_offset,
        cleanable.first_uncleanable_offset,
        cleanable.force_checkpoint,
        None,
        None,
        failed=False,
        dirty_ratio=cleanable.cleanable_ratio,
        seconds_by_stage=clock.seconds(),
        strategy=choose_strategy(plan).strategy.value,
    )


def _check_headroom(plan: CleaningPlan, fs: Fs) -> None:
    """Room for what survives: all groups are written before the first is committed and its sources give room back.

    Where even a log that loses nothing would fit, nothing is estimated.  What an estimate gets wrong is met when the
    disk runs out, and undone.
    """
    from sediment.compaction.estimate import collect_sample, estimate_cleaning
    from sediment.segment_io.sample import sampled_batches

    listing = plan.view.listing
    segments = [segment for group in plan.groups for segment in group.segments]
    needed = sum(segment.log_bytes for segment in segments)
    free = fs.free_bytes(listing.path)
    if free >= needed:
        return
    sample = collect_sample(sampled_batches(listing.path, segments, fs, budget_bytes=SAMPLE_BYTES))
    retention_ms = plan.config.delete_retention_ms
    needed = estimate_cleaning(sample, needed, now_ms=plan.now_ms, delete_retention_ms=retention_ms).log_bytes
    if free < needed:
        raise NoSpaceError(
            f"the disk has {free} bytes free and what survives cleaning takes about {needed}",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="free some space and run again, nothing was changed",
        )


# -------------------------------------------------------------------------------------------------------- on the driver
def compact(options: CommonOptions, own: CompactOptions, stop: threading.Event | None = None) -> RunReport:
    """Compact the selected partitions of `options.log_dirs`, with Spark if there is anything to clean.

    `stop`, once set, ends the run after the group being committed; what was not done is reported as failed.

    Raises:
        UsageError: a directory or setting is wrong; nothing was touched.
        DirectoryInUseError: a broker or another run holds a directory.
    """
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
        self.clock = StageClock()
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._bytes_per_second = DOUBLE_MAX
        self._fs = Fs()
        self._locks: dict[Path, DirectoryLock] = {}
        self._marks: dict[Path, Mapping[TopicPartition, Uncleanable]] = {}
        self._handed_over: dict[Path, set[str]] = {}
        self._started = time.time()

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
            reports.extend(self._clean_and_commit(tasks))
        return reports

    def _open_directories(self) -> list[LogDirectory]:
        """Check that every directory is one before any of them is touched; read them once they are ours."""
        options = self._options
        own = self._own
        for path in options.log_dirs:
            open_directory(path, options.partitions, self._fs)
            if own.keep_originals is not None:
                outside_log_dirs(str(own.keep_originals), [path])
            if not own.dry_run:
                check_filesystem(path, allow_network=own.allow_network_fs)
        if own.hand_off is not None:
            self._check_hand_off(own.hand_off)
        if not own.dry_run:
            for path in options.log_dirs:
                if own.keep_originals is not None:
                    check_place(own.keep_originals, path, self._fs)
                if own.hand_off is None:
                    self._locks[path] = self._stack.enter_context(DirectoryLock(path))
                place_run_token(path, self.run_id)
                self._stack.callback(remove_run_token, path)
        directories = open_directories(options.log_dirs, options.partitions, options.settings, self._fs)
        for directory in directories:
            rate = directory.settings.broker_value("log.cleaner.io.max.bytes.per.second")
            assert isinstance(rate, float)
            self._bytes_per_second = min(self._bytes_per_second, rate)
            if directory.is_unclean and own.hand_off is None:
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
        ):
            if given:
                raise UsageError(f"--hand-off leaves the directories to their engine, {option} does not go with it")
        check_announced(folder, self._options.log_dirs, self._fs)
        self._stack.enter_context(DirectoryLock(folder))

    def _prepare(self, directory: LogDirectory) -> Iterator[CleaningTask | PartitionReport]:
        """A task for each partition that is to be compacted, a report for each that is not."""
        for partition in directory.partitions:
            try:
                yield self._prepare_partition(directory, partition)
            except (SedimentError, OSError) as error:
                code, sentence = told(error)
                yield PartitionReport(str(partition), str(directory.path), FAILED, code, sentence)

    def _prepare_partition(self, directory: LogDirectory, partition: TopicPartition) -> CleaningTask | PartitionReport:
        path = directory.path / str(partition)
        config = directory.config_of(partition, self._fs)
        listing = list_log(partition, path, self._fs)
        if not config.compacts:
            policy = ",".join(config.cleanup_policy) or "empty"
            return _report(listing, SKIPPED, "not-compacted", f"cleanup.policy is {policy}")
        if listing.leftovers and self._own.dry_run:
            return _report(
                listing,
                SKIPPED,
                "interrupted",
                "an earlier run or broker was interrupted here; a run without --dry-run finishes that first",
            )
        if not self._own.dry_run and self._own.hand_off is None and finish_interrupted(path, self._fs):
            listing = list_log(partition, path, self._fs)
        mark = self._marks[directory.path].get(partition)
        if mark is not None and mark.holds_for(listing) and not self._own.retry_quarantined:
            return quarantined(listing, mark)
        checkpoints = directory.checkpoints.of(partition)
        task = CleaningTask(listing, checkpoints, config.compaction, self._own, self._options.now_ms, self.run_id)
        if not self._own.roll_active:
            return task
        rolled = _with_errors(task, lambda: self._roll_active(task))
        return rolled if isinstance(rolled, CleaningTask) else self._settle_all([Answer(task, rolled, None)])[0]

    def _roll_active(self, task: CleaningTask) -> CleaningTask:
        """The task once its last segment is rolled, as far as that lets the log be cleaned; a dry run only pretends."""
        from sediment.engine.roll import perform_roll, plan_roll

        listing, config = task.listing, task.config
        view, _ = look_at(task, self._fs)
        roll = plan_roll(
            view,
            self._fs,
            index_interval_bytes=config.index_interval_bytes,
            segment_index_bytes=config.segment_index_bytes,
        )
        if roll is None:
            return task
        rolled = replace(task, listing=roll.listing, on_disk=listing.segments)
        if look_at(rolled, self._fs)[1].blocked_by is not None:
            return task
        if task.options.dry_run:
            return rolled
        perform_roll(roll, self._fs)
        return replace(task, listing=list_log(listing.partition, listing.path, self._fs))

    def _clean_and_commit(self, tasks: Sequence[CleaningTask]) -> list[PartitionReport]:
        reports: list[PartitionReport] = []
        total_bytes = sum(task.weight() for task in tasks)
        progress = self._stack.enter_context(Progress(self._options.messages(), len(tasks), total_bytes))
        sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
        self.clock.lap(SPARK)
        self._stack.enter_context(cancel_when(self._stop, sc, self.run_id))
        chosen: Sequence[CleaningTask] = [replace(task, pace=self._pace(sc)) for task in tasks]
        if self._own.is_limited:
            chosen, left = self._choose(sc, chosen)
            reports.extend(map(self._logged, left))
            self.clock.lap(SURVEY)
            progress.advance(sum(report.bytes_before for report in left), partitions=len(left))
        in_order = self._own.is_limited
        open_tasks = {task.listing.path: task for task in chosen}
        progress.watch(lambda: sum(_swept_bytes(task, self._fs) for task in list(open_tasks.values())))
        for answers in spread(sc, chosen, clean_partition, CleaningTask.weight, group=self.run_id, in_order=in_order):
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

    def _logged(self, report: PartitionReport) -> PartitionReport:
        log_partition(self.run_id, "compact", report)
        return report

    def _pace(self, sc: Any) -> Pace:
        """The limits of this run as one executor has to keep them."""
        rate = self._bytes_per_second
        seconds = self._own.max_seconds
        return Pace(
            bytes_per_second=rate / _executors(sc) if rate < DOUBLE_MAX else None,
            throttle_name=f"sediment-{self.run_id}.throttle",
            deadline_s=None if seconds is None else self._started + seconds,
        )

    def _choose(self, sc: Any, tasks: Sequence[CleaningTask]) -> tuple[list[CleaningTask], list[PartitionReport]]:
        """The tasks that fit --max-bytes, filthiest first, and a report for every other partition."""
        from sediment.compaction.policy import filthiest_first

        reports: list[PartitionReport] = []
        cleanable: list[tuple[tuple[CleaningTask, int], CleanableRange]] = []
        for answers in spread(sc, tasks, survey_partition, CleaningTask.weight, group=self.run_id):
            for answer in answers:
                found = answer.result or _task_lost(answer.error)
                if isinstance(found, Prospect):
                    cleanable.append(((answer.work, found.cleaned_bytes), found.cleanable))
                else:
                    reports.extend(self._settle_all([Answer(answer.work, found, None)]))
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
            reports.append(_report(task.listing, SKIPPED, MAX_BYTES, reason))
        return chosen, reports

    def _settle_all(self, answers: Sequence[Answer[CleaningTask, CleaningResult]]) -> list[PartitionReport]:
        """Commit what a task prepared, then write each directory's checkpoint and its marks once."""
        reports = []
        checkpoints: dict[Path, dict[TopicPartition, int]] = {}
        damaged: dict[Path, list[Uncleanable]] = {}
        mended: dict[Path, list[TopicPartition]] = {}
        for answer in answers:
            result = answer.result or _task_lost(answer.error)
            report, offset = self._settle(answer.work, result)
            reports.append(report)
            partition, log_dir = answer.work.listing.partition, answer.work.listing.path.parent
            if offset is not None:
                checkpoints.setdefault(log_dir, {})[partition] = offset
            if result.uncleanable is not None:
                damaged.setdefault(log_dir, []).append(result.uncleanable)
            elif report.status == COMPACTED and partition in self._marks[log_dir]:
                mended.setdefault(log_dir, []).append(partition)
        if self._own.dry_run or self._own.hand_off is not None:
            return reports
        for log_dir in {*damaged, *mended}:
            try:
                update_uncleanable(log_dir, self._fs, add=damaged.get(log_dir, ()), remove=mended.get(log_dir, ()))
            except OSError as error:
                self._options.messages().print(
                    f"sediment: what was quarantined is not remembered: {told(error)[1]}", style="red", markup=False
                )
        for log_dir, offsets in checkpoints.items():
            try:
                _update_checkpoint(self._fs, log_dir / CLEANER_FILE, offsets)
            except (SedimentError, OSError) as error:
                late = f"its segments are clean, but the checkpoint was not written: {told(error)[1]}"
                reports = [
                    replace(report, status=FAILED, reason_code="checkpoint-not-written", reason=late)
                    if report.log_dir == str(log_dir) and report.partition in map(str, offsets)
                    else report
                    for report in reports
                ]
        return reports

    def _settle(self, task: CleaningTask, result: CleaningResult) -> tuple[PartitionReport, int | None]:
        """Commit one partition: its report, and what its checkpoint is to become."""
        report = _found(task, result)
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
                code, sentence = told(error)
                return replace(report, status=FAILED, reason_code=code, reason=sentence), None
            if not finished:
                return replace(
                    report, status=FAILED, reason_code="stopped", reason=f"the run was stopped {where}"
                ), None
        if self._own.hand_off is not None:
            report = replace(report, reason_code=HANDED_OFF, reason=f"left in {self._own.hand_off} for the engine")
        return _compacted(report, task.listing, swap), swap.next_dirty_offset

    def _commit(self, task: CleaningTask, swap: PreparedSwap) -> bool:
        """Commit a swap, or leave it to the engine that owns the directory; False where the run was stopped in it."""
        if self._own.hand_off is not None:
            hand_over(swap, self._own.hand_off, self.run_id, self._fs)
            self._handed_over[task.listing.path] = {part.part_name for part in swap.parts()}
            return True
        if self._own.keep_originals is not None:
            keep_originals(swap, self._own.keep_originals, self._fs)
        lock = self._locks[task.listing.path.parent]
        return commit(swap, self._fs, before_group=lock.check, should_stop=self._stop.is_set)


def _update_checkpoint(fs: Fs, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Set `offsets`; a file that cannot be understood counts as empty here too and is replaced."""
    like = path.with_name(LOCK_FILE)
    try:
        update_offset_checkpoint(fs, path, offsets, like=like)
    except CorruptCheckpointError:
        write_offset_checkpoint(fs, path, offsets, like=like)


def _task_lost(error: Exception | None) -> CleaningResult:
    sentence = str(error).strip().split("\n")[0] if error else "no reason given"
    return _failure("task-lost", f"Spark gave up on the task: {sentence}")


def _executors(sc: Any) -> int:
    """How many executors share the work; the driver is one of its own where tasks run in it."""
    known = sc._jsc.sc().getExecutorMemoryStatus().size()
    return max(int(known) - 1, 1)


def _report(listing: LogListing, status: str, code: str | None, reason: str | None) -> PartitionReport:
    size_bytes = listing.log_bytes()
    return PartitionReport(
        partition=str(listing.partition),
        log_dir=str(listing.path.parent),
        status=status,
        reason_code=code,
        reason=reason,
        bytes_before=size_bytes,
        bytes_after=size_bytes,
        segments_before=len(listing.segments),
        segments=tuple(segment.base_offset for segment in listing.segments),
    )


def quarantined(listing: LogListing, mark: Uncleanable) -> PartitionReport:
    """The report of a partition that `mark` keeps from being looked at."""
    since = f"left alone since {utc_time(mark.since_ms)}: {mark.reason}"
    again = "--retry-quarantined looks at the partition again"
    return _report(listing, QUARANTINED, mark.reason_code, f"{since}; {again}")


def compacted(task: CleaningTask, result: CleaningResult) -> PartitionReport:
    """The report that committing `result`, which has a swap, ends in."""
    assert result.swap is not None
    return _compacted(_found(task, result), task.listing, result.swap)


def _found(task: CleaningTask, result: CleaningResult) -> PartitionReport:
    """What a task found, before anything is committed."""
    status = QUARANTINED if result.uncleanable is not None else FAILED if result.failed else SKIPPED
    return replace(
        _report(task.listing, status, result.reason_code, result.reason),
        strategy=result.strategy,
        first_dirty_offset=result.first_dirty_offset,
        first_uncleanable_offset=result.first_uncleanable_offset,
        dirty_ratio=result.dirty_ratio,
        strip_before=_strip(task.listing, result.first_dirty_offset),
        seconds_by_stage=result.seconds_by_stage,
    )


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


def _strip(listing: LogListing, first_dirty_offset: int | None) -> tuple[StripSegment, ...]:
    """The segments of a log as they are; the one that contains the first dirty offset is dirty."""
    bases = [segment.base_offset for segment in listing.segments]
    dirty_from = 0 if first_dirty_offset is None else max(bisect_right(bases, first_dirty_offset) - 1, 0)
    states = [CLEAN_SEGMENT] * dirty_from + [DIRTY_SEGMENT] * (len(bases) - dirty_from)
    states[-1:] = [ACTIVE_SEGMENT]
    return tuple(
        (segment.base_offset, segment.log_bytes, state)
        for segment, state in zip(listing.segments, states, strict=False)
    )


def _compacted(report: PartitionReport, listing: LogListing, swap: PreparedSwap) -> PartitionReport:
    replaced = {segment.base_offset for group in swap.groups if group.parts for segment in group.sources}
    kept = [segment for segment in listing.segments if segment.base_offset not in replaced]
    made = [(part.base_offset, part.files[0].size_bytes) for group in swap.groups for part in group.parts]
    judged = {segment.base_offset for group in swap.groups if not group.parts for segment in group.sources}
    strip = [
        (base, size_bytes, KEPT_SEGMENT if base in judged else state)
        for base, size_bytes, state in report.strip_before
        if base not in replaced
    ]
    stats = sum((group.stats for group in swap.groups), CleanStats())
    return replace(
        report,
        status=COMPACTED,
        next_dirty_offset=swap.next_dirty_offset,
        messages_read=sum(group.stats.messages_read for group in swap.groups),
        messages_written=sum(group.stats.messages_written for group in swap.groups),
        bytes_after=sum(segment.log_bytes for segment in kept) + sum(size for _, size in made),
        segments=tuple(sorted([segment.base_offset for segment in kept] + [base for base, _ in made])),
        groups_rewritten=sum(bool(group.parts) for group in swap.groups),
        groups_skipped=sum(not group.parts for group in swap.groups),
        corrupt_batches=sum(group.stats.corrupt_batches for group in swap.groups),
        tombstones_waiting=stats.tombstones_waiting,
        first_delete_horizon_ms=stats.first_horizon_ms if stats.tombstones_waiting else None,
        last_delete_horizon_ms=stats.last_horizon_ms if stats.tombstones_waiting else None,
        strip_after=tuple(sorted([*strip, *((base, size_bytes, REWRITTEN_SEGMENT) for base, size_bytes in made)])),
    )


@contextmanager
def cancel_when(stop: threading.Event, sc: Any, group: str) -> Iterator[None]:
    """Cancel the run's Spark jobs as soon as `stop` is set."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if stop.wait(_STOP_POLL_SECONDS) and not over.is_set():
                sc.cancelJobGroup(group)
                return

    # Not joined: it ends by itself, and a short run would wait for it.
    threading.Thread(target=watch, name="sediment-stop", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal ends the process as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def request(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)

    for number in _SIGNALS:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@click.command("compact")
@common_options
@click.option("--force", is_flag=True, help="Ignore the dirty ratio; an empty dirty range still changes nothing.")
@click.option("--dry-run", is_flag=True, help="Clean in memory, write nothing, report what would be.")
@click.option("--from-start", is_flag=True, help="Ignore the cleaner checkpoint: everything is dirty.")
@click.option(
    "--on-corruption",
    type=click.Choice([FAIL]),
    default=FAIL,
    show_default=True,
    help="What to do with a partition that has a damaged batch: leave it alone and remember why.",
)
@click.option("--retry-quarantined", is_flag=True, help="Look again at partitions that were left alone for damage.")
@click.option("--roll-active", is_flag=True, help="Roll the last segment of a stopped copy, so that it is cleaned too.")
@click.option(
    "--keep-originals",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Link the files that are replaced into DIR first; it must be on the same filesystem.",
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
@click.option("--allow-network-fs", is_flag=True, help="Work on NFS and its like; no other host may use the directory.")
def command(options: CommonOptions, **own_options: Any) -> None:
    """Compact the partitions of LOG_DIR... whose cleanup.policy has compact."""
    own = CompactOptions(**own_options)
    with stop_on_signals() as stop:
        report = compact(options, own, stop)
    if options.as_json:
        click.echo(report_json(report))
    else:
        from rich.console import Console

        print_report(report, Console())
    options.account(report_json(report))
    raise SystemExit(EXIT_FAILED if report.failed() else EXIT_DONE)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, which `__main__` is not on an executor.
    from sediment.jobs.compact import command as importable

    importable()
