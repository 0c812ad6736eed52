"""A consumer group without a server: members that heartbeat as clients do, and a clock that the test moves."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS, decode_coordinator_record
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from sediment.server.groups.consumer.group_changes import (
    Change,
    Circumstances,
    Heartbeat,
    expired_members,
    heartbeat,
    leave_for_a_while,
    leaving_member,
    remove_members,
    resolve_regexes,
)
from sediment.server.groups.consumer.group_records import GroupRecord, ResolvedRegex
from sediment.server.groups.consumer.members import STATIC_LEAVE_EPOCH, Assignment
from sediment.server.regex import matching_names
from sediment.server.server_config import ServerConfig

SESSION_MS = 45_000
REBALANCE_MS = 60_000


class GivenTopic(NamedTuple):
    name: str
    id: UUID
    partition_count: int


class GivenTopics:
    """Topics that the test makes and changes."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self.found: dict[str, GivenTopic] = {}
        for name, count in counts.items():
            self.set(name, count)

    def set(self, name: str, count: int) -> None:
        """Create a topic, or add partitions to it."""
        before = self.found.get(name)
        self.found[name] = GivenTopic(name, before.id if before else uuid.uuid5(uuid.NAMESPACE_DNS, name), count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.found[name]
        self.version += 1

    def topic(self, name: str) -> GivenTopic | None:
        return self.found.get(name)

    def topic_by_id(self, topic_id: UUID) -> GivenTopic | None:
        return next((topic for topic in self.found.values() if topic.id == topic_id), None)

    def partitions(self, *names: str) -> set[tuple[str, int]]:
        return {(name, number) for name in names for number in range(self.found[name].partition_count)}


@dataclass
class Client:
    """A consumer: it takes the partitions that it is given, and gives up the others before its next heartbeat."""

    group: GroupOfMembers
    member_id: str
    names: frozenset[str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    assigned: Assignment = field(default_factory=dict)

    @property
    def partitions(self) -> set[tuple[str, int]]:
        found = {topic.id: topic.name for topic in self.group.topics.found.values()}
        return {(found.get(topic_id, "gone"), n) for topic_id, numbers in self.assigned.items() for n in numbers}

    def join(self) -> Client:
        """Join, or join again."""
        self.epoch, self.assigned = 0, {}
        return self.beat(rebalance_timeout_ms=REBALANCE_MS, topic_names=self.names, owned={}, **self.options)

    def beat(self, **changed: Any) -> Client:
        """Send a heartbeat that says what the member has, and take the answer."""
        request = Heartbeat(self.member_id, self.epoch, client_id="c", client_host="/127.0.0.1")
        given = {"owned": self.assigned, **{key: self.options[key] for key in ("instance_id",) if key in self.options}}
        answer = self.group.beat(replace(request, **{**given, **changed}))
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.assigned = answer.assignment
        return self

    def leave(self, epoch: int = -1) -> None:
        self.group.leave(Heartbeat(self.member_id, epoch, self.options.get("instance_id")))


class GroupOfMembers:
    """The group; `log` has every record of it."""

    def __init__(self, topics: GivenTopics, **config: Any) -> None:
        self.topics = topics
        self.config = ServerConfig(**config)
        self.group = ConsumerGroup("g")
        self.log: list[GroupRecord] = []
        self.now_ms = 0

    def circumstances(self) -> Circumstances:
        return Circumstances(
            self.config, SESSION_MS, 5000, self.topics, self.topics.version, 7, self.now_ms, self.now_ms
        )

    def client(self, member_id: str, *names: str, **options: Any) -> Client:
        return Client(self, member_id, frozenset(names) if names else None, options)

    def joined(self, member_id: str, *names: str, **options: Any) -> Client:
        return self.client(member_id, *names, **options).join()

    def beat(self, request: Heartbeat) -> Any:
        change, answer = heartbeat(self.group, request, self.circumstances())
        self.apply(change)
        return answer

    def leave(self, request: Heartbeat) -> None:
        member = leaving_member(self.group, request)
        if request.epoch == STATIC_LEAVE_EPOCH:
            self.apply(leave_for_a_while(self.group, member))
        else:
            self.apply(remove_members(self.group, [member.member_id], self.circumstances()))

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        expired = expired_members(self.group, self.now_ms)
        if expired:
            self.apply(remove_members(self.group, expired, self.circumstances()))

    def resolve(self) -> None:
        """Match the regular expressions with the topics."""
        names = list(self.topics.found)
        found = {regex: matching_names(regex, names) or frozenset() for regex in self.group.subscribed_regexes}
        results = {regex: ResolvedRegex(topics, 7, self.now_ms) for regex, topics in found.items()}
        self.apply(resolve_regexes(self.group, results, self.circumstances()))

    def apply(self, change: Change) -> None:
        self.log += change.records
        self.group = change.apply()

    def settle(self, *clients: Client) -> None:
        """Let the clients heartbeat until the group is stable."""
        for _ in range(10):
            for client in clients:
                client.beat()
            if self.group.state is ConsumerGroupState.STABLE:
                for client in clients:
                    client.beat()
                return
        raise AssertionError(f"the group is still {self.group.state}")

    def replayed(self, count: int | None = None) -> ConsumerGroup:
        """Return the group as a start finds it, with the first `count` records."""
        group = ConsumerGroup("g")
        for key, value in (record.encoded() for record in self.log[:count]):
            group.replay(decoded(key, value))
        return group


def decoded(key: bytes, value: bytes | None) -> GroupRecord:
    record = decode_coordinator_record(CONSUMER_OFFSETS, key, value)
    assert record is not None
    return GroupRecord(record.key, record.value)


def stored_state(group: ConsumerGroup) -> Mapping[str, object]:
    """Return what the records of a group say."""
    names = ("epoch", "metadata_hash", "assignment_epoch", "members", "targets", "regexes", "owners", "size_bytes")
    return {name: getattr(group, name) for name in (*names, "static_members")}


def refused(code: ErrorCode, act: Any) -> None:
    """Check that a request is refused with a code."""
    try:
        act()
    except ApiError as error:
        assert error.code is code, (error.code, error.message)
        return
    raise AssertionError(f"accepted, not {code}")


def partitions_of(clients: Iterable[Client]) -> list[tuple[str, int]]:
    return [partition for client in clients for partition in client.partitions]
