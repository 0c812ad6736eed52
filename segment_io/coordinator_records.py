"""What coordinators keep in `__consumer_offsets` and `__transaction_state`, and what control records say.

A key is `type i16 | fields`, a value `version i16 | fields`; the fields of a type are described once for all its
versions, as in Kafka 4.2.0's own message descriptions.  From the first flexible version on, strings, bytes and arrays
have unsigned varint lengths plus one, and each structure ends with tagged fields.

The result is what Kafka's console consumer prints with its formatters: `{"type": …, "data": {…}}` for a key,
`{"version": …, "data": {…}}` for a value; bytes as base64, ids as 22 characters.

Invariant: what is not understood whole is not decoded: an unknown type or version, bytes that end early or go on.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.checkpoints import format_uuid
from sediment.segment_io.format import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_KEY_STRUCT,
    END_TXN_MARKER_STRUCT,
)

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
COORDINATOR_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})

_CONTROL_NAMES = {CONTROL_ABORT: "ABORT", CONTROL_COMMIT: "COMMIT"}
_VERSION = struct.Struct(">h")
_PRESENT = 1


# ------------------------------------------------------------------------------------------------------- descriptions
@dataclass(frozen=True, slots=True)
class _Structure:
    """Fields in wire order; with `nullable` a byte before them is _PRESENT if they are there."""

    fields: Sequence[_Field]
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class _Array:
    of: _Type


_Type = str | _Structure | _Array


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of versions `since` to `until`; with `tag` it is a tagged field."""

    name: str
    type: _Type
    since: int = 0
    until: int = 1 << 15
    tag: int | None = None


@dataclass(frozen=True, slots=True)
class _RecordType:
    """A record: its key's fields, and its value's up to version `highest`, flexible from `flexible` on."""

    name: str
    key: Sequence[_Field]
    value: Sequence[_Field]
    highest: int = 0
    flexible: int = 0


_NUMBERS = {
    name: struct.Struct(f">{code}") for name, code in zip(("i8", "i16", "i32", "i64", "u16"), "bhiqH", strict=True)
}
_NEVER = 1 << 15


def _fields(text: str) -> tuple[_Field, ...]:
    """`name:type` of fields that every version has, separated by spaces; `[type]` is an array."""
    pairs = (pair.split(":") for pair in text.split())
    return tuple(_Field(name, _Array(kind[1:-1]) if kind.startswith("[") else kind) for name, kind in pairs)


_GROUP = _fields("groupId:string")
_MEMBER = _fields("groupId:string memberId:string")
_OFFSET = _fields("group:string topic:string partition:i32")
_TOPIC_PARTITIONS = _Array(_Structure(_fields("topicId:uuid partitions:[i32]")))
_NAMED_TOPIC_PARTITIONS = _Array(_Structure(_fields("topicId:uuid topicName:string partitions:[i32]")))
_KEY_VALUES = _Array(_Structure(_fields("key:string value:string")))
_TASKS = _Array(_Structure(_fields("subtopologyId:string partitions:[i32]")))
_TASKS_OF_EPOCHS = _Array(
    _Structure((*_fields("subtopologyId:string partitions:[i32]"), _Field("assignmentEpochs", _Array("i32"), tag=0)))
)
_ASSIGNED = (
    *_fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
    _Field("assignedPartitions", _TOPIC_PARTITIONS),
)
_STATE_TOPICS = _Array(
    _Structure((*_fields("name:string partitions:i32 replicationFactor:i16"), _Field("topicConfigs", _KEY_VALUES)))
)

_GROUP_RECORDS: Mapping[int, _RecordType] = {
    0: _RecordType(
        "LEGACY_OFFSET_COMMIT", _OFFSET, _fields("offset:i64 metadata:string commitTimestamp:i64"), flexible=_NEVER
    ),
    1: _RecordType(
        "OFFSET_COMMIT",
        _OFFSET,
        (
            _Field("offset", "i64"),
            _Field("leaderEpoch", "i32", since=3),
            _Field("metadata", "string"),
            _Field("commitTimestamp", "i64"),
            _Field("expireTimestamp", "i64", since=1, until=1),
            _Field("topicId", "uuid", since=4, tag=0),
        ),
        highest=4,
        flexible=4,
    ),
    2: _RecordType(
        "GROUP_METADATA",
        _fields("group:string"),
        (
            *_fields("protocolType:string generation:i32 protocol:string leader:string"),
            _Field("currentStateTimestamp", "i64", since=2),
            _Field(
                "members",
                _Array(
                    _Structure(
                        (
                            _Field("memberId", "string"),
                            _Field("groupInstanceId", "string", since=3),
                            *_fields("clientId:string clientHost:string"),
                            _Field("rebalanceTimeout", "i32", since=1),
                            *_fields("sessionTimeout:i32 subscription:bytes assignment:bytes"),
                        )
                    )
                ),
            ),
        ),
        highest=4,
        flexible=4,
    ),
    3: _RecordType("CONSUMER_GROUP_METADATA", _GROUP, (*_fields("epoch:i32"), _Field("metadataHash", "i64", tag=0))),
    4: _RecordType(
        "CONSUMER_GROUP_PARTITION_METADATA",
        _GROUP,
        (
            _Field(
                "topics",
                _Array(
                    _Structure(
                        (
                            *_fields("topicId:uuid topicName:string numPartitions:i32"),
                            _Field("partitionMetadata", _Array(_Structure(_fields("partition:i32 racks:[string]")))),
                        )
                    )
                ),
            ),
        ),
    ),
    5: _RecordType(
        "CONSUMER_GROUP_MEMBER_METADATA",
        _MEMBER,
        (
            *_fields("instanceId:string rackId:string clientId:string clientHost:string"),
            *_fields("subscribedTopicNames:[string] subscribedTopicRegex:string"),
            *_fields("rebalanceTimeoutMs:i32 serverAssignor:string"),
            _Field(
                "classicMemberMetadata",
                _Structure(
                    (
                        _Field("sessionTimeoutMs", "i32"),
                        _Field("supportedProtocols", _Array(_Structure(_fields("name:string metadata:bytes")))),
                    ),
                    nullable=True,
                ),
                tag=0,
            ),
        ),
    ),
    6: _RecordType("CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, _fields("assignmentEpoch:i32")),
    7: _RecordType("CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER", _MEMBER, (_Field("topicPartitions", _TOPIC_PARTITIONS),)),
    8: _RecordType(
        "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        (*_ASSIGNED, _Field("partitionsPendingRevocation", _TOPIC_PARTITIONS)),
    ),
    10: _RecordType(
        "SHARE_GROUP_MEMBER_METADATA",
        _MEMBER,
        _fields("rackId:string clientId:string clientHost:string subscribedTopicNames:[string]"),
    ),
    11: _RecordType("SHARE_GROUP_METADATA", _GROUP, _fields("epoch:i32 metadataHash:i64")),
    12: _RecordType("SHARE_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, _fields("assignmentEpoch:i32")),
    13: _RecordType("SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER", _MEMBER, (_Field("topicPartitions", _TOPIC_PARTITIONS),)),
    14: _RecordType("SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT", _MEMBER, _ASSIGNED),
    15: _RecordType(
        "SHARE_GROUP_STATE_PARTITION_METADATA",
        _GROUP,
        (
            _Field("initializingTopics", _NAMED_TOPIC_PARTITIONS),
            _Field("initializedTopics", _NAMED_TOPIC_PARTITIONS),
            _Field("deletingTopics", _Array(_Structure(_fields("topicId:uuid topicName:string")))),
        ),
    ),
    16: _RecordType(
        "CONSUMER_GROUP_REGULAR_EXPRESSION",
        _fields("groupId:string regularExpression:string"),
        _fields("topics:[string] version:i64 timestamp:i64"),
    ),
    17: _RecordType(
        "STREAMS_GROUP_METADATA",
        _GROUP,
        (
            *_fields("epoch:i32 metadataHash:i64"),
            _Field("validatedTopologyEpoch", "i32", tag=0),
            _Field("lastAssignmentConfigs", _KEY_VALUES, tag=1),
        ),
    ),
    19: _RecordType(
        "STREAMS_GROUP_MEMBER_METADATA",
        _MEMBER,
        (
            *_fields("instanceId:string rackId:string clientId:string clientHost:string"),
            *_fields("rebalanceTimeoutMs:i32 topologyEpoch:i32 processId:string"),
            _Field("userEndpoint", _Structure(_fields("host:string port:u16"), nullable=True)),
            _Field("clientTags", _KEY_VALUES),
        ),
    ),
    20: _RecordType("STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, _fields("assignmentEpoch:i32")),
    21: _RecordType(
        "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
        _MEMBER,
        tuple(_Field(name, _TASKS) for name in ("activeTasks", "standbyTasks", "warmupTasks")),
    ),
    22: _RecordType(
        "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        (
            *_fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
            *(
                _Field(name + pending, _TASKS_OF_EPOCHS)
                for pending in ("", "PendingRevocation")
                for name in ("activeTasks", "standbyTasks", "warmupTasks")
            ),
        ),
    ),
    23: _RecordType(
        "STREAMS_GROUP_TOPOLOGY",
        _GROUP,
        (
            _Field("epoch", "i32"),
            _Field(
                "subtopologies",
                _Array(
                    _Structure(
                        (
                            *_fields("subtopologyId:string sourceTopics:[string] sourceTopicRegex:[string]"),
                            _Field("stateChangelogTopics", _STATE_TOPICS),
                            _Field("repartitionSinkTopics", _Array("string")),
                            _Field("repartitionSourceTopics", _STATE_TOPICS),
                            _Field(
                                "copartitionGroups",
                                _Array(
                                    _Structure(
                                        _fields(
                                            "sourceTopics:[i16] sourceTopicRegex:[i16] repartitionSourceTopics:[i16]"
                                        )
                                    )
                                ),
                            ),
                        )
                    )
                ),
            ),
        ),
    ),
}
_TRANSACTION_RECORDS: Mapping[int, _RecordType] = {
    0: _RecordType(
        "TRANSACTION_LOG",
        _fields("transactionalId:string"),
        (
            *_fields("producerId:i64 producerEpoch:i16 transactionTimeoutMs:i32 transactionStatus:i8"),
            _Field("transactionPartitions", _Array(_Structure(_fields("topic:string partitionIds:[i32]")))),
            *_fields("transactionLastUpdateTimestampMs:i64 transactionStartTimestampMs:i64"),
            _Field("previousProducerId", "i64", since=1, tag=0),
            _Field("nextProducerId", "i64", since=1, tag=1),
            _Field("clientTransactionVersion", "i16", since=1, tag=2),
            _Field("nextProducerEpoch", "i16", since=1, tag=3),
        ),
        highest=1,
        flexible=1,
    ),
}
_RECORD_TYPES = {CONSUMER_OFFSETS: _GROUP_RECORDS, TRANSACTION_STATE: _TRANSACTION_RECORDS}


# ------------------------------------------------------------------------------------------------------------ decoding
@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A decoded record: `name` is Kafka's for its type; `value` is None in a tombstone."""

    name: str
    key: dict[str, Any]
    value: dict[str, Any] | None


def decode_coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """A record of one of COORDINATOR_TOPICS; None where it is not understood."""
    if key is None:
        return None
    try:
        (number,) = _VERSION.unpack_from(key)
        described = _RECORD_TYPES[topic][number]
        data = _Decoder(key, _VERSION.size, 0, flexible=False).whole(described.key)
        decoded = None if value is None else _value(described, value)
    except (KeyError, ValueError, struct.error):
        return None
    return CoordinatorRecord(described.name, {"type": number, "data": data}, decoded)


def _value(described: _RecordType, value: bytes) -> dict[str, Any]:
    (version,) = _VERSION.unpack_from(value)
    if not 0 <= version <= described.highest:
        raise ValueError(version)
    decoder = _Decoder(value, _VERSION.size, version, flexible=version >= described.flexible)
    return {"version": version, "data": decoder.whole(described.value)}


def decode_control_record(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """A transaction marker as `type` and `coordinatorEpoch`; None for any other control record.

    Source: kafka-log 01 §4.
    """
    try:
        version, number = CONTROL_KEY_STRUCT.unpack_from(key or b"")
        name = _CONTROL_NAMES.get(number)
        _, coordinator_epoch = END_TXN_MARKER_STRUCT.unpack_from(value or b"")
    except struct.error:
        return None
    return None if version < 0 or name is None else {"type": name, "coordinatorEpoch": coordinator_epoch}


class _Decoder:
    """Reads fields of one message; ValueError or struct.error where it ends early."""

    def __init__(self, data: bytes, position: int, version: int, *, flexible: bool) -> None:
        self._data = data
        self._at = position
        self._version = version
        self._flexible = flexible

    def whole(self, fields: Sequence[_Field]) -> dict[str, Any]:
        """The structure that the rest of the message is."""
        found = self._structure(fields)
        if self._at != len(self._data):
            raise ValueError("bytes remain")
        return found

    def _structure(self, fields: Sequence[_Field]) -> dict[str, Any]:
        present = [field for field in fields if field.since <= self._version <= field.until]
        found = {field.name: self._read(field.type) for field in present if field.tag is None}
        if self._flexible:
            tagged = {field.tag: field for field in present if field.tag is not None}
            for _ in range(self._varint()):
                tag, size = self._varint(), self._varint()
                content = self._take(size)
                if tag in tagged:
                    inner = _Decoder(content, 0, self._version, flexible=True)
                    found[tagged[tag].name] = inner._read(tagged[tag].type)
        return found

    def _read(self, kind: _Type) -> Any:
        if isinstance(kind, _Structure):
            if kind.nullable and self._number("i8") != _PRESENT:
                return None
            return self._structure(kind.fields)
        if isinstance(kind, _Array):
            length = self._length("i32")
            if length is None:
                return None
            if length > len(self._data) - self._at:
                raise ValueError("an array is longer than its message")
            return [self._read(kind.of) for _ in range(length)]
        if kind in _NUMBERS:
            return self._number(kind)
        if kind == "uuid":
            return format_uuid(self._take(16))
        length = self._length("i16" if kind == "string" else "i32")
        if length is None:
            return None
        content = self._take(length)
        return content.decode() if kind == "string" else base64.b64encode(content).decode("ascii")

    def _length(self, plain: str) -> int | None:
        length = self._varint() - 1 if self._flexible else self._number(plain)
        return None if length < 0 else length

    def _number(self, kind: str) -> int:
        layout = _NUMBERS[kind]
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def _varint(self) -> int:
        value = shift = 0
        while shift < 35:
            (byte,) = self._take(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a varint is longer than five bytes")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("the message ends early")
        self._at += count
        return taken
