"""`kafka-log` on a Spark whose data sources lack what it needs, as Spark 4.0 and 4.1 do: one sentence."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT_READ_LIMITS = """
import sys
import pyspark.sql.datasource
sys.modules["pyspark.sql.streaming.datasource"] = None  # as in Spark 4.1
"""
_NEEDS = "the format kafka-log needs Spark 4.2, but this is Spark "


def last_line(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_READ_LIMITS + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


def test_the_source_that_spark_finds_by_its_name_refuses_every_use() -> None:
    program = """
from pyspark.sql.datasource import DataSource
from pyspark_kafkalog import DefaultSource
assert issubclass(DefaultSource, DataSource) and DefaultSource.name() == "kafka-log"
from pyspark.cloudpickle import dumps, loads
loads(dumps(DefaultSource))({"path": "d"})
"""
    said = last_line(program)
    assert said.startswith(f"UsageError: {_NEEDS}") and said.endswith("which needs no Spark")


def test_register_says_the_same() -> None:
    said = last_line("from sediment.jobs.datasource import register")
    assert said.startswith(f"sediment.segment_io.errors.UsageError: {_NEEDS}")
