"""Records of the coordinators' topics, and transaction markers.

    key      type i16 | fields of the type's key schema
    value    version i16 | fields of the type's value schema in that version

The JSON form of a record equals the output of Kafka's console consumer with Kafka's formatters.  A key is `{"type": …,
"data": {…}}`, and a value is `{"version": …, "data": {…}}`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.format.control_records import CONTROL_KEY_STRUCT, END_TXN_MARKER_STRUCT
from sediment.segment_io.format.layout import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
)
from sediment.segment_io.protocol import messages
from sediment.segment_io.protocol.json_converter import to_json
from sediment.segment_io.protocol.message import Message
from sediment.segment_io.protocol.schema import message_lines, snake_case

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"

_COMPONENTS = {
    CONSUMER_OFFSETS: "group-coordinator",
    TRANSACTION_STATE: "transaction-coordinator",
    SHARE_GROUP_STATE: "share-coordinator",
}
COORDINATOR_TOPICS = frozenset(_COMPONENTS)

_CONTROL_NAMES = {CONTROL_ABORT: "ABORT", CONTROL_COMMIT: "COMMIT"}
_NUMBER = struct.Struct(">h")
_KEY_VERSION = 0
_KEY, _VALUE = "Key", "Value"


class CoordinatorRecord(NamedTuple):
    """`name` is Kafka's name of the record's type, such as `OFFSET_COMMIT`.

    `value` and `value_version` are None in a tombstone.
    """

    name: str
    key: Any
    value: Any | None
    value_version: int | None

    def key_json(self) -> dict[str, Any]:
        return {"type": self.key.API_KEY, "data": to_json(self.key, _KEY_VERSION)}

    def value_json(self) -> dict[str, Any] | None:
        if self.value is None or self.value_version is None:
            return None
        return {"version": self.value_version, "data": to_json(self.value, self.value_version)}


def decode_coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    if key is None or topic not in _COMPONENTS:
        return None
    try:
        (number,) = _NUMBER.unpack_from(key)
        name, key_type, value_type = _record_types(topic)[number]
        key_message = key_type.decode(key[_NUMBER.size :], _KEY_VERSION)
        value_message = value_version = None
        if value is not None:
            (value_version,) = _NUMBER.unpack_from(value)
            value_message = value_type.decode(value[_NUMBER.size :], value_version)
    # A record is not decoded if its type or version is unknown, or if it has too few or too many bytes.
    except (KeyError, ProtocolError, struct.error):
        return None
    return CoordinatorRecord(name, key_message, value_message, value_version)


def coordinator_record_type(key: bytes) -> int | None:
    return int.from_bytes(key[: _NUMBER.size], "big", signed=True) if len(key) >= _NUMBER.size else None


def encode_coordinator_key(key: Any) -> bytes:
    return _NUMBER.pack(key.API_KEY) + bytes(key.to_bytes(_KEY_VERSION))


def encode_coordinator_value(value: Any, version: int) -> bytes:
    return _NUMBER.pack(version) + bytes(value.to_bytes(version))


@cache
def _record_types(topic: str) -> Mapping[int, tuple[str, type[Message], type[Message]]]:
    keys = (line for line in message_lines().values() if line.kind == "coordinator-key")
    prefixes = {
        line.number: line.name.removesuffix(_KEY)
        for line in keys
        if line.component == _COMPONENTS[topic] and line.number is not None
    }
    return {
        number: (snake_case(prefix).upper(), getattr(messages, prefix + _KEY), getattr(messages, prefix + _VALUE))
        for number, prefix in prefixes.items()
    }


def decode_control_record(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Return a transaction marker as `type` and `coordinatorEpoch`; None for any other control record.

    Source: kafka-log 01 §4.
    """
    try:
        version, number = CONTROL_KEY_STRUCT.unpack_from(key or b"")
        name = _CONTROL_NAMES.get(number)
        _, coordinator_epoch = END_TXN_MARKER_STRUCT.unpack_from(value or b"")
    except struct.error:
        return None
    return None if version < 0 or name is None else {"type": name, "coordinatorEpoch": coordinator_epoch}
