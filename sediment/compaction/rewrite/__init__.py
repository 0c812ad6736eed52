"""Rewriting a partition by a table of verdicts: records are dropped, become tombstones, or get a new key or value.

No module here renames a file; the result is a prepared swap.
"""
