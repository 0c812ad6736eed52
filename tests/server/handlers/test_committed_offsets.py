"""OffsetCommit and OffsetFetch over real sockets and in all versions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.stored_groups import GroupKind, StoredGroup
from tests.server.handlers.group_servers import ORDERS, PAYMENTS, commit, fetch, group_server, join, stable
from tests.server.network.listeners import Client


@pytest.fixture
def client() -> Iterator[Client]:
    with group_server() as (running, _), running.connect() as connected:
        yield connected


def stored_group() -> StoredGroup:
    group = StoredGroup(GroupKind.CLASSIC, 3, "consumer")
    for topic, partition, offset in (("orders", 0, 10), ("orders", 1, 11), ("deleted", 0, 12)):
        group.offsets.commit(topic, partition, CommittedOffset(offset, 2, "note"))
    group.offsets.commit_in_transaction(9, "orders", 1, CommittedOffset(20))
    return group


# -------------------------------------------------------------------------------------------------------------- commit
@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_are_committed_in_every_version(client: Client, version: int) -> None:
    assert commit(client, {0: 5, 1: 6}, version) == [0, 0]
    assert fetch(client) == {("orders", 0): (5, 0), ("orders", 1): (6, 0)}


def test_offsets_are_committed_by_topic_id(client: Client) -> None:
    assert commit(client, {0: 5}, 10, topic_id=ORDERS.id) == [0]
    assert commit(client, {0: 5}, 10, topic_id=uuid.UUID(int=9)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert fetch(client) == {("orders", 0): (5, 0)}


def test_topics_and_partitions_must_be_there(client: Client) -> None:
    assert commit(client, {0: 5, 3: 5, -1: 5}) == [0, 3, 3]
    assert commit(client, {0: 5}, topic="nothing") == [3]
    assert fetch(client) == {("orders", 0): (5, 0)}


def test_metadata_has_a_largest_size(client: Client) -> None:
    assert commit(client, {0: 5}, metadata="m" * 4096) == [0]
    assert commit(client, {0: 6}, metadata="m" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert fetch(client) == {("orders", 0): (5, 0)}


def test_a_member_commits_with_its_generation(client: Client) -> None:
    joined = stable(client)
    mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert commit(client, {0: 5}, **mine) == [0]
    assert commit(client, {0: 5}, **{**mine, "generation_id_or_member_epoch": 0}) == [ErrorCode.ILLEGAL_GENERATION]
    assert commit(client, {0: 5}, **{**mine, "member_id": "unknown"}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert commit(client, {0: 5}) == [ErrorCode.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_needs_a_group(client: Client, version: int, error: ErrorCode) -> None:
    assert commit(client, {0: 5}, version, member_id="m", generation_id_or_member_epoch=1) == [error]


def test_the_empty_group_id_is_a_group_for_offsets(client: Client) -> None:
    assert commit(client, {0: 5}, group="") == [0]
    assert fetch(client, "") == {("orders", 0): (5, 0)}


# --------------------------------------------------------------------------------------------------------------- fetch
@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_of_one_group_are_fetched_in_early_versions(version: int) -> None:
    with group_server({"readers": stored_group()}) as (running, _), running.connect() as client:
        request = m.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 2])
        found = client.ask(request(group_id="readers", topics=[topic]), version)
        (answer,) = found.topics
        assert found.error_code == 0
        assert [(each.partition_index, each.committed_offset, each.metadata) for each in answer.partitions] == [
            (0, 10, "note"),
            (2, -1, ""),
        ]
        if version >= 2:
            found = client.ask(request(group_id="readers", topics=None), version)
            assert {each.name for each in found.topics} == {"orders", "deleted"}


@pytest.mark.parametrize("version", [8, 9])
def test_offsets_of_several_groups_are_fetched(version: int) -> None:
    with group_server({"readers": stored_group()}) as (running, _), running.connect() as client:
        commit(client, {2: 7}, group="auditors")
        request = m.OffsetFetchRequest
        topics = [request.OffsetFetchRequestTopics(name="orders", partition_indexes=[2, 0])]
        groups = [
            request.OffsetFetchRequestGroup(group_id="readers", topics=topics),
            request.OffsetFetchRequestGroup(group_id="auditors", topics=topics),
            request.OffsetFetchRequestGroup(group_id="nothing", topics=topics),
            request.OffsetFetchRequestGroup(group_id="readers", topics=None),
        ]
        found = client.ask(request(groups=groups), version).groups
        assert [each.error_code for each in found] == [0] * 4
        offsets = [[[each.committed_offset for each in topic.partitions] for topic in group.topics] for group in found]
        assert offsets == [[[-1, 10]], [[7, -1]], [[-1, -1]], [[10, 11], [12]]]


def test_offsets_are_fetched_by_topic_id() -> None:
    group = stored_group()
    former = CommittedOffset(5, topic_id=uuid.UUID(int=77))
    group.offsets.commit("payments", 0, former)
    with group_server({"readers": group}) as (running, _), running.connect() as client:
        request = m.OffsetFetchRequest
        topics = [
            request.OffsetFetchRequestTopics(topic_id=uuid.UUID(int=9), partition_indexes=[0]),
            request.OffsetFetchRequestTopics(topic_id=ORDERS.id, partition_indexes=[0]),
            request.OffsetFetchRequestTopics(topic_id=PAYMENTS.id, partition_indexes=[0]),
        ]
        asked = [
            request.OffsetFetchRequestGroup(group_id="readers", topics=topics),
            request.OffsetFetchRequestGroup(group_id="readers", topics=None),
        ]
        some, everything = client.ask(request(groups=asked), 10).groups
        assert [(t.topic_id, t.partitions[0].committed_offset, t.partitions[0].error_code) for t in some.topics] == [
            (uuid.UUID(int=9), -1, ErrorCode.UNKNOWN_TOPIC_ID),
            (ORDERS.id, 10, 0),
            (PAYMENTS.id, -1, 0),
        ]
        assert {topic.topic_id for topic in everything.topics} == {ORDERS.id, PAYMENTS.id}


def test_an_offset_in_an_open_transaction_is_unstable() -> None:
    with group_server({"readers": stored_group()}) as (running, _), running.connect() as client:
        assert fetch(client, partitions=[0, 1]) == {("orders", 0): (10, 0), ("orders", 1): (11, 0)}
        unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert fetch(client, partitions=[0, 1], require_stable=True) == {
            ("orders", 0): (10, 0),
            ("orders", 1): unstable,
        }
        assert fetch(client, require_stable=True)["orders", 1] == unstable


def test_offsets_cannot_be_fetched_until_they_are_loaded() -> None:
    with group_server(load=False) as (running, _), running.connect() as client:
        request = m.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        first = client.ask(request(group_id="readers", topics=[topic]), 1)
        assert first.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        later = client.ask(request(group_id="readers", topics=[topic]), 7)
        assert (later.error_code, later.topics) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
        asked = request.OffsetFetchRequestGroup(group_id="readers", topics=None)
        latest = client.ask(request(groups=[asked]), 9)
        assert latest.groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# --------------------------------------------------------------------------------------------------------------- state
def test_commits_in_a_state_directory_outlive_the_server_and_win_over_the_log_directory(tmp_path: Path) -> None:
    stored = {"readers": stored_group()}
    with group_server(stored, tmp_path / "state") as (running, _), running.connect() as client:
        assert commit(client, {0: 99}) == [0]
        assert join(client).error_code == 0
    stored = {"readers": stored_group()}
    with group_server(stored, tmp_path / "state") as (running, _), running.connect() as client:
        assert fetch(client, partitions=[0, 1]) == {("orders", 0): (99, 0), ("orders", 1): (11, 0)}


def test_commits_without_a_state_directory_end_with_the_server() -> None:
    with group_server() as (running, _), running.connect() as client:
        assert commit(client, {0: 99}) == [0]
    with group_server() as (running, _), running.connect() as client:
        assert fetch(client, partitions=[0]) == {("orders", 0): (-1, 0)}
