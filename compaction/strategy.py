"""How a partition is cleaned, and why that way.

Invariant: pure, so that a plan says beforehand what a run then does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sediment.compaction.grouping import CleaningPlan


class Strategy(StrEnum):
    """The ways; the values are what reports and the command line say."""

    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The way taken, and one clause for a person on why."""

    strategy: Strategy
    reason: str


def choose_strategy(plan: CleaningPlan) -> StrategyChoice:
    """The strategy for `plan`: one task sweeps the whole partition, whatever its size."""
    log_bytes = sum(group.log_bytes for group in plan.groups)
    return StrategyChoice(Strategy.WHOLE, f"one task sweeps the {log_bytes} bytes of a partition, nothing is shuffled")
