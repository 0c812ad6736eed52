"""Spark's own Kafka source as a client of `serve`: it reads the same records from a broker and from `serve`."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.oracle import spark_kafka_jars
from tests.consumers import ends
from tests.e2e.kraft import KafkaNode, running
from tests.e2e.served_fixture import PROPERTIES
from tests.served import START_MS, TOPICS, partitions, serving, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DRAWS = 3  # of an offset and a time of every partition

READ_ALL = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from sediment.jobs.datasource import register

jars, served, broker, directory, topics, starts = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
)
register(spark)


def of_source(bootstrap, isolation, **options):
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topics)
    reader = reader.option("includeHeaders", True).option("kafka.isolation.level", isolation)
    return rows(reader.options(**options).load())


def rows(frame):
    chosen = frame.where(f.col("topic").isin(topics.split(",")))
    found = chosen.select("topic", "partition", "offset", "timestamp", "key", "value", "headers").collect()
    return {(r.topic, r.partition, r.offset): repr([r.timestamp, r.key, r.value, headers(r)]) for r in found}


def headers(row):
    return [(each.key, each.value) for each in row.headers or ()]


def different(left, right):
    return sorted(f"{key}: {left.get(key)} {right.get(key)}" for key in left | right if left.get(key) != right.get(key))


found = []
for isolation in ("read_committed", "read_uncommitted"):
    left = of_source(served, isolation)
    direct = spark.read.format("kafka-log").option("isolation", isolation).load(directory).where("not control")
    found.append([isolation, len(left), different(left, rows(direct))[:3]])
    found.append([isolation, len(left), different(left, of_source(broker, isolation))[:3]])
for name, start in json.loads(starts):
    options = {name: json.dumps(start), "startingOffsetsByTimestampStrategy": "latest"}
    left = of_source(served, "read_committed", **options)
    found.append([name, len(left), different(left, of_source(broker, "read_committed", **options))[:3]])
print(json.dumps(found))
"""


def for_all_partitions(choose: Callable[[str], int]) -> dict[str, dict[str, int]]:
    """Return a number for each partition, in the form of Spark's options."""
    return {topic: {str(n): choose(f"{topic}-{n}") for n in range(count)} for topic, count in TOPICS.items()}


def test_sparks_kafka_source_reads_what_a_broker_serves_and_what_is_in_the_files(tmp_path: Path) -> None:
    directory = unpacked(tmp_path / "data")
    node = KafkaNode(tmp_path / "node", PROPERTIES)
    shutil.rmtree(node.data)
    unpacked(node.data)
    jars = ",".join(map(str, sorted(spark_kafka_jars().glob("*.jar"))))
    chance = random.Random(18)
    with running(node), serving(directory, "--read-only") as server:
        found_ends = ends(node.bootstrap, partitions())
        starts = []
        for _ in range(DRAWS):
            offsets = for_all_partitions(lambda name: chance.randint(found_ends[name][0], found_ends[name][2]))
            times = for_all_partitions(lambda _: START_MS + chance.randrange(10_000))
            starts += [("startingOffsets", offsets), ("startingOffsetsByTimestamp", times)]
        arguments = (jars, server.bootstrap, node.bootstrap, str(directory), ",".join(TOPICS), json.dumps(starts))
        done = subprocess.run(
            [sys.executable, "-c", READ_ALL, *arguments],
            capture_output=True,
            text=True,
            timeout=800,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [different for _, _, different in found] == [[]] * (4 + 2 * DRAWS)
    committed, _, uncommitted = (count for _, count, _ in found[:3])
    assert uncommitted > committed > 100
    assert all(count > 0 for _, count, _ in found)
