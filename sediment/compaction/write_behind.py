"""The write-behind thread, which writes finished outputs in order while the sweep fills the next one.

Invariant: an output is submitted only after the previous one is written.  So a process has at most two outputs in
memory, even if several partitions share the thread: the sweep fills one while the other is written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Written = TypeVar("Written")


class WriteBehind:
    """A thread that does the writes of another thread, in order; the first write starts the thread."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def submit(self, write: Callable[[], Written]) -> Future[Written]:
        """Wait for the previous write, then submit `write`; return the future of `write`."""
        self.settle()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sediment-write")
        future = self._thread.submit(_call, write)
        self._last = future
        return future

    def settle(self) -> None:
        """Wait until no write is running; errors are in the futures."""
        if self._last is not None:
            wait([self._last])
            self._last = None


def _call(write: Callable[[], Written]) -> Written:
    try:
        return write()
    except BaseException as error:
        # The error is in the future.  The frames in the error's traceback would keep the output in memory.
        traceback.clear_frames(error.__traceback__)
        del write
        raise
