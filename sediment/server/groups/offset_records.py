"""Offset commit records of `__consumer_offsets`: their keys and values as bytes.

    key       version 1: group, topic, partition
    value     version 0 to 4: offset, leader epoch, metadata, time of the commit, topic id

Source: Kafka's GroupCoordinatorRecordHelpers and OffsetAndMetadata.fromRecord.
"""

from __future__ import annotations

from sediment.segment_io.protocol import messages as m
from sediment.server.coordinator_log import VERSION_BYTES
from sediment.server.groups.group_offsets import CommittedOffset

_VALUE_VERSION = 4


def encode_offset_commit(group_id: str, topic: str, partition: int, value: CommittedOffset) -> tuple[bytes, bytes]:
    """Return key and value of a record."""
    key = m.OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    message = m.OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        topic_id=value.topic_id,
    )
    return (
        m.OffsetCommitKey.API_KEY.to_bytes(VERSION_BYTES, "big") + key.to_bytes(0),
        _VALUE_VERSION.to_bytes(VERSION_BYTES, "big") + message.to_bytes(_VALUE_VERSION),
    )


def decode_offset_key(key: bytes) -> tuple[str, str, int]:
    """Return (group id, topic, partition) of a key.

    Raises:
        ProtocolError: it is malformed.
    """
    decoded = m.OffsetCommitKey.decode(key[VERSION_BYTES:], 0)
    return decoded.group, decoded.topic, decoded.partition


def decode_offset_value(value: bytes, record_offset: int) -> CommittedOffset:
    """Return the value of a record at `record_offset` of its log.

    Raises:
        ProtocolError: it is malformed, or of an unknown version.
    """
    version = int.from_bytes(value[:VERSION_BYTES], "big", signed=True)
    decoded = m.OffsetCommitValue.decode(value[VERSION_BYTES:], version)
    return CommittedOffset(
        offset=decoded.offset,
        leader_epoch=decoded.leader_epoch,
        metadata=decoded.metadata,
        commit_timestamp_ms=decoded.commit_timestamp,
        topic_id=decoded.topic_id,
        record_offset=record_offset,
    )
