"""Kafka's files on disk: formats, segments, partition directories and tables.  Knows no policy and no Spark."""
