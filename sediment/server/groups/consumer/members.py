"""Members of a consumer group, and the partitions that they have.

The states of a member:

* Stable: the member has the partitions that its epoch assigns.
* UnrevokedPartitions: the member must give up partitions before its epoch can rise.
* UnreleasedPartitions: the member waits for partitions that other members have not given up yet.

Source: Kafka's ConsumerGroupMember, MemberState and CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol, TypeAlias
from uuid import UUID

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.client_memory import MEMBER_BYTES
from sediment.server.errors import ApiError
from sediment.server.groups.group_requests import Protocols, protocols_bytes

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

PARTITION_BYTES = 64
"""The memory allowance for a partition in an assignment."""

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partition numbers by topic id; no set is empty."""


def assignment_of(topics: Iterable[tuple[UUID, Iterable[int]]]) -> Assignment:
    found = ((topic_id, frozenset(numbers)) for topic_id, numbers in topics)
    return {topic_id: numbers for topic_id, numbers in found if numbers}


def assignment_bytes(assignment: Assignment) -> int:
    return PARTITION_BYTES * sum(1 + len(numbers) for numbers in assignment.values())


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, value: int) -> MemberState:
        """Return the state with this number; UNKNOWN if the number is from a later version of Kafka."""
        return cls(value) if value in (0, 1, 2) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ClassicMember:
    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member; `classic` is set only if the member uses the classic protocol.

    `epoch` is -2 for a static member that left and will return.
    """

    member_id: str
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    assignor: str | None = None
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)
    classic: ClassicMember | None = None

    @property
    def size_bytes(self) -> int:
        names = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host, self.topic_regex)
        protocols = () if self.classic is None else self.classic.protocols
        return (
            MEMBER_BYTES
            + sum(len(name or "") for name in names)
            + sum(PARTITION_BYTES + len(name) for name in self.topic_names)
            + assignment_bytes(self.assigned)
            + assignment_bytes(self.revoking)
            + protocols_bytes(protocols)
        )

    def is_reconciled(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch


class SubscribableTopic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def id(self) -> UUID: ...
    @property
    def partition_count(self) -> int: ...


class SubscribableTopics(Protocol):
    @property
    def version(self) -> int: ...
    def topic(self, name: str) -> SubscribableTopic | None: ...
    def topic_by_id(self, topic_id: UUID) -> SubscribableTopic | None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """`owned` contains the partitions that the member reported; None if it reported none."""

    epoch: int
    partitions: Assignment
    subscribed: frozenset[UUID]
    is_free: Callable[[UUID, int], bool]
    owned: Assignment | None
    has_new_subscription: bool = False


def reconciled(member: ConsumerMember, target: Target) -> ConsumerMember:
    # A partition is revoked before another member gets it. A member's epoch rises only after the member has revoked its
    # partitions.
    if member.state is MemberState.STABLE:
        if member.epoch != target.epoch:
            return _next(member, target, member.epoch)
        return _only_subscribed(member, target) if target.has_new_subscription else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns(target.owned, member.revoking):
            return _only_subscribed(member, target) if target.has_new_subscription else member
        return _next(member, target, min(member.epoch + 1, target.epoch))
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _next(member, target, member.epoch)
    if target.owned is None or target.owned:
        raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, "the state of the member is unknown; it must join again")
    return _next(member, target, target.epoch)


def _next(member: ConsumerMember, target: Target, epoch: int) -> ConsumerMember:
    wanted = {topic: numbers for topic, numbers in target.partitions.items() if topic in target.subscribed}
    kept = assignment_of(
        (topic, numbers & wanted.get(topic, frozenset())) for topic, numbers in member.assigned.items()
    )
    revoking = _difference(member.assigned, kept)
    if revoking and _owns(target.owned, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
        )
    lacking = _difference(wanted, kept)
    free = assignment_of(
        (
            topic,
            (
                number
                for number in numbers
                if target.is_free(topic, number) or number in member.revoking.get(topic, frozenset())
            ),
        )
        for topic, numbers in lacking.items()
    )
    return replace(
        member,
        state=MemberState.STABLE if free == lacking else MemberState.UNRELEASED_PARTITIONS,
        epoch=target.epoch,
        previous_epoch=member.epoch,
        assigned=_union(kept, free),
        revoking={},
    )


def _only_subscribed(member: ConsumerMember, target: Target) -> ConsumerMember:
    kept = {topic: numbers for topic, numbers in member.assigned.items() if topic in target.subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking = _union(member.revoking, _difference(member.assigned, kept))
    if _owns(target.owned, revoking):
        return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
    return replace(member, assigned=kept)


def _owns(owned: Assignment | None, partitions: Assignment) -> bool:
    if owned is None:
        return True
    return any(not numbers.isdisjoint(owned.get(topic, frozenset())) for topic, numbers in partitions.items())


def _difference(left: Assignment, right: Assignment) -> Assignment:
    return assignment_of((topic, numbers - right.get(topic, frozenset())) for topic, numbers in left.items())


def _union(left: Assignment, right: Assignment) -> Assignment:
    return assignment_of(
        (topic, left.get(topic, frozenset()) | right.get(topic, frozenset())) for topic in {**left, **right}
    )
