"""Time and memory of cleaning against the size of the log, the number of keys and the number of partitions.

Every point is a `compact` of its own in a warm Spark session, with all its syncs; peak memory is that of the largest
Python worker, from the kernel's own figures.  Results are appended to a file of JSON lines, from which `--plot` draws.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.generate import START_MS, Shape, write_partition
from sediment.compaction.strategy import Strategy
from sediment.jobs.cleaning import CompactOptions
from sediment.jobs.compact import compact
from sediment.jobs.options import CommonOptions
from sediment.jobs.session import spark_context
from sediment.jobs.settings import Settings

GIGABYTE = 1_000_000_000
NOW_MS = START_MS + 10**9


@dataclass(frozen=True)
class Point:
    """One measurement.  `sweep` names the curve; sizes in bytes, times in seconds."""

    sweep: str
    strategy: str
    partitions: int
    keys: int
    value_bytes: int
    log_bytes: int
    seconds: float = 0.0
    living_keys: int = 0
    bytes_after: int = 0
    peak_worker_bytes: int = 0


def points(scale: float) -> Iterator[Point]:
    """All curves; `scale` shrinks sizes and keys."""
    giga = int(GIGABYTE * scale)
    for strategy in ("whole", "split"):
        for size in (1, 2, 4, 8):
            yield Point("size", strategy, 1, int(1_000_000 * scale), 90, size * giga)
    for strategy in ("whole", "split"):
        for keys in (10**5, 10**6, 10**7):
            yield Point("keys", strategy, 1, int(keys * scale), 90, 2 * giga)
    for strategy in ("whole", "split"):
        # A log of twice as many records as keys: small values keep it within a few gigabytes.
        yield Point("keys", strategy, 1, int(10**8 * scale), 4, int(2 * 10**8 * 30 * scale))
    for partitions in (1, 10, 100):
        yield Point("partitions", "whole", partitions, int(100_000 * scale), 90, giga)
    for partitions in (1, 2000):
        yield Point("small", "whole", partitions, 800, 90, int(200_000_000 * scale))


def make(point: Point, scratch: Path) -> Path:
    """Write the log directory of a point."""
    log_dir = scratch / "log"
    shape = Shape(
        total_bytes=point.log_bytes // point.partitions,
        keys=max(1, point.keys // point.partitions) if point.sweep != "small" else point.keys,
        value_bytes=point.value_bytes,
        segment_bytes=256 << 20,
    )
    for number in range(point.partitions):
        write_partition(log_dir / f"bench-{number}", replace(shape, seed=number + 1))
    (log_dir / ".kafka_cleanshutdown").touch()
    return log_dir


def measure(point: Point, log_dir: Path, repeat: int) -> Point:
    """The best of `repeat` runs over links to the same files."""
    best = None
    for number in range(repeat):
        copy = log_dir.with_name(f"copy-{number}")
        for directory in log_dir.iterdir():
            if directory.is_dir():
                (copy / directory.name).mkdir(parents=True)
                for file in directory.iterdir():
                    os.link(file, copy / directory.name / file.name)
        (copy / ".kafka_cleanshutdown").touch()
        options = CommonOptions(
            log_dirs=(copy,),
            partitions=(),
            settings=Settings.load(None, ["cleanup.policy=compact"]),
            now_ms=NOW_MS,
            as_json=True,
            master=None,
            quiet=True,
        )
        started = time.perf_counter()
        own = CompactOptions(force=True, dry_run=False, from_start=False, strategy=Strategy(point.strategy))
        report = compact(options, own)
        seconds = time.perf_counter() - started
        assert not report.failed(), report.partitions[0]
        assert {partition.strategy for partition in report.partitions} == {point.strategy}
        measured = replace(
            point,
            seconds=seconds,
            living_keys=sum(partition.messages_written for partition in report.partitions),
            bytes_after=sum(partition.bytes_after for partition in report.partitions),
            peak_worker_bytes=peak_of_workers(),
        )
        best = measured if best is None or measured.seconds < best.seconds else best
        shutil.rmtree(copy)
    assert best is not None
    return best


def peak_of_workers() -> int:
    """The largest VmHWM of the Python processes below this one."""
    peaks = [0]
    for process in psutil.Process().children(recursive=True):
        if "java" in process.name():
            continue
        status = Path(f"/proc/{process.pid}/status").read_text()
        peaks.extend(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return max(peaks)


def plot(results: list[Point], folder: Path) -> None:
    """Draw the curves as SVG files."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "sediment"
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for sweep, across, label in (
        ("size", lambda point: point.log_bytes / GIGABYTE, "GB of log, 1M keys"),
        ("keys", lambda point: point.living_keys, "keys that live"),
        ("partitions", lambda point: point.partitions, "partitions, 1 GB together"),
    ):
        figure, (speed, memory) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        for strategy in ("whole", "split"):
            curve = sorted(
                (point for point in results if (point.sweep, point.strategy) == (sweep, strategy)), key=across
            )
            if curve:
                xs = [across(point) for point in curve]
                speed.plot(xs, [p.seconds / (p.log_bytes / GIGABYTE) for p in curve], "o-", label=strategy)
                memory.plot(xs, [p.peak_worker_bytes / 1e6 for p in curve], "o-", label=strategy)
        for axes, name in ((speed, "seconds per GB"), (memory, "peak of a worker, MB")):
            axes.set_xlabel(label)
            axes.set_ylabel(name)
            axes.set_xscale("log")
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
        figure.savefig(folder / f"scale-{sweep}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """Measure what is not in the results yet, then plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="JSON lines; points that are there are not measured again")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", help="curves whose name contains this")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="where the data goes (default: a new temporary directory)")
    parser.add_argument("--plot", type=Path, help="a folder for the plots")
    given = parser.parse_args()
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    results = [Point(**json.loads(line)) for line in lines]
    known = {identity(point) for point in results}
    for point in points(given.scale):
        if identity(point) in known or (given.only and given.only not in point.sweep):
            continue
        # A session each, so that the peak of its workers is that of the point.
        with (
            tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-scale-") as scratch,
            spark_context("local[2]", "sediment scale"),
        ):
            measured = measure(point, make(point, Path(scratch)), given.repeat)
        results.append(measured)
        print(json.dumps(asdict(measured)), flush=True)
        with given.results.open("a") as sink:
            sink.write(json.dumps(asdict(measured)) + "\n")
    if given.plot:
        plot(results, given.plot)


def identity(point: Point) -> tuple[object, ...]:
    return (point.sweep, point.strategy, point.partitions, point.keys, point.value_bytes, point.log_bytes)


if __name__ == "__main__":
    main()
