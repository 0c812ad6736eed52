"""Kafka's files on disk: formats, segments, partition directories and tables; this package contains no policy."""
