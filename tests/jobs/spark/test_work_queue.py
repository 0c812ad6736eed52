"""What a task pool starts next, and with how many items, by the slots that are there."""

from __future__ import annotations

import pytest

from sediment.jobs.spark.live_slots import FEWEST_IN_FLIGHT, LiveSlots
from sediment.jobs.spark.work_queue import (
    FirstPhase,
    SecondPhase,
    WorkQueue,
    pack_in_rounds,
    pack_items,
    tasks_in_flight,
)

GIB = 1 << 30
HERE = LiveSlots(2, is_local=True)
LOG = 64 << 20  # bytes of a partition of usual size


def itself(work: int) -> int:
    return work


def queue_of(weights: list[int], slots: LiveSlots, *, in_order: bool = False, least_rounds: int = 1) -> WorkQueue:
    return WorkQueue(pack_items(weights, itself, slots, in_order=in_order, least_rounds=least_rounds))


def started(queue: WorkQueue, slots: LiveSlots) -> list[FirstPhase | SecondPhase]:
    found = []
    while (work := queue.start(slots)) is not None:
        found.append(work)
    return found


def tasks(found: list) -> list[list[int]]:
    return [work.items for work in found]


def everything(queue: WorkQueue, slots: LiveSlots) -> list[list[int]]:
    """Return the tasks of a queue whose tasks end at once."""
    found = []
    while (work := queue.start(slots)) is not None:
        found.append(work.items)
        queue.end(work)
    return found


def test_in_order_small_neighbours_share_a_task_and_nothing_changes_places() -> None:
    mib = 1 << 20
    works = [*[1] * 20, 40 * mib, 30 * mib, 30 * mib, 500 * mib, 1]
    for slots in (HERE, LiveSlots(8, 2)):
        packed = everything(queue_of(works, slots, in_order=True), slots)
        assert [work for task in packed for work in task] == works
        assert [len(task) for task in packed] == [8, 8, 5, 2, 1, 1]


@pytest.mark.parametrize(
    ("weights", "slots", "expected"),
    [
        ([], 2, 1),
        ([1] * 8, 2, 1),
        ([GIB // 2] * 8, 2, 1),
        ([GIB // 2] * 9, 2, 2),
        ([1] * 256, 2, 1),
        ([1] * 257, 2, 2),
        ([100 * GIB] * 3, 4, 38),
    ],
)
def test_tasks_are_as_few_as_their_size_allows(weights, slots, expected):
    assert pack_in_rounds(weights, slots) == expected
    assert pack_in_rounds(weights, slots, 4) == max(expected, 4)


def test_under_a_local_master_few_tasks_share_all_items_and_two_of_them_wait() -> None:
    assert tasks(started(queue_of([1] * 32, HERE), HERE)) == [[1] * 16, [1] * 16]
    assert len(started(queue_of([3 * GIB] * 40, HERE), HERE)) == 2 + 2


def test_on_a_cluster_a_task_gets_a_share_of_what_is_left() -> None:
    slots = LiveSlots(32, 4)
    sizes = [len(task) for task in everything(queue_of([LOG] * 1000, slots), slots)]
    assert sum(sizes) == 1000
    assert sizes[0] == 1000 // (2 * tasks_in_flight(slots))
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 1


def test_small_partitions_share_a_task_until_it_is_worth_its_cost() -> None:
    slots = LiveSlots(1)
    sizes = [len(task) for task in everything(queue_of([1 << 20] * 2000, slots), slots)]
    assert sum(sizes) == 2000
    assert min(sizes[:-1]) == (128 << 20) // (3 << 20)


def test_the_heaviest_start_first_and_alone() -> None:
    found = everything(queue_of([1, 5 * GIB, 2, 3 * GIB], LiveSlots(2)), LiveSlots(2))
    assert found[:2] == [[5 * GIB], [3 * GIB]]


def test_no_task_of_a_cluster_is_larger_than_a_task_may_be() -> None:
    slots = LiveSlots(2)
    assert max(map(len, everything(queue_of([0] * 20_000, slots), slots))) == 128
    assert max(map(sum, everything(queue_of([GIB // 4] * 1000, slots), slots))) <= 2 * GIB


def test_slots_that_come_later_find_tasks() -> None:
    few, many = LiveSlots(2, 1), LiveSlots(100, 10)
    queue = queue_of([LOG] * 1000, few)
    begun = started(queue, few)
    assert len(begun) == FEWEST_IN_FLIGHT
    assert len(started(queue, few)) == 0
    more = started(queue, many)
    assert len(begun) + len(more) == tasks_in_flight(many) >= 100
    assert sum(len(work.items) for work in begun + more) < 1000


def test_slots_that_left_are_not_filled() -> None:
    queue = queue_of([LOG] * 10_000, LiveSlots(100, 10))
    first, *_ = started(queue, LiveSlots(100, 10))
    queue.end(first)
    assert queue.start(LiveSlots(10, 1)) is None


def test_with_dynamic_allocation_as_many_tasks_wait_as_run() -> None:
    assert tasks_in_flight(LiveSlots(0, 0, is_elastic=True)) == FEWEST_IN_FLIGHT
    assert tasks_in_flight(LiveSlots(40, 10, is_elastic=True)) == 80
    assert tasks_in_flight(LiveSlots(40, 10)) == 42


def test_work_that_could_not_begin_starts_again_as_it_was() -> None:
    slots = LiveSlots(4)
    queue = queue_of([1, 2], slots)
    (work,) = started(queue, slots)
    queue.take_back(work)
    assert not queue.is_busy
    assert started(queue, slots) == [work]
    queue.ask(1, "split")
    (split,) = started(queue, slots)
    queue.take_back(split)
    assert started(queue, slots) == [split]


def test_items_lost_together_start_again_alone() -> None:
    slots, error = LiveSlots(4), RuntimeError("lost")
    queue = queue_of([1], slots)
    (work,) = started(queue, slots)
    queue.take_again([7, 8], error)
    queue.end(work)
    assert started(queue, slots) == [FirstPhase([7], error), FirstPhase([8], error)]


def test_under_a_local_master_splits_come_last_and_one_at_a_time_on_all_slots() -> None:
    queue = queue_of([1, 1], HERE)
    first, second = started(queue, HERE)
    queue.ask(1, "a")
    queue.ask(2, "b")
    queue.end(first)
    assert queue.start(HERE) is None
    queue.end(second)
    (split,) = started(queue, HERE)
    assert split == SecondPhase(1, "a", 2)
    queue.end(split)
    assert started(queue, HERE) == [SecondPhase(2, "b", 2)]


def test_on_a_cluster_splits_run_beside_tasks_and_share_the_slots() -> None:
    slots = LiveSlots(32, 4)
    queue = queue_of([LOG] * 10_000, slots)
    begun = started(queue, slots)
    for work in range(4):
        queue.ask(work, "split")
    queue.end(begun[0])
    found = started(queue, slots)
    splits = [work for work in found if isinstance(work, SecondPhase)]
    assert [work.item for work in splits] == [0, 1, 2, 3]
    assert sum(work.slots for work in splits) <= 32 and min(work.slots for work in splits) == 8
    assert [type(work) for work in found].count(FirstPhase) == 1
    for work in range(100):
        queue.ask(work, "split")
    assert len(started(queue, slots)) == 16 - 4


def test_a_cluster_of_one_slot_still_cleans_in_splits() -> None:
    queue = queue_of([1], LiveSlots(1))
    started(queue, LiveSlots(1))
    queue.ask(1, "split")
    assert started(queue, LiveSlots(1)) == [SecondPhase(1, "split", 1)]
