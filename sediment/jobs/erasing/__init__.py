"""Erasing: which records, what becomes of them, and the evidence of it.

    subjects        keys, condition or table that say which records, and their HMACs
    verdict_table   a table of verdicts, read from Parquet, Delta or CSV
    find_records    tasks and queries that find the records, and older records of the same keys
    erasure         the rewrite of one partition by its verdicts
    report          report of a partition and of a run

Invariant: a key, and the text of a condition, are in no report, log line or error; a file that holds one has mode 0600.
"""
