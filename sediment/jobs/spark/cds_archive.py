"""Creation of the class data sharing (CDS) archive of `cds_options`, by `sediment setup warm-up` or in the background.

1. Take the lock of the cache folder, and remove files of interrupted attempts.
2. Start Spark and run a job; the JVM writes the archive when it exits.
3. Sync the archive, rename it to its final name, and write its stamp.
4. Remove archives of other versions that were not used for a month.

Invariant: at most one process per cache folder makes archives.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sediment.jobs.spark.cds_options import (
    archive_path,
    is_worth_making,
    stamp_complete,
    stamp_failed,
    stamp_path,
)
from sediment.jobs.spark.session import QUICK_JVM, finish_stopping, spark_context
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.safe_paths import safe_folder

_LIMIT_SECONDS = 600
_UNUSED_SECONDS = 30 * 86_400
_NICENESS = 10


def make_archive(master: str = "local[2]") -> Path:
    """Make the archive, even if one exists, and return its path; wait if another process is making the archive."""
    path = archive_path()
    with _locked(path.parent, wait=True):
        return _make(path, master)


def main() -> None:
    signal.alarm(_LIMIT_SECONDS)  # the JVM ends when this process ends
    os.nice(_NICENESS)
    path = archive_path()
    with suppress(OSError), _locked(path.parent, wait=False):
        if not is_worth_making():
            return
        try:
            _make(path, "local[2]")
        except (SedimentError, OSError) as error:
            stamp_failed(path, str(error), Fs())


def _make(path: Path, master: str) -> Path:
    from pyspark import SparkContext

    fs = Fs()
    fresh = path.with_name(f"{path.name}.new")
    for name in (fresh, stamp_path(path)):
        fs.unlink(name, missing_ok=True)
    options = f"{QUICK_JVM} -Xlog:cds*=off -XX:ArchiveClassesAtExit={fresh}"
    with spark_context(
        master, "sediment setup warm-up", lambda _given: {"spark.driver.extraJavaOptions": options}
    ) as sc:
        sc.parallelize([0], 1).mapPartitions(_everything).collect()
        gateway = SparkContext._gateway
    finish_stopping()
    assert gateway is not None
    # The JVM exits when its input is closed, and writes the archive when it exits.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    fs.sync_file(fresh)
    fs.rename(fresh, path)
    fs.sync_directory(path.parent)
    stamp_complete(path, fs)
    _remove_unused(path, fs)
    return path


def _remove_unused(path: Path, fs: Fs) -> None:
    for other in path.parent.glob("spark-*.jsa"):
        used = max(other.stat().st_atime, other.stat().st_mtime)
        if other != path and time.time() - used > _UNUSED_SECONDS:
            fs.unlink(other, missing_ok=True)
            fs.unlink(stamp_path(other), missing_ok=True)


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Lock the cache folder.

    Raises:
        OSError: the folder cannot be made or opened, others can change it, or `wait` is False and another process holds
            the lock.
    """
    safe_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _everything(rows: object) -> list[int]:
    """Return no rows; the worker that runs this function loads the compiled kernels as in a real run."""
    from sediment.compaction.warm_up import warm_up

    warm_up()
    return [0]


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and in a worker `__main__` is another module.
    from sediment.jobs.spark.cds_archive import main as importable

    importable()
