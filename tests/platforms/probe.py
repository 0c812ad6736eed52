"""A program for the environments of the suite: `kafka-log` in a session of the user; prints what it read as JSON.

python probe.py LOG_DIR CHECKPOINT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

TOO_BUSY = "Python worker failed to connect back"  # Spark waits 10 seconds for the Python of a stream
STARTS = 6


def main(log_dir: str, checkpoint: str) -> dict[str, Any]:
    os.chdir(tempfile.mkdtemp())
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.log.level": "ERROR"}
    builder: Any = SparkSession.builder
    spark = builder.master("local[2]").config(map=settings).getOrCreate()
    found: dict[str, Any] = {"found": rows(spark, log_dir)}  # by its name alone

    from sediment.jobs.datasource import register

    for _ in range(2):
        register(spark)
    found["registered"] = rows(spark, log_dir)
    found["streamed"] = [streamed(spark, log_dir, checkpoint) for _ in range(2)]
    try:
        found["limited"] = streamed(spark, log_dir, f"{checkpoint}-limited", max_offsets_per_trigger="5000")
    except Exception as error:
        found["limited"] = str(error)
    return found


def rows(spark: Any, log_dir: str) -> int:
    return int(spark.read.format("kafka-log").load(log_dir).count())


def streamed(spark: Any, log_dir: str, checkpoint: str, **options: str) -> int:
    """Return how many rows a query reads that goes on from `checkpoint`."""
    counted: list[int] = []
    tail = spark.readStream.format("kafka-log").options(**options).load(log_dir)
    writer = tail.writeStream.foreachBatch(lambda frame, _number: counted.append(frame.count()))
    for _ in range(STARTS):
        try:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
        except Exception as error:
            if TOO_BUSY not in str(error):
                raise
        else:
            return sum(counted)
    raise TimeoutError(TOO_BUSY)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
