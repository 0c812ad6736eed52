"""The effective config of a topic with all its keys, for compaction, retention and live logs.

Field names are Kafka's keys with underscores, and defaults are Kafka's own (kafka-log 06 §1, §4).
`config_definitions` is the table of all keys, with types, defaults and ranges as in Kafka's ConfigDef; tests compare
this module with it.

    min.compaction.lag.ms above max.compaction.lag.ms    is refused (`lags_contradict`)
    segment.ms of a compacted log                        is at most max.compaction.lag.ms (`max_segment_ms`)
    segment.jitter.ms                                    limits each segment's jitter (`random_segment_jitter_ms`)
    changed config                                       takes effect in `PartitionLog.update_config`; open segments
                                                         keep index sizes, index interval and jitter

Invariants: `compaction` and `retention` belong to one topic, so their cleanup policies are equal.  Every value that a
live log uses is in Kafka's range, except that segments may be smaller than Kafka allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sediment.compaction.config import CompactionConfig
from sediment.engine.value_ranges import (
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
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.layout import GZIP_LEVELS, INT32_MAX, INT64_MAX, LZ4_LEVELS, ZSTD_LEVELS

_POLICIES = OneOf(("compact", "delete"), several=True)
COMPACTION_RANGES: dict[str, Range] = {
    "cleanup_policy": _POLICIES,
    "min_cleanable_dirty_ratio": Real(0, 1),
    "min_compaction_lag_ms": COUNT,
    "max_compaction_lag_ms": AT_LEAST_ONE,
    "segment_bytes": POSITIVE_INT,
    "segment_index_bytes": Whole(12, INT32_MAX),
    "index_interval_bytes": INT,
    "max_message_bytes": INT,
}
RETENTION_RANGES: dict[str, Range] = {
    "cleanup_policy": _POLICIES,
    "retention_ms": Whole(-1),
    "retention_bytes": ANY_LONG,
}
LOG_RANGES: dict[str, Range] = {
    "segment_ms": AT_LEAST_ONE,
    "segment_jitter_ms": COUNT,
    "flush_messages": AT_LEAST_ONE,
    "flush_ms": COUNT,
    "compression_type": OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    "compression_gzip_level": Whole(GZIP_LEVELS[0], GZIP_LEVELS[-1], also=(-1,)),
    "compression_lz4_level": Whole(LZ4_LEVELS[0], LZ4_LEVELS[-1]),
    "compression_zstd_level": Whole(ZSTD_LEVELS[0], ZSTD_LEVELS[-1]),
    "message_timestamp_type": OneOf(("CreateTime", "LogAppendTime")),
    "message_timestamp_before_max_ms": COUNT,
    "message_timestamp_after_max_ms": COUNT,
    "preallocate": Truth(),
    "file_delete_delay_ms": COUNT,
    "transaction_max_timeout_ms": POSITIVE_INT,
}


def lags_contradict(min_compaction_lag_ms: int, max_compaction_lag_ms: int) -> bool:
    """Return True if the minimum lag is above the maximum lag; Kafka refuses such a config.

    Source: Kafka's LogConfig.validateValues; kafka-log 06 §1.
    """
    return min_compaction_lag_ms > max_compaction_lag_ms


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The effective config of one topic."""

    compaction: CompactionConfig = field(default_factory=CompactionConfig)
    """The config of compaction, with the maximum sizes of segments and their indexes."""

    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """The config of retention."""

    segment_ms: int = 604_800_000
    """An append rolls a segment whose first record has reached this age."""

    segment_jitter_ms: int = 0
    """For each segment, a random time up to this limit is subtracted from `segment_ms`."""

    flush_messages: int = INT64_MAX
    """A log is flushed when it has this many unflushed records."""

    flush_ms: int = INT64_MAX
    """A log is flushed when this time has passed since its last flush."""

    compression_type: str = "producer"
    """The codec on disk; `producer` keeps the codec of each batch."""

    compression_gzip_level: int = -1
    """The level for batches that an append recompresses with gzip; -1 means the codec's default."""

    compression_lz4_level: int = 9
    """The level for batches that an append recompresses with lz4."""

    compression_zstd_level: int = 3
    """The level for batches that an append recompresses with zstd."""

    message_timestamp_type: str = "CreateTime"
    """`CreateTime` or `LogAppendTime`."""

    message_timestamp_before_max_ms: int = INT64_MAX
    """The largest age of a CreateTime that an append accepts."""

    message_timestamp_after_max_ms: int = 3_600_000
    """An append accepts a CreateTime that is at most this far in the future."""

    preallocate: bool = False
    """Create segment files at their full size."""

    file_delete_delay_ms: int = 60_000
    """The time after which a file that was renamed to `.deleted` is removed."""

    transaction_max_timeout_ms: int = 900_000
    """A transaction is late if it has been open for 300,000 ms longer than this."""

    def __post_init__(self) -> None:
        check_ranges(self.compaction, COMPACTION_RANGES)
        check_ranges(self.retention, RETENTION_RANGES)
        check_ranges(self, LOG_RANGES)
        if self.compaction.cleanup_policy != self.retention.cleanup_policy:
            raise ValueError(f"two cleanup policies for one topic: {self.compaction!r} and {self.retention!r}")
        min_lag_ms, max_lag_ms = self.compaction.min_compaction_lag_ms, self.compaction.max_compaction_lag_ms
        if lags_contradict(min_lag_ms, max_lag_ms):
            raise SettingsError(
                f"min.compaction.lag.ms={min_lag_ms} is above max.compaction.lag.ms={max_lag_ms}",
                advice="lower the first or raise the second",
            )

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """The cleanup policy: `compact`, `delete`, both or neither, without duplicates."""
        return self.compaction.cleanup_policy

    @property
    def compacts(self) -> bool:
        """True if the cleanup policy contains `compact`."""
        return self.compaction.compacts

    @property
    def max_segment_ms(self) -> int:
        """The age at which an append rolls a segment; for a compacted log, it is at most `max.compaction.lag.ms`.

        Source: kafka-log 02 §2.3 (LogConfig.maxSegmentMs).
        """
        return min(self.compaction.max_compaction_lag_ms, self.segment_ms) if self.compacts else self.segment_ms

    def random_segment_jitter_ms(self, draw_below: Callable[[int], int]) -> int:
        """Return how many ms earlier than `segment.ms` a new segment rolls.

        `draw_below(n)` returns a random number from 0 to n - 1.

        Source: Kafka's LogConfig.randomSegmentJitter.
        """
        bound_ms = min(self.segment_jitter_ms, self.segment_ms)
        return draw_below(bound_ms) if bound_ms > 0 else 0
