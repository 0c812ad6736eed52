"""Compaction: choose the records of a log that survive, and write them to new files next to the old ones.

No module here renames a file of a log directory, locks the directory, or uses Spark.
"""
