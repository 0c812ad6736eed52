"""How a command ends before it is done: by a signal, and with it the Spark jobs that it has going.

    in the command               first signal                          second           third
    while its modules load       ends the process (`starting`)         -                -
    anywhere (`end_on_signals`)  raises `RunStopped`                   kills            -
    `stop_on_signals`            sets an event; the run ends itself    raises           kills
    `interruptible` within it    raises `RunStopped`                   kills            -

Invariants: only the main thread is interrupted; `RunStopped` is no `Exception`, so that no library takes it for its
own; once a signal was seen `is_stopping` holds, and what Spark says of its end is not shown.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sediment.jobs.command_line.early_signals import end_before_start
from sediment.segment_io.errors import SedimentError

_LOGGER = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_POLL_SECONDS = 0.2


class RunStopped(KeyboardInterrupt):
    """A signal ended the command."""


class StoppedError(SedimentError):
    """The command was ended by a signal before it was done."""

    def __init__(self) -> None:
        super().__init__("the run was stopped before it was done", advice="run again")


class _Signals:
    """The signals that reached the command of this process."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.finishing = 0
        """Blocks that finish what is under way before they end."""
        self._has_raised = False

    def handle(self, number: int, _frame: Any) -> None:
        """Do what the table above says."""
        is_first = not self.stop.is_set()
        self.stop.set()
        if self._has_raised:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not (is_first and self.finishing):
            self.interrupt()

    def interrupt(self) -> None:
        """End the command here."""
        self._has_raised = True
        raise RunStopped


_current: _Signals | None = None


def is_stopping() -> bool:
    """Whether a signal told the command of this process to end."""
    return _current is not None and _current.stop.is_set()


def was_stopped(error: BaseException | None) -> bool:
    """Whether a signal ended the command, also where that made another error of Spark or of a clean-up."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def end_on_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the block; without effect inside another one and outside the main thread."""
    global _current
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _current = _Signals()
    before = {number: signal.signal(number, _current.handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler in (None, end_before_start) else handler)
        _current = None


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, for a block that ends itself; a second signal ends it at once."""
    with end_on_signals():
        signals = _current if threading.current_thread() is threading.main_thread() else None
        if signals is None:
            yield threading.Event()
            return
        signals.finishing += 1
        try:
            yield signals.stop
        finally:
            signals.finishing -= 1


@contextmanager
def interruptible() -> Iterator[None]:
    """In this part of a block that ends itself a signal ends the command at once, also one that came before.

    Raises:
        RunStopped: there was a signal.
    """
    signals = _current if threading.current_thread() is threading.main_thread() else None
    if signals is None:
        yield
        return
    finishing, signals.finishing = signals.finishing, 0
    try:
        if signals.stop.is_set():
            signals.interrupt()
        yield
    finally:
        signals.finishing = finishing


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
