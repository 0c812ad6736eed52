"""Compilation and caching of compiled loops, with their memory and status numbers; independent of Kafka's formats."""
