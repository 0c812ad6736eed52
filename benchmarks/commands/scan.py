"""Speed of scans: `kafka-log` under Spark on two cores, and the same tables read without Spark.

Every column is materialised (Spark's `noop` sink).  The first scan of a session starts Python workers and warms up the
JVM, and is therefore shown separately.  Wall time depends on the load of the machine.  The table also shows CPU seconds
of all processes, and the rate that two cores would reach on an idle machine.

`compare` measures the limit of such scans: a data source that hands over batches which were read before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from benchmarks.commands import prepared_source
from benchmarks.commands.timing import timed
from benchmarks.generate import Shape, write_partition
from benchmarks.measure import processor_seconds
from benchmarks.race import records
from benchmarks.reporting.comparisons import Comparison
from sediment.jobs.datasource import FORMAT, register
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


def measure(scan: Callable[[], object], runs: int) -> Measured:
    """Run `scan` repeatedly, and time each run."""
    wall, cpu = [], []
    for _ in range(runs):
        before, started = processor_seconds(), time.perf_counter()
        scan()
        wall.append(time.perf_counter() - started)
        cpu.append(processor_seconds() - before)
    return Measured(tuple(wall), tuple(cpu))


def direct(log_dir: Path, request: TableRequest) -> int:
    """Read a table in this process; return the number of rows."""
    fs, rows = Fs(), 0
    for task in plan_table(request, find_sources([log_dir], fs), fs):
        for batch in read_table(request, task, fs):
            rows += batch.num_rows
    return rows


def _materialise(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


_LEAST_OF_LIMIT, _MOST_OF_BATCH = 0.8, 1.25
_COMPARED = {"all columns": "", "key and value": "key,value"}


def compare(scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparison of each scan with its limit; a first round of each is not counted."""
    megabytes, rounds = (4, 1) if is_quick else (506, 3)
    log_dir = scratch / "logs"
    write_partition(log_dir / "bench-0", records(megabytes))
    with create_session(f"local[{CORES}]", "scan") as spark:
        register(spark)
        spark.dataSource.register(prepared_source.PreparedSource)
        for title, columns in _COMPARED.items():
            name = f"scan-{'all' if not columns else columns.replace(',', '-')}"
            options = {"columns": columns} if columns else {}
            found = Comparison(
                name,
                f"Spark, table `records`, {title}",
                f"{megabytes} MB",
                "prepared batches",
                _LEAST_OF_LIMIT,
                is_speed=True,
            )
            request = TableRequest(columns=tuple(columns.split(",")) if columns else None)
            prepared_source.prepare(log_dir, request, scratch / name)
            for number in range(rounds + 1):
                times = found if number else Comparison("", "", "", "", None, is_speed=True)
                own = spark.read.format(FORMAT).options(**options).load(str(log_dir))
                timed(lambda frame=own: _materialise(frame), times.seconds, times.cpu_seconds)
                limit = spark.read.format(prepared_source.FORMAT).option("columns", columns).load(str(scratch / name))
                timed(lambda frame=limit: _materialise(frame), times.reference_seconds, times.reference_cpu_seconds)
            shutil.rmtree(scratch / name)
            yield found
        yield _stream(spark, log_dir, scratch / "checkpoints", megabytes, rounds)


def _stream(spark: Any, log_dir: Path, checkpoints: Path, megabytes: int, rounds: int) -> Comparison:
    """Compare a stream that reads the whole log at once with the batch reader."""
    found = Comparison(
        "stream",
        "Spark, stream of `records`",
        f"{megabytes} MB, one partition",
        "the batch reader",
        _MOST_OF_BATCH,
        is_speed=False,
    )

    def stream(number: int) -> None:
        rows = spark.readStream.format(FORMAT).option("startingOffsets", "earliest").load(str(log_dir))
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoints / str(number)))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert sum(progress["numInputRows"] for progress in query.recentProgress)

    for number in range(rounds + 1):
        times = found if number else Comparison("", "", "", "", None, is_speed=True)
        batch = spark.read.format(FORMAT).load(str(log_dir))
        timed(lambda frame=batch: _materialise(frame), times.reference_seconds, times.reference_cpu_seconds)
        timed(lambda number=number: stream(number), times.seconds, times.cpu_seconds)
    return found


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
        register(spark)

        def table(**options: str) -> Any:
            return spark.read.format(FORMAT).options(**options).load(str(log_dir))

        course("records, all columns", lambda: _materialise(table()), cores=CORES, apart=True)
        course("records, key and value", lambda: _materialise(table(columns="key,value")), cores=CORES)
        course("records, 1000 by offset", lambda: _materialise(table(offsets="5000:6000")), cores=CORES)
        course("batches, all columns", lambda: _materialise(table(what="batches")), cores=CORES)
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
