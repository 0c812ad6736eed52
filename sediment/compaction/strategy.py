"""How a partition is cleaned, and why that way.

    whole    one task sweeps the partition: nothing is shuffled, its map holds every key
    split    many tasks sweep its splits twice and tell each other of keys: memory is bounded, and all slots help

Where whole keys are compared it is always whole: tasks of splits tell each other of hashes, never of keys.

Invariant: pure, so that a plan says beforehand what a run then does; an estimate is asked for only where it decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sediment.segment_io.errors import MemoryBudgetError

if TYPE_CHECKING:
    from sediment.compaction.estimate import Estimate
    from sediment.compaction.grouping import CleaningPlan

MAPPED_KEY_BYTES = 48  # of a worker's memory for a key, at most
COMPARED_KEY_BYTES = 72  # more of it where whole keys are compared, beside the keys themselves
SPLIT_FROM_BYTES = 4 << 30  # below this a partition is done before the others' tasks would miss its slot
_LEAST_RECORD_BYTES = 32  # batches of records smaller than this hardly ever fill gigabytes


class Strategy(StrEnum):
    """The ways; the values are what reports and the command line say."""

    WHOLE = "whole"
    SPLIT = "split"


class KeyEquality(StrEnum):
    """When two keys are one: their 128-bit hashes are equal, or their bytes are."""

    HASH = "hash"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a choice depends on beside the partition: what was asked for (None: choose), and what there is to use.

    `all_bytes` are those of every partition of the run, `slots` the tasks that run at once, `task_memory_bytes` what
    one of them may hold.
    """

    asked: Strategy | None
    slots: int
    all_bytes: int
    task_memory_bytes: int
    key_equality: KeyEquality = KeyEquality.HASH


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The way taken, and one clause for a person on why."""

    strategy: Strategy
    reason: str


def choose_strategy(plan: CleaningPlan, there: Resources, estimate: Callable[[], Estimate]) -> StrategyChoice:
    """The strategy for `plan`; `estimate` says from a sample which keys it holds.

    Raises:
        MemoryBudgetError: whole keys are to be compared, and only splits would fit the memory.
    """
    log_bytes = sum(group.log_bytes for group in plan.groups)
    if plan.config.dedupe_buffer_bytes is not None:
        return StrategyChoice(Strategy.WHOLE, "a bounded offset map is filled forward, by one task")
    if there.asked is not None:
        return StrategyChoice(there.asked, "as asked for")
    if len(plan.groups) < 2:
        return StrategyChoice(Strategy.WHOLE, f"one task sweeps {log_bytes} bytes, which become one segment")
    if there.key_equality is KeyEquality.EXACT:
        return _whole_keys(log_bytes, there, estimate)
    if log_bytes // _LEAST_RECORD_BYTES * MAPPED_KEY_BYTES > there.task_memory_bytes:
        found = estimate().keys
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


def _whole_keys(log_bytes: int, there: Resources, estimate: Callable[[], Estimate]) -> StrategyChoice:
    a_key_bytes = MAPPED_KEY_BYTES + COMPARED_KEY_BYTES
    if log_bytes // _LEAST_RECORD_BYTES * a_key_bytes > there.task_memory_bytes:
        found = estimate()
        needed_bytes = found.keys * a_key_bytes + found.key_bytes
        if needed_bytes > there.task_memory_bytes:
            raise MemoryBudgetError(
                f"comparing about {found.keys} whole keys takes {needed_bytes} bytes in one task, and a task may hold "
                f"{there.task_memory_bytes}",
                advice="--key-equality hash cleans the partition in splits, which need less",
            )
    return StrategyChoice(Strategy.WHOLE, "whole keys are compared, by one task that holds all of them")
