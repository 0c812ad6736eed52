"""The schema of Spark's own Kafka source in the tests of `kafka-log`, compared with that of its JAR."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.jobs.data_source.test_datasource import KAFKA_SOURCE_SCHEMA

pytestmark = pytest.mark.conformance

_ASK = """
from sediment.jobs.spark.session import spark_context
from pyspark.sql import SparkSession

settings = {
    "spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:" + __import__("pyspark").__version__,
    "spark.jars.excludes": "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
}
with spark_context("local[1]", "schema", lambda given: settings):
    reader = SparkSession.builder.getOrCreate().read.format("kafka").option("includeHeaders", "true")
    frame = reader.option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t").load()
    print(frame.schema.json())
"""


def test_sparks_own_kafka_source_has_the_schema_that_records_begin_with():
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=240, check=False)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == KAFKA_SOURCE_SCHEMA.jsonValue()
