"""Conversion of the bytes of Kafka's log files to values and back.  No module here opens a file or reads a clock."""
