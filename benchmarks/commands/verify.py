"""Speed of `verify` compared with `compact` on the same data.

Each round compacts hard links of the data, and then compares the result with the data.  Warm rounds run in one Spark
session, after a first round that is not counted.  Cold rounds run both commands as processes, timed from start to exit,
with compiled kernels; their CPU time leaves out Java.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.commands.timing import timed
from benchmarks.measure import SLOTS, children_seconds, environment_of_installed
from benchmarks.options import NOW_MS, command_options
from benchmarks.race import CONFIGS, Course, linked_copy, make_course, records
from benchmarks.reporting.comparisons import Comparison
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.compact import compact
from sediment.jobs.spark.session import spark_context
from sediment.jobs.verify import VerifyOptions, verify

SETTINGS = {**CONFIGS, "delete.retention.ms": "86400000"}
_SETS = [f"{key}={value}" for key, value in SETTINGS.items()]
_WARM_AIM, _COLD_AIM = 1.0, 2.0
_DATA = (("one partition", 1, 506), ("75 partitions", 75, 126))


def compare(scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of `verify`, warm and cold, for one large and for many small partitions."""
    for title, partitions, megabytes in _DATA:
        if is_quick:
            partitions, megabytes = min(partitions, 3), 3
        rounds = 1 if is_quick else 3
        directories = make_course(
            Course("verify", "", records(megabytes / partitions), partitions), scratch / f"data-{partitions}"
        )
        before = linked_copy(directories, scratch / "before")
        data = f"{megabytes} MB, {title}"
        yield _warm(directories, before, scratch, data, rounds)
        yield _cold(directories, before, scratch, data, rounds)
        shutil.rmtree(before)
        shutil.rmtree(scratch / f"data-{partitions}")


def _comparison(kind: str, data: str, aim: float) -> Comparison:
    return Comparison(f"verify-{kind}-{data}", f"`verify`, {kind}", data, "`compact`", aim, is_speed=False)


def _warm(directories: Sequence[Path], before: Path, scratch: Path, data: str, rounds: int) -> Comparison:
    found = _comparison("warm", data, _WARM_AIM)
    with spark_context(SLOTS, "sediment verify benchmark"):
        for number in range(rounds + 1):
            times = found if number else _comparison("", "", 0)
            after = linked_copy(directories, scratch / "after")
            timed(lambda after=after: _compact(after), times.reference_seconds, times.reference_cpu_seconds)
            timed(lambda after=after: _verify(before, after), times.seconds, times.cpu_seconds)
            shutil.rmtree(after)
    return found


def _cold(directories: Sequence[Path], before: Path, scratch: Path, data: str, rounds: int) -> Comparison:
    found = _comparison("cold", data, _COLD_AIM)
    compacting, verifying = (found.reference_seconds, found.reference_cpu_seconds), (found.seconds, found.cpu_seconds)
    for _ in range(rounds):
        after = linked_copy(directories, scratch / "after")
        timed(
            lambda after=after: _process("compact", after, "--force", f"--master={SLOTS}"),
            *compacting,
            children_seconds,
        )
        timed(lambda after=after: _process("verify", before, after), *verifying, children_seconds)
        shutil.rmtree(after)
    return found


def _options(log_dirs: Sequence[Path]) -> CommonOptions:
    return command_options(log_dirs, _SETS, master=SLOTS)


def _compact(after: Path) -> None:
    assert not compact(_options([after]), CompactOptions(force=True, dry_run=False, from_start=False)).failed


def _verify(before: Path, after: Path) -> None:
    assert not verify(_options([before, after]), VerifyOptions()).failed


def _process(*arguments: object) -> None:
    sets = [f"--set={each}" for each in _SETS]
    command = [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments), f"--now-ms={NOW_MS}", "--json", *sets]
    subprocess.run(command, check=True, capture_output=True, env=environment_of_installed())
