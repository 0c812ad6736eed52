"""The matrix of scenario, step and fault: selection, one check for each state, counts.

    SIGKILL              after each step
    lost unsynced data   after each step, for every prefix of the unsynced names
    torn write           half of a file, then nothing
    torn rename          both names exist
    EIO                  at each step, once; the command goes on
    ENOSPC               at each write and all later ones, half of it written; the command goes on

SEDIMENT_CRASH_MATRIX=whole (the target `crash`) tries all of them; the default is an even sample.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tests.faults.crash_scenarios import CrashScenario
from tests.faults.fs_trace import CrashImage, FsTrace, Tree, contents

IS_WHOLE = os.environ.get("SEDIMENT_CRASH_MATRIX") == "whole"
SAMPLE = 6

TALLY: Counter[tuple[str, str]] = Counter()
"""Number of trials of each fault of each scenario."""

_Item = TypeVar("_Item")


def sample(items: Sequence[_Item], count: int = SAMPLE) -> Sequence[_Item]:
    """Return all items, or `count` evenly spread."""
    if IS_WHOLE or len(items) <= count:
        return items
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]


def sampled_by_crash(images: Sequence[CrashImage], count: int = SAMPLE) -> Iterator[CrashImage]:
    """Yield a sample of each kind of crash."""
    for crash in dict.fromkeys(image.crash for image in images):
        yield from sample([image for image in images if image.crash is crash], count)


def recorded(scenario: CrashScenario) -> FsTrace:
    """Return the trace of an undisturbed run, with the image of a crash at each step."""
    scenario.restore(scenario.before)
    with FsTrace(scenario.root, records=True) as trace:
        outcome = scenario.run()
    assert outcome.status == scenario.outcome.status
    scenario.restore(scenario.before)
    return trace


class OutcomeChecker:
    """A check of each new state, and a count of all."""

    def __init__(self, scenario: CrashScenario) -> None:
        self._scenario = scenario
        self._known: set[frozenset[tuple[str, bytes]]] = set()

    def count(self, fault: str) -> None:
        """Count one trial."""
        TALLY[self._scenario.name, fault] += 1

    def check(self, tree: Tree, fault: str, what: str) -> None:
        self.count(fault)
        key = frozenset(contents(tree).items())
        if key in self._known:
            return
        self._known.add(key)
        try:
            self._scenario.check(self._scenario, tree)
        except AssertionError as error:
            raise AssertionError(f"{self._scenario.name}: {what}: {error}") from error
