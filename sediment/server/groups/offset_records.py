"""Conversion between committed offsets and the offset commit records of `__consumer_offsets`.

Source: Kafka's GroupCoordinatorRecordHelpers and OffsetAndMetadata.fromRecord.
"""

from __future__ import annotations

from typing import Any

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.internal_topics.coordinator_records import encode_coordinator_key, encode_coordinator_value
from sediment.segment_io.protocol import messages as m
from sediment.server.groups.group_offsets import CommittedOffset

_Value = m.OffsetCommitValue
_VERSION_BYTES = 2
_LEGACY = m.LegacyOffsetCommitValue.API_KEY
_VALUE_VERSION = 4  # the first version with a topic id


def encode_offset_commit(group_id: str, topic: str, partition: int, value: CommittedOffset) -> tuple[bytes, bytes]:
    """Return the key and the value of a record."""
    key = m.OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    message = m.OffsetCommitValue(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_timestamp_ms,
        topic_id=value.topic_id,
    )
    return encode_coordinator_key(key), encode_coordinator_value(message, _VALUE_VERSION)


def decode_committed_offset(value: bytes, record_offset: int) -> CommittedOffset | None:
    """Return the offset in the value of an OffsetCommit record; None if it cannot be decoded."""
    version = int.from_bytes(value[:_VERSION_BYTES], "big", signed=True)
    try:
        found = _Value.decode(value[_VERSION_BYTES:], version)
    except ProtocolError:
        return None
    # Parsed by position for speed, because a directory may contain a million such records.
    return CommittedOffset(
        found.offset, found.leader_epoch, found.metadata, found.commit_timestamp, found.topic_id, record_offset
    )


def committed_offset(value: Any, record_offset: int) -> CommittedOffset:
    """Return the offset in an OffsetCommitValue or LegacyOffsetCommitValue whose record is at `record_offset`."""
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
