"""Threads that remove replaced files, so that a commit does not wait until the disk has freed their blocks.

Invariants: a removal is submitted only after the files are durably replaced. `finish` returns after the last removal,
even if signals arrive, because the directory's lock must be held until then. The files of unfinished removals still
occupy the disk, so the number of these removals is limited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import SedimentError

_THREADS = 2  # the kernel needs processor time to free the blocks and cached pages of a large file
_MOST_WAITING = 8  # removals that wait, in addition to those that run


@dataclass(frozen=True, slots=True)
class _Removal:
    directory: Path
    work: Future[None]
    describe: Callable[[Exception], SedimentError]

    @property
    def has_succeeded(self) -> bool:
        return self.work.done() and self.work.exception() is None


class Removals:
    """Removals that run in the background; several threads may submit them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sediment-remove")
        self._free = threading.BoundedSemaphore(_THREADS + _MOST_WAITING)
        self._guard = threading.Lock()
        self._submitted: list[_Removal] = []

    def submit(
        self, directory: Path, remove: Callable[[], None], describe: Callable[[Exception], SedimentError]
    ) -> None:
        """If too many removals are unfinished, wait first."""
        self._free.acquire()
        try:
            work = self._threads.submit(remove)
        except BaseException:
            self._free.release()
            raise
        work.add_done_callback(lambda _: self._free.release())
        with self._guard:
            self._submitted = [each for each in self._submitted if not each.has_succeeded]
            self._submitted.append(_Removal(directory, work, describe))

    def finish(self) -> Mapping[Path, SedimentError]:
        self._threads.shutdown(wait=False)
        with self._guard:
            submitted = list(self._submitted)
        wait_for_all([each.work for each in submitted])
        failed: dict[Path, SedimentError] = {}
        for each in submitted:
            error = each.work.exception()
            if isinstance(error, Exception):
                failed.setdefault(each.directory, each.describe(error))
            elif error is not None:
                raise error
        return failed


def _do_nothing() -> None:
    pass


def wait_for_all(work: Collection[Future[Any]], on_signal: Callable[[], None] = _do_nothing) -> None:
    # The method waits for futures, because Python 3.11 considers a thread ended if a signal interrupts `Thread.join`.
    interruption: KeyboardInterrupt | None = None
    while not all(each.done() for each in work):
        try:
            wait(work)
        except KeyboardInterrupt as error:
            interruption = interruption or error
            on_signal()
    if interruption is not None:
        raise interruption
