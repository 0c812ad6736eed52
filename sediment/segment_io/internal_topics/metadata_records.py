"""Records of KRaft's metadata log that name topics and set configs, by Kafka 4.2.0's message descriptions.

A record's value is one flexible message in a frame; the numbers are unsigned varints:

    +----------------+-------------+-----------------+----------+
    | frame version  | record type | message version | message  |
    | 1              | 2 to 27     | 0               | fields … |
    +----------------+-------------+-----------------+----------+

Records are applied in order.  Records between a BeginTransaction and its EndTransaction are applied at the end; an
AbortTransaction drops them (KIP-868).

Invariant: records of other types are ignored.  If a record of these types cannot be decoded completely, this is an
error, because the change is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, TypeAlias

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.internal_topics.wire_format import Field, MessageDecoder, fields

FRAME_VERSION = 1
NEWEST_MESSAGE_VERSION = 0

_FRAME_BYTES = 3  # frame with three numbers of one byte each


class ResourceType(IntEnum):
    """Resource of a config: the types of Kafka's ConfigResource.Type that concern logs."""

    TOPIC = 2
    BROKER = 4


class TransactionStep(StrEnum):
    """Record that begins or ends a metadata transaction."""

    BEGIN = "begin"
    END = "end"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """Creation of a topic; `topic_id` has 22 characters."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """Deletion of a topic, and of its configs."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """Change of a config, or its removal if `value` is None; the BROKER named "" stands for all brokers."""

    resource_type: int
    resource_name: str
    key: str
    value: str | None


MetadataRecord: TypeAlias = TopicRecord | RemoveTopicRecord | ConfigRecord | TransactionStep

_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9
_TRANSACTION_STEPS = {23: TransactionStep.BEGIN, 24: TransactionStep.END, 25: TransactionStep.ABORT}
_DESCRIPTIONS: Mapping[int, tuple[Field, ...]] = {
    _TOPIC: fields("name:string topicId:uuid"),
    _CONFIG: fields("resourceType:i8 resourceName:string name:string value:string"),
    _REMOVE_TOPIC: fields("topicId:uuid"),
    **dict.fromkeys(_TRANSACTION_STEPS, ()),
}


def decode_metadata_record(value: bytes | None) -> MetadataRecord | None:
    """Return a record decoded from its value; None if its type concerns neither the names of topics nor configs.

    Raises:
        UnsupportedDataError: a newer Kafka wrote the frame or message.
        CorruptBatchError: the message contradicts its description.

    Source: Kafka 4.2.0, MetadataRecordSerde and common/metadata/*.json.
    """
    if value is None or len(value) < _FRAME_BYTES:
        raise CorruptBatchError("a metadata record has no frame")
    frame_version, number, message_version = value[:_FRAME_BYTES]
    if frame_version != FRAME_VERSION:
        raise UnsupportedDataError(f"a metadata record's frame has version {frame_version}, not {FRAME_VERSION}")
    if number not in _DESCRIPTIONS:
        return None
    if message_version > NEWEST_MESSAGE_VERSION:
        raise UnsupportedDataError(
            f"a metadata record of type {number} has version {message_version}, not {NEWEST_MESSAGE_VERSION}"
        )
    try:
        found = MessageDecoder(value, _FRAME_BYTES, message_version, flexible=True).whole(_DESCRIPTIONS[number])
        return _record(number, found)
    except (ValueError, struct.error) as error:
        raise CorruptBatchError(f"a metadata record of type {number} is malformed: {error}") from error


def _record(number: int, found: Mapping[str, Any]) -> MetadataRecord:
    if None in (value for name, value in found.items() if name != "value"):
        raise ValueError("a required field is null")
    match number:
        case 2:
            return TopicRecord(found["name"], found["topicId"])
        case 4:
            return ConfigRecord(found["resourceType"], found["resourceName"], found["name"], found["value"])
        case 9:
            return RemoveTopicRecord(found["topicId"])
        case _:
            return _TRANSACTION_STEPS[number]
