"""Configs of topics: changes, and Kafka's rules for names and values, with Kafka's error messages.

Source: Kafka 4.2.0, LogConfig.validate, ConfigDef, ThrottledReplicaListValidator and ConfigurationControlManager.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from sediment.engine.config_definitions import (
    BROKER_KEYS,
    INTERNAL_TOPIC_CONFIGS,
    TOPIC_KEYS,
    BrokerName,
    Key,
    Value,
    ValueType,
    read_value,
    value_text,
)
from sediment.engine.log_config import LogConfig, lags_contradict
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError

_THROTTLED = re.compile(r"([0-9]+:[0-9]+)?")
_ALL_REPLICAS = "*"
_EXPECTED = {
    ValueType.INT: "Not a number of type INT",
    ValueType.LONG: "Not a number of type LONG",
    ValueType.DOUBLE: "Not a number of type DOUBLE",
    ValueType.BOOLEAN: "Expected value to be either true or false",
}


class Operation(IntEnum):
    """The kind of a config change (Kafka's AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    key: str
    operation: Operation
    value: str | None


class TopicConfigs:
    """The caller must call `prepare` with each new state of the metadata.

    When this state is durable, the caller must call the function that `prepare` returned.
    """

    def __init__(
        self, of_metadata: Callable[[ClusterMetadata], Callable[[str], LogConfig]], metadata: ClusterMetadata
    ) -> None:
        self._of_metadata = of_metadata
        self.prepare(metadata)()

    def __call__(self, topic: str) -> LogConfig:
        return self._of_topic(topic)

    def prepare(self, metadata: ClusterMetadata) -> Callable[[], None]:
        """Return a function that puts `metadata` into use; the returned function does not fail."""
        of_topic = self._of_metadata(metadata)

        def use() -> None:
            self._metadata, self._of_topic = metadata, of_topic

        return use

    def of_topics(self, metadata: ClusterMetadata, topics: Iterable[str]) -> dict[str, LogConfig]:
        of_topic = self._of_metadata(metadata)
        return {topic: of_topic(topic) for topic in topics}

    def check(self, topic: str, configs: Mapping[str, str]) -> None:
        check_configs(configs)
        if not configs:
            return
        try:
            self._of_metadata(replace(self._metadata, topic_configs={topic: configs}))(topic)
        except SettingsError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, error.what) from error


def _changed_list(current: str | None, change: ConfigChange) -> list[str]:
    key = TOPIC_KEYS.get(change.key)
    if key is None or key.type is not ValueType.LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {change.operation.name} to key {change.key} because its type is not LIST.",
        )
    before = value_text(key.default) if current is None else current
    parts = [part for part in (before or "").split(",") if part]
    for part in (change.value or "").split(","):
        if change.operation is Operation.SUBTRACT:
            if part in parts:
                parts.remove(part)
        elif part not in parts:
            parts.append(part)
    return parts


ChangedList = Callable[[str | None, ConfigChange], list[str]]


def changed_configs(
    current: Mapping[str, str], changes: Sequence[ConfigChange], changed_list: ChangedList = _changed_list
) -> dict[str, str]:
    """`changed_list` returns the elements of a list config after a change.

    The default function is for topics.
    """
    after = dict(current)
    for change in changes:
        if change.operation is Operation.DELETE:
            after.pop(change.key, None)
        elif change.operation is Operation.SET:
            after[change.key] = change.value or ""
        else:
            after[change.key] = ",".join(changed_list(current.get(change.key), change))
    return after


def internal_topic_configs(name: str, stated: Mapping[str, Value]) -> Mapping[str, str]:
    """Return the configs that Kafka gives to a new internal topic; `stated` has the broker keys that are set.

    The topic inherits all other configs from the broker.

    Source: Kafka 4.2.0, GroupCoordinatorService.groupMetadataTopicConfigs and
    TransactionStateManager.transactionStateTopicConfigs.
    """
    texts = {
        key: value_text(stated.get(value.name, BROKER_KEYS[value.name].default))
        if isinstance(value, BrokerName)
        else value
        for key, value in INTERNAL_TOPIC_CONFIGS[name].items()
    }
    return {key: text for key, text in texts.items() if text is not None}


def check_configs(configs: Mapping[str, str]) -> None:
    for name in configs:
        if name not in TOPIC_KEYS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    values = {name: checked_value(TOPIC_KEYS[name], text) for name, text in configs.items()}
    if values.get("remote.storage.enable"):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage.",
        )
    least, most = (values.get(name, TOPIC_KEYS[name].default) for name in _LAGS)
    if isinstance(least, int) and isinstance(most, int) and lags_contradict(least, most):
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"conflict topic config setting {_LAGS[0]} ({least}) > {_LAGS[1]} ({most})"
        )


_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def checked_value(key: Key, text: str) -> Value:
    value = read_value(key.type, text)
    if value is None:
        raise _invalid(key, text, _EXPECTED[key.type])
    if isinstance(value, tuple):
        _check_list(key, value)
    elif key.one_of and value not in key.one_of:
        raise _invalid(key, value, f"String must be one of: {', '.join(key.one_of)}")
    elif isinstance(value, int | float) and key.type is not ValueType.BOOLEAN:
        _check_number(key, value)
    return value


def _check_number(key: Key, value: float) -> None:
    is_internal = key.name.startswith("internal.")
    least = key.at_least if key.warn_below is None or is_internal else key.warn_below
    if key.refused:
        if value in key.refused or not (key.at_least or 0) <= value <= (key.at_most or 0):
            raise _invalid(key, value, f"Value must be between 1 and {key.at_most} or equal to {key.at_least}")
    elif least is not None and value < least:
        raise _invalid(key, value, f"Value must be at least {least}")
    elif key.at_most is not None and value > key.at_most:
        raise _invalid(key, value, f"Value must be no more than {key.at_most}")


def _check_list(key: Key, elements: tuple[str, ...]) -> None:
    if not key.one_of:
        if (
            key.name.endswith("throttled.replicas")
            and elements[:1] != (_ALL_REPLICAS,)
            and not all(map(_THROTTLED.fullmatch, elements))
        ):
            raise _invalid(
                key,
                f"[{', '.join(elements)}]",
                f"{key.name} must be the literal '*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
            )
        return
    if "" in elements:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Configuration '{key.name}' values must not be empty.")
    for element in elements:
        if element not in key.one_of:
            raise _invalid(key, element, f"String must be one of: {', '.join(key.one_of)}")


def _invalid(key: Key, value: object, reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {key.name}: {reason}")
