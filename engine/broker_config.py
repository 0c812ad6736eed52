"""What of a broker's config concerns its log directories as a whole: loading, background tasks, the cleaner.

Field names are Kafka's keys with underscores, defaults are Kafka's own (kafka-log 06 §2, §3).  Values are within
Kafka's ranges: who parses them checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.format import INT64_MAX


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The config of one engine."""

    num_recovery_threads_per_data_dir: int = 2
    """Threads that load, and at the end close, the logs of one directory."""

    background_threads: int = 10
    """Threads of the scheduler; 0: nothing runs by itself, `LogManager.run_due` runs what is due."""

    log_initial_task_delay_ms: int = 30_000
    """The first run of the periodic tasks."""

    log_retention_check_interval_ms: int = 300_000
    """How often retention looks at the logs that are not compacted."""

    log_flush_scheduler_interval_ms: int = INT64_MAX
    """How often the flusher looks for logs that were not flushed for `flush.ms`."""

    log_flush_offset_checkpoint_interval_ms: int = 60_000
    """How often the recovery points are written."""

    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    """How often the log start offsets are written."""

    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    """How often the high watermarks are written."""

    producer_id_expiration_check_interval_ms: int = 600_000
    """How often expired producers are forgotten."""

    log_segment_delete_delay_ms: int = 60_000
    """How long the directory of a deleted log stays."""

    log_cleaner_enable: bool = True
    """Whether logs are compacted at all."""

    log_cleaner_threads: int = 1
    """How many logs are cleaned at once."""

    log_cleaner_backoff_ms: int = 15_000
    """How long a cleaner that found nothing waits."""

    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    """What all cleaners together may read and write."""

    cluster_id: str | None = None
    """For the meta.properties of a new directory; None: what the other directories say."""

    node_id: int | None = None
    """The same."""

    hand_off: Path | None = None
    """The folder in which jobs leave cleaned segments for this engine to commit; None: there is none."""
