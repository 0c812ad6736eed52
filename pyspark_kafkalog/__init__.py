"""Entry point for Spark, which registers `kafka-log` automatically in every session and in the SQL shell.

When a session first looks up a data source, Spark imports every installed top-level module named `pyspark_*` and
registers its class `DefaultSource`.  Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from sediment.jobs.datasource import KafkaLogSource as DefaultSource
from sediment.jobs.spark.quiet_worker import silence_closed_sockets

# The process of the look-up makes no source, which would do this.
silence_closed_sockets()

__all__ = ["DefaultSource"]
