"""Work spread over Spark: tasks packed by weight, results as they come.

Each packed task is a Spark job of its own, so that the driver can commit a partition as soon as it is done instead
of after the slowest; jobs are handed to Spark from a few threads, largest first.  An RDD rather than a DataFrame,
because a first Catalyst plan costs seconds that a small run would notice.

Work whose end only waits for a disk is spread as `Unfinished`: the next piece of a task is begun before that end.

Invariant: every piece of work is answered exactly once, with its result or with the error that Spark gave up on.  What
shared a task with such an error is tried once more, each piece in a task of its own.
"""

from __future__ import annotations

import heapq
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Work = TypeVar("Work")
Result = TypeVar("Result")

_TASK_WEIGHT, _TASK_PIECES = 2 << 30, 256  # of a task: beyond them, results would come too late and too many at once
_NEIGHBOURS, _NEIGHBOURS_WEIGHT = 8, 64 << 20  # of a task in order: at most so many, of at most so many bytes
_WAITING_JOBS = 2  # beyond the slots, so that a slot never waits for the driver


@dataclass(frozen=True, slots=True)
class Answer(Generic[Work, Result]):
    """What became of one piece of work: `result`, or `error` if Spark gave up on its task or it was never begun."""

    work: Work
    result: Result | None
    error: Exception | None


class NotBegunError(Exception):
    """A piece of work was not begun, because the run was stopped before."""


@dataclass(frozen=True, slots=True)
class Unfinished(Generic[Result]):
    """A piece of work whose result is there when `finish` returns; meanwhile the next piece may be begun."""

    finish: Callable[[], Result]


def already(result: Result) -> Unfinished[Result]:
    """A piece of work that was finished when it was begun."""
    return Unfinished(lambda: result)


def _never() -> bool:
    return False


def rounds(weights: Sequence[int], slots: int) -> int:
    """How many tasks each slot is to do one after the other.

    A piece is finished while the next one of its task is begun, and a task costs Spark some CPU time: so there are as
    few tasks as their size allows.
    """
    return max(1, -(-sum(weights) // (_TASK_WEIGHT * slots)), -(-len(weights) // (_TASK_PIECES * slots)))


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
    is_stopped: Callable[[], bool] = _never,
) -> Iterator[list[Answer[Work, Result]]]:
    """Perform `works` on the executors of the SparkContext `sc` and yield the answers of each task as it finishes.

    `perform(work, attempt)` runs in a task; `attempt` is unique among all attempts of the application.  `group` names
    the Spark job group, by which a caller can cancel what is still running.  With `in_order` the works are begun in
    their order, but for small neighbours that share a task.  Once `is_stopped`, no further task is begun.
    """
    begin = _AtOnce(perform)
    return spread_unfinished(sc, works, begin, weight, group=group, in_order=in_order, is_stopped=is_stopped)


def spread_unfinished(
    sc: Any,
    works: Sequence[Work],
    begin: Callable[[Work, str], Unfinished[Result]],
    weight: Callable[[Work], int],
    *,
    group: str,
    in_order: bool = False,
    is_stopped: Callable[[], bool] = _never,
) -> Iterator[list[Answer[Work, Result]]]:
    """As `spread`; of the works of a task, each is finished only once the next one is begun."""
    slots = max(1, sc.defaultParallelism)
    if in_order:
        tasks = pack_in_order(works, weight)
    else:
        tasks = pack_by_weight(works, weight, slots * rounds([weight(work) for work in works], slots))
    answers: queue.Queue[list[Answer[Work, Result]]] = queue.Queue()

    def answered(task: list[Work]) -> list[Answer[Work, Result]]:
        if is_stopped():
            return [Answer(work, None, NotBegunError("the run was stopped")) for work in task]
        sc.setJobGroup(group, f"{len(task)} partitions")
        try:
            results = sc.parallelize(task, 1).mapPartitions(_Performer(begin)).collect()
            return [Answer(work, result, None) for work, result in zip(task, results, strict=True)]
        except Exception as error:
            if len(task) == 1:
                return [Answer(task[0], None, error)]
            return [answer for work in task for answer in answered([work])]

    pool = ThreadPoolExecutor(slots + _WAITING_JOBS, thread_name_prefix="sediment-spread")
    try:
        for task in tasks:
            pool.submit(lambda task: answers.put(answered(task)), task)
        for _ in tasks:
            yield answers.get()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _AtOnce(Generic[Work, Result]):
    perform: Callable[[Work, str], Result]

    def __call__(self, work: Work, attempt: str) -> Unfinished[Result]:
        return already(self.perform(work, attempt))


@dataclass(frozen=True, slots=True)
class _Performer(Generic[Work, Result]):
    """What a task runs: picklable by the names of its parts."""

    begin: Callable[[Work, str], Unfinished[Result]]

    def __call__(self, works: Iterator[Work]) -> Iterator[Result]:
        attempt = attempt_name()
        begun: deque[Unfinished[Result]] = deque()
        for work in works:
            begun.append(self.begin(work, attempt))
            if len(begun) > 1:
                yield begun.popleft().finish()
        for last in begun:
            yield last.finish()


def attempt_name() -> str:
    """A name of the attempt that runs this, unique among all attempts of the application."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.stageId()}.{context.attemptNumber()}.{context.taskAttemptId()}" if context else "driver"
