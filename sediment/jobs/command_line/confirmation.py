"""Confirmation on a terminal before a command deletes."""

from __future__ import annotations

import select
import sys
import threading

_POLL_SECONDS = 0.1


def may_ask() -> bool:
    """Return True if stdin and stderr are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask_on_terminal(question: str, stop: threading.Event) -> bool:
    """Ask once on stderr; return True for y or yes.

    Any other answer, or the end of input, means no.  So does `stop`, which Ctrl-C sets.
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
