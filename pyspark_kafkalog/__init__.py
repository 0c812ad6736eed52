"""Entry point for Spark, which registers `kafka-log` automatically in every session and in the SQL shell.

Spark's first look-up of a data source imports all installed top-level modules named `pyspark_*`, and registers the
class `DefaultSource` of each.  Source: `pyspark.sql.worker.lookup_data_sources`.
"""

from sediment.jobs.datasource import KafkaLogSource as DefaultSource

__all__ = ["DefaultSource"]
