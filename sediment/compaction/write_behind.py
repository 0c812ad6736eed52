"""The write-behind thread: it writes finished outputs, in order, while the next one is swept.

Invariant: an output is submitted only after the previous one is written.  So a process holds at most two outputs, one
being swept and one being written, even if several partitions share the thread.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Written = TypeVar("Written")


class WriteBehind:
    """A thread that performs the writes of one other thread, in order; the first write starts the thread."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def submit(self, write: Callable[[], Written]) -> Future[Written]:
        """Wait for the previous write, then submit `write`; return its future."""
        self.settle()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sediment-write")
        future = self._thread.submit(_call, write)
        self._last = future
        return future

    def settle(self) -> None:
        """Wait until no write is running; the futures hold the errors."""
        if self._last is not None:
            wait([self._last])
            self._last = None


def _call(write: Callable[[], Written]) -> Written:
    try:
        return write()
    except BaseException as error:
        # The future keeps the error alive, and its frames would keep the output alive.
        traceback.clear_frames(error.__traceback__)
        del write
        raise
