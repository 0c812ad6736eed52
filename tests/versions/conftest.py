"""The `versions` marker: these tests bring the brokers of many releases of Kafka, and run only with `-m versions`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from sediment.jobs.spark.session import spark_context
from tests.versions.outcomes import HAS_PASSED

_MARKER = "versions"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix == ".py" and _MARKER not in config.getoption("markexpr").replace(f"not {_MARKER}", ""):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[HAS_PASSED] = report.passed
    return report


@pytest.fixture(scope="session", autouse=True)
def sc() -> Iterator[SparkContext]:
    """One SparkContext for all commands of the process."""
    with spark_context("local[2]", "sediment versions", lambda _given: {"spark.sql.shuffle.partitions": "2"}) as active:
        yield active
