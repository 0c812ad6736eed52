"""Rewriting a partition by a table of verdicts: records are dropped, become tombstones, or get another key or value.

    verdicts         offset -> DROP, TOMBSTONE, REPLACE_VALUE or REPLACE_KEY
    plan             which segments have verdicts, and which offsets must not be touched
    segment_rewrite  one task for each segment: two forward scans, one new segment under `.part` names
    batch_rewrite    one batch, of which some records are dropped or replaced

`plan` and `verdicts` open no file.  Nothing here renames a file; the result is a prepared swap.
"""
