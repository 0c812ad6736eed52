"""Records of consumer groups in `__consumer_offsets`, as Kafka 4.2.0 writes them.

* ConsumerGroupPartitionMetadata: a record that Kafka wrote up to version 4.0; this server only deletes it.

A record without a value deletes the record with the same key.

Source: Kafka's GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from sediment.segment_io.internal_topics.coordinator_records import encode_coordinator_key, encode_coordinator_value
from sediment.segment_io.protocol import messages as m
from sediment.server.groups.consumer.members import Assignment, ClassicMember, ConsumerMember

_VALUE_VERSION = 0


class GroupRecord(NamedTuple):
    key: Any
    value: Any | None

    def encoded(self) -> tuple[bytes, bytes | None]:
        value = None if self.value is None else encode_coordinator_value(self.value, _VALUE_VERSION)
        return encode_coordinator_key(self.key), value


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched at one time; `version` is the version of the cluster metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    value = m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(m.ConsumerGroupMetadataKey(group_id=group_id), value)


def member_metadata(group_id: str, member: ConsumerMember) -> GroupRecord:
    value = m.ConsumerGroupMemberMetadataValue
    return GroupRecord(
        m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        value(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.assignor,
            classic_member_metadata=None if member.classic is None else _classic_metadata(member.classic),
        ),
    )


def _classic_metadata(classic: ClassicMember) -> Any:
    value = m.ConsumerGroupMemberMetadataValue
    return value.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[value.ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
    )


def target_epoch(group_id: str, epoch: int) -> GroupRecord:
    value = m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return GroupRecord(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_member(group_id: str, member_id: str, partitions: Assignment) -> GroupRecord:
    value = m.ConsumerGroupTargetAssignmentMemberValue
    return GroupRecord(
        m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        value(topic_partitions=topic_partitions(value.TopicPartition, partitions)),
    )


def current_member(group_id: str, member: ConsumerMember) -> GroupRecord:
    value = m.ConsumerGroupCurrentMemberAssignmentValue
    return GroupRecord(
        m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        value(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=int(member.state),
            assigned_partitions=topic_partitions(value.TopicPartitions, member.assigned),
            partitions_pending_revocation=topic_partitions(value.TopicPartitions, member.revoking),
        ),
    )


def regex_topics(group_id: str, regex: str, resolved: ResolvedRegex) -> GroupRecord:
    value = m.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return GroupRecord(m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    return [
        GroupRecord(key(group_id=group_id, member_id=member_id), None)
        for key in (
            m.ConsumerGroupCurrentMemberAssignmentKey,
            m.ConsumerGroupTargetAssignmentMemberKey,
            m.ConsumerGroupMemberMetadataKey,
        )
    ]


def regex_tombstone(group_id: str, regex: str) -> GroupRecord:
    return GroupRecord(m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def partition_metadata_tombstone(group_id: str) -> GroupRecord:
    return GroupRecord(m.ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def group_tombstones(group_id: str, member_ids: Iterable[str], regexes: Iterable[str]) -> list[GroupRecord]:
    members = list(member_ids)
    return [
        *(
            GroupRecord(key(group_id=group_id, member_id=each), None)
            for key in (m.ConsumerGroupCurrentMemberAssignmentKey, m.ConsumerGroupTargetAssignmentMemberKey)
            for each in members
        ),
        GroupRecord(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(GroupRecord(m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=each), None) for each in members),
        *(regex_tombstone(group_id, each) for each in regexes),
        partition_metadata_tombstone(group_id),
        GroupRecord(m.ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


def topic_partitions(structure: Any, partitions: Assignment) -> list[Any]:
    return [
        structure(topic_id=topic_id, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions, key=_order)
    ]


def _order(topic_id: UUID) -> bytes:
    return topic_id.bytes
