"""Rewriting a partition by a table of verdicts: records are dropped, become tombstones, or get a new key or value.

    verdicts         for each offset: DROP, TOMBSTONE, REPLACE_VALUE or REPLACE_KEY
    plan             the segments with verdicts, and the offsets that must not change
    segment_rewrite  one task for each segment: it scans the file and writes a new segment under `.part` names
    batch_rewrite    the driver of the loop that drops or replaces records of batches

No module here renames a file; the result is a prepared swap.
"""
