"""Results of the benchmark of `serve`, and their table in `benchmarks/results/performance.md`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.reporting.pages import fill_page, markdown_table

BAR_MISSED = 3
"""The exit status of a complete benchmark that misses a bar; an error in a benchmark has status 1."""


@dataclass(frozen=True)
class Ratio:
    """A measured ratio of Sediment to Kafka, and its bar."""

    name: str
    sediment: float
    kafka: float
    bar: float
    at_least: bool = False

    @property
    def value(self) -> float:
        """Sediment's figure divided by Kafka's."""
        return self.sediment / self.kafka

    @property
    def holds(self) -> bool:
        """True if the ratio is on the right side of its bar."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar


@dataclass(frozen=True)
class ServeResults:
    """All ratios, and the time to open many partitions, with its bar.

    `open_seconds` are (elapsed, CPU) seconds, or None if that was not measured.
    """

    ratios: tuple[Ratio, ...]
    partitions: int
    open_seconds: tuple[float, float] | None
    open_bar_seconds: float

    @classmethod
    def read(cls, path: Path) -> ServeResults:
        """Return the results in a file."""
        fields = json.loads(path.read_text())
        ratios = tuple(Ratio(**row) for row in fields["ratios"])
        seconds = None if fields["open_seconds"] is None else tuple(fields["open_seconds"])
        return cls(**{**fields, "ratios": ratios, "open_seconds": seconds})

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @property
    def holds(self) -> bool:
        """True if no bar is missed."""
        return self.opens_in_time and all(ratio.holds for ratio in self.ratios)

    @property
    def opens_in_time(self) -> bool:
        """True if the partitions are open within the bar, or if that was not measured."""
        return self.open_seconds is None or self.open_seconds[0] < self.open_bar_seconds


HEAD = ("", "Sediment", "Kafka", "ratio", "target")


def rows(results: ServeResults) -> Sequence[Sequence[str]]:
    """Return the cells of the table, without its head."""
    found = [
        (
            ratio.name,
            f"{ratio.sediment:,.3f}",
            f"{ratio.kafka:,.3f}",
            f"{ratio.value:.2f}",
            f"{'≥' if ratio.at_least else '≤'} {ratio.bar:g} {_met(ratio.holds)}",
        )
        for ratio in results.ratios
    ]
    if results.open_seconds is not None:
        name = f"open {results.partitions:,} partitions"
        seconds, cpu_seconds = results.open_seconds
        bar = f"< {results.open_bar_seconds:g} s {_met(results.opens_in_time)}"
        found.append((f"{name}, s", f"{seconds:.2f}", "", "", bar))
        found.append((f"{name}, CPU s", f"{cpu_seconds:.2f}", "", "", ""))
    return found


def _met(holds: bool) -> str:
    return "met" if holds else "not met"


def fill_page_of_serve(page: Path, results: ServeResults) -> None:
    """Write the table between the page's marks, `<!-- serve -->` and `<!-- /serve -->`.

    Raises:
        ValueError: the page has no such marks.
    """
    fill_page(page, "serve", markdown_table(HEAD, rows(results)))
