"""Drives one group by hand: a clock that wakes the group when it asked for it, and waiters that keep their answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.classic_group import ClassicGroup, GroupState
from sediment.server.groups.group_requests import (
    Answer,
    Effect,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    StableGroup,
    StoreGroup,
    SyncAnswer,
    SyncRequest,
)
from sediment.server.server_config import ServerConfig

__all__ = ["ErrorCode", "GroupDriver", "GroupState", "JoinAnswer", "SyncAnswer", "Waiting"]

PROTOCOLS = (("range", b"subscription"),)


@dataclass(eq=False)
class Waiting:
    """Request that keeps the answer that it gets."""

    answer: JoinAnswer | SyncAnswer | None = None

    def __call__(self, answer: JoinAnswer | SyncAnswer) -> None:
        assert self.answer is None, "answered twice"
        self.answer = answer


class GroupDriver:
    def __init__(self, *, first_id: int = 1, **config: Any) -> None:
        numbers = itertools.count(first_id)
        self.group = ClassicGroup(ServerConfig(**config), lambda prefix: f"{prefix}-{next(numbers)}")
        self.now_ms = 0
        self.waiting: list[Waiting] = []
        self.stored: list[StableGroup] = []
        self.store_fails = False
        self._wakes: set[int] = set()

    @property
    def state(self) -> GroupState:
        return self.group.state

    def member_ids(self) -> list[str]:
        return list(self.group.members)

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass; the group is woken exactly when it asked for it."""
        end_ms = self.now_ms + duration_ms
        while self._wakes and min(self._wakes) <= end_ms:
            self.now_ms = max(min(self._wakes), self.now_ms)
            self._wakes = {wake for wake in self._wakes if wake > self.now_ms}
            self._apply(self.group.wake(self.now_ms))
        self.now_ms = end_ms

    # ------------------------------------------------------------------------------------------------------- requests
    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        client_id: str = "client",
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        protocol_type: str = "consumer",
        protocols: tuple[tuple[str, bytes], ...] = PROTOCOLS,
        **options: bool,
    ) -> Waiting:
        request = JoinRequest(
            member_id,
            instance,
            client_id,
            "/127.0.0.1",
            session_timeout_ms,
            rebalance_timeout_ms,
            protocol_type,
            protocols,
            **options,
        )
        waiting = Waiting()
        self.waiting.append(waiting)
        self._apply(self.group.join(request, waiting, self.now_ms))
        return waiting

    def join_with_id(self, **options: Any) -> Waiting:
        """Join in both steps."""
        answer = self.join(**options).answer
        assert isinstance(answer, JoinAnswer) and answer.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(answer.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_name: str | None = "range",
    ) -> Waiting:
        request = SyncRequest(
            member_id, instance, generation, "consumer", protocol_name, tuple((assignments or {}).items())
        )
        waiting = Waiting()
        self.waiting.append(waiting)
        self._apply(self.group.sync(request, waiting, self.now_ms))
        return waiting

    def heartbeat(self, member_id: str, generation: int, *, instance: str | None = None) -> ErrorCode:
        error, effects = self.group.heartbeat(MemberIdentity(member_id, instance), generation, self.now_ms)
        self._apply(effects)
        return error

    def leave(self, *member_ids: str, instance: str | None = None) -> list[ErrorCode]:
        identities = [MemberIdentity(member_id, instance) for member_id in member_ids]
        errors, effects = self.group.leave(identities, self.now_ms)
        self._apply(effects)
        return errors

    def commit(
        self, member_id: str, generation: int, *, instance: str | None = None, transactional: bool = False
    ) -> ErrorCode:
        error = self.group.commit_error(MemberIdentity(member_id, instance), generation, transactional=transactional)
        if error is ErrorCode.NONE:
            self._apply(self.group.committed(member_id, self.now_ms))
        return error

    def restore(self, group: StableGroup) -> None:
        self._apply(self.group.restore(group, self.now_ms))

    def unload(self) -> None:
        self._apply(self.group.unload())

    # --------------------------------------------------------------------------------------------------------- groups
    def completing(self, count: int, *, instances: Sequence[str | None] | None = None, **options: Any) -> list[str]:
        """Bring a new group of `count` members into CompletingRebalance; the first one leads."""
        waiters = [
            self.join_with_id(**options) if instance is None else self.join(instance=instance, **options)
            for instance in instances or [None] * count
        ]
        while any(waiter.answer is None for waiter in waiters):
            self.pass_ms(self.group.config.group_initial_rebalance_delay_ms)
        return [waiter.answer.member_id for waiter in waiters if isinstance(waiter.answer, JoinAnswer)]

    def stable(self, count: int, **options: Any) -> list[str]:
        """Bring a new group of `count` members into Stable; the assignment of each is its id."""
        members = self.completing(count, **options)
        for member_id in reversed(members):
            instance = self.group.members[member_id].group_instance_id
            assignments = {each: each.encode() for each in members} if member_id == members[0] else {}
            self.sync(member_id, 1, assignments, instance=instance, protocol_name=None)
        assert self.state is GroupState.STABLE
        return members

    def _apply(self, effects: Sequence[Effect]) -> None:
        if self.store_fails and any(isinstance(effect, StoreGroup) for effect in effects):
            effects = self.group.store_failed(effects, ErrorCode.NOT_COORDINATOR, self.now_ms)
        for effect in effects:
            if isinstance(effect, Answer):
                effect.waiter(effect.answer)
            elif isinstance(effect, StoreGroup):
                self.stored.append(effect.group)
            else:
                self._wakes.add(effect.time_ms)
