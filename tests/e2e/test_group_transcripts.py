"""One script of requests of groups, to a broker of Kafka 4.2.0 and to Sediment's server: equal responses.

Member ids and topic ids are compared by the order in which they first appear; addresses and error texts differ.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.e2e.kraft import KafkaNode, running
from tests.server.handlers.group_servers import (
    ORDERS,
    commit_request,
    group_server,
    join_request,
    subscription,
    sync_request,
)
from tests.server.network.listeners import Client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_PASSING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
_DIFFERENT = {"throttle_time_ms", "host", "port", "node_id", "error_message"}


# ---------------------------------------------------------------------------------------------------------- transcript
class Transcript:
    """Conversation with one server; `lines` are the normalized responses.

    The group `readers` of a script is one of its own, which is called `group` on the wire.
    """

    def __init__(self, port: int, group: str, orders: uuid.UUID) -> None:
        self.lines: list[tuple[str, Any]] = []
        self.orders = orders
        self._port = port
        self._group = group
        self._names: dict[str, str] = {}
        self._clients: dict[str, Client] = {}

    def client(self, name: str) -> Client:
        if name not in self._clients:
            self._clients[name] = Client(socket.create_connection(("127.0.0.1", self._port), timeout=60))
        return self._clients[name]

    def ask(self, message: Any, version: int, *, by: str = "one") -> Any:
        response = self.ask_unrecorded(message, version, by=by)
        self._write(message, version, response)
        return response

    def ask_unrecorded(self, message: Any, version: int, *, by: str) -> Any:
        return self.client(by).ask(self._renamed(message), version)

    def send(self, message: Any, version: int, *, by: str) -> None:
        self.client(by).send(self._renamed(message), version)

    def receive(self, message: Any, version: int, *, by: str) -> Any:
        _, response = self.client(by).receive(ApiKey(message.API_KEY), version)
        self._write(message, version, response)
        return response

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()

    def _renamed(self, value: Any) -> Any:
        """Return a request with the group of the script in place of `readers`."""
        if hasattr(value, "FIELDS"):
            fields = {field.attribute: self._renamed(getattr(value, field.attribute)) for field in value.FIELDS}
            return type(value)(**fields)
        if isinstance(value, list | tuple):
            return [self._renamed(each) for each in value]
        return self._group if value == "readers" else value

    def _write(self, message: Any, version: int, response: Any) -> None:
        if isinstance(response, m.ListGroupsResponse):
            response.groups = [each for each in response.groups if each.group_id == self._group]
        self.lines.append((f"{type(message).__name__} v{version}", self._plain(response)))

    def _plain(self, value: Any) -> Any:
        if hasattr(value, "FIELDS"):
            fields = {field.attribute: getattr(value, field.attribute) for field in value.FIELDS}
            return {name: self._plain(each) for name, each in fields.items() if name not in _DIFFERENT}
        if isinstance(value, list | tuple):
            plain = [self._plain(each) for each in value]
            return sorted(plain, key=repr)
        if isinstance(value, uuid.UUID):
            return self._names.setdefault(str(value), f"id {len(self._names)}")
        if isinstance(value, memoryview):
            return bytes(value)
        if value == self._group:
            return "readers"
        if isinstance(value, str) and len(value) > 36 and value[-37] == "-":
            return self._names.setdefault(value, f"{value[:-37]} {len(self._names)}")
        return value


def ready(port: int) -> None:
    """Wait until the broker coordinates groups: its first request makes `__consumer_offsets`."""
    with Client(socket.create_connection(("127.0.0.1", port), timeout=60)) as client:
        limit = time.monotonic() + 120
        while True:
            found = client.ask(m.FindCoordinatorRequest(coordinator_keys=["readers"]), 6).coordinators[0]
            joined = client.ask(join_request("warm-up"), 9) if found.error_code == 0 else found
            if joined.error_code not in _PASSING:
                return
            assert time.monotonic() < limit
            time.sleep(0.2)


# -------------------------------------------------------------------------------------------------------------- scripts
def heartbeat(generation: int, member_id: str, **fields: Any) -> Any:
    return m.HeartbeatRequest(group_id="readers", generation_id=generation, member_id=member_id, **fields)


def leave(*members: tuple[str, str | None]) -> Any:
    identity = m.LeaveGroupRequest.MemberIdentity
    named = [identity(member_id=member, group_instance_id=instance) for member, instance in members]
    return m.LeaveGroupRequest(group_id="readers", members=named)


def describe(*groups: str) -> Any:
    return m.DescribeGroupsRequest(groups=list(groups), include_authorized_operations=True)


def join(transcript: Transcript, by: str, version: int = 9, **fields: Any) -> Any:
    response = transcript.ask(join_request(**fields), version, by=by)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = transcript.ask(join_request(member_id=response.member_id, **fields), version, by=by)
    return response


def until(transcript: Transcript, message: Any, by: str, holds: Callable[[Any], bool]) -> None:
    """Repeat a request, unrecorded, until its response is as expected."""
    limit = time.monotonic() + 60
    while not holds(transcript.ask_unrecorded(message, message.VERSIONS.highest_version, by=by)):
        assert time.monotonic() < limit
        time.sleep(0.02)


def rebalancing(transcript: Transcript, generation: int, member_id: str, by: str) -> None:
    def holds(response: Any) -> bool:
        return bool(response.error_code == ErrorCode.REBALANCE_IN_PROGRESS)

    until(transcript, heartbeat(generation, member_id), by, holds)


def one_member(transcript: Transcript) -> None:
    """Walk through the life of a group with one member, with every error on the way."""
    ask = transcript.ask
    for version in (0, 3):
        ask(m.FindCoordinatorRequest(key="readers"), version)
    ask(m.FindCoordinatorRequest(coordinator_keys=["readers"]), 6)
    ask(m.FindCoordinatorRequest(key_type=7, coordinator_keys=["readers"]), 5)
    ask(describe("readers"), 6)
    ask(describe("readers"), 5)
    ask(heartbeat(1, "unknown"), 4)
    ask(sync_request(1, "unknown"), 5)
    ask(leave(("unknown", None)), 5)
    ask(m.LeaveGroupRequest(group_id="readers", member_id="unknown"), 1)
    for fields in (
        {"group": ""},
        {"session_timeout_ms": 1},
        {"member_id": "unknown"},
        {"protocols": []},
        {"protocol_type": ""},
    ):
        ask(join_request(**fields), 9)
        ask(join_request(**fields), 5)
    joined = join(transcript, "one")
    me = joined.member_id
    ask(describe("readers"), 6)
    ask(heartbeat(1, me), 4)
    ask(commit_request({0: 1}, member_id=me, generation_id_or_member_epoch=1), 9)
    ask(sync_request(0, me), 5)
    ask(sync_request(1, me, protocol_name=None), 5)
    ask(sync_request(1, me, protocol_name="other"), 5)
    ask(sync_request(1, me, {me: b"assigned"}), 5)
    ask(sync_request(1, me), 3)
    ask(describe("readers", "nothing"), 6)
    ask(m.DescribeGroupsRequest(groups=["readers", "nothing"]), 0)
    ask(heartbeat(1, me), 0)
    ask(heartbeat(2, me), 4)
    ask(heartbeat(1, me, group_instance_id="pod"), 4)
    for generation, member in ((1, me), (2, me), (1, "unknown"), (-1, ""), (-1, me)):
        for version in (9, 5):
            ask(commit_request({0: 5}, member_id=member, generation_id_or_member_epoch=generation), version)
    ask(join_request(protocol_type="connect"), 9)
    joined = ask(join_request(member_id=me), 9)
    ask(join_request(member_id=me), 9)
    ask(sync_request(2, me), 5)
    ask(leave((me, "pod")), 5)
    ask(leave(("unknown", None), (me, None)), 5)
    ask(heartbeat(2, me), 4)
    ask(describe("readers"), 6)
    ask(m.ListGroupsRequest(states_filter=["empty"], types_filter=["Classic"]), 5)
    joined = join(transcript, "one", version=3)
    ask(leave((joined.member_id, None)), 3)


def two_members(transcript: Transcript) -> None:
    """Let a second member join, change its metadata, and leave."""
    leader = join(transcript, "one")
    transcript.ask(sync_request(1, leader.member_id), 5, by="one")
    pending = transcript.ask(join_request(), 9, by="two").member_id
    transcript.send(join_request(member_id=pending), 9, by="two")
    rebalancing(transcript, 1, leader.member_id, "one")
    transcript.ask(sync_request(1, leader.member_id), 5, by="one")
    transcript.ask(join_request(member_id=leader.member_id), 9, by="one")
    follower = transcript.receive(join_request(), 9, by="two")
    transcript.send(sync_request(2, follower.member_id), 5, by="two")
    given = {leader.member_id: b"0", follower.member_id: b"1"}
    transcript.ask(sync_request(2, leader.member_id, given), 5, by="one")
    transcript.receive(sync_request(0, ""), 5, by="two")
    transcript.ask(describe("readers"), 6)
    transcript.ask(join_request(member_id=follower.member_id), 9, by="two")
    other = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription(b"changed"))
    transcript.send(join_request(member_id=follower.member_id, protocols=[other]), 9, by="two")
    rebalancing(transcript, 2, leader.member_id, "one")
    transcript.ask(join_request(member_id=leader.member_id), 9, by="one")
    transcript.receive(join_request(), 9, by="two")
    transcript.ask(leave((follower.member_id, None)), 5, by="two")
    transcript.ask(heartbeat(3, leader.member_id), 4, by="one")
    transcript.ask(join_request(member_id=leader.member_id), 9, by="one")
    transcript.ask(leave((leader.member_id, None)), 5, by="one")


def static_members(transcript: Transcript) -> None:
    """Restart static members, fence their former selves, and remove one as an operator does."""
    leader = join(transcript, "one", group_instance_id="pod-1")
    transcript.ask(sync_request(1, leader.member_id, {leader.member_id: b"all"}), 5)
    for version in (9, 8):
        again = join(transcript, "one", version, group_instance_id="pod-1")
        transcript.ask(sync_request(1, again.member_id, group_instance_id="pod-1"), 5)
    for former in (leader.member_id, again.member_id):
        transcript.ask(heartbeat(1, former, group_instance_id="pod-1"), 4)
        transcript.ask(join_request(member_id=former, group_instance_id="pod-2"), 9)
    transcript.ask(sync_request(1, leader.member_id, group_instance_id="pod-1"), 5)
    fenced = {"member_id": leader.member_id, "group_instance_id": "pod-1", "generation_id_or_member_epoch": 1}
    transcript.ask(commit_request({0: 1}, **fenced), 9)
    transcript.ask(join_request(member_id=leader.member_id, group_instance_id="pod-1"), 9)
    transcript.ask(describe("readers"), 6)
    transcript.ask(leave((leader.member_id, "pod-1"), ("", "pod-2"), ("", "pod-1")), 5)
    transcript.ask(describe("readers"), 6)


def expiring_session(transcript: Transcript) -> None:
    """Let the session of one of two members end."""
    leader = join(transcript, "one", session_timeout_ms=30_000)
    transcript.ask(sync_request(1, leader.member_id), 5)
    pending = transcript.ask(join_request(session_timeout_ms=6000), 9, by="two").member_id
    transcript.send(join_request(member_id=pending, session_timeout_ms=6000), 9, by="two")
    rebalancing(transcript, 1, leader.member_id, "one")
    transcript.ask(join_request(member_id=leader.member_id, session_timeout_ms=30_000), 9, by="one")
    transcript.receive(join_request(), 9, by="two")
    transcript.ask(sync_request(2, leader.member_id), 5)
    rebalancing(transcript, 2, leader.member_id, "one")
    transcript.ask(join_request(member_id=leader.member_id), 9)
    transcript.ask(heartbeat(2, pending), 4, by="two")
    transcript.ask(leave((leader.member_id, None)), 5)


def offsets(transcript: Transcript) -> None:
    """Commit and fetch offsets in every version."""
    request = m.OffsetFetchRequest
    for version in range(2, 10):
        transcript.ask(commit_request({0: version, 1: 9}, metadata="note"), version)
    transcript.ask(commit_request({0: 1, 9: 1}), 9)
    transcript.ask(commit_request({0: 1}, topic="nothing"), 9)
    transcript.ask(commit_request({0: 1}, metadata="m" * 4097), 9)
    transcript.ask(commit_request({0: 1}, group=""), 9)
    for version in (8, 9):
        fields = {"group": "nothing", "member_id": "m", "generation_id_or_member_epoch": 1}
        transcript.ask(commit_request({0: 1}, **fields), version)
    topic = request.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 2, 77])
    for version in range(1, 8):
        transcript.ask(request(group_id="readers", topics=[topic]), version)
        transcript.ask(request(group_id="nothing", topics=[topic]), version)
    transcript.ask(request(group_id="readers", topics=None), 7)
    topics = [request.OffsetFetchRequestTopics(name=name, partition_indexes=[1, 5]) for name in ("orders", "nothing")]
    groups = [
        request.OffsetFetchRequestGroup(group_id=group, topics=asked)
        for group in ("readers", "nothing")
        for asked in (topics, None)
    ]
    for version in (8, 9):
        transcript.ask(request(groups=groups, require_stable=True), version)
    known = request.OffsetFetchRequestTopics(topic_id=transcript.orders, partition_indexes=[0, 2, 77])
    for version in (10, 9):
        transcript.ask(commit_request({0: version, 77: 1}, topic_id=transcript.orders), 10)
        by_id = [request.OffsetFetchRequestGroup(group_id="readers", topics=asked) for asked in ([known], None)]
        transcript.ask(request(groups=by_id), 10)
    missing = request.OffsetFetchRequestTopics(topic_id=uuid.uuid4(), partition_indexes=[0])
    transcript.ask(request(groups=[request.OffsetFetchRequestGroup(group_id="readers", topics=[missing])]), 10)
    transcript.ask(commit_request({0: 1}, topic_id=uuid.uuid4()), 10)
    transcript.ask(describe("readers"), 6)
    transcript.ask(m.ListGroupsRequest(types_filter=["consumer"]), 5)


SCRIPTS = (one_member, two_members, static_members, expiring_session, offsets)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, uuid.UUID]]:
    """Run a broker with a topic `orders`; yields its port and the topic's id."""
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "node")
    with running(node):
        port = int(node.bootstrap.rpartition(":")[2])
        with Client(socket.create_connection(("127.0.0.1", port), timeout=60)) as client:
            topic = m.CreateTopicsRequest.CreatableTopic(name="orders", num_partitions=3, replication_factor=1)
            (made,) = client.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7).topics
            assert made.error_code == 0
        ready(port)
        yield port, made.topic_id


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_gets_the_same_responses(script: Callable[[Transcript], None], kafka: tuple[int, uuid.UUID]) -> None:
    with group_server(group_min_session_timeout_ms=6000) as (served, _):
        lines = []
        for port, orders in (kafka, (served.port, ORDERS.id)):
            transcript = Transcript(port, script.__name__, orders)
            try:
                script(transcript)
            finally:
                transcript.close()
            lines.append(transcript.lines)
    for kafkas, ours in zip(*lines, strict=True):
        assert ours == kafkas
