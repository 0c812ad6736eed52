"""Confirmation on a terminal before a command changes or deletes anything."""

from __future__ import annotations

import select
import sys
import threading

from sediment.segment_io.errors import UsageError

_POLL_SECONDS = 0.1


def may_ask() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def must_ask(*, yes: bool, dry_run: bool, command: str) -> bool:
    """Return True if a command that requires confirmation must ask for it.

    Raises:
        UsageError: the command must ask, but stdin or stderr is not a terminal.
    """
    if yes or dry_run:
        return False
    if not may_ask():
        raise UsageError(
            f"{command} asks on a terminal before it changes anything", advice="give --yes to run without one"
        )
    return True


def ask_on_terminal(question: str, stop: threading.Event) -> bool:
    """Ask once on stderr; return True for y or yes.

    Any other answer means no.  The end of input also means no, and so does Ctrl-C, which sets `stop`.
    """
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    while not stop.is_set():
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            answer = sys.stdin.readline()
            if not answer.endswith("\n"):
                break
            return answer.strip().lower() in ("y", "yes")
    sys.stderr.write("\n")
    return False
