"""Delta tables on Spark: where they may lie, the JARs that they need, and a session that has them.

The JARs are those of the installed Python package delta-spark.  They are not in it: Spark's own resolver (Ivy) fetches
them once, and from then on they are taken from its folder as they are, which spares every run a resolution.

Invariant: a session from `delta_session` reads and writes Delta; if it cannot, that is said before any work.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.starting import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sediment.jobs.options import errors_as_exit_status
from sediment.jobs.report import human_bytes
from sediment.jobs.session import spark_context
from sediment.jobs.standard_output import write_result
from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = "pip install 'kafka-sediment[delta]'"
FETCH = "sediment delta-jars"

_SCALA = "2.13"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SETTINGS = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table's log is read by a Spark job of this many tasks; fifty, the default, take longer than most logs.
    "spark.databricks.delta.snapshotPartitions": "1",
}
_IVY_KEY = "spark.jars.ivy"
_IVY_FOLDER = "~/.ivy2.5.2"
_NO_TABLE_PATH = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\[\]^|\\]|%[0-9A-Fa-f]{2}")
_ALREADY_IN_SPARK = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")


# --------------------------------------------------------------------------------------------------------------- places
def is_uri(path: str) -> bool:
    """Whether `path` names a scheme rather than a directory of this machine."""
    return "://" in path


def is_delta_table(path: str) -> bool:
    """Whether the directory `path` of this machine is a Delta table."""
    return (Path(path) / "_delta_log").is_dir()


def outside_log_dirs(path: str, log_dirs: Iterable[Path]) -> None:
    """Refuse to keep a table inside a log directory.

    Raises:
        UsageError: `path` is or lies in one of `log_dirs`.
    """
    if is_uri(path):
        return
    place = Path(path).resolve()
    for log_dir in log_dirs:
        if place.is_relative_to(log_dir.resolve()):
            raise UsageError(
                "a broker does not start on a log directory that holds a directory of another kind",
                path=path,
                advice=f"name a place outside {log_dir}",
            )


def check_table_path(path: str) -> None:
    """Refuse a path of this machine that the Python package deltalake cannot use: it panics, or writes elsewhere.

    Raises:
        UsageError: `path` is not UTF-8, or holds a control character, a bracket, `^`, `|`, a backslash, or `%` with two
            hexadecimal digits.
    """
    if not is_uri(path) and _NO_TABLE_PATH.search(path):
        raise UsageError(
            "no Delta table can have this path",
            path=path,
            advice="use a path of UTF-8 without control characters, [, ], ^, |, backslashes and %41",
        )


def table_filesystem(path: str) -> Any:
    """Return the pyarrow filesystem for the data files of the table at `path`.

    For a table of this machine it is Arrow's own. With the filesystem of deltalake, which is Python, a thread of Arrow
    may still hold a file when the interpreter ends. CPython then unwinds that thread, and C++ aborts the process.
    """
    from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

    if not is_uri(path):
        return SubTreeFileSystem(path, LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(path))


# ----------------------------------------------------------------------------------------------------------------- JARs
def coordinate() -> str:
    """Maven coordinate of the JARs that belong to the installed delta-spark and pyspark.

    Raises:
        UsageError: delta-spark is not installed.
    """
    try:
        delta = version("delta-spark")
    except PackageNotFoundError as error:
        raise UsageError(
            "Delta tables need the Python package delta-spark, which is missing", advice=INSTALL
        ) from error
    spark = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_{_SCALA}:{delta}"


def fetched_jars(ivy_folder: Path) -> tuple[Path, ...]:
    """Delta's own JARs that Ivy has fetched for `coordinate()`; empty where they are not complete."""
    group, artifact, release = coordinate().split(":")
    folder = ivy_folder / "jars"
    needed = {folder / f"{group}_{artifact}-{release}.jar", folder / f"{group}_delta-storage-{release}.jar"}
    found = set(folder.glob(f"{group}_*-{release}.jar"))
    return tuple(sorted(found)) if needed <= found else ()


def _ivy_folder(given: Mapping[str, str]) -> Path:
    return Path(given.get(_IVY_KEY) or _IVY_FOLDER).expanduser()


# -------------------------------------------------------------------------------------------------------------- session
@contextmanager
def delta_session(master: str | None, app_name: str) -> Iterator[SparkSession]:
    """A SparkSession that reads and writes Delta and knows `kafka-log`, on `spark_context`'s context.

    Another session there stays as it is.

    Raises:
        UsageError: delta-spark or its JARs are missing, or Spark does not start.
    """
    from pyspark.sql import SparkSession

    from sediment.jobs.datasource import register

    coordinate()
    with spark_context(master, app_name) as sc:
        settings = dict(sc.getConf().getAll())
        _load_jars(sc, _ivy_folder(settings))
        if _EXTENSION in settings.get("spark.sql.extensions", ""):
            session = SparkSession.builder.getOrCreate()
            register(session)
            yield session
            return
        jvm: Any = sc._jvm
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        active, default = sessions.getActiveSession(), sessions.getDefaultSession()
        sessions.clearActiveSession()
        sessions.clearDefaultSession()
        builder = sessions.builder().withExtensions(jvm.io.delta.sql.DeltaSparkSessionExtension())
        for key, value in _SETTINGS.items():
            if key not in settings:
                builder.config(key, value)
        try:
            session = SparkSession(sc, builder.getOrCreate())
            register(session)
            yield session
        finally:
            if default.isDefined():
                sessions.setDefaultSession(default.get())
            if active.isDefined():
                sessions.setActiveSession(active.get())


def _load_jars(sc: Any, ivy_folder: Path) -> None:
    """Give the driver and the executors Delta's classes unless they have them.

    At run time rather than at launch, because spark-submit has launched the JVM before this program begins.
    """
    from py4j.protocol import Py4JJavaError

    jvm = sc._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_EXTENSION, False, loader)
        return
    except Py4JJavaError:
        jars = fetched_jars(ivy_folder)
    if not jars:
        raise UsageError(
            f"Spark has no Delta: the JARs of {coordinate()} are not on this machine",
            advice=f"fetch them with: {FETCH}",
        )
    for jar in jars:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
        sc._jsc.addJar(str(jar))


# ------------------------------------------------------------------------------------------------------------- fetching
def _to_fetch(given: Mapping[str, str]) -> dict[str, str]:
    return {
        "spark.jars.packages": coordinate(),
        "spark.jars.excludes": ",".join(_ALREADY_IN_SPARK),
        _IVY_KEY: str(_ivy_folder(given)),
    }


def fetch_jars() -> tuple[Path, ...]:
    """Fetch Delta's JARs with Spark's resolver, from the repositories that Spark is configured for.

    Raises:
        UsageError: they cannot be fetched.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise UsageError(
            "spark-submit fetches JARs before it starts a program", advice=f"give it --packages {coordinate()}"
        )
    try:
        with spark_context("local[1]", FETCH, _to_fetch) as sc:
            jars = fetched_jars(_ivy_folder(dict(sc.getConf().getAll())))
    except UsageError as error:
        raise UsageError(f"{coordinate()} cannot be fetched: {error.what}", advice=error.advice) from error
    if not jars:
        raise UsageError(f"Spark did not find {coordinate()}", advice="look at spark.jars.repositories")
    return jars


@click.command("delta-jars")
def command() -> None:
    """Fetch the JARs that Delta tables need, once per machine, from Maven Central or spark.jars.repositories."""
    with errors_as_exit_status():
        jars = fetch_jars()
        for jar in jars:
            write_result(f"{jar} ({human_bytes(jar.stat().st_size)})\n")


if __name__ == "__main__":
    from sediment.jobs.delta_tables import command as importable

    importable()
