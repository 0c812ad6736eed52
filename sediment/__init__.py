"""Sediment: Apache Kafka log directories compacted, expired, repaired and explained on Spark."""

__version__ = "0.1.0"
