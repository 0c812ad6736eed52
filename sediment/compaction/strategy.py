"""The choice between two strategies for a partition, with a reason.

    whole    one task sweeps the partition; nothing is shuffled, and the task's map contains every key
    split    several tasks sweep the partition's splits twice, and exchange hashes; their maps are bounded, which also
             serves a partition whose segments become one, and which is therefore a single split

If whole keys are compared, the partition is always cleaned whole, because splits exchange hashes, never keys.

Invariants: the module is pure, so a plan reports the same choice that a run makes.  Keys are estimated only if the
estimate can change the choice.
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

MAPPED_KEY_BYTES = 48  # the most memory that a worker needs for one key
COMPARED_KEY_BYTES = 72  # additional memory for one compared key, without the key itself
SPLIT_FROM_BYTES = 4 << 30  # a smaller partition finishes too soon to delay the run
_LEAST_RECORD_BYTES = 32  # in logs of gigabytes, records are rarely smaller


class Strategy(StrEnum):
    WHOLE = "whole"
    SPLIT = "split"


class KeyEquality(StrEnum):
    HASH = "hash"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Resources:
    """`asked` is the strategy that the caller requests, or None.

    `all_bytes` is the size of all partitions of the run.  `slots` is the number of tasks that run at the same time.
    `memory_source` says where `task_memory_bytes` is from, and is part of a reason; "" if there is nothing to say.
    """

    asked: Strategy | None
    slots: int
    all_bytes: int
    task_memory_bytes: int
    key_equality: KeyEquality = KeyEquality.HASH
    memory_source: str = ""

    def task_memory(self) -> str:
        """Return the memory of a task as part of a reason."""
        return f"{self.task_memory_bytes}" + (f" ({self.memory_source})" if self.memory_source else "")


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    strategy: Strategy
    reason: str


def choose_strategy(plan: CleaningPlan, resources: Resources, estimate: Callable[[], Estimate]) -> StrategyChoice:
    log_bytes = plan.log_bytes
    if plan.config.dedupe_buffer_bytes is not None:
        return StrategyChoice(Strategy.WHOLE, "one task must fill a bounded offset map in log order")
    if resources.asked is not None:
        return StrategyChoice(resources.asked, "as requested")
    if resources.key_equality is KeyEquality.EXACT:
        return _whole_keys(log_bytes, resources, estimate)
    if log_bytes // _LEAST_RECORD_BYTES * MAPPED_KEY_BYTES > resources.task_memory_bytes:
        found = estimate().keys
        if found * MAPPED_KEY_BYTES > resources.task_memory_bytes:
            return StrategyChoice(
                Strategy.SPLIT,
                f"the map of about {found} keys takes {found * MAPPED_KEY_BYTES} bytes, but a task may use "
                f"{resources.task_memory()}",
            )
    if len(plan.groups) < 2:
        return StrategyChoice(Strategy.WHOLE, f"one task sweeps {log_bytes} bytes, which become one segment")
    if resources.slots > 1 and log_bytes >= SPLIT_FROM_BYTES and log_bytes * resources.slots > 2 * resources.all_bytes:
        return StrategyChoice(
            Strategy.SPLIT,
            f"{log_bytes} of the run's {resources.all_bytes} bytes would keep one of {resources.slots} slots busy for "
            "longer than the others",
        )
    reason = f"one task cleans the partition in one pass over its {log_bytes} bytes"
    if resources.memory_source:
        reason += f", with a map of its keys in at most {resources.task_memory_bytes} bytes, {resources.memory_source}"
    return StrategyChoice(Strategy.WHOLE, reason)


def _whole_keys(log_bytes: int, resources: Resources, estimate: Callable[[], Estimate]) -> StrategyChoice:
    a_key_bytes = MAPPED_KEY_BYTES + COMPARED_KEY_BYTES
    if log_bytes // _LEAST_RECORD_BYTES * a_key_bytes > resources.task_memory_bytes:
        found = estimate()
        needed_bytes = found.keys * a_key_bytes + found.key_bytes
        if needed_bytes > resources.task_memory_bytes:
            raise MemoryBudgetError(
                f"comparing about {found.keys} whole keys takes {needed_bytes} bytes in one task, but a task may use "
                f"{resources.task_memory()}",
                advice="--key-equality hash cleans the partition in splits, which need less memory",
            )
    return StrategyChoice(Strategy.WHOLE, "whole keys are compared, by one task that keeps all keys in memory")
