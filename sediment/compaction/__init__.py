"""Compaction: choose the records of a log that survive, and write them to new files next to the old ones.

Policies (`cleanable_range`, `grouping`, `strategy`, `estimate`) and kernels are pure.  `chunk_reader`,
`transaction_scan`, `corrupt_regions` and `group_output` read files.  `group_output` writes `.part` files, `split` a
temporary spill file.
`rewrite` and `reencode` instead change single records, or the encoding of batches; they read and write files the same
way.  No module here renames a file of a log directory, takes its lock, or knows Spark.
"""
