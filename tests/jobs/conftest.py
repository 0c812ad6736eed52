"""One SparkContext for the tests of a process: commands use the active one."""

import fcntl

import pytest

from sediment.jobs.spark.cds_options import archive_path, usable_archive
from sediment.jobs.spark.session import spark_context
from tests.jobs.log_dirs import sediment_process

# Tests plan many small queries, again and again, on a few rows.
_SETTINGS = {
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # each call on a column would make eight more to the JVM
    "spark.sql.codegen.cache.maxEntries": "5000",  # the classes of one `verify` would replace those of the last
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session", autouse=True)
def class_archive():
    """Make the archive of Spark's classes in the cache folder once, with which every JVM starts sooner."""
    archive_path().parent.mkdir(parents=True, exist_ok=True)
    with archive_path().with_name("tests.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the run may be making it
        if usable_archive() is None:
            sediment_process("setup", "warm-up")  # without an archive everything works too


@pytest.fixture(scope="session", autouse=True)
def sc(class_archive):
    with spark_context("local[2]", "sediment tests", lambda _given: _SETTINGS) as active:
        yield active
