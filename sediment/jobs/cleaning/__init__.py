"""Cleaning of partitions by Spark tasks, in place or into an output."""
