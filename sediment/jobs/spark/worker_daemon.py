"""The process that Spark forks its Python workers from, warmed up (`spark.python.daemon.module`).

Spark starts it once per executor and speaks to it over stdin and stdout.  Loading and running every compiled kernel
here, before the first fork, makes them the workers' by inheritance; so it does with PySpark's own worker.

Invariant: nothing but Spark's own protocol reaches stdout, and a failure to warm up costs time, not the run.
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

_KERNELS = "sediment.compaction.warm_up"
_WORKER = "pyspark.worker"
_GONE = (BrokenPipeError, ConnectionResetError)  # the JVM, or its end of a worker's socket

_Worker = Callable[..., int]


def installed_first(path: Sequence[str]) -> list[str]:
    """`path` with the archives of an installed PySpark behind all else.

    Spark puts them in front.  They hold the same modules as the package that they are part of, but only as sources,
    which every process would compile again.
    """

    def is_own_archive(entry: str) -> bool:
        archive = Path(entry)
        place = archive.parents
        return archive.suffix == ".zip" and len(place) > 3 and place[2].name == "pyspark" and str(place[3]) in path

    return sorted(path, key=is_own_archive)


def warm_up() -> None:
    """Run the kernels once; what goes wrong is told on stderr and comes back in the task that needs them."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            importlib.import_module(_KERNELS).warm_up()
            importlib.import_module(_WORKER)
        except Exception:
            traceback.print_exc()


def silent_once_nobody_listens(worker: _Worker) -> _Worker:
    """`worker` without a traceback for a JVM that has gone: a session that ends does not wait for its idle workers."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except _GONE:
            return 1

    return run


def silence_once_nobody_listens(daemon: Any) -> None:
    """Keep the module `pyspark.daemon` from telling on stderr that the JVM has gone.

    A process that it has just forked answers the JVM before there is a worker, and flushes after it.
    """

    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], _GONE):
            traceback.print_exc()

    def quiet_print(*text: Any, **given: Any) -> None:
        if not isinstance(sys.exc_info()[1], _GONE):
            print(*text, **given)

    daemon.worker = silent_once_nobody_listens(daemon.worker)
    daemon.traceback = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    daemon.print = quiet_print


def main() -> None:
    """Warm up, then do what Spark says."""
    sys.path[:] = installed_first(sys.path)
    warm_up()
    from pyspark import daemon

    silence_once_nobody_listens(daemon)

    # Spark collects garbage in a worker after every task.  Looking at all of this again would cost each up to a tenth
    # of a second, and touching it would copy the pages that workers share.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
