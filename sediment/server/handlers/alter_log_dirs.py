"""Requests that move replicas: AlterReplicaLogDirs, and AlterPartitionReassignments, which can change nothing here.

In a cluster of one node, the replicas of a partition never change.  Before it moves a partition to another log
directory, `kafka-reassign-partitions.sh` sends a reassignment to the replicas that the partition has.

Source: Kafka's KafkaApis.handleAlterReplicaLogDirsRequest, ReplicationControlManager.alterPartitionReassignments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.live.topic_rules import check_replicas
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import TopicCatalog, has_partition


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
        result = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
            partition_index=partition.partition_index, error_message=None
        )
        try:
            self._check_unchanged(name, partition)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        return result

    def _check_unchanged(self, name: str, partition: Any) -> None:
        """Check that a partition already has the replicas that a client wants.

        Raises:
            ApiError: it does not.
        """
        topic, number = self._catalog.topic(name), partition.partition_index
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        if not has_partition(topic, number):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
        if partition.replicas is None:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        check_replicas(partition.replicas, self._catalog.node_id)
