"""The choice of a strategy by the caller's option, size, keys, memory and slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sediment.compaction.estimate import Estimate
from sediment.compaction.grouping import CleaningPlan, SegmentGroup
from sediment.compaction.strategy import (
    SPLIT_FROM_BYTES,
    KeyEquality,
    Resources,
    Strategy,
    choose_strategy,
)
from sediment.segment_io.errors import MemoryBudgetError
from tests.compaction.cleanings import batch_of, write_log
from tests.compaction.test_exact_keys import plan_of

GIB = 1 << 30
ALONE = Resources(asked=None, slots=2, all_bytes=1 << 40, task_memory_bytes=1 << 40)


@pytest.fixture
def small(tmp_path) -> CleaningPlan:
    return plan_of(write_log(tmp_path / "t-0", {0: [batch_of(0, b"k")]}))


def sized(plan: CleaningPlan, *group_bytes: int) -> CleaningPlan:
    """Return the plan with groups of one segment of these sizes."""
    segment = plan.groups[0].segments[0]
    segments = [replace(segment, base_offset=number, log_bytes=size) for number, size in enumerate(group_bytes)]
    return replace(plan, groups=tuple(SegmentGroup((one,), one.base_offset) for one in segments))


def keys(count: int, key_bytes: int = 0):
    return lambda: Estimate(count, count, 0, 0, None, None, 1, key_bytes)


def not_asked() -> Estimate:
    raise AssertionError("nothing was to be estimated")


def test_small_partitions_are_whole_and_nothing_is_estimated(small):
    choice = choose_strategy(sized(small, 1000, 1000), ALONE, not_asked)
    assert (choice.strategy, "2000 bytes" in choice.reason) == (Strategy.WHOLE, True)


@pytest.mark.parametrize("asked", list(Strategy))
def test_what_was_asked_for_is_done(small, asked):
    assert choose_strategy(sized(small, 1, 1), replace(ALONE, asked=asked), not_asked).strategy is asked


def test_a_bounded_map_is_for_one_task(small):
    bounded = replace(small, config=replace(small.config, dedupe_buffer_bytes=2400))
    asked = replace(ALONE, asked=Strategy.SPLIT)
    assert choose_strategy(sized(bounded, GIB, GIB), asked, not_asked).strategy is Strategy.WHOLE


def test_segments_that_become_one_do_not_occupy_several_slots(small):
    dominant = replace(ALONE, slots=4, all_bytes=1)
    assert choose_strategy(sized(small, 9 * GIB), dominant, not_asked).strategy is Strategy.WHOLE


@pytest.mark.parametrize("group_bytes", [(GIB,), (GIB, GIB)])
def test_keys_that_do_not_fit_a_tasks_memory_are_split(small, group_bytes):
    there = replace(ALONE, task_memory_bytes=GIB)
    plan = sized(small, *group_bytes)
    assert choose_strategy(plan, there, keys(GIB // 48)).strategy is Strategy.WHOLE
    choice = choose_strategy(plan, there, keys(GIB // 48 + 1))
    assert choice.strategy is Strategy.SPLIT
    assert f"about {GIB // 48 + 1} keys" in choice.reason


def test_a_partition_that_would_keep_one_slot_busy_alone_is_split(small):
    plan = sized(small, SPLIT_FROM_BYTES, SPLIT_FROM_BYTES)
    size_bytes = 2 * SPLIT_FROM_BYTES
    dominant = replace(ALONE, slots=4, all_bytes=2 * size_bytes - 1)
    assert choose_strategy(plan, dominant, not_asked).strategy is Strategy.SPLIT
    assert choose_strategy(plan, replace(dominant, all_bytes=2 * size_bytes), not_asked).strategy is Strategy.WHOLE
    assert choose_strategy(plan, replace(dominant, slots=1), not_asked).strategy is Strategy.WHOLE
    below = sized(small, SPLIT_FROM_BYTES - 2, 1)
    assert choose_strategy(below, replace(dominant, all_bytes=SPLIT_FROM_BYTES), not_asked).strategy is Strategy.WHOLE


@pytest.mark.parametrize("group_bytes", [(SPLIT_FROM_BYTES,), (SPLIT_FROM_BYTES, SPLIT_FROM_BYTES)])
def test_whole_keys_are_compared_by_one_task_or_not_at_all(small, group_bytes):
    exact = replace(ALONE, key_equality=KeyEquality.EXACT, slots=8, all_bytes=1)
    plan = sized(small, *group_bytes)
    assert choose_strategy(plan, exact, not_asked).strategy is Strategy.WHOLE
    tight = replace(exact, task_memory_bytes=1000 * 120 + 5000)
    assert choose_strategy(plan, tight, keys(1000, 5000)).strategy is Strategy.WHOLE
    with pytest.raises(MemoryBudgetError, match="comparing about 1000 whole keys takes 125001 bytes"):
        choose_strategy(plan, tight, keys(1000, 5001))


def test_a_reason_names_the_source_of_the_memory_if_there_is_one(small):
    there = replace(ALONE, task_memory_bytes=GIB, memory_source="half of 2 GiB")
    plan = sized(small, GIB, GIB)
    for found in (GIB // 48, GIB // 48 + 1):
        assert "half of 2 GiB" in choose_strategy(plan, there, keys(found)).reason
