"""The request that moves replicas between log directories: AlterReplicaLogDirs.

Source: Kafka's KafkaApis.handleAlterReplicaLogDirsRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Handler, Request


class AlterLogDirsHandlers:
    """Handlers of moves; `alter(partition, log_dir)` begins or cancels a move and returns the error."""

    def __init__(self, alter: Callable[[TopicPartition, str], ErrorCode]) -> None:
        self._alter = alter

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs}

    def alter_replica_log_dirs(self, request: Request) -> Any:
        """Begin or cancel the move of each partition; a later entry for a partition replaces an earlier one."""
        wanted = {
            TopicPartition(topic.name, number): log_dir.path
            for log_dir in request.message.dirs
            for topic in log_dir.topics
            for number in topic.partitions
        }
        response = m.AlterReplicaLogDirsResponse
        by_topic: dict[str, list[Any]] = {}
        for partition, log_dir in wanted.items():
            by_topic.setdefault(partition.topic, []).append(
                response.AlterReplicaLogDirPartitionResult(
                    partition_index=partition.partition, error_code=self._alter(partition, log_dir)
                )
            )
        return response(
            results=[
                response.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in by_topic.items()
            ]
        )
