"""Threads that remove replaced files, so that a commit does not wait until the disk has freed their blocks.

Invariants: a removal is submitted only after the files are durably replaced.  `finish` ends after the last removal,
even if signals arrive, because the directory's lock must be held until then.  It returns every failed removal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import SedimentError

_THREADS = 2  # freeing the blocks and cached pages of a large file takes processor time in the kernel


class Removals:
    """Removals that run in the background; several threads may submit them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sediment-remove")
        self._submitted: list[tuple[Path, Future[None], Callable[[Exception], SedimentError]]] = []

    def submit(
        self, directory: Path, remove: Callable[[], None], describe: Callable[[Exception], SedimentError]
    ) -> None:
        """Call `remove` for files of `directory` in the background; `describe` turns its error into that of a run."""
        self._submitted.append((directory, self._threads.submit(remove), describe))

    def finish(self) -> Mapping[Path, SedimentError]:
        """Wait for all removals, and return the first error of each directory; no later removal may be submitted.

        Raises:
            KeyboardInterrupt: a signal arrived during the wait; it is raised after the last removal.
        """
        self._threads.shutdown(wait=False)
        wait_for_all([removal for _, removal, _ in self._submitted])
        failed: dict[Path, SedimentError] = {}
        for directory, removal, describe in self._submitted:
            error = removal.exception()
            if isinstance(error, Exception):
                failed.setdefault(directory, describe(error))
            elif error is not None:
                raise error
        return failed


def _do_nothing() -> None:
    pass


def wait_for_all(work: Collection[Future[Any]], on_signal: Callable[[], None] = _do_nothing) -> None:
    """Wait until all work is done, even if signals interrupt the wait; call `on_signal` for each of them.

    The wait is for futures, because Python 3.11 takes a thread for ended if a signal interrupts `Thread.join`.

    Raises:
        KeyboardInterrupt: the first interruption; it is raised when all work is done.
    """
    interruption: KeyboardInterrupt | None = None
    while not all(each.done() for each in work):
        try:
            wait(work)
        except KeyboardInterrupt as error:
            interruption = interruption or error
            on_signal()
    if interruption is not None:
        raise interruption
