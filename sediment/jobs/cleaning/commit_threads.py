"""Threads that commit several partitions at the same time, and the state that these threads share.

A commit mostly waits for the disk, which combines the syncs of many threads into one flush.  Each partition is
committed in one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sediment.engine.directory.removals import Removals, wait_for_all
from sediment.segment_io.errors import SedimentError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_AT_ONCE = 16


class CommitThreads:
    """The threads; they and the removal of replaced files end before the locks of the run are released."""

    def __init__(self, stop: threading.Event) -> None:
        self.keeping = threading.Lock()
        """Held while files are kept, because all partitions share the directories for kept files."""
        self.removals = Removals()
        self.not_removed: Mapping[Path, SedimentError] = {}
        """The failed removals by partition directory, after `finish_removals`."""
        self._stop = stop
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sediment-commit")
        self._commits: list[Future[Any]] = []

    def map(self, commit: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
        running = [self._pool.submit(commit, item) for item in items]
        self._commits = running
        return [each.result() for each in running]

    def finish_commits(self) -> None:
        """Wait for commits that still run after an interruption; each ends after its current group of segments."""
        if not all(each.done() for each in self._commits):
            self._stop.set()
        wait_for_all(self._commits, self._stop.set)
        self._pool.shutdown()

    def finish_removals(self) -> None:
        """Wait for the removals; after this call, commit nothing."""
        self.not_removed = self.removals.finish()
