"""Metadata and descriptions over real sockets, in every version."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.handlers.metadata import MetadataHandlers
from sediment.server.read_only.catalog import Catalog
from sediment.server.requests import Request, RequestTimes
from tests.retriable_errors import RETRIABLE
from tests.server.handlers.clusters import NODE, only, served
from tests.server.network.listeners import Client
from tests.server.read_only.log_dirs import write_epochs, write_partition

VERSIONS = list(supported_versions(ApiKey.METADATA))
NO_ID = uuid.UUID(int=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Catalog]]:
    logs: Path = tmp_path_factory.mktemp("logs")
    for name in ("a-0", "a-2", "b-0", "__consumer_offsets-0"):
        write_partition(logs, name, 3)
    write_epochs(logs / "a-2", (6, 0))
    with served(logs) as found:
        yield found


def asked(name: str | None = None, topic_id: uuid.UUID = NO_ID) -> object:
    return m.MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_are_listed_with_this_server_as_their_leader(version: int, cluster: tuple[Client, Catalog]) -> None:
    client, catalog = cluster
    response = client.ask(m.MetadataRequest(topics=None if version else ()), version)
    broker = only(response.brokers)
    assert (broker.node_id, broker.host, broker.port) == (NODE.id, NODE.host, NODE.port)
    assert [topic.name for topic in response.topics] == ["__consumer_offsets", "a", "b"]
    if version >= 1:
        assert response.controller_id == NODE.id
        assert [topic.is_internal for topic in response.topics] == [True, False, False]
    if version >= 2:
        assert response.cluster_id == catalog.cluster_id
    if version >= 10:
        assert [topic.topic_id for topic in response.topics] == [topic.id for topic in catalog.topics()]
    first, elsewhere, second = response.topics[1].partitions
    assert (first.partition_index, elsewhere.partition_index, second.partition_index) == (0, 1, 2)
    assert (elsewhere.error_code, elsewhere.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (second.error_code, second.leader_id) == (ErrorCode.NONE, NODE.id)
    assert list(second.replica_nodes) == list(second.isr_nodes) == [NODE.id]
    assert second.leader_epoch == (6 if version >= 7 else -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_are_found_by_name_and_unknown_ones_have_errors(version: int, cluster: tuple[Client, Catalog]) -> None:
    client, _ = cluster
    names = ["b", "missing", "../b", "n" * 250, "b"]
    response = client.ask(m.MetadataRequest(topics=[asked(name) for name in names]), version)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("b", ErrorCode.NONE),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("../b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("n" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    if version >= 1:
        assert not client.ask(m.MetadataRequest(topics=()), version).topics


class CountedName(str):
    """A name that counts how often any name is hashed or compared."""

    __slots__ = ()
    uses = 0

    def __hash__(self) -> int:
        CountedName.uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedName.uses += 1
        return super().__eq__(other)

    def __lt__(self, other: str) -> bool:
        CountedName.uses += 1
        return super().__lt__(other)


def test_the_cost_of_unknown_names_grows_with_their_number_alone(cluster: tuple[Client, Catalog]) -> None:
    _, catalog = cluster
    handlers = MetadataHandlers(catalog, NODE, create_topics=lambda _: None)
    nothing: Any = None

    def uses_of(count: int) -> int:
        topics = [asked(CountedName(f"missing-{number}")) for number in range(count)]
        message = m.MetadataRequest(topics=topics, allow_auto_topic_creation=True)
        request = Request(ApiKey.METADATA, 12, 0, None, message, nothing, 0, RequestTimes(0), nothing)
        before = CountedName.uses
        assert len(handlers.metadata(request).topics) == count
        return CountedName.uses - before

    few, many = uses_of(400), uses_of(3200)
    assert few <= 400 * 8
    assert many <= 8 * few  # it would be about 64 times if each name were compared with the others


@pytest.mark.parametrize("name", [None, ""])  # Java clients send an empty name
@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(version: int, name: str | None, cluster: tuple[Client, Catalog]) -> None:
    client, catalog = cluster
    wanted, other = catalog.topic("a").id, uuid.uuid4()
    response = client.ask(m.MetadataRequest(topics=[asked(name, wanted), asked(name, other)]), version)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("a", wanted, ErrorCode.NONE),
        (None, other, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_in_versions_in_which_kafka_does_not_look_topics_up_by_them(
    version: int, cluster: tuple[Client, Catalog]
) -> None:
    client, catalog = cluster
    known, unknown = catalog.topic("a").id, uuid.uuid4()
    response = client.ask(m.MetadataRequest(topics=[asked("", known), asked("", unknown), asked("b")]), version)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("", known, ErrorCode.INVALID_REQUEST),
        ("", unknown, ErrorCode.INVALID_REQUEST),
        ("b", NO_ID, ErrorCode.INVALID_REQUEST),
    ]


def test_operations_that_are_allowed_are_those_of_a_reader(cluster: tuple[Client, Catalog]) -> None:
    client, _ = cluster
    response = client.ask(m.MetadataRequest(topics=[asked("b")], include_topic_authorized_operations=True), 13)
    assert only(response.topics).topic_authorized_operations == 1 << 3 | 1 << 8 | 1 << 10
    response = client.ask(m.MetadataRequest(topics=[asked("b")], include_cluster_authorized_operations=True), 8)
    assert response.cluster_authorized_operations == 1 << 8 | 1 << 10
    assert only(response.topics).topic_authorized_operations == -(1 << 31)


@pytest.mark.parametrize("version", list(supported_versions(ApiKey.DESCRIBE_CLUSTER)))
def test_the_cluster_is_this_broker(version: int, cluster: tuple[Client, Catalog]) -> None:
    client, catalog = cluster
    response = client.ask(m.DescribeClusterRequest(), version)
    broker = only(response.brokers)
    assert (response.error_code, response.cluster_id) == (ErrorCode.NONE, catalog.cluster_id)
    assert (response.controller_id, broker.broker_id, broker.host, broker.port) == (7, 7, NODE.host, NODE.port)
    if version >= 1:
        for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            assert client.ask(m.DescribeClusterRequest(endpoint_type=kind), version).error_code == code


def described(client: Client, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None):
    request = m.DescribeTopicPartitionsRequest
    response = client.ask(
        request(
            topics=[request.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        ),
        0,
    )
    topics = [
        (topic.name, topic.error_code, [each.partition_index for each in topic.partitions]) for topic in response.topics
    ]
    following = response.next_cursor
    return topics, None if following is None else (following.topic_name, following.partition_index)


def test_partitions_are_described_page_by_page(cluster: tuple[Client, Catalog]) -> None:
    client, _ = cluster
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert described(client) == ([("__consumer_offsets", 0, [0]), ("a", 0, [0, 1, 2]), ("b", 0, [0])], None)
    assert described(client, "b", "zz", "a", "a") == ([("a", 0, [0, 1, 2]), ("b", 0, [0]), ("zz", unknown, [])], None)
    found, cursor = [], None
    for _ in range(10):
        page, cursor = described(client, limit=1, cursor=cursor)
        assert sum(len(numbers) for _, _, numbers in page) == 1
        found += [(name, number) for name, _, numbers in page for number in numbers]
        if cursor is None:
            break
    assert found == [("__consumer_offsets", 0), ("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert described(client, cursor=("a", 2)) == ([("a", 0, [2]), ("b", 0, [0])], None)
    request = m.DescribeTopicPartitionsRequest
    response = client.ask(request(topics=[request.TopicRequest(name="a")]), 0)
    led = [(each.error_code, each.leader_id) for each in only(response.topics).partitions]
    assert led == [(0, NODE.id), (ErrorCode.LEADER_NOT_AVAILABLE, -1), (0, NODE.id)]


def test_what_tools_ask_besides_is_answered(cluster: tuple[Client, Catalog]) -> None:
    client, _ = cluster
    response = client.ask(m.ListPartitionReassignmentsRequest(topics=None), 0)
    assert (response.error_code, response.topics) == (ErrorCode.NONE, ())
    for version in supported_versions(ApiKey.ELECT_LEADERS):
        request = m.ElectLeadersRequest
        wanted = [request.TopicPartitions(topic="a", partitions=[0, 1, 3])]
        answer = client.ask(request(topic_partitions=wanted), version)
        results = only(answer.replica_election_results).partition_result
        assert [each.error_code for each in results] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
    for version in supported_versions(ApiKey.DESCRIBE_QUORUM):
        code = client.ask(m.DescribeQuorumRequest(), version).error_code
        assert code != ErrorCode.NONE
        assert code not in RETRIABLE
