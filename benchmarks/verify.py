"""Speed of `verify` compared with `compact` on the same data, in one run.

Each round compacts hard links of the data, and then compares the result with the data.  Warm rounds run in one Spark
session, after a first round that is not counted.  Cold rounds run both commands as processes, timed from start to exit,
with compiled kernels.  CPU seconds are those of all processes; the wall time depends on the load of the machine.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import Shape, write_partition
from benchmarks.options import NOW_MS, command_options
from benchmarks.race import CONFIGS, MEGABYTE, linked_copy, records
from benchmarks.scan import cpu_seconds
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.compact import compact
from sediment.jobs.spark.session import spark_context
from sediment.jobs.verify import verify

MASTER = "local[2]"
SETTINGS = {**CONFIGS, "delete.retention.ms": "86400000"}
WARM_TARGET, COLD_TARGET = 1.5, 2.0


@dataclass
class Times:
    """Wall and CPU seconds of each run of one command."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, run: Callable[[], object], cpu: Callable[[], float]) -> None:
        """Time one run."""
        before, started = cpu(), time.perf_counter()
        run()
        self.wall.append(time.perf_counter() - started)
        self.cpu.append(cpu() - before)


def _options(log_dirs: Sequence[Path]) -> CommonOptions:
    return command_options(log_dirs, [f"{key}={value}" for key, value in SETTINGS.items()], master=MASTER)


def _compact(after: Path) -> None:
    assert not compact(_options([after]), CompactOptions(force=True, dry_run=False, from_start=False)).failed


def _verify(before: Path, after: Path) -> None:
    assert not verify(_options([before, after]), since_ms=None).failed


def _process(*arguments: object) -> None:
    sets = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    command = [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments), f"--now-ms={NOW_MS}", "--json", *sets]
    subprocess.run(command, check=True, capture_output=True)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(directories: Sequence[Path], scratch: Path, rounds: int) -> dict[str, tuple[Times, Times]]:
    """Return the times of `compact` and `verify`, warm and cold."""
    before = linked_copy(directories, scratch / "before")
    results = {"warm": (Times(), Times()), "cold": (Times(), Times())}
    with spark_context(MASTER, "sediment verify"):
        for number in range(rounds + 1):
            times = results["warm"] if number else (Times(), Times())
            after = linked_copy(directories, scratch / "after")
            times[0].add(lambda after=after: _compact(after), cpu_seconds)
            times[1].add(lambda after=after: _verify(before, after), cpu_seconds)
            shutil.rmtree(after)
    for _ in range(rounds):
        after = linked_copy(directories, scratch / "after")
        results["cold"][0].add(
            lambda after=after: _process("compact", after, "--force", f"--master={MASTER}"), _cpu_of_children
        )
        results["cold"][1].add(lambda after=after: _process("verify", before, after), _cpu_of_children)
        shutil.rmtree(after)
    shutil.rmtree(before)
    return results


def report(results: dict[str, tuple[Times, Times]], title: str) -> Table:
    """Return a table with the medians, and the ratio of the medians."""
    table = Table(title=title)
    for name in ("", "compact s", "verify s", "ratio", "target", "compact CPU s", "verify CPU s", "ratio of CPU"):
        table.add_column(name, justify="right")
    for name, (cleaned, verified) in results.items():
        wall = [statistics.median(times.wall) for times in (cleaned, verified)]
        cpu = [statistics.median(times.cpu) for times in (cleaned, verified)]
        target = WARM_TARGET if name == "warm" else COLD_TARGET
        cells = (wall[0], wall[1], wall[1] / wall[0], target, cpu[0], cpu[1], cpu[1] / max(cpu[0], 0.01))
        table.add_row(name, *(f"{cell:.2f}" for cell in cells))
    return table


def main() -> None:
    """Generate the data, run both commands, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=506)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="directory to work in (default: a new temporary directory)")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="sediment-verify-", dir=given.scratch))
    try:
        directories = []
        shape: Shape = records(given.megabytes / given.partitions)
        for number in range(given.partitions):
            directories.append(scratch / "data" / f"bench-{number}")
            write_partition(directories[-1], shape)
        size_bytes = sum(log.stat().st_size for directory in directories for log in directory.glob("*.log"))
        title = f"{size_bytes / MEGABYTE:.0f} MB in {len(directories)} partitions of 116-byte records"
        Console().print(report(measure(directories, scratch, given.rounds), title))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
