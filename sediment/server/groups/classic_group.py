"""ClassicGroup: one consumer group of the classic protocol, as a state machine without a clock, threads or sockets.

    Empty ----------- a member joins ---------> PreparingRebalance      JoinGroup requests wait
    PreparingRebalance --- all have joined ---> CompletingRebalance     SyncGroup requests wait
    CompletingRebalance - the leader assigns -> Stable                  heartbeats are answered
    Stable, CompletingRebalance -- change ----> PreparingRebalance
    PreparingRebalance --- all have left -----> Empty
    any ------------------ unloaded ----------> Dead                    the final state

Every method takes the current time and returns effects, which the caller must perform in order. An effect sends the
response to a waiting request, stores the group, or states a time at which the caller must call `wake`. A waiter
represents one request.

Invariants: every waiter is answered exactly once. The generation never decreases. A group with members has exactly one
leader, and the leader is a member. For every deadline, the caller has been asked to `wake` the group at the deadline or
earlier.

Source: Kafka's ClassicGroup, ClassicGroupMember and GroupMetadataManager.classicGroup*.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.client_memory import MEMBER_BYTES
from sediment.server.groups.group_requests import (
    NO_MEMBER_ID,
    Answer,
    Effect,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    MemberIdentity,
    Protocols,
    ReplacedId,
    StableGroup,
    StoredMember,
    StoreGroup,
    SyncAnswer,
    SyncRequest,
    Waiter,
    WakeAt,
    protocols_bytes,
)
from sediment.server.server_config import ServerConfig

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
_TOPICS_AT = 2  # in a subscription, after the version
LEAST_REBALANCE_TIMEOUT_MS = 100  # a client's timeout of 0 would keep the coordinator busy


CONSUMER_PROTOCOL = "consumer"
"""Protocol type of a group of consumers."""


class GroupState(Enum):
    """The state of a group; the value is Kafka's name."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class _Phase(Enum):
    JOIN = "join"
    SYNC = "sync"


_CAN_REBALANCE = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


# ------------------------------------------------------------------------------------------------------------- members
@dataclass(slots=True)
class Member:
    """A member of a group; `joining` and `syncing` are the waiters of its JoinGroup and SyncGroup requests.

    A member is new while it waits for its first generation; its session timeout limits this wait.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    joining: Waiter | None = None
    syncing: Waiter | None = None
    is_new: bool = False

    def metadata(self, protocol_name: str | None) -> bytes:
        return dict(self.protocols)[protocol_name or ""]

    def vote(self, candidates: Iterable[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def size_bytes(self) -> int:
        names = len(self.member_id) + len(self.client_id) + len(self.group_instance_id or "")
        return MEMBER_BYTES + names + protocols_bytes(self.protocols) + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        """True if the member is not new and its request waits; a waiting request keeps the session alive."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)


# --------------------------------------------------------------------------------------------------------------- group
@dataclass(slots=True)
class ClassicGroup:
    """`new_member_id` takes a prefix and returns an unused member id that begins with it.

    `protocol_type` is None for a group that only commits offsets.
    """

    config: ServerConfig
    new_member_id: Callable[[str], str]
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    state: GroupState = GroupState.EMPTY
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    _static_members: dict[str, str] = field(default_factory=dict)
    _pending_joins: set[str] = field(default_factory=set)
    _pending_syncs: set[str] = field(default_factory=set)
    _protocol_counts: Counter[str] = field(default_factory=Counter)
    _is_initial_rebalance: bool = False
    _new_member_added: bool = False
    _initial_delay_ms: int = 0
    _remaining_delay_ms: int = 0
    _deadlines_ms: dict[str | _Phase, int] = field(default_factory=dict)
    _wake_ms: int | None = None
    _effects: list[Effect] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------------- requests
    def join(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> list[Effect]:
        if not (self._accepts(request.member_id) and self._has_room(request)):
            self._remove(request.member_id)
            self._answer_join(waiter, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID)
        elif self.state is GroupState.DEAD:
            self._answer_join(waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        elif not self._supports_protocols(request):
            self._answer_join(waiter, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif request.member_id == NO_MEMBER_ID:
            self._join_unknown(request, waiter, now_ms)
        elif request.member_id in self._pending_joins and request.group_instance_id is None:
            self._add_member(request, request.member_id, waiter, now_ms)
        else:
            self._rejoin(request, waiter, now_ms)
        return self._take_effects()

    def sync(self, request: SyncRequest, waiter: Waiter, now_ms: int) -> list[Effect]:
        error = self._sync_error(request)
        member = self.members.get(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            self._effects.append(Answer(waiter, SyncAnswer(error)))
        elif self.state is GroupState.STABLE:
            self._sync_received(member)
            answer = SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
            self._effects.append(Answer(waiter, answer))
        else:
            self._answer_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
            member.syncing = waiter
            self._sync_received(member)
            if member.member_id == self.leader_id:
                self._take_assignments(request, now_ms)
        return self._take_effects()

    def heartbeat(self, identity: MemberIdentity, generation: int, now_ms: int) -> tuple[ErrorCode, list[Effect]]:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = self._member_error(identity)
        if error is not ErrorCode.NONE:
            return error, []
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION, []
        self._extend_session(self.members[identity.member_id], now_ms)
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE, self._take_effects()

    def leave(self, identities: Sequence[MemberIdentity], now_ms: int) -> tuple[list[ErrorCode], list[Effect]]:
        """For a static member, its instance id is sufficient."""
        if self.state is GroupState.DEAD:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE for _ in identities], []
        errors = [self._leave_one(identity) for identity in identities]
        if ErrorCode.NONE in errors and self.state is not GroupState.EMPTY:
            self._rebalance_or_complete(now_ms)
        return errors, self._take_effects()

    def commit_error(self, identity: MemberIdentity, generation: int, *, transactional: bool = False) -> ErrorCode:
        """Return NONE if the member may commit offsets.

        With a negative generation, the client is not a member.  Such a client may commit if the group has no members,
        or if the commit is `transactional`.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or identity.member_id != NO_MEMBER_ID or identity.group_instance_id is not None:
            error = self._member_error(identity)
            if error is not ErrorCode.NONE:
                return error
            if generation != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not transactional and self.state is not GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def committed(self, member_id: str, now_ms: int) -> list[Effect]:
        if self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE) and member_id in self.members:
            self._extend_session(self.members[member_id], now_ms)
        return self._take_effects()

    def wake(self, now_ms: int) -> list[Effect]:
        self._wake_ms = None
        while due := [(key, time_ms) for key, time_ms in self._deadlines_ms.items() if time_ms <= now_ms]:
            for key, time_ms in sorted(due, key=lambda deadline: deadline[1]):
                # The handling of an earlier deadline may have removed or moved this deadline.
                if self._deadlines_ms.get(key) == time_ms:
                    del self._deadlines_ms[key]
                    self._deadline_passed(key, now_ms)
        if self._deadlines_ms:
            self._wake_at(min(self._deadlines_ms.values()))
        return self._take_effects()

    def _deadline_passed(self, key: str | _Phase, now_ms: int) -> None:
        if key is _Phase.JOIN:
            self._join_deadline_passed(now_ms)
        elif key is _Phase.SYNC:
            self._sync_deadline_passed(now_ms)
        else:
            self._session_expired(key, now_ms)

    def restore(self, stored: StableGroup, now_ms: int) -> list[Effect]:
        self.generation, self.protocol_type = stored.generation, stored.protocol_type
        if not stored.members or stored.protocol_name is None:
            return []
        self.protocol_name, self.leader_id = stored.protocol_name, stored.leader_id
        self.state = GroupState.STABLE
        for each in stored.members:
            member = self.members[each.member_id] = Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout_ms,
                each.rebalance_timeout_ms,
                ((stored.protocol_name, each.subscription),),
                each.assignment,
            )
            self._protocol_counts.update(_names(member.protocols))
            if each.group_instance_id is not None:
                self._static_members[each.group_instance_id] = each.member_id
            self._extend_session(member, now_ms)
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members))
        return self._take_effects()

    def store_failed(self, effects: Sequence[Effect], error: ErrorCode, now_ms: int) -> list[Effect]:
        """Members that wait for their assignment get `error`, and the group rebalances.

        A rejoined static member gets `error`, and its former id is valid again.
        """
        following: list[Effect] = [
            Answer(effect.waiter, _failed(effect.answer, error)) if isinstance(effect, Answer) else effect
            for effect in effects
            if not isinstance(effect, StoreGroup)
        ]
        for replaced in (effect.replaced for effect in effects if isinstance(effect, StoreGroup)):
            if replaced is not None:
                self._restore_static_member(replaced, now_ms)
            elif self.state is GroupState.STABLE:
                for member in self.members.values():
                    member.assignment = b""
                self._prepare_rebalance(now_ms)
        return following + self._take_effects()

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of the members' subscriptions; None if a subscription does not have the format of a consumer.

        Source: Kafka's ClassicGroup.computeSubscribedTopics and ConsumerProtocol.deserializeSubscription.
        """
        if self.protocol_type != CONSUMER_PROTOCOL or self.protocol_name is None:
            return frozenset() if self.protocol_type == CONSUMER_PROTOCOL and not self.members else None
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(dict(member.protocols).get(self.protocol_name, b""))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    @property
    def stable_group(self) -> StableGroup:
        return StableGroup(
            self.generation,
            self.protocol_type or "",
            self.protocol_name,
            self.leader_id if self.members else None,
            tuple(self._stored_member(member) for member in self.members.values()),
        )

    def rebalance(self, now_ms: int) -> list[Effect]:
        self._prepare_rebalance(now_ms)
        return self._take_effects()

    def hand_over(self) -> list[Effect]:
        for member in self.members.values():
            self._answer_joining(member, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            self._answer_sync(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        return self.unload()

    def unload(self) -> list[Effect]:
        """Answer every waiter with NOT_COORDINATOR, and drop the reserved ids; the group becomes Dead."""
        for member in self.members.values():
            self._answer_joining(member, JoinAnswer(ErrorCode.NOT_COORDINATOR, member.member_id))
            self._answer_sync(member, SyncAnswer(ErrorCode.NOT_COORDINATOR))
        self.state = GroupState.DEAD
        self._pending_joins.clear()
        self._deadlines_ms.clear()
        return self._take_effects()

    @property
    def size_bytes(self) -> int:
        joining = sum(MEMBER_BYTES + len(member_id) for member_id in self._pending_joins)
        return joining + sum(member.size_bytes for member in self.members.values())

    @property
    def is_idle(self) -> bool:
        return self.state is GroupState.EMPTY and not self._pending_joins

    # ----------------------------------------------------------------------------------------------------------- join
    def _accepts(self, member_id: str) -> bool:
        # During a rebalance, only waiting members are counted. Existing members that rejoin are therefore rejected if
        # the waiting members already reach the limit.
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            waiting = sum(each.joining is not None for each in self.members.values())
            return (member is not None and member.joining is not None) or waiting < self.config.group_max_size
        return member is not None or len(self.members) < self.config.group_max_size

    def _has_room(self, request: JoinRequest) -> bool:
        # If the member rejoins, its current size is not counted.
        member = self.members.get(request.member_id)
        own_bytes = 0 if member is None else member.size_bytes
        return self.size_bytes - own_bytes + request.size_bytes <= self.config.group_members_max_bytes

    def _supports_protocols(self, request: JoinRequest) -> bool:
        names = _names(request.protocols)
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and names)
        return self.protocol_type == request.protocol_type and any(
            self._protocol_counts[name] == len(self.members) for name in names
        )

    def _join_unknown(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        instance_id = request.group_instance_id
        member_id = self.new_member_id(request.client_id if instance_id is None else instance_id)
        if instance_id is not None and instance_id in self._static_members:
            self._replace_static_member(request, member_id, waiter, now_ms)
        elif instance_id is None and request.requires_known_member_id:
            self._pending_joins.add(member_id)
            self._set_deadline(member_id, now_ms + request.session_timeout_ms)
            self._answer_join(waiter, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        else:
            self._add_member(request, member_id, waiter, now_ms)

    def _rejoin(self, request: JoinRequest, waiter: Waiter, now_ms: int) -> None:
        error = self._member_error(MemberIdentity(request.member_id, request.group_instance_id))
        if error is not ErrorCode.NONE:
            self._answer_join(waiter, error, request.member_id)
            return
        member = self.members[request.member_id]
        is_leader = member.member_id == self.leader_id
        # If the leader joins in Stable, it requests a new assignment, even if nothing changed in the group.
        is_repeated = request.protocols == member.protocols and (
            self.state is GroupState.COMPLETING_REBALANCE or (self.state is GroupState.STABLE and not is_leader)
        )
        if is_repeated:
            self._effects.append(Answer(waiter, self._joined(member)))
            return
        self._update_member(member, request, waiter)
        self._rebalance_or_complete(now_ms)

    def _add_member(self, request: JoinRequest, member_id: str, waiter: Waiter, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and self._is_initial_rebalance:
            self._new_member_added = True
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            joining=waiter,
            is_new=True,
        )
        self.members[member_id] = member
        self._pending_joins.discard(member_id)
        self._protocol_counts.update(_names(member.protocols))
        if member.group_instance_id is not None:
            self._static_members[member.group_instance_id] = member_id
        if self.leader_id is None:
            self.leader_id = member_id
        # The client may lose its connection during the wait.  A member without a client must expire.
        self._set_deadline(member_id, now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(now_ms)

    def _update_member(self, member: Member, request: JoinRequest, waiter: Waiter) -> None:
        self._protocol_counts -= Counter(_names(member.protocols))
        self._protocol_counts.update(_names(request.protocols))
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self._answer_joining(member, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.joining = waiter

    def _replace_static_member(self, request: JoinRequest, member_id: str, waiter: Waiter, now_ms: int) -> None:
        assert request.group_instance_id is not None
        former_id = self._static_members[request.group_instance_id]
        former_leader = self.leader_id
        member = self.members.pop(former_id)
        replaced = ReplacedId(
            member_id, former_id, member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms
        )
        self._answer_joining(member, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, former_id))
        self._answer_sync(member, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        self._deadlines_ms.pop(former_id, None)
        self._pending_syncs.discard(former_id)
        member.member_id = member_id
        member.is_new = False
        self.members[member_id] = member
        self._static_members[request.group_instance_id] = member_id
        if self.leader_id == former_id:
            self.leader_id = member_id
        self._extend_session(member, now_ms)
        self._update_member(member, request, waiter)
        if self.state is GroupState.STABLE and self._chosen_protocol() == self.protocol_name:
            answer = self._joined(member, skips_assignment=request.supports_skipping_assignment)
            if not request.supports_skipping_assignment:
                # Clients of this version cannot skip the assignment.  If the response named this client as the leader,
                # the client would assign partitions again, without a rebalance.
                answer = self._joined(member, leader=former_leader or NO_MEMBER_ID)
            self._store(replaced)
            self._answer_joining(member, answer)
        else:
            # In CompletingRebalance, the leader may still assign partitions to the old id, so the rebalance must
            # restart.
            self._rebalance_or_complete(now_ms)

    def _restore_static_member(self, replaced: ReplacedId, now_ms: int) -> None:
        """Give a static member its former id, protocols and timeouts, because the new ones could not be stored."""
        member = self.members.pop(replaced.member_id)
        assert member.group_instance_id is not None
        self._protocol_counts -= Counter(_names(member.protocols))
        self._protocol_counts.update(_names(replaced.protocols))
        member.member_id, member.protocols = replaced.former_id, replaced.protocols
        member.session_timeout_ms = replaced.session_timeout_ms
        member.rebalance_timeout_ms = replaced.rebalance_timeout_ms
        self.members[member.member_id] = member
        self._static_members[member.group_instance_id] = member.member_id
        if self.leader_id == replaced.member_id:
            self.leader_id = member.member_id
        self._deadlines_ms.pop(replaced.member_id, None)
        self._extend_session(member, now_ms)

    def _joined(self, member: Member, *, leader: str | None = None, skips_assignment: bool = False) -> JoinAnswer:
        """The response names `leader`, by default the group's leader."""
        leader = leader or self.leader_id or NO_MEMBER_ID
        is_leader = leader == member.member_id
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            leader,
            skip_assignment=skips_assignment and is_leader,
            members=self._joined_members() if is_leader else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    # ------------------------------------------------------------------------------------------------------ rebalance
    def _rebalance_or_complete(self, now_ms: int) -> None:
        if self.state in _CAN_REBALANCE:
            self._prepare_rebalance(now_ms)
        elif self.state is GroupState.PREPARING_REBALANCE and not self._is_initial_rebalance and self._all_joined():
            self._complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                member.assignment = b""
                self._propagate(member, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS), now_ms)
        self._pending_syncs.clear()
        self._deadlines_ms.pop(_Phase.SYNC, None)
        self._is_initial_rebalance = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        if self._is_initial_rebalance:
            self._new_member_added = False
            self._initial_delay_ms = self.config.group_initial_rebalance_delay_ms
            self._remaining_delay_ms = max(self._rebalance_timeout_ms() - self._initial_delay_ms, 0)
            self._set_deadline(_Phase.JOIN, now_ms + self._initial_delay_ms)
        elif self._all_joined():
            self._complete_join(now_ms)
        else:
            self._set_deadline(_Phase.JOIN, now_ms + self._rebalance_timeout_ms())

    def _join_deadline_passed(self, now_ms: int) -> None:
        """Complete the join phase.

        If this is the group's first join phase and members are still arriving, extend the phase instead.
        """
        if self._is_initial_rebalance and self._new_member_added and self._remaining_delay_ms:
            self._new_member_added = False
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, self._remaining_delay_ms)
            self._remaining_delay_ms = max(self._remaining_delay_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay_ms
            self._set_deadline(_Phase.JOIN, now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        self._deadlines_ms.pop(_Phase.JOIN, None)
        absent = [each for each in self.members.values() if each.joining is None and each.group_instance_id is None]
        for member in absent:
            self._remove(member.member_id)
        if self.members and not self._elect_leader():
            # Only absent static members remain.  Their sessions end before this deadline.
            self._set_deadline(_Phase.JOIN, now_ms + self._rebalance_timeout_ms())
            return
        self.generation += 1
        self._pending_syncs = set(self.members)
        self._is_initial_rebalance = False
        if not self.members:
            self.protocol_name = None
            self.state = GroupState.EMPTY
            self._store()
            return
        self.protocol_name = self._chosen_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self.members.values():
            self._answer_joining(member, self._joined(member))
            self._extend_session(member, now_ms)
            member.is_new = False
        self._set_deadline(_Phase.SYNC, now_ms + self._rebalance_timeout_ms())

    def _elect_leader(self) -> bool:
        """Choose a joined member as the leader, unless the leader has joined; return False if no member has joined."""
        if self.leader_id is not None and self.members[self.leader_id].joining is not None:
            return True
        joined = next((member for member in self.members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    def _chosen_protocol(self) -> str:
        candidates = {name for name, count in self._protocol_counts.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _all_joined(self) -> bool:
        return not self._pending_joins and all(member.joining is not None for member in self.members.values())

    def _rebalance_timeout_ms(self) -> int:
        longest_ms = max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
        return max(longest_ms, LEAST_REBALANCE_TIMEOUT_MS)

    # ----------------------------------------------------------------------------------------------------------- sync
    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._member_error(MemberIdentity(request.member_id, request.group_instance_id))
        if error is not ErrorCode.NONE:
            return error
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        for given, current in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if given is not None and current is not None and given != current:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def _sync_received(self, member: Member) -> None:
        self._pending_syncs.discard(member.member_id)
        if not self._pending_syncs:
            self._deadlines_ms.pop(_Phase.SYNC, None)

    def _take_assignments(self, request: SyncRequest, now_ms: int) -> None:
        """If the assignments exceed the memory limit, the leader gets Kafka's error for a record that is too large."""
        if self.size_bytes + request.size_bytes <= self.config.group_members_max_bytes:
            self._assign(dict(request.assignments), now_ms)
            return
        for member in self.members.values():
            member.assignment = b""
            self._propagate(member, SyncAnswer(ErrorCode.UNKNOWN_SERVER_ERROR), now_ms)
        self._prepare_rebalance(now_ms)

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._store()
        for member in self.members.values():
            answer = SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
            self._propagate(member, answer, now_ms)
        self.state = GroupState.STABLE

    def _propagate(self, member: Member, answer: SyncAnswer, now_ms: int) -> None:
        """Answer a waiting SyncGroup, and restart the session; its deadline may have passed during the wait."""
        if member.syncing is not None:
            self._answer_sync(member, answer)
            self._extend_session(member, now_ms)

    def _sync_deadline_passed(self, now_ms: int) -> None:
        if self._pending_syncs and self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            for member_id in sorted(self._pending_syncs):
                self._remove(member_id)
            self._prepare_rebalance(now_ms)

    # -------------------------------------------------------------------------------------------------------- members
    def _member_error(self, identity: MemberIdentity) -> ErrorCode:
        if identity.group_instance_id is not None:
            existing = self._static_members.get(identity.group_instance_id)
            if existing is not None and existing != identity.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if identity.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            member_id = self._static_members.get(identity.group_instance_id or "", NO_MEMBER_ID)
            error = ErrorCode.NONE if member_id else ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in self._pending_joins:
            error = ErrorCode.NONE
        else:
            error = self._member_error(identity)
        if error is ErrorCode.NONE:
            self._remove(member_id)
        return error

    def _session_expired(self, member_id: str, now_ms: int) -> None:
        member = self.members.get(member_id)
        if member is not None and member.is_waiting:
            return  # the response will restart the session
        self._remove(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            if self._all_joined():
                self._complete_join(now_ms)
        elif member is not None:
            self._prepare_rebalance(now_ms)

    def _remove(self, member_id: str) -> None:
        """Remove a member or a reserved id; answer its waiting request with UNKNOWN_MEMBER_ID."""
        self._pending_joins.discard(member_id)
        self._pending_syncs.discard(member_id)
        self._deadlines_ms.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._answer_joining(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID))
        self._answer_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._protocol_counts -= Counter(_names(member.protocols))
        if member.group_instance_id is not None:
            self._static_members.pop(member.group_instance_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    # -------------------------------------------------------------------------------------------------------- effects
    def _store(self, replaced: ReplacedId | None = None) -> None:
        self._effects.append(StoreGroup(self.stable_group, replaced))

    def _stored_member(self, member: Member) -> StoredMember:
        # A group whose first members are still joining has no protocol yet.
        name = self.protocol_name or member.protocols[0][0]
        return StoredMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            dict(member.protocols).get(name, member.protocols[0][1]),
            member.assignment,
        )

    def _answer_join(self, waiter: Waiter, error: ErrorCode, member_id: str) -> None:
        self._effects.append(Answer(waiter, JoinAnswer(error, member_id)))

    def _answer_joining(self, member: Member, answer: JoinAnswer) -> None:
        if member.joining is not None:
            self._effects.append(Answer(member.joining, answer))
            member.joining = None

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        if member.syncing is not None:
            self._effects.append(Answer(member.syncing, answer))
            member.syncing = None

    def _extend_session(self, member: Member, now_ms: int) -> None:
        self._set_deadline(member.member_id, now_ms + member.session_timeout_ms)

    def _set_deadline(self, key: str | _Phase, time_ms: int) -> None:
        self._deadlines_ms[key] = time_ms
        self._wake_at(time_ms)

    def _wake_at(self, time_ms: int) -> None:
        if self._wake_ms is None or time_ms < self._wake_ms:
            self._wake_ms = time_ms
            self._effects.append(WakeAt(time_ms))

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _names(protocols: Protocols) -> set[str]:
    return {name for name, _ in protocols}


def _failed(answer: JoinAnswer | SyncAnswer, error: ErrorCode) -> JoinAnswer | SyncAnswer:
    """Return the response that replaces `answer` if the group could not be stored; an error is not replaced."""
    if answer.error is not ErrorCode.NONE:
        return answer
    return JoinAnswer(error, NO_MEMBER_ID) if isinstance(answer, JoinAnswer) else SyncAnswer(error)


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    try:
        (count,) = struct.unpack_from(">i", subscription, _TOPICS_AT)
        position, topics = _TOPICS_AT + 4, []
        for _ in range(count):
            (size,) = struct.unpack_from(">h", subscription, position)
            position += 2 + size
            if size < 0 or position > len(subscription):
                return None
            topics.append(subscription[position - size : position].decode())
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
