"""Daemon from which Spark forks its Python workers (`spark.python.daemon.module`), with all kernels loaded.

Spark starts the daemon once per executor, and communicates with it over stdin and stdout.  Before the first fork, the
daemon loads and runs every compiled kernel and imports PySpark's worker, so all workers inherit these modules.

Invariant: only Spark's own protocol reaches stdout; if the warm-up fails, the run is slower but does not fail.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sediment.jobs.spark.early_daemon import early_socket, hand_over, take_over

_KERNELS = "sediment.compaction.warm_up"
_WORKER = "pyspark.worker"
_GONE = (BrokenPipeError, ConnectionResetError)  # the JVM has ended or has closed a worker's socket

_Worker = Callable[..., int]


def installed_first(path: Sequence[str]) -> list[str]:
    """Return `path` with the archives of an installed PySpark moved to its end.

    Spark puts these archives at the start of the path.  They contain the source code of the installed package's
    modules, which every process would compile again.
    """

    def is_own_archive(entry: str) -> bool:
        archive = Path(entry)
        parents = archive.parents
        return (
            archive.suffix == ".zip" and len(parents) > 3 and parents[2].name == "pyspark" and str(parents[3]) in path
        )

    return sorted(path, key=is_own_archive)


def warm_up() -> None:
    """Run the kernels once; an error is printed on stderr, and occurs again in the task that needs the kernels."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            importlib.import_module(_KERNELS).warm_up()
            importlib.import_module(_WORKER)
        except Exception:
            traceback.print_exc()


def silent_once_nobody_listens(worker: _Worker) -> _Worker:
    """Wrap `worker` so that it prints no traceback after the JVM has ended; a session does not wait for idle ones."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except _GONE:
            return 1

    return run


def silence_once_nobody_listens(daemon: Any) -> None:
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], _GONE):
            traceback.print_exc()

    def quiet_print(*text: Any, **given: Any) -> None:
        if not isinstance(sys.exc_info()[1], _GONE):
            print(*text, **given)

    # A newly forked process writes to the JVM before its worker runs, and flushes its output afterwards.
    daemon.worker = silent_once_nobody_listens(daemon.worker)
    daemon.traceback = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    daemon.print = quiet_print


def main() -> None:
    if hand_over():
        return
    early = early_socket()
    sys.path[:] = installed_first(sys.path)
    warm_up()
    from pyspark import daemon

    silence_once_nobody_listens(daemon)

    # Spark collects garbage in a worker after every task.  A collection would scan all objects of the daemon, for up to
    # a tenth of a second.  It would also write to these objects, and so copy the memory pages that workers share.
    gc.collect()
    gc.freeze()
    if early is None or take_over(early):
        sys.path[:] = installed_first(sys.path)
        daemon.manager()


if __name__ == "__main__":
    main()
