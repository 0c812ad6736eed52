"""One thread that writes outputs behind the sweeps that fill them, in the order in which they are handed over.

Invariant: an output is handed over only when the one before it is written, so that one being swept and one being
written are all there are; this holds across the partitions of a process that hand theirs to the same thread.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Written = TypeVar("Written")


class WriteBehind:
    """Writes what one thread gives it, one thing after the other; its own thread begins with the first of them."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def submit(self, write: Callable[[], Written]) -> Future[Written]:
        """Have `write` called as soon as what was submitted before is done, which this waits for."""
        self.settle()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sediment-write")
        future = self._thread.submit(_call, write)
        self._last = future
        return future

    def settle(self) -> None:
        """Wait until nothing is being written; errors are told by the futures."""
        if self._last is not None:
            wait([self._last])
            self._last = None


def _call(write: Callable[[], Written]) -> Written:
    try:
        return write()
    except BaseException as error:
        # The error is kept until somebody asks for it; the output that it was about, which its frames hold, is not.
        traceback.clear_frames(error.__traceback__)
        del write
        raise
