"""Benchmarks of what the driver does: its start, and its work for each partition."""
