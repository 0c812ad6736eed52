"""Re-encoding: all records of a partition are written again, with another codec or in larger batches.

No module here renames a file; the result is a prepared swap.
"""
