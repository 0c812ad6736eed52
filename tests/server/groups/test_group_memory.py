"""Limits on the memory that clients make groups hold: over real sockets, and what is given back."""

from __future__ import annotations

import random
import select
import time
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import Timer
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.group_requests import JoinAnswer, JoinRequest, MemberIdentity, SyncRequest
from sediment.server.server_config import ServerConfig
from tests.server.groups.group_driver import GroupDriver
from tests.server.handlers.group_servers import commit, fetch, group_server, join_request
from tests.server.network.listeners import Client, Running
from tests.waiting import wait_until

MIB = 1 << 20


def large_join(size_bytes: int, group: str = "readers", member_id: str = "") -> Any:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(size_bytes))
    return join_request(group, member_id, protocols=[protocol])


def join_all(running: Running, joins: list[Any], waiting: int) -> list[Client]:
    """Send each join on a connection of its own, and return those that were refused, once `waiting` are left."""
    clients = [running.connect() for _ in joins]
    for client, join in zip(clients, joins, strict=True):
        client.send(join, 3)  # a version that takes one step
    answered: list[Client] = []

    def enough() -> bool:
        nonlocal answered
        poller = select.poll()  # `select` takes no descriptor above 1023, and a server reserves many
        for client in clients:
            poller.register(client.socket, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(0)}
        answered = [client for client in clients if client.socket.fileno() in ready]
        return len(answered) >= len(joins) - waiting

    wait_until(enough)
    for client in answered:
        assert client.receive(m.JoinGroupRequest.API_KEY, 3)[1].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    return answered


def test_thirty_joins_of_seven_mib_do_not_wait_together() -> None:
    with group_server(group_initial_rebalance_delay_ms=60_000) as (running, coordinator):
        refused = join_all(running, [large_join(7 * MIB) for _ in range(30)], waiting=2)
        wait_until(lambda: coordinator.memory.free_bytes > (128 - 15) * MIB)
        assert len(refused) == 28
        assert len(coordinator.describe("readers")[1].members) == 2


def test_members_of_all_groups_together_are_limited_too(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"group_members_max_bytes": 300_000, "groups_max_bytes": 500_000, "num_io_threads": 1}
    with group_server(group_initial_rebalance_delay_ms=60_000, **limits) as (running, _):
        refused = join_all(running, [large_join(200_000, f"group-{number}") for number in range(5)], waiting=2)
        assert len(refused) == 3
    assert "sediment.groups.max.bytes is reached" in caplog.text


def test_a_member_whose_metadata_grew_too_large_is_removed() -> None:
    driver = GroupDriver(group_members_max_bytes=10_000)
    first, second = driver.stable(2)
    waiting = driver.join(second, protocols=(("range", bytes(9_000)),))
    assert waiting.answer == JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.member_ids() == [first]


def test_ids_that_are_given_out_to_joining_members_count() -> None:
    driver = GroupDriver(group_members_max_bytes=10_000)
    errors = [driver.join().answer.error for _ in range(20)]
    refused = errors.count(ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * (20 - refused) + [ErrorCode.GROUP_MAX_SIZE_REACHED] * refused
    assert refused >= 10
    driver.pass_ms(10_000)
    assert driver.group.size_bytes == 0


def test_assignments_that_are_too_large_are_refused_as_kafka_refuses_a_record_too_large() -> None:
    driver = GroupDriver(group_members_max_bytes=10_000)
    first, second = driver.completing(2)
    follower = driver.sync(second, 1)
    leader = driver.sync(first, 1, {first: bytes(4_000), second: bytes(5_000)})
    assert leader.answer.error is follower.answer.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.group.size_bytes < 5_000


def test_commits_stop_at_the_limit_and_replaced_offsets_do_not_count_twice() -> None:
    with group_server(groups_max_bytes=20_000) as (running, _), running.connect() as client:
        errors = [commit(client, {0: 1}, group=f"group-{number}")[0] for number in range(20)]
        accepted = errors.count(ErrorCode.NONE)
        assert errors == [0] * accepted + [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * (20 - accepted)
        assert 5 <= accepted <= 10
        for offset in range(100):
            assert commit(client, {0: offset}, group="group-0") == [0]
        assert commit(client, {0: 7}, group="group-0", metadata="m" * 4_000) == [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
        assert fetch(client, "group-0", [0]) == {("orders", 0): (99, 0)}


@pytest.mark.parametrize("seed", range(5))
def test_all_that_members_took_is_given_back(seed: int) -> None:
    """Random members come, grow, sync, stay away and leave; in the end only groups and offsets count."""
    dice = random.Random(seed)
    now = [0]
    timer = Timer()
    config = ServerConfig(group_min_session_timeout_ms=1, group_initial_rebalance_delay_ms=0, groups_max_bytes=200_000)
    coordinator = GroupCoordinator(config, timer, lambda: now[0])
    coordinator.load({})
    answers: list[tuple[str, JoinAnswer]] = []
    for _ in range(300):
        group = f"group-{dice.randrange(3)}"
        known = [answer for name, answer in answers[-6:] if name == group]
        member_id = known[-1].member_id if known and dice.random() < 0.7 else ""
        act = dice.randrange(5)
        if act < 3:
            protocols = (("range", bytes(dice.randrange(20_000))),)
            join = JoinRequest(member_id, None, "c" * dice.randrange(30), "/h", 50, 50, "consumer", protocols)
            coordinator.join(group, join, lambda answer, group=group: answers.append((group, answer)))
        elif act == 3 and known:
            assignments = ((member_id, bytes(dice.randrange(20_000))),)
            sync = SyncRequest(member_id, None, known[-1].generation, assignments=assignments)
            coordinator.sync(group, sync, lambda answer: None)
        else:
            coordinator.leave(group, [MemberIdentity(member_id)])
        coordinator.commit(f"offsets-{dice.randrange(5)}", MemberIdentity(""), -1, [("t", 0, CommittedOffset(1))])
        assert 0 <= coordinator.memory.free_bytes <= 200_000
    everyone = time.monotonic() + 10
    while time.monotonic() < everyone and coordinator.memory.free_bytes < 180_000:
        now[0] += 60_000 * 1_000_000
        for group in range(3):
            for member in coordinator.describe(f"group-{group}")[1].members:
                coordinator.leave(f"group-{group}", [MemberIdentity(member.member_id)])
        time.sleep(0.01)
    wait_until(lambda: 180_000 <= coordinator.memory.free_bytes < 200_000)
    coordinator.close()
    timer.close()
