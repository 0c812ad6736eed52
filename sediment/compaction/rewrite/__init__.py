"""Rewriting a partition by a table of verdicts: records are dropped, become tombstones, or get a new key or value.

    verdicts         offset -> DROP, TOMBSTONE, REPLACE_VALUE or REPLACE_KEY
    plan             the segments with verdicts, and the offsets that must not change
    segment_rewrite  one task for each segment: two forward scans, and one new segment under `.part` names
    batch_rewrite    one batch in which records are dropped or replaced

`plan` and `verdicts` open no file.  No module here renames a file; the result is a prepared swap.
"""
