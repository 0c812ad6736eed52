"""Background tasks; each runs once after a delay, or repeatedly at a fixed rate.

Times come from a `Clock`, so a test can control them.

Invariants: two runs of a task never overlap. If a periodic task raises an error, the error is logged, and the task runs
again after its period. Runs that are missed because of a slow task or process are skipped. Nothing runs after `close`.

Source: kafka-log 04 §11.
"""

from __future__ import annotations

import logging
import sched
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.units import MS_PER_SECOND, NS_PER_MS

_LOGGER = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 3600.0


class Clock:
    def now_ms(self) -> int:
        return time.time_ns() // NS_PER_MS

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // NS_PER_MS

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / MS_PER_SECOND)


class ScheduledTask:
    """A waiting or running task; `cancel` prevents further runs."""

    def __init__(self, name: str, task: Callable[[], object], period_ms: int | None) -> None:
        self.name = name
        self._task = task
        self.period_ms = period_ms
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Prevent further runs of the task; a run in progress continues."""
        self._cancelled.set()

    def perform(self) -> None:
        if self.is_cancelled:
            return
        try:
            self._task()
        except (SedimentError, OSError) as error:
            _LOGGER.error("background task %s failed: %s", self.name, error)
        except Exception:
            _LOGGER.exception("background task %s failed", self.name)


class Scheduler:
    """A queue of tasks that run when they are due, on `threads` threads; with 0 threads, `run_due` runs them."""

    def __init__(self, clock: Clock, *, threads: int = 0) -> None:
        self._clock = clock
        self._queue = sched.scheduler(clock.monotonic_ms, lambda _delay: None)
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._dispatcher: threading.Thread | None = None
        if threads:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sediment-background")
            self._dispatcher = threading.Thread(target=self._dispatch, name="sediment-scheduler", daemon=True)
            self._dispatcher.start()

    def schedule_once(self, name: str, task: Callable[[], object], *, delay_ms: int = 0) -> ScheduledTask:
        """Run `task` after `delay_ms`; after `close`, it never runs."""
        return self._schedule(ScheduledTask(name, task, None), delay_ms)

    def schedule_periodically(
        self, name: str, task: Callable[[], object], *, period_ms: int, delay_ms: int = 0
    ) -> ScheduledTask:
        """Run `task` after `delay_ms`, and then every `period_ms`; a period of 0 means 1 ms."""
        return self._schedule(ScheduledTask(name, task, max(period_ms, 1)), delay_ms)

    def run_due(self) -> None:
        """Run, in this thread, the tasks that are due or become due meanwhile; the scheduler must have no threads."""
        self._queue.run(blocking=False)

    def close(self) -> None:
        """Start no further run, and wait for runs in progress; never call this from a task."""
        self._closed.set()
        self._wake.set()
        if self._dispatcher is not None:
            self._dispatcher.join()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _schedule(self, task: ScheduledTask, delay_ms: int) -> ScheduledTask:
        self._enter(task, self._clock.monotonic_ms() + max(delay_ms, 0))
        return task

    def _enter(self, task: ScheduledTask, due_ms: int) -> None:
        self._queue.enterabs(due_ms, 0, self._start, (task, due_ms))
        self._wake.set()

    def _start(self, task: ScheduledTask, due_ms: int) -> None:
        if self._pool is None:
            self._run(task, due_ms)
        else:
            self._pool.submit(self._run, task, due_ms)

    def _run(self, task: ScheduledTask, due_ms: int) -> None:
        if self._closed.is_set():
            return
        task.perform()
        if task.period_ms is not None and not task.is_cancelled:
            late_ms = max(self._clock.monotonic_ms() - due_ms, 0)
            self._enter(task, due_ms + task.period_ms * (1 + late_ms // task.period_ms))

    def _dispatch(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            next_ms = self._queue.run(blocking=False)
            seconds = _LONGEST_WAIT_SECONDS if next_ms is None else float(next_ms) / MS_PER_SECOND
            self._wake.wait(min(seconds, _LONGEST_WAIT_SECONDS))
