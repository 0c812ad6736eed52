"""The configs that Kafka's tools print are those of the broker's own metadata log, for --topic-configs as for a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sediment.engine.config_definitions import TOPIC_KEYS
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings, load_run_settings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.fs import Fs
from tests.consumers import WAIT_SECONDS
from tests.e2e import console_tools as tools
from tests.e2e.kraft import KafkaNode, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TOPICS = {
    "compacted": {"cleanup.policy": "compact,delete", "delete.retention.ms": "5"},
    "kept": {"retention.ms": "-1", "segment.bytes": "2097152"},
    "plain": {},
    "throttled": {"leader.replication.throttled.replicas": "0:0,0:1"},
}


def test_what_kafkas_tools_print_states_what_the_metadata_log_has(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "node")
    with running(node):
        client = AdminClient({"bootstrap.servers": node.bootstrap})
        topics = [NewTopic(name, 1, 1, config=dict(configs)) for name, configs in TOPICS.items()]
        for future in client.create_topics(topics).values():
            future.result(WAIT_SECONDS)
        alter = ("--alter", "--entity-type", "brokers")
        own, of_all = ("--entity-name", "1"), ("--entity-default",)
        tools.tool(node.bootstrap, tools.CONFIGS, *alter, *own, "--add-config", "log.retention.ms=7200000")
        tools.tool(
            node.bootstrap, tools.CONFIGS, *alter, *of_all, "--add-config", "log.cleaner.min.compaction.lag.ms=7"
        )
        files = {
            name: tools.tool(node.bootstrap, *arguments)
            for name, arguments in {
                "topics": (tools.CONFIGS, "--describe", "--entity-type", "topics"),
                "topics-all": (tools.CONFIGS, "--describe", "--entity-type", "topics", "--all"),
                "kafka-topics": (tools.TOPICS, "--describe"),
                "brokers": (tools.CONFIGS, "--describe", "--entity-type", "brokers"),
                "brokers-all": (tools.CONFIGS, "--describe", "--entity-type", "brokers", "--all"),
            }.items()
        }
        node.stop()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    config = node.config_file()
    (opened,) = open_directories([node.data], Selection(), RunSettings((Settings.load(config, ()),)), Fs())
    expected = {topic: opened.settings.in_force(topic) for topic in TOPICS}
    for of_topics in ("topics", "topics-all", "kafka-topics"):
        for of_brokers in ("brokers", "brokers-all"):
            described = load_run_settings(
                [config], (), topic_configs=[tmp_path / of_topics], broker_configs=[tmp_path / of_brokers]
            )
            settings = described.nodes[0].of_described_node(1)
            for topic in TOPICS:
                found = settings.in_force(topic)
                assert {key: found[key][0] for key in TOPIC_KEYS} == {
                    key: expected[topic][key][0] for key in TOPIC_KEYS
                }, (of_topics, of_brokers, topic)
