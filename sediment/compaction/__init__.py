"""Compaction: choose the records of a log that survive, and write them to new files next to the old ones.

Policies (`cleanable_range`, `grouping`, `strategy`, `estimate`) and kernels are pure.  `chunk_reader`,
`transaction_scan`, `corrupt_regions` and `group_output` read files.  `group_output` writes `.part` files;
`partition_splits` writes a temporary spill file.  `rewrite` changes individual records, and `reencode` changes the
encoding of batches; both modules also read segments and write `.part` files.  No module here renames a file of a log
directory, locks the directory, or uses Spark.
"""
