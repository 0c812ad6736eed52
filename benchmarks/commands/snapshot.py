"""Speed of `snapshot`: the first build of a table, and refreshes after a few records were appended.

    build            all partitions into a new table; the reference is the time at 100 MB of log per second
    refresh          a batch is appended to one partition; the reference is the same refresh of a table of a quarter of
                     the partitions.  Both touch the same files, so both should take the same time.

All runs are warm: they share one Spark session, and a first round is not counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.commands.timing import timed
from benchmarks.generate import append_batch
from benchmarks.measure import MEGABYTE, SLOTS
from benchmarks.options import NOW_MS, command_options
from benchmarks.race import Course, linked_copy, make_course, records
from benchmarks.reporting.comparisons import Comparison
from sediment.jobs.delta_lake.session import delta_session
from sediment.jobs.snapshot import SnapshotOptions, refresh
from sediment.jobs.snapshotting.report import SnapshotReport

SETS = ("cleanup.policy=compact", "delete.retention.ms=86400000")
_BUILD_RATE = 100 * MEGABYTE
_PARTITIONS, _MEGABYTES, _ROUNDS, _PART = 32, 16, 3, 4
_MOST_OF_SMALL = 1.25
_APPENDED = 200


def compare(scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of `snapshot`."""
    megabytes, rounds = (1, 1) if is_quick else (_MEGABYTES, _ROUNDS)
    directories = make_course(Course("snapshot", "", records(megabytes), _PARTITIONS), scratch / "data")
    with delta_session(SLOTS, "sediment snapshot benchmark") as spark:
        yield _build(spark, directories, scratch, f"{_PARTITIONS} × {megabytes} MB", rounds)
        yield _refresh(spark, directories, scratch, megabytes, rounds, has_vectors=False)
        yield _refresh(spark, directories, scratch, megabytes, rounds, has_vectors=True)
    shutil.rmtree(scratch / "data")


def _snapshot(spark: Any, log_dir: Path, table: Path, *, has_vectors: bool = False) -> SnapshotReport:
    own = SnapshotOptions(str(table), enable_deletion_vectors=has_vectors)
    report = refresh(command_options([log_dir], SETS), own, None, spark)
    assert not report.failed, report.failures()
    return report


def _build(spark: Any, directories: Sequence[Path], scratch: Path, data: str, rounds: int) -> Comparison:
    found = Comparison("snapshot-build", "`snapshot`, first build", data, "100 MB/s", 1, is_speed=True)
    size_bytes = sum(log.stat().st_size for directory in directories for log in directory.glob("*.log"))
    log_dir, table = linked_copy(directories, scratch / "logs"), scratch / "table"
    for number in range(rounds + 1):
        times = found if number else replace(found, seconds=[], cpu_seconds=[])
        timed(lambda: _snapshot(spark, log_dir, table), times.seconds, times.cpu_seconds)
        shutil.rmtree(table)
    shutil.rmtree(log_dir)
    found.reference_seconds.extend([size_bytes / _BUILD_RATE] * rounds)
    return found


class _Table:
    """A log directory whose first partition may be appended to, and its table."""

    def __init__(self, spark: Any, directories: Sequence[Path], folder: Path, *, has_vectors: bool) -> None:
        self._spark = spark
        self._table = folder / "table"
        self._log_dir = linked_copy(directories[1:], folder / "logs")
        self._first = shutil.copytree(directories[0], self._log_dir / directories[0].name)
        _snapshot(spark, self._log_dir, self._table, has_vectors=has_vectors)

    def append(self, number: int) -> None:
        """Append a batch; every `number` stands for other keys of the table."""
        keys = [b"k%015d" % (number + 7 * key) for key in range(_APPENDED)]
        append_batch(self._first, keys, value_bytes=90, now_ms=NOW_MS)

    def refresh(self) -> None:
        """Refresh the table from the records of the last append."""
        report = _snapshot(self._spark, self._log_dir, self._table)
        assert sum(row.messages_read for row in report.partitions) == _APPENDED, report.partitions


def _refresh(
    spark: Any, directories: Sequence[Path], scratch: Path, megabytes: int, rounds: int, *, has_vectors: bool
) -> Comparison:
    few = len(directories) // _PART
    found = Comparison(
        f"snapshot-refresh{'-vectors' if has_vectors else ''}",
        f"`snapshot`, refresh of one partition{', deletion vectors' if has_vectors else ''}",
        f"{len(directories)} × {megabytes} MB",
        f"{few} × {megabytes} MB",
        _MOST_OF_SMALL,
        is_speed=False,
    )
    small = _Table(spark, directories[:few], scratch / "small", has_vectors=has_vectors)
    large = _Table(spark, directories, scratch / "large", has_vectors=has_vectors)
    for number in range(rounds + 1):
        times = found if number else Comparison("", "", "", "", None, is_speed=False)
        small.append(number)
        timed(small.refresh, times.reference_seconds, times.reference_cpu_seconds)
        large.append(number)
        timed(large.refresh, times.seconds, times.cpu_seconds)
    for name in ("small", "large"):
        shutil.rmtree(scratch / name)
    return found
