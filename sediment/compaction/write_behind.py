"""Write-behind threads, which write finished outputs while the sweep fills the next one.

Invariant: an output is submitted if no other output is being written.  Otherwise it is submitted only if it and the
outputs that are being written have at most SMALL_BYTES in total.  So a process has at most two large outputs in memory,
even if several partitions share the threads.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Written = TypeVar("Written")

MOST_WRITES = 16
"""Largest number of outputs that are written at the same time."""

SMALL_BYTES = 8 << 20
"""Largest total size of outputs that are written at the same time; one output alone may be larger."""


class WriteBehind:
    """Threads that write in place of the calling thread; the first write starts the first thread."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._running: dict[Future[Any], int] = {}

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def submit(self, write: Callable[[], Written], size_bytes: int) -> Future[Written]:
        # A small output needs most of its time for syncs.  If several threads sync at the same time, the filesystem may
        # flush once for all of them.  So several small outputs are written at the same time.
        while not self._has_room(size_bytes):
            wait(self._running, return_when=FIRST_COMPLETED)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_WRITES, thread_name_prefix="sediment-write")
        future = self._threads.submit(_call, write)
        self._running[future] = size_bytes
        return future

    def settle(self) -> None:
        """Wait until no write is running; errors are in the futures."""
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
        # The error is in the future.  The frames in the error's traceback would keep the output in memory.
        traceback.clear_frames(error.__traceback__)
        del write
        raise
