"""Results of the benchmarks of single commands, and their table in `benchmarks/results/performance.md`.

A comparison has the seconds of a command and the seconds of its reference: a peer on the same data, a limit that was
measured in the same rounds, or a fixed rate.

Invariants
- The seconds of one round have the same index in every list.
- A ratio is computed from one round.  Tables show the median of the ratios.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from benchmarks.reporting.pages import fill_page, markdown_table

MARK = "commands"
_HEAD = ("command", "data", "time", "compared with", "its time", "ratio", "aim")


@dataclass(frozen=True)
class Comparison:
    """Seconds of a command and of its reference, in each round.

    `is_speed` True: the ratio is the reference's time divided by the command's, and must be at least `aim`.  `is_speed`
    False: it is the command's time divided by the reference's, and must be at most `aim`.  CPU seconds are those of all
    processes; they depend less on other load of the machine.
    """

    name: str
    command: str
    data: str
    reference: str
    aim: float | None
    is_speed: bool
    seconds: list[float] = field(default_factory=list)
    reference_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    reference_cpu_seconds: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """Return the median of the rounds' ratios."""
        return self._ratio(self.seconds, self.reference_seconds)

    def cpu_ratio(self) -> float | None:
        """Return the same of the CPU seconds; None if those of the reference are unknown."""
        if not self.reference_cpu_seconds:
            return None
        return self._ratio(self.cpu_seconds, self.reference_cpu_seconds)

    def _ratio(self, own: Sequence[float], reference: Sequence[float]) -> float:
        pairs = zip(own, reference, strict=True)
        return statistics.median(theirs / ours if self.is_speed else ours / theirs for ours, theirs in pairs)

    def meets(self) -> bool | None:
        """Return True if the aim is met; None without an aim."""
        if self.aim is None:
            return None
        return self.ratio() >= self.aim if self.is_speed else self.ratio() <= self.aim


@dataclass
class Comparisons:
    """All comparisons on one machine, in a file that is written after every comparison."""

    machine: dict[str, str] = field(default_factory=dict)
    found: list[Comparison] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Comparisons:
        """Return the results in a file; empty if it does not exist."""
        if not path.exists():
            return cls()
        document = json.loads(path.read_text())
        return cls(document["machine"], [Comparison(**row) for row in document["comparisons"]])

    def add(self, comparison: Comparison) -> None:
        """Add a comparison, or replace an earlier one of the same name."""
        names = [there.name for there in self.found]
        if comparison.name in names:
            self.found[names.index(comparison.name)] = comparison
        else:
            self.found.append(comparison)

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": self.machine, "comparisons": [asdict(one) for one in self.found]}
        path.write_text(json.dumps(document, indent=1) + "\n")


# --------------------------------------------------------------------------------------------------------------- tables
def terminal_table(found: Sequence[Comparison]) -> Table:
    """Return the table for a terminal; it adds the CPU seconds and their ratio."""
    table = Table(*_HEAD, "CPU s", "its CPU s", "ratio of CPU")
    for one in found:
        cpu_ratio = one.cpu_ratio()
        cells = [_median(one.cpu_seconds), _median(one.reference_cpu_seconds)]
        table.add_row(*_cells(one), *cells, "" if cpu_ratio is None else f"{cpu_ratio:.2f}")
    return table


def page_table(found: Sequence[Comparison]) -> str:
    """Return the table for a page."""
    return markdown_table(_HEAD, [_cells(one) for one in found])


def fill_page_of_commands(page: Path, results: Comparisons) -> None:
    """Write the table between the page's marks, `<!-- commands -->` and `<!-- /commands -->`.

    Raises:
        ValueError: the page has no such marks.
    """
    fill_page(page, MARK, page_table(results.found))


def _cells(one: Comparison) -> tuple[str, ...]:
    aim = ""
    if one.aim is not None:
        aim = f"{'≥' if one.is_speed else '≤'} {one.aim:g} {'met' if one.meets() else 'not met'}"
    seconds, reference = _median(one.seconds), _median(one.reference_seconds)
    return (one.command, one.data, seconds, one.reference, reference, f"{one.ratio():.2f}", aim)


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} s" if seconds else ""
