"""Records of `__consumer_offsets`: committed offsets, and groups with their members.

Source: Kafka's GroupCoordinatorRecordHelpers and OffsetAndMetadata.fromRecord.
"""

from __future__ import annotations

from typing import Any

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.internal_topics.coordinator_records import encode_coordinator_key, encode_coordinator_value
from sediment.segment_io.protocol import messages as m
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.group_requests import StableGroup, StoredMember

_Value = m.OffsetCommitValue
_VERSION_BYTES = 2
_LEGACY = m.LegacyOffsetCommitValue.API_KEY
_VALUE_VERSION = 4  # the first version with a topic id
_GROUP_VERSION = 3  # the version that brokers write


def encode_offset_commit(group_id: str, topic: str, partition: int, value: CommittedOffset) -> tuple[bytes, bytes]:
    key = m.OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    message = m.OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        topic_id=value.topic_id,
    )
    return encode_coordinator_key(key), encode_coordinator_value(message, _VALUE_VERSION)


def offset_tombstone(group_id: str, topic: str, partition: int) -> bytes:
    return encode_coordinator_key(m.OffsetCommitKey(group=group_id, topic=topic, partition=partition))


def group_tombstone(group_id: str) -> bytes:
    return encode_coordinator_key(m.GroupMetadataKey(group=group_id))


def encode_group(group_id: str, group: StableGroup, now_ms: int) -> tuple[bytes, bytes]:
    value = m.GroupMetadataValue
    message = value(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=now_ms,
        members=[
            value.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return group_tombstone(group_id), encode_coordinator_value(message, _GROUP_VERSION)


def stable_group(value: Any) -> StableGroup:
    return StableGroup(
        value.generation,
        value.protocol_type,
        value.protocol,
        value.leader,
        tuple(
            StoredMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout,
                each.rebalance_timeout if each.rebalance_timeout >= 0 else each.session_timeout,
                bytes(each.subscription),
                bytes(each.assignment),
            )
            for each in value.members
        ),
    )


def decode_committed_offset(value: bytes, record_offset: int) -> CommittedOffset | None:
    version = int.from_bytes(value[:_VERSION_BYTES], "big", signed=True)
    try:
        found = _Value.decode(value[_VERSION_BYTES:], version)
    except ProtocolError:
        return None
    # The key is parsed by position for speed, because a directory may contain a million such records.
    return CommittedOffset(
        found.offset, found.leader_epoch, found.metadata, found.commit_timestamp, found.topic_id, record_offset
    )


def committed_offset(value: Any, record_offset: int) -> CommittedOffset:
    if value.API_KEY == _LEGACY:
        return CommittedOffset(
            offset=value.offset,
            metadata=value.metadata,
            commit_timestamp_ms=value.commit_timestamp,
            record_offset=record_offset,
        )
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        topic_id=value.topic_id,
        record_offset=record_offset,
    )
