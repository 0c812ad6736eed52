"""Dynamic configs of brokers, groups and client metrics on a live server."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient

from sediment.engine.config_definitions import value_text
from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_records, read_cluster_metadata
from sediment.segment_io.protocol import messages as m
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.server_config import ServerConfig
from tests.engine.live_logs import batch
from tests.served import unpacked
from tests.server.live.config_script import BROKER, CLIENT_METRICS, GROUP, RECORDED_CONFIGS, SET, ConfigScript
from tests.server.live.nodes import NODE, LiveServer, live, new_node, options_of, produce
from tests.server.network.listeners import Client
from tests.waiting import LIMIT_SECONDS, wait_until

TOO_LARGE = 10
INVALID_CONFIG = 40
BY_DEFAULT, OF_GROUP = 5, 8


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveServer]:
    with live(new_node(tmp_path / "data", {"t": 1}), topic_config=None) as server:
        yield server


def test_answers_are_those_of_a_broker(tmp_path: Path) -> None:
    options = ServerOptions(
        options_of(new_node(tmp_path / "data", {}), threads=2),
        Endpoint("127.0.0.1", 0),
        config=ServerConfig(max_connections=INT32_MAX),  # Kafka's default, which a server does not have
    )
    with KafkaServer(options, Fs()) as server, Client.to(server.bound.port) as client:
        lines = json.loads(json.dumps(ConfigScript(client, NODE.node_id).run()))
    recorded = json.loads(lzma.decompress(RECORDED_CONFIGS.read_bytes()))
    assert [line for line, _ in lines] == [line for line, _ in recorded]
    assert [line for line, theirs in zip(lines, recorded, strict=True) if line != theirs] == []


@pytest.mark.parametrize("kind", ["bootstrap", "log"])
def test_configs_are_durable_before_the_answer(tmp_path: Path, kind: str) -> None:
    path = new_node(tmp_path / "data", {}) if kind == "bootstrap" else unpacked(tmp_path / "data")
    with live(path, topic_config=None) as server, server.connect() as client:
        node = server.server.catalog.node_id
        script = ConfigScript(client, node)
        for resource, name, key, value in (
            (BROKER, "", "log.retention.ms", "7000"),
            (BROKER, str(node), "message.max.bytes", "5000"),
            (GROUP, "g", "consumer.session.timeout.ms", "46000"),
            (CLIENT_METRICS, "s", "interval.ms", "1000"),
        ):
            assert script.alter(resource, name, (key, SET, value)) == (0, None)
        stored = read_cluster_metadata(path, Fs()) or read_bootstrap_records(path, Fs())
        assert stored is not None
        assert stored.broker_configs[""]["log.retention.ms"] == "7000"
        assert stored.broker_configs[str(node)]["message.max.bytes"] == "5000"
        assert stored.group_configs["g"] == {"consumer.session.timeout.ms": "46000"}
        assert stored.client_metrics_configs["s"] == {"interval.ms": "1000"}
    with live(path, topic_config=None) as server:
        metadata = server.server.catalog.metadata
        assert metadata is not None
        assert metadata.group_configs["g"] == {"consumer.session.timeout.ms": "46000"}


def test_a_changed_config_of_a_group_applies_to_its_next_heartbeat(tmp_path: Path) -> None:
    topics = {"t": 1, "__consumer_offsets": 1}
    with live(new_node(tmp_path / "data", topics), topic_config=None) as server, server.connect() as client:
        script = ConfigScript(client, NODE.node_id)
        assert script.alter(GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "6000")) == (0, None)
        joining = m.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        wait_until(lambda: client.ask(joining, 1).error_code == 0)
        assert client.ask(joining, 1).heartbeat_interval_ms == 6000


def test_configs_of_groups_stay_within_the_limits_of_this_server(tmp_path: Path) -> None:
    limits = {
        "group_consumer_min_session_timeout_ms": 20_000,
        "group_consumer_session_timeout_ms": 30_000,
        "group_consumer_max_session_timeout_ms": 50_000,
        "group_consumer_min_heartbeat_interval_ms": 2_000,
        "group_consumer_heartbeat_interval_ms": 3_000,
        "group_consumer_max_heartbeat_interval_ms": 6_000,
    }
    path = new_node(tmp_path / "data", {})
    with live(path, topic_config=None, **limits) as server, server.connect() as client:
        script = ConfigScript(client, NODE.node_id)
        session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
        for key, text, refused in (
            (session, "20000", None),
            (session, "19999", f"{session} must be greater than or equal to group.consumer.min.session.timeout.ms"),
            (session, "50001", f"{session} must be less than or equal to group.consumer.max.session.timeout.ms"),
            (heartbeat, "2000", None),
            (
                heartbeat,
                "1999",
                f"{heartbeat} must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
            ),
            (heartbeat, "6001", f"{heartbeat} must be less than or equal to group.consumer.max.heartbeat.interval.ms"),
        ):
            assert script.alter(GROUP, "g", (key, SET, text)) == (0 if refused is None else INVALID_CONFIG, refused)
        for group in ("g", "other"):
            script.describe(GROUP, group, session, heartbeat)
    rows = [{key: row[:2] for key, row in found[2].items()} for _, found in script.lines[-2:]]
    assert rows == [
        {session: ["20000", OF_GROUP], heartbeat: ["2000", OF_GROUP]},
        {session: ["30000", BY_DEFAULT], heartbeat: ["3000", BY_DEFAULT]},
    ]


def test_a_changed_limit_of_messages_applies_to_the_next_batch(served: LiveServer) -> None:
    large = batch(("k", "v" * 300))
    with served.connect() as client:
        script = ConfigScript(client, NODE.node_id)
        assert produce(client, large).error_code == 0
        assert script.alter(BROKER, "", ("message.max.bytes", SET, "200"))[0] == 0
        assert produce(client, large).error_code == TOO_LARGE
        assert script.alter(BROKER, str(NODE.node_id), ("message.max.bytes", SET, "2000"))[0] == 0
        assert produce(client, large).error_code == 0


def test_options_of_the_server_are_static_configs(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("log.retention.hours=5\nlog.roll.hours=7\n")
    backend = options_of(new_node(tmp_path / "data", {"t": 1}), config=file, sets=["log.roll.hours=9"], threads=2)
    with (
        KafkaServer(ServerOptions(backend, Endpoint("127.0.0.1", 0)), Fs()) as server,
        Client.to(server.bound.port) as client,
    ):
        script = ConfigScript(client, NODE.node_id)
        script.alter(BROKER, "", ("log.retention.ms", SET, "7000"))
        script.describe(BROKER, str(NODE.node_id), "log.retention.ms", "log.retention.hours", "log.roll.hours")
        script.describe(2, "t", "retention.ms", "segment.ms")
    (_, broker), (_, topic) = script.lines[-2:]
    hours = ["log.retention.hours", "5", 4]
    assert broker[2]["log.retention.ms"][5][:2] == [["log.retention.ms", "7000", 3], hours]
    assert broker[2]["log.retention.hours"][:2] == ["5", 4]
    assert broker[2]["log.roll.hours"][:2] == ["9", 4]
    assert topic[2]["retention.ms"][:2] == ["7000", 3]
    assert topic[2]["retention.ms"][5] == [["log.retention.ms", "7000", 3], hours, ["log.retention.hours", "168", 5]]
    assert topic[2]["segment.ms"] == [str(9 * 3_600_000), 5, *topic[2]["segment.ms"][2:5], []]


def test_a_topic_shows_no_default_of_a_broker_key_with_another_unit(served: LiveServer) -> None:
    with served.connect() as client:
        script = ConfigScript(client, NODE.node_id)
        script.describe(2, "t", "retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms", "retention.bytes")
    ((_, found),) = script.lines
    synonyms = {name: described[5] for name, described in found[2].items()}
    assert synonyms.pop("retention.bytes") == [["log.retention.bytes", "-1", 5]]
    assert synonyms == {"retention.ms": [], "segment.ms": [], "segment.jitter.ms": [], "flush.ms": []}


def test_librdkafka_changes_and_describes_configs_of_a_broker(served: LiveServer) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    kind = ConfigResource.Type.BROKER

    def change(key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, str(NODE.node_id), incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(LIMIT_SECONDS)

    change("log.cleaner.backoff.ms", "77")
    (future,) = admin.describe_configs([ConfigResource(kind, str(NODE.node_id))]).values()
    found: dict[str, Any] = future.result(LIMIT_SECONDS)
    assert (found["log.cleaner.backoff.ms"].value, found["log.cleaner.backoff.ms"].is_read_only) == ("77", False)
    assert found["log.retention.hours"].is_read_only
    with pytest.raises(confluent.KafkaException) as refused:
        change("log.retention.hours", "5")
    assert refused.value.args[0].str() == "Cannot update these configs dynamically: Set(log.retention.hours)"


def test_kafka_python_changes_and_describes_configs_of_all_brokers(served: LiveServer) -> None:
    admin = KafkaAdminClient(bootstrap_servers=served.bootstrap)
    try:
        admin.alter_configs(
            [PythonResource(ConfigResourceType.BROKER, str(NODE.node_id), {"log.retention.ms": "7000"})]
        )
        metadata = served.server.catalog.metadata
        assert metadata is not None
        assert metadata.broker_configs[str(NODE.node_id)]["log.retention.ms"] == "7000"
    finally:
        admin.close()


def test_every_kind_of_resource_is_described_as_unknown_or_empty(served: LiveServer) -> None:
    request = m.DescribeConfigsRequest
    with served.connect() as client:
        for kind, name, code in ((GROUP, "none", 0), (CLIENT_METRICS, "none", 0), (99, "x", 42)):
            resource = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            (found,) = client.ask(request(resources=[resource]), 4).results
            assert found.error_code == code


def test_resources_with_configs_are_listed(served: LiveServer) -> None:
    request = m.ListConfigResourcesRequest
    with served.connect() as client:
        script = ConfigScript(client, NODE.node_id)
        script.alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "46000"))
        script.alter(CLIENT_METRICS, "s", ("interval.ms", SET, "1000"))

        def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
            message = request(resource_types=list(kinds)) if version else request()
            response = client.ask(message, version)
            return [(each.resource_type, each.resource_name) for each in response.config_resources]

        assert listed(0) == [(CLIENT_METRICS, "s")]
        assert listed(1, GROUP) == [(GROUP, "g")]
        every = [(2, "t"), (BROKER, "7"), (8, "7"), (CLIENT_METRICS, "s"), (GROUP, "g")]
        assert sorted(listed(1)) == sorted(every)
        assert client.ask(request(resource_types=[99]), 1).error_code == 35


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (0.0, "0.0"), (1e7, "1.0E7"), (12345678.5, "1.23456785E7"), (1e-4, "1.0E-4"), (1.5e300, "1.5E300")],
)
def test_numbers_are_printed_as_by_java(value: float, text: str) -> None:
    assert value_text(value) == text


def test_the_metrics_have_the_cleaner_and_the_logs(served: LiveServer) -> None:
    text = served.server.metrics_text().decode()
    for name in (
        "kafka_log_cleaner_manager_max_dirty_percent 0.0",
        "kafka_log_cleaner_manager_time_since_last_run_ms",
        "kafka_log_cleaner_recopy_percent 0.0",
        "kafka_log_cleaner_max_clean_time_secs 0.0",
        "kafka_log_cleaner_manager_uncleanable_partitions_count{log_dir=",
        'kafka_log_num_log_segments{partition="0",topic="t"} 1.0',
        'kafka_log_log_start_offset{partition="0",topic="t"} 0.0',
    ):
        assert name in text
