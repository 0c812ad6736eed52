"""Brokers, topics and partitions: Metadata, DescribeCluster, DescribeTopicPartitions, and further requests of tools.

This server is the only broker: the leader and only replica of every partition.

Source: Kafka's KafkaApis, DescribeTopicPartitionsRequestHandler and AuthHelper.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

from sediment.segment_io.errors import OpenFilesLimitError, StorageError
from sediment.segment_io.format.names import METADATA_PARTITION, METADATA_TOPIC, is_topic_name
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import ServedLog, ServedTopic, TopicCatalog, has_partition

MAX_REQUEST_PARTITIONS = 2000
"""Kafka's max.request.partition.size.limit."""

_NOT_ASKED = -(1 << 31)
_BROKERS, _CONTROLLERS = 1, 2  # endpoint types
_NO_ID = uuid.UUID(int=0)
_NO_LEADER = -1
_PREFERRED = 0  # the type of an election
_FIRST_VERSION_BY_ID = 12  # versions 10 and 11 have the field, but Kafka refuses it


class _Operation(IntEnum):
    """Operations of ACLs (Kafka's AclOperation)."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: _Operation) -> int:
    return sum(1 << operation for operation in operations)


_OF_CLUSTER = _bits(_Operation.DESCRIBE, _Operation.DESCRIBE_CONFIGS)
_OF_TOPIC = _OF_CLUSTER | _bits(_Operation.READ)
_WRITES_OF_CLUSTER = _bits(_Operation.CREATE, _Operation.ALTER, _Operation.IDEMPOTENT_WRITE)
_WRITES_OF_TOPIC = _bits(
    _Operation.WRITE, _Operation.CREATE, _Operation.DELETE, _Operation.ALTER, _Operation.ALTER_CONFIGS
)


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int


class MetadataHandlers:
    # `create_topics` creates unknown topics that a client requests; it is None if clients may not create topics in this
    # way.

    def __init__(
        self,
        catalog: TopicCatalog,
        node: Node,
        *,
        can_write: bool = False,
        create_topics: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._node = node
        self._create_topics = create_topics
        self._topic_operations = _OF_TOPIC | (_WRITES_OF_TOPIC if can_write else 0)
        self._cluster_operations = _OF_CLUSTER | (_WRITES_OF_CLUSTER if can_write else 0)
        # The key is the topic object, because a changed topic is a different object.
        self._partitions: WeakKeyDictionary[ServedTopic, Sequence[Any]] = WeakKeyDictionary()
        self._described: WeakKeyDictionary[ServedTopic, Sequence[Any]] = WeakKeyDictionary()

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            ApiKey.ELECT_LEADERS: self.elect_leaders,
        }

    # --------------------------------------------------------------------------------------------------------- metadata
    def metadata(self, request: Request) -> Any:
        message, node = request.message, self._node
        if request.api_version < _FIRST_VERSION_BY_ID and any(map(_is_asked_by_id, message.topics or ())):
            return _all_invalid(message.topics)
        wants_all = message.topics is None or (request.api_version == 0 and not message.topics)
        with_operations = message.include_topic_authorized_operations
        if wants_all:
            topics = [self._metadata_of(topic, with_operations) for topic in self._catalog.topics()]
        else:
            asked = {topic.topic_id if _is_asked_by_id(topic) else topic.name: topic for topic in message.topics}
            if message.allow_auto_topic_creation and self._create_topics is not None:
                names = [topic.name for topic in asked.values() if not _is_asked_by_id(topic)]
                missing = [name for name in names if is_topic_name(name) and self._catalog.topic(name) is None]
                if missing:
                    self._create_topics(missing)
            topics = [self._metadata_of_asked(topic, with_operations) for topic in asked.values()]
        with_cluster = message.include_cluster_authorized_operations
        return m.MetadataResponse(
            brokers=[m.MetadataResponse.MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port)],
            cluster_id=self._catalog.cluster_id,
            controller_id=node.id,
            topics=topics,
            cluster_authorized_operations=self._cluster_operations if with_cluster else _NOT_ASKED,
        )

    def _metadata_of_asked(self, asked: Any, with_operations: bool) -> Any:
        name = None if _is_asked_by_id(asked) else asked.name
        topic = self._catalog.topic_by_id(asked.topic_id) if name is None else self._catalog.topic(name)
        if topic is not None:
            return self._metadata_of(topic, with_operations)
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else _unknown_topic(name)
        return m.MetadataResponse.MetadataResponseTopic(error_code=code, name=name, topic_id=asked.topic_id)

    def _metadata_of(self, topic: ServedTopic, with_operations: bool) -> Any:
        partitions = self._partitions.get(topic)
        if partitions is None:
            partition = m.MetadataResponse.MetadataResponsePartition
            partitions = self._partitions[topic] = [partition(**each) for each in self._states(topic)]
        return m.MetadataResponse.MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=partitions,
            topic_authorized_operations=self._topic_operations if with_operations else _NOT_ASKED,
        )

    # ---------------------------------------------------------------------------------------------------------- cluster
    def describe_cluster(self, request: Request) -> Any:
        message, node = request.message, self._node
        if message.endpoint_type != _BROKERS:
            is_known = message.endpoint_type == _CONTROLLERS
            return m.DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this endpoint is a broker, not a controller",
                endpoint_type=_BROKERS,
                cluster_id=self._catalog.cluster_id,
            )
        with_operations = message.include_cluster_authorized_operations
        broker = m.DescribeClusterResponse.DescribeClusterBroker
        return m.DescribeClusterResponse(
            cluster_id=self._catalog.cluster_id,
            controller_id=node.id,
            brokers=[broker(broker_id=node.id, host=node.host, port=node.port)],
            cluster_authorized_operations=self._cluster_operations if with_operations else _NOT_ASKED,
        )

    # ------------------------------------------------------------------------------------------------------- partitions
    def describe_topic_partitions(self, request: Request) -> Any:
        message = request.message
        names = sorted({topic.name for topic in message.topics}) or [topic.name for topic in self._catalog.topics()]
        first = 0
        if message.cursor is not None:
            names = [name for name in names if name >= message.cursor.topic_name]
            if names and names[0] == message.cursor.topic_name:
                first = message.cursor.partition_index
        left = max(1, min(message.response_partition_limit, MAX_REQUEST_PARTITIONS))
        topics: list[Any] = []
        response = m.DescribeTopicPartitionsResponse(topics=topics)
        for name in names:
            topic = self._catalog.topic(name)
            if topic is None:
                topics.append(response.DescribeTopicPartitionsResponseTopic(error_code=_unknown_topic(name), name=name))
                first = 0
                continue
            partitions = [each for each in self._described_partitions(topic) if each.partition_index >= first]
            first = 0
            if not left and partitions:
                response.next_cursor = response.Cursor(topic_name=name, partition_index=partitions[0].partition_index)
                break
            topics.append(
                response.DescribeTopicPartitionsResponseTopic(
                    name=name,
                    topic_id=topic.id,
                    is_internal=topic.is_internal,
                    partitions=partitions[:left],
                    topic_authorized_operations=self._topic_operations,
                )
            )
            if len(partitions) > left:
                following = partitions[left].partition_index
                response.next_cursor = response.Cursor(topic_name=name, partition_index=following)
                break
            left -= len(partitions)
        return response

    def _described_partitions(self, topic: ServedTopic) -> Sequence[Any]:
        partitions = self._described.get(topic)
        if partitions is None:
            partition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
            partitions = self._described[topic] = [
                partition(**each, eligible_leader_replicas=(), last_known_elr=()) for each in self._states(topic)
            ]
        return partitions

    def _states(self, topic: ServedTopic) -> list[dict[str, Any]]:
        # Partitions without a log are included, because clients use the number of partitions to map keys to partitions.
        replicas = (self._node.id,)
        led = {"leader_id": self._node.id, "replica_nodes": replicas, "isr_nodes": replicas}
        missing = {
            "error_code": ErrorCode.LEADER_NOT_AVAILABLE,
            "leader_id": _NO_LEADER,
            "replica_nodes": replicas,
            "isr_nodes": (),
            "offline_replicas": replicas,
        }
        states = {number: {**led, "leader_epoch": leader_epoch(log)} for number, log in topic.partitions.items()}
        states.update(dict.fromkeys(topic.missing, missing))
        return [{"partition_index": number, **states[number]} for number in sorted(states)]

    # ------------------------------------------------------------------------------------------------- without replicas
    def list_partition_reassignments(self, request: Request) -> Any:
        return m.ListPartitionReassignmentsResponse(error_message=None)

    def elect_leaders(self, request: Request) -> Any:
        """Report that a partition with a log already has its leader, and that one without a log cannot get one."""
        is_preferred = request.message.election_type == _PREFERRED
        without_log = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        result = m.ElectLeadersResponse.ReplicaElectionResult
        return m.ElectLeadersResponse(
            replica_election_results=[
                result(
                    topic=topic.topic,
                    partition_result=[self._election(topic.topic, each, without_log) for each in topic.partitions],
                )
                for topic in request.message.topic_partitions or ()
            ]
        )

    def _election(self, topic: str, number: int, without_log: ErrorCode) -> Any:
        if self._catalog.partition(topic, number) is not None:
            code = ErrorCode.ELECTION_NOT_NEEDED
        elif has_partition(self._catalog.topic(topic), number):
            code = without_log
        else:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return m.ElectLeadersResponse.PartitionResult(partition_id=number, error_code=code, error_message=None)


class QuorumHandlers:
    """`directory_id` is the id of the metadata directory, or None in a static quorum.

    `position` returns the quorum's epoch and high watermark. The voter has no endpoints, because no controller listens.
    """

    def __init__(
        self,
        node_id: int,
        directory_id: uuid.UUID | None,
        position: Callable[[], tuple[int, int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._directory_id = directory_id or _NO_ID
        self._position = position
        self._now_ms = now_ms

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_QUORUM: self.describe_quorum}

    def describe_quorum(self, request: Request) -> Any:
        """Describe the quorum if the request names only the partition of the metadata log (Kafka's KafkaRaftClient)."""
        response = m.DescribeQuorumResponse
        asked = [
            (topic.topic_name, each.partition_index) for topic in request.message.topics for each in topic.partitions
        ]
        if len(request.message.topics) == 1 and asked == [(METADATA_TOPIC, METADATA_PARTITION.partition)]:
            return response(topics=[response.TopicData(topic_name=METADATA_TOPIC, partitions=[self._described()])])
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return response(
            topics=[
                response.TopicData(
                    topic_name=topic.topic_name,
                    partitions=[
                        response.PartitionData(partition_index=each.partition_index, error_code=unknown)
                        for each in topic.partitions
                    ],
                )
                for topic in request.message.topics
            ]
        )

    def _described(self) -> Any:
        response = m.DescribeQuorumResponse
        epoch, end_offset = self._position()
        now_ms = self._now_ms()
        voter = response.ReplicaState(
            replica_id=self._node_id,
            replica_directory_id=self._directory_id,
            log_end_offset=end_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        return response.PartitionData(
            partition_index=METADATA_PARTITION.partition,
            leader_id=self._node_id,
            leader_epoch=epoch,
            high_watermark=end_offset,
            current_voters=[voter],
        )


def leader_epoch(log: ServedLog) -> int:
    """Return the leader epoch; 0 if the log cannot be read, because a later fetch reports the error."""
    try:
        return log.leader_epoch
    except (StorageError, OpenFilesLimitError):
        return 0


def _is_asked_by_id(asked: Any) -> bool:
    """Return True if a request names a topic by its id; Java clients then send an empty name."""
    return asked.name is None or asked.topic_id.int != 0


def _all_invalid(topics: Any) -> Any:
    topic = m.MetadataResponse.MetadataResponseTopic
    return m.MetadataResponse(
        topics=[
            topic(error_code=ErrorCode.INVALID_REQUEST, name=each.name or "", topic_id=each.topic_id) for each in topics
        ]
    )


def _unknown_topic(name: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
