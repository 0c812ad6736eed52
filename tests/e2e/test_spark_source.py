"""Spark's own Kafka source as a client of `serve`: it reads what Sediment's data source reads from the files."""

from __future__ import annotations

import json
import os
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

jars, bootstrap, directory, topics = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
)
register(spark)


def rows(frame):
    chosen = frame.where(f.col("topic").isin(topics.split(",")))
    found = chosen.select("topic", "partition", "offset", "timestamp", "key", "value", "headers").collect()
    return {(r.topic, r.partition, r.offset): repr([r.timestamp, r.key, r.value, headers(r)]) for r in found}


def headers(row):
    return [(each.key, each.value) for each in row.headers or ()]


found = {}
for isolation in ("read_committed", "read_uncommitted"):
    served = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topics)
        .option("includeHeaders", True)
        .option("kafka.isolation.level", isolation)
        .load()
    )
    direct = spark.read.format("kafka-log").option("isolation", isolation).load(directory).where("not control")
    left, right = rows(served), rows(direct)
    different = [f"{key}: {left.get(key)} {right.get(key)}" for key in left | right if left.get(key) != right.get(key)]
    found[isolation] = [len(left), sorted(different)[:3]]
print(json.dumps(found))
"""


def test_sparks_kafka_source_reads_what_is_in_the_files(tmp_path: Path) -> None:
    directory = unpacked(tmp_path / "data")
    jars = ",".join(map(str, sorted(spark_kafka_jars().glob("*.jar"))))
    with serving(directory, "--read-only") as server:
        done = subprocess.run(
            [sys.executable, "-c", READ_BOTH, jars, server.bootstrap, str(directory), ",".join(TOPICS)],
            capture_output=True,
            text=True,
            timeout=800,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [different for _, different in found.values()] == [[], []]
    assert found["read_uncommitted"][0] > found["read_committed"][0] > 100
