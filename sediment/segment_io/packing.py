"""Greedy packing of weighted items into lists, one for each task.

Invariant: every item is in exactly one list, and no list is empty.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def pack_by_weight(items: Sequence[_Item], weight: Callable[[_Item], int], lists: int) -> list[list[_Item]]:
    """Return at most `lists` lists of about equal weight; heavier lists, and heavier items in a list, come first."""
    packed: list[list[_Item]] = [[] for _ in range(min(lists, len(items)))]
    totals = [(0, index) for index in range(len(packed))]
    for item in sorted(items, key=weight, reverse=True):
        total, index = heapq.heappop(totals)
        packed[index].append(item)
        heapq.heappush(totals, (total + weight(item) + 1, index))
    return sorted(packed, key=lambda task: sum(map(weight, task)), reverse=True)


def pack_in_order(
    items: Iterable[_Item],
    weight: Callable[[_Item], int],
    capacity: int,
    *,
    most_items: int | None = None,
    overfill: bool = False,
) -> list[list[_Item]]:
    """The next item is added to a list if the list's weight stays within `capacity`.

    An item heavier than `capacity` is alone in its list.  With `overfill`, items are added to a list until its weight
    reaches `capacity`.  `most_items` limits the number of items in a list.
    """
    packed: list[list[_Item]] = []
    total = 0
    for item in items:
        added = weight(item)
        is_full = total >= capacity if overfill else total + added > capacity
        if not packed or is_full or len(packed[-1]) == most_items:
            packed.append([])
            total = 0
        packed[-1].append(item)
        total += added
    return packed
