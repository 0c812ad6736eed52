"""What a task does with one partition: view, plan, clean; and what goes to it and comes back.

Invariants: nothing is renamed here; whatever goes wrong with a partition is part of its result, so that Spark does not
try again what would fail again.  A task that outlives its run writes nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.compaction.strategy import KeyEquality, Resources, Strategy, StrategyChoice, choose_strategy
from sediment.compaction.write_behind import WriteBehind
from sediment.engine.directory.lock import check_run_token
from sediment.engine.directory.swap import discard_parts
from sediment.engine.directory.throttle import Throttle
from sediment.engine.directory.uncleanable import Uncleanable, uncleanable_after
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.stage_timer import CLEAN, PLAN, VIEW, StageTimer
from sediment.jobs.spark.task_pool import Pending, completed
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptCheckpointError,
    CorruptDataError,
    CorruptIndexError,
    LimitReachedError,
    NoSpaceError,
    SedimentError,
    SourceChangedError,
)
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import DryRunFs, Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef, list_log
from sediment.segment_io.partition.log_dir import PartitionCheckpoints

if TYPE_CHECKING:
    from sediment.compaction.chunks import ChunkBoundaries
    from sediment.compaction.estimate import Estimate
    from sediment.compaction.grouping import CleaningPlan
    from sediment.compaction.policy import CleanableRange
    from sediment.segment_io.partition.log_view import LogView

_Result = TypeVar("_Result")
_BEHIND = WriteBehind()  # of all partitions of this process, one after the other

SAMPLE_BYTES = 32 << 20  # of a log that is too large to be looked at as a whole
_WRITE_BYTES = 8 << 20  # what is written between two looks at the throttle

FAIL, KEEP = "fail", "keep"
WHOLE_RUN = Resources(asked=Strategy.WHOLE, slots=1, all_bytes=0, task_memory_bytes=INT64_MAX)
MAX_SECONDS = "max-seconds"


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What `compact` itself takes (docs/reference/commands.md, compact)."""

    force: bool
    dry_run: bool
    from_start: bool
    on_corruption: str = FAIL
    """What becomes of a partition with a damaged batch: `fail` leaves it alone and marks it, `keep` cleans the rest."""

    roll_active: bool = False
    keep_originals: Path | None = None
    keep_before: Path | None = None
    """Where the log directory as it was before the run is kept, of the partitions that the run changes."""

    max_bytes: int | None = None
    max_seconds: float | None = None
    retry_quarantined: bool = False
    allow_network_fs: bool = False
    strategy: Strategy | None = None
    """How partitions are cleaned; None: as their size, their keys and the slots suggest."""

    key_equality: KeyEquality = KeyEquality.HASH
    """When two keys are one and the same."""

    hand_off: Path | None = None
    """The folder of the engine that owns the directories: it commits what is left there, this run commits nothing."""

    output: str | None = None
    """Where the compacted log directory is written instead, a path or a URI; the source stays as it is."""

    scratch: Path | None = None
    """Where partitions behind a URI are fetched to, and where a run with an output works."""

    @property
    def is_limited(self) -> bool:
        """Whether the run may end before everything is done, so that the order matters."""
        return self.max_bytes is not None or self.max_seconds is not None


@dataclass(frozen=True, slots=True)
class RateLimit:
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
    pace: RateLimit = RateLimit()
    resources: Resources = WHOLE_RUN

    def weight(self) -> int:
        """Bytes of log."""
        return self.listing.log_bytes()

    def expected_bytes(self) -> int:
        """Bytes of log that cleaning is likely to read, as the driver can tell: what tasks are packed by.

        None where the checkpoint leaves too little dirty for the configured ratio.  The rule itself is the policy's,
        which needs a view of the log, and with it compiled loops that a driver does not load.
        """
        first_dirty, config, options = self.checkpoints.first_dirty, self.config, self.options
        *rolled, active = self.listing.segments or (None,)
        rolled_bytes = sum(segment.log_bytes for segment in rolled)
        if options.force or options.from_start or config.max_compaction_lag_ms < INT64_MAX:
            return rolled_bytes
        if first_dirty is None or active is None or first_dirty > active.base_offset:
            return rolled_bytes
        clean_bytes = sum(segment.log_bytes for segment in rolled if segment.base_offset < first_dirty)
        ends = [segment.base_offset for segment in (*rolled[1:], active)]
        dirty_bytes = sum(s.log_bytes for s, end in zip(rolled, ends, strict=False) if end > first_dirty)
        ratio_bytes = config.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes)
        return rolled_bytes if dirty_bytes > ratio_bytes else 0


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """What a task found and prepared: a `swap` to commit, or the `reason` why there is none.

    `failed` tells an error from a partition that simply has nothing to do; `reset_checkpoint` is a first dirty offset
    that replaces an impossible one even where nothing was cleaned.  `uncleanable` is the mark that damage leaves.
    `to_split` asks for the partition to be cleaned in splits, by many tasks; nothing else was done then.
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
    to_split: SplitPlan | None = None


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A partition that is to be cleaned in splits: its plan, and the cuts of a forward walk where it needs one."""

    plan: CleaningPlan
    cuts: dict[int, ChunkBoundaries]


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """What a survey says of a partition that may be cleaned; `cleaned_bytes` are those that cleaning reads."""

    cleanable: CleanableRange
    cleaned_bytes: int


def find_resources(sc: Any, all_bytes: int, *, asked: Strategy | None) -> Resources:
    """What the choice of a strategy depends on in a run over `all_bytes` of log.

    A task may hold its share of half of the memory that this host has; executors' hosts are taken to be like it.
    """
    slots = max(1, sc.defaultParallelism)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Resources(asked, slots, all_bytes, memory_bytes // 2 // slots)


def executors(sc: Any) -> int:
    """How many executors share the work; the driver is one of its own where tasks run in it."""
    known = sc._jsc.sc().getExecutorMemoryStatus().size()
    return max(int(known) - 1, 1)


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
def throttled(pace: RateLimit) -> Iterator[Callable[[int], None]]:
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
    return start_partition(task, attempt).finish()


def start_partition(task: CleaningTask, attempt: str) -> Pending[CleaningResult]:
    """As `clean_partition`, but for the end of writing, during which the next partition may be begun."""
    with ExitStack() as stack:
        begun = with_errors(
            task, lambda: start_cleaning(task, *stack.enter_context(working_on(task)), attempt, _BEHIND)
        )
        resources = stack.pop_all()

    def finish() -> CleaningResult:
        with resources:
            return begun if isinstance(begun, CleaningResult) else with_errors(task, begun.finish)

    return Pending(finish)


def survey_partition(task: CleaningTask, _attempt: str) -> SurveyResult | CleaningResult:
    """View and plan one partition; the result that cleaning would have where there is nothing to clean."""
    return with_errors(task, lambda: _survey_partition(task))


def with_errors(task: CleaningTask, work: Callable[[], _Result]) -> _Result | CleaningResult:
    """What `work` answers, or the result that says why it could not."""
    try:
        return work()
    except LimitReachedError as error:
        return replace(failure(MAX_SECONDS, str(error)), failed=False)
    except CorruptDataError as error:
        code, reason = describe(error)
        if isinstance(error, CorruptCheckpointError):
            return failure(code, reason)
        mark = uncleanable_after(error, task.listing, reason_code=code, reason=reason, since_ms=task.now_ms)
        return replace(failure(code, reason), uncleanable=mark)
    except (SedimentError, OSError) as error:
        return failure(*describe(error))


def failure(code: str, reason: str) -> CleaningResult:
    """The result of a partition that an error kept from being cleaned."""
    return CleaningResult(None, None, None, None, code, reason, failed=True)


def open_and_select(task: CleaningTask, fs: Fs) -> tuple[LogView, CleanableRange]:
    """The view of a task's partition and what of it may be cleaned.

    Raises:
        SourceChangedError: the segments are not those that the driver listed.
        SedimentError: whatever `open_view` raises.
    """
    # The driver needs none of these: kernels are loaded where they run.
    from sediment.compaction.policy import cleanable_range
    from sediment.segment_io.partition.log_view import open_view

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
    from sediment.compaction.policy import explain_range

    if cleanable.blocked_by is None:
        return None
    return CleaningResult(
        None,
        cleanable.first_dirty_offset,
        cleanable.first_uncleanable_offset,
        cleanable.force_checkpoint,
        cleanable.blocked_by.value,
        explain_range(cleanable, view, config),
        failed=False,
        dirty_ratio=cleanable.cleanable_ratio,
    )


def roll_active(task: CleaningTask, fs: Fs) -> CleaningTask:
    """The task once its last segment is rolled, as far as that lets the log be cleaned; a dry run only pretends.

    Raises:
        SedimentError: as `open_and_select` and `plan_roll`.
    """
    from sediment.engine.directory.roll import perform_roll, plan_roll

    listing, config = task.listing, task.config
    view, _ = open_and_select(task, fs)
    roll = plan_roll(
        view, fs, index_interval_bytes=config.index_interval_bytes, segment_index_bytes=config.segment_index_bytes
    )
    if roll is None:
        return task
    rolled = replace(task, listing=roll.listing, on_disk=listing.segments)
    if open_and_select(rolled, fs)[1].blocked_by is not None:
        return task
    if task.options.dry_run:
        return rolled
    perform_roll(roll, fs)
    return replace(task, listing=list_log(listing.partition, listing.path, fs))


def _survey_partition(task: CleaningTask) -> SurveyResult | CleaningResult:
    from sediment.compaction.grouping import plan_cleaning

    with throttled(task.pace):
        view, cleanable = open_and_select(task, Fs())
    blocked = _blocked(view, cleanable, task.config)
    if blocked is not None:
        return blocked
    plan = plan_cleaning(view, cleanable, task.config, now_ms=task.now_ms)
    return SurveyResult(cleanable, sum(group.log_bytes for group in plan.groups))


def clean_with(task: CleaningTask, fs: Fs, used: Callable[[int], None], attempt: str) -> CleaningResult:
    """View, plan and clean one partition; `used` is called with the bytes that were read."""
    with WriteBehind() as behind:
        return start_cleaning(task, fs, used, attempt, behind).finish()


def start_cleaning(
    task: CleaningTask, fs: Fs, used: Callable[[int], None], attempt: str, behind: WriteBehind
) -> Pending[CleaningResult]:
    """As `clean_with`, but for the last of what `behind` writes."""
    from sediment.compaction.cleaner import scan_log, sweep_log
    from sediment.compaction.grouping import plan_cleaning

    clock = StageTimer()
    view, cleanable = open_and_select(task, fs)
    clock.lap(VIEW)
    blocked = _blocked(view, cleanable, task.config)
    if blocked is not None:
        return completed(replace(blocked, seconds_by_stage=clock.seconds()))
    plan = plan_cleaning(view, cleanable, task.config, now_ms=task.now_ms)
    _check_headroom(plan, fs, behind)
    choice = strategy_for(task, plan, fs)
    clock.lap(PLAN)
    found = CleaningResult(
        None,
        cleanable.first_dirty_offset,
        cleanable.first_uncleanable_offset,
        cleanable.force_checkpoint,
        None,
        None,
        failed=False,
        dirty_ratio=cleanable.cleanable_ratio,
        strategy=choice.strategy.value,
    )
    if choice.strategy is Strategy.SPLIT:
        try:
            cuts = scan_log(plan, fs, only_if_needed=True, progress=used)
        except (CorruptBatchError, CorruptIndexError):
            if task.options.on_corruption != KEEP:
                raise
            found = replace(found, strategy=Strategy.WHOLE.value)
        else:
            clock.lap(CLEAN)
            return completed(replace(found, to_split=SplitPlan(plan, cuts), seconds_by_stage=clock.seconds()))
    try:
        keeps = task.options.on_corruption == KEEP
        swept = sweep_log(
            plan,
            fs,
            behind,
            run_id=task.run_id,
            attempt=attempt,
            progress=used,
            keep_unreadable=keeps,
            exact_keys=task.options.key_equality is KeyEquality.EXACT,
        )
    except BaseException:
        _discard(task, fs, attempt)
        raise
    clock.lap(CLEAN)

    def finish() -> CleaningResult:
        clock.restart()
        try:
            swap = swept.written()
        except BaseException:
            _discard(task, fs, attempt)
            raise
        clock.lap(CLEAN)
        check_undisturbed(task, fs)
        return replace(found, swap=swap, seconds_by_stage=clock.seconds())

    # A dry run writes nothing, and is to say of its segments what they were when it had read them.
    return completed(finish()) if task.options.dry_run else Pending(finish)


def _discard(task: CleaningTask, fs: Fs, attempt: str) -> None:
    if not task.options.dry_run:
        discard_parts(task.listing.path, task.run_id, fs, attempt=attempt)


@contextmanager
def working_on(task: CleaningTask) -> Iterator[tuple[Fs, Callable[[int], None]]]:
    """The file operations of a task, and what it calls with the bytes that it read.

    Raises:
        SourceChangedError: another run works here, or another disk is mounted.
        LimitReachedError: the run's time is over.
    """
    log_dir, dry_run = task.listing.path.parent, task.options.dry_run
    if not dry_run:
        check_run_token(log_dir, task.run_id)
    with throttled(task.pace) as used:
        yield DryRunFs() if dry_run else _RunFs(log_dir, task.run_id, used), used


def check_undisturbed(task: CleaningTask, fs: Fs) -> None:
    """A dry run holds no lock, so it sees at its end whether the segments are still those that it read.

    Raises:
        SourceChangedError: they are not.
    """
    listing = task.listing
    before = (task.on_disk or listing.segments)[:-1]
    if task.options.dry_run and list_log(listing.partition, listing.path, fs).segments[:-1] != before:
        raise SourceChangedError(
            "the segments changed while they were read",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="stop the broker or work on a copy; a dry run takes no lock",
        )


def strategy_for(task: CleaningTask, plan: CleaningPlan, fs: Fs) -> StrategyChoice:
    """How the partition of `task` is to be cleaned."""
    there = task.resources
    memory_bytes = min(there.task_memory_bytes, task.config.task_memory_bytes)
    there = replace(there, task_memory_bytes=memory_bytes, key_equality=task.options.key_equality)
    segments = [segment for group in plan.groups for segment in group.segments]
    return choose_strategy(
        plan, there, lambda: estimated(plan.view.listing.path, segments, plan.config, fs, now_ms=plan.now_ms)
    )


def estimated(
    directory: Path, segments: Sequence[SegmentRef], config: CompactionConfig, fs: Fs, *, now_ms: int
) -> Estimate:
    """What cleaning `segments` leaves, from a sample of them.

    Raises:
        CorruptBatchError: a log that is small enough to be read whole holds a malformed batch.
    """
    from sediment.compaction.estimate import collect_sample, estimate_cleaning
    from sediment.segment_io.partition.sample import sampled_batches

    sample = collect_sample(sampled_batches(directory, segments, fs, budget_bytes=SAMPLE_BYTES))
    log_bytes = sum(segment.log_bytes for segment in segments)
    return estimate_cleaning(sample, log_bytes, now_ms=now_ms, next_horizon_ms=config.next_horizon_ms(now_ms))


def _check_headroom(plan: CleaningPlan, fs: Fs, behind: WriteBehind) -> None:
    """Room for what survives: all groups are written before the first is committed and its sources give room back.

    Where even a log that loses nothing would fit, nothing is estimated.  What an estimate gets wrong is met when the
    disk runs out, and undone.
    """
    listing = plan.view.listing
    segments = [segment for group in plan.groups for segment in group.segments]
    needed = sum(segment.log_bytes for segment in segments)
    if fs.free_bytes(listing.path) >= 2 * needed:
        return
    # What is still being written takes its room first, or gives it back if it fails.
    behind.settle()
    free = fs.free_bytes(listing.path)
    if free >= needed:
        return
    try:
        needed = estimated(listing.path, segments, plan.config, fs, now_ms=plan.now_ms).log_bytes
    except CorruptBatchError:
        # Cleaning will meet it again and say what becomes of it.
        return
    if free < needed:
        raise NoSpaceError(
            f"the disk has {free} bytes free and what survives cleaning takes about {needed}",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="free some space and run again, nothing was changed",
        )
