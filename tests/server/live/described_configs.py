"""All configs that a broker of Kafka 4.2.0 describes, and what a live server describes differently.

`tests.e2e.test_live_serve` compares the recorded configs with those of a broker.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from sediment.segment_io.protocol import messages as m
from tests.server.network.listeners import Client

RECORDED_DESCRIPTIONS = Path(__file__).parents[2] / "data" / "described-configs.json.xz"
RESOURCES = {"broker": 4, "topic": 2, "group": 32, "client-metrics": 16}  # by the numbers of ConfigResource.Type

DIFFERENT = {
    # the address and directory, which differ in every run
    "advertised.listeners",
    "listeners",
    "log.dirs",
    # keys of the broker's file that a server does not have: no controller listens
    "controller.listener.names",
    "controller.quorum.voters",
    "listener.security.protocol.map",
    "share.coordinator.state.topic.replication.factor",
    # what a broker writes into its metadata when it first becomes controller
    "min.insync.replicas",
    # limits that only a server has, and what a server does not offer
    "group.coordinator.rebalance.protocols",
    "max.connections",
    "queued.max.request.bytes",
}
"""The configs whose values, sources or synonyms differ; the rest of each config does not."""


def recorded() -> Any:
    return json.loads(lzma.decompress(RECORDED_DESCRIPTIONS.read_bytes()))


def described(client: Client, names: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the configs of resources, by kind of resource and by key; `names` are the resources' names by kind."""
    request = m.DescribeConfigsRequest
    found = {}
    for kind, name in names.items():
        resource = request.DescribeConfigsResource(
            resource_type=RESOURCES[kind], resource_name=name, configuration_keys=None
        )
        (result,) = client.ask(
            request(resources=[resource], include_synonyms=True, include_documentation=True), 4
        ).results
        assert result.error_code == 0
        found[kind] = {
            each.name: {
                "documentation": each.documentation,
                "is_sensitive": each.is_sensitive,
                "read_only": each.read_only,
                "type": each.config_type,
                "values": [each.value, each.config_source, [[s.name, s.value, s.source] for s in each.synonyms]],
            }
            for each in result.configs
        }
    return found
