"""The checkpoint files of offsets, written from the logs of an engine: recovery points, log starts, high watermarks.

The `checkpoint_guard` of a directory is held while the directory's offsets are collected and written, so that no
checkpoint replaces a newer one. A thread that holds this lock may take the lock of a log. If a disk hangs, the periodic
checkpoints of all directories wait for this disk, as in Kafka.

Source: kafka-log 04 §11 (LogManager.checkpointLogRecoveryOffsets, checkpointLogStartOffsets).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.manager.manager_state import ManagerState
from sediment.segment_io.errors import OpenFilesLimitError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.checkpoint_files import log_start_entries

_LOGGER = logging.getLogger(__name__)


def write_recovery_points(manager: ManagerState, directories: Iterable[LogDirectory] | None = None) -> None:
    _write(manager, LogDirectory.write_recovery_points, _recovery_points, directories)


def write_log_starts(manager: ManagerState, log_dirs: Collection[Path] | None = None) -> frozenset[Path]:
    wanted = [each for each in manager.directories if log_dirs is None or each.path in log_dirs]
    return _write(manager, LogDirectory.write_log_starts, _log_starts, wanted)


def write_high_watermarks(manager: ManagerState) -> None:
    _write(manager, LogDirectory.write_high_watermarks, _high_watermarks)


def write_all(manager: ManagerState, directories: Collection[LogDirectory]) -> frozenset[Path]:
    return (
        _write(manager, LogDirectory.write_recovery_points, _recovery_points, directories)
        | _write(manager, LogDirectory.write_log_starts, _log_starts, directories)
        | _write(manager, LogDirectory.write_high_watermarks, _high_watermarks, directories)
    )


def write_recovery_points_of(manager: ManagerState, partitions: Iterable[TopicPartition]) -> None:
    logs = [log for partition in partitions if (log := manager.get_log(partition)) is not None]
    touched = {directory.path: directory for directory in map(manager.directory_of, logs)}
    write_recovery_points(manager, touched.values())


def _write(
    manager: ManagerState,
    write: Callable[[LogDirectory, Mapping[TopicPartition, int]], None],
    offsets: Callable[[Iterable[PartitionLog]], Mapping[TopicPartition, int]],
    directories: Iterable[LogDirectory] | None = None,
) -> frozenset[Path]:
    failed = set()
    for directory in manager.directories if directories is None else directories:
        try:
            with directory.checkpoint_guard, manager.failures.failing(directory):
                write(directory, offsets(manager.logs_in(directory)))
        except OpenFilesLimitError as error:
            failed.add(directory.path)
            _LOGGER.error("a checkpoint of %s was not written: %s", directory, error)
        if directory.is_offline:
            failed.add(directory.path)
    return frozenset(failed)


def write_offsets(directory: LogDirectory, logs: Iterable[PartitionLog]) -> None:
    """Write the three checkpoints of a directory with these logs; the caller holds its `checkpoint_guard`."""
    logs = tuple(logs)
    directory.write_recovery_points(_recovery_points(logs))
    directory.write_log_starts(_log_starts(logs))
    directory.write_high_watermarks(_high_watermarks(logs))


def _recovery_points(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    return {log.partition: log.recovery_point for log in logs}


def _log_starts(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    return log_start_entries((log.partition, log.log_start_offset, log.first_base_offset) for log in logs)


def _high_watermarks(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    return {log.partition: log.high_watermark for log in logs}
