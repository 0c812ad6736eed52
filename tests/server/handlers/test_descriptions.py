"""Configs, log directories and producers over real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.logs import LogShape, write_random_log
from tests.server.handlers.clusters import NODE, only, served
from tests.server.network.listeners import Client
from tests.server.read_only.log_dirs import KRAFT, kraft_dir, write_partition

TOPIC, BROKER = 2, 4
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}
KAFKA = json.loads((KRAFT / "configs.json").read_text())


def configs(
    client: Client, kind: int, name: str, *, version: int = 4, keys: list[str] | None = None, synonyms: bool = False
) -> Any:
    request = m.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return only(client.ask(request(resources=[resource], include_synonyms=synonyms), version).results)


@pytest.mark.parametrize("version", list(supported_versions(ApiKey.DESCRIBE_CONFIGS)))
def test_topic_configs_are_those_that_kafka_describes_but_for_its_properties_file(version: int, tmp_path: Path) -> None:
    with served(kraft_dir(tmp_path / "broker")) as (client, catalog):
        for name in ("compacted", "plain", "__consumer_offsets"):
            if catalog.topic(name) is None:
                continue
            result = configs(client, TOPIC, name, version=version)
            assert result.error_code == ErrorCode.NONE
            got = {each.name: [each.value, SOURCES[each.config_source]] for each in result.configs}
            theirs = KAFKA["topics"][name]
            known = {key: value for key, value in theirs.items() if value[1] != "STATIC_BROKER_CONFIG"}
            static = {"segment.ms", "retention.ms"}  # from log.roll.hours and log.retention.hours of the file
            assert {key: got[key] for key in known if key not in static} == {
                key: value for key, value in known.items() if key not in static
            }
            assert got.keys() == theirs.keys()
        wanted = configs(client, TOPIC, "compacted", version=version, keys=["cleanup.policy", "nonsense"])
        assert [each.name for each in wanted.configs] == ["cleanup.policy"]


def test_synonyms_name_every_source_in_their_order(tmp_path: Path) -> None:
    with served(kraft_dir(tmp_path / "broker")) as (client, _):
        result = configs(client, TOPIC, "compacted", keys=["max.message.bytes"], synonyms=True)
        found = [(each.name, each.source) for each in only(result.configs).synonyms]
        assert found[0] == ("message.max.bytes", 2)
        assert found[-1] == ("message.max.bytes", 5)


def test_broker_configs_show_no_value_that_may_be_secret(tmp_path: Path) -> None:
    with served(kraft_dir(tmp_path / "broker")) as (client, catalog):
        result = configs(client, BROKER, str(NODE.id))
        by_name = {each.name: each for each in result.configs}
        assert by_name["log.cleaner.threads"].value == "1"
        assert by_name["message.max.bytes"].config_source in (2, 3)
        assert not any(name.startswith("sediment") for name in by_name)
        for each in configs(client, BROKER, "").configs:
            assert each.config_source == 3
        assert catalog.metadata is not None
        assert configs(client, BROKER, "99").error_code == ErrorCode.INVALID_REQUEST
        assert configs(client, 8, "1").error_code == ErrorCode.INVALID_REQUEST


def test_configs_of_unknown_topics_are_errors(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", 1)
    with served(tmp_path) as (client, _):
        assert configs(client, TOPIC, "u").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert configs(client, TOPIC, "../t").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        policy = only(configs(client, TOPIC, "t", keys=["cleanup.policy"]).configs)
        assert (policy.value, policy.config_source, policy.config_type) == ("delete", 5, 7)


@pytest.mark.parametrize("version", list(supported_versions(ApiKey.DESCRIBE_LOG_DIRS)))
def test_log_directories_have_the_sizes_of_their_logs(version: int, tmp_path: Path) -> None:
    for name in ("one/t-0", "one/u-0", "two/t-1"):
        write_partition(tmp_path / name.split("/")[0], name.split("/")[1], 5)
    size = (tmp_path / "one" / "t-0" / f"{0:020d}.log").stat().st_size
    request = m.DescribeLogDirsRequest
    with served(tmp_path / "one", tmp_path / "two") as (client, _):
        results = client.ask(request(topics=None), version).results
        assert [result.log_dir for result in results] == [str(tmp_path / "one"), str(tmp_path / "two")]
        assert [[topic.name for topic in result.topics] for result in results] == [["t", "u"], ["t"]]
        assert only(results[0].topics[0].partitions).partition_size == size
        if version >= 4:
            assert results[0].total_bytes >= results[0].usable_bytes > 0
        wanted = [request.DescribableLogDirTopic(topic="t", partitions=[1])]
        results = client.ask(request(topics=wanted), version).results
        assert [[topic.name for topic in result.topics] for result in results] == [[], ["t"]]


def test_producers_are_those_of_the_log(tmp_path: Path) -> None:
    write_random_log(tmp_path / "t-0", 4, LogShape(batches=80, transactional=0.6, emptied=0))
    request = m.DescribeProducersRequest
    with served(tmp_path) as (client, catalog):
        wanted = [request.TopicRequest(name="t", partition_indexes=[0, 1])]
        there, missing = only(client.ask(request(topics=wanted), 0).topics).partitions
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        got = {
            (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
            for each in there.active_producers
        }
        assert got == {
            (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_first_offset)
            for each in catalog.partition("t", 0).producers
        }
        assert got
