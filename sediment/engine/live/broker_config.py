"""The part of a broker's config that concerns all log directories: loading, background tasks, the cleaner.

Field names are Kafka's keys with underscores, and defaults are Kafka's own (kafka-log 06 §2, §3), as in
`config_definitions`.  Keys that have no effect here are only in that table.

Invariant: every value is in Kafka's range, except that `background_threads` may be 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.config import dedupe_buffer_bytes_per_thread, offset_map_keys
from sediment.engine.value_ranges import AT_LEAST_ONE, COUNT, INT, POSITIVE_INT, Range, Real, Truth, check_ranges
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.layout import INT64_MAX

_LEAST_KEYS = 2
_LARGEST_DOUBLE = 1.7976931348623157e308
_RANGES: dict[str, Range] = {
    "num_recovery_threads_per_data_dir": POSITIVE_INT,
    "background_threads": INT,
    "log_initial_task_delay_ms": COUNT,
    "log_retention_check_interval_ms": AT_LEAST_ONE,
    "log_flush_scheduler_interval_ms": AT_LEAST_ONE,
    "log_flush_offset_checkpoint_interval_ms": AT_LEAST_ONE,
    "log_flush_start_offset_checkpoint_interval_ms": AT_LEAST_ONE,
    "replica_high_watermark_checkpoint_interval_ms": AT_LEAST_ONE,
    "producer_id_expiration_check_interval_ms": AT_LEAST_ONE,
    "log_segment_delete_delay_ms": COUNT,
    "log_cleaner_enable": Truth(),
    "log_cleaner_threads": INT,
    "log_cleaner_backoff_ms": COUNT,
    "log_cleaner_io_max_bytes_per_second": Real(0, _LARGEST_DOUBLE, above_low=True),
    "log_cleaner_dedupe_buffer_size": AT_LEAST_ONE,
    "log_cleaner_io_buffer_load_factor": Real(0, 1, above_low=True),
    "replica_alter_log_dirs_io_max_bytes_per_second": COUNT,
}


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The config of one engine."""

    num_recovery_threads_per_data_dir: int = 2
    """The number of threads per directory; they load its logs at the start and close them at the end."""

    background_threads: int = 10
    """The number of scheduler threads; with 0, only `LogManager.run_due` runs tasks."""

    log_initial_task_delay_ms: int = 30_000
    """The delay before the first run of the periodic tasks."""

    log_retention_check_interval_ms: int = 300_000
    """Interval at which retention runs for logs that are not compacted."""

    log_flush_scheduler_interval_ms: int = INT64_MAX
    """Interval of the task that flushes each log whose last flush is at least `flush.ms` ago."""

    log_flush_offset_checkpoint_interval_ms: int = 60_000
    """Interval at which the recovery points are written."""

    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    """Interval at which the log start offsets are written."""

    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    """Interval at which the high watermarks are written."""

    producer_id_expiration_check_interval_ms: int = 600_000
    """Interval at which expired producers are removed."""

    log_segment_delete_delay_ms: int = 60_000
    """The time after which the directory of a deleted log is removed."""

    log_cleaner_enable: bool = True
    """True if logs are compacted."""

    log_cleaner_threads: int = 1
    """The number of logs that are cleaned at the same time."""

    log_cleaner_backoff_ms: int = 15_000
    """The time that a cleaner waits if it finds nothing to clean."""

    log_cleaner_io_max_bytes_per_second: float = _LARGEST_DOUBLE
    """Limit on the bytes per second that all cleaners together read and write."""

    log_cleaner_dedupe_buffer_size: int = 134_217_728
    """The total size of the offset maps of all cleaner threads, at 24 bytes per key."""

    log_cleaner_io_buffer_load_factor: float = 0.9
    """The largest fraction of used slots in an offset map."""

    replica_alter_log_dirs_io_max_bytes_per_second: int = INT64_MAX
    """Limit on the bytes per second that all moves of partitions to other log directories copy together."""

    cluster_id: str | None = None
    """The cluster id for meta.properties of a new directory; None means the id of the other directories."""

    node_id: int | None = None
    """The node id for meta.properties of a new directory; None means the id of the other directories."""

    hand_off: Path | None = None
    """The spool: a folder in which jobs put cleaned segments, which this engine then commits; None without a spool."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if self.node_id is not None:
            check_ranges(self, {"node_id": INT})
        if self.offset_map_keys < _LEAST_KEYS:
            raise SettingsError(
                f"log.cleaner.dedupe.buffer.size is {self.log_cleaner_dedupe_buffer_size}, too small for "
                f"{self.log_cleaner_threads} cleaner threads",
                advice="give at least 1 MiB for each thread",
            )

    @property
    def offset_map_keys(self) -> int:
        """The largest number of keys in the offset map of one cleaner thread."""
        map_bytes = dedupe_buffer_bytes_per_thread(self.log_cleaner_dedupe_buffer_size, self.log_cleaner_threads)
        return offset_map_keys(map_bytes, self.log_cleaner_io_buffer_load_factor)
