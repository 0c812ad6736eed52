"""Where the time of a run goes: seconds by stage, measured where the stage runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

LIST = "list"
SPARK = "spark"
SURVEY = "survey"
VIEW = "view"
PLAN = "plan"
CLEAN = "clean"
COMMIT = "commit"


class StageTimer:
    """Books what passed since it was made, or since the last lap, on a stage; two clock reads a lap."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def restart(self) -> None:
        """Book what passed on nothing."""
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Book what passed on `stage`."""
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def add(self, others: Iterable[Mapping[str, float]]) -> None:
        """Book the seconds of `others` too."""
        for other in others:
            for stage, seconds in other.items():
                self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds by stage, to the tenth of a millisecond, in the order in which stages were first booked."""
        return {stage: round(seconds, 4) for stage, seconds in self._seconds.items()}
