"""Compilation and caching of loops, and their memory and status numbers; no module here knows Kafka's formats."""
