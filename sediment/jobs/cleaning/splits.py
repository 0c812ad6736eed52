"""Cleaning of one large partition by many tasks: two sweeps over its splits, and the shuffles between the sweeps.

1. Collect: one task per split finds the latest occurrences of its keys, by hash range (17 or 18 bytes per key).  A
   shuffle brings the occurrences of each range to one task.
2. Fold: one task per range makes bitmaps of the records that survive (1 or 2 bytes per survivor).  A shuffle brings the
   bitmaps of each split to one task.
3. Clean: one task per split writes synced `.part` files.

Invariants: tasks exchange no key and no value; the driver receives only the names and sizes of parts.  A task returns
an error as a value, so Spark does not retry a task that would fail again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

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
from sediment.compaction.strategy import Strategy
from sediment.engine.directory.swap import discard_parts
from sediment.jobs.cleaning.options import KEEP, CleaningTask
from sediment.jobs.cleaning.result import TASK_ERRORS, CleaningResult, SplitPlan, failed_task, to_commit
from sediment.jobs.cleaning.task import check_listed, clean_partition
from sediment.jobs.spark.task_environment import OnBytes, task_environment
from sediment.jobs.spark.task_pool import attempt_name
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.hashing import draw_seed
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile

Outcome = TypeVar("Outcome")
Outcome_co = TypeVar("Outcome_co", covariant=True)

Environment = Callable[[], AbstractContextManager[tuple[Fs, OnBytes]]]
"""Function that opens the file operations of a task, and the callback for the bytes that the task reads."""

SPLITS_PER_SLOT = 2  # more splits would balance the slots better, but each split would collect the same keys again
_OCCURRENCE_BYTES = 120  # memory that a task needs for one key: a slot of its map, a row of its run, and the row's copy
_DEFAULT_BUDGET_BYTES = 1 << 30
_LEAST_RECORD_BYTES = 64  # including a share of the batch header; smaller records only cause more passes


class SplitPlace(Protocol[Outcome_co]):
    """The target for the parts of one partition: its directory, or an output.

    A target is sent to tasks, which call `environment`, `publish` and `clean_whole`.  The driver calls the other
    methods.
    """

    @property
    def task(self) -> CleaningTask:
        """The partition."""

    @property
    def asked(self) -> CleaningResult:
        """Result of the task that requested splits."""

    def environment(self) -> AbstractContextManager[tuple[Fs, OnBytes]]:
        """Open the file operations of a task, and the callback for the bytes that it reads."""

    def publish(self, fs: Fs, groups: Sequence[CleanedGroup]) -> tuple[ManifestFile, ...]:
        """Publish the parts of a split, and return the files; return no files if the parts wait for a commit."""

    def clean_whole(self, attempt: str) -> Outcome_co:
        """Clean the partition in one task."""

    def discard(self) -> None:
        """Remove the parts of splits that will not be used."""

    def done(self, swap: PreparedSwap, files: Sequence[ManifestFile]) -> Outcome_co:
        """Return the outcome of a partition that was cleaned in splits."""

    def failed(self, result: CleaningResult) -> Outcome_co:
        """Return the outcome of a partition that cannot be cleaned."""


@dataclass(frozen=True, slots=True)
class SplitInPlace:
    """The partition's own directory, in which the parts wait for the commit."""

    task: CleaningTask
    asked: CleaningResult

    def environment(self) -> AbstractContextManager[tuple[Fs, OnBytes]]:
        """Open the file operations of a task; every write checks the run's token."""
        return task_environment(self.task)

    def publish(self, fs: Fs, groups: Sequence[CleanedGroup]) -> tuple[ManifestFile, ...]:
        """Return nothing: the driver commits the parts."""
        return ()

    def clean_whole(self, attempt: str) -> CleaningResult:
        """Clean the partition in one task."""
        whole = replace(self.task, resources=replace(self.task.resources, asked=Strategy.WHOLE))
        return clean_partition(whole, attempt)

    def discard(self) -> None:
        """Remove the parts of splits that will not be committed."""
        if not self.task.dry_run:
            discard_parts(self.task.listing.path, self.task.run_id, Fs())

    def done(self, swap: PreparedSwap, files: Sequence[ManifestFile]) -> CleaningResult:
        """Return the swap to commit, if `to_commit` accepts it."""
        check_listed(self.task, Fs(), at_end=True)
        cleaned = to_commit(self.asked, swap, self.task.options)
        if cleaned.swap is None:
            self.discard()
        return cleaned

    def failed(self, result: CleaningResult) -> CleaningResult:
        """Return `result`, which a task returned for the failed partition."""
        return result


def clean_partition_in_splits(sc: Any, place: SplitPlace[Outcome]) -> Outcome:
    """Clean a partition whose task requested splits; if the log cannot be split, clean the partition as a whole."""
    assert place.asked.to_split is not None
    split = place.asked.to_split
    while True:
        try:
            return _in_splits(sc, place, split)
        except SplitNotApplicableError as error:
            place.discard()
            if not error.needs_scan or split.boundaries:
                return _whole(sc, place)
            try:
                split = _scanned(sc, place, split)
            except TASK_ERRORS as scan_error:
                return _failed(sc, place, scan_error)
        except TASK_ERRORS as error:
            place.discard()
            return _failed(sc, place, error)


def _failed(sc: Any, place: SplitPlace[Outcome], error: SedimentError | OSError) -> Outcome:
    """Clean a corrupt partition as a whole if --on-corruption is keep; otherwise, return the failed result."""
    result = failed_task(place.task, error)
    keeps = result.uncleanable is not None and place.task.options.on_corruption == KEEP
    return _whole(sc, place) if keeps else place.failed(result)


def _in_splits(sc: Any, place: SplitPlace[Outcome], split: SplitPlan) -> Outcome:
    plan, task = split.plan, place.task
    budget_bytes = min(task.config.task_memory_bytes, _DEFAULT_BUDGET_BYTES)
    job = SplitJob(
        work=SplitWork(
            plan,
            split.boundaries,
            seed=draw_seed(),
            run_limit=max(budget_bytes // _OCCURRENCE_BYTES, 1),
            ranges=ranges_for(plan.log_bytes // _LEAST_RECORD_BYTES, budget_bytes // 2),
            encoding=task.options.encoding,
        ),
        splits=cut_into_splits(plan.groups, SPLITS_PER_SLOT * max(1, sc.defaultParallelism)),
        budget_bytes=budget_bytes,
        run_id=task.run_id,
        open_environment=place.environment,
        publish=place.publish,
    )
    cleaned = clean_in_splits(sc, job, group=task.run_id)
    listing = plan.view.listing
    swap = PreparedSwap(listing.partition, str(listing.path), cleaned.groups, plan.end_offset)
    return place.done(swap, cleaned.files)


def _scanned(sc: Any, place: SplitPlace[Outcome], split: SplitPlan) -> SplitPlan:
    (boundaries,) = _in_one_task(sc, place.task, partial(_scan, place, split))
    if isinstance(boundaries, SplitFailure):
        raise boundaries.error
    return SplitPlan(split.plan, boundaries)


def _scan(place: SplitPlace[Outcome], split: SplitPlan, _rows: Iterable[int]) -> Iterator[Any]:
    try:
        with place.environment() as (fs, on_bytes):
            yield scan_log(split.plan, fs, only_if_needed=False, progress=on_bytes)
    except (SedimentError, OSError) as error:
        yield SplitFailure(error)


def _whole(sc: Any, place: SplitPlace[Outcome]) -> Outcome:
    (result,) = _in_one_task(sc, place.task, partial(_clean_whole, place))
    return cast("Outcome", result)


def _clean_whole(place: SplitPlace[Outcome], _rows: Iterable[int]) -> Iterator[Outcome]:
    yield place.clean_whole(attempt_name())


def _in_one_task(sc: Any, task: CleaningTask, work: Callable[[Iterable[int]], Iterator[Any]]) -> list[Any]:
    sc.setJobGroup(task.run_id, str(task.listing.partition))
    found: list[Any] = sc.parallelize([0], 1).mapPartitions(work).collect()
    return found


@dataclass(frozen=True, slots=True)
class SplitFailure:
    """Error that ended the sweep of a split, or the reason why the log cannot be cleaned in these splits."""

    error: SedimentError | OSError | SplitNotApplicableError


@dataclass(frozen=True, slots=True)
class SplitJob:
    """Partition to be cleaned in `splits`; one fold may use `budget_bytes` of memory."""

    work: SplitWork
    splits: tuple[Split, ...]
    budget_bytes: int
    run_id: str
    open_environment: Environment
    publish: Callable[[Fs, Sequence[CleanedGroup]], tuple[ManifestFile, ...]]
    """Function that the split's task calls to publish its parts; it returns the files."""


@dataclass(frozen=True, slots=True)
class CleanedSplits:
    """The groups of one or all splits, and the files that the tasks of these splits published."""

    groups: tuple[CleanedGroup, ...] = ()
    files: tuple[ManifestFile, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectedSplit:
    """Number of a split, and the result of its first sweep; a fold passes this result on to the second sweep."""

    number: int
    contents: SplitContents


_CollectRow = tuple[RunNumber, bytes] | CollectedSplit | SplitFailure
_FoldRow = bytes | CollectedSplit | SplitFailure
_RANGE_OF_OTHER_ROWS = 0


def clean_in_splits(sc: Any, job: SplitJob, *, group: str) -> CleanedSplits:
    """Clean a partition with the SparkContext `sc`; `group` names the Spark job group.

    Raises:
        SplitNotApplicableError: the log needs a forward scan first, or must be cleaned as a whole; no `.part` file
            remains.
        SedimentError, OSError: a split failed; parts of other splits may remain, with the run's id in their names.
    """
    sc.setJobGroup(group, f"{job.work.plan.view.listing.partition} in {len(job.splits)} splits")
    count = len(job.splits)
    outcomes = (
        sc.parallelize(range(count), count)
        .mapPartitionsWithIndex(_Collect(job))
        .partitionBy(job.work.ranges, partitionFunc=_itself)
        .mapPartitionsWithIndex(_Fold(job))
        .partitionBy(count, partitionFunc=_itself)
        .mapPartitionsWithIndex(_Clean(job))
        .collect()
    )
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


class _Collect:
    """First sweep in a Spark task; the index of the task is the number of its split."""

    def __init__(self, job: SplitJob) -> None:
        self._job = job

    def __call__(self, index: int, _rows: Iterable[int]) -> Iterator[tuple[int, _CollectRow]]:
        job = self._job
        try:
            with job.open_environment() as (fs, on_bytes):
                for run in collect_split_keys(job.work, job.splits[index], len(job.splits), fs, progress=on_bytes):
                    for number, blob in pack_run(run, job.work.ranges):
                        yield number, (run.number, blob)
                    collected = CollectedSplit(index, run.met)
            yield _RANGE_OF_OTHER_ROWS, collected
        except (SplitNotApplicableError, SedimentError, OSError) as error:
            yield _RANGE_OF_OTHER_ROWS, SplitFailure(error)


class _Fold:
    """Fold in a Spark task; the index of the task is the number of its range."""

    def __init__(self, job: SplitJob) -> None:
        self._splits = len(job.splits)
        self._budget_bytes = job.budget_bytes

    def __call__(self, _index: int, rows: Iterable[tuple[int, _CollectRow]]) -> Iterator[tuple[int, _FoldRow]]:
        failures: list[SplitFailure] = []
        collected: list[CollectedSplit] = []
        bitmaps = fold_range(_blobs(rows, failures, collected), budget_bytes=self._budget_bytes)
        for failure in failures[:1]:
            yield from ((number, failure) for number in range(self._splits))
        yield from ((split.number, split) for split in collected)
        for splits_above, bitmap in bitmaps:
            yield self._splits - 1 - splits_above, bitmap


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


class _Clean:
    """Second sweep in a Spark task; the index of the task is the number of its split."""

    def __init__(self, job: SplitJob) -> None:
        self._job = job

    def __call__(self, index: int, rows: Iterable[tuple[int, _FoldRow]]) -> Iterator[CleanedSplits | SplitFailure]:
        job = self._job
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
            with job.open_environment() as (fs, on_bytes):
                groups = clean_split(
                    job.work,
                    job.splits[index],
                    collect_survivors(bitmaps, contents),
                    fs,
                    run_id=job.run_id,
                    attempt=attempt_name(),
                    progress=on_bytes,
                )
                yield CleanedSplits(groups, job.publish(fs, groups))
        except (SplitNotApplicableError, SedimentError, OSError) as error:
            yield SplitFailure(error)
