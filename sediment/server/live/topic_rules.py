"""Kafka's rules for new topics and partitions, with Kafka's error messages: names, partition counts and replicas.

Source: Kafka 4.2.0, ReplicationControlManager, StripedReplicaPlacer and Topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sediment.engine.live.topic_names import check_partition
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import INTERNAL_TOPICS, METADATA_TOPIC, TopicPartition
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.topic_names import check_topic_name

DEFAULT = -1
"""The number in a request that stands for a default."""

MOST_RECORDS = 10_000
"""The largest number of metadata records, and of new partitions, per request (Kafka's MAX_RECORDS_PER_USER_OP)."""

_COLLIDING = "._"

ReplicaIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, ReplicaIds]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True, slots=True)
class MorePartitions:
    name: str
    count: int
    assignments: Sequence[ReplicaIds] | None = None


def colliding_names(topics: Iterable[str]) -> Mapping[str, str]:
    """Return the names that contain . or _, by `unified_name`; names with the same unified name collide."""
    return {unified_name(name): name for name in topics if not set(_COLLIDING).isdisjoint(name)}


def unified_name(name: str) -> str:
    """Return the name with each . replaced by _, because metric names do not distinguish the two."""
    return name.replace(".", "_")


def check_new_name(name: str, existing: Iterable[str], colliding: Mapping[str, str]) -> None:
    if name == METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    check_topic_name(name)
    if name in existing:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = None if set(_COLLIDING).isdisjoint(name) else colliding.get(unified_name(name))
    if other is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def check_total_count(topics: Iterable[NewTopic], default_count: int) -> None:
    total = sum(
        len(topic.assignments) or (default_count if topic.partition_count == DEFAULT else max(topic.partition_count, 0))
        for topic in topics
    )
    if total > MOST_RECORDS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def check_record_count(count: int) -> None:
    if count > MOST_RECORDS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


def check_folder_name(topic: str, count: int) -> None:
    try:
        check_partition(TopicPartition(topic, count - 1))
    except UsageError as error:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, error.what) from error


def partition_count_of(topic: NewTopic, node_id: int, default_count: int) -> int:
    count, factor = topic.partition_count, topic.replication_factor
    if topic.assignments:
        return _assigned_count(topic, node_id)
    if factor < DEFAULT or factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < DEFAULT or count == 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if factor > 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            "reached because only 1 broker(s) are registered.",
        )
    return default_count if count == DEFAULT else count


def _assigned_count(topic: NewTopic, node_id: int) -> int:
    for name, number in (("replication factor", topic.replication_factor), ("numPartitions", topic.partition_count)):
        if number != DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    found: set[int] = set()
    for number, replicas in topic.assignments:
        if number in found:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {number}",
            )
        check_replicas(replicas, node_id)
        found.add(number)
    if found != set(range(len(found))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return len(found)


def check_replicas(replicas: ReplicaIds, node_id: int) -> None:
    """Check that a client assigned a partition to this node, which is the only one."""
    if not replicas:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    before: int | None = None
    for replica in sorted(replicas):
        if replica != node_id:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {replica}, but no such broker is registered.",
            )
        if replica == before:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes the broker {replica} more than once.",
            )
        before = replica


def check_more_partitions(asked: MorePartitions, existing_count: int, node_id: int, *, others: int = 0) -> None:
    topic, count, assignments = asked.name, asked.count, asked.assignments
    if topic in INTERNAL_TOPICS:
        # The coordinator uses the number of partitions to find the partition of a group.
        raise ApiError(ErrorCode.INVALID_REQUEST, f"this server does not add partitions to the internal topic {topic}")
    if count == existing_count:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing_count} partition(s).")
    if count < existing_count:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic} currently has {existing_count} partition(s); {count} would not be an increase.",
        )
    added = count - existing_count
    check_record_count(others + added)
    check_folder_name(topic, count)
    if assignments is None:
        return
    if len(assignments) != added:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were "
            "specified.",
        )
    for replicas in assignments:
        check_replicas(replicas, node_id)
