"""The records of KRaft's metadata log that name topics and set configs, as Kafka 4.2.0's message descriptions say.

A record's value is a frame, the numbers unsigned varints, around one flexible message:

    +----------------+-------------+-----------------+----------+
    | frame version  | record type | message version | message  |
    | 1              | 2 to 27     | 0               | fields … |
    +----------------+-------------+-----------------+----------+

Records in their order are the state; between a BeginTransaction and its EndTransaction they wait for it, and an
AbortTransaction drops them (KIP-868).

Invariant: records of other types are left out, whatever they hold; one of these types that is not understood whole is
an error, because what it would have changed is not known.
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

_FRAME_BYTES = 3  # of a frame whose three numbers take a byte each


class ResourceType(IntEnum):
    """What a config belongs to: Kafka's ConfigResource.Type, those that say something about logs."""

    TOPIC = 2
    BROKER = 4


class TransactionStep(StrEnum):
    """A record that begins or ends a metadata transaction."""

    BEGIN = "begin"
    END = "end"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created; `topic_id` has 22 characters."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic was deleted, and its configs with it."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A config was set, or removed where `value` is None; the resource of type BROKER named "" is all brokers."""

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
    """A record by its value; None where it is of a type that says nothing of topics' names or of configs.

    Raises:
        UnsupportedDataError: a frame or message version that a later Kafka brings.
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
        raise ValueError("a field is null that must not be")
    match number:
        case 2:
            return TopicRecord(found["name"], found["topicId"])
        case 4:
            return ConfigRecord(found["resourceType"], found["resourceName"], found["name"], found["value"])
        case 9:
            return RemoveTopicRecord(found["topicId"])
        case _:
            return _TRANSACTION_STEPS[number]
