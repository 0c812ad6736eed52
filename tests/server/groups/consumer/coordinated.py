"""A coordinator with consumer groups over real logs, and topics that the test changes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import Timer
from sediment.server.groups.consumer.cluster_topics import ClusterTopics
from sediment.server.groups.consumer.consumer_group import ConsumerGroup
from sediment.server.groups.consumer.group_changes import Heartbeat, HeartbeatAnswer
from sediment.server.groups.group_coordinator import ConsumerGroupSupport
from sediment.server.groups.group_requests import JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer, SyncRequest
from tests.engine.live_logs import NOW_MS
from tests.server.groups.offsets_logs import Coordinated, OffsetsLogs

SESSION_MS = 45_000
CLASSIC_SESSION_MS = 10_000
REBALANCE_MS = 60_000


@dataclass(frozen=True)
class ListedTopic:
    name: str
    id: UUID
    partitions: range
    missing: frozenset[int] = frozenset()


class ListedTopics:
    """A catalog of topics by name."""

    def __init__(self, **counts: int) -> None:
        self._topics: dict[str, ListedTopic] = {}
        self.set(**counts)

    def set(self, **counts: int) -> None:
        for name, count in counts.items():
            self._topics[name] = ListedTopic(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), range(count))
        self.metadata = SimpleNamespace(end_offset=7)

    def topics(self) -> list[ListedTopic]:
        return list(self._topics.values())

    def topic(self, name: str) -> ListedTopic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> ListedTopic | None:
        return next((topic for topic in self._topics.values() if topic.id == topic_id), None)

    def names(self, partitions: Mapping[UUID, Any] | None) -> dict[str, list[int]]:
        """Return an assignment by topic name."""
        named = ((self.topic_by_id(topic_id), numbers) for topic_id, numbers in (partitions or {}).items())
        return {topic.name: sorted(numbers) for topic, numbers in named if topic is not None}


@dataclass
class Groups:
    """A coordinator whose groups have members; `configs` are those of groups."""

    logs: OffsetsLogs
    catalog: ListedTopics
    config: dict[str, Any] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start a coordinator that finds what is in the logs."""

        def support(timer: Timer) -> ConsumerGroupSupport:
            topics: Any = self.catalog
            return ConsumerGroupSupport(
                ClusterTopics(topics), timer, lambda: NOW_MS + self.now_ms, lambda name: self.configs.get(name, {})
            )

        self.now_ms = 0
        self.at = Coordinated(self.logs, support=support, **self.config)
        self.coordinator = self.at.coordinator
        self.at.load()

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.at.pass_ms(duration_ms)

    def heartbeat(self, member_id: str = "a", epoch: int = 0, group: str = "g", **fields: Any) -> HeartbeatAnswer:
        joining = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": frozenset({"orders"}), "owned": {}}
        given = {**(joining if epoch == 0 else {}), "client_id": "c", "client_host": "/h", **fields}
        return self.coordinator.consumer_heartbeat(group, Heartbeat(member_id, epoch, **given), 1)

    def settled(self, member_id: str = "a", **fields: Any) -> HeartbeatAnswer:
        answer = self.heartbeat(member_id, **fields)
        assert answer.error is ErrorCode.NONE, answer
        return answer

    def group(self, group: str = "g") -> ConsumerGroup:
        return self.coordinator.describe_consumer_group(group)

    # ------------------------------------------------------------------------------------------------- classic members
    def join(self, member_id: str = "", *, instance: str | None = None, owned: Sequence[int] = ()) -> JoinAnswer:
        """Join a group by the classic protocol, in both steps; `owned` are partitions of `orders`."""
        answers: list[JoinAnswer] = []
        request = JoinRequest(
            member_id,
            instance,
            "c",
            "/h",
            CLASSIC_SESSION_MS,
            REBALANCE_MS,
            "consumer",
            (("range", subscription(owned)),),
        )
        self.coordinator.join("g", request, answers.append)
        self.pass_ms(1)
        (answer,) = answers
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(answer.member_id, owned=owned)
        return answer

    def sync(self, joined: JoinAnswer, assignments: Mapping[str, bytes] | None = None) -> SyncAnswer:
        answers: list[SyncAnswer] = []
        request = SyncRequest(
            joined.member_id, None, joined.generation, "consumer", "range", tuple((assignments or {}).items())
        )
        self.coordinator.sync("g", request, answers.append)
        (answer,) = answers
        return answer

    def classic_heartbeat(self, joined: JoinAnswer) -> ErrorCode:
        return self.coordinator.heartbeat("g", MemberIdentity(joined.member_id), joined.generation)


def subscription(owned: Sequence[int]) -> bytes:
    """Return the metadata of a classic consumer of `orders`."""
    message = m.ConsumerProtocolSubscription
    partitions = [message.TopicPartition(topic="orders", partitions=list(owned))] if owned else []
    return struct.pack(">h", 1) + bytes(message(topics=["orders"], owned_partitions=partitions).to_bytes(1))


def assignment(**topics: list[int]) -> bytes:
    """Return the assignment of a classic consumer."""
    message = m.ConsumerProtocolAssignment
    partitions = [message.TopicPartition(topic=name, partitions=numbers) for name, numbers in topics.items()]
    return struct.pack(">h", 1) + bytes(message(assigned_partitions=partitions).to_bytes(1))


def assigned(data: bytes) -> dict[str, list[int]]:
    """Return what an assignment gives a classic consumer."""
    found = m.ConsumerProtocolAssignment.decode(data[2:], 1)
    return {each.topic: list(each.partitions) for each in found.assigned_partitions}
