"""Threads that commit several partitions at the same time, and the state that these threads share.

A commit mostly waits for the disk, which combines the syncs of many threads into one flush.  So one thread does the
other steps of several commits in lockstep.  On a network filesystem these steps wait too, so each commit has its own
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sediment.engine.directory.lockstep import Steps, Wait, error_of, perform, perform_together
from sediment.engine.directory.removals import Removals, wait_for_all
from sediment.segment_io.errors import SedimentError

Outcome = TypeVar("Outcome")

_AT_ONCE = 16


class CommitThreads:
    """The threads; they and the removal of replaced files end before the locks of the run are released."""

    def __init__(self, stop: threading.Event, *, in_lockstep: bool) -> None:
        self.keeping = threading.Lock()
        """Held while files are kept, because all partitions share the directories for kept files."""
        self.removals = Removals()
        self.not_removed: Mapping[Path, SedimentError] = {}
        """The failed removals by partition directory, after `finish_removals`."""
        self._stop = stop
        self._pool = ThreadPoolExecutor(_AT_ONCE + 1, thread_name_prefix="sediment-commit")  # 1 for the lockstep
        self._commits: Sequence[Future[Any]] = []
        self._in_lockstep = in_lockstep

    def perform_all(self, commits: Sequence[Steps[Outcome]]) -> list[Outcome]:
        """Perform all commits, up to 16 at the same time, and return their outcomes in the same order."""
        outcomes: list[Outcome] = []
        while rest := commits[len(outcomes) :]:
            if self._in_lockstep:
                (together,) = self._performed([partial(perform_together, rest[:_AT_ONCE], self._wait_for_all)])
                outcomes += together
            else:
                outcomes += self._performed([partial(perform, steps) for steps in rest])
        return outcomes

    def _performed(self, works: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
        # The futures exist before their threads begin, so that an interruption at any moment finds them.
        futures: list[Future[Outcome]] = [Future() for _ in works]
        self._commits = futures
        for future, work in zip(futures, works, strict=True):
            self._pool.submit(_fulfil, future, work)
        return [future.result() for future in futures]

    def _wait_for_all(self, waits: Sequence[Wait]) -> list[BaseException | None]:
        return [error() for error in list(map(self._begun, waits))]

    def _begun(self, wait: Wait) -> Callable[[], BaseException | None]:
        """Begin to wait in a thread; return a function that returns the error."""
        try:
            return self._pool.submit(error_of, wait).result
        except RuntimeError:
            # The interpreter is ending, or the system has no more threads; but the commit must go on.
            error = error_of(wait)
            return lambda: error

    def finish_commits(self) -> None:
        """Wait for commits that still run after an interruption; each ends after its current group of segments."""
        begun = [each for each in self._commits if not each.cancel()]
        if not all(each.done() for each in begun):
            self._stop.set()
        wait_for_all(begun, self._stop.set)
        self._pool.shutdown()

    def finish_removals(self) -> None:
        """Wait for the removals; after this call, commit nothing."""
        self.not_removed = self.removals.finish()


def _fulfil(future: Future[Outcome], work: Callable[[], Outcome]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
