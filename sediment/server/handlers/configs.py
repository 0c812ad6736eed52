"""Configs of topics, brokers, groups and client metrics (DescribeConfigs, ListConfigResources).

    topic config -> dynamic config of the broker -> dynamic config of all brokers -> options of the server
    -> Kafka's default

The first source that has a value takes precedence. A read-only server does not read the properties file of the broker
whose directory it serves.

A broker describes every config of Kafka's, although some have no effect on this server. For these, it shows Kafka's
default or the dynamic config, which a broker would apply.

Invariant: the value of a password is hidden, and so is the value of a key that Kafka does not define, because it may be
a password.

Source: Kafka's ConfigHelper and LogConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, NamedTuple

from sediment.engine.config_definitions import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerName,
    Key,
    Value,
    ValueType,
    read_value,
    value_text,
)
from sediment.segment_io.internal_topics.metadata_log import ALL_BROKERS
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.config_descriptions import ConfigDescription, config_descriptions
from sediment.server.dynamic_config_keys import (
    CLIENT_METRICS_KEYS,
    DYNAMIC_KEYS,
    GROUP_KEYS,
    LISTENER_KEYS,
    SECURITY_KEYS,
)
from sediment.server.errors import ApiError
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import ServedTopic, TopicCatalog
from sediment.server.topic_names import check_topic_name


class ConfigSource(IntEnum):
    """The source of a value (Kafka's DescribeConfigsResponse.ConfigSource)."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class _Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


_MOST_UNSET = 1_000
_TOO_MANY_UNSET = f"a request may ask for at most {_MOST_UNSET} groups and subscriptions that have no configs"
_CHANGEABLE_KEYS = DYNAMIC_KEYS.keys() | LISTENER_KEYS | SECURITY_KEYS
_BROKER_LOGGER = 8  # of ConfigResource.Type
_FLUSH_SCHEDULER = "log.flush.scheduler.interval.ms"
_SAME_SETTING = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", _FLUSH_SCHEDULER),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
"""Broker keys for the same setting, in order of precedence."""


class _Described(NamedTuple):
    keys: Container[str] | None
    synonyms: bool
    documentation: bool

    def wants(self, name: str) -> bool:
        return self.keys is None or name in self.keys


class ConfigHandlers:
    """`own` returns further configs of the server; it is called when a client first asks."""

    def __init__(
        self,
        catalog: TopicCatalog,
        node_id: int,
        *,
        can_write: bool = False,
        static: Mapping[str, str] = MappingProxyType({}),
        own: Callable[[], Mapping[str, str]] = dict,
        group_defaults: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        self._catalog = catalog
        self._node_id = node_id
        self._can_write = can_write
        self._options = static
        self._own = own
        self._group_defaults = group_defaults

    @cached_property
    def _static(self) -> Mapping[str, str]:
        return {**self._options, **self._own()}

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    def list_config_resources(self, request: Request) -> Any:
        response = m.ListConfigResourcesResponse
        metadata = self._catalog.metadata
        broker = [str(self._node_id)]
        names: dict[int, Sequence[str]] = {
            ResourceType.TOPIC: [topic.name for topic in self._catalog.topics()],
            ResourceType.BROKER: broker,
            _BROKER_LOGGER: broker,
            ResourceType.CLIENT_METRICS: sorted(metadata.client_metrics_configs) if metadata else (),
            ResourceType.GROUP: sorted(metadata.group_configs) if metadata else (),
        }
        if request.api_version == 0:
            asked = [ResourceType.CLIENT_METRICS.value]
        else:
            asked = list(dict.fromkeys(request.message.resource_types)) or list(names)
        if not names.keys() >= set(asked):
            return response(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = [(name, kind) for kind in asked for name in names[kind]]
        return response(
            config_resources=[response.ConfigResource(resource_name=name, resource_type=kind) for name, kind in found]
        )

    def describe_configs(self, request: Request) -> Any:
        message = request.message
        with_synonyms, with_documentation = message.include_synonyms, message.include_documentation
        asked: dict[tuple[int, str, frozenset[str] | None], Any] = {}
        for each in message.resources:
            asked.setdefault((each.resource_type, each.resource_name, _keys_of(each)), each)
        unset = 0
        results = []
        for each in asked.values():
            unset += self._is_unset(each)
            if unset > _MOST_UNSET and self._is_unset(each):
                results.append(_refused(each, ErrorCode.INVALID_REQUEST, _TOO_MANY_UNSET))
            else:
                wanted = _Described(_keys_of(each), with_synonyms, with_documentation)
                results.append(self._described(each, wanted))
        return m.DescribeConfigsResponse(results=results)

    def _is_unset(self, asked: Any) -> bool:
        """Return True for a group or subscription without configs; a client may invent any number of them."""
        metadata = self._catalog.metadata
        known = {
            ResourceType.GROUP: {} if metadata is None else metadata.group_configs,
            ResourceType.CLIENT_METRICS: {} if metadata is None else metadata.client_metrics_configs,
        }.get(asked.resource_type)
        return known is not None and asked.resource_name not in known

    def _described(self, asked: Any, wanted: _Described) -> Any:
        text = asked.resource_name
        code, error, found = ErrorCode.NONE, "", []
        if asked.resource_type == ResourceType.TOPIC:
            topic = self._catalog.topic(text)
            if topic is not None:
                found = [self._topic_config(key, topic, wanted) for key in _topic_keys(topic.configs, wanted.keys)]
            else:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                try:
                    check_topic_name(text)
                except ApiError as invalid:
                    code, error = invalid.code, invalid.what
        elif asked.resource_type == ResourceType.BROKER and text in (ALL_BROKERS, str(self._node_id)):
            found = list(self._broker_configs(wanted, is_default=text == ALL_BROKERS))
        elif asked.resource_type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
            is_group = asked.resource_type == ResourceType.GROUP
            if not text:
                what = "Group name" if is_group else "Client metrics subscription name"
                code, error = ErrorCode.INVALID_REQUEST, f"{what} must not be empty"
            elif is_group:
                found = list(self._group_configs(text, wanted))
            else:
                found = list(self._client_metrics_configs(text, wanted))
        else:
            code, error = ErrorCode.INVALID_REQUEST, "this server describes topics, itself, groups and client metrics"
        return _refused(asked, code, error) if code else _result(asked, found)

    # ------------------------------------------------------------------------------------------------------------ topic
    def _topic_config(self, key: Key, topic: ServedTopic, wanted: _Described) -> Any:
        values = _topic_values(key, topic.configs, self._catalog, self._static)
        synonyms = [each for each in values if each.source is ConfigSource.TOPIC_CONFIG]
        if key.broker_names:
            synonyms += _broker_synonyms(key.broker_names[0].name, self._catalog, self._static)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        effective = _effective(key, values)._replace(source=source)
        description = config_descriptions(ResourceType.TOPIC)[key.name]
        return _config(effective._replace(name=key.name), synonyms, wanted, description, read_only=not self._can_write)

    # ----------------------------------------------------------------------------------------------------------- broker
    def _broker_configs(self, wanted: _Described, *, is_default: bool) -> Iterator[Any]:
        of_broker, of_all_brokers = _broker_configs(self._catalog)
        stated = of_all_brokers if is_default else {**of_all_brokers, **of_broker}
        descriptions = config_descriptions(ResourceType.BROKER)
        shown = () if is_default else [each.name for each in descriptions.values() if not each.is_internal]
        for name in sorted({*shown, *stated}):
            if not wanted.wants(name):
                continue
            key = BROKER_KEYS.get(name) or DYNAMIC_KEYS.get(name)
            synonyms = _broker_synonyms(name, self._catalog, self._static)
            if is_default:
                synonyms = [each for each in synonyms if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]
            effective = synonyms[0] if synonyms else _Synonym(name, None, ConfigSource.DEFAULT_CONFIG)
            effective = effective if is_default else _as_typed(key, effective)
            read_only = not (self._can_write and name in _CHANGEABLE_KEYS)
            yield _config(effective, synonyms, wanted, descriptions.get(name), read_only=read_only)

    # ------------------------------------------------------------------------------------------------ groups, clients
    def _group_configs(self, name: str, wanted: _Described) -> Iterator[Any]:
        metadata = self._catalog.metadata
        own = {} if metadata is None else metadata.group_configs.get(name, {})
        for key in GROUP_KEYS.values():
            if not wanted.wants(key.name):
                continue
            default = value_text(self._group_defaults.get(key.name, key.default))
            source = ConfigSource.GROUP_CONFIG if key.name in own else ConfigSource.DEFAULT_CONFIG
            effective = _Synonym(key.name, own.get(key.name, default), source)
            description = config_descriptions(ResourceType.GROUP)[key.name]
            yield _config(effective, (effective,), wanted, description, read_only=not self._can_write)

    def _client_metrics_configs(self, subscription: str, wanted: _Described) -> Iterator[Any]:
        metadata = self._catalog.metadata
        own = {} if metadata is None else metadata.client_metrics_configs.get(subscription, {})
        for name, key in CLIENT_METRICS_KEYS.items():
            if not wanted.wants(name):
                continue
            effective = _Synonym(name, value_text(key.default), ConfigSource.DEFAULT_CONFIG)
            if name in own:
                effective = _Synonym(name, own[name], ConfigSource.CLIENT_METRICS_CONFIG)
            description = config_descriptions(ResourceType.CLIENT_METRICS)[name]
            synonyms = (effective,) if name in own else ()
            yield _config(effective, synonyms, wanted, description, read_only=not self._can_write)


def _result(asked: Any, configs: Sequence[Any]) -> Any:
    return m.DescribeConfigsResponse.DescribeConfigsResult(
        error_message="", resource_type=asked.resource_type, resource_name=asked.resource_name, configs=configs
    )


def _refused(asked: Any, code: ErrorCode, what: str) -> Any:
    refused = _result(asked, ())
    refused.error_code, refused.error_message = code, what
    return refused


def _keys_of(asked: Any) -> frozenset[str] | None:
    return None if asked.configuration_keys is None else frozenset(asked.configuration_keys)


def topic_config_values(
    configs: Mapping[str, str], catalog: TopicCatalog, static: Mapping[str, str] = MappingProxyType({})
) -> list[_Synonym]:
    keys = sorted(_topic_keys(configs, None), key=lambda key: key.name)
    return [_effective(key, _topic_values(key, configs, catalog, static))._replace(name=key.name) for key in keys]


def _topic_values(
    key: Key, configs: Mapping[str, str], catalog: TopicCatalog, static: Mapping[str, str]
) -> list[_Synonym]:
    values = []
    if key.name in configs:
        text: str | None = configs[key.name]
        value = read_value(key.type, configs[key.name])
        if value is not None and (key.one_of or key.type is not ValueType.LIST):
            text = value_text(value)
        values.append(_Synonym(key.name, text, ConfigSource.TOPIC_CONFIG))
    of_broker, of_all_brokers = _broker_configs(catalog)
    for stated, source in (
        (of_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (of_all_brokers, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (static, ConfigSource.STATIC_BROKER_CONFIG),
    ):
        names = (name for name in key.broker_names if name.name in stated)
        values += [_Synonym(name.name, _converted(stated[name.name], name), source) for name in names]
    defaults = ((name.name, value_text(BROKER_KEYS[name.name].default)) for name in key.broker_names)
    values += [_Synonym(name, text, ConfigSource.DEFAULT_CONFIG) for name, text in defaults if text is not None]
    return values


def _broker_synonyms(name: str, catalog: TopicCatalog, static: Mapping[str, str]) -> list[_Synonym]:
    """If the key itself has no value, the result is empty, even if a synonym with another unit has a value.

    Source: Kafka's ConfigHelper.configSynonyms and DynamicBrokerConfig.brokerConfigSynonyms.
    """
    of_broker, of_all_brokers = _broker_configs(catalog)
    names = next((names for names in _SAME_SETTING if name in names), (name,))
    if name == _FLUSH_SCHEDULER:
        names = (name,)
    synonyms = []
    for stated, source in (
        (of_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (of_all_brokers, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (static, ConfigSource.STATIC_BROKER_CONFIG),
    ):
        for each in names:
            if each in stated:
                synonyms.append(_Synonym(each, stated[each] if _is_public(each) else None, source))
    descriptions = config_descriptions(ResourceType.BROKER)
    for each in names:
        default = descriptions[each].default if each in descriptions else None
        if default is not None:
            synonyms.append(_Synonym(each, default, ConfigSource.DEFAULT_CONFIG))
    return list(dropwhile(lambda synonym: synonym.name != name, synonyms))


def _is_public(name: str) -> bool:
    description = config_descriptions(ResourceType.BROKER).get(name)
    return description is not None and not description.is_sensitive


def _as_typed(key: Key | None, effective: _Synonym) -> _Synonym:
    value = None if key is None or effective.value is None else read_value(key.type, effective.value)
    return effective if value is None else effective._replace(value=value_text(value))


def _effective(key: Key, values: Sequence[_Synonym]) -> _Synonym:
    if values and values[0].source is not ConfigSource.DEFAULT_CONFIG:
        return values[0]
    return _Synonym(key.name, value_text(key.default), ConfigSource.DEFAULT_CONFIG)


def _broker_configs(catalog: TopicCatalog) -> tuple[Mapping[str, str], Mapping[str, str]]:
    stated = {} if catalog.metadata is None else catalog.metadata.broker_configs
    return stated.get(str(catalog.node_id), {}), stated.get(ALL_BROKERS, {})


def _topic_keys(configs: Container[str], keys: Container[str] | None) -> Iterator[Key]:
    for name, key in TOPIC_KEYS.items():
        is_shown = key.default is not None or name in configs
        if is_shown and (keys is None or name in keys):
            yield key


def _config(
    effective: _Synonym,
    synonyms: Sequence[_Synonym],
    wanted: _Described,
    description: ConfigDescription | None,
    *,
    read_only: bool,
) -> Any:
    response = m.DescribeConfigsResponse
    shown = synonyms if wanted.synonyms else ()
    return response.DescribeConfigsResourceResult(
        name=effective.name,
        value=effective.value,
        read_only=read_only,
        config_source=effective.source,
        is_sensitive=description is None or description.is_sensitive,
        synonyms=[
            response.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in shown
        ],
        config_type=0 if description is None else description.type,
        documentation=description.documentation if description and wanted.documentation else None,
    )


def _converted(text: str, name: BrokerName) -> str:
    if name.unit_ms is None:
        return text
    number = int(text)
    return str(number * name.unit_ms if number >= 0 else -1)
