"""The work of a task pool that has not been started, and the rule of what starts next.  Without Spark and threads.

    local       all items are packed at once; two tasks wait in addition to those that run; splits come last, one at a
                time
    cluster     a task gets its share of the items that are left, by the slots of that moment, the heaviest items first,
                but no less than is worth a task; many partitions are cleaned in splits at the same time, beside the
                others

Invariant: every item is taken once, and again only after `take_again` or `ask`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sediment.jobs.spark.live_slots import FEWEST_IN_FLIGHT, LiveSlots
from sediment.segment_io.packing import pack_by_weight, pack_in_order

Item = TypeVar("Item")
Result = TypeVar("Result")

TASK_WEIGHT, TASK_ITEMS = 2 << 30, 128  # limits of one task; larger tasks would delay the results
_NEIGHBOURS, _NEIGHBOURS_WEIGHT = 8, 64 << 20  # maximum items and bytes of a task if items start in order
_LEAST_TASK_WEIGHT = 128 << 20  # an eighth of a second of work, because a task costs 40 ms of CPU time itself
_ITEM_WEIGHT = 2 << 20  # an item costs as much as its bytes and these, which take 2 ms
_WAITING_TASKS = 2  # in addition to one for each slot, so no slot waits for the driver
_LEAST_ROUNDS = 2  # on a cluster, so that half of the items are left for slots that come later
_MOST_SECOND_PHASES = 16  # more of them would only share the slots, and each keeps a shuffle on the executors' disks


@dataclass(frozen=True, slots=True)
class FirstPhase(Generic[Item]):
    """Items for one task; `lost_with` is the error of an earlier task with the same items, or None."""

    items: list[Item]
    lost_with: Exception | None = None


@dataclass(frozen=True, slots=True)
class SecondPhase(Generic[Item, Result]):
    """An item whose task returned `asked`: a request for jobs of many tasks, on about `slots` slots."""

    item: Item
    asked: Result
    slots: int


def pack_in_rounds(weights: Sequence[int], slots: int, at_least: int = 1) -> int:
    """Return how many tasks each slot should run, one after another: as few as the weights allow.

    Few tasks are better, because the items of one task overlap, and each task costs Spark some CPU time.
    """
    return max(at_least, -(-sum(weights) // (TASK_WEIGHT * slots)), -(-len(weights) // (TASK_ITEMS * slots)))


def tasks_in_flight(slots: LiveSlots) -> int:
    """Return how many tasks wait or run in Spark at the same time.

    With dynamic allocation, as many wait as run, so that the number of executors can double each time.
    """
    if slots.is_local:
        return slots.tasks + _WAITING_TASKS
    return max(FEWEST_IN_FLIGHT, slots.tasks + (slots.tasks if slots.is_elastic else _WAITING_TASKS))


class Items(Protocol[Item]):
    """Items that no task has taken."""

    def __bool__(self) -> bool: ...
    def take(self, slots: LiveSlots) -> list[Item]:
        """Return the items of the next task; at least one."""
        ...


class PackedItems(Generic[Item]):
    """Items that were packed into tasks once."""

    def __init__(self, tasks: Iterable[list[Item]]) -> None:
        self._tasks = deque(tasks)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def take(self, _slots: LiveSlots) -> list[Item]:
        return self._tasks.popleft()


class SharedItems(Generic[Item]):
    """Items of which each task gets a share: what is left, divided by `rounds` and by the tasks in flight."""

    def __init__(self, items: Iterable[Item], weight: Callable[[Item], int], rounds: int) -> None:
        self._left = deque(sorted(items, key=weight, reverse=True))
        self._weight = weight
        self._left_weight = sum(map(self._cost, self._left))
        self._rounds = rounds

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, slots: LiveSlots) -> list[Item]:
        tasks = self._rounds * tasks_in_flight(slots)
        share = min(TASK_WEIGHT, max(_LEAST_TASK_WEIGHT, -(-self._left_weight // tasks)))
        taken = [self._left.popleft()]
        total = self._cost(taken[0])
        while self._left and len(taken) < TASK_ITEMS and total + self._cost(self._left[0]) <= share:
            taken.append(self._left.popleft())
            total += self._cost(taken[-1])
        self._left_weight -= total
        return taken

    def _cost(self, item: Item) -> int:
        return self._weight(item) + _ITEM_WEIGHT


def pack_items(
    items: Sequence[Item], weight: Callable[[Item], int], slots: LiveSlots, *, in_order: bool, least_rounds: int
) -> Items[Item]:
    """Return the items of a pool; with `in_order` they start in their order, but small neighbours share a task."""
    if in_order:
        return PackedItems(pack_in_order(items, weight, _NEIGHBOURS_WEIGHT, most_items=_NEIGHBOURS))
    if slots.is_local:
        rounds = pack_in_rounds(list(map(weight, items)), slots.tasks, least_rounds)
        return PackedItems(pack_by_weight(items, weight, slots.tasks * rounds))
    return SharedItems(items, weight, max(_LEAST_ROUNDS, least_rounds))


class WorkQueue(Generic[Item, Result]):
    """The work of a pool.  Every piece of work that `start` returns is given back to `end`.  Not thread-safe."""

    def __init__(self, items: Items[Item]) -> None:
        self._items = items
        self._lost: deque[FirstPhase[Item]] = deque()
        self._asked: deque[tuple[Item, Result]] = deque()
        self._first_phases = 0
        self._second_phases = 0

    @property
    def is_busy(self) -> bool:
        """True if work was started that has not ended."""
        return self._first_phases + self._second_phases > 0

    def take_again(self, items: Iterable[Item], lost_with: Exception) -> None:
        """Start each of the items again, in a task of its own."""
        self._lost += (FirstPhase([item], lost_with) for item in items)

    def ask(self, item: Item, asked: Result) -> None:
        """Start the second phase of an item."""
        self._asked.append((item, asked))

    def start(self, slots: LiveSlots) -> FirstPhase[Item] | SecondPhase[Item, Result] | None:
        """Return what starts now, or None until other work has ended or slots have been added."""
        at_once = self._second_phases_at_once(slots)
        if self._asked and self._second_phases < at_once:
            sharing = min(at_once, self._second_phases + len(self._asked))
            self._second_phases += 1
            return SecondPhase(*self._asked.popleft(), max(1, slots.tasks // sharing))
        if (self._lost or self._items) and self._first_phases < tasks_in_flight(slots):
            self._first_phases += 1
            return self._lost.popleft() if self._lost else FirstPhase(self._items.take(slots))
        return None

    def take_back(self, work: FirstPhase[Item] | SecondPhase[Item, Result]) -> None:
        """Start work again later that could not begin."""
        self.end(work)
        if isinstance(work, FirstPhase):
            self._lost.appendleft(work)
        else:
            self._asked.appendleft((work.item, work.asked))

    def end(self, work: FirstPhase[Item] | SecondPhase[Item, Result]) -> None:
        if isinstance(work, FirstPhase):
            self._first_phases -= 1
        else:
            self._second_phases -= 1

    def _second_phases_at_once(self, slots: LiveSlots) -> int:
        if slots.is_local:
            return 0 if self._first_phases or self._lost or self._items else 1
        return max(1, min(_MOST_SECOND_PHASES, slots.tasks // 2))
