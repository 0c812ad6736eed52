"""Erasing: the selection of records, the rewriting of their segments, and the evidence.

    subjects        keys, condition or table that select records, and their HMACs
    verdict_table   a table of verdicts, read from Parquet, Delta or CSV
    find_records    tasks and queries that find the records, and older records of the same keys
    selector        the records to erase from each partition, and the action
    erasure         the rewrite of one partition by its verdicts
    report          report of a partition and of a run

Invariant: no report, log line or error contains a key or the text of a condition; a file that contains a key or a
condition has mode 0600.
"""
