"""The race: Kafka 4.2.0's own cleaner against `compact` on the same data, in the same run, in turn, outputs synced.

Beside both, the limit: the input read and the output written with fsync, and nothing else.  Times are warm (page cache,
JIT, compiled kernels), but for the cold course, which times whole processes.  Ratios are Kafka's seconds over ours, in
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import START_MS, Shape, write_partition
from sediment.jobs.cleaning import CompactOptions
from sediment.jobs.compact import compact
from sediment.jobs.options import CommonOptions
from sediment.jobs.session import spark_context
from sediment.jobs.settings import Settings
from sediment.segment_io import format as f
from tests.conformance.oracle import KafkaOracle

MEGABYTE = 1_000_000
NOW_MS = START_MS + 10**9
CONFIGS = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class Course:
    """One data set: `partitions` of `shape`, with seeds of their own."""

    name: str
    shape: Shape
    partitions: int = 1
    kafka_threads: int = 1
    repeat: int | None = None


def records(total_megabytes: float, *, distinct: float = 0.1, value_bytes: int = 90, **more: int) -> Shape:
    """Records of 116 bytes unless said, `distinct` of them with keys of their own."""
    total = int(total_megabytes * MEGABYTE)
    keys = max(1, int(total / (value_bytes + 26) * distinct))
    return Shape(total_bytes=total, keys=keys, value_bytes=value_bytes, **more)


COURSES = (
    Course("8 × 506 MB, 116 B records", records(506), partitions=8, kafka_threads=2),
    Course("506 MB, 116 B records", records(506)),
    Course("2 × 1 GB, 1 KB records", records(1000, value_bytes=998), partitions=2, kafka_threads=2),
    Course("lz4", records(100, codec=f.CODEC_LZ4)),
    Course("zstd", records(60, codec=f.CODEC_ZSTD)),
    Course("snappy", records(100, codec=f.CODEC_SNAPPY)),
    Course("gzip", records(40, codec=f.CODEC_GZIP)),
    Course("single-record batches", records(300, batch_records=1)),
    Course("transactional", records(506, transaction_batches=10)),
    Course("8M distinct keys", records(1100, distinct=0.95)),
    Course("2,000 partitions of 100 KB", records(0.1), partitions=2000, kafka_threads=2),
    Course("10 GB, 116 B records", records(10_000), repeat=1),
)
COLD = Course("8 × 506 MB, cold: whole processes", records(506), partitions=8, kafka_threads=2)
QUICK = ("506 MB, 116 B records", "lz4", "single-record batches", "transactional")


def make_course(course: Course, scratch: Path) -> list[Path]:
    """Write the partitions of a course; their directories, one log directory for all."""
    directories = []
    for number in range(course.partitions):
        directory = scratch / "data" / f"bench-{number}"
        write_partition(directory, replace(course.shape, seed=number + 1))
        directories.append(directory)
    return directories


def linked_copy(directories: Sequence[Path], target: Path) -> Path:
    """A log directory of hard links: neither cleaner changes an existing file."""
    for directory in directories:
        (target / directory.name).mkdir(parents=True)
        for file in directory.iterdir():
            os.link(file, target / directory.name / file.name)
    (target / ".kafka_cleanshutdown").touch()
    return target


def time_ours(directories: Sequence[Path], scratch: Path) -> tuple[float, int]:
    """Seconds of one `compact` call in a warm session, and the bytes it wrote."""
    log_dir = linked_copy(directories, scratch / "ours")
    options = CommonOptions(
        log_dirs=(log_dir,),
        partitions=(),
        settings=Settings.load(None, [f"{key}={value}" for key, value in CONFIGS.items()]),
        now_ms=NOW_MS,
        as_json=True,
        master=None,
        quiet=True,
    )
    started = time.perf_counter()
    report = compact(options, CompactOptions(force=True, dry_run=False, from_start=False))
    seconds = time.perf_counter() - started
    assert not report.failed(), next(p for p in report.partitions if p.status != "compacted")
    shutil.rmtree(log_dir)
    return seconds, sum(partition.bytes_after for partition in report.partitions)


def time_cold(directories: Sequence[Path], scratch: Path) -> tuple[float, float, int]:
    """Seconds of a whole process of Kafka's cleaner, of one of `sediment`, and the bytes that the latter wrote."""
    started = time.perf_counter()
    with KafkaOracle(java_options=("-Xmx6g",)) as oracle:
        oracle.clean_timed(directories, scratch, now_ms=NOW_MS, configs=CONFIGS, threads=2, repeat=1)
    kafka = time.perf_counter() - started
    log_dir = linked_copy(directories, scratch / "ours")
    command = [sys.executable, "-m", "sediment.jobs.cli", "compact", str(log_dir), "--force", "--json", "--quiet"]
    sets = [f"--set={key}={value}" for key, value in CONFIGS.items()]
    started = time.perf_counter()
    finished = subprocess.run(
        [*command, f"--now-ms={NOW_MS}", "--master=local[2]", *sets], check=True, capture_output=True, text=True
    )
    ours = time.perf_counter() - started
    shutil.rmtree(log_dir)
    return kafka, ours, sum(partition["bytes_after"] for partition in json.loads(finished.stdout)["partitions"])


def time_limit(directories: Sequence[Path], written: int, scratch: Path) -> float:
    """Seconds to read the logs and to write and sync as many bytes as the result has."""
    buffer = memoryview(bytearray(1 << 20))
    started = time.perf_counter()
    for directory in directories:
        for log in directory.glob("*.log"):
            with log.open("rb", buffering=0) as source:
                while source.readinto(buffer):
                    pass
    target = scratch / "limit"
    with target.open("wb", buffering=0) as sink:
        for _ in range(-(-written // len(buffer))):
            sink.write(buffer)
        os.fsync(sink.fileno())
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def race(course: Course, oracle: KafkaOracle, scratch: Path, repeat: int) -> tuple[str, ...]:
    """Run a course `repeat` times, alternating, after one warm-up of ours; a table row."""
    directories = make_course(course, scratch)
    time_ours(directories, scratch)
    kafka, ours, limit = [], [], []
    for _ in range(course.repeat or repeat):
        (seconds,) = oracle.clean_timed(
            directories, scratch, now_ms=NOW_MS, configs=CONFIGS, threads=course.kafka_threads, repeat=1
        )
        kafka.append(seconds)
        seconds, written = time_ours(directories, scratch)
        ours.append(seconds)
        limit.append(time_limit(directories, written, scratch))
    return finish(course, directories, scratch, kafka, ours, limit)


def race_cold(scratch: Path, repeat: int) -> tuple[str, ...]:
    """The same with a process of its own for each run, from its start to its exit."""
    directories = make_course(COLD, scratch)
    kafka, ours, limit = [], [], []
    for _ in range(repeat):
        theirs, mine, written = time_cold(directories, scratch)
        kafka.append(theirs)
        ours.append(mine)
        limit.append(time_limit(directories, written, scratch))
    return finish(COLD, directories, scratch, kafka, ours, limit)


def finish(
    course: Course,
    directories: Sequence[Path],
    scratch: Path,
    kafka: list[float],
    ours: list[float],
    limit: list[float],
) -> tuple[str, ...]:
    """Remove the data of a course; its table row."""
    total = sum(log.stat().st_size for directory in directories for log in directory.glob("*.log"))
    shutil.rmtree(scratch / "data")
    ratios = [theirs / mine for theirs, mine in zip(kafka, ours, strict=True)]
    print(f"{course.name}: {statistics.median(ratios):.1f}", file=sys.stderr)
    return (
        course.name,
        f"{total / MEGABYTE:.0f}",
        f"{statistics.median(kafka):.2f} ({course.kafka_threads})",
        f"{statistics.median(ours):.2f}",
        f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
        f"{statistics.median(limit):.2f}",
        f"{statistics.median(ours) / statistics.median(limit):.1f}",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the main ratios only, in under three minutes")
    parser.add_argument("--course", action="append", help="only courses whose name contains this")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where the data goes (default: a new temporary directory)")
    given = parser.parse_args()
    wanted = QUICK if given.quick else tuple(course.name for course in (COLD, *COURSES))
    table = Table("data", "MB", "Kafka s (threads)", "Sediment s", "ratio", "limit s", "ours / limit")

    def runs(course: Course) -> bool:
        return course.name in wanted and (not given.course or any(part in course.name for part in given.course))

    with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-race-") as name:
        scratch = Path(name)
        if runs(COLD):
            table.add_row(*race_cold(scratch, given.repeat))
        with KafkaOracle(java_options=("-Xmx6g",)) as oracle, spark_context("local[2]", "sediment race"):
            for course in filter(runs, COURSES):
                table.add_row(*race(course, oracle, scratch, given.repeat))
    Console().print(table)


if __name__ == "__main__":
    main()
