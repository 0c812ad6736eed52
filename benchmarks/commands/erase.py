"""Speed of `erase` compared with `compact`; both run alternately on the same data in one Spark session.

    erase     turn the records of 1,000 keys into tombstones: find the records, rewrite their segments, commit
    compact   clean the log, timed from the lock to the checkpoint as in `benchmarks.race`

Both work on links to the same files, are warm, and sync what they write.  Before each timed run, all files are synced.
The exit status is 1 if an erasure takes more than `--bar` times as long as a compaction, in the median of all rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from benchmarks.options import command_options
from benchmarks.race import SETS, Course, linked_copy, make_course, records, time_ours
from sediment.jobs.erase import erase
from sediment.jobs.erasing.options import EraseOptions
from sediment.jobs.spark.session import spark_context

_ERASED_KEYS = 1000
_MEGABYTES, _PARTITIONS = 506, 8


def write_keys(course: Course, file: Path) -> Path:
    """Write the keys to erase, spread evenly over those of the course, as `write_partition` writes them."""
    step = max(1, course.shape.keys // _ERASED_KEYS)
    keys = range(0, min(course.shape.keys, step * _ERASED_KEYS), step)
    file.write_text("".join(f"k{key:015d}\n" for key in keys))
    return file


def time_erase(directories: Sequence[Path], keys_file: Path, scratch: Path) -> tuple[float, int]:
    """Return the seconds of one `erase` call in a warm session, and the number of erased records."""
    log_dir = linked_copy(directories, scratch / "erased")
    options = command_options([log_dir], SETS)
    os.sync()
    started = time.perf_counter()
    report = erase(options, EraseOptions(keys_file=keys_file))
    seconds = time.perf_counter() - started
    assert not report.failed, report.failures()
    shutil.rmtree(log_dir)
    return seconds, sum(partition.records_erased for partition in report.partitions)


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=_MEGABYTES, help="size of each partition")
    parser.add_argument("--partitions", type=int, default=_PARTITIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bar", type=float, default=1.5, help="seconds of an erasure for each of a compaction")
    parser.add_argument("--scratch", type=Path, help="directory for the data, up to 9 GB (default: $TMPDIR)")
    given = parser.parse_args()
    title = f"{given.partitions} × {given.megabytes:g} MB"
    course = Course("erase", title, records(given.megabytes), given.partitions)
    with (
        tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-erase-") as name,
        spark_context("local[2]", "sediment erase benchmark"),
    ):
        scratch = Path(name)
        keys_file = write_keys(course, scratch / "keys.txt")
        few = make_course(course.small(), scratch / "warm-up")
        time_ours(few, scratch)
        time_erase(few, keys_file, scratch)
        directories = make_course(course, scratch / "data")
        compacted: list[float] = []
        erased: list[float] = []
        for _ in range(given.rounds):
            compacted.append(time_ours(directories, scratch)[0])
            seconds, erased_records = time_erase(directories, keys_file, scratch)
            erased.append(seconds)
    assert erased_records, "the keys are not those of the data"
    ratio = statistics.median(one / other for one, other in zip(erased, compacted, strict=True))
    table = Table("", "seconds, each round", "median")
    for side, found in {"compact": compacted, "erase": erased}.items():
        table.add_row(side, ", ".join(f"{seconds:.2f}" for seconds in found), f"{statistics.median(found):.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"{title}: {erased_records:,} records of {_ERASED_KEYS:,} keys erased in {ratio:.2f} times the time of a "
        f"compaction; the bar is {given.bar:g}"
    )
    return int(ratio > given.bar)


if __name__ == "__main__":
    raise SystemExit(main())
