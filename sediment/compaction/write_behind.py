"""Write-behind threads, which write finished outputs while the sweep fills the next one.

A small output is written in the time of its syncs.  The filesystem answers the syncs of several threads with one flush,
so several small outputs are written at the same time.

Invariant: an output is submitted only if all outputs in progress, with this one, take at most SMALL_BYTES, or if none
is in progress.  So a process holds at most two large outputs, even if several partitions share the threads: the sweep
fills one while the other is written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Written = TypeVar("Written")

MOST_WRITES = 16
"""Outputs that are written at the same time."""

SMALL_BYTES = 8 << 20
"""Bytes of the outputs that are written at the same time, unless there is only one."""


class WriteBehind:
    """Threads that do the writes of another thread; the first write starts the first thread."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._running: dict[Future[Any], int] = {}

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def submit(self, write: Callable[[], Written], size_bytes: int) -> Future[Written]:
        """Wait until an output of `size_bytes` may be written, then submit `write`; return its future."""
        while not self._has_room(size_bytes):
            wait(self._running, return_when=FIRST_COMPLETED)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_WRITES, thread_name_prefix="sediment-write")
        future = self._threads.submit(_call, write)
        self._running[future] = size_bytes
        return future

    def settle(self) -> None:
        """Wait until no write is running; the futures hold the errors."""
        wait(self._running)
        self._running = {}

    def _has_room(self, size_bytes: int) -> bool:
        self._running = {future: size for future, size in self._running.items() if not future.done()}
        together = sum(self._running.values()) + size_bytes
        return not self._running or (len(self._running) < MOST_WRITES and together <= SMALL_BYTES)


def _call(write: Callable[[], Written]) -> Written:
    try:
        return write()
    except BaseException as error:
        # The future holds the error.  The frames in the error's traceback would keep the output in memory.
        traceback.clear_frames(error.__traceback__)
        del write
        raise
