"""DescribeConfigs beside a broker of Kafka 4.2.0, key by key (tests/data/described-configs.json.xz)."""

from __future__ import annotations

from pathlib import Path

import sediment
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.config_descriptions import FILE, config_descriptions
from tests.served import serving, unpacked
from tests.server.live.described_configs import DIFFERENT, RESOURCES, described, recorded
from tests.server.network.listeners import Client

NAMES = {"broker": "1", "topic": "p", "group": "g", "client-metrics": "s"}
# The keys of the file of the recorded broker that a server has too.
OF_THE_FILE = {
    "auto_create_topics_enable": False,
    "offsets_topic_num_partitions": 4,
    "transaction_max_timeout_ms": 3_600_000,
    "transaction_state_log_num_partitions": 4,
}


def client_of(bootstrap: str) -> Client:
    return Client.to(int(bootstrap.rpartition(":")[2]))


def test_every_config_is_described_as_by_a_broker() -> None:
    with sediment.broker(**OF_THE_FILE) as broker, client_of(broker.bootstrap) as client:
        topic = m.CreateTopicsRequest.CreatableTopic(name="p", num_partitions=1, replication_factor=1)
        assert client.ask(m.CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code == 0
        found = described(client, NAMES)
        path, bootstrap = broker.path, broker.bootstrap
    wanted = recorded()
    assert {kind: found[kind].keys() for kind in found} == {kind: wanted[kind].keys() for kind in wanted}
    assert len(found["broker"]) == 320
    different = set()
    for kind, configs in wanted.items():
        for name, config in configs.items():
            values, their_values = found[kind][name].pop("values"), config.pop("values")
            assert found[kind][name] == config, (kind, name)
            if values != their_values:
                different.add(name)
    assert different == DIFFERENT
    with sediment.broker() as broker, client_of(broker.bootstrap) as client:
        values = {name: config["values"] for name, config in described(client, {"broker": "1"})["broker"].items()}
    address = [f"PLAINTEXT://{broker.bootstrap}", 4]
    assert values["listeners"] == [*address, [["listeners", *address], ["listeners", "PLAINTEXT://:9092", 5]]]
    assert values["advertised.listeners"] == [*address, [["advertised.listeners", *address]]]
    assert values["log.dirs"][0] == str(broker.path)
    assert (path, bootstrap) != (broker.path, broker.bootstrap)
    assert values["max.connections"][:2] == ["1024", 4]
    assert values["auto.create.topics.enable"][:2] == ["true", 4]


def test_a_read_only_server_describes_every_config_as_one_that_no_client_can_change(tmp_path: Path) -> None:
    with serving(unpacked(tmp_path / "data"), "--read-only") as served, client_of(served.bootstrap) as client:
        found = described(client, {**NAMES, "topic": "orders"})
        assert all(each["read_only"] for configs in found.values() for each in configs.values())
        documented = {kind: len([each for each in found[kind].values() if each["documentation"]]) for kind in found}
        assert "internal.segment.bytes" in found["topic"]  # which Kafka shows only where a topic sets it
        assert documented == {"broker": 320, "topic": 33 + 1, "group": 11, "client-metrics": 3}
        broker = found["broker"]
        assert broker["process.roles"]["values"][0] == "broker"
        assert broker["auto.create.topics.enable"]["values"][:2] == ["false", 4]
        assert not any(each["values"][0] for each in broker.values() if each["is_sensitive"])
        request = m.DescribeConfigsRequest
        resource = request.DescribeConfigsResource(
            resource_type=RESOURCES["broker"], resource_name="1", configuration_keys=["log.dirs", "ssl.key.password"]
        )
        for version in range(1, 5):
            (result,) = client.ask(request(resources=[resource]), version).results
            assert [each.name for each in result.configs] == ["log.dirs", "ssl.key.password"]
            assert not any(each.documentation for each in result.configs)


def test_a_request_for_invented_groups_gets_a_response_of_limited_size(tmp_path: Path) -> None:
    request = m.DescribeConfigsRequest
    kinds = [RESOURCES["group"], RESOURCES["client-metrics"]]
    resources = [
        request.DescribeConfigsResource(resource_type=kinds[n % 2], resource_name=f"g{n}", configuration_keys=None)
        for n in range(20_000)
    ]
    with serving(unpacked(tmp_path / "data"), "--read-only") as served, client_of(served.bootstrap) as client:
        results = client.ask(request(resources=resources, include_documentation=True), 4).results
    assert [each.error_code for each in results] == [0] * 1_000 + [ErrorCode.INVALID_REQUEST] * 19_000
    assert "at most 1000 groups and subscriptions" in results[-1].error_message


def test_the_file_is_small_and_has_the_documentation_of_every_config() -> None:
    assert FILE.stat().st_size < 100_000
    for kind in (ResourceType.BROKER, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        shown = [each for each in config_descriptions(kind).values() if not each.is_internal]
        assert shown and all(each.documentation for each in shown)
