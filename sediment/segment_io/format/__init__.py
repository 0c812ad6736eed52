"""Conversion between the bytes of Kafka's log files and values; no module here opens a file or reads a clock."""
