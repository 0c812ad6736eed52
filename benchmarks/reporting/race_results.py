"""Results of a race, and their tables for a terminal and for `benchmarks/results/performance.md`.

Invariants
- The seconds of one round have the same index in every list.
- A ratio is computed from one round: Kafka's seconds divided by Sediment's.  Tables show the median, the smallest and
  the largest ratio.
- The page omits courses that were not run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from benchmarks.reporting.pages import fill_page, markdown_table

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """Outcome of one course, in seconds of each round.

    `kafka` and `limit` are by number of threads, `stages` by stage of Sediment.
    """

    course: str
    title: str
    log_bytes: int
    partitions: int
    bytes_after: int
    kafka: dict[int, list[float]]
    sediment: list[float]
    limit: dict[int, list[float]]
    target: float | None = None
    target_of_limit: float | None = None
    stages: list[dict[str, float]] = field(default_factory=list)

    @property
    def fastest_kafka(self) -> list[float]:
        """Kafka's seconds with its fastest number of threads."""
        return min(self.kafka.values(), key=statistics.median)

    def ratios(self, threads: int) -> list[float]:
        """Return Kafka's seconds over Sediment's."""
        return [theirs / ours for theirs, ours in zip(self.kafka[threads], self.sediment, strict=True)]

    def ratio(self) -> list[float]:
        """Return the seconds of the fastest Kafka over Sediment's."""
        return [theirs / ours for theirs, ours in zip(self.fastest_kafka, self.sediment, strict=True)]

    def of_limit(self, threads: int) -> float:
        """Return Sediment's seconds over those of the limit."""
        return statistics.median(self.sediment) / statistics.median(self.limit[threads])

    def meets(self) -> bool | None:
        """Return True if the targets are met; None without targets."""
        if self.target is None:
            return None
        near = self.target_of_limit is None or self.of_limit(1) <= self.target_of_limit
        return statistics.median(self.ratio()) >= self.target and near


@dataclass
class Results:
    """All outcomes on one machine, in a file that is written after every course."""

    machine: dict[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file; empty if it does not exist."""
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        return cls(found["machine"], [_outcome(row) for row in found["outcomes"]])

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, or replace an earlier one of the same course."""
        names = [there.course for there in self.outcomes]
        if outcome.course in names:
            self.outcomes[names.index(outcome.course)] = outcome
        else:
            self.outcomes.append(outcome)

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": self.machine, "outcomes": [asdict(outcome) for outcome in self.outcomes]}
        path.write_text(json.dumps(document, indent=1) + "\n")


def _outcome(row: Mapping[str, object]) -> Outcome:
    fields = dict(row)
    for name in ("kafka", "limit"):
        by_threads = fields[name]
        assert isinstance(by_threads, dict)
        fields[name] = {int(threads): seconds for threads, seconds in by_threads.items()}
    return Outcome(**fields)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------- tables
_HEAD = (
    "data",
    "MB",
    "Kafka, 1 thread",
    "Kafka, 2 threads",
    "Sediment",
    "ratio",
    "target",
    "limit",
    "Sediment / limit",
)


def terminal_table(outcomes: Iterable[Outcome]) -> Table:
    """Return the table for a terminal."""
    table = Table(*_HEAD)
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    return table


def outcomes_table(outcomes: Sequence[Outcome]) -> str:
    """Return the table for a page."""
    return markdown_table(_HEAD, [_cells(outcome) for outcome in outcomes])


def stages_table(outcomes: Sequence[Outcome]) -> str:
    """Return the seconds of each stage: medians by the driver's and the tasks' timers; tasks are added up."""
    measured = [outcome for outcome in outcomes if outcome.stages]
    names = list(dict.fromkeys(name for outcome in measured for stages in outcome.stages for name in stages))
    rows = []
    for outcome in measured:
        seconds = [statistics.median(stages.get(name, 0.0) for stages in outcome.stages) for name in names]
        rows.append((outcome.title, _seconds(outcome.sediment), *(f"{value:.3f}" for value in seconds)))
    return markdown_table(("data", "elapsed", *names), rows)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    target = ""
    if outcome.target is not None:
        is_met = "met" if outcome.meets() else "not met"
        target = f"≥ {outcome.target:g} {is_met}"
        if outcome.target_of_limit is not None:
            target = f"≥ {outcome.target:g}, and at most {outcome.target_of_limit:g} × limit: {is_met}"
    return (
        outcome.title,
        f"{outcome.log_bytes / MEGABYTE:,.0f}",
        _seconds(outcome.kafka.get(1)),
        _seconds(outcome.kafka.get(2)),
        _seconds(outcome.sediment),
        _spread(outcome.ratio()),
        target,
        " / ".join(_seconds(seconds) for _, seconds in sorted(outcome.limit.items())),
        " / ".join(f"{outcome.of_limit(threads):.1f}" for threads in sorted(outcome.limit)),
    )


def _seconds(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    median = statistics.median(values)
    return f"{median:.2f} s" if median < 10 else f"{median:.1f} s"


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


# ----------------------------------------------------------------------------------------------------------------- page
def fill_page_of_race(page: Path, results: Results) -> None:
    """Write the machine and the tables between the page's marks, `<!-- race -->` and `<!-- /race -->` and `stages`.

    Raises:
        ValueError: the page has no such marks.
    """
    rounds = sorted({len(outcome.sediment) for outcome in results.outcomes})
    told = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    counted = " or ".join(map(str, rounds))
    fill_page(page, "race", f"{outcomes_table(results.outcomes)}\n\n{told}; medians of {counted} rounds.")
    fill_page(page, "stages", stages_table(results.outcomes))
