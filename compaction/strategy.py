"""How a partition is cleaned, and why that way.

    whole    one task sweeps the partition: nothing is shuffled, its map holds every key
    split    many tasks sweep its splits twice and tell each other of keys: memory is bounded, and all slots help

Invariant: pure, so that a plan says beforehand what a run then does; `keys` is asked for only where it decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sediment.compaction.grouping import CleaningPlan

MAPPED_KEY_BYTES = 48  # of a worker's memory for a key, at most
SPLIT_FROM_BYTES = 4 << 30  # below this a partition is done before the others' tasks would miss its slot
_LEAST_RECORD_BYTES = 32  # batches of records smaller than this hardly ever fill gigabytes


class Strategy(StrEnum):
    """The ways; the values are what reports and the command line say."""

    WHOLE = "whole"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a choice depends on beside the partition: what was asked for (None: choose), and what there is to use.

    `all_bytes` are those of every partition of the run, `slots` the tasks that run at once, `task_memory_bytes` what
    one of them may hold.
    """

    asked: Strategy | None
    slots: int
    all_bytes: int
    task_memory_bytes: int


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The way taken, and one clause for a person on why."""

    strategy: Strategy
    reason: str


def choose_strategy(plan: CleaningPlan, there: Circumstances, keys: Callable[[], int]) -> StrategyChoice:
    """The strategy for `plan`; `keys` estimates how many keys it holds."""
    log_bytes = sum(group.log_bytes for group in plan.groups)
    if plan.config.dedupe_buffer_bytes is not None:
        return StrategyChoice(Strategy.WHOLE, "a bounded offset map is filled forward, by one task")
    if there.asked is not None:
        return StrategyChoice(there.asked, "as asked for")
    if len(plan.groups) < 2:
        return StrategyChoice(Strategy.WHOLE, f"one task sweeps {log_bytes} bytes, which become one segment")
    if log_bytes // _LEAST_RECORD_BYTES * MAPPED_KEY_BYTES > there.task_memory_bytes:
        found = keys()
        if found * MAPPED_KEY_BYTES > there.task_memory_bytes:
            return StrategyChoice(
                Strategy.SPLIT,
                f"the map of about {found} keys takes {found * MAPPED_KEY_BYTES} bytes, and a task may hold "
                f"{there.task_memory_bytes}",
            )
    if there.slots > 1 and log_bytes >= SPLIT_FROM_BYTES and log_bytes * there.slots > 2 * there.all_bytes:
        return StrategyChoice(
            Strategy.SPLIT,
            f"{log_bytes} of the run's {there.all_bytes} bytes would keep one of {there.slots} slots busy for longer "
            "than the others",
        )
    return StrategyChoice(Strategy.WHOLE, f"one task sweeps the {log_bytes} bytes of a partition, nothing is shuffled")
