"""Timer of the stages of a run; the driver has one timer, and each task has its own."""

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
    """Seconds by stage; a lap adds the time since the previous lap, or since the creation of the timer."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def restart(self) -> None:
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def add(self, others: Iterable[Mapping[str, float]]) -> None:
        for other in others:
            for stage, seconds in other.items():
                self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Return seconds by stage, to a tenth of a millisecond, in the order of the stages' first laps."""
        return {stage: round(seconds, 4) for stage, seconds in self._seconds.items()}
