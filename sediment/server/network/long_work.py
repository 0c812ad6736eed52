"""Threads for work that takes long, so that the handlers stay free for the other requests.

    large frames        of every API except Produce: a processor passes them here
    rest of a request   a handler passes it here when it finds a batch that is large, or expands far

There are few of these threads, which bounds the memory for decompressed batches and decoded messages.  Their queue
needs no bound of its own: each connection has at most one request in it, and `FrameMemory` bounds the bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]
"""A function that raises nothing."""

_HANDLERS_PER_THREAD = 4


class LongWork:
    def __init__(self, handlers: int) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"data-plane-long-request-handler-{number}", daemon=True)
            for number in range(max(handlers // _HANDLERS_PER_THREAD, 1))
        ]

    def __len__(self) -> int:
        return self._tasks.qsize()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, task: Task) -> None:
        """Run `task` after those that wait already; after `stop`, it may never run."""
        self._tasks.put(task)

    def stop(self, timeout_seconds: float) -> None:
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # an idle thread must not keep the memory of a frame
