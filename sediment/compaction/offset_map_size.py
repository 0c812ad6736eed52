"""The size of the offset map of a Kafka cleaner thread: its bytes, its slots, and its keys.

    log.cleaner.dedupe.buffer.size / log.cleaner.threads = bytes of a thread, at most 2^31 - 1
    bytes / 24 = slots, and slots x log.cleaner.io.buffer.load.factor = keys; all are rounded down

`kernels.offset_map` is the map itself, and `kernels.fill_map` fills it.

Source: Kafka's LogCleaner.CleanerThread and SkimpyOffsetMap; kafka-log 02 §1, §4.
"""

from __future__ import annotations

from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

MAP_SLOT_BYTES = 24
"""The size of a slot of Kafka's offset map; the map occupies log.cleaner.dedupe.buffer.size bytes."""


def dedupe_buffer_bytes_per_thread(dedupe_buffer_bytes: int, threads: int) -> int:
    """Return the size in bytes of each offset map if there are `threads` cleaner threads; 0 means one thread."""
    return dedupe_buffer_bytes // max(threads, 1)


def offset_map_slots(dedupe_buffer_bytes: int) -> int:
    """Return the number of slots in an offset map.

    The size of Kafka's map is a Java int, so bytes above 2^31 - 1 add no slots.
    """
    return min(dedupe_buffer_bytes, INT32_MAX) // MAP_SLOT_BYTES


def offset_map_keys(dedupe_buffer_bytes: int | None, load_factor: float) -> int:
    """Return the largest number of keys in an offset map; INT64_MAX if `dedupe_buffer_bytes` is None (unlimited)."""
    if dedupe_buffer_bytes is None:
        return INT64_MAX
    return int(offset_map_slots(dedupe_buffer_bytes) * load_factor)


def holds_several_keys(dedupe_buffer_bytes: int, load_factor: float) -> bool:
    """Return True if an offset map has room for more than one key; Kafka requires this (kafka-log 02 §1)."""
    return offset_map_slots(dedupe_buffer_bytes) * load_factor > 1
