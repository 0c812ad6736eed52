"""One check of `sediment doctor`, and its status.

ok        nothing to do
warning   something is missing, slow or refused, but only for some commands
failed    the machine, a setting or a directory cannot be used, or settings contradict each other
"""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check: the finding and, unless the status is `ok`, the next action."""

    name: str
    status: str
    found: str
    advice: str | None = None
    log_dir: str | None = None


def passed(name: str, found: str, *, log_dir: str | None = None) -> Check:
    return Check(name, OK, found, log_dir=log_dir)


def warned(name: str, found: str, advice: str, *, log_dir: str | None = None) -> Check:
    return Check(name, WARNING, found, advice, log_dir)


def failed(name: str, found: str, advice: str | None, *, log_dir: str | None = None) -> Check:
    return Check(name, FAILED, found, advice, log_dir)
