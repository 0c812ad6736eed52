"""The counts of the crash matrix, printed at the end of a complete run."""

from __future__ import annotations

import pytest

from tests.faults.matrix import IS_WHOLE, TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not IS_WHOLE or not TALLY:
        return
    faults = list(dict.fromkeys(fault for _, fault in TALLY))
    width = max(len(scenario) for scenario, _ in TALLY)
    terminalreporter.section("crash matrix: steps cut off, by scenario and fault")
    for scenario in sorted({scenario for scenario, _ in TALLY}):
        counts = "  ".join(f"{TALLY[scenario, fault]:5} {fault}" for fault in faults if TALLY[scenario, fault])
        terminalreporter.line(f"{scenario:{width}}  {counts}")
    totals = {fault: sum(count for (_, other), count in TALLY.items() if other == fault) for fault in faults}
    counts = "  ".join(f"{count:5} {fault}" for fault, count in totals.items())
    terminalreporter.line(f"{'all':{width}}  {counts}  = {sum(totals.values())}")
