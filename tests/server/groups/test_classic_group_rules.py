"""Invariants of a group under any sequence of requests and pauses."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.server.groups.group_driver import ErrorCode, GroupDriver, GroupState, JoinAnswer

PROTOCOLS = [
    (("range", b"a"),),
    (("range", b"b"), ("sticky", b"a")),
    (("sticky", b"a"), ("range", b"a"), ("range", b"twice")),
    (("connect", b""),),
]
INSTANCES = [None, None, "pod-1", "pod-2"]


class AnySequence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = GroupDriver(group_max_size=4)
        self.known = [""]
        self.generation = 0

    def member(self, choice: int) -> str:
        """Return an id that was given out, often one of the present members."""
        present = self.group.member_ids()
        ids = [*self.known, *present, *present]
        return ids[choice % len(ids)]

    @rule(
        choice=st.integers(0, 40),
        instance=st.sampled_from(INSTANCES),
        protocols=st.sampled_from(PROTOCOLS),
        times=st.tuples(st.integers(6000, 40_000), st.integers(-1, 60_000)),
        old=st.booleans(),
    )
    def join(
        self,
        choice: int,
        instance: str | None,
        protocols: tuple[tuple[str, bytes], ...],
        times: tuple[int, int],
        old: bool,
    ) -> None:
        session_ms, rebalance_ms = times
        waiting = self.group.join(
            self.member(choice),
            instance=instance,
            protocols=protocols,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            requires_known_member_id=not old,
            supports_skipping_assignment=not old,
        )
        if isinstance(waiting.answer, JoinAnswer):
            self.known.append(waiting.answer.member_id)

    @rule()
    def all_rejoin(self) -> None:
        for member_id, member in list(self.group.group.members.items()):
            self.group.join(member_id, instance=member.group_instance_id, protocols=member.protocols)

    @rule()
    def all_sync(self) -> None:
        for member_id, member in list(self.group.group.members.items()):
            generation = self.group.group.generation
            self.group.sync(member_id, generation, instance=member.group_instance_id, protocol_name=None)

    @rule(choice=st.integers(0, 40), instance=st.sampled_from(INSTANCES), late=st.integers(0, 1))
    def sync(self, choice: int, instance: str | None, late: int) -> None:
        generation = self.group.group.generation - late
        self.group.sync(self.member(choice), generation, instance=instance, protocol_name=None)

    @rule(choice=st.integers(0, 40), instance=st.sampled_from(INSTANCES))
    def heartbeat(self, choice: int, instance: str | None) -> None:
        member_id = self.member(choice)
        error = self.group.heartbeat(member_id, self.group.group.generation, instance=instance)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            assert member_id in self.group.member_ids()

    @rule(choices=st.lists(st.integers(0, 40), min_size=1, max_size=3), instance=st.sampled_from(INSTANCES))
    def leave(self, choices: list[int], instance: str | None) -> None:
        member_ids = [self.member(choice) for choice in choices]
        errors = self.group.leave(*member_ids, instance=instance)
        assert len(errors) == len(member_ids)
        gone = {member_id for member_id, error in zip(member_ids, errors, strict=True) if error is ErrorCode.NONE}
        assert not gone & set(self.group.member_ids())

    @rule(choice=st.integers(0, 40))
    def commit(self, choice: int) -> None:
        self.group.commit(self.member(choice), self.group.group.generation)

    @rule(fails=st.booleans())
    def store(self, fails: bool) -> None:
        """Make the store work, or fail, from now on."""
        self.group.store_fails = fails

    @rule(duration_ms=st.sampled_from([1, 100, 2999, 3000, 7000, 50_000]))
    def pause(self, duration_ms: int) -> None:
        self.group.pass_ms(duration_ms)

    @invariant()
    def generations_grow(self) -> None:
        assert self.group.group.generation >= self.generation
        self.generation = self.group.group.generation

    @invariant()
    def one_member_leads(self) -> None:
        group = self.group.group
        assert (group.leader_id in group.members) if group.members else group.leader_id is None

    @invariant()
    def members_wait_only_where_their_state_lets_them(self) -> None:
        group = self.group.group
        members = list(group.members.values())
        if group.state is not GroupState.PREPARING_REBALANCE:
            assert not any(member.joining for member in members)
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert not any(member.syncing for member in members)
        assert (group.state is GroupState.EMPTY) <= (not members)
        held = {id(waiter) for member in members for waiter in (member.joining, member.syncing) if waiter}
        assert held == {id(waiting) for waiting in self.group.waiting if waiting.answer is None}

    @invariant()
    def a_protocol_is_common_to_all(self) -> None:
        group = self.group.group
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert all(group.protocol_name in dict(member.protocols) for member in group.members.values())

    @invariant()
    def a_stable_group_is_the_stored_one(self) -> None:
        group = self.group.group
        if group.state is GroupState.STABLE:
            stored = self.group.stored[-1]
            assert (stored.generation, stored.leader_id) == (group.generation, group.leader_id)
            assert {each.member_id: (each.group_instance_id, each.subscription) for each in stored.members} == {
                each.member_id: (each.group_instance_id, each.metadata(group.protocol_name))
                for each in group.members.values()
            }

    def teardown(self) -> None:
        """Let every session end: then all waiters are answered, and the group is empty."""
        self.group.pass_ms(2_000_000)
        assert self.group.state is GroupState.EMPTY
        assert self.group.group.is_idle
        assert all(waiting.answer is not None for waiting in self.group.waiting)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(chance=st.randoms(use_true_random=False), steps=st.integers(1, 25))
def test_no_member_stays_when_all_clients_have_fallen_silent(chance: random.Random, steps: int) -> None:
    driver = GroupDriver(group_initial_rebalance_delay_ms=chance.choice([0, 3000]))
    protocols = [(("range", b"subscription"),), (("range", b"other"),)]
    for _ in range(steps):
        members = driver.member_ids()
        step, member = chance.randrange(8), chance.choice(members or [""])
        instance = driver.group.members[member].group_instance_id if members else None
        if step <= 1:
            driver.join(instance=chance.choice(["i", "j", None]))
        elif step == 2:
            driver.pass_ms(chance.choice([1, 3000, 9999, 10_000, 30_000, 61_000]))
        elif step == 3:
            driver.store_fails = not driver.store_fails
        elif members and step <= 5:
            driver.join(member, instance=instance, protocols=chance.choice(protocols))
        elif members:
            driver.sync(member, driver.group.generation, dict.fromkeys(members, b"a"), instance=instance)
    driver.pass_ms(1_000_000)
    assert (driver.member_ids(), driver.group.is_idle) == ([], True)
