"""Server-side assignors: they compute the target assignment of a consumer group.

* `uniform` gives all members equally many partitions, if subscriptions allow it.  Few partitions change owners.
* `range` divides each topic into contiguous ranges, in the order of the members.

Both are deterministic, and assign each partition of a subscribed topic to exactly one subscribed member.

Source: Kafka's UniformAssignor and RangeAssignor.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from sediment.server.groups.consumer.members import Assignment, assignment_of

_MAX_ROUNDS = 16  # Kafka's limit on balancing rounds


@dataclass(frozen=True, slots=True)
class Subscriber:
    member_id: str
    instance_id: str | None
    topic_ids: frozenset[UUID]
    partitions: Assignment


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Assignment]]
"""A function that takes the members and the partition counts by topic id, and returns the assignments by member id."""


def assign_range(members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    ordered = sorted(members, key=lambda each: (each.instance_id is None, each.instance_id or each.member_id))
    found: dict[str, dict[UUID, range]] = {member.member_id: {} for member in members}
    for topic_id, count in partition_counts.items():
        subscribers = [member for member in ordered if topic_id in member.topic_ids]
        least, extra = divmod(count, len(subscribers)) if subscribers else (0, 0)
        start = 0
        for index, member in enumerate(subscribers):
            end = start + least + (index < extra)
            found[member.member_id][topic_id] = range(start, end)
            start = end
    return {member_id: assignment_of(topics.items()) for member_id, topics in found.items()}


def assign_uniform(members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]) -> dict[str, Assignment]:
    balance = _Balance(sorted(members, key=lambda each: each.member_id), partition_counts)
    balance.keep_partitions()
    balance.assign_the_rest()
    for _ in range(_MAX_ROUNDS):
        if not balance.move_partitions():
            break
    return balance.result()


class _Balance:
    def __init__(self, members: Sequence[Subscriber], partition_counts: Mapping[UUID, int]) -> None:
        self._members = members
        subscribers: dict[UUID, list[int]] = defaultdict(list)
        for index, member in enumerate(members):
            for topic_id in member.topic_ids & partition_counts.keys():
                subscribers[topic_id].append(index)
        # Topics with few subscribers per partition come first, because later topics can even out the loads.
        self._topics = sorted(
            subscribers,
            key=lambda each: (-partition_counts[each] / len(subscribers[each]), len(subscribers[each]), each.bytes),
        )
        self._subscribers = subscribers
        self._owners: dict[UUID, list[int | None]] = {
            topic_id: [None] * partition_counts[topic_id] for topic_id in self._topics
        }
        self._loads = [0] * len(members)

    def keep_partitions(self) -> None:
        """Let each member keep the partitions of its last target.

        It does not keep missing partitions, or partitions of topics to which it no longer subscribes.
        """
        for index, member in enumerate(self._members):
            for topic_id, numbers in member.partitions.items():
                owners = self._owners.get(topic_id, []) if topic_id in member.topic_ids else []
                for number in numbers:
                    if number < len(owners) and owners[number] is None:
                        owners[number] = index
                        self._loads[index] += 1

    def assign_the_rest(self) -> None:
        for topic_id in self._topics:
            owners = self._owners[topic_id]
            least = [(self._loads[index], index) for index in self._subscribers[topic_id]]
            heapq.heapify(least)
            for number, owner in enumerate(owners):
                if owner is None:
                    load, index = least[0]
                    owners[number] = index
                    self._loads[index] = load + 1
                    heapq.heapreplace(least, (load + 1, index))

    def move_partitions(self) -> bool:
        return sum(map(self._move_partitions_of, self._topics)) > 0

    def _move_partitions_of(self, topic_id: UUID) -> bool:
        owners, loads = self._owners[topic_id], self._loads
        subscribers = self._subscribers[topic_id]
        if max(loads[index] for index in subscribers) - min(loads[index] for index in subscribers) <= 1:
            return False
        owned: dict[int, list[int]] = defaultdict(list)
        for number, owner in enumerate(owners):
            if owner is not None:
                owned[owner].append(number)
        least = [(loads[index], index) for index in subscribers]
        most = [(-loads[index], index) for index in owned]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = False
        while most:
            low, to = least[0]
            high, owner = most[0]
            if low != loads[to]:
                heapq.heapreplace(least, (loads[to], to))
            elif -high != loads[owner]:
                heapq.heapreplace(most, (-loads[owner], owner))
            elif not owned[owner]:
                heapq.heappop(most)
            elif loads[owner] - loads[to] <= 1:
                break
            else:
                owners[owned[owner].pop()] = to
                loads[owner] -= 1
                loads[to] += 1
                moved = True
        return moved

    def result(self) -> dict[str, Assignment]:
        found: list[dict[UUID, set[int]]] = [defaultdict(set) for _ in self._members]
        for topic_id, owners in self._owners.items():
            for number, owner in enumerate(owners):
                if owner is not None:
                    found[owner][topic_id].add(number)
        return {
            member.member_id: assignment_of(topics.items()) for member, topics in zip(self._members, found, strict=True)
        }


ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({"uniform": assign_uniform, "range": assign_range})
"""The assignors by name."""
