"""Cleaning of one large partition by many tasks: two sweeps over its splits, and the shuffles between the sweeps.

1. Collect: one task per split finds the latest occurrences of its keys, by hash range (17 or 18 bytes per key).  A
   shuffle brings the occurrences of each range to one task.
2. Fold: one task per range makes bitmaps of the records that survive (1 or 2 bytes per survivor).  A shuffle brings the
   bitmaps of each split to one task.
3. Clean: one task per split writes synced `.part` files.

Invariants: tasks exchange no key and no value; the driver receives only the names and sizes of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sediment.compaction.clean_log import SplitWork, clean_split, collect_split_keys, scan_log
from sediment.compaction.partition_splits import (
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
from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.jobs.cleaning.options import KEEP, CleaningTask
from sediment.jobs.cleaning.task import check_listed, clean_partition
from sediment.jobs.reporting.stage_timer import CLEAN, StageTimer
from sediment.jobs.rewriting.figures import of_cleaning, of_groups
from sediment.jobs.rewriting.partition_task import InPlace, TaskPlace
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, SplitPlan, failed_task, to_commit
from sediment.jobs.spark.job_names import JobName, name_stage, named_job, shown
from sediment.jobs.spark.task_figures import Counted, Figures, collect
from sediment.jobs.spark.task_pool import attempt_name
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.hashing import draw_seed
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile

if TYPE_CHECKING:
    from sediment.compaction.chunk_reader import ChunkBoundaries
    from sediment.compaction.grouping import CleaningPlan

Outcome = TypeVar("Outcome")

SPLITS_PER_SLOT = 2  # more splits would balance the slots better, but each split would collect the same keys again
_OCCURRENCE_BYTES = 120  # memory that a task needs for one key: a slot of its map, a row of its run, and the row's copy
_DEFAULT_BUDGET_BYTES = 1 << 30
_LEAST_RECORD_BYTES = 64  # including a share of the batch header; smaller records only cause more passes


class CleanedInSplits(NamedTuple):
    result: CleaningResult
    files: tuple[ManifestFile, ...] = ()


def clean_in_place(sc: Any, task: CleaningTask, asked: CleaningResult, slots: int) -> CleaningResult:
    timer = StageTimer()
    timer.add([asked.seconds_by_stage])
    cleaned = clean_partition_in_splits(sc, task, asked, InPlace(), slots)
    if cleaned is None:
        result = in_one_task(sc, task, partial(clean_partition, task.as_whole()), of_cleaning)
    else:
        result = cleaned.result
    timer.lap(CLEAN)
    return replace(result, seconds_by_stage=timer.seconds())


def clean_partition_in_splits(
    sc: Any, task: CleaningTask, asked: CleaningResult, place: TaskPlace, slots: int
) -> CleanedInSplits | None:
    """Clean a partition whose task `asked` for splits; return None if one task must clean it as a whole."""
    assert asked.to_split is not None
    split = asked.to_split
    while True:
        try:
            return _in_splits(sc, task, asked, split, place, slots)
        except SplitNotApplicableError as error:
            place.discard(task)
            if not error.needs_scan or split.boundaries:
                return None
            try:
                split = _scanned(sc, task, split, place)
            except TASK_ERRORS as scan_error:
                return _failed(task, scan_error)
        except TASK_ERRORS as error:
            place.discard(task)
            return _failed(task, error)


def _failed(task: CleaningTask, error: SedimentError | OSError) -> CleanedInSplits | None:
    result = failed_task(task, error)
    keeps = result.uncleanable is not None and task.options.on_corruption == KEEP
    return None if keeps else CleanedInSplits(result)


def _in_splits(
    sc: Any, task: CleaningTask, asked: CleaningResult, split: SplitPlan, place: TaskPlace, slots: int
) -> CleanedInSplits:
    plan = split.plan
    budget_bytes = min(task.config.task_memory_bytes, split.task_memory_bytes, _DEFAULT_BUDGET_BYTES)
    job = SplitJob(
        work=SplitWork(
            plan,
            split.boundaries,
            seed=draw_seed(),
            run_limit=max(budget_bytes // _OCCURRENCE_BYTES, 1),
            ranges=ranges_for(plan.log_bytes // _LEAST_RECORD_BYTES, budget_bytes // 2),
            encoding=task.options.encoding,
        ),
        splits=cut_into_splits(plan.groups, SPLITS_PER_SLOT * slots),
        budget_bytes=budget_bytes,
        task=task,
        place=place,
    )
    cleaned = clean_in_splits(sc, job)
    listing = plan.view.listing
    swap = PreparedSwap(listing.partition, str(listing.path), cleaned.groups, plan.end_offset)
    result = finish_splits(task, asked, swap, place)
    return CleanedInSplits(result, () if result.swap is None else cleaned.files)


def finish_splits(task: CleaningTask, asked: CleaningResult, swap: PreparedSwap, place: TaskPlace) -> CleaningResult:
    with place.reading(task.listing) as fs:
        check_listed(task, fs, at_end=True)
    result = to_commit(asked, swap, drop_keyless=task.options.drop_keyless)
    if result.swap is None:
        place.discard(task)
    return result


def _scanned(sc: Any, task: CleaningTask, split: SplitPlan, place: TaskPlace) -> SplitPlan:
    boundaries = in_one_task(sc, task, partial(_scan, task, split.plan, place))
    if isinstance(boundaries, SplitFailure):
        raise boundaries.error
    return replace(split, boundaries=boundaries)


def _scan(
    task: CleaningTask, plan: CleaningPlan, place: TaskPlace, _attempt: str
) -> dict[int, ChunkBoundaries] | SplitFailure:
    try:
        with place.environment(task) as (fs, on_bytes):
            return scan_log(plan, fs, only_if_needed=False, progress=on_bytes)
    except (SedimentError, OSError) as error:
        return SplitFailure(error)


def in_one_task(
    sc: Any,
    task: CleaningTask,
    perform: Callable[[str], Outcome],
    figures: Callable[[CleaningTask, Outcome], Figures] | None = None,
) -> Outcome:
    partition = str(task.listing.partition)
    with named_job(sc, task.run_id, JobName(f"read {shown(partition)} as a whole", [partition])):
        once = partial(_once, perform)
        counted = None if figures is None else Counted(once, partial(figures, task))
        (outcome,) = collect(sc, sc.parallelize([0], 1).mapPartitions, once, counted)
    return outcome


def _once(perform: Callable[[str], Outcome], _rows: Iterable[int]) -> Iterator[Outcome]:
    yield perform(attempt_name())


@dataclass(frozen=True, slots=True)
class SplitFailure:
    error: SedimentError | OSError | SplitNotApplicableError


@dataclass(frozen=True, slots=True)
class SplitJob:
    work: SplitWork
    splits: tuple[Split, ...]
    budget_bytes: int
    task: CleaningTask
    place: TaskPlace


@dataclass(frozen=True, slots=True)
class CleanedSplits:
    groups: tuple[CleanedGroup, ...] = ()
    files: tuple[ManifestFile, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectedSplit:
    number: int
    contents: SplitContents


_CollectRow = tuple[RunNumber, bytes] | CollectedSplit | SplitFailure
_FoldRow = bytes | CollectedSplit | SplitFailure
_RANGE_OF_OTHER_ROWS = 0


def clean_in_splits(sc: Any, job: SplitJob) -> CleanedSplits:
    """Clean a partition with the SparkContext `sc`; the run's id names the Spark job group.

    Raises:
        SplitNotApplicableError: the log needs a forward scan first, or must be cleaned as a whole; no `.part` file
            remains.
        SedimentError, OSError: a split failed; parts of other splits may remain, with the run's id in their names.
    """
    count, partition = len(job.splits), str(job.work.plan.view.listing.partition)
    title = shown(partition)
    with named_job(sc, job.task.run_id, JobName(f"clean {title} in {count} splits", [partition])):
        name_stage(sc, f"collect the keys of {title}")
        keys = (
            sc.parallelize(range(count), count)
            .mapPartitionsWithIndex(partial(_collect, job))
            .partitionBy(job.work.ranges, partitionFunc=_itself)
        )
        name_stage(sc, f"find the survivors of {title}")
        survivors = keys.mapPartitionsWithIndex(partial(_fold, count, job.budget_bytes)).partitionBy(
            count, partitionFunc=_itself
        )
        name_stage(sc, f"clean {title}")
        clean = partial(_clean, job)
        outcomes = collect(sc, survivors.mapPartitionsWithIndex, clean, Counted(clean, _figures))
    groups: list[CleanedGroup] = []
    files: list[ManifestFile] = []
    for outcome in outcomes:
        if isinstance(outcome, SplitFailure):
            raise outcome.error
        groups += outcome.groups
        files += outcome.files
    return CleanedSplits(tuple(groups), tuple(files))


def _itself(number: int) -> int:
    return number


def _collect(job: SplitJob, index: int, _rows: Iterable[int]) -> Iterator[tuple[int, _CollectRow]]:
    try:
        with job.place.environment(job.task) as (fs, on_bytes):
            for run in collect_split_keys(job.work, job.splits[index], len(job.splits), fs, progress=on_bytes):
                for number, blob in pack_run(run, job.work.ranges):
                    yield number, (run.number, blob)
                collected = CollectedSplit(index, run.met)
        yield _RANGE_OF_OTHER_ROWS, collected
    except (SplitNotApplicableError, SedimentError, OSError) as error:
        yield _RANGE_OF_OTHER_ROWS, SplitFailure(error)


def _fold(
    splits: int, budget_bytes: int, _range: int, rows: Iterable[tuple[int, _CollectRow]]
) -> Iterator[tuple[int, _FoldRow]]:
    failures: list[SplitFailure] = []
    collected: list[CollectedSplit] = []
    bitmaps = fold_range(_blobs(rows, failures, collected), budget_bytes=budget_bytes)
    for failure in failures[:1]:
        yield from ((number, failure) for number in range(splits))
    yield from ((split.number, split) for split in collected)
    for splits_above, bitmap in bitmaps:
        yield splits - 1 - splits_above, bitmap


def _blobs(
    rows: Iterable[tuple[int, _CollectRow]], failures: list[SplitFailure], collected: list[CollectedSplit]
) -> Iterator[tuple[RunNumber, bytes]]:
    for _, row in rows:
        if isinstance(row, SplitFailure):
            failures.append(row)
        elif isinstance(row, CollectedSplit):
            collected.append(row)
        else:
            yield row


def _clean(job: SplitJob, index: int, rows: Iterable[tuple[int, _FoldRow]]) -> Iterator[CleanedSplits | SplitFailure]:
    bitmaps: list[bytes] = []
    contents = SplitContents(0, 0)
    for _, row in rows:
        if isinstance(row, SplitFailure):
            yield row
            return
        if isinstance(row, CollectedSplit):
            contents = row.contents
        else:
            bitmaps.append(row)
    try:
        with job.place.environment(job.task) as (fs, on_bytes):
            groups = clean_split(
                job.work,
                job.splits[index],
                collect_survivors(bitmaps, contents),
                fs,
                Attempt(job.task.run_id, attempt_name(), on_bytes),
            )
            files = tuple(file for group in groups for file in _published(job, fs, group))
            yield CleanedSplits(groups, files)
    except (SplitNotApplicableError, SedimentError, OSError) as error:
        yield SplitFailure(error)


def _figures(outcome: CleanedSplits | SplitFailure) -> Figures:
    return Figures() if isinstance(outcome, SplitFailure) else of_groups(outcome.groups)


def _published(job: SplitJob, fs: Fs, group: CleanedGroup) -> tuple[ManifestFile, ...]:
    return () if job.task.dry_run else job.place.publish(fs, group)
