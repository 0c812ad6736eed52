"""Spark session with Delta, and the JARs that the session needs.

The installed Python package delta-spark needs these JARs but does not contain them.  Spark's own resolver (Ivy) fetches
them once; later runs load them from its folder without resolving them again.

Invariant: a session from `delta_session` reads and writes Delta; if that is impossible, an error is raised before any
work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.jobs.spark.release import minor, spark_version
from sediment.jobs.spark.session import own_session, spark_context
from sediment.jobs.spark.task_figures import add_jar
from sediment.jobs.spark.worker_python import check_worker_python
from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command
from sediment.segment_io.safe_paths import UnsafePathError, check_path, safe_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FETCH = "sediment setup delta-jars"

_SCALA = "2.13"
_SPARKS_OF_DELTA = {"4.4.0": ("4.0", "4.1", "4.2")}
"""The minor releases of Spark for which a release of Delta has JARs."""

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SETTINGS = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Number of tasks of the Spark job that reads a table's log.  Starting Spark's default of fifty tasks takes longer
    # than reading most logs.
    "spark.databricks.delta.snapshotPartitions": "1",
}
IVY_KEY = "spark.jars.ivy"
_IVY_FOLDER = "~/.ivy2.5.2"


# ----------------------------------------------------------------------------------------------------------------- JARs
def coordinate() -> str:
    try:
        delta = version("delta-spark")
    except PackageNotFoundError as error:
        raise UsageError(
            "Delta tables need the Python package delta-spark, which is missing", advice=install_command("delta")
        ) from error
    spark = minor(spark_version())
    sparks = _SPARKS_OF_DELTA.get(delta, (spark,))
    if spark not in sparks:
        raise UsageError(
            f"Delta {delta} has no JARs for Spark {spark}",
            advice=f"use a Spark that it has, for example: pip install 'pyspark=={sparks[-1]}.*'",
        )
    return f"io.delta:delta-spark_{spark}_{_SCALA}:{delta}"


def fetched_jars(ivy_folder: Path) -> tuple[Path, ...]:
    group, artifact, release = coordinate().split(":")
    folder = ivy_folder / "jars"
    needed = {folder / f"{group}_{artifact}-{release}.jar", folder / f"{group}_delta-storage-{release}.jar"}
    found = set(folder.glob(f"{group}_*-{release}.jar"))
    return tuple(sorted(found)) if needed <= found else ()


def ivy_folder(given: Mapping[str, str]) -> Path:
    return Path(given.get(IVY_KEY) or _IVY_FOLDER).expanduser()


def check_ivy_folder(given: Mapping[str, str]) -> None:
    """Refuse JARs in the user's own folder of Ivy if others can change them; a folder that is set is not checked.

    Raises:
        UsageError: others can change the JARs, and Spark would run their code.
    """
    if given.get(IVY_KEY):
        return
    folder = ivy_folder(given)
    try:
        for path in (safe_folder(folder), *fetched_jars(folder)):
            check_path(path)
    except UnsafePathError as error:
        raise UsageError(
            f"the JARs that Spark's resolver has fetched are not used, because others can change them: {error}",
            advice=f"name a folder that only you can change as {IVY_KEY} in spark-defaults.conf",
        ) from error
    except OSError:
        return  # there are no JARs


# -------------------------------------------------------------------------------------------------------------- session
@contextmanager
def delta_session(master: str | None, app_name: str, given: SparkSession | None = None) -> Iterator[SparkSession]:
    """Yield a SparkSession on the context of `spark_context`; it reads and writes Delta.

    `given` and other sessions of that context stay unchanged.
    """
    from pyspark.sql import SparkSession

    coordinate()
    with spark_context(master, app_name) as sc:
        check_worker_python(sc)
        settings = dict(sc.getConf().getAll())
        _load_jars(sc, settings)
        if _EXTENSION in _extensions(settings, given):
            yield own_session(given)
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
            yield SparkSession(sc, builder.getOrCreate())
        finally:
            if default.isDefined():
                sessions.setDefaultSession(default.get())
            if active.isDefined():
                sessions.setActiveSession(active.get())


def _extensions(settings: Mapping[str, str], given: SparkSession | None) -> str:
    name = "spark.sql.extensions"
    return settings.get(name, "") if given is None else given.conf.get(name, "") or ""


def _load_jars(sc: Any, settings: Mapping[str, str]) -> None:
    """Load Delta's classes into the driver and the executors unless they are loaded already."""
    from py4j.protocol import Py4JJavaError

    jvm = sc._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_EXTENSION, False, loader)
        return
    except Py4JJavaError:
        check_ivy_folder(settings)
        jars = fetched_jars(ivy_folder(settings))
    if not jars:
        raise UsageError(
            f"Spark has no Delta: the JARs of {coordinate()} are not on this machine",
            advice=f"fetch them with: {FETCH}",
        )
    # The classes are loaded at run time, because spark-submit starts the JVM before this program begins.
    for jar in jars:
        add_jar(sc, jar)
