"""Records of KRaft's metadata log, such as `TopicRecord`, and of the tiered storage topic; each is a framed message.

    +----------------+-------------+-----------------+----------+
    | frame version  | record type | message version | message  |
    | 1              | its API key |                 | fields … |
    +----------------+-------------+-----------------+----------+

The three numbers are unsigned varints; in Kafka 4.2, each of them has one byte.

Invariant: a record that cannot be decoded completely is an error, because its change is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from enum import IntEnum
from functools import cache
from typing import Any

from sediment.segment_io.errors import CorruptBatchError, ProtocolError, UnsupportedDataError
from sediment.segment_io.format.names import METADATA_PARTITION
from sediment.segment_io.protocol import messages
from sediment.segment_io.protocol.json_converter import to_json
from sediment.segment_io.protocol.schema import message_lines

FRAME_VERSION = 1

CLUSTER_METADATA = METADATA_PARTITION.topic
REMOTE_LOG_METADATA = "__remote_log_metadata"

_COMPONENTS = {CLUSTER_METADATA: "metadata", REMOTE_LOG_METADATA: "storage"}
METADATA_TOPICS = frozenset(_COMPONENTS)

_INSIDE_NAME = re.compile(r"(?<!^)(?=[A-Z])")
_FRAME_BYTES = 3  # frame with three numbers of one byte each


class ResourceType(IntEnum):
    """The types of resources with dynamic configs (Kafka's ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


def decode_metadata_record(
    value: bytes | None, names: Container[str] | None = None, *, topic: str = CLUSTER_METADATA
) -> Any | None:
    """Return a record of one of METADATA_TOPICS, decoded from its value.

    Return None if the record's type is unknown or is not in `names`.

    Source: Kafka 4.2.0, MetadataRecordSerde and RemoteLogMetadataSerde (both extend AbstractApiMessageSerde).
    """
    if value is None or len(value) < _FRAME_BYTES:
        raise CorruptBatchError("a metadata record has no frame")
    frame_version, number, version = value[:_FRAME_BYTES]
    if frame_version != FRAME_VERSION:
        raise UnsupportedDataError(f"a metadata record's frame has version {frame_version}, not {FRAME_VERSION}")
    name = _record_types(topic).get(number)
    if name is None or (names is not None and name not in names):
        return None
    record_class = getattr(messages, name)
    if version not in record_class.VERSIONS:
        raise UnsupportedDataError(f"a {name} has version {version}, not {record_class.VERSIONS}")
    try:
        return record_class.decode(value[_FRAME_BYTES:], version)
    except ProtocolError as error:
        raise CorruptBatchError(f"a metadata record is malformed: {error.what}") from error


def record_type(value: bytes) -> int:
    if len(value) < _FRAME_BYTES:
        raise CorruptBatchError("a metadata record has no frame")
    return value[1]


def message_version(value: bytes) -> int:
    return value[_FRAME_BYTES - 1]


def encode_metadata_record(record: Any, version: int) -> bytes:
    return bytes((FRAME_VERSION, record.API_KEY, version)) + bytes(record.to_bytes(version))


def metadata_record_json(value: bytes, topic: str = CLUSTER_METADATA) -> dict[str, Any]:
    """Return a record of one of METADATA_TOPICS as `kafka-dump-log.sh --cluster-metadata-decoder` prints it."""
    record = decode_metadata_record(value, topic=topic)
    if record is None:
        raise UnsupportedDataError(f"metadata record type {value[1]} is unknown")
    kind = _INSIDE_NAME.sub("_", type(record).__name__).upper()
    return {"type": kind, "version": value[2], "data": to_json(record, value[2])}


@cache
def _record_types(topic: str) -> Mapping[int, str]:
    lines = (line for line in message_lines().values() if line.component == _COMPONENTS[topic])
    return {line.number: line.name for line in lines if line.number is not None}
