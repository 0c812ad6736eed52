"""Rewriting a partition by a table of verdicts: records are dropped, become tombstones, or get another key or value.

    verdicts         offset -> DROP, TOMBSTONE, REPLACE_VALUE or REPLACE_KEY
    plan             which segments have verdicts, and which offsets must not be touched
    segment_rewrite  one task a segment: two forward scans, one new segment under `.part` names
    batch_rewrite    one batch without a few of its records, or with others

`plan` and `verdicts` open no file.  Nothing here renames a file; the result is a prepared swap.
"""
