"""Changes of a consumer group: the records that a heartbeat, a leave or a deadline causes.

A heartbeat has these steps:

1. Add or update the member; a rejoining static member replaces its earlier member.
2. If subscriptions or topics changed, raise the epoch of the group.
3. If the epoch is above the epoch of the target assignment, compute a new target assignment.
4. Bring the member one step closer to its target.

A change does not modify its group. It replays its records in a copy of the group. The copy replaces the group when the
records are stored.

Invariants: if a change alters the metadata hash or removes a member, it raises the group's epoch. Step 3 uses the
topics that exist at that moment. So a change of topics is never lost, regardless of which request notices the change
first.

Source: Kafka's GroupMetadataManager.consumerGroup*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.client_memory import MEMBER_BYTES
from sediment.server.errors import ApiError
from sediment.server.groups.consumer.assignors import ASSIGNORS, Subscriber
from sediment.server.groups.consumer.consumer_group import ConsumerGroup, Timeout
from sediment.server.groups.consumer.group_records import (
    GroupRecord,
    ResolvedRegex,
    current_member,
    group_epoch,
    member_metadata,
    member_tombstones,
    partition_metadata_tombstone,
    regex_tombstone,
    regex_topics,
    target_epoch,
    target_member,
)
from sediment.server.groups.consumer.members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assignment,
    ConsumerMember,
    MemberState,
    SubscribableTopics,
    Target,
    assignment_bytes,
    reconciled,
)
from sediment.server.groups.consumer.metadata_hash import metadata_hash
from sediment.server.regex import check_regex
from sediment.server.server_config import ServerConfig

REGEX_REFRESH_MIN_INTERVAL_MS = 10_000
REGEX_REFRESH_INTERVAL_MS = 600_000
NO_TIMEOUT = -1
_FIRST_VERSION_WITH_CLIENT_IDS = 1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat request; None, or -1 for the timeout, means that the field did not change."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def size_bytes(self) -> int:
        names = (self.member_id, self.instance_id, self.rack_id, self.topic_regex, self.client_id, self.client_host)
        topics = sum(len(name) for name in self.topic_names or ())
        return MEMBER_BYTES + sum(len(name or "") for name in names) + topics + assignment_bytes(self.owned or {})

    @property
    def is_full(self) -> bool:
        """True if the request has every field; a client sends such a request to join, and after an error."""
        has_subscription = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != NO_TIMEOUT and has_subscription and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """`now_ms` is monotonic, and `wall_ms` is the time of day.

    `topics_version` is the version of `topics`; it is read before the topics themselves.
    """

    config: ServerConfig
    session_timeout_ms: int
    heartbeat_interval_ms: int
    topics: SubscribableTopics
    topics_version: int
    metadata_version: int
    now_ms: int
    wall_ms: int


@dataclass(slots=True)
class Change:
    """`deadlines_ms` has the new deadlines by kind and member; None removes a deadline."""

    before: ConsumerGroup
    records: list[GroupRecord] = field(default_factory=list)
    deadlines_ms: dict[tuple[Timeout, str], int | None] = field(default_factory=dict)
    topics_version: int | None = None
    regexes_version: int | None = None
    _after: ConsumerGroup | None = None

    @property
    def after(self) -> ConsumerGroup:
        return self._after or self.before

    @property
    def growth_bytes(self) -> int:
        return self.after.size_bytes - self.before.size_bytes

    def add(self, *records: GroupRecord) -> None:
        for record in records:
            if self._after is None:
                self._after = self.before.copy()
            self._after.replay(record)
            self.records.append(record)

    def set_deadline(self, timeout: Timeout, member_id: str, time_ms: int | None) -> None:
        self.deadlines_ms[timeout, member_id] = time_ms

    def apply(self) -> ConsumerGroup:
        group = self.after
        set_ms = {key: time_ms for key, time_ms in self.deadlines_ms.items() if time_ms is not None}
        if group is self.before and len(set_ms) == len(self.deadlines_ms):
            group.deadlines_ms.update(set_ms)
        else:
            group.deadlines_ms = self._deadlines_of(group)
        if self.topics_version is not None:
            group.topics_version = self.topics_version
        if self.regexes_version is not None:
            group.regexes_version = self.regexes_version
        return group

    def _deadlines_of(self, group: ConsumerGroup) -> dict[tuple[Timeout, str], int]:
        # Heartbeats of classic members may have moved deadlines while the records were being stored.
        deadlines_ms = {**self.before.deadlines_ms, **self.deadlines_ms}
        return {
            key: time_ms for key, time_ms in deadlines_ms.items() if time_ms is not None and key[1] in group.members
        }


# ----------------------------------------------------------------------------------------------------------- heartbeats
def check_heartbeat(request: Heartbeat, group_id: str, version: int, assignors: Collection[str]) -> None:
    needs_id = version >= _FIRST_VERSION_WITH_CLIENT_IDS or request.epoch > 0 or request.epoch == LEAVE_EPOCH
    if needs_id and not request.member_id.strip():
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    for name, value in (("GroupId", group_id), ("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if value is not None and not value.strip():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if request.epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            raise ApiError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise ApiError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
        if request.topic_names is None and request.topic_regex is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
    elif request.epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif request.epoch < STATIC_LEAVE_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.assignor is not None and request.assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def heartbeat(group: ConsumerGroup, request: Heartbeat, now: Circumstances) -> tuple[Change, HeartbeatAnswer]:
    change = Change(group)
    check_room(group, request.member_id, now.config)
    member = _member_of(change, request)
    updated = replace(
        member,
        instance_id=request.instance_id if request.instance_id is not None else member.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == NO_TIMEOUT else request.rebalance_timeout_ms
        ),
        assignor=request.assignor if request.assignor is not None else member.assignor,
        topic_names=request.topic_names if request.topic_names is not None else member.topic_names,
        topic_regex=request.topic_regex if request.topic_regex is not None else member.topic_regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )
    current = update_member(change, member, updated, request.owned, now)
    change.set_deadline(Timeout.SESSION, current.member_id, now.now_ms + now.session_timeout_ms)
    is_given = request.epoch == JOIN_EPOCH or request.is_full or current.assigned != member.assigned
    return change, HeartbeatAnswer(
        ErrorCode.NONE,
        None,
        current.member_id,
        current.epoch,
        now.heartbeat_interval_ms,
        current.assigned if is_given else None,
    )


def check_room(group: ConsumerGroup, member_id: str, config: ServerConfig) -> None:
    if len(group.members) >= config.group_consumer_max_size and member_id not in group.members:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {config.group_consumer_max_size} members.",
        )


def _member_of(change: Change, request: Heartbeat) -> ConsumerMember:
    group, joins = change.before, request.epoch == JOIN_EPOCH
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            if not joins:
                raise _unknown(request.member_id, group.group_id)
            return ConsumerMember(request.member_id)
        _check_epoch(member, request.epoch, request.owned)
        return member
    existing = group.static_member(request.instance_id)
    if not joins:
        member = existing_static_member(group, request.instance_id, request.member_id)
        _check_epoch(member, request.epoch, request.owned)
        return member
    if existing is None:
        return group.members.get(request.member_id) or ConsumerMember(request.member_id)
    if existing.classic is None and existing.epoch != STATIC_LEAVE_EPOCH:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group because "
            f"the instance id is owned by {existing.member_id} member.",
        )
    return replace_static_member(change, existing, request.member_id)


def replace_static_member(change: Change, existing: ConsumerMember, member_id: str) -> ConsumerMember:
    group_id = change.before.group_id
    target = change.after.targets.get(existing.member_id, {})
    member = replace(existing, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=0)
    change.add(
        *member_tombstones(group_id, existing.member_id),
        member_metadata(group_id, member),
        target_member(group_id, member_id, target),
        current_member(group_id, member),
    )
    return member


def existing_static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    member = group.static_member(instance_id)
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def _check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """Accept the member's epoch, or its previous epoch if it may have missed the response with the new epoch."""
    if epoch == member.epoch:
        return
    is_repeated = epoch == member.previous_epoch and owned is not None
    if epoch < member.epoch and is_repeated and _is_subset(owned or {}, member.assigned):
        return
    relation = "greater" if epoch > member.epoch else "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_subset(part: Assignment, whole: Assignment) -> bool:
    return all(numbers <= whole.get(topic, frozenset()) for topic, numbers in part.items())


def _unknown(member_id: str, group_id: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


# -------------------------------------------------------------------------------------------------------------- members
def update_member(
    change: Change,
    member: ConsumerMember,
    updated: ConsumerMember,
    owned: Assignment | None,
    now: Circumstances,
    *,
    assigns: bool = True,
) -> ConsumerMember:
    """If `assigns` is False, the target assignment does not change."""
    group_id, member_id = change.before.group_id, updated.member_id
    if updated.topic_regex and updated.topic_regex not in change.before.subscribed_regexes:
        check_regex(updated.topic_regex)
    if updated != member or member_id not in change.after.members:
        change.add(member_metadata(group_id, updated))
    has_new_regex = updated.topic_regex != member.topic_regex
    if has_new_regex:
        _forget_regexes(change)
    has_new_names = updated.topic_names != member.topic_names
    is_resolved = not updated.topic_regex or updated.topic_regex in change.after.regexes
    _check_topics(change, now, raises=has_new_names or (has_new_regex and is_resolved) or change.after.epoch == 0)
    if assigns and change.after.epoch > change.after.assignment_epoch:
        _assign(change, now)
    has_new_subscription = has_new_names or has_new_regex
    group, current = change.after, change.after.members[member_id]
    if not has_new_subscription and current.is_reconciled(group.assignment_epoch):
        return current
    target = Target(
        group.assignment_epoch,
        group.targets.get(member_id, {}),
        group.subscribed_ids(current, now.topics),
        group.is_free,
        owned,
        has_new_subscription,
    )
    following = reconciled(current, target)
    if following != current:
        change.add(current_member(group_id, following))
        if following.classic is None:
            is_revoking = following.state is MemberState.UNREVOKED_PARTITIONS
            deadline_ms = now.now_ms + following.rebalance_timeout_ms if is_revoking else None
            change.set_deadline(Timeout.REBALANCE, member_id, deadline_ms)
    return following


def _forget_regexes(change: Change) -> None:
    group = change.after
    for regex in sorted(group.regexes.keys() - group.subscribed_regexes):
        change.add(regex_tombstone(group.group_id, regex))


def _check_topics(change: Change, now: Circumstances, *, raises: bool) -> None:
    group = change.after
    if not raises and group.topics_version == now.topics_version:
        return
    found = metadata_hash(group.subscribed_topics, now.topics)
    if raises or found != group.metadata_hash:
        change.add(group_epoch(group.group_id, group.epoch + 1, found))
    change.topics_version = now.topics_version
    if change.after.has_partition_metadata:
        change.add(partition_metadata_tombstone(group.group_id))


def _assign(change: Change, now: Circumstances) -> None:
    group = change.after
    subscribers = [
        Subscriber(
            member.member_id,
            member.instance_id,
            group.subscribed_ids(member, now.topics),
            group.targets.get(member.member_id, {}),
        )
        for member in group.members.values()
    ]
    topic_ids = frozenset[object]().union(*(each.topic_ids for each in subscribers))
    found = (now.topics.topic_by_id(topic_id) for topic_id in topic_ids)  # type: ignore[arg-type]
    counts = {topic.id: topic.partition_count for topic in found if topic is not None}
    name = group.preferred_assignor(now.config.group_consumer_assignors[0])
    targets = ASSIGNORS.get(name, ASSIGNORS[now.config.group_consumer_assignors[0]])(subscribers, counts)
    for member_id in sorted(targets):
        if targets[member_id] != group.targets.get(member_id):
            change.add(target_member(group.group_id, member_id, targets[member_id]))
    change.add(target_epoch(group.group_id, group.epoch))


# --------------------------------------------------------------------------------------------------------------- leaves
def leaving_member(group: ConsumerGroup, request: Heartbeat) -> ConsumerMember:
    if request.instance_id is not None:
        return existing_static_member(group, request.instance_id, request.member_id)
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown(request.member_id, group.group_id)
    return member


def leave_for_a_while(group: ConsumerGroup, member: ConsumerMember) -> Change:
    """Return the change for a static member that leaves for a while and keeps its partitions until its session ends."""
    change = Change(group)
    change.add(current_member(group.group_id, replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={})))
    return change


def remove_members(group: ConsumerGroup, member_ids: Collection[str], now: Circumstances) -> Change:
    change = Change(group)
    for member_id in member_ids:
        change.add(*member_tombstones(group.group_id, member_id))
    _forget_regexes(change)
    _check_topics(change, now, raises=True)
    return change


def expired_members(group: ConsumerGroup, now_ms: int) -> list[str]:
    due = [member_id for (_, member_id), time_ms in group.deadlines_ms.items() if time_ms <= now_ms]
    return list(dict.fromkeys(due))


def restore_deadlines(group: ConsumerGroup, now: Circumstances) -> None:
    for member in group.members.values():
        session_ms = now.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        group.deadlines_ms[Timeout.SESSION, member.member_id] = now.now_ms + session_ms
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            group.deadlines_ms[Timeout.REBALANCE, member.member_id] = now.now_ms + member.rebalance_timeout_ms


# -------------------------------------------------------------------------------------------------- regular expressions
def needs_resolution(group: ConsumerGroup, now: Circumstances) -> bool:
    regexes = group.subscribed_regexes
    if not regexes:
        return False
    last_ms = max((each.timestamp_ms for each in group.regexes.values()), default=None)
    if last_ms is None:
        return True
    if now.wall_ms <= last_ms + REGEX_REFRESH_MIN_INTERVAL_MS:
        return False
    is_old = now.wall_ms > last_ms + REGEX_REFRESH_INTERVAL_MS
    return is_old or not regexes <= group.regexes.keys() or group.regexes_version != now.topics_version


def resolve_regexes(group: ConsumerGroup, found: Mapping[str, ResolvedRegex], now: Circumstances) -> Change:
    """Return the change that stores which topics the regular expressions match; `now` is from the time of the match."""
    change = Change(group)
    raises = False
    for regex in sorted(found.keys() & group.subscribed_regexes):
        before = group.regexes.get(regex)
        raises |= (frozenset() if before is None else before.topics) != found[regex].topics
        change.add(regex_topics(group.group_id, regex, found[regex]))
    if change.records:
        _check_topics(change, now, raises=raises)
        change.regexes_version = now.topics_version
    return change
