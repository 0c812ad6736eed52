"""GroupCoordinator: the groups of a server, with their members, offsets, timers and waiting requests.

    load                the groups of the directory, with the commits from the store
    join, sync          answered now or later, in any thread, through the caller's `respond`
    heartbeat, leave, commit, fetch, describe, list     answered immediately

Before `load`, every request gets COORDINATOR_LOAD_IN_PROGRESS, which clients retry.  If the partition that stores a
group cannot be read, requests of the group get UNKNOWN_SERVER_ERROR, which clients do not retry.  Without its offsets,
the group would start from the beginning.

For groups of other protocols (KIP-848 and later), this coordinator has no members.  As in Kafka, an empty consumer
group becomes a classic group when a member joins.

Invariants: a group changes only while its lock is held, and no lock is held while a request is answered.  With a store,
every commit, assignment and deletion is written there before it is answered.  Offsets of groups without members expire
only if `offsets_retention_minutes` is set.  Memory used for
clients stays within the limits of `group_memory`.  Only one thread at a time, the one that deletes the offsets of
topics, waits for a `commit_guard` while it holds others.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from sediment.segment_io.errors import PolicyViolationError, RejectedAppendError, SedimentError
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.units import NS_PER_MS
from sediment.server.delayed import Cancelable, Clock, Timer
from sediment.server.errors import ApiError, append_error_code_of, error_code_of
from sediment.server.groups.classic_group import CONSUMER_PROTOCOL, ClassicGroup, GroupState, Member
from sediment.server.groups.group_memory import GROUP_BYTES, GroupMemory
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.group_requests import (
    NO_MEMBER_ID,
    Answer,
    Effect,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    StoreGroup,
    SyncAnswer,
    SyncRequest,
    WakeAt,
)
from sediment.server.groups.offset_expiration import MS_PER_MINUTE, TimeWithoutMembers, expired_offsets
from sediment.server.groups.offset_store import GroupStore, OffsetStore
from sediment.server.groups.stored_groups import GroupKind, StoredGroup
from sediment.server.limited_log import LimitedLog
from sediment.server.server_config import ServerConfig

_LOGGER = logging.getLogger(__name__)
_Result = TypeVar("_Result")
Commit: TypeAlias = tuple[str, int, CommittedOffset]
"""Topic, partition and offset."""

_TRANSACTION_ERRORS = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
_JOINABLE = (GroupKind.CLASSIC, GroupKind.CONSUMER)
_PROTOCOL_TYPES = {GroupKind.CONSUMER: "consumer", GroupKind.SHARE: "share", GroupKind.STREAMS: "streams"}


def _wall_ms() -> int:
    return time.time_ns() // NS_PER_MS


def _is_never(_group_id: str) -> bool:
    return False


@dataclass(slots=True, eq=False)
class _Group:
    """One group: its members, in `classic`, and its offsets, locks, timer and memory."""

    group_id: str
    kind: GroupKind
    classic: ClassicGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    guard: threading.Lock = field(default_factory=threading.Lock)
    commit_guard: threading.Lock = field(default_factory=threading.Lock)
    """The lock held while something is written, so that memory and disk get changes in the same order.

    Meanwhile, `guard` is not held.
    """

    is_stored: bool = True
    """False for a group of a later protocol: its records stay as they are, and its classic members are in memory."""

    has_records: bool = False
    """True if the store may have records of the group."""

    wake: Cancelable | None = None
    own_bytes: int = 0
    """The bytes of the group without its members and offsets; 0 for a group from the log directory."""

    members_bytes: int = 0
    """The bytes of the members when they were last counted."""

    offsets_bytes: int = 0
    """Memory of the offsets that clients committed."""

    without_members: TimeWithoutMembers = field(default_factory=TimeWithoutMembers)


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
    """Coordinator of every group; `clock` is monotonic, and `wall_ms` returns the time of day.

    With a `group_store`, members survive a restart, and groups and offsets can be deleted.
    """

    def __init__(
        self,
        config: ServerConfig,
        timer: Timer,
        clock: Clock,
        store: OffsetStore | None = None,
        group_store: GroupStore | None = None,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._config = config
        self._wall_ms = wall_ms
        self._timer = timer
        self._clock = clock
        self._store_of_offsets = store
        self._group_store = group_store
        self.memory = GroupMemory(config.groups_max_bytes)
        self._log = LimitedLog(_LOGGER)
        self._groups: dict[str, _Group] = {}
        self._guard = threading.Lock()
        self._deleted_topics: set[str] = set()  # during the load
        self._transactions = threading.Lock()
        self._open: dict[tuple[int, int], set[_Group]] = defaultdict(set)
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
            loaded = _Group(group_id, group.kind, classic, group.offsets, is_stored=is_classic, has_records=True)
            self._groups[group_id] = loaded
            if self._group_store is not None and group.classic is not None:
                with loaded.guard:
                    self._set_timer(loaded, classic.restore(group.classic, self._now_ms()))
                    loaded.members_bytes = classic.size_bytes
                self.memory.resize(loaded.members_bytes)
        for group_id, offsets in (self._store_of_offsets.offsets if self._store_of_offsets else {}).items():
            existing = self._groups.setdefault(group_id, _Group(group_id, GroupKind.CLASSIC, self._classic_group()))
            self.memory.resize(existing.offsets.growth_bytes(tuple(offsets)))
            for commit in offsets:
                existing.offsets.commit(*commit)
        for with_offsets in self._groups.values():
            self._note_pending(with_offsets, with_offsets.offsets.pending)
        while names := self._deleted_before_the_load_ended():
            self._delete_offsets_of_topics(names)
        self._timer.after(self._config.offsets_retention_check_interval_ms, self._check_idle_groups)

    def _deleted_before_the_load_ended(self) -> Collection[str]:
        """Return the topics that were deleted since the last call; if there are none, the load has ended."""
        with self._guard:
            names, self._deleted_topics = self._deleted_topics, set()
            self._is_loaded = not names
            return names

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
            groups = list(self._groups.values())
        for group in groups:
            # A group to which something is being written is not idle, such as one with its first commit.
            if group.commit_guard.acquire(blocking=False):
                try:
                    self._expire_offsets(group)
                    self._remove_if_idle(group)
                finally:
                    group.commit_guard.release()
        with self._guard:
            if not self._is_closed:
                self._timer.after(self._config.offsets_retention_check_interval_ms, self._check_idle_groups)

    def _expire_offsets(self, group: _Group) -> None:
        """Delete the expired offsets of a group without members; `commit_guard` is held."""
        minutes = self._config.offsets_retention_minutes
        if minutes is None or not group.is_stored:
            return
        now_ms = self._wall_ms()
        with group.guard:
            if not group.classic.is_idle:
                group.without_members.end()
                return
            since_ms = group.without_members.begin(group.classic.generation, now_ms)
            expired = expired_offsets(
                group.offsets, since_ms=since_ms, now_ms=now_ms, retention_ms=minutes * MS_PER_MINUTE
            )
        try:
            self._delete_offsets({group: expired})
        except (OSError, SedimentError) as error:
            self._log.warning(f"expired offsets of group {group.group_id} stay: {error}")

    def _remove_if_idle(self, group: _Group) -> None:
        with group.guard:
            if not group.classic.is_idle or group.offsets:
                return
        if self._group_store is not None and not group.is_stored:
            return
        try:
            self._delete_records(group, (), wait=False)
        except (OSError, SedimentError) as error:
            self._log.warning(f"group {group.group_id}, which is not used, cannot be removed: {error}")
        else:
            self._forget(group)

    def _delete_records(self, group: _Group, partitions: Sequence[tuple[str, int]], *, wait: bool) -> None:
        """Delete a group, with the offsets of `partitions`, in the store; `commit_guard` is held."""
        store = self._group_store
        if store is not None and group.has_records and store.partition_of(group.group_id) is not None:
            store.delete_group(group.group_id, partitions, wait=wait)

    def _forget(self, group: _Group) -> None:
        """Remove a group and free its memory; `commit_guard` is held."""
        with self._guard, group.guard:
            group.classic.unload()
            if group.wake is not None:
                group.wake.cancel()
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]
            self.memory.resize(-group.own_bytes - group.members_bytes - group.offsets_bytes)
            group.own_bytes = group.members_bytes = group.offsets_bytes = 0

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
            group.has_records = True
            try:
                good = self._store_of_offsets.append(group_id, good)
            except (OSError, SedimentError) as error:
                self._log.warning(f"a commit is rejected, because it cannot be stored: {error}")
                self.memory.resize(-max(growth, 0))
                outcome, growth, good = _commit_error_of(error), 0, []
        self.memory.resize(min(growth, 0))
        with group.guard:
            group.offsets_bytes += growth
            for commit in good:
                group.offsets.commit(*commit)
        return [
            outcome if len(value.metadata) <= longest else ErrorCode.OFFSET_METADATA_TOO_LARGE
            for _, _, value in commits
        ]

    def commit_in_transaction(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        producer_id: int,
        commits: Sequence[tuple[str, int, CommittedOffset]],
        append: Callable[[Sequence[Commit]], Sequence[Commit]],
    ) -> list[ErrorCode]:
        """Make offsets pending until the producer's transaction ends; return an error code for each.

        `append` stores them, and returns them with the offsets of their records; it does not wait for the disk.

        INVALID_COMMIT_OFFSET_SIZE: `sediment.groups.max.bytes` is reached.
        """
        error = self._serving_error(group_id)
        if error is not ErrorCode.NONE:
            return [error for _ in commits]
        is_new = generation < 0
        group = self._find_or_create(group_id) if is_new else self._find(group_id)
        if group is None:
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_new else ErrorCode.ILLEGAL_GENERATION
            return [error for _ in commits]
        with group.commit_guard:
            with group.guard:
                error = group.classic.commit_error(identity, generation, transactional=True)
            longest = self._config.offset_metadata_max_bytes
            good = [commit for commit in commits if len(commit[2].metadata) <= longest]
            growth = sum(value.size_bytes for _, _, value in good)
            if error is ErrorCode.NONE and not self._take(growth):
                error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            if error is ErrorCode.NONE and good:
                error = self._make_pending(group, producer_id, good, growth, append)
        return [
            error if error is not ErrorCode.NONE or len(value.metadata) <= longest
            else ErrorCode.OFFSET_METADATA_TOO_LARGE
            for _, _, value in commits
        ]  # fmt: skip

    def _make_pending(
        self,
        group: _Group,
        producer_id: int,
        commits: Sequence[tuple[str, int, CommittedOffset]],
        growth: int,
        append: Callable[[Sequence[Commit]], Sequence[Commit]],
    ) -> ErrorCode:
        """Store commits and make them pending; `commit_guard` is held, and `growth` bytes are taken."""
        group.has_records = True
        # Until the commits are in memory, no marker may be appended: it would not find them.
        with self._transactions:
            try:
                stored = append(commits)
            except (OSError, SedimentError) as error:
                self.memory.resize(-growth)
                code = append_error_code_of(error)
                if code not in _TRANSACTION_ERRORS:
                    self._log.warning(f"a commit in a transaction is rejected, because it cannot be stored: {error}")
                    code = _commit_error_of(error)
                return code
            with group.guard:
                before = group.offsets.pending_bytes(producer_id)
                for commit in stored:
                    group.offsets.commit_in_transaction(producer_id, *commit)
                surplus = growth - (group.offsets.pending_bytes(producer_id) - before)
                group.offsets_bytes += growth - surplus
            self.memory.resize(-surplus)
            self._note_pending(group, [producer_id])
        return ErrorCode.NONE

    def _note_pending(self, group: _Group, producer_ids: Collection[int]) -> None:
        """Remember the producers whose transactions have pending offsets of a group."""
        store = self._group_store
        number = None if store is None or not producer_ids else store.partition_of(group.group_id)
        if number is not None:
            for producer_id in producer_ids:
                self._open[number, producer_id].add(group)

    def end_transaction(
        self, partition: int, producer_id: int, *, is_committed: bool, append: Callable[[], _Result]
    ) -> _Result:
        """Append a marker to a partition of the store, and apply or drop the pending offsets of its producer.

        Raises:
            ApiError: the groups are not loaded yet.
            SedimentError, OSError: `append` failed; nothing changed.
        """
        if not self._is_loaded:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with self._transactions:
            result = append()
            for group in self._open.pop((partition, producer_id), ()):
                with group.guard:
                    change = -group.offsets.pending_bytes(producer_id)
                    change += group.offsets.end_transaction(producer_id, is_committed=is_committed)
                    change = max(change, -group.offsets_bytes)
                    group.offsets_bytes += change
                    self.memory.resize(change)
        return result

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

    # ------------------------------------------------------------------------------------------------------- deletions
    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, with its offsets; a group with an empty id may have offsets."""
        error = self._serving_error(group_id)
        group = self._find(group_id) if error is ErrorCode.NONE else None
        if group is None or self._group_store is None:
            return ErrorCode.GROUP_ID_NOT_FOUND if error is ErrorCode.NONE else error
        if not group.is_stored or group.kind is not GroupKind.CLASSIC:
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        with group.commit_guard:
            with group.guard:
                if group.classic.state is GroupState.DEAD:
                    return ErrorCode.GROUP_ID_NOT_FOUND
                if group.classic.state is not GroupState.EMPTY:
                    return ErrorCode.NON_EMPTY_GROUP
                partitions = group.offsets.partitions()
            try:
                self._delete_records(group, partitions, wait=True)
            except (OSError, SedimentError) as failure:
                self._log.warning(f"group {group_id} cannot be deleted: {failure}")
                return _store_error_of(failure)
            self._forget(group)
        return ErrorCode.NONE

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Delete offsets of a group; return the error of the request and an error for each partition."""
        error = self._group_error(group_id)
        group = self._find(group_id) if error is ErrorCode.NONE else None
        if group is None or self._group_store is None:
            return ErrorCode.GROUP_ID_NOT_FOUND if error is ErrorCode.NONE else error, []
        with group.commit_guard:
            with group.guard:
                classic = group.classic
                subscribed = classic.subscribed_topics
                if classic.state is GroupState.DEAD:
                    return ErrorCode.GROUP_ID_NOT_FOUND, []
                if classic.members and classic.protocol_type != CONSUMER_PROTOCOL:
                    return ErrorCode.NON_EMPTY_GROUP, []
                existing = set(group.offsets.partitions())
            errors = [
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if classic.members and (subscribed is None or topic in subscribed)
                else ErrorCode.NONE
                for topic, _ in partitions
            ]
            free = [each for each, failed in zip(partitions, errors, strict=True) if failed is ErrorCode.NONE]
            try:
                self._delete_offsets({group: [each for each in dict.fromkeys(free) if each in existing]})
            except (OSError, SedimentError) as failure:
                self._log.warning(f"offsets of group {group_id} cannot be deleted: {failure}")
                return _store_error_of(failure), []
        return ErrorCode.NONE, errors

    def topics_deleted(self, names: Collection[str]) -> None:
        """Delete the offsets of topics that were deleted; until the groups are loaded, only remember the topics.

        Calls must come one after the other.
        """
        with self._guard:
            if not self._is_loaded:
                self._deleted_topics.update(names)
                return
        self._delete_offsets_of_topics(names)

    def _delete_offsets_of_topics(self, names: Collection[str]) -> None:
        """Delete the offsets of topics in all groups; groups of one partition of the store are handled together."""
        if self._group_store is None:
            return
        with self._guard:
            groups = list(self._groups.values())
        by_partition: dict[int | None, list[_Group]] = defaultdict(list)
        for group in groups:
            by_partition[self._group_store.partition_of(group.group_id)].append(group)
        for together in by_partition.values():
            with ExitStack() as held:
                deleted = {}
                for group in together:
                    held.enter_context(group.commit_guard)
                    with group.guard:
                        if group.classic.state is not GroupState.DEAD:
                            deleted[group] = [each for each in group.offsets.partitions() if each[0] in names]
                try:
                    self._delete_offsets(deleted)
                except (OSError, SedimentError) as error:
                    self._log.warning(f"committed offsets of deleted topics stay: {error}")

    def _delete_offsets(self, deleted: Mapping[_Group, Sequence[tuple[str, int]]]) -> None:
        """Delete offsets that exist; the `commit_guard` of each group is held."""
        changed = {group: partitions for group, partitions in deleted.items() if partitions}
        if not changed or self._group_store is None:
            return
        self._group_store.delete_offsets({group.group_id: partitions for group, partitions in changed.items()})
        for group, partitions in changed.items():
            with group.guard:
                before = group.offsets_bytes
                for topic, number in partitions:
                    freed = group.offsets.remove(topic, number)
                    group.offsets_bytes -= min(freed, group.offsets_bytes)
                self.memory.resize(group.offsets_bytes - before)

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
                group = _Group(group_id, GroupKind.CLASSIC, self._classic_group(), own_bytes=own_bytes)
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
        with group.commit_guard:
            with group.guard:
                result, effects = act(group.classic)
                self._account(group, effects)
            # Only an answer waits for the disk.  Sessions that end are not answered, and may end in all groups at once.
            wait = result is not None or any(isinstance(effect, Answer) for effect in effects)
            effects = self._stored(group, effects, wait=wait)
        _answer(effects)
        return result

    def _account(self, group: _Group, effects: Sequence[Effect]) -> None:
        """Set the timer, and count the memory of the members; `guard` is held."""
        self._set_timer(group, effects)
        members_bytes = group.classic.size_bytes
        self.memory.resize(members_bytes - group.members_bytes)
        group.members_bytes = members_bytes

    def _stored(self, group: _Group, effects: list[Effect], *, wait: bool) -> list[Effect]:
        """Store a new generation, and return the effects that follow."""
        generations = [effect.group for effect in effects if isinstance(effect, StoreGroup)]
        if not generations or self._group_store is None or not group.is_stored:
            return effects
        group.has_records = True
        try:
            self._group_store.store_group(group.group_id, generations[-1], wait=wait)
        except (OSError, SedimentError) as error:
            self._log.warning(f"a generation of group {group.group_id} cannot be stored: {error}")
            with group.guard:
                effects = group.classic.store_failed(effects, _store_error_of(error), self._now_ms())
                self._account(group, effects)
        return effects

    def _set_timer(self, group: _Group, effects: Sequence[Effect]) -> None:
        times_ms = [effect.time_ms for effect in effects if isinstance(effect, WakeAt)]
        if times_ms:
            if group.wake is not None:
                group.wake.cancel()
            group.wake = self._timer.after(min(times_ms) - self._now_ms(), lambda: self._wake(group))

    def _wake(self, group: _Group) -> None:
        self._run(group, lambda classic: classic.wake(self._now_ms()))


def _commit_error_of(error: BaseException) -> ErrorCode:
    """Return the error code for a rejected commit; it makes clients retry only if a disk failed."""
    if isinstance(error, PolicyViolationError):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if isinstance(error, RejectedAppendError):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return _store_error_of(error)


def _store_error_of(error: BaseException) -> ErrorCode:
    """Return the error code for a generation or a deletion that could not be stored.

    Source: Kafka's CoordinatorOperationExceptionHelper.handleOperationException.
    """
    if isinstance(error, PolicyViolationError):  # the topic does not exist
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code_of(error) is ErrorCode.KAFKA_STORAGE_ERROR:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _answer(effects: Sequence[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Answer):
            effect.waiter(effect.answer)
