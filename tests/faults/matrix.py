"""The matrix of course, step and fault: what is tried of it, judged once, and counted.

    SIGKILL              behind each step
    lost unsynced data   behind each step, for every prefix of the names that were not synced
    torn write           half of a file, then nothing
    torn rename          both names are there
    EIO                  of each step, once; the command goes on
    ENOSPC               of each write and those behind it, half of it written; the command goes on

SEDIMENT_CRASH_MATRIX=whole (the target `crash`) tries all of them; without it a sample that is drawn evenly.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tests.faults.courses import Course
from tests.faults.watched import CrashImage, Tree, Watch, contents

IS_WHOLE = os.environ.get("SEDIMENT_CRASH_MATRIX") == "whole"
SAMPLE = 6

TALLY: Counter[tuple[str, str]] = Counter()
"""How often each fault of each course was tried."""

_Item = TypeVar("_Item")


def sample(items: Sequence[_Item], count: int = SAMPLE) -> Sequence[_Item]:
    """All of them, or `count` evenly spread."""
    if IS_WHOLE or len(items) <= count:
        return items
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]


def sampled_by_crash(images: Sequence[CrashImage], count: int = SAMPLE) -> Iterator[CrashImage]:
    """A sample of each kind of crash."""
    for crash in dict.fromkeys(image.crash for image in images):
        yield from sample([image for image in images if image.crash is crash], count)


def recorded(course: Course) -> Watch:
    """The steps of an undisturbed run and what a crash at each leaves."""
    course.restore(course.before)
    with Watch(course.root, records=True) as watch:
        outcome = course.run()
    assert outcome.status == course.outcome.status
    course.restore(course.before)
    return watch


class Judge:
    """Judges what is not known yet, and counts."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._known: set[frozenset[tuple[str, bytes]]] = set()

    def count(self, fault: str) -> None:
        """One more was tried."""
        TALLY[self._course.name, fault] += 1

    def judge(self, tree: Tree, fault: str, what: str) -> None:
        self.count(fault)
        key = frozenset(contents(tree).items())
        if key in self._known:
            return
        self._known.add(key)
        try:
            self._course.judge(self._course, tree)
        except AssertionError as error:
            raise AssertionError(f"{self._course.name}: {what}: {error}") from error
