"""Creation of the class data sharing (CDS) archive of `cds_options`; `sediment warm-up` runs it once."""

from __future__ import annotations

import os
from pathlib import Path

from sediment.jobs.spark.cds_options import archive_path
from sediment.jobs.spark.session import QUICK_JVM, finish_stopping, spark_context


def make_archive(master: str = "local[2]") -> Path:
    """Start Spark and run a job; the JVM writes the archive when it exits.  Return the path of the archive.

    Raises:
        UsageError: Spark does not start.
        OSError: the cache folder cannot be written, or the JVM left no archive.
    """
    from pyspark import SparkContext

    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    options = f"{QUICK_JVM} -Xlog:cds*=off -XX:ArchiveClassesAtExit={fresh}"
    with spark_context(master, "sediment warm-up", lambda _given: {"spark.driver.extraJavaOptions": options}) as sc:
        sc.parallelize([0], 1).mapPartitions(_everything).collect()
        gateway = SparkContext._gateway
    finish_stopping()
    assert gateway is not None
    # The JVM exits when its input is closed, and writes the archive when it exits.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = None
    fresh.replace(path)
    return path


def _everything(rows: object) -> list[int]:
    """Return no rows, in a worker that loads the compiled kernels as in a real run."""
    from sediment.compaction.warm_up import warm_up

    warm_up()
    return [0]
