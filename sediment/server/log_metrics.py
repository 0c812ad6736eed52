"""The metrics of the logs and the cleaner of a live server; `metrics_text` names them as Kafka does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.live.log_manager import LogManager
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.units import MS_PER_SECOND


@dataclass(frozen=True, slots=True)
class LogDirectoryMetrics:
    path: Path
    is_offline: bool
    uncleanable_partitions: int
    uncleanable_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    partition: TopicPartition
    size_bytes: int
    segments: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogMetrics:
    max_dirty_percent: int
    time_since_last_run_ms: int
    recopy_percent: int
    clean_time_seconds: int
    directories: Sequence[LogDirectoryMetrics]
    partitions: Sequence[PartitionMetrics]


def log_metrics(manager: LogManager) -> LogMetrics:
    cleaner = manager.cleaner
    logs = manager.all_logs()
    uncleanable = cleaner.manager.checkpoints.uncleanable()
    directories = []
    for directory in manager.directories():
        left_alone = [log for log in logs if log.partition in uncleanable and log.directory.parent == directory.path]
        size_bytes = sum(log.size_bytes for log in left_alone)
        directories.append(LogDirectoryMetrics(directory.path, directory.is_offline, len(left_alone), size_bytes))
    return LogMetrics(
        max_dirty_percent=int(100 * cleaner.manager.max_dirty_ratio),
        time_since_last_run_ms=max(manager.clock.now_ms() - cleaner.manager.last_run_ms, 0),
        recopy_percent=cleaner.last_cleaning.recopy_percent,
        clean_time_seconds=cleaner.last_cleaning.duration_ms // MS_PER_SECOND,
        directories=directories,
        partitions=[
            PartitionMetrics(
                log.partition, log.size_bytes, len(log.base_offsets), log.log_start_offset, log.log_end_offset
            )
            for log in logs
        ],
    )
