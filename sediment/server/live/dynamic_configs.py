"""Dynamic configs of brokers, groups and client metrics: Kafka's rules for names and values, with Kafka's messages.

    resource         name of the resource    error for a wrong key
    broker           node id                 INVALID_REQUEST
    all brokers      empty                   INVALID_REQUEST; a key of one listener needs a node id
    group            the group id            INVALID_CONFIG
    client metrics   the subscription        INVALID_REQUEST

As in Kafka, a broker accepts any key that Kafka does not define.

Source: Kafka 4.2.0, DynamicBrokerConfig, ConfigAdminManager, GroupConfig and ClientMetricsConfigs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sediment.engine.config_definitions import Key, Value, ValueType, value_text
from sediment.segment_io.internal_topics.metadata_log import ALL_BROKERS, ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.dynamic_config_keys import (
    CLIENT_METRICS_KEYS,
    DYNAMIC_KEYS,
    GROUP_KEYS,
    GROUP_KINDS,
    LISTENER_KEYS,
    QUOTA_KEYS,
    READ_ONLY_KEYS,
    SECURITY_KEYS,
)
from sediment.server.errors import ApiError
from sediment.server.live.topic_configs import ConfigChange, Operation, changed_configs, checked_value
from sediment.server.server_config import ServerConfig

_LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)")
_OF_ALL_LISTENERS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
_THREADS = tuple(name for name in DYNAMIC_KEYS if name.endswith((".threads", ".fetchers", ".per.data.dir")))
_UNLIMITED_OR_POSITIVE = "log.retention.ms"

_DURATION = re.compile(r"by_duration:P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?")
_HEARTBEAT, _SESSION, _LOCK = "heartbeat.interval.ms", "session.timeout.ms", "record.lock.duration.ms"
_CONSUMER, _WITHOUT_MEMBERS = GROUP_KINDS[0], GROUP_KINDS[1:]
_FIXED_LIMITS = {
    **{(kind, _HEARTBEAT): (5_000, 15_000) for kind in _WITHOUT_MEMBERS},
    **{(kind, _SESSION): (45_000, 60_000) for kind in _WITHOUT_MEMBERS},
    ("share", _LOCK): (15_000, 60_000),
}
"""Kafka's default limits on configs of share and streams groups, which have no members on this server."""

_RESET = "share.auto.offset.reset"
_INTERVAL_MS = (100, 3_600_000)
_MATCHED = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


def configs_of(metadata: ClusterMetadata, kind: ResourceType, name: str) -> Mapping[str, str]:
    found = {
        ResourceType.TOPIC: metadata.topic_configs,
        ResourceType.BROKER: metadata.broker_configs,
        ResourceType.CLIENT_METRICS: metadata.client_metrics_configs,
        ResourceType.GROUP: metadata.group_configs,
    }[kind]
    return found.get(name, {})


def changed(kind: ResourceType, current: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    return changed_configs(current, changes, partial(_changed_list, kind))


def _changed_list(kind: ResourceType, current: str | None, change: ConfigChange) -> list[str]:
    key = DYNAMIC_KEYS.get(change.key) if kind is ResourceType.BROKER else None
    if key is None or key.type is not ValueType.LIST:
        if kind is ResourceType.BROKER:
            done = "append" if change.operation is Operation.APPEND else "subtract"
            what = f"Config value {done} is not allowed for config key: {change.key}"
        else:
            what = f"Can't {change.operation.name} to key {change.key} because its type is not LIST."
        raise ApiError(ErrorCode.INVALID_CONFIG, what)
    before = value_text(key.default) if current is None else current
    parts = [part for part in (before or "").split(",") if part]
    given = (change.value or "").split(",")
    if change.operation is Operation.SUBTRACT:
        return [part for part in parts if part not in given]
    return parts + [part for part in given if part not in parts]


def check_eligible_replicas(name: str, current: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Check a change of the configs of brokers in a cluster with eligible leader replicas (KIP-966)."""
    if current.get(_MIN_ISR) == after.get(_MIN_ISR):
        return
    if name != ALL_BROKERS:
        what = f"Broker-level {_MIN_ISR} cannot be altered while ELR is enabled."
    elif _MIN_ISR not in after:
        what = f"Cluster-level {_MIN_ISR} cannot be removed while ELR is enabled."
    else:
        return
    raise ApiError(ErrorCode.INVALID_CONFIG, what)


_MIN_ISR = "min.insync.replicas"


def check_dynamic_configs(kind: ResourceType, name: str, configs: Mapping[str, str], server: ServerConfig) -> None:
    if kind is ResourceType.BROKER:
        _check_broker(name, configs)
    elif kind is ResourceType.GROUP:
        _check_group(name, configs, server)
    else:
        _check_client_metrics(name, configs)


# -------------------------------------------------------------------------------------------------------------- brokers
def _check_broker(name: str, configs: Mapping[str, str]) -> None:
    _refuse(READ_ONLY_KEYS & configs.keys(), "Cannot update these configs dynamically")
    _refuse(
        SECURITY_KEYS & configs.keys(),
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        shown_as="HashSet",
    )
    for key, text in configs.items():
        known = DYNAMIC_KEYS.get(_base_name(key)) or QUOTA_KEYS.get(key)
        if known is not None:
            _check_broker_value(known, text)
    if name == ALL_BROKERS:
        _refuse(
            [key for key in configs if _is_of_one_broker(key)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )


def _base_name(key: str) -> str:
    prefixed = _LISTENER_PREFIX.fullmatch(key)
    return key if prefixed is None else prefixed[1]


def _is_of_one_broker(key: str) -> bool:
    return key in LISTENER_KEYS or (_base_name(key) != key and _base_name(key) not in _OF_ALL_LISTENERS)


def _check_broker_value(key: Key, text: str) -> None:
    try:
        value = checked_value(replace(key, refused=()) if key.at_most is None or key.at_least == 0 else key, text)
    except ApiError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, error.what) from error
    if key.name == _UNLIMITED_OR_POSITIVE and value == 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"requirement failed: {key.name} must be unlimited (-1) or, greater than or equal to 1",
        )
    if value in key.refused or (key.name == _CLEANER_THREADS and value == 0):
        raise invalid_configuration(f"{key.name}={text}")


def _refuse(keys: Collection[str], what: str, shown_as: str = "Set") -> None:
    if keys:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what}: {shown_as}({', '.join(sorted(keys))})")


def check_thread_counts(before: Mapping[str, Value], after: Mapping[str, Value]) -> None:
    """Check that no thread count differs by more than a factor of 2 between two sets of stated broker keys."""
    for name in _THREADS:
        default = DYNAMIC_KEYS[name].default
        old, new = (values.get(name, default) for values in (before, after))
        assert isinstance(old, int) and isinstance(new, int), name
        if new < old // 2:
            raise _wrong_thread_count(name, old, new, _LOWERED)
        if new > old * 2:
            raise _wrong_thread_count(name, old, new, _RAISED)


_CLEANER_THREADS = "log.cleaner.threads"
_LOWERED = ("cannot be reduced to less than half", "should be at least half")
_RAISED = ("cannot be increased to more than double", "should not be greater than double")


def _wrong_thread_count(name: str, old: int, new: int, texts: tuple[str, str]) -> ApiError:
    of_cleaner, of_others = texts
    what = f"Dynamic thread count update validation failed for {name}={new}, value {of_others} the current value {old}"
    if name == _CLEANER_THREADS:
        what = f"Log cleaner threads {of_cleaner} the current value {old}"
    return invalid_configuration(f"org.apache.kafka.common.config.ConfigException: {what}")


def invalid_configuration(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"Invalid value {why} for configuration Invalid dynamic configuration")


# --------------------------------------------------------------------------------------------------------------- groups
def _group_limits(server: ServerConfig) -> Mapping[tuple[str, str], tuple[int, int]]:
    return {
        (_CONSUMER, _HEARTBEAT): (
            server.group_consumer_min_heartbeat_interval_ms,
            server.group_consumer_max_heartbeat_interval_ms,
        ),
        (_CONSUMER, _SESSION): (
            server.group_consumer_min_session_timeout_ms,
            server.group_consumer_max_session_timeout_ms,
        ),
        **_FIXED_LIMITS,
    }


def _check_group(name: str, configs: Mapping[str, str], server: ServerConfig) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    for key in configs:
        if key not in GROUP_KEYS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {key}")
    values = {key.name: key.default for key in GROUP_KEYS.values()}
    values |= {key: checked_value(GROUP_KEYS[key], text) for key, text in configs.items()}
    reset = str(values["share.auto.offset.reset"])
    if reset not in ("latest", "earliest") and not _DURATION.fullmatch(reset):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {reset} for configuration {_RESET}: the value is neither latest, earliest nor by_duration",
        )
    # As in Kafka, if the group does not set a key, this check uses Kafka's default, not the server's value.
    for (kind, rest), (least, most) in _group_limits(server).items():
        key = f"{kind}.{rest}"
        _check_limit(key, values[key], f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}", least, most)
    standby = values["streams.num.standby.replicas"]
    _check_limit("streams.num.standby.replicas", standby, "", "group.streams.max.standby.replicas", 0, 2)
    for kind in GROUP_KINDS:
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if _number(values[session]) <= _number(values[heartbeat]):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")


def _check_limit(key: str, value: Value | None, least_key: str, most_key: str, least: int, most: int) -> None:
    if _number(value) < least:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{key} must be greater than or equal to {least_key}")
    if _number(value) > most:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{key} must be less than or equal to {most_key}")


def _number(value: Value | None) -> int:
    assert isinstance(value, int)
    return value


# ------------------------------------------------------------------------------------------------------- client metrics
def _check_client_metrics(name: str, configs: Mapping[str, str]) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in configs:
        if key not in CLIENT_METRICS_KEYS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    values = {key: checked_value(CLIENT_METRICS_KEYS[key], text) for key, text in configs.items()}
    interval_ms = values.get("interval.ms")
    least, most = _INTERVAL_MS
    if isinstance(interval_ms, int) and not least <= interval_ms <= most:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between {least} and {most} (1 hour)",
        )
    matches = values.get("match", ())
    for pattern in matches if isinstance(matches, tuple) else ():
        _check_match(pattern)


def _check_match(pattern: str) -> None:
    name, *rest = pattern.split("=")
    try:
        is_valid = len(rest) == 1 and name.strip() in _MATCHED and re.compile(rest[0].strip()) is not None
    except re.error:
        is_valid = False
    if not is_valid:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")
