"""LogDirMoves: moves of partitions to other log directories, which AlterReplicaLogDirs requests.

1. If the partition has no log yet, the error is REPLICA_NOT_AVAILABLE, and the log will be created in the directory.
2. If the log is already in the requested directory, a move to another directory is cancelled.
3. If the partition is being moved to the requested directory, nothing changes.
4. Otherwise any other move is cancelled, and the requested move begins.

Source: Kafka's ReplicaManager.alterReplicaLogDirs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from sediment.engine.live.log_manager import LogManager
from sediment.engine.live.replica_alter_log_dirs import ReplicaAlterLogDirs
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import (
    INTERNAL_TOPICS,
    LONGEST_FILE_NAME,
    TopicPartition,
    future_directory_name,
    is_topic_name,
)
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError, error_code_of
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.live.topic_store import TopicStore
from sediment.server.topic_catalog import has_partition

_LOGGER = logging.getLogger(__name__)

_UNIQUE = "0" * 32


class LogDirMoves:
    """Coordinators read the files of their logs when they load.

    So the copy of an internal topic's partition begins at once, but the copy replaces the log only after
    `coordinators_loaded` is called.
    """

    def __init__(
        self, catalog: LiveCatalog, manager: LogManager, topics: TopicStore, directories: Collection[Path]
    ) -> None:
        self._catalog = catalog
        self._manager = manager
        self._topics = topics
        self._directories = {str(path.absolute()): path for path in directories}
        self._moves = ReplicaAlterLogDirs(manager, self._replace)
        self._are_coordinators_loaded = False
        self._guard = threading.Lock()

    def coordinators_loaded(self) -> None:
        self._are_coordinators_loaded = True

    def _replace(self, partition: TopicPartition) -> None:
        if self._are_coordinators_loaded or partition.topic not in INTERNAL_TOPICS:
            self._topics.replace_with_future_log(partition)

    def alter(self, partition: TopicPartition, log_dir: str) -> ErrorCode:
        try:
            with self._guard:
                self._alter(partition, log_dir)
        except SedimentError as error:
            _LOGGER.warning("%s is not moved to %s: %s", partition, log_dir, error)
            return error_code_of(error)
        return ErrorCode.NONE

    def _alter(self, partition: TopicPartition, log_dir: str) -> None:
        if len(future_directory_name(partition, _UNIQUE)) > LONGEST_FILE_NAME:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target = self._online_directory(log_dir)
        future = self._manager.get_future_log(partition)
        if future is not None and future.directory.parent != target:
            self._manager.delete_future_log(partition)
        served = self._catalog.partition(partition.topic, partition.partition)
        if served is None:
            raise self._without_log(partition, target)
        if served.failure is not None:
            raise served.failure
        if served.directory.parent != target:
            self._topics.check_movable()
            self._begin(partition, target)

    def _online_directory(self, log_dir: str) -> Path:
        path = self._directories.get(log_dir)
        if path is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {log_dir} is not found in the config.")
        if any(each.path == path and each.is_offline for each in self._manager.directories()):
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {log_dir} is offline")
        return path

    def _without_log(self, partition: TopicPartition, target: Path) -> ApiError:
        if is_topic_name(partition.topic) and partition.partition >= 0:
            self._topics.prefer_directory(partition, target)
        if has_partition(self._catalog.topic(partition.topic), partition.partition):
            return ApiError(ErrorCode.REPLICA_NOT_AVAILABLE, "the partition has no log")
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _begin(self, partition: TopicPartition, target: Path) -> None:
        if self._manager.get_future_log(partition) is None:
            self._moves.add(self._manager.create_future_log(partition, target))

    def resume(self, interrupted: Mapping[TopicPartition, Path]) -> None:
        for partition, target in interrupted.items():
            try:
                with self._guard:
                    self._begin(partition, target)
            except SedimentError as error:
                _LOGGER.error("%s is not moved to %s: %s", partition, target, error)
