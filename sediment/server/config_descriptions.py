"""The configs of Kafka 4.2.0 that a server describes to clients: names, types, defaults and documentation.

The file is read when a client first asks, because it is not needed for anything else.

Source: the ConfigDefs of Kafka's AbstractKafkaConfig, LogConfig, GroupConfig and ClientMetricsConfigs; `make schemas`
writes the file from them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sediment.segment_io.internal_topics.metadata_records import ResourceType

FILE = Path(__file__).with_name("kafka_configs.json.gz")

_RESOURCES = {
    ResourceType.BROKER: "broker",
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLIENT_METRICS: "client-metrics",
}
_TYPES = ("BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD")
"""Kafka's DescribeConfigsResponse.ConfigType, from number 1 on."""


class ConfigDescription(NamedTuple):
    """A config; `type` is the number of its type in the protocol, and `default` is None if it has no default.

    Kafka shows an internal config only if it is set for a topic.
    """

    name: str
    type: int
    is_internal: bool
    default: str | None
    documentation: str

    @property
    def is_sensitive(self) -> bool:
        return _TYPES[self.type - 1] == "PASSWORD"


@cache
def config_descriptions(kind: ResourceType) -> Mapping[str, ConfigDescription]:
    return MappingProxyType(
        {
            name: ConfigDescription(name, _TYPES.index(type_name) + 1, *others)
            for name, type_name, *others in _content()[_RESOURCES[kind]]
        }
    )


@cache
def _content() -> Any:
    return json.loads(gzip.decompress(FILE.read_bytes()))
