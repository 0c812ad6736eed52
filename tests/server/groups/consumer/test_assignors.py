"""Assignors: every partition has one subscribed owner, and `uniform` is balanced and keeps partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.server.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from sediment.server.groups.consumer.members import Assignment
from tests.server.groups.consumer.group_members import GivenTopics, GroupOfMembers

TOPICS = [uuid.UUID(int=number) for number in range(1, 4)]
A, B, _ = TOPICS


def subscriber(name: str, *topics: UUID, instance: str | None = None) -> Subscriber:
    return Subscriber(name, instance, frozenset(topics), {})


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Subscriber], dict[UUID, int]]:
    counts = {topic: draw(st.integers(0, 12)) for topic in TOPICS}
    members = []
    free = {topic: set(range(15)) for topic in TOPICS}
    for index in range(draw(st.integers(1, 6))):
        wanted = draw(st.frozensets(st.sampled_from(TOPICS)))
        had = {topic: draw(st.frozensets(st.sampled_from(sorted(left)))) for topic, left in free.items() if left}
        for topic, numbers in had.items():
            free[topic] -= numbers
        members.append(Subscriber(f"m{index}", None, wanted, {topic: each for topic, each in had.items() if each}))
    return members, counts


def assigned(targets: Mapping[str, Assignment]) -> list[tuple[UUID, int]]:
    return sorted((topic, n) for target in targets.values() for topic, numbers in target.items() for n in numbers)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(groups())
@settings(max_examples=80, deadline=None)
def test_every_partition_of_a_subscribed_topic_has_one_subscribed_owner(
    name: str, made: tuple[list[Subscriber], dict[UUID, int]]
) -> None:
    members, counts = made
    targets = ASSIGNORS[name](members, counts)
    wanted = {topic for member in members for topic in member.topic_ids}
    assert assigned(targets) == sorted((topic, n) for topic in wanted for n in range(counts[topic]))
    assert all(targets[member.member_id].keys() <= member.topic_ids for member in members)


@given(st.integers(1, 6), st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_members_with_the_same_topics_get_as_many_partitions_each(size: int, first: int, second: int) -> None:
    members = [subscriber(f"m{index}", A, B) for index in range(size)]
    counts = {A: first, B: second}
    targets = assign_uniform(members, counts)
    sizes = [sum(map(len, target.values())) for target in targets.values()]
    assert max(sizes) - min(sizes) <= 1
    again = [Subscriber(each.member_id, None, each.topic_ids, targets[each.member_id]) for each in members]
    assert assign_uniform(again, counts) == targets


def moved(members: Sequence[Subscriber], targets: Mapping[str, Assignment]) -> int:
    before = {
        (topic, n): member.member_id
        for member in members
        for topic, numbers in member.partitions.items()
        for n in numbers
    }
    after = {
        (topic, n): member_id
        for member_id, target in targets.items()
        for topic, numbers in target.items()
        for n in numbers
    }
    return sum(before[partition] != after[partition] for partition in before)


def test_a_new_member_takes_only_its_share() -> None:
    counts = {A: 10, B: 10}
    targets = assign_uniform([subscriber(name, A, B) for name in "abc"], counts)
    members = [Subscriber(name, None, frozenset({A, B}), targets[name]) for name in "abc"]
    with_new = assign_uniform([*members, subscriber("d", A, B)], counts)
    assert moved(members, with_new) == 5
    assert sorted(sum(map(len, target.values())) for target in with_new.values()) == [5, 5, 5, 5]


def test_members_with_few_topics_come_first() -> None:
    targets = assign_uniform([subscriber("a", A, B), subscriber("b", A)], {A: 4, B: 4})
    assert targets == {"a": {B: frozenset(range(4))}, "b": {A: frozenset(range(4))}}


def test_ranges_follow_instance_ids_and_then_member_ids() -> None:
    members = [subscriber("z", A, B), subscriber("a", A), subscriber("m", A, B, instance="i")]
    assert assign_range(members, {A: 5, B: 2}) == {
        "m": {A: frozenset({0, 1}), B: frozenset({0})},
        "a": {A: frozenset({2, 3})},
        "z": {A: frozenset({4}), B: frozenset({1})},
    }


def test_the_assignor_with_the_most_votes_is_used() -> None:
    made = GroupOfMembers(GivenTopics(one=3, two=3))
    clients = [made.joined(name, "one", "two", assignor="range") for name in "ab"]
    made.settle(*clients)
    assert {frozenset(client.partitions) for client in clients} == {
        frozenset({("one", 0), ("one", 1), ("two", 0), ("two", 1)}),
        frozenset({("one", 2), ("two", 2)}),
    }
    clients += [made.joined(name, "one", "two", assignor="uniform") for name in "cde"]
    made.settle(*clients)
    assert sorted(len(client.partitions) for client in clients) == [1, 1, 1, 1, 2]
