"""Verified copies of partitions, whole or incremental, and the check of a copy against its manifest."""
