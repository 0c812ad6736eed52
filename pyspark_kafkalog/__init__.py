"""Entry point for Spark, which registers `kafka-log` automatically in every session and in the SQL shell.

When a session first looks up a data source, Spark imports every installed top-level module named `pyspark_*` and
registers its class `DefaultSource`.  Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from sediment.jobs.datasource import KafkaLogSource as DefaultSource

__all__ = ["DefaultSource"]
