"""Benchmarks of single commands, each beside its peer or its limit; `python -m benchmarks.commands` runs all."""
