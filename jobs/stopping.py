"""How a run ends before it is done: by a signal, and with it the Spark jobs that it has going."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOGGER = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_POLL_SECONDS = 0.2


@contextmanager
def cancel_when(stop: threading.Event, sc: Any, group: str) -> Iterator[None]:
    """Cancel the run's Spark jobs as soon as `stop` is set, and whatever is still submitted afterwards."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if stop.wait(_STOP_POLL_SECONDS) and not over.is_set():
                try:
                    sc.cancelJobGroup(group)
                except Exception:
                    _LOGGER.debug("the jobs of %s cannot be cancelled", group, exc_info=True)
                    return  # Spark has stopped by itself
                over.wait(_STOP_POLL_SECONDS)

    # Not joined: it ends by itself, and may just be talking to a JVM that does not answer.
    threading.Thread(target=watch, name="sediment-stop", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal ends the process as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def request(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)

    for number in _SIGNALS:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
