"""`sediment delta-jars`: fetch the JARs of Delta tables once per machine, with Spark's own resolver."""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import os
from collections.abc import Mapping
from pathlib import Path

import click

from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.exit_status import errors_as_exit_status
from sediment.jobs.delta_lake.session import FETCH, IVY_KEY, check_ivy_folder, coordinate, fetched_jars, ivy_folder
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.errors import UsageError

_ALREADY_IN_SPARK = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")


def _to_fetch(given: Mapping[str, str]) -> dict[str, str]:
    check_ivy_folder(given)
    return {
        "spark.jars.packages": coordinate(),
        "spark.jars.excludes": ",".join(_ALREADY_IN_SPARK),
        IVY_KEY: str(ivy_folder(given)),
    }


def fetch_jars() -> tuple[Path, ...]:
    """Fetch Delta's JARs with Spark's resolver from the repositories in Spark's configuration; return their paths.

    Raises:
        UsageError: the JARs cannot be fetched.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise UsageError(
            "spark-submit fetches JARs before it starts a program", advice=f"give it --packages {coordinate()}"
        )
    try:
        with spark_context("local[1]", FETCH, _to_fetch) as sc:
            jars = fetched_jars(ivy_folder(dict(sc.getConf().getAll())))
    except UsageError as error:
        raise UsageError(f"{coordinate()} cannot be fetched: {error.what}", advice=error.advice) from error
    if not jars:
        raise UsageError(f"Spark did not find {coordinate()}", advice="check spark.jars.repositories")
    return jars


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
