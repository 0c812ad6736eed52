"""ConsumerGroup: the state of one consumer group of the new protocol, built from its records.

A group changes only by `replay`. A change is a list of records. A copy of the group replays these records before they
are stored. The next start replays the same records. So it restores the same group, but not the group's deadlines.

Invariants: `replay` accepts every record in every state of the group, because a log may end between two records of a
change.

Source: Kafka's ConsumerGroup, ModernGroup and GroupMetadataManager.replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from uuid import UUID

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.consumer.group_records import GroupRecord, ResolvedRegex, group_tombstones
from sediment.server.groups.consumer.members import (
    PARTITION_BYTES,
    Assignment,
    ClassicMember,
    ConsumerMember,
    MemberState,
    SubscribableTopics,
    assignment_bytes,
    assignment_of,
)
from sediment.server.groups.group_requests import MemberIdentity

_NO_ASSIGNMENT = -1
_NO_EPOCH = -1
_NO_TOPICS_VERSION = -1


class ConsumerGroupState(Enum):
    """The state of a group; the value is Kafka's name."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Timeout(Enum):
    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"


@dataclass(slots=True)
class ConsumerGroup:
    """`topics_version` is the version of the topics for which `metadata_hash` was last computed; it is not stored."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Assignment] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    owners: dict[tuple[UUID, int], str] = field(default_factory=dict)
    has_partition_metadata: bool = False
    size_bytes: int = 0
    topics_version: int = _NO_TOPICS_VERSION
    regexes_version: int = _NO_TOPICS_VERSION
    deadlines_ms: dict[tuple[Timeout, str], int] = field(default_factory=dict)

    def copy(self) -> ConsumerGroup:
        return replace(
            self,
            members=dict(self.members),
            targets=dict(self.targets),
            regexes=dict(self.regexes),
            static_members=dict(self.static_members),
            owners=dict(self.owners),
        )

    # --------------------------------------------------------------------------------------------------------- replay
    def replay(self, record: GroupRecord) -> None:
        _REPLAYS[record.key.API_KEY](self, record.key, record.value)

    def _replay_epoch(self, _key: Any, value: Any | None) -> None:
        self.epoch, self.metadata_hash = (0, 0) if value is None else (value.epoch, value.metadata_hash)

    def _replay_partition_metadata(self, _key: Any, value: Any | None) -> None:
        self.has_partition_metadata = value is not None

    def _replay_member(self, key: Any, value: Any | None) -> None:
        if value is None:
            self._set_target(key.member_id, None)
            self._set_member(key.member_id, None)
            return
        self._set_member(
            key.member_id,
            replace(
                self.members.get(key.member_id) or ConsumerMember(key.member_id),
                instance_id=value.instance_id,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                topic_names=frozenset(value.subscribed_topic_names),
                topic_regex=value.subscribed_topic_regex or "",
                rebalance_timeout_ms=value.rebalance_timeout_ms,
                assignor=value.server_assignor,
                classic=_classic_member(value.classic_member_metadata),
            ),
        )

    def _replay_target_epoch(self, _key: Any, value: Any | None) -> None:
        self.assignment_epoch = _NO_ASSIGNMENT if value is None else value.assignment_epoch

    def _replay_target_member(self, key: Any, value: Any | None) -> None:
        self._set_target(key.member_id, None if value is None else _assignment(value.topic_partitions))

    def _replay_current_member(self, key: Any, value: Any | None) -> None:
        member = self.members.get(key.member_id)
        if value is None:
            if member is not None:
                self._set_member(key.member_id, replace(member, epoch=-1, previous_epoch=-1, assigned={}, revoking={}))
            return
        self._set_member(
            key.member_id,
            replace(
                member or ConsumerMember(key.member_id),
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=MemberState.of(value.state),
                assigned=_assignment(value.assigned_partitions),
                revoking=_assignment(value.partitions_pending_revocation),
            ),
        )

    def _replay_regex(self, key: Any, value: Any | None) -> None:
        before = self.regexes.pop(key.regular_expression, None)
        self.size_bytes -= _regex_bytes(key.regular_expression, before)
        if value is not None:
            found = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.regexes[key.regular_expression] = found
            self.size_bytes += _regex_bytes(key.regular_expression, found)

    def _set_member(self, member_id: str, member: ConsumerMember | None) -> None:
        before = self.members.pop(member_id, None)
        if before is not None:
            self.size_bytes -= before.size_bytes
            for partition in _partitions(before):
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
            if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
                del self.static_members[before.instance_id]
        if member is None:
            return
        self.members[member_id] = member
        self.size_bytes += member.size_bytes
        self.owners.update(dict.fromkeys(_partitions(member), member_id))
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def _set_target(self, member_id: str, target: Assignment | None) -> None:
        before = self.targets.pop(member_id, None)
        self.size_bytes -= 0 if before is None else assignment_bytes(before)
        if target is not None:
            self.targets[member_id] = target
            self.size_bytes += assignment_bytes(target)

    # ---------------------------------------------------------------------------------------------------------- views
    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def subscribed_regexes(self) -> frozenset[str]:
        return frozenset(member.topic_regex for member in self.members.values() if member.topic_regex)

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(
            *(member.topic_names for member in self.members.values()),
            *(self.regexes[regex].topics for regex in self.subscribed_regexes & self.regexes.keys()),
        )

    @property
    def classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.classic is not None]

    def subscribed_ids(self, member: ConsumerMember, topics: SubscribableTopics) -> frozenset[UUID]:
        resolved = self.regexes.get(member.topic_regex)
        names = member.topic_names if resolved is None else member.topic_names | resolved.topics
        return frozenset(topic.id for topic in map(topics.topic, names) if topic is not None)

    def preferred_assignor(self, default: str) -> str:
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(votes, key=lambda name: (votes[name], name)) if votes else default

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        return self.members.get(self.static_members.get(instance_id, ""))

    def is_free(self, topic_id: UUID, number: int) -> bool:
        return (topic_id, number) not in self.owners

    def tombstones(self) -> list[GroupRecord]:
        member_ids = dict.fromkeys([*self.members, *self.targets])
        return group_tombstones(self.group_id, member_ids, self.regexes)

    # --------------------------------------------------------------------------------------------------------- checks
    def commit_error(
        self, identity: MemberIdentity, epoch: int, *, transactional: bool = False, knows_epochs: bool = True
    ) -> ErrorCode:
        # A client that is not a member may commit if the group has no members, or if the commit is `transactional` and
        # has no member id. `knows_epochs` is True if the request's version has member epochs. Members of the new
        # protocol need such a version, except for `transactional` commits. Source: Kafka's
        # ConsumerGroup.validateOffsetCommit.
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if transactional and identity == MemberIdentity("") and epoch == _NO_EPOCH:
            return ErrorCode.NONE
        member = self.members.get(identity.member_id)
        if member is not None and member.classic is None and not transactional and not knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        return self._epoch_error(identity.member_id, epoch)

    def fetch_error(self, member_id: str | None, epoch: int) -> ErrorCode:
        """For a client that is not a member, `member_id` is None and `epoch` is negative."""
        return ErrorCode.NONE if member_id is None and epoch < 0 else self._epoch_error(member_id or "", epoch)

    def _epoch_error(self, member_id: str, epoch: int) -> ErrorCode:
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


_REPLAYS: Mapping[int, Callable[[ConsumerGroup, Any, Any | None], None]] = {
    m.ConsumerGroupMetadataKey.API_KEY: ConsumerGroup._replay_epoch,
    m.ConsumerGroupPartitionMetadataKey.API_KEY: ConsumerGroup._replay_partition_metadata,
    m.ConsumerGroupMemberMetadataKey.API_KEY: ConsumerGroup._replay_member,
    m.ConsumerGroupTargetAssignmentMetadataKey.API_KEY: ConsumerGroup._replay_target_epoch,
    m.ConsumerGroupTargetAssignmentMemberKey.API_KEY: ConsumerGroup._replay_target_member,
    m.ConsumerGroupCurrentMemberAssignmentKey.API_KEY: ConsumerGroup._replay_current_member,
    m.ConsumerGroupRegularExpressionKey.API_KEY: ConsumerGroup._replay_regex,
}

CONSUMER_GROUP_KEYS = frozenset(_REPLAYS)
"""The record types of consumer groups."""


def _assignment(topics: Any) -> Assignment:
    return assignment_of((topic.topic_id, topic.partitions) for topic in topics)


def _partitions(member: ConsumerMember) -> list[tuple[UUID, int]]:
    return [
        (topic_id, number)
        for assignment in (member.assigned, member.revoking)
        for topic_id, numbers in assignment.items()
        for number in numbers
    ]


def _regex_bytes(regex: str, resolved: ResolvedRegex | None) -> int:
    if resolved is None:
        return 0
    return len(regex) + sum(PARTITION_BYTES + len(name) for name in resolved.topics)


def _classic_member(value: Any | None) -> ClassicMember | None:
    if value is None:
        return None
    protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in value.supported_protocols)
    return ClassicMember(value.session_timeout_ms, protocols)
