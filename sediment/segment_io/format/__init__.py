"""Bytes of Kafka's log files as values, and values as bytes.  Opens no file."""
