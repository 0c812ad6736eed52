"""One SparkContext for the tests of a process: commands use the active one."""

import pytest

from sediment.jobs.spark.session import spark_context


@pytest.fixture(scope="session", autouse=True)
def sc():
    with spark_context("local[2]", "sediment tests") as active:
        yield active
