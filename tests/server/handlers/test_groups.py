"""Members of groups, and views of groups, over real sockets and in all versions."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.stored_groups import GroupKind, StoredGroup
from tests.server.handlers.group_servers import (
    NODE,
    commit,
    group_server,
    join,
    join_request,
    stable,
    subscription,
    sync_request,
)
from tests.server.network.listeners import Client
from tests.waiting import wait_until


@pytest.fixture
def client() -> Iterator[Client]:
    with group_server() as (running, _), running.connect() as connected:
        yield connected


# --------------------------------------------------------------------------------------------------------- coordinator
@pytest.mark.parametrize("version", range(4))
def test_this_server_coordinates_a_group(client: Client, version: int) -> None:
    found = client.ask(m.FindCoordinatorRequest(key="readers"), version)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, *NODE)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_this_server_coordinates_several_groups_and_transactions(client: Client, version: int) -> None:
    for key_type in (0, 1):
        found = client.ask(m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a", "b"]), version)
        assert [(each.key, each.error_code, each.node_id, each.port) for each in found.coordinators] == [
            ("a", 0, 7, 9092),
            ("b", 0, 7, 9092),
        ]


def test_coordinators_of_share_groups_are_not_found(client: Client) -> None:
    (found,) = client.ask(m.FindCoordinatorRequest(key_type=2, coordinator_keys=["a"]), 6).coordinators
    assert (found.error_code, found.node_id, found.host) == (ErrorCode.INVALID_REQUEST, -1, "")


# ------------------------------------------------------------------------------------------------------------- members
@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_in_every_version(client: Client, version: int) -> None:
    joined = join(client, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert [member.metadata for member in joined.members] == [subscription()]
    assert joined.member_id.startswith("test-")


@pytest.mark.parametrize("version", range(6))
def test_a_leader_syncs_in_every_version(client: Client, version: int) -> None:
    joined = join(client)
    request = sync_request(1, joined.member_id, {joined.member_id: b"all"})
    synced = client.ask(request, version)
    assert (synced.error_code, synced.assignment) == (0, b"all")


def test_a_sync_without_protocol_is_refused(client: Client) -> None:
    joined = join(client)
    synced = client.ask(sync_request(1, joined.member_id, protocol_name=None), 5)
    assert synced.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_in_every_version(client: Client, version: int) -> None:
    joined = stable(client)

    def beat(generation: int, group: str = "readers") -> int:
        request = m.HeartbeatRequest(group_id=group, generation_id=generation, member_id=joined.member_id)
        error: int = client.ask(request, version).error_code
        return error

    assert beat(1) == ErrorCode.NONE
    assert beat(2) == ErrorCode.ILLEGAL_GENERATION
    assert beat(1, "nothing") == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(1, "") == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(3))
def test_one_member_leaves_in_early_versions(client: Client, version: int) -> None:
    joined = stable(client)
    for group, expected in (("", 24), ("nothing", 25), ("readers", 0), ("readers", 25)):
        left = client.ask(m.LeaveGroupRequest(group_id=group, member_id=joined.member_id), version)
        assert left.error_code == expected


@pytest.mark.parametrize("version", range(3, 6))
def test_several_members_leave_in_later_versions(client: Client, version: int) -> None:
    joined = stable(client)
    identity = m.LeaveGroupRequest.MemberIdentity
    members = [identity(member_id="unknown"), identity(member_id=joined.member_id)]
    for group, error, errors in (("", 24, []), ("nothing", 0, [25, 25]), ("readers", 0, [25, 0])):
        left = client.ask(m.LeaveGroupRequest(group_id=group, members=members), version)
        assert (left.error_code, [each.error_code for each in left.members]) == (error, errors)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 49}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_joins_that_are_refused(client: Client, fields: dict[str, object], error: ErrorCode) -> None:
    assert client.ask(join_request(**fields), 9).error_code == error


def test_two_members_share_a_group_and_one_takes_over(client: Client) -> None:
    with group_server() as (running, _), running.connect() as first, running.connect() as second:
        leader = stable(first)
        answers: list[object] = []
        joining = threading.Thread(target=lambda: answers.append(join(second)))
        joining.start()
        beat = m.HeartbeatRequest(group_id="readers", generation_id=1, member_id=leader.member_id)
        wait_until(lambda: first.ask(beat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        led = first.ask(join_request(member_id=leader.member_id), 9)
        joining.join(10)
        (follower,) = answers
        assert led.generation_id == follower.generation_id == 2
        assert {member.member_id for member in led.members} == {leader.member_id, follower.member_id}
        second.send(sync_request(2, follower.member_id), 5)
        first.ask(sync_request(2, leader.member_id, {follower.member_id: b"mine"}), 5)
        assert second.receive(m.SyncGroupRequest.API_KEY, 5)[1].assignment == b"mine"


def test_a_session_ends_without_heartbeats() -> None:
    with group_server() as (running, _), running.connect() as client:
        joined = join(client, session_timeout_ms=50)
        beat = m.HeartbeatRequest(group_id="readers", generation_id=1, member_id=joined.member_id)
        described = m.DescribeGroupsRequest(groups=["readers"])
        wait_until(lambda: client.ask(described, 6).groups[0].group_state == "Empty")
        assert client.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_wait_are_answered_when_the_server_stops() -> None:
    slow = group_server(group_initial_rebalance_delay_ms=60_000)
    with slow as (running, coordinator), running.connect() as client:
        pending = client.ask(join_request(), 9)
        client.send(join_request(member_id=pending.member_id), 9)
        wait_until(lambda: coordinator.describe("readers")[1].members != ())
        coordinator.close()
        assert client.receive(m.JoinGroupRequest.API_KEY, 9)[1].error_code == ErrorCode.NOT_COORDINATOR
        assert join(client).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_clients_are_asked_to_retry_until_the_groups_are_loaded() -> None:
    with group_server(load=False) as (running, coordinator), running.connect() as client:
        assert join(client).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert client.ask(m.ListGroupsRequest(), 5).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        described = client.ask(m.DescribeGroupsRequest(groups=["readers"]), 6).groups[0]
        assert described.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert commit(client, {0: 1}) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        beat = m.HeartbeatRequest(group_id="readers", generation_id=1, member_id="m")
        assert client.ask(beat, 4).error_code == ErrorCode.NONE
        coordinator.load({})
        assert join(client).error_code == ErrorCode.NONE


# --------------------------------------------------------------------------------------------------------------- views
STORED = {
    "classic": StoredGroup(GroupKind.CLASSIC, 4, "consumer"),
    "simple": StoredGroup(GroupKind.CLASSIC),
    "modern": StoredGroup(GroupKind.CONSUMER),
    "shared": StoredGroup(GroupKind.SHARE),
}


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(version: int) -> None:
    with group_server(STORED) as (running, _), running.connect() as client:
        found = client.ask(m.ListGroupsRequest(), version).groups
    assert {each.group_id: each.protocol_type for each in found} == {
        "classic": "consumer",
        "simple": "",
        "modern": "consumer",
        "shared": "share",
    }
    if version >= 5:
        assert {each.group_id: (each.group_state, each.group_type) for each in found} == {
            "classic": ("Empty", "classic"),
            "simple": ("Empty", "classic"),
            "modern": ("Empty", "consumer"),
            "shared": ("Empty", "share"),
        }


def test_groups_are_listed_by_state_and_type() -> None:
    with group_server(STORED) as (running, _), running.connect() as client:
        stable(client)

        def listed(**filters: list[str]) -> set[str]:
            return {each.group_id for each in client.ask(m.ListGroupsRequest(**filters), 5).groups}

        assert listed(states_filter=[" STABLE "]) == {"readers"}
        assert listed(types_filter=["Consumer"]) == {"modern"}
        assert listed(states_filter=["Empty"], types_filter=["classic"]) == {"classic", "simple"}
        assert listed(types_filter=["none such"]) == set()


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described_in_every_version(client: Client, version: int) -> None:
    joined = stable(client)
    described, absent = client.ask(m.DescribeGroupsRequest(groups=["readers", "nothing"]), version).groups
    assert (described.error_code, described.group_state, described.protocol_type) == (0, "Stable", "consumer")
    assert described.protocol_data == "range"
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription(), b"assigned")
    assert absent.group_state == "Dead"
    assert absent.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


def test_operations_are_described_where_asked_for(client: Client) -> None:
    stable(client)
    for asked, operations in ((False, -(1 << 31)), (True, 0b1101_0100_1000)):
        request = m.DescribeGroupsRequest(groups=["readers"], include_authorized_operations=asked)
        assert client.ask(request, 6).groups[0].authorized_operations == operations


def test_stored_groups_are_described_and_joined() -> None:
    with group_server(STORED) as (running, _), running.connect() as client:
        described = client.ask(m.DescribeGroupsRequest(groups=list(STORED)), 6).groups
        assert [(each.error_code, each.group_state) for each in described] == [
            (0, "Empty"),
            (0, "Empty"),
            (0, "Empty"),
            (ErrorCode.GROUP_ID_NOT_FOUND, "Dead"),
        ]
        assert join(client, group="classic").generation_id == 5
        assert join(client, group="modern").generation_id == 1
        assert join(client, group="shared").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_groups_without_members_and_offsets_are_forgotten_after_a_time() -> None:
    stored = {"idle": StoredGroup(GroupKind.CLASSIC)}
    with group_server(stored, offsets_retention_check_interval_ms=30) as (running, _), running.connect() as client:
        commit(client, {0: 5}, group="kept")
        joined = join(client, group="used")
        assert joined.error_code == ErrorCode.NONE
        wait_until(lambda: {g.group_id for g in client.ask(m.ListGroupsRequest(), 5).groups} == {"kept", "used"})
