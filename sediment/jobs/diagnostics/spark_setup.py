"""Checks of Spark's parts on this machine: PySpark, Java, the Python of workers, and JARs.  Spark is not started."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sediment.jobs.diagnostics.check import Check, failed, passed, warned
from sediment.jobs.diagnostics.machine import space_check
from sediment.jobs.spark.java import INSTALL_JAVA, MIN_JAVA, java_command, java_version
from sediment.jobs.spark.release import (
    has_data_sources,
    has_spark,
    minor,
    no_data_source,
    spark_version,
    untested_java,
    untested_spark,
)
from sediment.jobs.spark.session import spark_defaults
from sediment.jobs.spark.worker_python import safe_environment
from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command

_CORE_JAR = re.compile(r"spark-core_[\d.]+-(.+)\.jar")
_PROBE_SECONDS = 60
_PROBE = """
import importlib.util, platform
missing = [name for name in ("sediment", "pyspark", "numba", "pyarrow") if importlib.util.find_spec(name) is None]
print(platform.python_version(), *missing)
"""
_OWN_SESSIONS = "Spark sessions that you start yourself"


def spark_checks() -> Iterator[Check]:
    yield _java(is_needed=has_spark())
    if not has_spark():
        text = "PySpark is not installed, so compact, erase, reencode, snapshot, verify and plan --exact do not run"
        yield warned("spark", text, install_command("spark"))
        return
    yield _spark()
    try:
        defaults = spark_defaults()
    except (OSError, ValueError) as error:
        text = f"spark-defaults.conf cannot be read: {error}"
        yield failed("spark-defaults", text, "correct the file, or SPARK_CONF_DIR")
        defaults = {}
    yield _worker_python(defaults)
    yield _virtual_environment()
    yield _class_archive()
    yield _delta(defaults)
    folder = os.environ.get("SPARK_LOCAL_DIRS") or defaults.get("spark.local.dir")
    if folder:
        for each in folder.split(","):
            yield space_check("spark-space", Path(each), "correct SPARK_LOCAL_DIRS or spark.local.dir")


def _java(*, is_needed: bool) -> Check:
    place = shutil.which(java_command())
    if place is None:
        where = f"JAVA_HOME names none: {java_command()}" if os.environ.get("JAVA_HOME") else "none is on the PATH"
        answer = failed if is_needed else warned
        return answer("java", f"Spark needs Java {MIN_JAVA} or newer, but {where}", INSTALL_JAVA)
    found = java_version()
    if found is None:
        return failed("java", f"{place} does not report its version", INSTALL_JAVA)
    if found < MIN_JAVA:
        return failed("java", f"Spark needs Java {MIN_JAVA} or newer, but this is Java {found} ({place})", INSTALL_JAVA)
    untested = untested_java(found)
    if untested is not None:
        return warned("java", f"{untested} ({place})", "install one of these, or set JAVA_HOME")
    return passed("java", f"Java {found} ({place})")


def _spark() -> Check:
    from pyspark.find_spark_home import _find_spark_home

    python = spark_version()
    home = Path(_find_spark_home())
    jars = [
        found[1] for jar in sorted((home / "jars").glob("spark-core_*.jar")) if (found := _CORE_JAR.match(jar.name))
    ]
    advice = "install PySpark again, or correct SPARK_HOME or unset it"
    if not jars:
        return failed("spark", f"the JARs of Spark are missing in {home / 'jars'}", advice)
    if jars != [python]:
        text = f"the version of PySpark is {python}, but the JARs in {home} have {', '.join(jars)}"
        is_close = [minor(jar) for jar in jars] == [minor(python)]
        return warned("spark", text, advice) if is_close else failed("spark", text, advice)
    untested = untested_spark(python)
    if untested is not None:
        return warned("spark", f"{untested} ({home})", install_command("spark"))
    if not has_data_sources(python):
        refused = no_data_source()
        return warned("spark", f"the commands run on Spark {python} ({home}); {refused.what}", refused.advice or "")
    return passed("spark", f"Spark {python} ({home})")


def _worker_python(defaults: Mapping[str, str]) -> Check:
    name, python = "worker-python", sys.executable
    source = "the Python of this process"
    if os.environ.get("PYSPARK_PYTHON"):
        python, source = os.environ["PYSPARK_PYTHON"], "PYSPARK_PYTHON"
    if defaults.get("spark.pyspark.python"):
        python, source = defaults["spark.pyspark.python"], "spark.pyspark.python"
    advice = f"correct PYSPARK_PYTHON or spark.pyspark.python; this process runs {sys.executable}"
    try:
        probed = subprocess.run(
            [python, "-c", _PROBE],
            env=safe_environment(),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return failed(name, f"the Python for Spark's workers cannot be run: {python} ({source})", advice)
    if probed.returncode != 0:
        return failed(name, f"the Python for Spark's workers fails: {python} ({source})", advice)
    release, *missing = probed.stdout.split()
    if minor(release) != minor(platform.python_version()):
        text = (
            f"the driver runs Python {sys.version_info[0]}.{sys.version_info[1]}, "
            f"but the workers run {release} ({source})"
        )
        return failed(name, text, advice)
    if missing:
        return failed(name, f"the Python for Spark's workers lacks {', '.join(missing)}: {python} ({source})", advice)
    return passed(name, f"Python {release} ({source})")


def _virtual_environment() -> Check:
    name = "virtual-environment"
    if sys.prefix == sys.base_prefix:
        return passed(name, "none is used")
    if os.environ.get("PYSPARK_PYTHON"):
        return passed(name, f"{sys.prefix}; PYSPARK_PYTHON is set")
    found = shutil.which("python3")
    if found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        return passed(name, f"{sys.prefix} is activated")
    text = f"{sys.prefix} is not activated, so {_OWN_SESSIONS} run {found or 'no Python'} in their workers"
    return warned(name, text, f"activate it, or: export PYSPARK_PYTHON={sys.executable}")


def _class_archive() -> Check:
    from sediment.jobs.spark.cds_options import archive_path, usable_archive

    path = usable_archive()
    if path is not None:
        return passed("class-archive", str(path))
    text = f"there is none, so Spark takes about two seconds longer to start ({archive_path()})"
    return warned("class-archive", text, "the next run makes one in the background; or run: sediment setup warm-up")


def _delta(defaults: Mapping[str, str]) -> Check:
    from sediment.jobs.delta_lake.session import FETCH, coordinate, fetched_jars, ivy_folder

    try:
        for package in ("deltalake", "delta-spark"):
            version(package)
    except PackageNotFoundError:
        text = "not installed; only snapshot, --archive and --ledger need it"
        return passed("delta", f"{text}: {install_command('delta')}")
    try:
        needed = coordinate()
    except UsageError as error:
        return warned("delta", f"{error.what}, so snapshot and --archive do not run", error.advice or "")
    jars = fetched_jars(ivy_folder(defaults))
    if not jars:
        text = f"the JARs of {needed} are not on this machine, so snapshot and --archive do not run"
        return warned("delta", text, f"fetch them with: {FETCH}")
    return passed("delta", f"{needed} ({jars[0].parent})")
