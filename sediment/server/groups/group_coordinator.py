"""GroupCoordinator: the groups of a server, with their members, offsets, timers and waiting requests.

Before `load`, every request gets COORDINATOR_LOAD_IN_PROGRESS, which clients retry. If the partition that stores a
group cannot be read, requests of the group get UNKNOWN_SERVER_ERROR, which clients do not retry. Without its offsets,
the group would start from the beginning.

Invariants: a group changes only while its lock is held, and no lock is held while a request is answered. Offsets of
groups without members expire only if `offsets_retention_minutes` is set. Memory used for clients stays within the
limits of `client_memory`. The only operation that holds the `commit_guard` of several groups is the deletion of the
offsets of topics. At most one such deletion runs at a time.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from sediment.segment_io.errors import PolicyViolationError, RejectedAppendError, SedimentError
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.units import NS_PER_MS
from sediment.server.client_memory import GROUP_BYTES, ClientMemory
from sediment.server.delayed import Cancelable, MonotonicNs, Timer
from sediment.server.errors import ApiError, append_error_code_of, error_code_of
from sediment.server.groups.classic_group import CONSUMER_PROTOCOL, ClassicGroup, GroupState, Member
from sediment.server.groups.consumer import classic_members
from sediment.server.groups.consumer.cluster_topics import ClusterTopics
from sediment.server.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from sediment.server.groups.consumer.group_changes import (
    Change,
    Circumstances,
    Heartbeat,
    HeartbeatAnswer,
    check_heartbeat,
    expired_members,
    heartbeat,
    leave_for_a_while,
    leaving_member,
    needs_resolution,
    remove_members,
    resolve_regexes,
    restore_deadlines,
)
from sediment.server.groups.consumer.group_records import ResolvedRegex
from sediment.server.groups.consumer.members import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from sediment.server.groups.group_offsets import (
    MS_PER_MINUTE,
    CommittedOffset,
    GroupOffsets,
    TimeWithoutMembers,
    expired_offsets,
)
from sediment.server.groups.group_requests import (
    NO_MEMBER_ID,
    Answer,
    Effect,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    StableGroup,
    StoreGroup,
    SyncAnswer,
    SyncRequest,
    WakeAt,
)
from sediment.server.groups.offset_records import encode_group, group_tombstone
from sediment.server.groups.offset_store import GroupStore, OffsetStore
from sediment.server.groups.stored_groups import GroupKind, StoredGroup
from sediment.server.limited_log import LimitedLog
from sediment.server.regex import MAX_MATCH_SECONDS, matching_names
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


_RETRY_MS = 500


def _wall_ms() -> int:
    return time.time_ns() // NS_PER_MS


def _is_never(_group_id: str) -> bool:
    return False


def _no_configs(_group_id: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ConsumerGroupSupport:
    topics: ClusterTopics
    background: Timer
    wall_ms: Callable[[], int]
    configs_of: Callable[[str], Mapping[str, str]] = _no_configs


@dataclass(slots=True, eq=False)
class _Group:
    group_id: str
    kind: GroupKind
    classic: ClassicGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    guard: threading.Lock = field(default_factory=threading.Lock)
    commit_guard: threading.Lock = field(default_factory=threading.Lock)
    """The lock that is held during a write to the store, so that memory and disk get changes in the same order.

    During the write itself, `guard` is not held.
    """

    is_stored: bool = True
    """False for a group of a later protocol: its records are not changed, and classic members are only in memory."""

    has_records: bool = False
    """True if the store may contain records of the group."""

    consumer: ConsumerGroup | None = None
    """The members of a consumer group; in this case, `classic` has no members."""

    is_resolving: bool = False
    """True while regular expressions of the group are being matched with topics."""

    wake: Cancelable | None = None
    wake_ms: int | None = None
    own_bytes: int = 0
    """The bytes of the group without its members and offsets; 0 for a group from the log directory."""

    members_bytes: int = 0
    """The bytes of the members when they were last counted."""

    offsets_bytes: int = 0
    """The bytes of the offsets that clients committed."""

    without_members: TimeWithoutMembers = field(default_factory=TimeWithoutMembers)

    @property
    def is_idle(self) -> bool:
        return self.classic.is_idle if self.consumer is None else not self.consumer.members


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group in the form that DescribeGroups and ListGroups report; the members are copies."""

    group_id: str
    kind: GroupKind
    state: GroupState | ConsumerGroupState
    protocol_type: str
    protocol_name: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    partition: int
    error: ErrorCode = ErrorCode.NONE
    value: CommittedOffset | None = None


class GroupCoordinator:
    """Coordinator of every group; `clock` is monotonic, and `wall_ms` returns the time of day."""

    def __init__(
        self,
        config: ServerConfig,
        timer: Timer,
        clock: MonotonicNs,
        store: OffsetStore | None = None,
        group_store: GroupStore | None = None,
        consumer_groups: ConsumerGroupSupport | None = None,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._config = config
        self._wall_ms = wall_ms
        self._timer = timer
        self._clock = clock
        self._store_of_offsets = store
        self._group_store = group_store
        self._support = consumer_groups
        self.memory = ClientMemory(config.groups_max_bytes)
        self._log = LimitedLog(_LOGGER)
        self._groups: dict[str, _Group] = {}
        self._guard = threading.Lock()
        self._deleted_topics: set[str] = set()  # during the load
        self._pending_guards: dict[int | None, threading.Lock] = {}
        self._open: dict[tuple[int, int], set[_Group]] = defaultdict(set)
        self._is_loaded = False
        self._is_closed = False
        self._is_unreadable: Callable[[str], bool] = _is_never

    # ----------------------------------------------------------------------------------------------------- life cycle
    def load(self, stored: Mapping[str, StoredGroup], is_unreadable: Callable[[str], bool] = _is_never) -> None:
        """Start serving the groups of a log directory; commits in the store replace the offsets of these groups."""
        self._is_unreadable = is_unreadable
        for group_id, group in stored.items():
            assert group.kind is not None
            is_classic = group.kind is GroupKind.CLASSIC
            classic = self._classic_group()
            classic.generation = group.generation if is_classic else 0
            classic.protocol_type = group.protocol_type
            loaded = _Group(group_id, group.kind, classic, group.offsets, is_stored=is_classic, has_records=True)
            self._groups[group_id] = loaded
            if group.kind is GroupKind.CONSUMER and self._support is not None:
                self._load_consumer_group(loaded, group.consumer or ConsumerGroup(group_id))
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
        with self._guard:
            names, self._deleted_topics = self._deleted_topics, set()
            self._is_loaded = not names
            return names

    def close(self) -> None:
        with self._guard:
            self._is_closed = True
            groups = list(self._groups.values())
        for group in groups:
            with group.commit_guard:
                effects = self._run(group, lambda classic: classic.unload())
            _answer(effects)

    def _check_idle_groups(self) -> None:
        with self._guard:
            groups = list(self._groups.values())
        for group in groups:
            # A group to which something is being written, such as its first commit, is not idle.
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
            if not group.is_idle:
                group.without_members.end()
                return
            generation = group.classic.generation if group.consumer is None else group.consumer.epoch
            since_ms = group.without_members.begin(generation, now_ms)
            expired = expired_offsets(
                group.offsets, since_ms=since_ms, now_ms=now_ms, retention_ms=minutes * MS_PER_MINUTE
            )
        try:
            self._delete_offsets({group: expired})
        except (OSError, SedimentError) as error:
            self._log.warning(f"expired offsets of group {group.group_id} cannot be deleted: {error}")

    def _remove_if_idle(self, group: _Group) -> None:
        with group.guard:
            if not group.is_idle or group.offsets:
                return
        if self._group_store is not None and not group.is_stored:
            return
        try:
            self._delete_records(group, (), wait=False)
        except (OSError, SedimentError) as error:
            self._log.warning(f"unused group {group.group_id} cannot be removed: {error}")
        else:
            self._forget(group)

    def _delete_records(self, group: _Group, partitions: Sequence[tuple[str, int]], *, wait: bool) -> None:
        """Delete a group, and its offsets for `partitions`, from the store; the caller holds `commit_guard`."""
        store = self._group_store
        if store is not None and group.has_records and store.partition_of(group.group_id) is not None:
            keys = None if group.consumer is None else [each.encoded()[0] for each in group.consumer.tombstones()]
            store.delete_group(group.group_id, partitions, keys=keys, wait=wait)

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
            with group.commit_guard:
                answer = self._join_consumer_group(group, request)
                if answer is None:
                    group.kind = GroupKind.CLASSIC
                    effects = self._run(group, lambda classic: classic.join(request, respond, self._now_ms()))
                else:
                    effects = [Answer(respond, answer)]
            _answer(effects)

    def sync(self, group_id: str, request: SyncRequest, respond: Callable[[SyncAnswer], None]) -> None:
        error = self._group_error(group_id)
        group = self._find(group_id) if error is ErrorCode.NONE else None
        if group is None:
            respond(SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID if error is ErrorCode.NONE else error))
        elif not self._take(request.size_bytes):
            respond(SyncAnswer(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            try:
                with group.commit_guard:
                    if group.consumer is None:
                        effects = self._run(group, lambda classic: classic.sync(request, respond, self._now_ms()))
                    else:
                        effects = [Answer(respond, self._sync_consumer_group(group, group.consumer, request))]
                _answer(effects)
            finally:
                self.memory.resize(-request.size_bytes)

    def heartbeat(self, group_id: str, identity: MemberIdentity, generation: int) -> ErrorCode:
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            # While groups are being loaded, heartbeats succeed, so that members keep their sessions.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = self._find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        with group.guard:
            if group.consumer is not None:
                return self._heartbeat_in_consumer_group(group, group.consumer, identity, generation)
            error, effects = group.classic.heartbeat(identity, generation, self._now_ms())
            self._set_timer(group, effects)
        return error

    def leave(self, group_id: str, identities: Sequence[MemberIdentity]) -> tuple[ErrorCode, list[ErrorCode]]:
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            return error, []
        group = self._find(group_id)
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID for _ in identities]
        with group.commit_guard:
            if group.consumer is None:
                errors, effects = self._run_with_result(group, lambda each: each.leave(identities, self._now_ms()))
            else:
                error, errors, effects = self._leave_consumer_group(group, group.consumer, identities)
        _answer(effects)
        return error, errors

    # -------------------------------------------------------------------------------------------------------- offsets
    def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        generation: int,
        commits: Sequence[tuple[str, int, CommittedOffset]],
        *,
        knows_epochs: bool = True,
    ) -> list[ErrorCode]:
        # GROUP_ID_NOT_FOUND: the request has a generation, but the group does not exist. INVALID_COMMIT_OFFSET_SIZE:
        # `sediment.groups.max.bytes` is reached.
        group = self._group_of_commit(group_id, generation, if_unknown=ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ErrorCode):
            return [group for _ in commits]
        with group.commit_guard:
            with group.guard:
                if group.consumer is None:
                    error = group.classic.commit_error(identity, generation)
                else:
                    error = group.consumer.commit_error(identity, generation, knows_epochs=knows_epochs)
                if error is not ErrorCode.NONE:
                    return [error for _ in commits]
                self._set_timer(group, group.classic.committed(identity.member_id, self._now_ms()))
            return self._store(group_id, group, commits)

    def _group_of_commit(self, group_id: str, generation: int, *, if_unknown: ErrorCode) -> _Group | ErrorCode:
        # A commit without a generation creates the group.
        error = self._serving_error(group_id)
        if error is not ErrorCode.NONE:
            return error
        if generation >= 0:
            return self._find(group_id) or if_unknown
        return self._find_or_create(group_id) or ErrorCode.INVALID_COMMIT_OFFSET_SIZE

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
        """`append` stores the commits without waiting for the disk, and returns them with their records' offsets."""
        group = self._group_of_commit(group_id, generation, if_unknown=ErrorCode.ILLEGAL_GENERATION)
        if isinstance(group, ErrorCode):
            return [group for _ in commits]
        with group.commit_guard:
            with group.guard:
                error = (group.consumer or group.classic).commit_error(identity, generation, transactional=True)
                if error is ErrorCode.STALE_MEMBER_EPOCH:  # unknown to TxnOffsetCommit
                    error = ErrorCode.ILLEGAL_GENERATION
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
        """Store commits and make them pending; the caller holds `commit_guard` and has reserved `growth` bytes."""
        group.has_records = True
        # A marker that is appended before the commits are in memory would not apply to them.
        with self._pending_guard(self._partition_of(group)):
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
        number = self._partition_of(group) if producer_ids else None
        if number is not None:
            for producer_id in producer_ids:
                self._open[number, producer_id].add(group)

    def _partition_of(self, group: _Group) -> int | None:
        return None if self._group_store is None else self._group_store.partition_of(group.group_id)

    def _pending_guard(self, partition: int | None) -> threading.Lock:
        """Return the lock that is held while pending offsets or a marker are appended to a partition."""
        return self._pending_guards.setdefault(partition, threading.Lock())

    def end_transaction(
        self, partition: int, producer_id: int, *, is_committed: bool, append: Callable[[], _Result]
    ) -> _Result:
        if not self._is_loaded:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with self._pending_guard(partition):
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
        self,
        group_id: str,
        topics: Sequence[tuple[str, Sequence[int]]] | None,
        *,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[ErrorCode, list[tuple[str, list[FetchedOffset]]]]:
        """With `require_stable`, a partition with a pending offset of an open transaction gets UNSTABLE_OFFSET_COMMIT.

        `member_id` and `member_epoch` are checked only in a consumer group.
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
            if group.consumer is not None:
                error = group.consumer.fetch_error(member_id, member_epoch)
            if error is not ErrorCode.NONE:
                return error, []
            if topics is None:
                topics = [(topic, list(partitions)) for topic, partitions in offsets.committed.items()]
            return ErrorCode.NONE, [(topic, [fetched(topic, each) for each in numbers]) for topic, numbers in topics]

    # ------------------------------------------------------------------------------------------------------- deletions
    def delete(self, group_id: str) -> ErrorCode:
        error = self._serving_error(group_id)
        group = self._find(group_id) if error is ErrorCode.NONE else None
        if group is None or self._group_store is None:
            return ErrorCode.GROUP_ID_NOT_FOUND if error is ErrorCode.NONE else error
        if not group.is_stored:
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        with group.commit_guard:
            with group.guard:
                if group.classic.state is GroupState.DEAD:
                    return ErrorCode.GROUP_ID_NOT_FOUND
                if group.classic.state is not GroupState.EMPTY or (group.consumer and group.consumer.members):
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
        error = self._group_error(group_id)
        group = self._find(group_id) if error is ErrorCode.NONE else None
        if group is None or self._group_store is None:
            return ErrorCode.GROUP_ID_NOT_FOUND if error is ErrorCode.NONE else error, []
        with group.commit_guard:
            with group.guard:
                classic = group.classic
                subscribed = classic.subscribed_topics if group.consumer is None else group.consumer.subscribed_topics
                if classic.state is GroupState.DEAD:
                    return ErrorCode.GROUP_ID_NOT_FOUND, []
                if classic.members and classic.protocol_type != CONSUMER_PROTOCOL:
                    return ErrorCode.NON_EMPTY_GROUP, []
                existing = set(group.offsets.partitions())
            errors = [
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if not group.is_idle and (subscribed is None or topic in subscribed)
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
        """Calls must not overlap."""
        with self._guard:
            if not self._is_loaded:
                self._deleted_topics.update(names)
                return
        self._delete_offsets_of_topics(names)

    def _delete_offsets_of_topics(self, names: Collection[str]) -> None:
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
                    self._log.warning(f"committed offsets of deleted topics cannot be deleted: {error}")

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
        error = self._loading_error(group_id)
        if error is not ErrorCode.NONE:
            return error, None
        group = self._find(group_id)
        if group is None or group.kind not in _JOINABLE or group.consumer is not None:
            return ErrorCode.GROUP_ID_NOT_FOUND, None
        return ErrorCode.NONE, self._describe(group_id, group)

    def list_groups(self) -> tuple[ErrorCode, list[GroupDescription]]:
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
                classic.state if group.consumer is None else group.consumer.state,
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
        return ErrorCode.INVALID_GROUP_ID if group_id == "" else self._serving_error(group_id)

    def _find(self, group_id: str) -> _Group | None:
        return self._groups.get(group_id)

    def _find_or_create(self, group_id: str) -> _Group | None:
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
            self._log.warning("a request for a group was rejected: the limit sediment.groups.max.bytes is reached")
        return is_taken

    def _classic_group(self) -> ClassicGroup:
        return ClassicGroup(self._config, lambda prefix: f"{prefix}-{uuid.uuid4()}")

    def _now_ms(self) -> int:
        return self._clock() // NS_PER_MS

    def _run(self, group: _Group, act: Callable[[ClassicGroup], list[Effect]]) -> list[Effect]:
        return self._run_with_result(group, lambda classic: (None, act(classic)))[1]

    def _run_with_result(
        self, group: _Group, act: Callable[[ClassicGroup], tuple[_Result, list[Effect]]]
    ) -> tuple[_Result, list[Effect]]:
        """Change a classic group, and return the result and the remaining effects; `commit_guard` is held."""
        with group.guard:
            result, effects = act(group.classic)
            self._account(group, effects)
        # Wait for the disk only if a request will be answered.  Sessions may expire in all groups at once, and their
        # expiration sends no response.
        wait = result is not None or any(isinstance(effect, Answer) for effect in effects)
        return result, self._stored(group, effects, wait=wait)

    def _account(self, group: _Group, effects: Sequence[Effect]) -> None:
        """Set the timer, and record how much memory the members use; `guard` is held."""
        self._set_timer(group, effects)
        members_bytes = group.classic.size_bytes
        self.memory.resize(members_bytes - group.members_bytes)
        group.members_bytes = members_bytes

    def _stored(self, group: _Group, effects: list[Effect], *, wait: bool) -> list[Effect]:
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
        with group.commit_guard:
            if group.consumer is None:
                effects = self._run(group, lambda classic: classic.wake(self._now_ms()))
            else:
                effects = self._expire_members(group, group.consumer)
        _answer(effects)

    # ------------------------------------------------------------------------------------------------ consumer groups
    def consumer_heartbeat(self, group_id: str, request: Heartbeat, version: int) -> HeartbeatAnswer:
        if self._support is None:
            return HeartbeatAnswer(ErrorCode.UNSUPPORTED_VERSION, _NO_NEW_PROTOCOL)
        try:
            check_heartbeat(request, group_id, version, self._config.group_consumer_assignors)
            error = self._serving_error(group_id)
            if error is not ErrorCode.NONE:
                return HeartbeatAnswer(error)
            if not self._take(request.size_bytes):
                raise _no_memory()
            try:
                answer, effects = self._consumer_heartbeat(group_id, request)
            finally:
                self.memory.resize(-request.size_bytes)
        except ApiError as failure:
            return HeartbeatAnswer(failure.code, failure.message)
        _answer(effects)
        return answer

    def _consumer_heartbeat(self, group_id: str, request: Heartbeat) -> tuple[HeartbeatAnswer, list[Effect]]:
        joins = request.epoch == JOIN_EPOCH
        group = self._find_or_create(group_id) if joins else self._find(group_id)
        if group is None and joins:
            raise _no_memory()
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        with group.commit_guard:
            if group.classic.state is GroupState.DEAD:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if (group.consumer is None and not joins) or group.kind not in _JOINABLE:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            if group.consumer is not None and request.epoch < JOIN_EPOCH:
                return self._leave_by_heartbeat(group, group.consumer, request)
            try:
                return self._heartbeat_of_member(group, request)
            except ApiError:
                if not group.has_records and group.is_idle and not group.offsets:
                    self._forget(group)
                raise

    def _heartbeat_of_member(self, group: _Group, request: Heartbeat) -> tuple[HeartbeatAnswer, list[Effect]]:
        now = self._circumstances(group.group_id)
        preceding: list[tuple[bytes, bytes | None]] = []
        with group.guard:
            consumer = group.consumer
            if consumer is None:
                preceding = [(group_tombstone(group.group_id), None)] if group.has_records else []
                consumer = ConsumerGroup(group.group_id)
            if group.consumer is None and group.classic.members:
                classic = group.classic
                protocols = {member.member_id: member.protocols for member in classic.members.values()}
                upgrade = classic_members.upgraded(group.group_id, classic.stable_group, protocols, now)
                preceding += [each.encoded() for each in upgrade.records]
                consumer = upgrade.apply()
            change, answer = heartbeat(consumer, request, now)
        effects = self._change_consumer_group(group, change, preceding=preceding, is_limited=True)
        self._resolve_later(group, now)
        return answer, effects

    def _leave_by_heartbeat(
        self, group: _Group, consumer: ConsumerGroup, request: Heartbeat
    ) -> tuple[HeartbeatAnswer, list[Effect]]:
        member = leaving_member(consumer, request)
        if request.epoch == STATIC_LEAVE_EPOCH:
            effects = self._change_consumer_group(group, leave_for_a_while(consumer, member))
        else:
            effects = self._remove_members(group, consumer, [member.member_id])
        return HeartbeatAnswer(ErrorCode.NONE, None, member.member_id, request.epoch), effects

    def describe_consumer_group(self, group_id: str) -> ConsumerGroup:
        error = self._loading_error(group_id)
        if error is not ErrorCode.NONE:
            raise ApiError(error)
        group = self._find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        with group.guard:
            if group.consumer is None:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            return group.consumer.copy()

    @property
    def default_assignor(self) -> str:
        return self._config.group_consumer_assignors[0]

    # ------------------------------------------------------------------------------- classic members of consumer groups
    def _join_consumer_group(self, group: _Group, request: JoinRequest) -> JoinAnswer | None:
        consumer = group.consumer
        if consumer is None:
            return None
        try:
            if not consumer.members:
                self._delete_as(group, consumer)
                return None
            now = self._circumstances(group.group_id)
            new_id = str(uuid.uuid4())
            change, answer, classic = classic_members.join(consumer, request, new_id, now)
            if classic is None:
                effects = self._change_consumer_group(group, change, is_limited=True)
            else:
                effects = self._become_classic(group, change.after, classic, change)
            assert not effects, "a group that joins has no waiting members"
        except ApiError as error:
            return JoinAnswer(error.code, request.member_id)
        return answer

    def _delete_as(self, group: _Group, consumer: ConsumerGroup) -> None:
        self._store_records(group, [each.encoded() for each in consumer.tombstones()])
        with group.guard:
            group.consumer = None

    def _sync_consumer_group(self, group: _Group, consumer: ConsumerGroup, request: SyncRequest) -> SyncAnswer:
        try:
            with group.guard:
                change, answer = classic_members.sync(consumer, request, self._circumstances(group.group_id))
                self._apply(group, change)
        except ApiError as error:
            return SyncAnswer(error.code)
        return answer

    def _heartbeat_in_consumer_group(
        self, group: _Group, consumer: ConsumerGroup, identity: MemberIdentity, generation: int
    ) -> ErrorCode:
        try:
            change, error = classic_members.classic_heartbeat(
                consumer, identity, generation, self._circumstances(group.group_id)
            )
        except ApiError as failure:
            return failure.code
        self._apply(group, change)
        return error

    def _leave_consumer_group(
        self, group: _Group, consumer: ConsumerGroup, identities: Sequence[MemberIdentity]
    ) -> tuple[ErrorCode, list[ErrorCode], list[Effect]]:
        leaving, errors = classic_members.leaving_members(consumer, identities)
        try:
            effects = self._remove_members(group, consumer, leaving) if leaving else []
        except ApiError as failure:
            return failure.code, [], []
        return ErrorCode.NONE, errors, effects

    # -------------------------------------------------------------------------------------- changes, commit_guard held
    def _remove_members(
        self, group: _Group, consumer: ConsumerGroup, member_ids: Sequence[str], *, wait: bool = True
    ) -> list[Effect]:
        now = self._circumstances(group.group_id)
        if classic_members.is_downgraded(consumer, member_ids, self._config):
            classic = classic_members.downgraded(consumer, member_ids, now.topics)
            return self._become_classic(group, consumer, classic, Change(consumer), wait=wait)
        return self._change_consumer_group(group, remove_members(consumer, member_ids, now), wait=wait)

    def _expire_members(self, group: _Group, consumer: ConsumerGroup) -> list[Effect]:
        group.wake_ms = None
        expired = expired_members(consumer, self._now_ms())
        try:
            effects = self._remove_members(group, consumer, expired, wait=False) if expired else []
            if group.consumer is not None:
                self._set_consumer_timer(group, group.consumer.deadlines_ms.values())
        except ApiError:
            group.wake_ms = self._now_ms() + _RETRY_MS
            group.wake = self._timer.after(_RETRY_MS, lambda: self._wake(group))
            return []
        return effects

    def _change_consumer_group(
        self,
        group: _Group,
        change: Change,
        *,
        preceding: Sequence[tuple[bytes, bytes | None]] = (),
        is_limited: bool = False,
        wait: bool = True,
    ) -> list[Effect]:
        records = [*preceding, *(each.encoded() for each in change.records)]
        growth = change.after.size_bytes - group.members_bytes if records else 0
        if is_limited and growth > 0 and change.after.size_bytes > self._config.group_members_max_bytes:
            raise _no_memory()
        if is_limited and not self._take(max(growth, 0)):
            raise _no_memory()
        if not is_limited:
            self.memory.resize(max(growth, 0))
        if records:
            try:
                self._store_records(group, records, wait=wait)
            except ApiError:
                self.memory.resize(-max(growth, 0))
                raise
        self.memory.resize(min(growth, 0))
        effects: list[Effect] = []
        with group.guard:
            if group.consumer is None:
                effects = [each for each in group.classic.hand_over() if isinstance(each, Answer)]
                group.classic = self._classic_group()
                group.kind, group.is_stored = GroupKind.CONSUMER, True
            group.members_bytes += growth
            self._apply(group, change)
        return effects

    def _apply(self, group: _Group, change: Change) -> None:
        is_new = group.consumer is None
        group.consumer = change.apply()
        # In an existing group, only the deadlines of the change are set.  So a heartbeat does not have to visit all
        # members.
        deadlines_ms = group.consumer.deadlines_ms.values() if is_new else change.deadlines_ms.values()
        self._set_consumer_timer(group, (time_ms for time_ms in deadlines_ms if time_ms is not None))

    def _become_classic(
        self, group: _Group, consumer: ConsumerGroup, classic: StableGroup, change: Change, *, wait: bool = True
    ) -> list[Effect]:
        now_ms = self._circumstances(group.group_id).wall_ms
        deleted = [each.encoded() for each in (*change.records, *consumer.tombstones())]
        self._store_records(group, [*deleted, encode_group(group.group_id, classic, now_ms)], wait=wait)
        with group.guard:
            group.consumer, group.kind, group.classic = None, GroupKind.CLASSIC, self._classic_group()
            group.wake_ms = None
            effects = group.classic.restore(classic, self._now_ms()) + group.classic.rebalance(self._now_ms())
            self._account(group, effects)
        return [each for each in effects if isinstance(each, Answer)]

    def _store_records(
        self, group: _Group, records: Sequence[tuple[bytes, bytes | None]], *, wait: bool = True
    ) -> None:
        assert self._group_store is not None, "consumer groups are stored"
        group.has_records = True
        try:
            self._group_store.store_records(group.group_id, records, wait=wait)
        except (OSError, SedimentError) as error:
            self._log.warning(f"a change of group {group.group_id} cannot be stored: {error}")
            raise ApiError(_store_error_of(error)) from error

    def _set_consumer_timer(self, group: _Group, deadlines_ms: Iterable[int]) -> None:
        time_ms = min(deadlines_ms, default=None)
        if time_ms is not None and (group.wake_ms is None or time_ms < group.wake_ms):
            if group.wake is not None:
                group.wake.cancel()
            group.wake_ms = time_ms
            group.wake = self._timer.after(time_ms - self._now_ms(), lambda: self._wake(group))

    def _load_consumer_group(self, group: _Group, consumer: ConsumerGroup) -> None:
        group.is_stored = True
        group.consumer = consumer
        group.members_bytes = consumer.size_bytes
        self.memory.resize(consumer.size_bytes)
        restore_deadlines(consumer, self._circumstances(group.group_id))
        self._set_consumer_timer(group, consumer.deadlines_ms.values())

    def _circumstances(self, group_id: str) -> Circumstances:
        """A group's own configs take precedence.

        As in Kafka, the broker's minimum and maximum are checked only when the configs are changed.
        """
        assert self._support is not None, "only a coordinator with topics has consumer groups"
        config, own = self._config, self._support.configs_of(group_id)
        topics_version = self._support.topics.version
        return Circumstances(
            config,
            int(own.get("consumer.session.timeout.ms", config.group_consumer_session_timeout_ms)),
            int(own.get("consumer.heartbeat.interval.ms", config.group_consumer_heartbeat_interval_ms)),
            self._support.topics,
            topics_version,
            self._support.topics.metadata_version,
            self._now_ms(),
            self._support.wall_ms(),
        )

    # --------------------------------------------------------------------------------------------- regular expressions
    def _resolve_later(self, group: _Group, now: Circumstances) -> None:
        assert self._support is not None
        if group.consumer is not None and not group.is_resolving and needs_resolution(group.consumer, now):
            group.is_resolving = True
            self._support.background.after(0, lambda: self._resolve(group))

    def _resolve(self, group: _Group) -> None:
        assert self._support is not None
        try:
            now = self._circumstances(group.group_id)
            with group.guard:
                consumer = group.consumer
                # The expressions that have waited longest come first, because the total time is limited.
                waiting = (
                    {}
                    if consumer is None
                    else {
                        regex: consumer.regexes[regex].timestamp_ms if regex in consumer.regexes else -1
                        for regex in consumer.subscribed_regexes
                    }
                )
            found = self._matching(group, sorted(waiting, key=lambda regex: waiting[regex]), now)
            with group.commit_guard:
                if group.consumer is not None:
                    self._change_consumer_group(group, resolve_regexes(group.consumer, found, now), is_limited=True)
        except ApiError as error:
            self._log.warning(f"topics for regular expressions of group {group.group_id} cannot be stored: {error}")
        finally:
            group.is_resolving = False

    def _matching(self, group: _Group, regexes: Sequence[str], now: Circumstances) -> dict[str, ResolvedRegex]:
        assert self._support is not None
        names = self._support.topics.names()
        end_ns = self._clock() + int(MAX_MATCH_SECONDS * NS_PER_MS * 1000)
        found: dict[str, ResolvedRegex] = {}
        for regex in regexes:
            topics = matching_names(regex, names)
            if topics is None:
                self._log.warning(f"a regular expression of group {group.group_id} is too slow; it matches no topic")
            found[regex] = ResolvedRegex(topics or frozenset(), now.metadata_version, now.wall_ms)
            if self._clock() > end_ns or self._is_closed:
                break
        return found


_NO_NEW_PROTOCOL = "this server does not support the new group protocol; set group.protocol=classic"


def _no_memory() -> ApiError:
    return ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the limit on the memory of this server's groups is reached")


def _commit_error_of(error: BaseException) -> ErrorCode:
    if isinstance(error, PolicyViolationError):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if isinstance(error, RejectedAppendError):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return _store_error_of(error)


def _store_error_of(error: BaseException) -> ErrorCode:
    """Source: Kafka's CoordinatorOperationExceptionHelper.handleOperationException."""
    if isinstance(error, PolicyViolationError):  # the topic does not exist
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error_code_of(error) is ErrorCode.KAFKA_STORAGE_ERROR:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _answer(effects: Sequence[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Answer):
            effect.waiter(effect.answer)
