"""The table of Kafka's configuration keys for logs (kafka-log 06 §1 to §5).

A topic key has one or more broker keys. The first of these broker keys that is set gives the topic key its default, in
the unit of that broker key. Types, defaults and ranges are those of Kafka 4.2.0's ConfigDefs; `warn_below` and comments
mark the exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

Value: TypeAlias = int | float | bool | str | tuple[str, ...]

DOUBLE_MAX = 1.7976931348623157e308
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_MIB = 1024 * 1024


class ValueType(StrEnum):
    """The types of values, as Kafka parses them."""

    INT = "a whole number of 32 bits"
    LONG = "a whole number of 64 bits"
    DOUBLE = "a number"
    BOOLEAN = "true or false"
    STRING = "a word"
    LIST = "a comma separated list"


_WHOLE_NUMBER = re.compile(r"([+-]?)0*([0-9]{1,19})")  # a 64-bit number has at most 19 digits
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"\s*,\s*")
_INT_BOUNDS = {ValueType.INT: INT32_MAX, ValueType.LONG: INT64_MAX}


def read_value(kind: ValueType, text: str) -> Value | None:
    """Return the value of `text` as Kafka parses it; None if Kafka refuses the text for this type.

    Source: Kafka's ConfigDef.parseType; a list keeps only the first of equal elements (KIP-1161).
    """
    text = text.strip()
    match kind:
        case ValueType.INT | ValueType.LONG:
            number = _WHOLE_NUMBER.fullmatch(text)
            whole = None if number is None else int(number[1] + number[2])
            bound = _INT_BOUNDS[kind]
            return whole if whole is not None and -bound - 1 <= whole <= bound else None
        case ValueType.DOUBLE:
            return float(text) if _NUMBER.fullmatch(text) else None
        case ValueType.BOOLEAN:
            return {"true": True, "false": False}.get(text.lower())
        case ValueType.STRING:
            return text
        case ValueType.LIST:
            return tuple(dict.fromkeys(_COMMA.split(text))) if text else ()


def value_text(value: Value | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _double_text(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _double_text(value: float) -> str:
    """Return a number as Java's Double.toString does."""
    if value == 0 or _PLAIN[0] <= abs(value) < _PLAIN[1]:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, rest = digits[0], "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{first}.{rest}E{exponent + len(digits) - 1}"


_PLAIN = (1e-3, 1e7)


@dataclass(frozen=True, slots=True)
class BrokerName:
    """A value with a unit is converted to milliseconds; a negative value becomes -1."""

    name: str
    unit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key with its type, its default (None if unset) and its range, which includes both ends."""

    name: str
    type: ValueType
    default: Value | None
    at_least: float | None = None
    at_most: float | None = None
    refused: tuple[float, ...] = ()
    one_of: tuple[str, ...] = ()
    warn_below: int | None = None
    """Sediment accepts values below this number with a warning; Kafka would refuse them."""

    broker_names: tuple[BrokerName, ...] = ()
    """The broker keys that set a topic key's default, highest priority first."""

    aliases: tuple[str, ...] = ()
    """Other names of a topic key, which override `name`."""

    applies: bool = True
    """True if the value has an effect in Sediment."""

    def range_text(self) -> str:
        if self.one_of:
            return f"{self.type} of {', '.join(self.one_of)}"
        bounds = [f"at least {self.at_least}"] if self.at_least is not None else []
        bounds += [f"at most {self.at_most}"] if self.at_most is not None else []
        bounds += [f"not {number}" for number in self.refused]
        return ", ".join([str(self.type), *bounds])


_INT, _LONG, _DOUBLE = ValueType.INT, ValueType.LONG, ValueType.DOUBLE
_BOOLEAN, _STRING, _LIST = ValueType.BOOLEAN, ValueType.STRING, ValueType.LIST

_POLICIES = ("compact", "delete")
_COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
MIN_SEGMENT_BYTES = _MIB
"""The smallest segment.bytes since Kafka 4.0; before, it was 14."""

# Kafka accepts a limit of 4 bytes, but then fails to create the time index, whose entries have 12 bytes (06 §1).
_MIN_INDEX_BYTES = 12


def _from(*names: str) -> tuple[BrokerName, ...]:
    return tuple(BrokerName(name) for name in names)


def _by_name(keys: Iterable[Key]) -> Mapping[str, Key]:
    return MappingProxyType({key.name: key for key in keys})


# fmt: off
TOPIC_KEYS: Mapping[str, Key] = _by_name((
    Key("cleanup.policy", _LIST, ("delete",), one_of=_POLICIES, broker_names=_from("log.cleanup.policy")),
    Key("compression.type", _STRING, "producer", one_of=_COMPRESSIONS, broker_names=_from("compression.type")),
    Key("compression.gzip.level", _INT, -1, -1, 9, refused=(0,), broker_names=_from("compression.gzip.level")),
    Key("compression.lz4.level", _INT, 9, 1, 17, broker_names=_from("compression.lz4.level")),
    Key("compression.zstd.level", _INT, 3, -131072, 22, broker_names=_from("compression.zstd.level")),
    Key("delete.retention.ms", _LONG, _DAY_MS, 0, broker_names=_from("log.cleaner.delete.retention.ms")),
    Key("file.delete.delay.ms", _LONG, _MINUTE_MS, 0, broker_names=_from("log.segment.delete.delay.ms")),
    Key("flush.messages", _LONG, INT64_MAX, 1, broker_names=_from("log.flush.interval.messages")),
    Key("flush.ms", _LONG, INT64_MAX, 0,
        broker_names=_from("log.flush.interval.ms", "log.flush.scheduler.interval.ms")),
    Key("index.interval.bytes", _INT, 4096, 0, broker_names=_from("log.index.interval.bytes")),
    Key("max.compaction.lag.ms", _LONG, INT64_MAX, 1, broker_names=_from("log.cleaner.max.compaction.lag.ms")),
    Key("max.message.bytes", _INT, 1_048_588, 0, broker_names=_from("message.max.bytes")),
    Key("message.timestamp.type", _STRING, "CreateTime", one_of=_TIMESTAMP_TYPES,
        broker_names=_from("log.message.timestamp.type")),
    Key("message.timestamp.before.max.ms", _LONG, INT64_MAX, 0,
        broker_names=_from("log.message.timestamp.before.max.ms")),
    Key("message.timestamp.after.max.ms", _LONG, _HOUR_MS, 0,
        broker_names=_from("log.message.timestamp.after.max.ms")),
    Key("min.cleanable.dirty.ratio", _DOUBLE, 0.5, 0, 1, broker_names=_from("log.cleaner.min.cleanable.ratio")),
    Key("min.compaction.lag.ms", _LONG, 0, 0, broker_names=_from("log.cleaner.min.compaction.lag.ms")),
    Key("min.insync.replicas", _INT, 1, 1, broker_names=_from("min.insync.replicas"), applies=False),
    Key("preallocate", _BOOLEAN, False, broker_names=_from("log.preallocate")),
    Key("retention.bytes", _LONG, -1, broker_names=_from("log.retention.bytes")),
    Key("retention.ms", _LONG, 7 * _DAY_MS, -1, broker_names=(
        BrokerName("log.retention.ms", 1),
        BrokerName("log.retention.minutes", _MINUTE_MS),
        BrokerName("log.retention.hours", _HOUR_MS))),
    Key("segment.bytes", _INT, 1024 * _MIB, 1, warn_below=MIN_SEGMENT_BYTES, broker_names=_from("log.segment.bytes"),
        aliases=("internal.segment.bytes",)),
    Key("internal.segment.bytes", _INT, None, 1, warn_below=MIN_SEGMENT_BYTES),
    Key("segment.index.bytes", _INT, 10 * _MIB, _MIN_INDEX_BYTES, broker_names=_from("log.index.size.max.bytes")),
    Key("segment.jitter.ms", _LONG, 0, 0, broker_names=(
        BrokerName("log.roll.jitter.ms", 1),
        BrokerName("log.roll.jitter.hours", _HOUR_MS))),
    Key("segment.ms", _LONG, 7 * _DAY_MS, 1, broker_names=(
        BrokerName("log.roll.ms", 1),
        BrokerName("log.roll.hours", _HOUR_MS))),
    Key("unclean.leader.election.enable", _BOOLEAN, False, broker_names=_from("unclean.leader.election.enable"),
        applies=False),
    Key("leader.replication.throttled.replicas", _LIST, (), applies=False),
    Key("follower.replication.throttled.replicas", _LIST, (), applies=False),
    Key("remote.storage.enable", _BOOLEAN, False),
    Key("remote.log.copy.disable", _BOOLEAN, False),
    Key("remote.log.delete.on.disable", _BOOLEAN, False, applies=False),
    Key("local.retention.ms", _LONG, -2, -2, broker_names=_from("log.local.retention.ms")),
    Key("local.retention.bytes", _LONG, -2, -2, broker_names=_from("log.local.retention.bytes")),
))

BROKER_KEYS: Mapping[str, Key] = _by_name((
    # Defaults of topic keys (06 §1, third column).
    Key("compression.type", _STRING, "producer", one_of=_COMPRESSIONS),
    Key("compression.gzip.level", _INT, -1, -1, 9, refused=(0,)),
    Key("compression.lz4.level", _INT, 9, 1, 17),
    Key("compression.zstd.level", _INT, 3, -131072, 22),
    Key("log.cleanup.policy", _LIST, ("delete",), one_of=_POLICIES),
    Key("log.local.retention.bytes", _LONG, -2, -2),
    Key("log.local.retention.ms", _LONG, -2, -2),
    Key("log.message.timestamp.after.max.ms", _LONG, _HOUR_MS, 0),
    Key("log.message.timestamp.before.max.ms", _LONG, INT64_MAX, 0),
    Key("log.message.timestamp.type", _STRING, "CreateTime", one_of=_TIMESTAMP_TYPES),
    Key("min.insync.replicas", _INT, 1, 1, applies=False),
    Key("unclean.leader.election.enable", _BOOLEAN, False, applies=False),
    # Log directories, rolling, retention, flushing (06 §2).
    Key("log.dir", _LIST, None, applies=False),
    Key("log.dirs", _LIST, None, applies=False),
    Key("metadata.log.dir", _STRING, None, applies=False),
    Key("log.roll.hours", _INT, 168, 1),
    Key("log.roll.ms", _LONG, None, 1),
    Key("log.roll.jitter.hours", _INT, 0, 0),
    Key("log.roll.jitter.ms", _LONG, None, 0),
    Key("log.retention.hours", _INT, 168, refused=(0,)),
    Key("log.retention.minutes", _INT, None, refused=(0,)),
    Key("log.retention.ms", _LONG, None, refused=(0,)),
    Key("log.retention.bytes", _LONG, -1),
    Key("log.retention.check.interval.ms", _LONG, 5 * _MINUTE_MS, 1),
    Key("log.segment.bytes", _INT, 1024 * _MIB, 1, warn_below=MIN_SEGMENT_BYTES),
    Key("log.segment.delete.delay.ms", _LONG, _MINUTE_MS, 0),
    Key("log.index.size.max.bytes", _INT, 10 * _MIB, _MIN_INDEX_BYTES),
    Key("log.index.interval.bytes", _INT, 4096, 0),
    Key("log.flush.interval.messages", _LONG, INT64_MAX, 1),
    Key("log.flush.interval.ms", _LONG, None),
    Key("log.flush.scheduler.interval.ms", _LONG, INT64_MAX),
    Key("log.flush.offset.checkpoint.interval.ms", _INT, _MINUTE_MS, 0),
    Key("log.flush.start.offset.checkpoint.interval.ms", _INT, _MINUTE_MS, 0),
    Key("log.preallocate", _BOOLEAN, False),
    Key("num.recovery.threads.per.data.dir", _INT, 2, 1),
    Key("log.initial.task.delay.ms", _LONG, 30 * _SECOND_MS, 0),
    Key("log.dir.failure.timeout.ms", _LONG, 30 * _SECOND_MS, 1, applies=False),
    Key("background.threads", _INT, 10, 1, applies=False),
    Key("num.partitions", _INT, 1, 1),
    Key("message.max.bytes", _INT, 1_048_588, 0),
    Key("replica.high.watermark.checkpoint.interval.ms", _LONG, 5 * _SECOND_MS),
    Key("auto.create.topics.enable", _BOOLEAN, True),
    # The cleaner (06 §3).
    Key("log.cleaner.enable", _BOOLEAN, True),
    Key("log.cleaner.threads", _INT, 1, 0),
    Key("log.cleaner.dedupe.buffer.size", _LONG, 128 * _MIB, 1),
    # Kafka checks no range.  Outside this range, Kafka's offset map makes no progress or overflows.
    Key("log.cleaner.io.buffer.load.factor", _DOUBLE, 0.9, 0, 1, refused=(0,)),
    Key("log.cleaner.io.buffer.size", _INT, 524_288, 0, applies=False),
    Key("log.cleaner.io.max.bytes.per.second", _DOUBLE, DOUBLE_MAX, 0, refused=(0,)),
    Key("log.cleaner.backoff.ms", _LONG, 15 * _SECOND_MS, 0),
    Key("log.cleaner.delete.retention.ms", _LONG, _DAY_MS, 0),
    Key("log.cleaner.min.cleanable.ratio", _DOUBLE, 0.5, 0, 1),
    Key("log.cleaner.min.compaction.lag.ms", _LONG, 0, 0),
    Key("log.cleaner.max.compaction.lag.ms", _LONG, INT64_MAX, 1),
    # Producers and transactions (06 §4), and the corresponding key of the share coordinator.
    Key("producer.id.expiration.ms", _INT, _DAY_MS, 1),
    Key("producer.id.expiration.check.interval.ms", _INT, 10 * _MINUTE_MS, 1),
    Key("transaction.max.timeout.ms", _INT, 15 * _MINUTE_MS, 1),
    Key("transaction.partition.verification.enable", _BOOLEAN, True, applies=False),
    Key("transactional.id.expiration.ms", _INT, 7 * _DAY_MS, 1),
    Key("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 10 * _SECOND_MS, 1),
    Key("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, 60 * _MINUTE_MS, 1),
    Key("transaction.state.log.num.partitions", _INT, 50, 1),
    Key("transaction.state.log.segment.bytes", _INT, 100 * _MIB, 1),
    Key("offsets.topic.segment.bytes", _INT, 100 * _MIB, 1),
    Key("share.coordinator.state.topic.segment.bytes", _INT, 100 * _MIB, 1),
    # The server.  If `queued.max.request.bytes`, `max.connections` or `auto.create.topics.enable` is unset, Sediment
    # uses a default of its own (ServerConfig).
    Key("num.network.threads", _INT, 3, 1),
    Key("num.io.threads", _INT, 8, 1),
    Key("queued.max.requests", _INT, 500, 1),
    Key("queued.max.request.bytes", _LONG, -1),
    Key("socket.send.buffer.bytes", _INT, 102_400),
    Key("socket.receive.buffer.bytes", _INT, 102_400),
    Key("socket.request.max.bytes", _INT, 100 * _MIB, 1),
    Key("socket.listen.backlog.size", _INT, 50, 1),
    Key("max.connections", _INT, INT32_MAX, 0),
    Key("max.connections.per.ip", _INT, INT32_MAX, 0),
    Key("connections.max.idle.ms", _LONG, 10 * _MINUTE_MS),
    Key("connection.failed.authentication.delay.ms", _INT, 100, 0),
    Key("fetch.max.bytes", _INT, 55 * _MIB, 1024),
    Key("group.min.session.timeout.ms", _INT, 6 * _SECOND_MS),
    Key("group.max.session.timeout.ms", _INT, 30 * _MINUTE_MS),
    Key("group.initial.rebalance.delay.ms", _INT, 3 * _SECOND_MS),
    Key("group.max.size", _INT, INT32_MAX, 1),
    Key("group.consumer.session.timeout.ms", _INT, 45 * _SECOND_MS, 1),
    Key("group.consumer.min.session.timeout.ms", _INT, 45 * _SECOND_MS, 1),
    Key("group.consumer.max.session.timeout.ms", _INT, 60 * _SECOND_MS, 1),
    Key("group.consumer.heartbeat.interval.ms", _INT, 5 * _SECOND_MS, 1),
    Key("group.consumer.min.heartbeat.interval.ms", _INT, 5 * _SECOND_MS, 1),
    Key("group.consumer.max.heartbeat.interval.ms", _INT, 15 * _SECOND_MS, 1),
    Key("group.consumer.max.size", _INT, INT32_MAX, 1),
    Key("group.consumer.assignors", _LIST, ("uniform", "range")),
    Key("group.consumer.migration.policy", _STRING, "bidirectional"),
    Key("offset.metadata.max.bytes", _INT, 4096),
    Key("offsets.topic.num.partitions", _INT, 50, 1),
    Key("offsets.retention.minutes", _INT, 10_080, 1),
    Key("offsets.retention.check.interval.ms", _LONG, 10 * _MINUTE_MS, 1),
    # Sediment's own keys.
    Key("sediment.request.receive.timeout.ms", _LONG, 30 * _SECOND_MS, 1),
    Key("sediment.group.members.max.bytes", _LONG, 16 * _MIB, 1),
    Key("sediment.groups.max.bytes", _LONG, 128 * _MIB, 1),
    Key("sediment.transactions.max.bytes", _LONG, 64 * _MIB, 1),
    Key("sediment.max.decompressed.batch.bytes", _LONG, 256 * _MIB, 1, INT32_MAX),
    Key("sediment.task.memory.bytes", _LONG, INT64_MAX, 1),
))

# The configs that Kafka gives its internal topics.  These are configs of the topic, so a broker's general defaults do
# not apply to them.  If a value here is the name of a broker key, the coordinator uses the value of that key.  Source:
# 06 §4, and the coordinators' own topic configs in Kafka 4.2.0.  The share coordinator writes a snapshot and its later
# updates under the same key, so compaction would lose updates.  The share coordinator's topic therefore has the policy
# `delete` without a retention limit, and the coordinator itself deletes old records.
INTERNAL_TOPIC_CONFIGS: Mapping[str, Mapping[str, str | BrokerName]] = MappingProxyType({
    "__consumer_offsets": {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": BrokerName("offsets.topic.segment.bytes"),
    },
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": BrokerName("transaction.state.log.segment.bytes"),
    },
    "__share_group_state": {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "-1",
        "segment.bytes": BrokerName("share.coordinator.state.topic.segment.bytes"),
    },
})
# fmt: on

# fmt: off
DYNAMIC_BROKER_KEYS = frozenset({
    "background.threads", "compression.gzip.level", "compression.lz4.level", "compression.type",
    "compression.zstd.level", "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms", "log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second", "log.cleaner.max.compaction.lag.ms", "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms", "log.cleaner.threads", "log.cleanup.policy", "log.flush.interval.messages",
    "log.flush.interval.ms", "log.index.interval.bytes", "log.index.size.max.bytes", "log.local.retention.bytes",
    "log.local.retention.ms", "log.message.timestamp.after.max.ms", "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type", "log.preallocate", "log.retention.bytes", "log.retention.ms", "log.roll.jitter.ms",
    "log.roll.ms", "log.segment.bytes", "log.segment.delete.delay.ms", "max.connections", "max.connections.per.ip",
    "message.max.bytes", "min.insync.replicas", "num.io.threads", "num.network.threads",
    "num.recovery.threads.per.data.dir", "producer.id.expiration.ms", "transaction.partition.verification.enable",
    "unclean.leader.election.enable",
})
# fmt: on
"""The keys of `BROKER_KEYS` that dynamic configs may replace; a broker ignores the others (DynamicBrokerConfig)."""

REMOVED_KEYS = frozenset(
    prefix + name
    for prefix in ("", "log.")
    for name in ("message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms")
)
"""Keys that an older broker or topic may have; since Kafka 4.0, they have no effect (06 §5)."""

BROKER_FILE_MARKS = frozenset({"process.roles", "node.id", "broker.id", "zookeeper.connect", "log.dirs", "log.dir"})
"""Keys that occur only in a broker's properties file."""

QUORUM_KEYS = frozenset({"process.roles", "node.id", "controller.quorum.voters"})
"""Keys that define the role of a KRaft node in its quorum."""

# Prefixes of Kafka's broker keys that do not concern log files; a prefix consists of complete words between dots.
# fmt: off
_OTHER_FAMILIES = (
    "add", "advertised", "alter", "authorizer", "auto.leader", "broker", "client", "config", "connection",
    "connections", "control.plane", "controlled", "controller", "create", "default.replication.factor",
    "delegation", "delete.records", "delete.topic", "early", "fetch", "group",
    "initial.broker.registration.timeout.ms", "inter", "internal.metadata", "kafka.csv", "kafka.metrics",
    "leader.imbalance", "listener", "listeners", "max.connection", "max.connections", "max.incremental",
    "max.request", "metadata", "metric", "metrics", "node", "num.io", "num.network", "num.replica",
    "offset.metadata", "offsets.commit", "offsets.load", "offsets.retention", "offsets.topic", "password",
    "principal", "process", "producer.purgatory", "queued", "quota", "remote.fetch", "remote.list",
    "remote.log.index", "remote.log.manager", "remote.log.metadata", "remote.log.reader", "remote.log.storage",
    "replica.fetch", "replica.lag", "replica.selector", "replica.socket", "replication", "request", "reserved",
    "sasl", "security", "server", "share", "socket", "ssl", "super", "telemetry", "transaction.abort",
    "transaction.remove", "transaction.state.log", "transaction.two", "unclean.leader.election.interval.ms",
    "unstable", "zookeeper",
)
# fmt: on


def is_other_broker_key(name: str) -> bool:
    return any(name == family or name.startswith(family + ".") for family in _OTHER_FAMILIES)
