"""Differences between the two logs of a pair: the number for each check, and the first differences of each check.

Invariant: memory use does not grow with the number of differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from sediment.verification.report import CHECKS, SHOWN_DIFFERENCES, Difference

_ORDER = {check: number for number, check in enumerate(CHECKS)}


def _place(difference: Difference) -> tuple[int, str]:
    return -1 if difference.offset is None else difference.offset, difference.what


class Tally:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._first: dict[str, list[Difference]] = {}

    def add(self, differences: Iterable[Difference]) -> None:
        for difference in differences:
            self.counts[difference.check] += 1
            self.show([difference])

    def add_masked(
        self, check: str, mask: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64], text: Callable[[int], str]
    ) -> None:
        if not mask.any():
            return
        found = np.flatnonzero(mask)
        self.counts[check] += len(found)
        first = found[np.argsort(offsets[found], kind="stable")[:SHOWN_DIFFERENCES]]
        self.show(Difference(check, int(offsets[index]), text(int(index))) for index in first)

    def count(self, check: str, number: int) -> None:
        """Count differences whose texts are added separately."""
        if number:
            self.counts[check] += number

    def show(self, differences: Iterable[Difference]) -> None:
        """Add the texts of differences that are already counted; keep only the first texts of each check."""
        for difference in differences:
            known = self._first.setdefault(difference.check, [])
            known.append(difference)
            known.sort(key=_place)
            del known[SHOWN_DIFFERENCES:]

    def first(self) -> tuple[Difference, ...]:
        return tuple(
            difference for check in sorted(self._first, key=_ORDER.__getitem__) for difference in self._first[check]
        )
