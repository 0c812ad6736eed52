"""Compilation and caching of compiled loops, their memory and their status numbers.  Independent of Kafka's formats."""
