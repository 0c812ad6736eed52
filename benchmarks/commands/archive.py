"""Speed of `expire --archive`: all closed segments go into a new archive, and are then deleted.

The reference is the time at 100 MB of log per second.  All runs are warm: they share one Spark session, and a first
round is not counted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.commands.timing import timed
from benchmarks.measure import MEGABYTE, SLOTS
from benchmarks.options import command_options
from benchmarks.race import Course, linked_copy, make_course, records
from benchmarks.reporting.comparisons import Comparison
from sediment.jobs.expire import ExpireOptions, expire
from sediment.jobs.expiring.report import ExpiryRunReport
from sediment.jobs.spark.session import spark_context

SETS = ("cleanup.policy=delete", "retention.ms=1000", "retention.bytes=-1")
_RATE = 100 * MEGABYTE
_PARTITIONS, _MEGABYTES, _ROUNDS = 8, 64, 3


def compare(scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparison of `expire --archive`."""
    megabytes, rounds = (1, 1) if is_quick else (_MEGABYTES, _ROUNDS)
    directories = make_course(Course("archive", "", records(megabytes), _PARTITIONS), scratch / "data")
    data = f"{_PARTITIONS} × {megabytes} MB"
    found = Comparison("archive", "`expire --archive`", data, "100 MB/s", 1, is_speed=True)
    archive = scratch / "archive"
    with spark_context(SLOTS, "sediment archive benchmark"):
        for number in range(rounds + 1):
            times = found if number else Comparison("", "", "", "", None, is_speed=True)
            log_dir = linked_copy(directories, scratch / "logs")
            report = timed(lambda d=log_dir: _expire(d, archive), times.seconds, times.cpu_seconds)
            archived_bytes = sum(row.bytes_before - row.bytes_after for row in report.partitions)
            if number:
                found.reference_seconds.append(archived_bytes / _RATE)
            shutil.rmtree(log_dir)
            shutil.rmtree(archive)
    shutil.rmtree(scratch / "data")
    yield found


def _expire(log_dir: Path, archive: Path) -> ExpiryRunReport:
    report = expire(command_options([log_dir], SETS), ExpireOptions(archive=str(archive)))
    assert not report.failed, report.failures()
    assert all(row.messages_archived for row in report.partitions), report.partitions
    return report
