"""The part of the dedupe buffer that one cleaner thread uses; the module is named after Kafka's CleanerConfig.

`compaction.config.offset_map_keys` returns the number of keys for which these bytes are enough.
"""

from __future__ import annotations


def dedupe_buffer_bytes_per_thread(dedupe_buffer_bytes: int, threads: int) -> int:
    """Return the bytes for the offset map of each of `threads` cleaner threads; 0 is treated as one thread.

    Source: Kafka's LogCleaner.CleanerThread; kafka-log 02 §1.
    """
    return dedupe_buffer_bytes // max(threads, 1)
