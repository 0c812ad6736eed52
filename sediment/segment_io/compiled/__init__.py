"""Compilation and caching of compiled loops, their memory and their status numbers.  Knows no Kafka formats."""
