"""Configs of topics and brokers (DescribeConfigs), from the cluster's metadata log and Kafka's defaults.

    topic config -> dynamic config of the broker -> dynamic config of all brokers -> Kafka's default

A broker's properties file is not in its log directory, so its values are unknown to this server.

Invariant: if a key is not in the table of keys, its value is not shown, because it may be a password.

Source: Kafka's ConfigHelper and LogConfig.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from sediment.engine.config_keys import BROKER_KEYS, TOPIC_KEYS, BrokerName, Key, Value, ValueType
from sediment.segment_io.format.names import is_topic_name
from sediment.segment_io.internal_topics.metadata_log import ALL_BROKERS
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import ServedTopic, TopicCatalog


class ConfigSource(IntEnum):
    """The source of a value (Kafka's DescribeConfigsResponse.ConfigSource)."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    DEFAULT_CONFIG = 5


class _Synonym(NamedTuple):
    """A value and the key that sets it."""

    name: str
    value: str | None
    source: ConfigSource


_TYPES = {
    ValueType.BOOLEAN: 1,
    ValueType.STRING: 2,
    ValueType.INT: 3,
    ValueType.LONG: 5,
    ValueType.DOUBLE: 6,
    ValueType.LIST: 7,
}
"""The numbers of Kafka's DescribeConfigsResponse.ConfigType."""

_OURS = "sediment."


class ConfigHandlers:
    """Handlers that describe configs; `node_id` is the id of this broker."""

    def __init__(self, catalog: TopicCatalog, node_id: int) -> None:
        self._catalog = catalog
        self._node_id = node_id
        stated = {} if catalog.metadata is None else catalog.metadata.broker_configs
        self._of_broker: Mapping[str, str] = stated.get(str(catalog.node_id), {})
        self._of_all_brokers: Mapping[str, str] = stated.get(ALL_BROKERS, {})

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {ApiKey.DESCRIBE_CONFIGS: self.describe_configs}

    def describe_configs(self, request: Request) -> Any:
        """Return the configs of each requested resource."""
        message = request.message
        return m.DescribeConfigsResponse(
            results=[self._described(each, message.include_synonyms) for each in message.resources]
        )

    def _described(self, asked: Any, include_synonyms: bool) -> Any:
        keys, text = asked.configuration_keys, asked.resource_name
        code, error, found = ErrorCode.NONE, None, []
        if asked.resource_type == ResourceType.TOPIC:
            topic = self._catalog.topic(text)
            if topic is not None:
                found = [self._topic_config(key, topic, include_synonyms) for key in _topic_keys(topic, keys)]
            else:
                is_name = is_topic_name(text)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_name else ErrorCode.INVALID_TOPIC_EXCEPTION
        elif asked.resource_type == ResourceType.BROKER and text in (ALL_BROKERS, str(self._node_id)):
            found = list(self._broker_configs(keys, include_synonyms, is_default=text == ALL_BROKERS))
        else:
            code, error = ErrorCode.INVALID_REQUEST, "this server describes only topics and itself"
        return m.DescribeConfigsResponse.DescribeConfigsResult(
            error_code=code,
            error_message=error,
            resource_type=asked.resource_type,
            resource_name=text,
            configs=found,
        )

    # ------------------------------------------------------------------------------------------------------------ topic
    def _topic_config(self, key: Key, topic: ServedTopic, include_synonyms: bool) -> Any:
        synonyms = []
        if key.name in topic.configs:
            synonyms.append(_Synonym(key.name, topic.configs[key.name], ConfigSource.TOPIC_CONFIG))
        for stated, source in (
            (self._of_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self._of_all_brokers, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ):
            names = (name for name in key.broker_names if name.name in stated)
            synonyms += [_Synonym(name.name, _converted(stated[name.name], name), source) for name in names]
        effective = synonyms[0] if synonyms else _Synonym(key.name, _text(key.default), ConfigSource.DEFAULT_CONFIG)
        defaults = ((name.name, _text(BROKER_KEYS[name.name].default)) for name in key.broker_names)
        synonyms += [_Synonym(name, text, ConfigSource.DEFAULT_CONFIG) for name, text in defaults if text is not None]
        return _config(key, effective, synonyms if include_synonyms else ())

    # ----------------------------------------------------------------------------------------------------------- broker
    def _broker_configs(
        self, keys: Container[str] | None, include_synonyms: bool, *, is_default: bool
    ) -> Iterator[Any]:
        stated = self._of_all_brokers if is_default else {**self._of_all_brokers, **self._of_broker}
        known = {} if is_default else {name: key for name, key in BROKER_KEYS.items() if not name.startswith(_OURS)}
        for name in sorted(known.keys() | stated.keys()):
            if keys is not None and name not in keys:
                continue
            key = BROKER_KEYS.get(name)
            synonyms = []
            if not is_default and name in self._of_broker:
                shown = self._of_broker[name] if key is not None else None
                synonyms.append(_Synonym(name, shown, ConfigSource.DYNAMIC_BROKER_CONFIG))
            if name in self._of_all_brokers:
                shown = self._of_all_brokers[name] if key is not None else None
                synonyms.append(_Synonym(name, shown, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
            if key is not None and not is_default:
                synonyms.append(_Synonym(name, _text(key.default), ConfigSource.DEFAULT_CONFIG))
            yield _config(key or name, synonyms[0], synonyms if include_synonyms else ())


def _topic_keys(topic: ServedTopic, keys: Container[str] | None) -> Iterator[Key]:
    for name, key in TOPIC_KEYS.items():
        is_shown = key.default is not None or name in topic.configs
        if is_shown and (keys is None or name in keys):
            yield key


def _config(key: Key | str, effective: _Synonym, synonyms: Sequence[_Synonym]) -> Any:
    """Return a config; `key` is a plain name if it is not in the table."""
    is_known = isinstance(key, Key)
    response = m.DescribeConfigsResponse
    return response.DescribeConfigsResourceResult(
        name=key.name if isinstance(key, Key) else key,
        value=effective.value,
        read_only=True,
        config_source=effective.source,
        is_sensitive=not is_known,
        synonyms=[
            response.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms
        ],
        config_type=_TYPES[key.type] if isinstance(key, Key) else 0,
        documentation=None,
    )


def _converted(text: str, name: BrokerName) -> str:
    """Convert the value of a broker key to the unit of its topic key."""
    if name.unit_ms is None:
        return text
    number = int(text)
    return str(number * name.unit_ms if number >= 0 else -1)


def _text(value: Value | None) -> str | None:
    """Return a default as Kafka prints it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
