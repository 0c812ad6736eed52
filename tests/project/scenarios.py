"""The numbered scenarios of Kafka's behaviour in the names of tests, and a count of those that a test run covers.

A test function or an id of its parameters says `ap_07` for scenario AP-07; several may, one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SCENARIOS = {
    "bf": 35,  # batch and record format
    "ix": 25,  # indexes and checkpoint files
    "cp": 45,  # compaction
    "cm": 24,  # cleaner manager
    "rt": 20,  # retention
    "ap": 34,  # append, roll, flush
    "rd": 15,  # read and offset lookup
    "tr": 12,  # truncate
    "rc": 28,  # recovery and loading
    "ps": 22,  # producer state
    "lm": 14,  # log manager
}
"""How many there are of each area; they are numbered from 1 on."""

_ID = re.compile(rf"(?<![a-z0-9])({'|'.join(SCENARIOS)})_(\d\d)(?![0-9])")


def scenarios_in(name: str) -> set[str]:
    """Return the scenarios, as `ap_07`, that the name of a test tells."""
    return {f"{area}_{number}" for area, number in _ID.findall(name) if 0 < int(number) <= SCENARIOS[area]}


def all_scenarios() -> set[str]:
    """Return every one."""
    return {f"{area}_{number:02d}" for area, count in SCENARIOS.items() for number in range(1, count + 1)}


def counted(passed: Iterable[str], failed: Iterable[str]) -> str:
    """Return a line on tests by their names: how many scenarios of each area passed, and which did not."""
    bad = {found for name in failed for found in scenarios_in(name)}
    good = {found for name in passed for found in scenarios_in(name)} - bad
    if not good | bad:
        return ""
    areas = [
        f"{area.upper()} {sum(found.startswith(area) for found in good)}/{count}"
        for area, count in SCENARIOS.items()
        if any(found.startswith(area) for found in good | bad)
    ]
    missed = f"; failed: {', '.join(sorted(bad))}" if bad else ""
    return f"scenarios: {', '.join(areas)}{missed}"
