"""Operations that wait for an event or for a time: Kafka's purgatory and its timer.

A fetch at the end of a log waits for its partition, and a joining member for its group. `DelayedOperations.check` tries
to complete the operations under one key, and tells them this key, because an operation may have thousands of keys.

Invariants:
- `try_complete` and `expire` of one operation never run at the same time.  After one of the two has succeeded, neither
  runs again.
- `check` never waits for another thread, so callers may hold locks.  While `expire` runs, this module holds no lock
  except the lock of the operation.
- A completed operation is registered under no key and has no timer.

Source: Kafka's DelayedOperation, DelayedOperationPurgatory and SystemTimer.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Protocol

from sediment.segment_io.units import NS_PER_MS, NS_PER_SECOND

_LOGGER = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS = 3600.0
_LEAST_CANCELLED_TO_PURGE = 1000
_EVERY_KEY = object()

MonotonicNs = Callable[[], int]
"""A monotonic clock in nanoseconds."""


class Cancelable:
    __slots__ = ("_callback", "_timer")

    def __init__(self, timer: Timer, callback: Callable[[], object]) -> None:
        self._timer = timer
        self._callback: Callable[[], object] | None = callback

    @property
    def is_pending(self) -> bool:
        return self._callback is not None

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None
            self._timer._count_cancelled()

    def _run(self) -> None:
        callback, self._callback = self._callback, None
        if callback is None:
            return
        try:
            callback()
        except Exception:
            _LOGGER.exception("a delayed callback failed")


class Timer:
    """A timer that runs each callback once, after a delay, on one thread.

    A timer without a `name` has no thread; `run_due` then runs the due callbacks in the calling thread.
    """

    def __init__(self, clock: MonotonicNs = time.monotonic_ns, *, name: str | None = "ExpirationReaper") -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Cancelable]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._cancelled = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if name is not None:
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def after(self, delay_ms: int, callback: Callable[[], object]) -> Cancelable:
        """Run `callback` after `delay_ms`; after `close` it never runs."""
        entry = Cancelable(self, callback)
        due_ns = self._clock() + max(delay_ms, 0) * NS_PER_MS
        with self._changed:
            heapq.heappush(self._heap, (due_ns, next(self._order), entry))
            if self._heap[0][2] is entry:
                self._changed.notify()
        return entry

    def run_due(self) -> None:
        while (entry := self._take_due()) is not None:
            entry._run()

    def close(self) -> None:
        """Run no further callback, and wait for a callback in progress; never call this from a callback."""
        with self._changed:
            self._is_closed = True
            self._heap.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _count_cancelled(self) -> None:
        """Remove the cancelled entries if they are more than half of the heap."""
        with self._changed:
            self._cancelled += 1
            if self._cancelled > max(_LEAST_CANCELLED_TO_PURGE, len(self._heap) // 2):
                self._heap = [each for each in self._heap if each[2].is_pending]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def _take_due(self) -> Cancelable | None:
        with self._changed:
            if self._heap and self._heap[0][0] <= self._clock():
                return heapq.heappop(self._heap)[2]
        return None

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._is_closed:
                    return
                seconds = _LONGEST_WAIT_SECONDS
                if self._heap:
                    seconds = min(seconds, (self._heap[0][0] - self._clock()) / NS_PER_SECOND)
                if seconds > 0:
                    self._changed.wait(seconds)


class DelayedOperation(Protocol):
    """An operation that waits for a condition; its methods never raise."""

    def try_complete(self, changed: Collection[Any] | None) -> bool:
        """`changed` contains the keys that were checked since the last call; None stands for all keys."""
        ...

    def expire(self) -> None: ...


class _Watched:
    """An operation with its keys; `attempt` and `expire` never run concurrently."""

    __slots__ = ("_busy", "_changed", "_wanted", "is_done", "keys", "operation", "timer")

    def __init__(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        self.operation = operation
        self.keys = keys
        self.timer: Cancelable | None = None
        self.is_done = False
        self._busy = threading.Lock()
        self._changed: deque[Hashable] = deque()
        self._wanted = False

    def attempt(self, key: Hashable = _EVERY_KEY) -> bool:
        """If another thread is trying to complete the operation, make that thread try again."""
        self._changed.append(key)
        self._wanted = True
        while self._wanted and self._busy.acquire(blocking=False):
            try:
                self._wanted = False
                if self.is_done:
                    return False
                if self.operation.try_complete(self._taken_keys()):
                    self.is_done = True
                    return True
            finally:
                self._busy.release()
        return False

    def _taken_keys(self) -> Collection[Hashable] | None:
        """Take the changed keys out of the queue, to which other threads add keys meanwhile."""
        keys = {self._changed.popleft() for _ in range(len(self._changed))}
        return None if _EVERY_KEY in keys else keys

    def expire(self) -> bool:
        with self._busy:
            if self.is_done:
                return False
            self.is_done = True
            self.operation.expire()
            return True


class DelayedOperations:
    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._watchers: dict[Hashable, dict[int, _Watched]] = {}
        self._guard = threading.Lock()
        self._is_closed = False

    def __len__(self) -> int:
        with self._guard:
            return len({number for watched in self._watchers.values() for number in watched})

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], timeout_ms: int) -> bool:
        """Return True if the operation was completed before the call returned."""
        watched = _Watched(operation, tuple(keys))
        if watched.attempt():
            return True
        if timeout_ms <= 0:
            return watched.expire()
        with self._guard:
            is_closed = self._is_closed
            if not is_closed:
                for key in watched.keys:
                    self._watchers.setdefault(key, {})[id(watched)] = watched
        if is_closed:
            return watched.expire()
        # Try again, because an event between the first attempt and the registration would otherwise be missed.
        if watched.attempt():
            self._forget(watched)
            return True
        watched.timer = self._timer.after(timeout_ms, lambda: self._expire(watched))
        if watched.is_done:
            self._forget(watched)
        return watched.is_done

    def check(self, key: Hashable) -> int:
        if key not in self._watchers:
            return 0
        with self._guard:
            waiting = list(self._watchers.get(key, {}).values())
        completed = 0
        for watched in waiting:
            if watched.attempt(key):
                self._forget(watched)
                completed += 1
        return completed

    def expire_all(self) -> None:
        with self._guard:
            waiting = {number: each for watched in self._watchers.values() for number, each in watched.items()}
        for watched in waiting.values():
            self._expire(watched)

    def close(self) -> None:
        with self._guard:
            self._is_closed = True
        self.expire_all()

    def _expire(self, watched: _Watched) -> None:
        if watched.expire():
            self._forget(watched)

    def _forget(self, watched: _Watched) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
        with self._guard:
            for key in watched.keys:
                under_key = self._watchers.get(key)
                if under_key is not None:
                    under_key.pop(id(watched), None)
                    if not under_key:
                        del self._watchers[key]
