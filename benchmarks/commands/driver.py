"""Whole commands whose time is mostly the driver's, compared with a fixed time and with their limit.

    plan       `sediment plan` of many small partitions, which starts no Spark
    compact    `sediment compact` of one small partition, cold; each run cleans a real copy

The limit of `plan` is the time to start Python and read the names and sizes of all files.  The limit of `compact` is
the time to read the input, and to write and sync the output.  A first run of each command is not counted: it compiles
kernels, and `setup warm-up` makes the archive of Spark's classes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.commands.timing import timed
from benchmarks.generate import write_partition
from benchmarks.measure import children_seconds, environment_of_installed
from benchmarks.options import NOW_MS
from benchmarks.partitions import make
from benchmarks.race import copied, records, time_limit
from benchmarks.reporting.comparisons import Comparison

_PLAN_SECONDS, _COMPACT_SECONDS = 1.0, 1.5
_PARTITIONS, _MEGABYTES, _ROUNDS = 1000, 45, 5
_LIST = "import sys\nfrom pathlib import Path\nsum(each.stat().st_size for each in Path(sys.argv[1]).rglob('*'))"


def compare(scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of `plan` and of a cold `compact`: with the fixed time, and with the limit."""
    partitions, megabytes, rounds = (20, 1, 1) if is_quick else (_PARTITIONS, _MEGABYTES, _ROUNDS)
    yield from _plan(scratch, partitions, rounds)
    yield from _compact(scratch, megabytes, rounds)


def _plan(scratch: Path, partitions: int, rounds: int) -> Iterator[Comparison]:
    log_dir = scratch / "many"
    log_dir.mkdir()
    make(log_dir, partitions)
    topics = {path.name.rpartition("-")[0] for path in log_dir.iterdir() if path.is_dir()}
    sets = [f"--set={topic}:cleanup.policy=compact" for topic in sorted(topics)]
    found = Comparison(
        "plan", "`plan`", f"{partitions:,} partitions", "names and sizes of the files", None, is_speed=False
    )
    for number in range(rounds + 1):
        times = found if number else replace(found, seconds=[], cpu_seconds=[])
        text = timed(
            lambda: _command("plan", log_dir, "--broker-defaults", *sets),
            times.seconds,
            times.cpu_seconds,
            children_seconds,
        )
        assert len(json.loads(text)["partitions"]) == partitions
        if number:
            timed(lambda: _python("-c", _LIST, log_dir), found.reference_seconds, [])
    shutil.rmtree(log_dir)
    yield from (_with_fixed_time(found, _PLAN_SECONDS), found)


def _compact(scratch: Path, megabytes: int, rounds: int) -> Iterator[Comparison]:
    _python("-m", "sediment.jobs.cli", "setup", "warm-up")
    source = scratch / "source" / "bench-0"
    write_partition(source, records(megabytes))
    found = Comparison("cold-compact", "`compact`, cold", f"{megabytes} MB", "the limit", None, is_speed=False)
    for number in range(rounds + 1):
        times = found if number else replace(found, seconds=[], cpu_seconds=[])
        log_dir = copied([source], scratch / "copy")
        text = timed(
            lambda log_dir=log_dir: _command(
                "compact", log_dir, "--force", "--broker-defaults", "--set=cleanup.policy=compact"
            ),
            times.seconds,
            times.cpu_seconds,
            children_seconds,
        )
        (partition,) = json.loads(text)["partitions"]
        assert partition["status"] == "compacted"
        shutil.rmtree(log_dir)
        if number:
            found.reference_seconds.append(time_limit([source], partition["bytes_after"], scratch, 1))
    yield from (_with_fixed_time(found, _COMPACT_SECONDS), found)


def _with_fixed_time(found: Comparison, seconds: float) -> Comparison:
    return replace(
        found,
        name=f"{found.name}-fixed",
        reference=f"{seconds:g} s",
        aim=1,
        reference_seconds=[seconds] * len(found.seconds),
    )


def _command(*arguments: object) -> str:
    return _python("-m", "sediment.jobs.cli", *arguments, f"--now-ms={NOW_MS}", "--json", "--quiet")


def _python(*arguments: object) -> str:
    command: Sequence[str] = [sys.executable, *map(str, arguments)]
    environment = environment_of_installed()
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
