"""One large partition cleaned by many tasks: the shuffles between the two sweeps of its splits.

    sight        a task a split      its runs' first sights, by range of hashes    16 bytes and one or two a key
      shuffle    by range
    fold         a task a range      which of these records live                   a byte or two a living record
      shuffle    by split
    clean        a task a split      synced `.part` files

Invariants: keys and values stay where they are read; the driver gets nothing but the names and sizes of parts.  What
goes wrong in a task travels as a value, so that Spark does not try again what would fail again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sediment.compaction.cleaner import SplitWork, clean_split, collect_split_keys, scan_log
from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.compaction.split import (
    RunNumber,
    Split,
    SplitContents,
    SplitNotApplicableError,
    collect_survivors,
    cut_into_splits,
    fold_range,
    pack_run,
    ranges_for,
)
from sediment.compaction.strategy import Strategy
from sediment.engine.directory.swap import discard_parts
from sediment.jobs.cleaning.task import (
    KEEP,
    CleaningResult,
    CleaningTask,
    SplitPlan,
    check_undisturbed,
    clean_partition,
    with_errors,
    working_on,
)
from sediment.jobs.spark.task_pool import attempt_name
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.hashing import draw_seed
from sediment.segment_io.fs import Fs

Environment = Callable[[], AbstractContextManager[tuple[Fs, Callable[[int], None]]]]
"""Opens what a task works with: its file operations, and what it calls with the bytes that it read."""

SPLITS_PER_SLOT = 2  # more of them would share the work more evenly, and see every key more often
_SIGHT_BYTES = 120  # of a task's memory for a first sight: a slot of its map, a row of its run, and the row's copy
_DEFAULT_BUDGET_BYTES = 1 << 30
_LEAST_RECORD_BYTES = 64  # with its share of a batch's header; what is smaller only means more passes of a fold


def clean_partition_in_splits(sc: Any, task: CleaningTask, asked: CleaningResult) -> CleaningResult:
    """Clean the partition that `asked` wants to be split, or as a whole where it turns out not to be one for splits."""
    assert asked.to_split is not None
    order = asked.to_split
    while True:
        try:
            found = with_errors(task, partial(_in_splits, sc, task, order))
        except SplitNotApplicableError as broken:
            _discard(task)
            if broken.needs_scan and not order.cuts:
                walked = with_errors(task, partial(_walked, sc, task, order))
                if isinstance(walked, CleaningResult):
                    keeps = walked.uncleanable is not None and task.options.on_corruption == KEEP
                    return _whole(sc, task) if keeps else walked
                order = walked
                continue
            return _whole(sc, task)
        if isinstance(found, CleaningResult):
            _discard(task)
            if found.uncleanable is not None and task.options.on_corruption == KEEP:
                return _whole(sc, task)
            return found
        return replace(asked, swap=found, to_split=None)


def _in_splits(sc: Any, task: CleaningTask, order: SplitPlan) -> PreparedSwap:
    plan = order.plan
    log_bytes = sum(group.log_bytes for group in plan.groups)
    budget_bytes = min(task.config.task_memory_bytes, _DEFAULT_BUDGET_BYTES)
    job = SplitJob(
        work=SplitWork(
            plan,
            order.cuts,
            seed=draw_seed(),
            run_limit=max(budget_bytes // _SIGHT_BYTES, 1),
            ranges=ranges_for(log_bytes // _LEAST_RECORD_BYTES, budget_bytes // 2),
        ),
        splits=cut_into_splits(plan.groups, SPLITS_PER_SLOT * max(1, sc.defaultParallelism)),
        budget_bytes=budget_bytes,
        run_id=task.run_id,
        open_environment=partial(working_on, task),
    )
    groups = clean_in_splits(sc, job, group=task.run_id)
    check_undisturbed(task, Fs())
    return PreparedSwap(plan.view.listing.partition, str(plan.view.listing.path), groups, plan.end_offset)


def _walked(sc: Any, task: CleaningTask, order: SplitPlan) -> SplitPlan:
    (cuts,) = _in_one_task(sc, task, partial(_walk, task, order))
    if isinstance(cuts, SplitFailure):
        raise cuts.error
    return SplitPlan(order.plan, cuts)


def _walk(task: CleaningTask, order: SplitPlan, _rows: Iterable[int]) -> Iterator[Any]:
    try:
        with working_on(task) as (fs, used):
            yield scan_log(order.plan, fs, only_if_needed=False, progress=used)
    except (SedimentError, OSError) as error:
        yield SplitFailure(error)


def _whole(sc: Any, task: CleaningTask) -> CleaningResult:
    whole = replace(task, resources=replace(task.resources, asked=Strategy.WHOLE))
    (result,) = _in_one_task(sc, task, partial(_clean, whole))
    assert isinstance(result, CleaningResult)
    return result


def _clean(task: CleaningTask, _rows: Iterable[int]) -> Iterator[CleaningResult]:
    yield clean_partition(task, attempt_name())


def _in_one_task(sc: Any, task: CleaningTask, work: Callable[[Iterable[int]], Iterator[Any]]) -> list[Any]:
    sc.setJobGroup(task.run_id, str(task.listing.partition))
    found: list[Any] = sc.parallelize([0], 1).mapPartitions(work).collect()
    return found


def _discard(task: CleaningTask) -> None:
    """Remove what splits wrote that are not to be committed."""
    if not task.options.dry_run:
        discard_parts(task.listing.path, task.run_id, Fs())


@dataclass(frozen=True, slots=True)
class SplitFailure:
    """Why a split could not be swept: the error, or that the log cannot be cleaned in these splits."""

    error: SedimentError | OSError | SplitNotApplicableError


@dataclass(frozen=True, slots=True)
class SplitJob:
    """A partition to be cleaned in `splits`; `budget_bytes` is what one fold may hold in memory."""

    work: SplitWork
    splits: tuple[Split, ...]
    budget_bytes: int
    run_id: str
    open_environment: Environment


@dataclass(frozen=True, slots=True)
class SplitMet:
    """What the first sweep met in the split of this number; it goes by way of a fold."""

    number: int
    contents: SplitContents


_Told = tuple[RunNumber, bytes] | SplitMet | SplitFailure
_Answer = bytes | SplitMet | SplitFailure
_RANGE_OF_THE_REST = 0


def clean_in_splits(sc: Any, job: SplitJob, *, group: str) -> tuple[CleanedGroup, ...]:
    """Clean a partition with the SparkContext `sc`; `group` names the Spark job group.

    Raises:
        SplitDoesNotHoldError: it has to be walked first, or cleaned as a whole; nothing is left.
        SedimentError, OSError: of the first split that failed; parts of others may be left, under the run's id.
    """
    sc.setJobGroup(group, f"{job.work.plan.view.listing.partition} in {len(job.splits)} splits")
    count = len(job.splits)
    outcomes = (
        sc.parallelize(range(count), count)
        .mapPartitionsWithIndex(_Sight(job))
        .partitionBy(job.work.ranges, partitionFunc=_itself)
        .mapPartitionsWithIndex(_Fold(job))
        .partitionBy(count, partitionFunc=_itself)
        .mapPartitionsWithIndex(_Clean(job))
        .collect()
    )
    groups: list[CleanedGroup] = []
    for outcome in outcomes:
        if isinstance(outcome, SplitFailure):
            raise outcome.error
        groups.extend(outcome)
    return tuple(groups)


def _itself(number: int) -> int:
    return number


class _Sight:
    """The first sweep of the split that stands at the task's index."""

    def __init__(self, job: SplitJob) -> None:
        self._job = job

    def __call__(self, index: int, _rows: Iterable[int]) -> Iterator[tuple[int, _Told]]:
        job = self._job
        try:
            with job.open_environment() as (fs, used):
                for run in collect_split_keys(job.work, job.splits[index], len(job.splits), fs, progress=used):
                    for number, blob in pack_run(run, job.work.ranges):
                        yield number, (run.number, blob)
                    met = SplitMet(index, run.met)
            yield _RANGE_OF_THE_REST, met
        except (SplitNotApplicableError, SedimentError, OSError) as error:
            yield _RANGE_OF_THE_REST, SplitFailure(error)


class _Fold:
    """The fold of the range that stands at the task's index."""

    def __init__(self, job: SplitJob) -> None:
        self._splits = len(job.splits)
        self._budget_bytes = job.budget_bytes

    def __call__(self, _index: int, rows: Iterable[tuple[int, _Told]]) -> Iterator[tuple[int, _Answer]]:
        failures: list[SplitFailure] = []
        met: list[SplitMet] = []
        answers = fold_range(_blobs(rows, failures, met), budget_bytes=self._budget_bytes)
        for failure in failures[:1]:
            yield from ((number, failure) for number in range(self._splits))
        yield from ((split.number, split) for split in met)
        for splits_above, answer in answers:
            yield self._splits - 1 - splits_above, answer


def _blobs(
    rows: Iterable[tuple[int, _Told]], failures: list[SplitFailure], met: list[SplitMet]
) -> Iterator[tuple[RunNumber, bytes]]:
    for _, told in rows:
        if isinstance(told, SplitFailure):
            failures.append(told)
        elif isinstance(told, SplitMet):
            met.append(told)
        else:
            yield told


class _Clean:
    """The second sweep of the split that stands at the task's index."""

    def __init__(self, job: SplitJob) -> None:
        self._job = job

    def __call__(
        self, index: int, rows: Iterable[tuple[int, _Answer]]
    ) -> Iterator[Sequence[CleanedGroup] | SplitFailure]:
        job = self._job
        answers: list[bytes] = []
        contents = SplitContents(0, 0)
        for _, told in rows:
            if isinstance(told, SplitFailure):
                yield told
                return
            if isinstance(told, SplitMet):
                contents = told.contents
            else:
                answers.append(told)
        try:
            with job.open_environment() as (fs, used):
                yield clean_split(
                    job.work,
                    job.splits[index],
                    collect_survivors(answers, contents),
                    fs,
                    run_id=job.run_id,
                    attempt=attempt_name(),
                    progress=used,
                )
        except (SplitNotApplicableError, SedimentError, OSError) as error:
            yield SplitFailure(error)
