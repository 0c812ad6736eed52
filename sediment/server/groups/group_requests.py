"""Requests of group members, independent of protocol versions, and the effects of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.client_memory import MEMBER_BYTES

NO_MEMBER_ID = ""
NO_GENERATION = -1

Waiter: TypeAlias = Callable[[Any], object]
"""A function that answers one request; a group does not call the function but returns it in an effect."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]


def protocols_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


# ------------------------------------------------------------------------------------------------------------ requests
@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`protocols` are pairs (name, metadata), in order of preference.

    If `requires_known_member_id` (version 4 and later), a dynamic member first gets an id and then joins with this id.
    `supports_skipping_assignment` is True from version 9 on.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True

    @property
    def size_bytes(self) -> int:
        """The bytes of memory that the member uses.

        Its id is included, and begins with the client or instance id.
        """
        names = 2 * max(len(self.client_id), len(self.group_instance_id or ""))
        return MEMBER_BYTES + names + protocols_bytes(self.protocols)


@dataclass(frozen=True, slots=True)
class SyncRequest:
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(len(assignment) for _, assignment in self.assignments)


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The identity of a member in a request; a member with a `group_instance_id` is static."""

    member_id: str
    group_instance_id: str | None = None


# ------------------------------------------------------------------------------------------------------------- effects
@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: answer the request of `waiter`."""

    waiter: Waiter
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Effect: call `wake` at `time_ms` or later."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stable group; `subscription` belongs to the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StableGroup:
    generation: int
    protocol_type: str
    protocol_name: str | None
    leader_id: str | None
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class ReplacedId:
    member_id: str
    former_id: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Effect: store `group` before any later effect; if that fails, call `store_failed`.

    If the group is stored because a static member rejoined, `replaced` is this member.
    """

    group: StableGroup
    replaced: ReplacedId | None = None


Effect: TypeAlias = Answer | WakeAt | StoreGroup
