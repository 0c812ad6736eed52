"""Speed of scans: `kafka-log` under Spark on two cores, and the same tables read without Spark.

Every column is materialised (Spark's `noop` sink).  The first scan of a session starts Python workers and warms up the
JVM, and is therefore shown separately.  Wall time depends on the load of the machine.  The table also shows CPU seconds
of all processes, and the rate that two cores would reach on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.generate import Shape, write_partition
from sediment.jobs.datasource import FORMAT
from sediment.jobs.spark.session import create_session
from sediment.segment_io.format import layout as f
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest

MEGABYTE = 1_000_000
CORES = 2
VALUE_BYTES = 90  # records of 116 bytes


@dataclass(frozen=True)
class Measured:
    """Seconds of each run: wall time, and CPU time of all processes."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its running descendants."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def measure(scan: Callable[[], object], runs: int) -> Measured:
    """Run `scan` repeatedly, and time each run."""
    wall, cpu = [], []
    for _ in range(runs):
        before, started = cpu_seconds(), time.perf_counter()
        scan()
        wall.append(time.perf_counter() - started)
        cpu.append(cpu_seconds() - before)
    return Measured(tuple(wall), tuple(cpu))


def direct(log_dir: Path, request: TableRequest) -> int:
    """Read a table in this process; return the number of rows."""
    fs, rows = Fs(), 0
    for task in plan_table(request, find_sources([log_dir], fs), fs):
        for batch in read_table(request, task, fs):
            rows += batch.num_rows
    return rows


def main() -> None:
    """Generate the data, scan it in each way and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--codec", choices=f.CODEC_NAMES, default="none")
    parser.add_argument("--scratch", type=Path, help="directory to work in (default: a new temporary directory)")
    given = parser.parse_args()
    scratch = Path(given.scratch or tempfile.mkdtemp(prefix="sediment-scan-"))
    log_dir = scratch / "logs"
    if not log_dir.exists():
        total = given.megabytes * MEGABYTE
        codec = f.CODEC_NAMES.index(given.codec)
        shape = Shape(total_bytes=total, keys=total // 1160, value_bytes=VALUE_BYTES, codec=codec)
        write_partition(log_dir / "bench-0", shape)
    size = sum(path.stat().st_size for path in log_dir.rglob("*.log"))

    results: list[tuple[str, Measured, int]] = []

    def course(name: str, scan: Callable[[], object], *, cores: int, apart: bool = False) -> None:
        if apart:
            results.append((f"{name}, first", measure(scan, 1), cores))
        results.append((name, measure(scan, given.runs), cores))

    with create_session(f"local[{CORES}]", "scan") as spark:

        def table(**options: str) -> Any:
            return spark.read.format(FORMAT).options(**options).load(str(log_dir))

        def materialise(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        course("records, all columns", lambda: materialise(table()), cores=CORES, apart=True)
        course("records, key and value", lambda: materialise(table(columns="key,value")), cores=CORES)
        course("records, 1000 by offset", lambda: materialise(table(offsets="5000:6000")), cores=CORES)
        course("batches, all columns", lambda: materialise(table(what="batches")), cores=CORES)
    course("records, without Spark", lambda: direct(log_dir, TableRequest()), cores=1)
    course("batches, without Spark", lambda: direct(log_dir, TableRequest(what="batches")), cores=1)

    report(results, size, given.codec)
    if given.scratch is None:
        shutil.rmtree(scratch)


def report(results: list[tuple[str, Measured, int]], size_bytes: int, codec: str) -> None:
    """Return medians, with the range of the wall time."""
    shown = Table(
        title=f"{size_bytes / MEGABYTE:.0f} MB of 116-byte records, codec {codec}, load {os.getloadavg()[0]:.1f}"
    )
    for name in ("scan", "seconds", "MB/s", "CPU s", "MB/s when idle"):
        shown.add_column(name, justify="left" if name == "scan" else "right")
    for name, measured, cores in results:
        wall, cpu = statistics.median(measured.wall), statistics.median(measured.cpu)
        spread = f" ({min(measured.wall):.2f}-{max(measured.wall):.2f})" if len(measured.wall) > 1 else ""
        shown.add_row(
            name,
            f"{wall:.2f}{spread}",
            f"{size_bytes / MEGABYTE / wall:.0f}",
            f"{cpu:.2f}",
            f"{size_bytes / MEGABYTE * cores / cpu:.0f}",
        )
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
