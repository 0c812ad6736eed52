"""Work spread over Spark: tasks packed by weight, results as they come.

Each packed task is a Spark job of its own, so that the driver can commit a partition as soon as it is done instead
of after the slowest; jobs are handed to Spark from a few threads, largest first.  An RDD rather than a DataFrame,
because a first Catalyst plan costs seconds that a small run would notice.

Work whose end only waits for a disk is spread as `Pending`: the next piece of a task is begun before that end.

Invariant: every piece of work is answered exactly once, with its result or with the error that Spark gave up on.  What
shared a task with such an error is tried once more, each piece in a task of its own.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sediment.segment_io.packing import pack_by_weight, pack_in_order

Work = TypeVar("Work")
Result = TypeVar("Result")

_TASK_WEIGHT, _TASK_PIECES = 2 << 30, 128  # of a task: beyond them, results would come too late and too many at once
_ROUNDS_AT_ONCE = 4  # at least, where nothing is gained by fewer: slots that differ in speed end together then
_LOST_ALONE = 8  # so many pieces that failed in tasks of their own, and the fault is not theirs
_NEIGHBOURS, _NEIGHBOURS_WEIGHT = 8, 64 << 20  # of a task in order: at most so many, of at most so many bytes
_WAITING_JOBS = 2  # beyond the slots, so that a slot never waits for the driver


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[Work, Result]):
    """What became of one piece of work: `result`, or `error` if Spark gave up on its task or it was never begun."""

    work: Work
    result: Result | None
    error: Exception | None


class NotStartedError(Exception):
    """A piece of work was not begun, because the run was stopped before."""


@dataclass(frozen=True, slots=True)
class Pending(Generic[Result]):
    """A piece of work whose result is there when `finish` returns; meanwhile the next piece may be begun."""

    finish: Callable[[], Result]


def completed(result: Result) -> Pending[Result]:
    """A piece of work that was finished when it was begun."""
    return Pending(lambda: result)


def _never() -> bool:
    return False


def pack_in_rounds(weights: Sequence[int], slots: int, at_least: int = 1) -> int:
    """How many tasks each slot is to do one after the other: as few as their size allows.

    A piece is finished while the next one of its task is begun, and a task costs Spark some CPU time.
    """
    return max(at_least, -(-sum(weights) // (_TASK_WEIGHT * slots)), -(-len(weights) // (_TASK_PIECES * slots)))


def run_on_executors(
    sc: Any,
    works: Sequence[Work],
    perform: Callable[[Work, str], Result],
    weight: Callable[[Work], int],
    *,
    group: str,
    in_order: bool = False,
    is_stopped: Callable[[], bool] = _never,
) -> Iterator[list[TaskResult[Work, Result]]]:
    """Perform `works` on the executors of the SparkContext `sc` and yield the answers of each task as it finishes.

    `perform(work, attempt)` runs in a task; `attempt` is unique among all attempts of the application.  `group` names
    the Spark job group, by which a caller can cancel what is still running.  With `in_order` the works are begun in
    their order, but for small neighbours that share a task.  Once `is_stopped`, no further task is begun.
    """
    slots = max(1, sc.defaultParallelism)
    tasks = _packed(works, weight, slots, in_order=in_order, least_rounds=_ROUNDS_AT_ONCE)
    return _answers(sc, tasks, _AtOnce(perform), slots, group, is_stopped)


def run_pending(
    sc: Any,
    works: Sequence[Work],
    begin: Callable[[Work, str], Pending[Result]],
    weight: Callable[[Work], int],
    *,
    group: str,
    in_order: bool = False,
    is_stopped: Callable[[], bool] = _never,
) -> Iterator[list[TaskResult[Work, Result]]]:
    """As `run_on_executors`; of the works of a task, each is finished only once the next one is begun."""
    slots = max(1, sc.defaultParallelism)
    tasks = _packed(works, weight, slots, in_order=in_order, least_rounds=1)
    return _answers(sc, tasks, begin, slots, group, is_stopped)


def _packed(
    works: Sequence[Work], weight: Callable[[Work], int], slots: int, *, in_order: bool, least_rounds: int
) -> list[list[Work]]:
    if in_order:
        return pack_in_order(works, weight, _NEIGHBOURS_WEIGHT, most_items=_NEIGHBOURS)
    return pack_by_weight(works, weight, slots * pack_in_rounds(list(map(weight, works)), slots, least_rounds))


def _answers(
    sc: Any,
    tasks: Sequence[list[Work]],
    begin: Callable[[Work, str], Pending[Result]],
    slots: int,
    group: str,
    is_stopped: Callable[[], bool],
) -> Iterator[list[TaskResult[Work, Result]]]:
    answers: queue.Queue[list[TaskResult[Work, Result]]] = queue.Queue()
    pool = ThreadPoolExecutor(slots + _WAITING_JOBS, thread_name_prefix="sediment-spread")
    lost_alone = 0

    def fail(task: list[Work], error: Exception) -> None:
        answers.put([TaskResult(work, None, error) for work in task])

    def submit(task: list[Work], lost_with: Exception | None = None) -> None:
        """Have `task` done; `lost_with` is what ended an earlier task that it was part of."""
        nonlocal lost_alone
        if is_stopped():
            fail(task, NotStartedError("the run was stopped"))
            return
        if lost_with is not None and lost_alone >= _LOST_ALONE:
            fail(task, lost_with)
            return
        try:
            sc.setJobGroup(group, f"{len(task)} partitions")
            results = sc.parallelize(task, 1).mapPartitions(_Performer(begin)).collect()
            answers.put([TaskResult(work, result, None) for work, result in zip(task, results, strict=True)])
        except Exception as error:
            if len(task) > 1:
                for work in task:
                    pool.submit(submit, [work], error)
            else:
                lost_alone += 1
                fail(task, error)

    try:
        for task in tasks:
            pool.submit(submit, task)
        left = sum(map(len, tasks))
        while left:
            answered = answers.get()
            left -= len(answered)
            yield answered
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _AtOnce(Generic[Work, Result]):
    perform: Callable[[Work, str], Result]

    def __call__(self, work: Work, attempt: str) -> Pending[Result]:
        return completed(self.perform(work, attempt))


@dataclass(frozen=True, slots=True)
class _Performer(Generic[Work, Result]):
    """What a task runs: picklable by the names of its parts."""

    begin: Callable[[Work, str], Pending[Result]]

    def __call__(self, works: Iterator[Work]) -> Iterator[Result]:
        attempt = attempt_name()
        begun: deque[Pending[Result]] = deque()
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
