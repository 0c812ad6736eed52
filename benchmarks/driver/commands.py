"""Seconds of whole commands whose time is mostly the driver's, from start to exit, beside their limits.

    plan       `sediment plan` of many small partitions, which starts no Spark
    compact    `sediment compact` of one small partition, cold; each run cleans a real copy

The limit of `plan` is the time to start Python and read the names and sizes of all files.  The limit of `compact` is
the time to read the input, and to write and sync the output.  A first run of each command is not counted: it compiles
kernels, and `warm-up` makes the archive of Spark's classes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import write_partition
from benchmarks.options import NOW_MS
from benchmarks.partitions import make
from benchmarks.race import copied, records, time_limit

PLAN_TARGET_SECONDS, COMPACT_TARGET_SECONDS = 1.0, 2.5
_LIST = "import sys\nfrom pathlib import Path\nsum(each.stat().st_size for each in Path(sys.argv[1]).rglob('*'))"


def timed(arguments: Sequence[object]) -> tuple[float, str]:
    """Return the seconds of a Python process, and its output."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *map(str, arguments)], check=True, capture_output=True, text=True)
    return time.perf_counter() - started, done.stdout


def command(*arguments: object) -> tuple[object, ...]:
    """Return the arguments of a Python process that runs a command of Sediment."""
    return ("-m", "sediment.jobs.cli", *arguments, f"--now-ms={NOW_MS}", "--json", "--quiet")


def time_plan(scratch: Path, partitions: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of `plan`, and those of its limit."""
    log_dir = scratch / "many"
    log_dir.mkdir()
    make(log_dir, partitions)
    topics = {path.name.rpartition("-")[0] for path in log_dir.iterdir() if path.is_dir()}
    sets = [f"--set={topic}:cleanup.policy=compact" for topic in sorted(topics)]
    planned, limit = [], []
    for _ in range(rounds + 1):
        seconds, text = timed(command("plan", log_dir, "--broker-defaults", *sets))
        assert len(json.loads(text)["partitions"]) == partitions
        planned.append(seconds)
        limit.append(timed(("-c", _LIST, log_dir))[0])
    shutil.rmtree(log_dir)
    return planned[1:], limit[1:]


def time_compact(scratch: Path, megabytes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a cold `compact`, and those of its limit."""
    timed(("-m", "sediment.jobs.cli", "warm-up"))
    source = scratch / "source" / "bench-0"
    write_partition(source, records(megabytes))
    compacted, limit = [], []
    for _ in range(rounds + 1):
        log_dir = copied([source], scratch / "copy")
        seconds, text = timed(
            command("compact", log_dir, "--force", "--broker-defaults", "--set=cleanup.policy=compact")
        )
        (partition,) = json.loads(text)["partitions"]
        assert partition["status"] == "compacted"
        compacted.append(seconds)
        shutil.rmtree(log_dir)
        limit.append(time_limit([source], partition["bytes_after"], scratch, 1))
    return compacted[1:], limit[1:]


def main() -> None:
    """Measure both commands and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=45)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="directory to work in (default: a new temporary directory)")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="sediment-driver-", dir=given.scratch))
    table = Table()
    for name in ("", "seconds", "smallest to largest", "target", "limit"):
        table.add_column(name, justify="right")
    try:
        for title, target, (seconds, limit) in (
            (
                f"plan, {given.partitions:,} partitions",
                PLAN_TARGET_SECONDS,
                time_plan(scratch, given.partitions, given.rounds),
            ),
            (
                f"cold compact, {given.megabytes} MB",
                COMPACT_TARGET_SECONDS,
                time_compact(scratch, given.megabytes, given.rounds),
            ),
        ):
            median, spread = statistics.median(seconds), f"{min(seconds):.2f} to {max(seconds):.2f}"
            table.add_row(title, f"{median:.2f}", spread, f"{target:.1f}", f"{statistics.median(limit):.2f}")
    finally:
        shutil.rmtree(scratch)
    Console().print(table)


if __name__ == "__main__":
    main()
