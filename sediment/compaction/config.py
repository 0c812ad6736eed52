"""The part of a topic's config that compaction uses, and the size of the offset map of a Kafka cleaner thread.

Fields are named like Kafka's keys, with underscores, and have Kafka's defaults (kafka-log 06 §1, §3, §4).

The offset map (`kernels.offset_map`, which `kernels.fill_map` fills) has a size in bytes, slots and keys:

    log.cleaner.dedupe.buffer.size / log.cleaner.threads = bytes of a thread, at most 2^31 - 1
    bytes / 24 = slots, and slots x log.cleaner.io.buffer.load.factor = keys; all are rounded down

Source of the sizes: Kafka's LogCleaner.CleanerThread and SkimpyOffsetMap; kafka-log 02 §1, §4.
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

COMPACT = "compact"

MAP_SLOT_BYTES = 24
"""The size of a slot of Kafka's offset map; the map occupies log.cleaner.dedupe.buffer.size bytes."""


def dedupe_buffer_bytes_per_thread(dedupe_buffer_bytes: int, threads: int) -> int:
    """Return the size in bytes of each offset map if there are `threads` cleaner threads; 0 means one thread."""
    return dedupe_buffer_bytes // max(threads, 1)


def offset_map_slots(dedupe_buffer_bytes: int) -> int:
    """The size of Kafka's map is a Java int, so bytes above 2^31 - 1 add no slots."""
    return min(dedupe_buffer_bytes, INT32_MAX) // MAP_SLOT_BYTES


def offset_map_keys(dedupe_buffer_bytes: int | None, load_factor: float) -> int:
    """Return the largest number of keys in an offset map; INT64_MAX if `dedupe_buffer_bytes` is None (unlimited)."""
    if dedupe_buffer_bytes is None:
        return INT64_MAX
    return int(offset_map_slots(dedupe_buffer_bytes) * load_factor)


def holds_several_keys(dedupe_buffer_bytes: int, load_factor: float) -> bool:
    """Return True if an offset map has room for more than one key; Kafka requires this (kafka-log 02 §1)."""
    return offset_map_slots(dedupe_buffer_bytes) * load_factor > 1


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    cleanup_policy: tuple[str, ...] = ("delete",)
    """Any of `compact` and `delete`, without duplicates."""

    min_cleanable_dirty_ratio: float = 0.5
    """A log is compacted if its dirty ratio is greater than this value (02 §2)."""

    min_compaction_lag_ms: int = 0
    """A segment with a record younger than this is not compacted, nor is any later segment.  0 means no limit."""

    max_compaction_lag_ms: int = INT64_MAX
    """If the dirty part of a log begins with a record older than this, the log is compacted at any dirty ratio."""

    delete_retention_ms: int | None = 86_400_000
    """Time for which tombstones and transaction markers are kept after their first cleaning.

    None: the config is unknown.  The cleaner then obeys the delete horizons that batches already have, and writes no
    new delete horizons.
    """

    segment_bytes: int = 1_073_741_824
    """Limit on the total size of the `.log` files that are cleaned into one segment (02 §5)."""

    segment_index_bytes: int = 10_485_760
    """Limit on the total size of the `.index` files of these segments, and also of their `.timeindex` files."""

    index_interval_bytes: int = 4096
    """Minimum number of log bytes between two index entries."""

    max_message_bytes: int = 1_048_588
    """The largest batch that an append accepts; the cleaner also accepts larger batches."""

    dedupe_buffer_bytes: int | None = None
    """Size of the offset map of one round in bytes, at most 2^31 - 1 as in Kafka.  A slot has 24 bytes.  None:
    unlimited."""

    dedupe_load_factor: float = 0.9
    """Fraction of the slots of a bounded map that may be filled (`log.cleaner.io.buffer.load.factor`)."""

    producer_id_expiration_ms: int | None = 86_400_000
    """A producer without an open transaction expires when this time has passed since its last batch.

    None: the config is unknown, and producers never expire.
    """

    max_decompressed_batch_bytes: int = 268_435_456
    """A compressed batch that expands beyond this size is treated as corrupt.  Kafka has no such config."""

    task_memory_bytes: int = INT64_MAX
    """The memory limit for cleaning one partition: offset map, outputs and buffers.  Kafka has no such config."""

    @property
    def compacts(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def offset_map_keys(self) -> int:
        return offset_map_keys(self.dedupe_buffer_bytes, self.dedupe_load_factor)
