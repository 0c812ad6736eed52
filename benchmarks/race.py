"""Speed of `compact` compared with Kafka 4.2.0's own cleaner: both clean the same data in turn and sync their output.

A third figure is the limit: the time that one thread, or two threads, need just to read the input and write the output
with fsync.

Rules
- Kafka's time covers its cleaner threads alone, with the logs already open.  Sediment's time covers all of `compact`,
  from the lock to the checkpoint.
- Both are warm (page cache, compiled code), except in the cold course, which times whole processes from start to exit.
- Before each timed run, all files are synced, so that no run pays for the writes of another.
- Kafka's offset map is large enough for all keys, so that Kafka needs one round, like Sediment.
- The comparison stops if the results differ in size (compressors may differ a little).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import platformdirs
import psutil
from rich.console import Console

from benchmarks.generate import Shape, write_partition
from benchmarks.measure import environment_of_installed
from benchmarks.options import NOW_MS, command_options
from benchmarks.reporting.race_results import Outcome, Results, fill_page_of_race, terminal_table
from benchmarks.reporting.speed_chart import draw
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.compact import compact
from sediment.jobs.reporting.run_report import CompactionRunReport
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from sediment.segment_io.format import layout as f
from tests.conformance.oracle import KAFKA_VERSION, KafkaOracle, program

MEGABYTE = 1_000_000
CONFIGS = {"cleanup.policy": "compact"}
SETS = [f"{key}={value}" for key, value in CONFIGS.items()]
PAGE = Path(__file__).resolve().parent / "results" / "performance.md"
RESULTS = Path(__file__).resolve().parent / "results" / "race.json"
_WARM_UP_BYTES = 30 * MEGABYTE
_MAP_BYTES = 128 << 20
_JAVA = ("-Xmx6g",)
_CODEC_TOLERANCE = 0.05
_TABLE_WIDTH = 180


@dataclass(frozen=True)
class Course:
    """One data set: `partitions` of `shape`, each with its own seed; the way to measure it, and its targets."""

    name: str
    title: str
    shape: Shape
    partitions: int = 1
    threads: tuple[int, ...] = (1,)
    rounds: int = 3
    target: float | None = None
    target_of_limit: float | None = None
    map_bytes: int = _MAP_BYTES
    is_cold: bool = False

    def scaled(self, scale: float) -> Course:
        """Return a smaller course: fewer small partitions, or smaller large ones; at most three rounds."""
        less = replace(self, title=f"{scale:.0%} of {self.title}", rounds=min(self.rounds, 3))
        if self.partitions > 100:
            return replace(less, partitions=max(2, int(self.partitions * scale)))
        shape = self.shape
        total, keys = int(shape.total_bytes * scale), max(1, int(shape.keys * scale))
        return replace(less, shape=replace(shape, total_bytes=total, keys=keys))

    def small(self) -> Course:
        """Return a course with just enough of the same data for both sides to compile their code."""
        scale = min(1.0, _WARM_UP_BYTES / self.shape.total_bytes)
        return replace(self.scaled(scale), partitions=min(2, self.partitions))


def records(total_megabytes: float, *, distinct: float = 0.1, value_bytes: int = 90, **more: int) -> Shape:
    """Return a shape with records of 116 bytes by default; `distinct` is the fraction with unique keys."""
    total = int(total_megabytes * MEGABYTE)
    keys = max(1, int(total / (value_bytes + 26) * distinct))
    return Shape(total_bytes=total, keys=keys, value_bytes=value_bytes, **more)


# 1390 MB are 12 million records; 12 million draws from 13.7 million keys hit 8 million different keys.
_MANY_KEYS = Shape(total_bytes=1390 * MEGABYTE, keys=13_700_000, value_bytes=90)

COURSES = (
    Course("cold", "8 × 506 MB, cold", records(506), 8, (2,), target=4, is_cold=True),
    Course("first", "8 × 506 MB of 116-byte records", records(506), 8, (1, 2), rounds=5, target=12, target_of_limit=4),
    Course("one", "506 MB, one partition", records(506), rounds=5, target=10),
    Course(
        "kilobyte",
        "2 × 1 GB of 1 KB records",
        records(1000, value_bytes=998),
        2,
        (1, 2),
        target=7,
        target_of_limit=1.5,
    ),
    Course("lz4", "506 MB, lz4", records(506, codec=f.CODEC_LZ4), target=8),
    Course("zstd", "506 MB, zstd", records(506, codec=f.CODEC_ZSTD), target=5),
    Course("snappy", "506 MB, snappy", records(506, codec=f.CODEC_SNAPPY), target=10),
    Course("gzip", "506 MB, gzip", records(506, codec=f.CODEC_GZIP), target=8),
    Course("single", "300 MB, batches of one record", records(300, batch_records=1), target=5),
    Course("transactional", "506 MB, transactional", records(506, transaction_batches=10), target=8),
    Course("keys", "1.4 GB with 8M distinct keys", _MANY_KEYS, rounds=5, target=8, map_bytes=256 << 20),
    Course("small", "2,000 partitions of 100 KB", records(0.1), 2000, (2,), target=4),
    Course("large", "10 GB in one partition", records(10_000), target=1, map_bytes=256 << 20),
)
QUICK = ("first", "one", "kilobyte", "lz4", "single", "transactional", "keys")
_QUICK_SCALE = 0.35


def make_course(course: Course, folder: Path) -> list[Path]:
    """Write the partitions of a course into one log directory; return their directories."""
    directories = []
    for number in range(course.partitions):
        directory = folder / f"bench-{number}"
        write_partition(directory, replace(course.shape, seed=number + 1))
        directories.append(directory)
    return directories


def linked_copy(directories: Sequence[Path], target: Path) -> Path:
    """Create a log directory of hard links; neither cleaner changes an existing file."""
    for directory in directories:
        (target / directory.name).mkdir(parents=True)
        for file in directory.iterdir():
            os.link(file, target / directory.name / file.name)
    (target / ".kafka_cleanshutdown").touch()
    return target


def copied(directories: Sequence[Path], target: Path) -> Path:
    """Create a log directory of real copies, whose replaced files the filesystem has to free."""
    for directory in directories:
        shutil.copytree(directory, target / directory.name)
    (target / ".kafka_cleanshutdown").touch()
    return target


# ---------------------------------------------------------------------------------------------------------- timed runs
def time_kafka(course: Course, directories: Sequence[Path], scratch: Path, oracle: KafkaOracle, threads: int) -> Any:
    """Return the seconds of Kafka's cleaner, and its result."""
    os.sync()
    (timed,) = oracle.clean_timed(
        directories,
        scratch,
        now_ms=NOW_MS,
        configs=CONFIGS,
        threads=threads,
        repeat=1,
        map_bytes=course.map_bytes,
    )
    return timed


def time_ours(directories: Sequence[Path], scratch: Path) -> tuple[float, CompactionRunReport]:
    """Return the seconds of one `compact` call in a warm session, and its report."""
    log_dir = linked_copy(directories, scratch / "ours")
    options = command_options([log_dir], SETS)
    os.sync()
    started = time.perf_counter()
    report = compact(options, CompactOptions(force=True, dry_run=False, from_start=False))
    seconds = time.perf_counter() - started
    assert not report.failed, next(p for p in report.partitions if p.status != "compacted")
    shutil.rmtree(log_dir)
    return seconds, report


def time_process(directories: Sequence[Path], scratch: Path, environment: dict[str, str]) -> tuple[float, int]:
    """Return the seconds of a whole process on real copies, and the bytes of its result."""
    log_dir = copied(directories, scratch / "ours")
    command = [sys.executable, "-m", "sediment.jobs.cli", "compact", str(log_dir), "--force", "--json", "--quiet"]
    sets = [f"--set={one}" for one in SETS]
    command += [f"--now-ms={NOW_MS}", "--master=local[2]", *sets]
    os.sync()
    started = time.perf_counter()
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - started
    shutil.rmtree(log_dir)
    return seconds, sum(partition["bytes_after"] for partition in json.loads(finished.stdout)["partitions"])


def time_limit(directories: Sequence[Path], written: int, scratch: Path, threads: int) -> float:
    """Return the seconds to read the logs, and to write and sync as many bytes as the result has."""

    def share(number: int) -> None:
        buffer = memoryview(bytearray(1 << 20))
        for directory in directories[number::threads]:
            for log in directory.glob("*.log"):
                with log.open("rb", buffering=0) as source:
                    while source.readinto(buffer):
                        pass
        with (scratch / f"limit-{number}").open("wb", buffering=0) as sink:
            for _ in range(-(-written // threads // len(buffer))):
                sink.write(buffer)
            os.fsync(sink.fileno())

    os.sync()
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(share, range(threads)))
        seconds = time.perf_counter() - started
    for number in range(threads):
        (scratch / f"limit-{number}").unlink()
    return seconds


# -------------------------------------------------------------------------------------------------------------- courses
class Race:
    """Courses of one run, with data in `scratch`; warm courses share one session of each side."""

    def __init__(self, scratch: Path, stack: ExitStack, rounds: int | None) -> None:
        self._scratch = scratch
        self._stack = stack
        self._rounds = rounds
        self._oracle: KafkaOracle | None = None

    def run(self, course: Course, directories: Sequence[Path]) -> list[Outcome]:
        """Return the outcomes of a course: one, or two of a cold course."""
        return self._cold(course, directories) if course.is_cold else [self._warm(course, directories)]

    def _warm(self, course: Course, directories: Sequence[Path]) -> Outcome:
        oracle = self._started()
        few = make_course(course.small(), self._scratch / "warm-up")
        for _ in range(2):
            time_kafka(course, few, self._scratch, oracle, 1)
            time_ours(few, self._scratch)
        shutil.rmtree(self._scratch / "warm-up")
        outcome = _outcome(course, directories)
        written = 0
        for _ in range(self._rounds or course.rounds):
            for threads in course.threads:
                timed = time_kafka(course, directories, self._scratch, oracle, threads)
                outcome.kafka[threads].append(timed.seconds)
            seconds, report = time_ours(directories, self._scratch)
            outcome.sediment.append(seconds)
            outcome.stages.append(dict(report.seconds_by_stage))
            written = sum(partition.bytes_after for partition in report.partitions)
            _check_same(course, timed.bytes_after, written)
            for threads in course.threads:
                outcome.limit[threads].append(time_limit(directories, written, self._scratch, threads))
        return replace(outcome, bytes_after=written)

    def _started(self) -> KafkaOracle:
        if self._oracle is None:
            self._oracle = self._stack.enter_context(KafkaOracle(java_options=_JAVA))
            self._stack.enter_context(spark_context("local[2]", "sediment race"))
        return self._oracle

    def _cold(self, course: Course, directories: Sequence[Path]) -> list[Outcome]:
        """Time one process per run; Sediment without and with the archive of `sediment setup warm-up`."""
        kernels = os.environ.get(CACHE_VARIABLE) or str(platformdirs.user_cache_path("sediment"))
        bare, archived = (
            {**environment_of_installed(), CACHE_VARIABLE: kernels, "XDG_CACHE_HOME": str(self._scratch / folder)}
            for folder in ("bare-cache", "archive-cache")
        )
        command = [sys.executable, "-m", "sediment.jobs.cli", "setup", "warm-up"]
        subprocess.run(command, check=True, capture_output=True, env=archived)
        outcome = _outcome(course, directories)
        with_archive = []
        written = 0
        for _ in range(self._rounds or course.rounds):
            for threads in course.threads:
                os.sync()
                started = time.perf_counter()
                with KafkaOracle(java_options=_JAVA) as oracle:
                    time_kafka(course, directories, self._scratch, oracle, threads)
                outcome.kafka[threads].append(time.perf_counter() - started)
            seconds, written = time_process(directories, self._scratch, bare)
            outcome.sediment.append(seconds)
            seconds, _ = time_process(directories, self._scratch, archived)
            with_archive.append(seconds)
            for threads in course.threads:
                outcome.limit[threads].append(time_limit(directories, written, self._scratch, threads))
        outcome = replace(outcome, bytes_after=written)
        return [
            outcome,
            replace(
                outcome,
                course=f"{course.name}-archive",
                title=f"{course.title}, after `sediment setup warm-up`",
                sediment=with_archive,
            ),
        ]


def _outcome(course: Course, directories: Sequence[Path]) -> Outcome:
    return Outcome(
        course=course.name,
        title=course.title,
        log_bytes=sum(log.stat().st_size for directory in directories for log in directory.glob("*.log")),
        partitions=len(directories),
        bytes_after=0,
        kafka={threads: [] for threads in course.threads},
        sediment=[],
        limit={threads: [] for threads in course.threads},
        target=course.target,
        target_of_limit=course.target_of_limit,
    )


def _check_same(course: Course, by_kafka: int, by_us: int) -> None:
    tolerance = _CODEC_TOLERANCE if course.shape.codec else 0
    if abs(by_kafka - by_us) > tolerance * by_kafka:
        raise SystemExit(f"{course.name}: Kafka's cleaner left {by_kafka} bytes and Sediment {by_us}")


def machine(scratch: Path) -> dict[str, str]:
    """Return the properties of the machine that the figures depend on."""
    java = subprocess.run([program("java"), "-version"], capture_output=True, text=True, check=True).stderr
    partitions = psutil.disk_partitions(all=True)
    mounts = [there for there in partitions if scratch.is_relative_to(there.mountpoint)]
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "filesystem": max(mounts, key=lambda there: len(there.mountpoint)).fstype if mounts else "unknown",
        "Linux": ".".join(platform.release().split(".")[:2]),
        "Kafka": KAFKA_VERSION,
        "Java": java.split('"')[1],
        "Spark": version("pyspark"),
        "Python": platform.python_version(),
        "numba": version("numba"),
    }


def main() -> None:
    """Run the courses and print the table, or write earlier results into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="measure the main ratios on less data, in under three minutes"
    )
    parser.add_argument(
        "--course", action="append", choices=[course.name for course in COURSES], help="run only this course"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds (default: that of each course)")
    parser.add_argument("--scale", type=float, default=1.0, help="amount of data, as a fraction of the default")
    parser.add_argument("--scratch", type=Path, help="directory for the data, up to 14 GB (default: $TMPDIR)")
    parser.add_argument("--results", type=Path, help="file for the results, which keeps those of earlier runs")
    parser.add_argument("--report", action="store_true", help=f"write the results into {PAGE.name} without a new run")
    given = parser.parse_args()
    if given.report:
        fill_page_of_race(PAGE, Results.read(given.results or RESULTS))
        draw()
        return
    wanted = given.course or (QUICK if given.quick else [course.name for course in COURSES])
    scale = given.scale * (_QUICK_SCALE if given.quick else 1)
    courses = [course if scale == 1 else course.scaled(scale) for course in COURSES if course.name in wanted]
    kept = Results() if given.results is None else Results.read(given.results)
    run = Results()
    with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-race-") as name, ExitStack() as stack:
        scratch = Path(name)
        run.machine = kept.machine = machine(scratch.resolve())
        race = Race(scratch, stack, given.rounds)
        directories: list[Path] = []
        for course, following in zip(courses, [*courses[1:], None], strict=True):
            directories = directories or make_course(course, scratch / "data")
            for outcome in race.run(course, directories):
                for results in (run, kept):
                    results.add(outcome)
                if given.results is not None:
                    kept.write(given.results)
                print(f"{outcome.title}: {statistics.median(outcome.ratio()):.1f}", file=sys.stderr, flush=True)
            if following is None or (following.shape, following.partitions) != (course.shape, course.partitions):
                shutil.rmtree(scratch / "data")
                directories = []
    Console(width=_TABLE_WIDTH).print(terminal_table(run.outcomes))


if __name__ == "__main__":
    main()
