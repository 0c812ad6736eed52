"""Pool of Spark tasks: items packed by weight, results in the order in which the tasks finish.

The module `work_queue` decides what starts next.  Each job is submitted by a thread; on a cluster, a thread that
watches the slots adds such threads when executors have registered.

Invariant: every item has exactly one result, or the error with which Spark gave up on its task.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sediment.jobs.spark.job_names import JobName, named_job
from sediment.jobs.spark.live_slots import LiveSlots, Shortage, await_slots, read_slots
from sediment.jobs.spark.task_figures import Figures, collect, with_figures
from sediment.jobs.spark.work_queue import FirstPhase, SecondPhase, WorkQueue, pack_items

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOGGER = logging.getLogger(__name__)

LEAST_ROUNDS = 4  # unless fewer are better; with this number, slots of different speeds finish at about the same time
_LOST_ALONE = 8  # maximum number of items lost in separate tasks; if more are lost, the items are not the cause
_HERE = "driver"  # name of the only attempt outside Spark
_OWN_FRAME = "task_pool.py"  # in the traceback of every error of an item
_CANNOT_BEGIN = ("Error from python worker:", "java.io.IOException: Cannot run program")
_MOST_PENDING = 16  # items of a task whose last step waits for a disk
_WATCH_SECONDS = 0.5  # between two looks at the slots of a cluster


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


@dataclass(frozen=True, slots=True)
class Jobs(Generic[Item, Result]):
    """Jobs of many tasks, which the driver submits for an item if the result of its task `asks` for them.

    `run` gets the item, that result, and the number of task slots to use; it returns the final result of the item.
    """

    asks: Callable[[Result], bool]
    run: Callable[[Item, Result, int], Result]


def _never() -> bool:
    return False


def _as_it_is(item: Item, _slots: LiveSlots) -> Item:
    return item


def _counted(items: Sequence[Any]) -> JobName:
    return JobName(f"{len(items)} partitions")


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
    prepare: Callable[[Item, LiveSlots], Item] = _as_it_is,
    jobs: Jobs[Item, Result] | None = None,
    title: Callable[[Sequence[Item]], JobName] = _counted,
    figures: Callable[[Item, Result], Figures] | None = None,
) -> Iterator[list[TaskResult[Item, Result]]]:
    """Run `items` on the executors of the SparkContext `sc`; yield the results of each task when the task finishes.

    `perform(item, attempt)` runs in a task; `attempt` is unique among all attempts of the application.  `group` names
    the Spark job group of the run, with which a caller can cancel running jobs, and `title` the job of some items.
    Spark's UI and event log show the `figures` of each result.
    With `in_order` the items start in their order, except for small neighbours that share a task.  Each slot runs at
    least `least_rounds` tasks one after another; 1 is enough for short items, because each task costs Spark some CPU
    time.  After `is_stopped` returns True, no further task starts.

    `prepare(item, slots)` is called when an item starts; the item that it returns is sent to the task, and is the item
    of the result.
    """
    steps = _Steps(_Completed(perform), prepare, jobs, title, figures, group, is_stopped)
    return _results(sc, items, weight, steps, in_order=in_order, least_rounds=least_rounds)


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
    prepare: Callable[[Item, LiveSlots], Item] = _as_it_is,
    jobs: Jobs[Item, Result] | None = None,
    title: Callable[[Sequence[Item]], JobName] = _counted,
    figures: Callable[[Item, Result], Figures] | None = None,
) -> Iterator[list[TaskResult[Item, Result]]]:
    """Run `items` like `run_on_executors`, but finish each item of a task only after the next items have started."""
    steps = _Steps(start, prepare, jobs, title, figures, group, is_stopped)
    return _results(sc, items, weight, steps, in_order=in_order, least_rounds=1)


@dataclass(frozen=True, slots=True)
class _Steps(Generic[Item, Result]):
    """What a pool does with each item; the fields are the arguments of `run_pending`."""

    start: Callable[[Item, str], Pending[Result]]
    prepare: Callable[[Item, LiveSlots], Item]
    jobs: Jobs[Item, Result] | None
    title: Callable[[Sequence[Item]], JobName]
    figures: Callable[[Item, Result], Figures] | None
    group: str
    is_stopped: Callable[[], bool]


def _results(
    sc: Any,
    items: Sequence[Item],
    weight: Callable[[Item], int],
    steps: _Steps[Item, Result],
    *,
    in_order: bool,
    least_rounds: int,
) -> Iterator[list[TaskResult[Item, Result]]]:
    if not items:
        return
    slots = _slots_to_start_with(sc, steps.group)
    work: WorkQueue[Item, Result] = WorkQueue(
        pack_items(items, weight, slots, in_order=in_order, least_rounds=least_rounds)
    )
    pool = _Pool(sc, steps, work, slots)
    try:
        pool.begin()
        left = len(items)
        while left:
            results = pool.finished.get()
            left -= len(results)
            yield results
    finally:
        pool.close()


def _slots_to_start_with(sc: Any, group: str) -> LiveSlots:
    """Return the slots of `sc`; if they cannot be read, the first job of the pool meets the same error."""
    try:
        return await_slots(sc, group)
    except Exception as error:
        _LOGGER.debug("the slots cannot be read: %s", type(error).__name__)
        return LiveSlots(1)


class _Pool(Generic[Item, Result]):
    """Threads that submit the jobs of a queue and wait for their results.

    They are daemon threads, because Spark never answers a job that arrives while Spark is stopping.  Python's own pool
    would wait for such a thread at the end of the process.
    """

    def __init__(self, sc: Any, steps: _Steps[Item, Result], work: WorkQueue[Item, Result], slots: LiveSlots) -> None:
        self.finished: queue.Queue[list[TaskResult[Item, Result]]] = queue.Queue()
        self._sc = sc
        self._steps = steps
        self._lock = threading.Lock()  # held while the work, the slots or the count is used
        self._work = work
        self._slots = slots
        self._lost_alone = 0
        self._closed = threading.Event()

    def begin(self) -> None:
        refused = self._start_threads()
        if refused is not None and not self._work.is_busy:
            raise refused
        if not self._slots.is_local:
            threading.Thread(target=self._watch, name="sediment-slots", daemon=True).start()

    def close(self) -> None:
        """Start nothing more; the threads end after their current jobs."""
        self._closed.set()

    def _watch(self) -> None:
        shortage = Shortage()
        while not self._closed.wait(_WATCH_SECONDS):
            try:
                slots = read_slots(self._sc)
            except Exception as error:
                _LOGGER.debug("the slots cannot be read any more: %s", type(error).__name__)
                return  # Spark has stopped
            shortage.warn(self._sc, is_waiting=not slots.tasks and self._work.is_busy)
            if slots.tasks:  # without executors, the figures of the last ones are the best guess
                with self._lock:
                    self._slots = slots
                self._start_threads()

    def _start_threads(self) -> RuntimeError | None:
        """Start threads for what can start now; return the error if this system allows no more threads.

        Then the threads that run take the rest.
        """
        while (work := self._next()) is not None:
            try:
                threading.Thread(target=self._run, args=(work,), name="sediment-task", daemon=True).start()
            except RuntimeError as error:
                with self._lock:
                    self._work.take_back(work)
                return error
        return None

    def _next(
        self, ended: FirstPhase[Item] | SecondPhase[Item, Result] | None = None
    ) -> FirstPhase[Item] | SecondPhase[Item, Result] | None:
        with self._lock:
            if ended is not None:
                self._work.end(ended)
            return None if self._closed.is_set() else self._work.start(self._slots)

    def _run(self, work: FirstPhase[Item] | SecondPhase[Item, Result] | None) -> None:
        while work is not None:
            if isinstance(work, FirstPhase):
                self._first_phase(work)
            else:
                self._second_phase(work)
            work = self._next(work)
            self._start_threads()

    def _fail(self, items: Sequence[Item], error: Exception) -> None:
        self.finished.put([TaskResult(item, None, error) for item in items])

    def _first_phase(self, work: FirstPhase[Item]) -> None:
        items = work.items
        error = self._why_not(work.lost_with)
        if error is not None:
            self._fail(items, error)
            return
        start, figures = self._steps.start, self._steps.figures
        counted = None if figures is None else _CountedTask(start, figures)
        try:
            items = [self._steps.prepare(item, self._slots) for item in items]
            # Each packed task is a separate Spark job, so the driver can commit a partition as soon as its task is
            # done.
            with named_job(self._sc, self._steps.group, self._steps.title(items)):
                # The tasks use an RDD, because Catalyst needs seconds for its first plan, which is noticeable in a
                # small run.
                rows = self._sc.parallelize(items, 1)
                results = collect(self._sc, rows.mapPartitions, _TaskFunction(start), counted)
        except Exception as lost:
            self._lost(items, lost)
        else:
            self._found(items, results)

    def _found(self, items: Sequence[Item], results: Sequence[Result]) -> None:
        done = []
        for item, result in zip(items, results, strict=True):
            if self._steps.jobs is not None and self._steps.jobs.asks(result):
                with self._lock:
                    self._work.ask(item, result)
            else:
                done.append(TaskResult(item, result, None))
        if done:
            self.finished.put(done)

    def _second_phase(self, work: SecondPhase[Item, Result]) -> None:
        assert self._steps.jobs is not None
        item = work.item
        if self._steps.is_stopped():
            self._fail([item], NotStartedError("the run was stopped"))
            return
        try:
            item = self._steps.prepare(item, self._slots)
            result = self._steps.jobs.run(item, work.asked, work.slots)
        except Exception as error:
            self._fail([item], error)
        else:
            self.finished.put([TaskResult(item, result, None)])

    def _why_not(self, lost_with: Exception | None) -> Exception | None:
        """Return the error of items that do not start: after a stop, or if Spark has lost too many of them."""
        if self._steps.is_stopped():
            return NotStartedError("the run was stopped")
        if lost_with is not None and self._lost_alone >= _LOST_ALONE:
            return lost_with
        return _given_up.get(self._steps.group)

    def _lost(self, items: Sequence[Item], error: Exception) -> None:
        # If a Python worker cannot begin, for example because the executors lack a module, no item is the cause, and no
        # further task of the run starts.
        if _cannot_begin(error):
            _given_up[self._steps.group] = error
        elif len(items) > 1:
            with self._lock:
                # Items that shared a failed task are retried once, each in a separate task.
                self._work.take_again(items, error)
            return
        else:
            with self._lock:
                self._lost_alone += 1
        self._fail(items, error)


def _cannot_begin(error: Exception) -> bool:
    """Return True if the worker failed before it reached an item."""
    text = str(error)
    # A worker that was killed, for example because it used too much memory, leaves no traceback.
    is_before = "Traceback (most recent call last)" in text and _OWN_FRAME not in text
    return is_before or any(said in text for said in _CANNOT_BEGIN)


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
        for _, result in self.pairs(items):
            yield result

    def pairs(self, items: Iterator[Item]) -> Iterator[tuple[Item, Result]]:
        attempt = attempt_name()
        started: deque[tuple[Item, Pending[Result]]] = deque()
        for item in items:
            started.append((item, self.start(item, attempt)))
            if len(started) > _MOST_PENDING:
                first, pending = started.popleft()
                yield first, pending.finish()
        for last, pending in started:
            yield last, pending.finish()


@dataclass(frozen=True, slots=True)
class _CountedTask(Generic[Item, Result]):
    """Function of a Spark task whose results carry their figures."""

    start: Callable[[Item, str], Pending[Result]]
    figures: Callable[[Item, Result], Figures]

    def __call__(self, items: Iterator[Item]) -> Iterator[bytes]:
        for item, result in _TaskFunction(self.start).pairs(items):
            yield with_figures(self.figures(item, result), result)


def attempt_name() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"{context.stageId()}.{context.attemptNumber()}.{context.taskAttemptId()}" if context else _HERE
