"""Large loads, each as one `sediment compact` in a separate process: 5,000 partitions, 20 GB, 10⁸ keys.

    partitions   5,000 partitions of 100 KB in one log directory
    directory    20 GB in 40 partitions
    keys         10⁸ keys with small values in one partition: each key once, and a tenth of the keys a second time

The time is that of the whole command, from its start to its exit.  The memory is the peak of all its processes
together.  It is sampled ten times per second, as PSS, which counts a shared page only once.  The result is checked:
every partition was compacted, and one record per key is left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.generate import ONCE_FIRST, Shape, write_partition
from benchmarks.measure import (
    GIGABYTE,
    MEGABYTE,
    RESULTS,
    SLOTS,
    TreePeak,
    machine,
)
from benchmarks.options import NOW_MS
from benchmarks.reporting.pages import fill_page, markdown_table
from sediment.compaction.strategy import Strategy

PAGE = RESULTS / "scale.md"
RECORD_BYTES, SMALL_RECORD_BYTES = 116, 31
SEGMENT_BYTES = 100 * MEGABYTE
BUDGET_BYTES = 1000 * MEGABYTE
_DIFFERENT = 2
"""Number of partitions that are generated; the others are copies with their own files."""


@dataclass(frozen=True)
class Load:
    """`partitions` of `shape`, cleaned with `strategy` (None: the command chooses)."""

    name: str
    title: str
    partitions: int
    shape: Shape
    strategy: Strategy | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Cost of one command; bytes of log before and after, records after, memory in bytes."""

    title: str
    partitions: int
    bytes_before: int
    bytes_after: int
    messages_after: int
    seconds: float
    peak_bytes: int
    peak_process_bytes: int


def loads(scale: float) -> tuple[Load, ...]:
    """Return all loads; `scale` reduces partitions and keys."""

    def shape(log_bytes: int, **more: int) -> Shape:
        each = Shape(log_bytes, keys=log_bytes // RECORD_BYTES // 10, value_bytes=90, segment_bytes=SEGMENT_BYTES)
        return replace(each, population=ONCE_FIRST, **more)

    keys = int(10**8 * scale)
    many = shape(int(keys * 1.1 * SMALL_RECORD_BYTES), keys=keys, value_bytes=4)
    partitions, halves = max(2, int(5000 * scale)), max(2, int(40 * scale))
    return (
        Load("partitions", f"{partitions:,} partitions", partitions, shape(100_000)),
        Load("directory", f"a directory of {halves / 2:g} GB", halves, shape(GIGABYTE // 2)),
        Load("keys", f"{keys:,} keys in one partition, by one task", 1, many, Strategy.WHOLE),
        Load(
            "keys-split",
            f"the same in splits, {BUDGET_BYTES / MEGABYTE:,.0f} MB a task",
            1,
            many,
            Strategy.SPLIT,
            BUDGET_BYTES,
        ),
    )


def make(load: Load, log_dir: Path) -> None:
    """Generate the first partitions and copy them, so that every partition has its own files."""
    for number in range(load.partitions):
        directory = log_dir / f"load-{number}"
        if number < _DIFFERENT:
            write_partition(directory, replace(load.shape, seed=number + 1))
            continue
        directory.mkdir()
        for file in (log_dir / f"load-{number % _DIFFERENT}").iterdir():
            shutil.copyfile(file, directory / file.name)
    (log_dir / ".kafka_cleanshutdown").touch()
    os.sync()


def compact(load: Load, log_dir: Path) -> Outcome:
    """Run the command and check its result."""
    command = [sys.executable, "-m", "sediment.jobs.cli", "compact", str(log_dir), "--force", "--json", "--quiet"]
    sets = ["cleanup.policy=compact", f"segment.bytes={SEGMENT_BYTES}"]
    if load.memory_bytes is not None:
        sets.append(f"sediment.task.memory.bytes={load.memory_bytes}")
    command += [f"--master={SLOTS}", f"--now-ms={NOW_MS}", *(f"--set={one}" for one in sets)]
    if load.strategy is not None:
        command.append(f"--strategy={load.strategy.value}")
    started = time.perf_counter()
    with tempfile.TemporaryFile() as document, subprocess.Popen(command, stdout=document) as process:
        with TreePeak(psutil.Process(process.pid)) as peak:
            status = process.wait()
        seconds = time.perf_counter() - started
        document.seek(0)
        partitions = json.load(document)["partitions"]
    strange = [partition for partition in partitions if partition["status"] != "compacted"]
    assert status == 0 and not strange, strange[:1]
    messages = sum(partition["messages_written"] for partition in partitions)
    assert messages == load.partitions * load.shape.keys, f"{messages} records are left"
    return Outcome(
        title=load.title,
        partitions=len(partitions),
        bytes_before=sum(partition["bytes_before"] for partition in partitions),
        bytes_after=sum(partition["bytes_after"] for partition in partitions),
        messages_after=messages,
        seconds=seconds,
        peak_bytes=peak.total_bytes,
        peak_process_bytes=peak.largest_bytes,
    )


HEAD = (
    "",
    "partitions",
    "GB before",
    "GB after",
    "records after",
    "seconds",
    "peak, MB",
    "largest process, MB",
)


def rows(outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
    """Return one row per load."""
    return [
        (
            there.title,
            f"{there.partitions:,}",
            f"{there.bytes_before / GIGABYTE:.2f}",
            f"{there.bytes_after / GIGABYTE:.2f}",
            f"{there.messages_after:,}",
            f"{there.seconds:.1f}",
            f"{there.peak_bytes / MEGABYTE:,.0f}",
            f"{there.peak_process_bytes / MEGABYTE:,.0f}",
        )
        for there in outcomes
    ]


def main() -> None:
    """Run the loads one after another, each on its own data, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="reduce partitions, data and keys")
    parser.add_argument("--only", action="append", help="run only this load")
    parser.add_argument(
        "--scratch", type=Path, help="directory for the data, up to 25 GB (default: a temporary directory)"
    )
    parser.add_argument("--results", type=Path, help="append the results here, one JSON object per line")
    parser.add_argument("--docs", action="store_true", help="write the table into benchmarks/results/scale.md")
    given = parser.parse_args()
    outcomes = []
    for load in loads(given.scale):
        if given.only and load.name not in given.only:
            continue
        with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-load-") as scratch:
            log_dir = Path(scratch) / "logs"
            log_dir.mkdir()
            make(load, log_dir)
            outcome = compact(load, log_dir)
        outcomes.append(outcome)
        print(f"{load.title}: {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
        if given.results:
            with given.results.open("a") as sink:
                sink.write(json.dumps(asdict(outcome)) + "\n")
    command = " ".join(["python -m benchmarks.load", *sys.argv[1:]])
    table = Table(*HEAD)
    for row in rows(outcomes):
        table.add_row(*row)
    console = Console(width=max(Console().width, 150))
    console.print(table)
    console.print(f"{machine()}; {command}")
    if given.docs:
        where = f"Measured with `{command}` on {machine()}; one run each, with a warm page cache."
        fill_page(PAGE, "load", f"{where}\n\n{markdown_table(HEAD, rows(outcomes))}")


if __name__ == "__main__":
    main()
