"""A running server, and the ratio of two servers' figures."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.reporting.serve_results import Ratio

_Round = TypeVar("_Round")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its name, address and process."""

    name: str
    bootstrap: str
    process_id: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Throughput:
    """A round of fetches or produces."""

    mb_per_second: float
    cpu_seconds_per_gb: float


def ratio(
    name: str,
    pairs: Sequence[tuple[_Round, _Round]],
    of: Callable[[_Round], float],
    bar: float,
    *,
    at_least: bool = False,
) -> Ratio:
    """Return the ratio of medians of rounds, each a pair of (Sediment, Kafka)."""
    sediment, kafka = (statistics.median(of(pair[side]) for pair in pairs) for side in (0, 1))
    return Ratio(name, sediment, kafka, bar, at_least)
