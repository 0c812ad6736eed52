"""Kafka's files on disk: formats, segments, partition directories and their content as tables.  Knows no policy."""
