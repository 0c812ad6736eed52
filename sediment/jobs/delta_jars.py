"""`sediment setup delta-jars`: fetch the JARs of Delta tables once per machine, with Spark's own resolver."""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import click

from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.exit_status import errors_as_exit_status
from sediment.jobs.delta_lake.session import FETCH, IVY_KEY, check_ivy_folder, coordinate, fetched_jars, ivy_folder
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.spark.session import CHECK_SETTINGS, NO_START, MoreSettings, spark_context, spark_defaults
from sediment.segment_io.errors import UsageError

_ALREADY_IN_SPARK = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
_IVY_SETTINGS_KEY = "spark.jars.ivySettings"
_NO_JAR = "download failed"
_CENTRAL = "https://repo1.maven.org/maven2/"
_CENTRAL_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"  # Spark's resolver reads it, too
_ONLY_REMOTE = """<ivysettings>
  <settings defaultResolver="remote"/>
  <resolvers><ibiblio name="remote" m2compatible="true" root={root}/></resolvers>
</ivysettings>
"""


def _to_fetch(given: Mapping[str, str]) -> dict[str, str]:
    check_ivy_folder(given)
    return {
        "spark.jars.packages": coordinate(),
        "spark.jars.excludes": ",".join(_ALREADY_IN_SPARK),
        IVY_KEY: str(ivy_folder(given)),
    }


def fetch_jars() -> tuple[Path, ...]:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise UsageError(
            "spark-submit fetches JARs before it starts a program", advice=f"give it --packages {coordinate()}"
        )
    try:
        jars = _fetched(_to_fetch)
    except UsageError as error:
        if _NO_JAR not in error.what or _IVY_SETTINGS_KEY in spark_defaults():
            raise _not_fetched(error) from error
        jars = _fetched_from_remote()
    if not jars:
        raise UsageError(f"Spark did not find {coordinate()}", advice="check spark.jars.repositories")
    return jars


def _fetched(more: MoreSettings) -> tuple[Path, ...]:
    with spark_context("local[1]", FETCH, more) as sc:
        return fetched_jars(ivy_folder(dict(sc.getConf().getAll())))


def _fetched_from_remote() -> tuple[Path, ...]:
    """Fetch the JARs without the local Maven repository, which may have the POM of a JAR but not the JAR."""
    root = quoteattr(os.environ.get(_CENTRAL_VARIABLE) or _CENTRAL)
    with tempfile.TemporaryDirectory(prefix="sediment-") as folder:
        settings = Path(folder, "ivysettings.xml")
        settings.write_text(_ONLY_REMOTE.format(root=root))
        try:
            return _fetched(lambda given: {**_to_fetch(given), _IVY_SETTINGS_KEY: str(settings)})
        except UsageError as error:
            raise _not_fetched(error) from error


def _not_fetched(error: UsageError) -> UsageError:
    advice = error.advice
    if advice == CHECK_SETTINGS:
        advice = "check the network, or name a repository in spark.jars.repositories"
    return UsageError(f"{coordinate()} cannot be fetched: {error.what.removeprefix(NO_START)}", advice=advice)


@click.command("delta-jars", cls=ConfiguredCommand)
def command() -> None:
    """Fetch the JARs for Delta tables from Maven Central or spark.jars.repositories, once per machine."""
    with errors_as_exit_status():
        jars = fetch_jars()
        for jar in jars:
            write_result(f"{jar} ({human_bytes(jar.stat().st_size)})\n")


if __name__ == "__main__":
    from sediment.jobs.delta_jars import command as importable

    importable()
