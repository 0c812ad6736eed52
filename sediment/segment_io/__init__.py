"""Kafka's files on disk: formats, segments, partition directories and tables; neither policy nor Spark."""
