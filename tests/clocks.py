"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

from sediment.engine.live.scheduler import Clock


class ManualClock(Clock):
    """Time of day and monotonic time are one; sleeping moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.time_ms = now_ms
        self.slept_ms = 0
        self._guard = threading.Lock()

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: int) -> None:
        with self._guard:
            self.time_ms += duration_ms
            self.slept_ms += duration_ms

    def advance(self, duration_ms: int) -> None:
        with self._guard:
            self.time_ms += duration_ms
