"""Decoder of records in `__consumer_offsets` and `__transaction_state`, and of transaction markers.

A key is `type i16 | fields`, a value `version i16 | fields`.  The fields of a type are described once for all its
versions, as in Kafka 4.2.0's own message descriptions (`wire_format`).

The result equals the output of Kafka's console consumer with its formatters: `{"type": …, "data": {…}}` for a key,
`{"version": …, "data": {…}}` for a value, bytes as base64, ids as 22 characters.

Invariant: a record is decoded completely or not at all.  It is not decoded if its type or version is unknown, or if it
has too few or too many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.format.layout import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_KEY_STRUCT,
    END_TXN_MARKER_STRUCT,
)
from sediment.segment_io.internal_topics.wire_format import Array, Field, MessageDecoder, Structure, fields

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
COORDINATOR_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})

_CONTROL_NAMES = {CONTROL_ABORT: "ABORT", CONTROL_COMMIT: "COMMIT"}
_VERSION = struct.Struct(">h")


# ------------------------------------------------------------------------------------------------------- descriptions
@dataclass(frozen=True, slots=True)
class _RecordType:
    """Record type: fields of key and value; `highest` is the last version, `flexible` the first flexible one."""

    name: str
    key: Sequence[Field]
    value: Sequence[Field]
    highest: int = 0
    flexible: int = 0


_NEVER = 1 << 15

_GROUP = fields("groupId:string")
_MEMBER = fields("groupId:string memberId:string")
_OFFSET = fields("group:string topic:string partition:i32")
_TOPIC_PARTITIONS = Array(Structure(fields("topicId:uuid partitions:[i32]")))
_NAMED_TOPIC_PARTITIONS = Array(Structure(fields("topicId:uuid topicName:string partitions:[i32]")))
_KEY_VALUES = Array(Structure(fields("key:string value:string")))
_TASKS = Array(Structure(fields("subtopologyId:string partitions:[i32]")))
_TASKS_OF_EPOCHS = Array(
    Structure((*fields("subtopologyId:string partitions:[i32]"), Field("assignmentEpochs", Array("i32"), tag=0)))
)
_ASSIGNED = (
    *fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
    Field("assignedPartitions", _TOPIC_PARTITIONS),
)
_STATE_TOPICS = Array(
    Structure((*fields("name:string partitions:i32 replicationFactor:i16"), Field("topicConfigs", _KEY_VALUES)))
)

_GROUP_RECORDS: Mapping[int, _RecordType] = {
    0: _RecordType(
        "LEGACY_OFFSET_COMMIT", _OFFSET, fields("offset:i64 metadata:string commitTimestamp:i64"), flexible=_NEVER
    ),
    1: _RecordType(
        "OFFSET_COMMIT",
        _OFFSET,
        (
            Field("offset", "i64"),
            Field("leaderEpoch", "i32", since=3),
            Field("metadata", "string"),
            Field("commitTimestamp", "i64"),
            Field("expireTimestamp", "i64", since=1, until=1),
            Field("topicId", "uuid", since=4, tag=0),
        ),
        highest=4,
        flexible=4,
    ),
    2: _RecordType(
        "GROUP_METADATA",
        fields("group:string"),
        (
            *fields("protocolType:string generation:i32 protocol:string leader:string"),
            Field("currentStateTimestamp", "i64", since=2),
            Field(
                "members",
                Array(
                    Structure(
                        (
                            Field("memberId", "string"),
                            Field("groupInstanceId", "string", since=3),
                            *fields("clientId:string clientHost:string"),
                            Field("rebalanceTimeout", "i32", since=1),
                            *fields("sessionTimeout:i32 subscription:bytes assignment:bytes"),
                        )
                    )
                ),
            ),
        ),
        highest=4,
        flexible=4,
    ),
    3: _RecordType("CONSUMER_GROUP_METADATA", _GROUP, (*fields("epoch:i32"), Field("metadataHash", "i64", tag=0))),
    4: _RecordType(
        "CONSUMER_GROUP_PARTITION_METADATA",
        _GROUP,
        (
            Field(
                "topics",
                Array(
                    Structure(
                        (
                            *fields("topicId:uuid topicName:string numPartitions:i32"),
                            Field("partitionMetadata", Array(Structure(fields("partition:i32 racks:[string]")))),
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
            *fields("instanceId:string rackId:string clientId:string clientHost:string"),
            *fields("subscribedTopicNames:[string] subscribedTopicRegex:string"),
            *fields("rebalanceTimeoutMs:i32 serverAssignor:string"),
            Field(
                "classicMemberMetadata",
                Structure(
                    (
                        Field("sessionTimeoutMs", "i32"),
                        Field("supportedProtocols", Array(Structure(fields("name:string metadata:bytes")))),
                    ),
                    nullable=True,
                ),
                tag=0,
            ),
        ),
    ),
    6: _RecordType("CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, fields("assignmentEpoch:i32")),
    7: _RecordType("CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER", _MEMBER, (Field("topicPartitions", _TOPIC_PARTITIONS),)),
    8: _RecordType(
        "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        (*_ASSIGNED, Field("partitionsPendingRevocation", _TOPIC_PARTITIONS)),
    ),
    10: _RecordType(
        "SHARE_GROUP_MEMBER_METADATA",
        _MEMBER,
        fields("rackId:string clientId:string clientHost:string subscribedTopicNames:[string]"),
    ),
    11: _RecordType("SHARE_GROUP_METADATA", _GROUP, fields("epoch:i32 metadataHash:i64")),
    12: _RecordType("SHARE_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, fields("assignmentEpoch:i32")),
    13: _RecordType("SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER", _MEMBER, (Field("topicPartitions", _TOPIC_PARTITIONS),)),
    14: _RecordType("SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT", _MEMBER, _ASSIGNED),
    15: _RecordType(
        "SHARE_GROUP_STATE_PARTITION_METADATA",
        _GROUP,
        (
            Field("initializingTopics", _NAMED_TOPIC_PARTITIONS),
            Field("initializedTopics", _NAMED_TOPIC_PARTITIONS),
            Field("deletingTopics", Array(Structure(fields("topicId:uuid topicName:string")))),
        ),
    ),
    16: _RecordType(
        "CONSUMER_GROUP_REGULAR_EXPRESSION",
        fields("groupId:string regularExpression:string"),
        fields("topics:[string] version:i64 timestamp:i64"),
    ),
    17: _RecordType(
        "STREAMS_GROUP_METADATA",
        _GROUP,
        (
            *fields("epoch:i32 metadataHash:i64"),
            Field("validatedTopologyEpoch", "i32", tag=0),
            Field("lastAssignmentConfigs", _KEY_VALUES, tag=1),
        ),
    ),
    19: _RecordType(
        "STREAMS_GROUP_MEMBER_METADATA",
        _MEMBER,
        (
            *fields("instanceId:string rackId:string clientId:string clientHost:string"),
            *fields("rebalanceTimeoutMs:i32 topologyEpoch:i32 processId:string"),
            Field("userEndpoint", Structure(fields("host:string port:u16"), nullable=True)),
            Field("clientTags", _KEY_VALUES),
        ),
    ),
    20: _RecordType("STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", _GROUP, fields("assignmentEpoch:i32")),
    21: _RecordType(
        "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
        _MEMBER,
        tuple(Field(name, _TASKS) for name in ("activeTasks", "standbyTasks", "warmupTasks")),
    ),
    22: _RecordType(
        "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        _MEMBER,
        (
            *fields("memberEpoch:i32 previousMemberEpoch:i32 state:i8"),
            *(
                Field(name + pending, _TASKS_OF_EPOCHS)
                for pending in ("", "PendingRevocation")
                for name in ("activeTasks", "standbyTasks", "warmupTasks")
            ),
        ),
    ),
    23: _RecordType(
        "STREAMS_GROUP_TOPOLOGY",
        _GROUP,
        (
            Field("epoch", "i32"),
            Field(
                "subtopologies",
                Array(
                    Structure(
                        (
                            *fields("subtopologyId:string sourceTopics:[string] sourceTopicRegex:[string]"),
                            Field("stateChangelogTopics", _STATE_TOPICS),
                            Field("repartitionSinkTopics", Array("string")),
                            Field("repartitionSourceTopics", _STATE_TOPICS),
                            Field(
                                "copartitionGroups",
                                Array(
                                    Structure(
                                        fields(
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
        fields("transactionalId:string"),
        (
            *fields("producerId:i64 producerEpoch:i16 transactionTimeoutMs:i32 transactionStatus:i8"),
            Field("transactionPartitions", Array(Structure(fields("topic:string partitionIds:[i32]")))),
            *fields("transactionLastUpdateTimestampMs:i64 transactionStartTimestampMs:i64"),
            Field("previousProducerId", "i64", since=1, tag=0),
            Field("nextProducerId", "i64", since=1, tag=1),
            Field("clientTransactionVersion", "i16", since=1, tag=2),
            Field("nextProducerEpoch", "i16", since=1, tag=3),
        ),
        highest=1,
        flexible=1,
    ),
}
_RECORD_TYPES = {CONSUMER_OFFSETS: _GROUP_RECORDS, TRANSACTION_STATE: _TRANSACTION_RECORDS}


# ------------------------------------------------------------------------------------------------------------ decoding
@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """Decoded record: `name` is Kafka's name of its type; `value` is None in a tombstone."""

    name: str
    key: dict[str, Any]
    value: dict[str, Any] | None


def decode_coordinator_record(topic: str, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record of one of COORDINATOR_TOPICS; return None if it is unknown or malformed."""
    if key is None:
        return None
    try:
        (number,) = _VERSION.unpack_from(key)
        described = _RECORD_TYPES[topic][number]
        data = MessageDecoder(key, _VERSION.size, 0, flexible=False).whole(described.key)
        decoded = None if value is None else _value(described, value)
    except (KeyError, ValueError, struct.error):
        return None
    return CoordinatorRecord(described.name, {"type": number, "data": data}, decoded)


def _value(described: _RecordType, value: bytes) -> dict[str, Any]:
    (version,) = _VERSION.unpack_from(value)
    if not 0 <= version <= described.highest:
        raise ValueError(version)
    decoder = MessageDecoder(value, _VERSION.size, version, flexible=version >= described.flexible)
    return {"version": version, "data": decoder.whole(described.value)}


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
