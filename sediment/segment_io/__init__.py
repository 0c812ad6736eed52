"""Kafka's files on disk: formats, segments, partition directories and tables.  It contains neither policy nor Spark."""
