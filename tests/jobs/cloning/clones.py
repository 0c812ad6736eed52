"""Calls of `sediment clone`."""

from __future__ import annotations

from tests.jobs.log_dirs import Outcome, sediment
from tests.segments import NOW_MS


def clone(source: object, to: object, *more: object, status: int = 0) -> Outcome:
    """Clone `source` to `to` at NOW_MS, and check the exit status."""
    outcome = sediment("clone", source, "--to", to, "--json", "--now-ms", NOW_MS, *more)
    assert outcome.status == status, outcome.stderr
    return outcome
