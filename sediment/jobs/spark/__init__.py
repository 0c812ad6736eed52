"""Spark: session, task pool, cancellation and worker processes."""
