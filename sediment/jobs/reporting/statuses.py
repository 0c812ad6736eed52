"""Statuses of partitions: those that make a run fail, and those that mean no change."""

from __future__ import annotations

BAD_STATUSES = frozenset({"failed", "quarantined", "wrong", "refused"})
"""Statuses of a partition that cause exit status 1."""

IDLE_STATUSES = frozenset({"skipped", "unchanged", "blocked", "kept"})
"""Statuses of a partition that a run does not change, or would not change."""

RECOVERED = "recovered"
UNCHANGED = "unchanged"

STOPPED = "stopped"
"""Reason code of a partition that failed because a signal ended the run; tables show it as the status."""

STOPPED_BEFORE_DONE = (STOPPED, "the run was stopped before this partition was done")
"""Reason code and text."""
