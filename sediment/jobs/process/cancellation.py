"""Cancellation of a command by a signal, and of its running Spark jobs.

    in the command               first signal                          second           third
    while its modules load       ends the process (`starting`)         -                -
    anywhere (`end_on_signals`)  raises `RunStopped`                   kills            -
    `stop_on_signals`            sets an event; the run ends itself    raises           kills
    `interruptible` within it    raises `RunStopped`                   kills            -

Invariants: only the main thread is interrupted.  `RunStopped` is not an `Exception`, so libraries do not catch it.
After a signal `is_stopping` returns True, and messages that Spark prints while stopping are not shown.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sediment.jobs.process.early_signals import end_before_start
from sediment.segment_io.errors import SedimentError

_LOGGER = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_POLL_SECONDS = 0.2
_AGAIN_SECONDS = 0.02
_OF_SPARK = ("py4j.", "pyspark.")


class RunStopped(KeyboardInterrupt):
    """A signal ended the command, or Ctrl-C ended the call of a Python function.

    `report` is the `reporting.run_report.Result` of the run, or None.  In this result, unfinished partitions have
    failed with the reason code `stopped`.
    """

    def __init__(self, report: Any = None) -> None:
        super().__init__()
        self.report = report

    def __str__(self) -> str:
        return "the run was stopped; run again to continue"


class StoppedError(SedimentError):
    """A signal ended the command before it was done."""

    def __init__(self) -> None:
        super().__init__("the run was stopped before it was done", advice="run again")


class _Signals:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.finishing = 0
        """Number of active `stop_on_signals` blocks, which finish the work in progress after a signal."""
        self.has_raised = False

    def handle(self, number: int, _frame: Any) -> None:
        is_first = not self.stop.is_set()
        self.stop.set()
        if self.has_raised:
            for end in _ended_if_killed:
                end()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not (is_first and self.finishing):
            self.interrupt()

    def interrupt(self) -> None:
        self.has_raised = True
        if not isinstance(sys.unraisablehook, _OtherErrors):
            sys.unraisablehook = _OtherErrors(sys.unraisablehook)
        raise RunStopped


class _OtherErrors:
    """A `sys.unraisablehook` that prints no message about what a signal has interrupted.

    * A signal can interrupt a library while it makes an object.  Python deletes the unfinished object later, possibly
      when the process ends, and would then print a traceback, because the object lacks an attribute.
    * A signal can arrive in a function that C code calls.  Python drops the exception there, so the command would go
      on; it is interrupted again.
    """

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self._hook = hook

    def __call__(self, error: Any) -> None:
        is_unfinished = (
            issubclass(error.exc_type, AttributeError) and getattr(error.object, "__name__", "") == "__del__"
        )
        if issubclass(error.exc_type, RunStopped):
            _interrupt_again()
        elif not is_unfinished:
            self._hook(error)


def _interrupt_again() -> None:
    """Interrupt the command as soon as the C code that is running now has returned."""
    signals = _current

    def interrupt() -> None:
        if signals is not None and signals is _current:
            signals.has_raised = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Timer(_AGAIN_SECONDS, interrupt).start()


_current: _Signals | None = None
_ended_if_killed: list[Callable[[], None]] = []


@contextmanager
def ended_if_killed(end: Callable[[], None]) -> Iterator[None]:
    """During the block, call `end` before a signal kills this process; `end` stops a child process."""
    _ended_if_killed.append(end)
    try:
        yield
    finally:
        _ended_if_killed.remove(end)


def is_stopping() -> bool:
    return _current is not None and _current.stop.is_set()


def was_stopped(error: BaseException | None) -> bool:
    """Return True if a signal ended the command, even if an error of Spark or of a clean-up followed the signal."""
    # A signal to the process group, or to all processes of a service, also ends the JVM, so every error of Spark after
    # a signal counts as its effect.
    if is_stopping() and _is_of_spark(error):
        return True
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _is_of_spark(error: BaseException | None) -> bool:
    return type(error).__module__.startswith(_OF_SPARK) or isinstance(error, ConnectionError | EOFError)


@contextmanager
def end_on_signals() -> Iterator[None]:
    """End the block on SIGINT and SIGTERM; do nothing inside another such block or outside the main thread."""
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
    """Yield an event that SIGINT and SIGTERM set; the block then ends itself, or a second signal interrupts it.

    Outside `end_on_signals` and outside the main thread, nothing sets the event, because this package handles no
    signals there.
    """
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
    """End the command on a signal in this block, or on an earlier signal in the enclosing `stop_on_signals` block."""
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
    """Cancel the Spark jobs of the run as soon as `stop` is set, and also all jobs that the run submits later."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if stop.wait(_STOP_POLL_SECONDS) and not over.is_set():
                try:
                    sc.cancelJobGroup(group)
                except Exception:
                    _LOGGER.debug("the jobs of %s cannot be cancelled", group, exc_info=True)
                    return  # Spark has already stopped
                over.wait(_STOP_POLL_SECONDS)

    # The thread is not joined, because it ends by itself and may be waiting for a JVM that does not answer.
    threading.Thread(target=watch, name="sediment-stop", daemon=True).start()
    try:
        yield
    finally:
        over.set()
