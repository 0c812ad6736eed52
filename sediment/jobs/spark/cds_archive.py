"""An archive of the classes that Spark loads when it starts, so that the next JVM maps them instead of parsing JARs.

Made once by `sediment warm-up` and used by every later local run.  Invariant: the JVM itself checks that an archive is
its own, of the same JARs, and starts without it where it is not; a run never fails for one.

Source: JEP 350, dynamic archives of class data sharing.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def archive_path() -> Path:
    """Where the archive for this version of Spark is, or would be."""
    from pyspark import __version__

    return Path(platformdirs.user_cache_dir("sediment")) / f"spark-{__version__}.jsa"


def archive_options() -> str:
    """Options of the JVM that use the archive; empty where there is none."""
    path = archive_path()
    if not path.is_file() or " " in str(path):
        return ""
    return f"-Xshare:auto -Xlog:cds*=off -XX:SharedArchiveFile={path}"


def make_archive(master: str = "local[2]") -> Path:
    """Start Spark, run a job, and have the JVM leave the archive when it ends; returns its path.

    Raises:
        UsageError: Spark does not start.
        OSError: the cache folder cannot be written, or the JVM left no archive.
    """
    from pyspark import SparkContext

    from sediment.jobs.spark.session import QUICK_JVM, finish_stopping, spark_context

    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    options = f"{QUICK_JVM} -Xlog:cds*=off -XX:ArchiveClassesAtExit={fresh}"
    with spark_context(master, "sediment warm-up", lambda _given: {"spark.driver.extraJavaOptions": options}) as sc:
        sc.parallelize([0], 1).mapPartitions(_everything).collect()
        gateway = SparkContext._gateway
    finish_stopping()
    assert gateway is not None
    # The JVM ends, and writes the archive, when nobody can talk to it any more.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    fresh.replace(path)
    return path


def _everything(rows: object) -> list[int]:
    """A task that has the workers' compiled loops loaded, as a run has."""
    from sediment.compaction.warm_up import warm_up

    warm_up()
    return [0]
