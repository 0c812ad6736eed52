"""Requests that move replicas: AlterReplicaLogDirs, and AlterPartitionReassignments, which can change nothing here.

A cluster of one node has one set of replicas for each partition.  `kafka-reassign-partitions.sh` sends it before it
moves a partition to another log directory.

Source: Kafka's KafkaApis.handleAlterReplicaLogDirsRequest, ReplicationControlManager.alterPartitionReassignments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import TopicCatalog, has_partition

_NO_REASSIGNMENT = "No partition reassignment is in progress."


class AlterLogDirsHandlers:
    """Handlers of moves; `alter(partition, log_dir)` begins or cancels a move and returns the error."""

    def __init__(self, catalog: TopicCatalog, alter: Callable[[TopicPartition, str], ErrorCode]) -> None:
        self._catalog = catalog
        self._alter = alter

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
        }

    def alter_replica_log_dirs(self, request: Request) -> Any:
        """Begin or cancel the move of each partition; of several directories for a partition, the last one counts."""
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

    def alter_partition_reassignments(self, request: Request) -> Any:
        """Accept the replicas that a partition has, and refuse all others."""
        response = m.AlterPartitionReassignmentsResponse
        return response(
            error_message=None,
            responses=[
                response.ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[self._reassigned(topic.name, partition) for partition in topic.partitions],
                )
                for topic in request.message.topics
            ],
        )

    def _reassigned(self, name: str, partition: Any) -> Any:
        code, what = self._refusal(name, partition)
        return m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
            partition_index=partition.partition_index, error_code=code, error_message=what
        )

    def _refusal(self, name: str, partition: Any) -> tuple[ErrorCode, str | None]:
        topic, number, node_id = self._catalog.topic(name), partition.partition_index, self._catalog.node_id
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
        if not has_partition(topic, number):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}."
        if partition.replicas is None:
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, _NO_REASSIGNMENT
        if list(partition.replicas) != [node_id]:
            return (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment is not [{node_id}], the only node of the cluster.",
            )
        return ErrorCode.NONE, None
