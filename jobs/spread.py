"""Work spread over Spark: tasks packed by weight, results as they come.

Each packed task is a Spark job of its own, so that the driver can commit a partition as soon as it is done instead
of after the slowest; jobs are handed to Spark from a few threads, largest first.  An RDD rather than a DataFrame,
because a first Catalyst plan costs seconds that a small run would notice.

Invariant: every piece of work is answered exactly once, with its result or with the error that Spark gave up on.
"""

from __future__ import annotations

import heapq
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

_TASKS_PER_SLOT = 4
_NEIGHBOURS, _NEIGHBOURS_WEIGHT = 8, 64 << 20  # of a task in order: at most so many, of at most so many bytes
_WAITING_JOBS = 2  # beyond the slots, so that a slot never waits for the driver


@dataclass(frozen=True, slots=True)
class Answer(Generic[Work, Result]):
    """What became of one piece of work: `result`, or `error` if Spark gave up on its task."""

    work: Work
    result: Result | None
    error: Exception | None


def pack_by_weight(works: Sequence[Work], weight: Callable[[Work], int], tasks: int) -> list[list[Work]]:
    """At most `tasks` lists of about equal weight, heaviest first, each heaviest first inside."""
    packed: list[list[Work]] = [[] for _ in range(min(tasks, len(works)))]
    totals = [(0, index) for index in range(len(packed))]
    for work in sorted(works, key=weight, reverse=True):
        total, index = heapq.heappop(totals)
        packed[index].append(work)
        heapq.heappush(totals, (total + weight(work) + 1, index))
    return sorted(packed, key=lambda task: sum(map(weight, task)), reverse=True)


def pack_in_order(works: Sequence[Work], weight: Callable[[Work], int]) -> list[list[Work]]:
    """Neighbours of `works` together as long as they are small, so that many small ones do not cost a job each."""
    packed: list[list[Work]] = []
    total = 0
    for work in works:
        joined = total + weight(work)
        if packed and len(packed[-1]) < _NEIGHBOURS and joined <= _NEIGHBOURS_WEIGHT:
            packed[-1].append(work)
            total = joined
        else:
            packed.append([work])
            total = weight(work)
    return packed


def spread(
    sc: Any,
    works: Sequence[Work],
    perform: Callable[[Work, str], Result],
    weight: Callable[[Work], int],
    *,
    group: str,
    in_order: bool = False,
) -> Iterator[list[Answer[Work, Result]]]:
    """Perform `works` on the executors of the SparkContext `sc` and yield the answers of each task as it finishes.

    `perform(work, attempt)` runs in a task; `attempt` is unique among all attempts of the application.  `group` names
    the Spark job group, by which a caller can cancel what is still running.  With `in_order` the works are begun in
    their order, but for small neighbours that share a task.
    """
    slots = max(1, sc.defaultParallelism)
    tasks = pack_in_order(works, weight) if in_order else pack_by_weight(works, weight, slots * _TASKS_PER_SLOT)
    answers: queue.Queue[list[Answer[Work, Result]]] = queue.Queue()

    def submit(task: list[Work]) -> None:
        sc.setJobGroup(group, f"{len(task)} partitions")
        try:
            results = sc.parallelize(task, 1).mapPartitions(_Performer(perform)).collect()
            answers.put([Answer(work, result, None) for work, result in zip(task, results, strict=True)])
        except Exception as error:
            answers.put([Answer(work, None, error) for work in task])

    pool = ThreadPoolExecutor(slots + _WAITING_JOBS, thread_name_prefix="sediment-spread")
    try:
        for task in tasks:
            pool.submit(submit, task)
        for _ in tasks:
            yield answers.get()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Performer(Generic[Work, Result]):
    """What a task runs: picklable by the names of its parts."""

    def __init__(self, perform: Callable[[Work, str], Result]) -> None:
        self._perform = perform

    def __call__(self, works: Iterator[Work]) -> Iterator[Result]:
        attempt = attempt_name()
        for work in works:
            yield self._perform(work, attempt)


def attempt_name() -> str:
    """A name of the attempt that runs this, unique among all attempts of the application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.stageId()}.{context.attemptNumber()}.{context.taskAttemptId()}" if context else "driver"
