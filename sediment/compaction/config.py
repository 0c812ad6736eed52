"""What a topic's config says about compaction.

Field names are Kafka's keys with underscores, defaults are Kafka's own (kafka-log 06 §1, §3, §4).  Values are within
Kafka's ranges: who parses them checks them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.segment_io.format.layout import INT64_MAX

COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """The effective config of one topic, as far as its compaction depends on it."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    """Any of `compact` and `delete`, without duplicates."""

    min_cleanable_dirty_ratio: float = 0.5
    """A log is compacted when its dirty ratio is strictly above this (02 §2)."""

    min_compaction_lag_ms: int = 0
    """A segment with a record younger than this is not compacted, nor is any after it; 0: no such limit."""

    max_compaction_lag_ms: int = INT64_MAX
    """A log whose dirty part begins with a record older than this is compacted whatever its dirty ratio."""

    delete_retention_ms: int | None = 86_400_000
    """How long tombstones and transaction markers live after they were first cleaned.

    None: it is not stated.  Cleaning obeys the delete horizons that batches have, and writes no new one.
    """

    segment_bytes: int = 1_073_741_824
    """A cleaned segment's `.log` is made from sources of together at most this size (02 §5)."""

    segment_index_bytes: int = 10_485_760
    """The same for `.index` and `.timeindex`, each."""

    index_interval_bytes: int = 4096
    """An index entry follows more than this many bytes of log after the one before."""

    max_message_bytes: int = 1_048_588
    """The size to which a batch may grow by ordinary appends; larger ones are cleaned all the same."""

    dedupe_buffer_bytes: int | None = None
    """Bytes of the offset map at 24 a slot, for one round; None: the map has no limit."""

    dedupe_load_factor: float = 0.9
    """The part of a bounded map's slots that may be filled (`log.cleaner.io.buffer.load.factor`)."""

    producer_id_expiration_ms: int | None = 86_400_000
    """A producer without an open transaction is forgotten this long after its last batch.

    None: it is not stated.  No producer is forgotten.
    """

    io_max_bytes_per_second: float = 1.7976931348623157e308
    """What reading and writing together may take of the disk (`log.cleaner.io.max.bytes.per.second`)."""

    max_decompressed_batch_bytes: int = 268_435_456
    """A compressed batch that claims more than this is corrupt; not Kafka's, it bounds a task's memory."""

    task_memory_bytes: int = INT64_MAX
    """What cleaning one partition may hold in memory: offset map, output and buffers; not Kafka's."""

    def next_horizon_ms(self, now_ms: int) -> int | None:
        """Return the delete horizon that a cleaning at `now_ms` writes; None: it writes none.

        It writes none beyond INT64_MAX.  A broker's sum overflows there, and it takes a negative horizon for none.
        """
        if self.delete_retention_ms is None:
            return None
        horizon_ms = now_ms + self.delete_retention_ms
        return horizon_ms if 0 <= horizon_ms <= INT64_MAX else None

    @property
    def compacts(self) -> bool:
        """Whether the cleanup policy asks for compaction."""
        return COMPACT in self.cleanup_policy
