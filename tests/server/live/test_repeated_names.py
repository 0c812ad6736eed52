"""Requests that name the same thing many times: it is described once, so a short request gets a short response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.regex import MAX_PATTERN_LENGTH
from tests.engine.live_logs import batch
from tests.server.live.nodes import commit, live, new_node, produce
from tests.server.network.listeners import Client

TOPIC = 2


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = new_node(tmp_path_factory.mktemp("node") / "data", {"t": 2, "__consumer_offsets": 1})
    with live(path) as server, server.connect() as connected:
        yield connected


def test_groups_are_described_once(client: Client) -> None:
    assert commit(client, "g", 5) is ErrorCode.NONE
    described = client.ask(m.DescribeGroupsRequest(groups=["g", "h", "g", "g"]), 5).groups
    assert [each.group_id for each in described] == ["g", "h"]
    described = client.ask(m.ConsumerGroupDescribeRequest(group_ids=["g", "h", "g"]), 1).groups
    assert [each.group_id for each in described] == ["g", "h"]


def test_all_offsets_of_a_group_are_fetched_once_and_named_ones_as_often_as_they_are_named(client: Client) -> None:
    assert commit(client, "g", 5) is ErrorCode.NONE
    request = m.OffsetFetchRequest
    every = request.OffsetFetchRequestGroup(group_id="g", topics=None)
    named = request.OffsetFetchRequestGroup(
        group_id="g", topics=[request.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    found = client.ask(request(groups=[every, named, every, named]), 9).groups
    offsets = [[(each.name, each.partitions[0].committed_offset) for each in group.topics] for group in found]
    assert offsets == 3 * [[("t", 5)]]


def test_configs_are_described_once_for_the_same_keys(client: Client) -> None:
    request = m.DescribeConfigsRequest

    def of(name: str, *keys: str) -> Any:
        return request.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=name, configuration_keys=list(keys) or None
        )

    asked = [of("t", "segment.ms"), of("t"), of("t", "segment.ms"), of("u"), of("t"), of("t", "segment.bytes")]
    found = client.ask(request(resources=asked), 4).results
    names = [(each.resource_name, len(each.configs)) for each in found]
    assert [(name, count if count < 2 else "all") for name, count in names] == [
        ("t", 1),
        ("t", "all"),
        ("u", 0),
        ("t", 1),
    ]


def test_producers_of_a_partition_are_described_once(client: Client) -> None:
    produce(client, batch(pid=7))
    request = m.DescribeProducersRequest
    topics = [request.TopicRequest(name="t", partition_indexes=[0, 1, 0]), request.TopicRequest(name="u")]
    (topic, unknown) = client.ask(request(topics=topics * 3), 0).topics
    assert [(each.partition_index, len(each.active_producers)) for each in topic.partitions] == [(0, 1), (1, 0)]
    assert (unknown.name, list(unknown.partitions)) == ("u", [])


def test_transactions_are_described_once_and_matched_within_the_limits_of_a_pattern(client: Client) -> None:
    found = client.ask(m.DescribeTransactionsRequest(transactional_ids=["a", "b", "a"]), 0).transaction_states
    assert [each.transactional_id for each in found] == ["a", "b"]
    for pattern, code in (
        ("a.*", ErrorCode.NONE),
        ("(", ErrorCode.INVALID_REGULAR_EXPRESSION),
        ("x" * (MAX_PATTERN_LENGTH + 1), ErrorCode.INVALID_REGULAR_EXPRESSION),
        ("(?:.?){900}(?:.?){900}", ErrorCode.INVALID_REGULAR_EXPRESSION),
    ):
        asked = m.ListTransactionsRequest(transactional_id_pattern=pattern, producer_id_filters=range(1000))
        assert client.ask(asked, 2).error_code == code, pattern
