"""Log lines about peers, at a limited rate, so that many bad connections do not fill the log.

If lines were dropped, the next line contains the number of dropped lines.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sediment.segment_io.units import NS_PER_SECOND

_LINES_PER_SECOND = 10


class LimitedLog:
    def __init__(
        self,
        logger: logging.Logger,
        *,
        lines_per_second: int = _LINES_PER_SECOND,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._logger = logger
        self._limit = lines_per_second
        self._clock = clock
        self._second = -1
        self._lines = 0
        self._left_out = 0
        self._guard = threading.Lock()

    def warning(self, line: str) -> None:
        second = self._clock() // NS_PER_SECOND
        with self._guard:
            if second != self._second:
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > self._limit:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
        if left_out:
            line = f"{line} ({left_out} lines about other connections were dropped)"
        self._logger.warning("%s", line)
