"""Groups on a live server: their members after a restart, and deletions of groups and offsets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.coordinator_log import coordinator_partition
from tests.engine.managed import FailingFs
from tests.server.handlers.group_servers import join_request, subscription, sync_request
from tests.server.live.nodes import commit, live, new_node, two_directories
from tests.server.live.test_topics import delete as delete_topics
from tests.server.network.listeners import Client

OFFSETS = "__consumer_offsets"
GROUP = "readers"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_node(tmp_path / "data", {"t": 2, "orders": 1, OFFSETS: 2})


def loaded(client: Client, message: Any, version: int) -> Any:
    """Ask until the groups are loaded."""
    while True:
        response = client.ask(message, version)
        parts = getattr(response, "groups", None) or getattr(response, "results", None) or [response]
        if all(each.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for each in parts):
            return response


def member_of(client: Client) -> str:
    """Join the group alone, take the assignment `a`, and return the member id."""
    answer = loaded(client, join_request(GROUP), 9)
    joined = client.ask(join_request(GROUP, answer.member_id), 9)
    assert joined.error_code == ErrorCode.NONE
    synced = client.ask(sync_request(joined.generation_id, joined.member_id, {joined.member_id: b"a"}), 5)
    assert synced.error_code == ErrorCode.NONE
    return str(joined.member_id)


def state_of(client: Client, group: str) -> tuple[str, list[tuple[str, bytes]]]:
    (found,) = loaded(client, m.DescribeGroupsRequest(groups=[group]), 5).groups
    return found.group_state, [(each.member_id, bytes(each.member_assignment)) for each in found.members]


def delete_group(client: Client, group: str) -> ErrorCode:
    (result,) = loaded(client, m.DeleteGroupsRequest(groups_names=[group]), 2).results
    return ErrorCode(result.error_code)


def delete_offset(client: Client, group: str, topic: str, number: int = 0) -> tuple[ErrorCode, ErrorCode | None]:
    """Return the errors of the request and of the partition."""
    request = m.OffsetDeleteRequest
    partition = request.OffsetDeleteRequestPartition(partition_index=number)
    asked = request.OffsetDeleteRequestTopic(name=topic, partitions=[partition])
    response = loaded(client, request(group_id=group, topics=[asked]), 0)
    codes = [ErrorCode(each.error_code) for topic in response.topics for each in topic.partitions]
    return ErrorCode(response.error_code), codes[0] if codes else None


def offsets_of(client: Client, group: str) -> dict[str, int]:
    request = m.OffsetFetchRequest
    asked = request(groups=[request.OffsetFetchRequestGroup(group_id=group, topics=None)])
    (found,) = loaded(client, asked, 8).groups
    return {topic.name: topic.partitions[0].committed_offset for topic in found.topics}


def test_members_and_assignments_survive_a_restart(path: Path) -> None:
    with live(path, group_initial_rebalance_delay_ms=0) as server, server.connect() as client:
        member = member_of(client)
    with live(path) as server, server.connect() as client:
        assert state_of(client, GROUP) == ("Stable", [(member, b"a")])
        heartbeat = m.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=member)
        assert client.ask(heartbeat, 4).error_code == ErrorCode.NONE
        leaving = m.LeaveGroupRequest.MemberIdentity(member_id=member)
        client.ask(m.LeaveGroupRequest(group_id=GROUP, members=[leaving]), 5)
    with live(path) as server, server.connect() as client:
        assert state_of(client, GROUP) == ("Empty", [])


def test_members_of_a_killed_server_are_there(path: Path, tmp_path: Path) -> None:
    with live(path, group_initial_rebalance_delay_ms=0) as server, server.connect() as client:
        member = member_of(client)
        shutil.copytree(path, tmp_path / "killed")
    with live(tmp_path / "killed") as server, server.connect() as client:
        assert state_of(client, GROUP) == ("Stable", [(member, b"a")])


def test_a_group_without_members_is_deleted_with_its_offsets(path: Path) -> None:
    with live(path) as server, server.connect() as client:
        assert commit(client, GROUP, 5) is ErrorCode.NONE
        assert delete_group(client, GROUP) is ErrorCode.NONE
        assert delete_group(client, GROUP) is ErrorCode.GROUP_ID_NOT_FOUND
        assert delete_group(client, "") is ErrorCode.GROUP_ID_NOT_FOUND
        assert offsets_of(client, GROUP) == {}
    with live(path) as server, server.connect() as client:
        assert delete_group(client, GROUP) is ErrorCode.GROUP_ID_NOT_FOUND
        assert offsets_of(client, GROUP) == {}
        assert commit(client, GROUP, 6) is ErrorCode.NONE


def test_a_group_with_members_is_not_deleted(path: Path) -> None:
    with live(path, group_initial_rebalance_delay_ms=0) as server, server.connect() as client:
        member_of(client)
        assert delete_group(client, GROUP) is ErrorCode.NON_EMPTY_GROUP


def test_offsets_are_deleted_unless_a_member_reads_their_topic(path: Path) -> None:
    assert b"orders" in subscription()
    with live(path, group_initial_rebalance_delay_ms=0) as server, server.connect() as client:
        for topic in ("t", "orders"):
            assert commit(client, GROUP, 5, topic=topic) is ErrorCode.NONE
        member_of(client)
        assert delete_offset(client, GROUP, "orders") == (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        assert delete_offset(client, GROUP, "t") == (ErrorCode.NONE, ErrorCode.NONE)
        assert delete_offset(client, GROUP, "t", 1) == (ErrorCode.NONE, ErrorCode.NONE)
        assert delete_offset(client, GROUP, "t", 7) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert delete_offset(client, "other", "t") == (ErrorCode.GROUP_ID_NOT_FOUND, None)
        assert offsets_of(client, GROUP) == {"orders": 5}
    with live(path) as server, server.connect() as client:
        assert offsets_of(client, GROUP) == {"orders": 5}


def test_offsets_of_a_deleted_topic_are_deleted(path: Path) -> None:
    with live(path) as server, server.connect() as client:
        for topic in ("t", "orders"):
            assert commit(client, GROUP, 5, topic=topic) is ErrorCode.NONE
        delete_topics(client, "t")
        assert offsets_of(client, GROUP) == {"orders": 5}
    with live(path) as server, server.connect() as client:
        assert offsets_of(client, GROUP) == {"orders": 5}


def test_without_the_offsets_topic_no_assignment_is_answered(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path, group_initial_rebalance_delay_ms=0) as server, server.connect() as client:
        answer = loaded(client, join_request(GROUP), 9)
        joined = client.ask(join_request(GROUP, answer.member_id), 9)
        synced = client.ask(sync_request(1, joined.member_id, {joined.member_id: b"a"}), 5)
        assert synced.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_partition_of_the_offsets_topic_that_is_missing_moves_no_group(tmp_path: Path) -> None:
    # The logs of one directory cannot be created: its groups are refused, and the others are where a broker looks.
    first, second = two_directories(tmp_path)
    count = 4

    class Full(FailingFs):
        def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
            if second in path.parents:
                raise OSError(28, "no space", str(path))
            super().make_unsynced_directory(path, like=like)

    groups = {coordinator_partition(f"g{number}", count): f"g{number}" for number in range(40)}
    with live(first, second, fs=Full(), offsets_topic_num_partitions=count) as server, server.connect() as client:
        for _ in range(2):
            request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
            assert client.ask(request, 4).coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = server.server.catalog.topic(OFFSETS)
        assert found is not None
        assert 0 < len(found.partitions) < count
        for number in range(count):
            code = ErrorCode.NONE if number in found.partitions else ErrorCode.NOT_COORDINATOR
            assert commit(client, groups[number], 5) is code
        present = set(found.partitions)
    with live(first, second) as server, server.connect() as client:
        assert {number for number in groups if offsets_of(client, groups[number])} == present
