"""Members of the classic protocol in a consumer group, and groups that change their protocol.

A classic member revokes partitions when it joins again. If a member must join again, the response to its heartbeat is
REBALANCE_IN_PROGRESS.

Source: Kafka's GroupMetadataManager.classicGroup*ToConsumerGroup, ConsumerGroup.fromClassicGroup and
ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.groups.classic_group import CONSUMER_PROTOCOL
from sediment.server.groups.consumer.consumer_group import ConsumerGroup, Timeout
from sediment.server.groups.consumer.group_changes import (
    Change,
    Circumstances,
    check_room,
    existing_static_member,
    replace_static_member,
    update_member,
)
from sediment.server.groups.consumer.group_records import (
    current_member,
    group_epoch,
    member_metadata,
    target_epoch,
    target_member,
)
from sediment.server.groups.consumer.members import (
    Assignment,
    ClassicMember,
    ConsumerMember,
    MemberState,
    SubscribableTopics,
    assignment_of,
)
from sediment.server.groups.consumer.metadata_hash import metadata_hash
from sediment.server.groups.group_requests import (
    NO_MEMBER_ID,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    Protocols,
    StableGroup,
    StoredMember,
    SyncAnswer,
    SyncRequest,
)
from sediment.server.server_config import ServerConfig

_VERSION = struct.Struct(">h")
_LATEST_SUBSCRIPTION = 3
_UPGRADES = ("bidirectional", "upgrade")
_DOWNGRADES = ("bidirectional", "downgrade")


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    version: int
    topics: frozenset[str]
    owned: tuple[tuple[str, tuple[int, ...]], ...]
    rack_id: str | None

    @classmethod
    def decode(cls, data: bytes) -> MemberSubscription:
        """Decode a ConsumerProtocolSubscription; fields that a later version adds at the end are ignored."""
        version = _version(data)
        found: Any = m.ConsumerProtocolSubscription.decode(data[_VERSION.size :], version)
        owned = tuple((each.topic, tuple(each.partitions)) for each in found.owned_partitions)
        return cls(version, frozenset(found.topics), owned, found.rack_id or None)


def _version(data: bytes) -> int:
    try:
        (version,) = _VERSION.unpack_from(data)
    except struct.error as error:
        raise ProtocolError("a subscription has no version") from error
    if version < 0:
        raise ProtocolError("the version of a subscription is negative")
    return min(int(version), _LATEST_SUBSCRIPTION)


def _by_id(topics: SubscribableTopics, partitions: Iterable[tuple[str, Iterable[int]]]) -> Assignment:
    named = ((topics.topic(name), numbers) for name, numbers in partitions)
    return assignment_of((topic.id, numbers) for topic, numbers in named if topic is not None)


def encode_assignment(assignment: Assignment, topics: SubscribableTopics, subscription: bytes) -> bytes:
    version = _version(subscription)
    message = m.ConsumerProtocolAssignment
    named = {topics.topic_by_id(topic_id): numbers for topic_id, numbers in assignment.items()}
    found = message(
        assigned_partitions=[
            message.TopicPartition(topic=topic.name, partitions=sorted(numbers))
            for topic, numbers in named.items()
            if topic is not None
        ]
    )
    return _VERSION.pack(version) + bytes(found.to_bytes(version))


# ------------------------------------------------------------------------------------------------------------- requests
def join(
    group: ConsumerGroup, request: JoinRequest, new_id: str, now: Circumstances
) -> tuple[Change, JoinAnswer, StableGroup | None]:
    """Return the change and the response for a JoinGroup; also return the classic group if the group became classic."""
    change = Change(group)
    is_new = request.member_id == NO_MEMBER_ID
    member_id = new_id if is_new else request.member_id
    check_room(group, member_id, now.config)
    if not _supports(group, request):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported.")
    if is_new and request.group_instance_id is None and request.requires_known_member_id:
        return change, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id), None
    try:
        subscription = MemberSubscription.decode(request.protocols[0][1])
    except ProtocolError as error:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the subscription is malformed: {error}") from error
    replaced = None if request.group_instance_id is None else group.static_member(request.group_instance_id)
    member = _joining_member(change, request, member_id, is_new=is_new)
    updated = replace(
        member,
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=subscription.topics,
        topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMember(request.session_timeout_ms, request.protocols),
    )
    leaves_none = replaced is not None and is_downgraded(group, [replaced.member_id], now.config, joining=1)
    owned = _by_id(now.topics, subscription.owned)
    current = update_member(change, member, updated, owned, now, assigns=not leaves_none)
    change.set_deadline(Timeout.JOIN, member_id, None)
    change.set_deadline(Timeout.SESSION, member_id, now.now_ms + request.session_timeout_ms)
    change.set_deadline(Timeout.SYNC, member_id, now.now_ms + request.rebalance_timeout_ms)
    answer = JoinAnswer(ErrorCode.NONE, member_id, current.epoch, CONSUMER_PROTOCOL, request.protocols[0][0])
    if not leaves_none:
        return change, answer, None
    classic = downgraded(change.after, (), now.topics)
    generation = classic.generation
    return change, replace(answer, generation=generation, protocol_name=classic.protocol_name), classic


def _supports(group: ConsumerGroup, request: JoinRequest) -> bool:
    if request.protocol_type != CONSUMER_PROTOCOL or not request.protocols:
        return False
    supported = [_names(member) for member in group.classic_members]
    return any(all(name in names for names in supported) for name, _ in request.protocols)


def _names(member: ConsumerMember) -> frozenset[str]:
    return frozenset() if member.classic is None else frozenset(name for name, _ in member.classic.protocols)


def _joining_member(change: Change, request: JoinRequest, member_id: str, *, is_new: bool) -> ConsumerMember:
    group, instance_id = change.before, request.group_instance_id
    if instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id)
    if not is_new:
        return existing_static_member(group, instance_id, member_id)
    existing = group.static_member(instance_id)
    return ConsumerMember(member_id) if existing is None else replace_static_member(change, existing, member_id)


def sync(group: ConsumerGroup, request: SyncRequest, now: Circumstances) -> tuple[Change, SyncAnswer]:
    member, classic = _classic_member(group, request.member_id, request.group_instance_id, request.generation)
    name, subscription = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (None, name):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    change = Change(group)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        return _must_join(change, member, now), SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
    change.set_deadline(Timeout.SYNC, member.member_id, None)
    change.set_deadline(Timeout.SESSION, member.member_id, now.now_ms + classic.session_timeout_ms)
    assignment = encode_assignment(member.assigned, now.topics, subscription)
    return change, SyncAnswer(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment)


def classic_heartbeat(
    group: ConsumerGroup, identity: MemberIdentity, generation: int, now: Circumstances
) -> tuple[Change, ErrorCode]:
    member, classic = _classic_member(group, identity.member_id, identity.group_instance_id, generation)
    change = Change(group)
    change.set_deadline(Timeout.SESSION, member.member_id, now.now_ms + classic.session_timeout_ms)
    if (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
    ):
        return _must_join(change, member, now), ErrorCode.REBALANCE_IN_PROGRESS
    return change, ErrorCode.NONE


def _must_join(change: Change, member: ConsumerMember, now: Circumstances) -> Change:
    if (Timeout.JOIN, member.member_id) not in change.before.deadlines_ms:
        change.set_deadline(Timeout.JOIN, member.member_id, now.now_ms + member.rebalance_timeout_ms)
    return change


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    return any(
        number not in member.assigned.get(topic_id, frozenset()) and not group.is_free(topic_id, number)
        for topic_id, numbers in group.targets.get(member.member_id, {}).items()
        for number in numbers
    )


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicMember]:
    if instance_id is not None:
        found: ConsumerMember | None = existing_static_member(group, instance_id, member_id)
    else:
        found = group.members.get(member_id)
    if found is None or found.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if found.epoch != generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return found, found.classic


def leaving_members(group: ConsumerGroup, identities: Sequence[MemberIdentity]) -> tuple[list[str], list[ErrorCode]]:
    found: list[str] = []
    errors: list[ErrorCode] = []
    for identity in identities:
        instance_id = identity.group_instance_id
        member = group.members.get(identity.member_id) if instance_id is None else group.static_member(instance_id)
        if member is None:
            errors.append(ErrorCode.UNKNOWN_MEMBER_ID)
        elif instance_id is not None and identity.member_id not in (NO_MEMBER_ID, member.member_id):
            errors.append(ErrorCode.FENCED_INSTANCE_ID)
        else:
            errors.append(ErrorCode.NONE)
            found.append(member.member_id)
    return list(dict.fromkeys(found)), errors


# ---------------------------------------------------------------------------------------------------------- conversions
def upgraded(group_id: str, classic: StableGroup, protocols: dict[str, Protocols], now: Circumstances) -> Change:
    config = now.config
    if config.group_consumer_migration_policy not in _UPGRADES:
        raise _not_upgraded(group_id, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER_PROTOCOL or any(not each for each in protocols.values()):
        raise _not_upgraded(group_id, "the group does not use the consumer embedded protocol")
    if len(classic.members) > config.group_consumer_max_size:
        raise _not_upgraded(group_id, "the group size exceeds the consumer group maximum size")
    try:
        members = [_upgraded_member(member, classic.generation, protocols, now.topics) for member in classic.members]
    except ProtocolError as error:
        raise _not_upgraded(group_id, "the embedded consumer protocol is malformed") from error
    change = Change(ConsumerGroup(group_id))
    names = frozenset[str]().union(*(member.topic_names for member in members))
    change.add(
        *(member_metadata(group_id, member) for member in members),
        group_epoch(group_id, classic.generation, metadata_hash(names, now.topics)),
        *(target_member(group_id, member.member_id, member.assigned) for member in members),
        target_epoch(group_id, classic.generation),
        *(current_member(group_id, member) for member in members),
    )
    for each in classic.members:
        change.set_deadline(Timeout.SESSION, each.member_id, now.now_ms + each.session_timeout_ms)
    return change


def _upgraded_member(
    member: StoredMember, generation: int, protocols: dict[str, Protocols], topics: SubscribableTopics
) -> ConsumerMember:
    subscription = MemberSubscription.decode(member.subscription)
    assigned: Assignment = {}
    if member.assignment:
        data = member.assignment
        found: Any = m.ConsumerProtocolAssignment.decode(data[_VERSION.size :], _version(data))
        if found.user_data:
            raise ProtocolError("the assignment has data of a custom assignor")
        assigned = _by_id(topics, ((each.topic, each.partitions) for each in found.assigned_partitions))
    return ConsumerMember(
        member.member_id,
        generation,
        generation,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=subscription.topics,
        assigned=assigned,
        classic=ClassicMember(member.session_timeout_ms, protocols[member.member_id]),
    )


def _not_upgraded(group_id: str, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
    )


def is_downgraded(group: ConsumerGroup, leaving: Collection[str], config: ServerConfig, *, joining: int = 0) -> bool:
    staying = [member for member in group.members.values() if member.member_id not in leaving]
    return (
        any(group.members[each].classic is None for each in leaving)
        and all(member.classic is not None for member in staying)
        and 0 < len(staying) + joining <= config.group_max_size
        and config.group_consumer_migration_policy in _DOWNGRADES
    )


def downgraded(group: ConsumerGroup, leaving: Collection[str], topics: SubscribableTopics) -> StableGroup:
    staying = [(each, each.classic) for each in group.members.values() if each.member_id not in leaving]
    members = [(member, classic) for member, classic in staying if classic is not None]
    name = _common_protocol([classic for _, classic in members])
    return StableGroup(
        group.epoch,
        CONSUMER_PROTOCOL,
        name,
        members[0][0].member_id,
        tuple(_downgraded_member(group, member, classic, name, topics) for member, classic in members),
    )


def _downgraded_member(
    group: ConsumerGroup, member: ConsumerMember, classic: ClassicMember, protocol_name: str, topics: SubscribableTopics
) -> StoredMember:
    subscription = dict(classic.protocols)[protocol_name]
    return StoredMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        subscription,
        encode_assignment(group.targets.get(member.member_id, {}), topics, subscription),
    )


def _common_protocol(members: Sequence[ClassicMember]) -> str:
    names = [frozenset(name for name, _ in each.protocols) for each in members]
    return next(name for name, _ in members[0].protocols if all(name in supported for supported in names))
