"""Signals during the imports of a command: SIGINT and SIGTERM end the process with one line.

Invariant: this module imports no slow module, because a command imports it first.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_STDERR = 2
_EXIT_STOPPED = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOT_STARTED = "sediment: the run was stopped before it started\n"


def end_on_early_signals() -> None:
    """Handle SIGINT and SIGTERM until `cancellation.end_on_signals` takes over; an ignored signal stays ignored."""
    for number in _SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end_before_start)


def end_before_start(_number: int, _frame: Any) -> None:
    """Write one line to stderr and end the process immediately, because there is nothing to clean up yet."""
    try:
        os.write(_STDERR, _NOT_STARTED.encode())
    finally:
        os._exit(_EXIT_STOPPED)
