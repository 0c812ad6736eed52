"""A change that a load makes to a file, for reports; `load_state` and `producer_state_manager` collect such changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repair:
    """One change that a start makes to one file.

    `action` is a past participle (deleted, renamed), and `why` is a clause.  `is_routine` marks a change that a broker
    makes silently when it loads a healthy log.
    """

    action: str
    name: str
    why: str
    is_routine: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.action}: {self.why}"
