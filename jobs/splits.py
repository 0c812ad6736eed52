"""One large partition cleaned by many tasks: the shuffles between the two sweeps of its splits.

    sight        a task a split      its runs' first sights, by range of hashes    16 bytes and a bit a key
      shuffle    by range, newest run first
    fold         a task a range      which sights a newer run supersedes           a bit a key
      shuffle    by split
    clean        a task a split      synced `.part` files

Invariants: keys and values stay where they are read; the driver gets nothing but the names and sizes of parts.  What
goes wrong in a task travels as a value, so that Spark does not try again what would fail again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sediment.compaction.cleaner import SplitWork, clean_split, sight_split
from sediment.compaction.handoff import CleanedGroup
from sediment.compaction.split import RunNumber, Split, SplitDoesNotHoldError, collect_verdicts, fold_range, pack_run
from sediment.jobs.spread import attempt_name
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs

Environment = Callable[[], AbstractContextManager[tuple[Fs, Callable[[int], None]]]]
"""Opens what a task works with: its file operations, and what it calls with the bytes that it read."""


@dataclass(frozen=True, slots=True)
class SplitFailure:
    """Why a split could not be swept: the error, or that the log cannot be cleaned in these splits."""

    error: SedimentError | OSError | SplitDoesNotHoldError


@dataclass(frozen=True, slots=True)
class SplitJob:
    """A partition to be cleaned in `splits`; `budget_bytes` is what one fold may hold in memory."""

    work: SplitWork
    splits: tuple[Split, ...]
    budget_bytes: int
    run_id: str
    open_environment: Environment


# Shuffled under (range, splits above, run): failures first, then newest runs first.
_Key = tuple[int, int, int]
_FAILED: _Key = (0, -1, 0)


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
        .repartitionAndSortWithinPartitions(job.work.ranges, partitionFunc=_range_of)
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


def _range_of(key: _Key) -> int:
    return key[0]


def _itself(number: int) -> int:
    return number


class _Sight:
    """The first sweep of the split that stands at the task's index."""

    def __init__(self, job: SplitJob) -> None:
        self._job = job

    def __call__(self, index: int, _rows: Iterable[int]) -> Iterator[tuple[_Key, bytes | SplitFailure]]:
        job = self._job
        try:
            with job.open_environment() as (fs, used):
                for run in sight_split(job.work, job.splits[index], len(job.splits), fs, progress=used):
                    for number, blob in pack_run(run, job.work.ranges):
                        yield (number, run.number.splits_above, run.number.run), blob
        except (SplitDoesNotHoldError, SedimentError, OSError) as error:
            yield _FAILED, SplitFailure(error)


class _Fold:
    """The fold of the range that stands at the task's index."""

    def __init__(self, job: SplitJob) -> None:
        self._splits = len(job.splits)
        self._budget_bytes = job.budget_bytes

    def __call__(
        self, index: int, rows: Iterable[tuple[_Key, bytes | SplitFailure]]
    ) -> Iterator[tuple[int, tuple[int, RunNumber, bytes] | SplitFailure]]:
        failures: list[SplitFailure] = []
        answers = fold_range(_blobs(rows, failures), budget_bytes=self._budget_bytes)
        for failure in failures[:1]:
            yield from ((number, failure) for number in range(self._splits))
        for run, answer in answers:
            yield self._splits - 1 - run.splits_above, (index, run, answer)


def _blobs(
    rows: Iterable[tuple[_Key, bytes | SplitFailure]], failures: list[SplitFailure]
) -> Iterator[tuple[RunNumber, bytes]]:
    for (_, splits_above, run), told in rows:
        if isinstance(told, SplitFailure):
            failures.append(told)
        else:
            yield RunNumber(splits_above, run), told


class _Clean:
    """The second sweep of the split that stands at the task's index."""

    def __init__(self, job: SplitJob) -> None:
        self._job = job

    def __call__(
        self, index: int, rows: Iterable[tuple[int, tuple[int, RunNumber, bytes] | SplitFailure]]
    ) -> Iterator[Sequence[CleanedGroup] | SplitFailure]:
        job = self._job
        answers = []
        for _, told in rows:
            if isinstance(told, SplitFailure):
                yield told
                return
            answers.append(told)
        try:
            with job.open_environment() as (fs, used):
                yield clean_split(
                    job.work,
                    job.splits[index],
                    collect_verdicts(answers, job.work.ranges),
                    fs,
                    run_id=job.run_id,
                    attempt=attempt_name(),
                    progress=used,
                )
        except (SplitDoesNotHoldError, SedimentError, OSError) as error:
            yield SplitFailure(error)
