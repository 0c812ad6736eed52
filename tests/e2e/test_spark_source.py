"""Spark's own Kafka source as a client of `serve`: it reads what Sediment's data source reads from the files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.oracle import spark_kafka_jars
from tests.served import TOPICS, serving, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

READ_BOTH = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from sediment.jobs.datasource import register

jars, bootstrap, directory, isolation, topics = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
)
register(spark)
columns = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
served = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topics)
    .option("includeHeaders", True)
    .option("kafka.isolation.level", isolation)
    .load()
)
direct = spark.read.format("kafka-log").option("isolation", isolation).load(directory)


def rows(frame):
    # A header's value is binary in both; so are keys and values.
    found = frame.where(f.col("topic").isin(topics.split(","))).select(*columns).collect()
    return sorted(repr(json.loads(json.dumps(row.asDict(recursive=True), default=repr))) for row in found)


left, right = rows(served), rows(direct)
print(json.dumps({"served": len(left), "only served": [r for r in left if r not in set(right)][:3],
                  "only direct": [r for r in right if r not in set(left)][:3]}))
"""


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_sparks_kafka_source_reads_what_is_in_the_files(isolation: str, tmp_path: Path) -> None:
    directory = unpacked(tmp_path / "data")
    jars = ",".join(map(str, sorted(spark_kafka_jars().glob("*.jar"))))
    with serving(directory, "--read-only") as server:
        arguments = [jars, server.bootstrap, str(directory), isolation, ",".join(TOPICS)]
        done = subprocess.run(
            [sys.executable, "-c", READ_BOTH, *arguments], capture_output=True, text=True, timeout=600
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["served"] > 100
    assert (found["only served"], found["only direct"]) == ([], [])
