"""Threads that remove replaced files, so that a commit does not wait until the disk has freed their blocks.

Invariants: a removal is submitted only after the files are durably replaced.  `finish` returns after the last removal;
the directory's lock must be held until then.  Every failed removal is returned by `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

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
        """Wait for all removals, and return the first error of each directory; no later removal may be submitted."""
        self._threads.shutdown()
        failed: dict[Path, SedimentError] = {}
        for directory, removal, describe in self._submitted:
            error = removal.exception()
            if isinstance(error, Exception):
                failed.setdefault(directory, describe(error))
            elif error is not None:
                raise error
        return failed
