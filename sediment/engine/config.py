"""A topic's whole effective config: what compaction and retention need, and what writing a live log needs besides.

Field names are Kafka's keys with underscores, defaults are Kafka's own (kafka-log 06 §1, §4).
Invariants: `compaction` and `retention` speak of one topic, so their cleanup policies are equal; every value that a
live log uses is in Kafka's range.  Segments may be smaller than Kafka lets a topic have them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sediment.compaction.config import CompactionConfig
from sediment.engine.config_ranges import (
    ANY_LONG,
    AT_LEAST_ONE,
    COUNT,
    INT,
    POSITIVE_INT,
    OneOf,
    Range,
    Real,
    Truth,
    Whole,
    check_ranges,
)
from sediment.retention.config import RetentionConfig
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

_POLICIES = OneOf(("compact", "delete"), several=True)
_COMPACTION: dict[str, Range] = {
    "cleanup_policy": _POLICIES,
    "min_cleanable_dirty_ratio": Real(0, 1),
    "min_compaction_lag_ms": COUNT,
    "max_compaction_lag_ms": COUNT,
    "segment_bytes": POSITIVE_INT,
    "segment_index_bytes": Whole(12, INT32_MAX),
    "index_interval_bytes": INT,
    "max_message_bytes": INT,
}
_RETENTION: dict[str, Range] = {"cleanup_policy": _POLICIES, "retention_ms": Whole(-1), "retention_bytes": ANY_LONG}
_LOG: dict[str, Range] = {
    "segment_ms": AT_LEAST_ONE,
    "segment_jitter_ms": COUNT,
    "flush_messages": AT_LEAST_ONE,
    "flush_ms": COUNT,
    "compression_type": OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    "compression_gzip_level": Whole(1, 9, also=(-1,)),
    "compression_lz4_level": Whole(1, 17),
    "compression_zstd_level": Whole(-131_072, 22),
    "message_timestamp_type": OneOf(("CreateTime", "LogAppendTime")),
    "message_timestamp_before_max_ms": COUNT,
    "message_timestamp_after_max_ms": COUNT,
    "preallocate": Truth(),
    "file_delete_delay_ms": COUNT,
    "transaction_max_timeout_ms": AT_LEAST_ONE,
}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The effective config of one topic."""

    compaction: CompactionConfig = field(default_factory=CompactionConfig)
    """Which records live; also the sizes at which segments and their indexes are full."""

    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """Which segments live."""

    segment_ms: int = 604_800_000
    """An append rolls a segment whose first record is older than this."""

    segment_jitter_ms: int = 0
    """At most this much, drawn at random for each segment, is taken off `segment_ms`."""

    flush_messages: int = INT64_MAX
    """This many unflushed records force a flush."""

    flush_ms: int = INT64_MAX
    """A log not flushed for this long is flushed."""

    compression_type: str = "producer"
    """The codec on disk; `producer` keeps that of each batch."""

    compression_gzip_level: int = -1
    """For batches that an append recompresses to gzip; -1: the codec's own default."""

    compression_lz4_level: int = 9
    """For batches that an append recompresses to lz4."""

    compression_zstd_level: int = 3
    """For batches that an append recompresses to zstd."""

    message_timestamp_type: str = "CreateTime"
    """`CreateTime` or `LogAppendTime`."""

    message_timestamp_before_max_ms: int = INT64_MAX
    """An append refuses a CreateTime further in the past than this."""

    message_timestamp_after_max_ms: int = 3_600_000
    """An append refuses a CreateTime further in the future than this."""

    preallocate: bool = False
    """Create segment files at their full size."""

    file_delete_delay_ms: int = 60_000
    """How long a file renamed to `.deleted` stays."""

    transaction_max_timeout_ms: int = 900_000
    """A transaction open for this and 300,000 ms more is late."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a value is out of its range.
            ValueError: the two cleanup policies differ.
        """
        check_ranges(self.compaction, _COMPACTION)
        check_ranges(self.retention, _RETENTION)
        check_ranges(self, _LOG)
        if self.compaction.cleanup_policy != self.retention.cleanup_policy:
            raise ValueError(f"two cleanup policies for one topic: {self.compaction!r} and {self.retention!r}")

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """Any of `compact` and `delete`, without duplicates."""
        return self.compaction.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether the cleanup policy asks for compaction."""
        return self.compaction.compacts

    @property
    def max_segment_ms(self) -> int:
        """The age at which an append rolls a segment: a compacted log may not hold data back longer than its lag.

        Source: kafka-log 02 §2.3 (LogConfig.maxSegmentMs).
        """
        lag_ms = self.compaction.max_compaction_lag_ms
        return min(lag_ms, self.segment_ms) if self.compacts and lag_ms > 0 else self.segment_ms
