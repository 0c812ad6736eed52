"""Waiting for an event in another thread or process: it ends when the event happens, or fails after a limit."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 240.0
_PAUSE_SECONDS = 0.01


def wait_until(holds: Callable[[], object], *, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Return as soon as `holds()`; fail where it does not within a limit that no slow or stopped machine comes to."""
    limit = time.monotonic() + limit_seconds
    while not holds():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(_PAUSE_SECONDS)


def remove_when_left(group: Path) -> None:
    """Remove a control group; the last processes of Spark end after its command."""

    def is_removed() -> bool:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    wait_until(is_removed)
