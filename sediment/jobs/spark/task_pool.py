"""Pool of Spark tasks: items packed by weight, results in the order in which the tasks finish.

A few threads submit the jobs, largest first.

Invariant: every item has exactly one result, or the error with which Spark gave up on its task.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sediment.segment_io.packing import pack_by_weight, pack_in_order

Item = TypeVar("Item")
Result = TypeVar("Result")

_TASK_WEIGHT, _TASK_ITEMS = 2 << 30, 128  # limits of one task; larger tasks would delay the results
LEAST_ROUNDS = 4  # unless fewer are better; with this number, slots of different speeds finish at about the same time
_LOST_ALONE = 8  # maximum number of items lost in separate tasks; if more are lost, the items are not the cause
_NEIGHBOURS, _NEIGHBOURS_WEIGHT = 8, 64 << 20  # maximum items and bytes of a task if items start in order
_HERE = "driver"  # name of the only attempt outside Spark
_OWN_FRAME = "task_pool.py"  # in the traceback of every error of an item
_CANNOT_BEGIN = ("Error from python worker:", "java.io.IOException: Cannot run program")
_MOST_PENDING = 16  # items of a task whose last step waits for a disk
_WAITING_JOBS = 2  # in addition to one for each slot, so no slot waits for the driver


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[Item, Result]):
    """Result of one item: `result`, or `error` if Spark gave up on its task or the item was never started."""

    item: Item
    result: Result | None
    error: Exception | None


_given_up: dict[str, Exception] = {}
"""The error with which the workers of a run cannot begin, by job group."""


class NotStartedError(Exception):
    """The item was not started, because the run was stopped first."""


@dataclass(frozen=True, slots=True)
class Pending(Generic[Result]):
    """Item in progress; `finish` completes it and returns its result, possibly after the next items have started."""

    finish: Callable[[], Result]


def completed(result: Result) -> Pending[Result]:
    return Pending(lambda: result)


def _never() -> bool:
    return False


def pack_in_rounds(weights: Sequence[int], slots: int, at_least: int = 1) -> int:
    """Return how many tasks each slot should run, one after another: as few as the weights allow."""
    # Few tasks are better, because the items of one task overlap, and each task costs Spark some CPU time.
    return max(at_least, -(-sum(weights) // (_TASK_WEIGHT * slots)), -(-len(weights) // (_TASK_ITEMS * slots)))


def run_on_executors(
    sc: Any,
    items: Sequence[Item],
    perform: Callable[[Item, str], Result],
    weight: Callable[[Item], int],
    *,
    group: str,
    in_order: bool = False,
    least_rounds: int = LEAST_ROUNDS,
    is_stopped: Callable[[], bool] = _never,
) -> Iterator[list[TaskResult[Item, Result]]]:
    """Run `items` on the executors of the SparkContext `sc`; yield the results of each task when the task finishes.

    `perform(item, attempt)` runs in a task; `attempt` is unique among all attempts of the application.  `group` names
    the Spark job group of the run, with which a caller can cancel running jobs.  With `in_order` the items start in
    their order, except for small neighbours that share a task.  Each slot runs at least `least_rounds` tasks one after
    another; 1 is enough for short items, because each task costs Spark some CPU time.
    """
    slots = max(1, sc.defaultParallelism)
    tasks = _packed(items, weight, slots, in_order=in_order, least_rounds=least_rounds)
    return _results(sc, tasks, _Completed(perform), slots, group, is_stopped)


def run_here(items: Iterable[Item], perform: Callable[[Item, str], Result]) -> Iterator[TaskResult[Item, Result]]:
    """Run `items` one after another in this process, without Spark; an error of an item is part of its result."""
    for item in items:
        try:
            result = perform(item, _HERE)
        except Exception as error:
            yield TaskResult(item, None, error)
        else:
            yield TaskResult(item, result, None)


def run_pending(
    sc: Any,
    items: Sequence[Item],
    start: Callable[[Item, str], Pending[Result]],
    weight: Callable[[Item], int],
    *,
    group: str,
    in_order: bool = False,
    is_stopped: Callable[[], bool] = _never,
) -> Iterator[list[TaskResult[Item, Result]]]:
    """Run `items` like `run_on_executors`, but finish each item of a task only after the next items have started."""
    slots = max(1, sc.defaultParallelism)
    tasks = _packed(items, weight, slots, in_order=in_order, least_rounds=1)
    return _results(sc, tasks, start, slots, group, is_stopped)


def _packed(
    items: Sequence[Item], weight: Callable[[Item], int], slots: int, *, in_order: bool, least_rounds: int
) -> list[list[Item]]:
    if in_order:
        return pack_in_order(items, weight, _NEIGHBOURS_WEIGHT, most_items=_NEIGHBOURS)
    return pack_by_weight(items, weight, slots * pack_in_rounds(list(map(weight, items)), slots, least_rounds))


def _results(
    sc: Any,
    tasks: Sequence[list[Item]],
    start: Callable[[Item, str], Pending[Result]],
    slots: int,
    group: str,
    is_stopped: Callable[[], bool],
) -> Iterator[list[TaskResult[Item, Result]]]:
    finished: queue.Queue[list[TaskResult[Item, Result]]] = queue.Queue()
    pool = _JobThreads(slots + _WAITING_JOBS)
    lost_alone = 0

    def fail(task: list[Item], error: Exception) -> None:
        finished.put([TaskResult(item, None, error) for item in task])

    def submit(task: list[Item], lost_with: Exception | None = None) -> None:
        nonlocal lost_alone
        if is_stopped():
            fail(task, NotStartedError("the run was stopped"))
            return
        if lost_with is not None and lost_alone >= _LOST_ALONE:
            fail(task, lost_with)
            return
        if group in _given_up:
            fail(task, _given_up[group])
            return
        try:
            # Each packed task is a separate Spark job, so the driver can commit a partition as soon as its task is
            # done.
            sc.setJobGroup(group, f"{len(task)} partitions")
            # The tasks use an RDD, because Catalyst needs seconds for its first plan, which is noticeable in a small
            # run.
            results = sc.parallelize(task, 1).mapPartitions(_TaskFunction(start)).collect()
            finished.put([TaskResult(item, result, None) for item, result in zip(task, results, strict=True)])
        except Exception as error:
            # If a Python worker cannot begin, for example because the executors lack a module, no item is the
            # cause, and no further task of the run starts.
            if _cannot_begin(error):
                _given_up[group] = error
                fail(task, error)
            elif len(task) > 1:
                for item in task:
                    # Items that shared a failed task are retried once, each in a separate task.
                    pool.submit(partial(submit, [item], error))
            else:
                lost_alone += 1
                fail(task, error)

    try:
        for task in tasks:
            pool.submit(partial(submit, task))
        left = sum(map(len, tasks))
        while left:
            results = finished.get()
            left -= len(results)
            yield results
    finally:
        pool.close()


def _cannot_begin(error: Exception) -> bool:
    """Return True if the worker failed before it reached an item."""
    text = str(error)
    # A worker that was killed, for example because it used too much memory, leaves no traceback.
    is_before = "Traceback (most recent call last)" in text and _OWN_FRAME not in text
    return is_before or any(said in text for said in _CANNOT_BEGIN)


class _JobThreads:
    """Threads that submit jobs and wait for their results.

    They are daemon threads, because Spark never answers a job that arrives while Spark is stopping.  Python's own pool
    would wait for such a thread at the end of the process.
    """

    def __init__(self, count: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._count = count
        for number in range(count):
            threading.Thread(target=self._work, name=f"sediment-task_{number}", daemon=True).start()

    def submit(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def close(self) -> None:
        self._is_closed = True
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if not self._is_closed:
                call()


@dataclass(frozen=True, slots=True)
class _Completed(Generic[Item, Result]):
    perform: Callable[[Item, str], Result]

    def __call__(self, item: Item, attempt: str) -> Pending[Result]:
        return completed(self.perform(item, attempt))


@dataclass(frozen=True, slots=True)
class _TaskFunction(Generic[Item, Result]):
    """Function of a Spark task.  It is a class because pickle stores a class by its name, but a closure by its code."""

    start: Callable[[Item, str], Pending[Result]]

    def __call__(self, items: Iterator[Item]) -> Iterator[Result]:
        attempt = attempt_name()
        started: deque[Pending[Result]] = deque()
        for item in items:
            started.append(self.start(item, attempt))
            if len(started) > _MOST_PENDING:
                yield started.popleft().finish()
        for last in started:
            yield last.finish()


def attempt_name() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.stageId()}.{context.attemptNumber()}.{context.taskAttemptId()}" if context else _HERE
