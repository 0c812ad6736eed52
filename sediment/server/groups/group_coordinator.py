"""GroupCoordinator: the groups of a server, with their members, offsets, timers and waiting requests.

    load                the groups of the directory, with the commits from the store
    join, sync          answered now or later, in any thread, through the caller's `respond`
    heartbeat, leave, commit, fetch, describe, list     answered immediately

Before `load`, every request gets COORDINATOR_LOAD_IN_PROGRESS, which clients retry.  If the partition that stores a
group cannot be read, requests of the group get UNKNOWN_SERVER_ERROR, which clients do not retry.  Without its offsets,
the group would start from the beginning.

For groups of other protocols (KIP-848 and later), this coordinator has no members.  As in Kafka, an empty consumer
group becomes a classic group when a member joins.

Invariants: a group changes only while its lock is held, and no lock is held while a request is answered.  If there is
an offset store, a commit is written to it before the request is answered.  Offsets do not expire.  The memory that
clients can use stays within the limits of `group_memory`.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sediment.segment_io.errors import PolicyViolationError, RejectedAppendError, SedimentError
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.units import NS_PER_MS
from sediment.server.delayed import Cancelable, Clock, Timer
from sediment.server.groups.classic_group import ClassicGroup, GroupState, Member
from sediment.server.groups.group_memory import GROUP_BYTES, GroupMemory
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.group_requests import (
    NO_MEMBER_ID,
    Answer,
    Effect,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
    WakeAt,
)
from sediment.server.groups.offset_store import OffsetStore
from sediment.server.groups.stored_groups import GroupKind, StoredGroup
from sediment.server.limited_log import LimitedLog
from sediment.server.server_config import ServerConfig

_LOGGER = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_JOINABLE = (GroupKind.CLASSIC, GroupKind.CONSUMER)
_PROTOCOL_TYPES = {GroupKind.CONSUMER: "consumer", GroupKind.SHARE: "share", GroupKind.STREAMS: "streams"}


def _is_never(_group_id: str) -> bool:
    return False


@dataclass(slots=True, eq=False)
class _Group:
    """One group: its members, in `classic`, and its offsets, locks, timer and memory."""

    kind: GroupKind
    classic: ClassicGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    guard: threading.Lock = field(default_factory=threading.Lock)
    commit_guard: threading.Lock = field(default_factory=threading.Lock)
    """The lock held while a commit is written, so that commits have the same order in memory and on disk.

    Meanwhile, `guard` is not held.
    """

    wake: Cancelable | None = None
    own_bytes: int = 0
    """The bytes of the group without its members and offsets; 0 for a group from the log directory."""

    members_bytes: int = 0
    """The bytes of the members when they were last counted."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as DescribeGroups and ListGroups report it; the members are copies."""

    group_id: str
    kind: GroupKind
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """The result for one partition of an OffsetFetch; `value` is None if no offset was committed, or on an error."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    value: CommittedOffset | None = None


class GroupCoordinator:
    """The coordinator of every group; `clock` is monotonic."""

    def __init__(self, config: ServerConfig, timer: Timer, clock: Clock, store: OffsetStore | None = None) -> None:
        self._config = config
        self._timer = timer
        self._clock = clock
        self._store_of_offsets = store
        self.memory = GroupMemory(config.groups_max_bytes)
        self._log = LimitedLog(_LOGGER)
        self._groups: dict[str, _Group] = {}
        self._guard = threading.Lock()
        self._is_loaded = False
        self._is_closed = False
        self._is_unreadable: Callable[[str], bool] = _is_never

    # ----------------------------------------------------------------------------------------------------- life cycle
    def load(self, stored: Mapping[str, StoredGroup], is_unreadable: Callable[[str], bool] = _is_never) -> None:
        """Start serving the groups of a log directory; commits in the store replace their offsets.

        `is_unreadable` takes a group id, and returns True if the group's partition cannot be read.
        """
        self._is_unreadable = is_unreadable
        for group_id, group in stored.items():
            assert group.kind is not None
            is_classic = group.kind is GroupKind.CLASSIC
            classic = self._classic_group()
            classic.generation = group.generation if is_classic else 0
            classic.protocol_type = group.protocol_type
            self._groups[group_id] = _Group(group.kind, classic, group.offsets)
        for group_id, offsets in (self._store_of_offsets.offsets if self._store_of_offsets else {}).items():
            existing = self._groups.setdefault(group_id, _Group(GroupKind.CLASSIC, self._classic_group()))
            self.memory.resize(existing.offsets.growth_bytes(tuple(offsets)))
            for commit in offsets:
                existing.offsets.commit(*commit)
        self._is_loaded = True
        self._timer.after(self._config.offsets_retention_check_interval_ms, self._check_idle_groups)

    def close(self) -> None:
        """Answer the waiting requests, and stop serving."""
        with self._guard:
            self._is_closed = True
            groups = list(self._groups.values())
        for group in groups:
            self._run(group, lambda classic: classic.unload())

    def _check_idle_groups(self) -> None:
        """Remove groups without members and offsets, as Kafka does when it checks for expired offsets."""
        with self._guard:
            for group_id, group in list(self._groups.items()):
                with group.guard:
                    if group.classic.is_idle and not group.offsets:
                        group.classic.unload()
                        del self._groups[group_id]
                        self.memory.resize(-group.own_bytes)
            if not self._is_closed:
                self._timer.after(self._config.offsets_retention_check_interval_ms, self._check_idle_groups)

    # -------------------------------------------------------------------------------------------------------- members
    def join(self, group_id: str, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None:
        """Answer a JoinGroup request when the rebalance is complete."""
        error = self._group_error(group_id)
        config = self._config
        if (
            error is ErrorCode.NONE
            and not config.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= config.group_max_session_timeout_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        if error is not ErrorCode.NONE:
            respond(JoinAnswer(error, request.member_id))
            return
        if not self._take(request.size_bytes):
            respond(JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID))
            return
        try:
            self._join(group_id, request, respond)
        finally:
            self.memory.resize(-request.size_bytes)

    def _join(self, group_id: str, request: JoinRequest, respond: Callable[[JoinAnswer], None]) -> None:
        is_new = request.member_id == NO_MEMBER_ID
        group = self._find_or_create(group_id) if is_new else self._find(group_id)
        if group is None:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED if is_new else ErrorCode.UNKNOWN_MEMBER_ID
            respond(JoinAnswer(error, request.member_id))
        elif group.kind not in _JOINABLE:
            respond(JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NO_MEMBER_ID))
        else:
            group.kind = GroupKind.CLASSIC
            self._run(group, lambda classic: classic.join(request, respond, self._now_ms()))

    def sync(self, group_id: str, request: SyncRequest, respond: Callable[[SyncAnswer], None]) -> None:
        """Answer a SyncGroup request when the leader has sent the assignment."""
        error = self._group_error(group_id)
        group = self._find(group_id) if error is ErrorCode.NONE else None
        if group is None:
            respond(SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID if error is ErrorCode.NONE else error))
        elif not self._take(request.size_bytes):
            respond(SyncAnswer(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            try:
                self._run(group, lambda classic: classic.sync(request, respond, self._now_ms()))
            finally:
                self.memory.resize(-request.size_bytes)

    def heartbeat(self, group_id: str, identity: MemberIdentity, generation: int) -> ErrorCode:
        """Handle a heartbeat and return its error code."""
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            # While groups are being loaded, heartbeats succeed, so that members keep their sessions.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = self._find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        with group.guard:
            error, effects = group.classic.heartbeat(identity, generation, self._now_ms())
            self._set_timer(group, effects)
        return error

    def leave(self, group_id: str, identities: Sequence[MemberIdentity]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Remove members; return the error code of the request and the error code of each member."""
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            return error, []
        group = self._find(group_id)
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID for _ in identities]
        return ErrorCode.NONE, self._run_with_result(group, lambda each: each.leave(identities, self._now_ms()))

    # -------------------------------------------------------------------------------------------------------- offsets
    def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        commits: Sequence[tuple[str, int, CommittedOffset]],
    ) -> list[ErrorCode]:
        """Commit offsets, given as (topic, partition, value); return an error code for each.

        GROUP_ID_NOT_FOUND: the request has a generation, but the group does not exist.
        INVALID_COMMIT_OFFSET_SIZE: `sediment.groups.max.bytes` is reached.
        """
        error = self._serving_error(group_id)
        if error is not ErrorCode.NONE:
            return [error for _ in commits]
        is_new = generation < 0
        group = self._find_or_create(group_id) if is_new else self._find(group_id)
        if group is None:
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_new else ErrorCode.GROUP_ID_NOT_FOUND
            return [error for _ in commits]
        with group.commit_guard:
            with group.guard:
                error = group.classic.commit_error(identity, generation)
                if error is not ErrorCode.NONE:
                    return [error for _ in commits]
                self._set_timer(group, group.classic.committed(identity.member_id, self._now_ms()))
            return self._store(group_id, group, commits)

    def _store(
        self, group_id: str, group: _Group, commits: Sequence[tuple[str, int, CommittedOffset]]
    ) -> list[ErrorCode]:
        longest = self._config.offset_metadata_max_bytes
        good: Sequence[tuple[str, int, CommittedOffset]] = [
            commit for commit in commits if len(commit[2].metadata) <= longest
        ]
        outcome = ErrorCode.NONE
        growth = group.offsets.growth_bytes(good)
        if not self._take(max(growth, 0)):
            outcome, growth, good = ErrorCode.INVALID_COMMIT_OFFSET_SIZE, 0, []
        if self._store_of_offsets is not None and good:
            try:
                good = self._store_of_offsets.append(group_id, good)
            except (OSError, SedimentError) as error:
                self._log.warning(f"a commit is rejected, because it cannot be stored: {error}")
                self.memory.resize(-max(growth, 0))
                outcome, growth, good = _commit_error_of(error), 0, []
        self.memory.resize(min(growth, 0))
        with group.guard:
            for commit in good:
                group.offsets.commit(*commit)
        return [
            outcome if len(value.metadata) <= longest else ErrorCode.OFFSET_METADATA_TOO_LARGE
            for _, _, value in commits
        ]

    def fetch(
        self, group_id: str, topics: Sequence[tuple[str, Sequence[int]]] | None, *, require_stable: bool
    ) -> tuple[ErrorCode, list[tuple[str, list[FetchedOffset]]]]:
        """Return the committed offsets of `topics`, given as (topic, partitions); by default, all offsets of the group.

        With `require_stable`, a partition gets UNSTABLE_OFFSET_COMMIT if an open transaction has a pending offset for
        it.
        """
        error = self._loading_error(group_id)
        if error is not ErrorCode.NONE:
            return error, []
        group = self._find(group_id)
        if group is None:
            return ErrorCode.NONE, [
                (topic, [FetchedOffset(each) for each in numbers]) for topic, numbers in topics or ()
            ]
        offsets = group.offsets

        def fetched(topic: str, partition: int) -> FetchedOffset:
            if require_stable and offsets.is_unstable(topic, partition):
                return FetchedOffset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            return FetchedOffset(partition, value=offsets.get(topic, partition))

        with group.guard:
            if topics is None:
                topics = [(topic, list(partitions)) for topic, partitions in offsets.committed.items()]
            return ErrorCode.NONE, [(topic, [fetched(topic, each) for each in numbers]) for topic, numbers in topics]

    # ---------------------------------------------------------------------------------------------------------- views
    def describe(self, group_id: str) -> tuple[ErrorCode, GroupDescription | None]:
        """Return a group with its members; GROUP_ID_NOT_FOUND if it does not exist or has a later protocol."""
        error = self._loading_error(group_id)
        if error is not ErrorCode.NONE:
            return error, None
        group = self._find(group_id)
        if group is None or group.kind not in _JOINABLE:
            return ErrorCode.GROUP_ID_NOT_FOUND, None
        return ErrorCode.NONE, self._describe(group_id, group)

    def list_groups(self) -> tuple[ErrorCode, list[GroupDescription]]:
        """Return every group."""
        if not self._is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
        with self._guard:
            groups = list(self._groups.items())
        return ErrorCode.NONE, [self._describe(*each) for each in groups]

    @staticmethod
    def _describe(group_id: str, group: _Group) -> GroupDescription:
        with group.guard:
            classic = group.classic
            return GroupDescription(
                group_id,
                group.kind,
                classic.state,
                _PROTOCOL_TYPES.get(group.kind, classic.protocol_type or ""),
                classic.protocol_name or "",
                tuple(replace(member) for member in classic.members.values()),
            )

    # -------------------------------------------------------------------------------------------------------- running
    def _loading_error(self, group_id: str) -> ErrorCode:
        if not self._is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.UNKNOWN_SERVER_ERROR if self._is_unreadable(group_id) else ErrorCode.NONE

    def _serving_error(self, group_id: str) -> ErrorCode:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if self._is_closed else self._loading_error(group_id)

    def _group_error(self, group_id: str) -> ErrorCode:
        """Return the error for a member's request; a group with an empty id may only store offsets."""
        return ErrorCode.INVALID_GROUP_ID if group_id == "" else self._serving_error(group_id)

    def _find(self, group_id: str) -> _Group | None:
        return self._groups.get(group_id)

    def _find_or_create(self, group_id: str) -> _Group | None:
        """Return the group, or create it; return None if a new group would exceed `sediment.groups.max.bytes`."""
        with self._guard:
            group = self._groups.get(group_id)
            own_bytes = GROUP_BYTES + len(group_id)
            if group is None and self._take(own_bytes):
                group = _Group(GroupKind.CLASSIC, self._classic_group(), own_bytes=own_bytes)
                self._groups[group_id] = group
            return group

    def _take(self, size_bytes: int) -> bool:
        is_taken = self.memory.take(size_bytes)
        if not is_taken:
            self._log.warning("a group gets no more memory: sediment.groups.max.bytes is reached")
        return is_taken

    def _classic_group(self) -> ClassicGroup:
        return ClassicGroup(self._config, lambda prefix: f"{prefix}-{uuid.uuid4()}")

    def _now_ms(self) -> int:
        return self._clock() // NS_PER_MS

    def _run(self, group: _Group, act: Callable[[ClassicGroup], list[Effect]]) -> None:
        self._run_with_result(group, lambda classic: (None, act(classic)))

    def _run_with_result(self, group: _Group, act: Callable[[ClassicGroup], tuple[_Result, list[Effect]]]) -> _Result:
        with group.guard:
            result, effects = act(group.classic)
            self._set_timer(group, effects)
            members_bytes = group.classic.size_bytes
            self.memory.resize(members_bytes - group.members_bytes)
            group.members_bytes = members_bytes
        _answer(effects)
        return result

    def _set_timer(self, group: _Group, effects: Sequence[Effect]) -> None:
        times_ms = [effect.time_ms for effect in effects if isinstance(effect, WakeAt)]
        if times_ms:
            if group.wake is not None:
                group.wake.cancel()
            group.wake = self._timer.after(min(times_ms) - self._now_ms(), lambda: self._wake(group))

    def _wake(self, group: _Group) -> None:
        self._run(group, lambda classic: classic.wake(self._now_ms()))


def _commit_error_of(error: BaseException) -> ErrorCode:
    """Return the error code for a commit that the store rejected; clients should retry only after a disk failure.

    Source: Kafka's CoordinatorOperationExceptionHelper.handleOperationException and OffsetMetadataManager.
    """
    if isinstance(error, PolicyViolationError):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if isinstance(error, RejectedAppendError):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _answer(effects: Sequence[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Answer):
            effect.waiter(effect.answer)
