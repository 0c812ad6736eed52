"""Class data sharing (CDS) archive of Spark's start, so that later JVMs map its classes instead of parsing JARs.

Made once by `sediment warm-up` and used by every later local run.  Invariant: the JVM checks that an archive is from
the same JVM and JARs, and starts without it otherwise; a run never fails because of it.

Source: JEP 350, dynamic archives of class data sharing.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def archive_path() -> Path:
    """Return the path of the archive for this version of Spark, which may not exist."""
    from pyspark import __version__

    return Path(platformdirs.user_cache_dir("sediment")) / f"spark-{__version__}.jsa"


def archive_options() -> str:
    """Return the options of the JVM that use the archive, or an empty string without an archive."""
    path = archive_path()
    if not path.is_file() or " " in str(path):
        return ""
    return f"-Xshare:auto -Xlog:cds*=off -XX:SharedArchiveFile={path}"


def make_archive(master: str = "local[2]") -> Path:
    """Start Spark, run a job and let the JVM write the archive at its end; return the path of the archive.

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
    # The JVM ends and writes the archive when its last client has disconnected.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    fresh.replace(path)
    return path


def _everything(rows: object) -> list[int]:
    """Yield nothing, in a task whose worker loads the compiled kernels as in a run."""
    from sediment.compaction.warm_up import warm_up

    warm_up()
    return [0]
