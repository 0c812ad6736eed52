"""Time and memory of cleaning, by size of the log, number of keys and number of partitions.

    size         one key per ten records, 1 to 8 GB, `whole` and `split` in turn
    keys         every key once, then random keys: 10⁵ to 10⁷ in 2 GB, 10⁸ with small values
    partitions   1, 10 and 100 partitions with a total of 1 GB
    small        2,000 partitions of 100 KB, and one partition of the same total

Every point is several runs of `compact` in a warm Spark session on two slots, with all syncs.  Each log has its own
session.  A smaller log is a prefix of a larger one.  The page and the plots are made from a file of results; points in
that file are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import GROWING, ONCE_FIRST, Shape, write_partition
from benchmarks.measure import (
    GIGABYTE,
    MEGABYTE,
    RESULTS,
    SLOTS,
    Run,
    machine,
    run_compact,
    spread,
)
from benchmarks.options import NOW_MS
from benchmarks.reporting.pages import fill_page, markdown_table
from sediment.compaction.clean_log import SplitWork, collect_split_keys
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import CleaningPlan, plan_cleaning
from sediment.compaction.partition_splits import cut_into_splits
from sediment.compaction.strategy import Strategy
from sediment.jobs.cleaning.splits import SPLITS_PER_SLOT
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, parse_segment_file, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view

WHOLE, SPLIT = Strategy.WHOLE.value, Strategy.SPLIT.value
PAGE = RESULTS / "scale.md"
RECORD_BYTES = 116
VALUE_BYTES = 90
SEGMENT_BYTES = 100 * MEGABYTE
BUDGET_BYTES = 512 * MEGABYTE
"""`sediment.task.memory.bytes` for many keys in splits."""

# Limits that the figures are compared with.
FLAT, KEY_BYTES, SMALL_MS, SPLIT_RATIO, SHUFFLED_BYTES = 0.15, 48, 5.0, 1.6, 32
FIXED_BYTES = 200 * MEGABYTE


@dataclass(frozen=True)
class Point:
    """One log and one strategy.  `log_bytes` and `keys` are totals of all `partitions`."""

    sweep: str
    strategy: str
    partitions: int
    keys: int
    log_bytes: int
    value_bytes: int = VALUE_BYTES
    budget_bytes: int | None = None
    segment_bytes: int = SEGMENT_BYTES

    @property
    def identity(self) -> str:
        """Return the point's name in the file of results."""
        return " ".join(map(str, asdict(self).values()))


@dataclass(frozen=True)
class Measured:
    """A point and its runs; `sights` is the sum of the distinct keys of each split, if they were counted."""

    point: Point
    runs: list[Run]
    sights: int = 0

    def median(self, figure: Callable[[Run], float]) -> float:
        """Return the median of a figure over the runs."""
        return statistics.median(map(figure, self.runs))

    @property
    def seconds_per_gb(self) -> list[float]:
        """Seconds per gigabyte of input, of each run."""
        return [run.seconds / (run.bytes_before / GIGABYTE) for run in self.runs]


@dataclass(frozen=True)
class Log:
    """Data of several points, written for the largest; the points are measured in turn, `rounds` times."""

    points: tuple[Point, ...]
    rounds: int
    population: str


def logs(scale: float) -> Iterator[Log]:
    """Return all data sets; `scale` shrinks sizes and numbers of keys."""
    giga = int(GIGABYTE * scale)
    segment_bytes = int(SEGMENT_BYTES * min(scale, 1))

    def both(sweep: str, keys: int, log_bytes: int, **more: int) -> tuple[Point, ...]:
        more["segment_bytes"] = segment_bytes
        bounded = {**more, "budget_bytes": BUDGET_BYTES} if sweep == "keys" else more
        return (
            Point(sweep, WHOLE, 1, keys, log_bytes, **more),
            Point(sweep, SPLIT, 1, keys, log_bytes, **bounded),
        )

    sizes = [both("size", size * giga // RECORD_BYTES // 10, size * giga) for size in (1, 2, 4, 8)]
    yield Log(tuple(point for pair in sizes for point in pair), 5, GROWING)
    for keys in (10**5, 10**6, 10**7):
        yield Log(both("keys", int(keys * scale), 2 * giga), 3, ONCE_FIRST)
    many = int(10**8 * scale)
    yield Log(both("keys", many, int(many * 1.1 * 31), value_bytes=4), 2, ONCE_FIRST)
    for partitions in (1, 10, 100):
        yield Log((Point("partitions", WHOLE, partitions, giga // RECORD_BYTES // 10, giga),), 5, GROWING)
    for partitions in (1, max(2, int(2000 * scale))):
        small = max(2, int(2000 * scale)) * 100_000
        yield Log((Point("small", WHOLE, partitions, small // RECORD_BYTES // 10, small),), 5, GROWING)


# ---------------------------------------------------------------------------------------------------------- measuring
def make(log: Log, folder: Path) -> Path:
    """Write the log directory of the largest point."""
    largest = max(log.points, key=lambda point: point.log_bytes)
    log_dir = folder / "all"
    shape = Shape(
        total_bytes=largest.log_bytes // largest.partitions,
        keys=max(1, largest.keys // largest.partitions),
        value_bytes=largest.value_bytes,
        segment_bytes=largest.segment_bytes,
        population=log.population,
    )
    for number in range(largest.partitions):
        write_partition(log_dir / f"bench-{number}", replace(shape, seed=number + 1))
    return log_dir


def beginning(log_dir: Path, log_bytes: int, target: Path) -> Path:
    """Link the first segments of the only partition, about `log_bytes`, and add an empty one after them."""
    source = log_dir / "bench-0"
    (target / source.name).mkdir(parents=True)
    taken = 0
    for log in sorted(source.glob("*.log")):
        base = parse_segment_file(log.name)
        assert base is not None
        if taken >= log_bytes or not log.stat().st_size:
            for kind in (SegmentFileKind.LOG, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX):
                (target / source.name / segment_file_name(base.base_offset, kind)).touch()
            break
        taken += log.stat().st_size
        for file in source.glob(f"{log.stem}.*"):
            os.link(file, target / source.name / file.name)
    os.link(source / "leader-epoch-checkpoint", target / source.name / "leader-epoch-checkpoint")
    return target


def measure(log: Log, scratch: Path | None, rounds: int | None) -> list[Measured]:
    """Write the data, and clean it in a separate session."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="sediment-scale-") as name:
        folder = Path(name)
        log_dir = make(log, folder)
        os.sync()
        with spark_context(SLOTS, "sediment scale") as sc:
            found = []
            for log_bytes in sorted({point.log_bytes for point in log.points}):
                points = [point for point in log.points if point.log_bytes == log_bytes]
                part = log_dir if points[0].partitions > 1 else beginning(log_dir, log_bytes, folder / f"{log_bytes}")
                if not found:
                    for point in points:
                        _run(sc, part, point)
                runs: dict[Point, list[Run]] = {point: [] for point in points}
                for _ in range(rounds or log.rounds):
                    for point in points:
                        runs[point].append(_run(sc, part, point))
                for point in points:
                    is_counted = point.sweep == "size" and point.strategy == SPLIT
                    sights = _count_sights(part, point.segment_bytes, sc.defaultParallelism) if is_counted else 0
                    found.append(Measured(point, runs[point], sights))
    return found


def warm_up(scratch: Path | None) -> None:
    """Clean a small log with both strategies, so that no measured session compiles anything."""
    points = [Point("warm-up", way, 1, 10_000, 20 * MEGABYTE, segment_bytes=4 * MEGABYTE) for way in (WHOLE, SPLIT)]
    measure(Log(tuple(points), 1, GROWING), scratch, None)


def _run(sc: Any, log_dir: Path, point: Point) -> Run:
    sets = [f"segment.bytes={point.segment_bytes}"]
    if point.budget_bytes is not None:
        sets.append(f"sediment.task.memory.bytes={point.budget_bytes}")
    run = run_compact(sc, log_dir, Strategy(point.strategy), sets)
    assert run.strategy == point.strategy, f"{point} was cleaned as {run.strategy}"
    return run


def _count_sights(log_dir: Path, segment_bytes: int, slots: int) -> int:
    """Return the sum of the distinct keys of each split of the only partition."""
    plan = _plan_of(log_dir / "bench-0", segment_bytes)
    splits = cut_into_splits(plan.groups, SPLITS_PER_SLOT * slots)
    work = SplitWork(plan, {}, seed=1, run_limit=INT64_MAX, ranges=2)
    return sum(len(run.hashes) for split in splits for run in collect_split_keys(work, split, len(splits), Fs()))


def _plan_of(directory: Path, segment_bytes: int) -> CleaningPlan:
    fs, config = Fs(), CompactionConfig(cleanup_policy=("compact",), segment_bytes=segment_bytes)
    listing = list_log(TopicPartition("bench", 0), directory, fs)
    view = open_view(listing, PartitionCheckpoints(), fs, now_ms=NOW_MS, producer_id_expiration_ms=86_400_000)
    cleanable = cleanable_range(view, config, now_ms=NOW_MS, force=True)
    return plan_cleaning(view, cleanable, config, now_ms=NOW_MS)


# ------------------------------------------------------------------------------------------------------------ results
@dataclass
class Results:
    """Results on one machine, kept in a file."""

    machine: str = ""
    command: str = ""
    measured: list[Measured] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file; empty if it does not exist."""
        with suppress(FileNotFoundError):
            found = json.loads(path.read_text())
            rows = [
                Measured(Point(**row["point"]), [Run(**run) for run in row["runs"]], row["sights"])
                for row in found["measured"]
            ]
            return cls(found["machine"], found["command"], rows)
        return cls()

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def curve(self, sweep: str, strategy: str = WHOLE) -> list[Measured]:
        """Return the points of a curve, smallest first."""
        found = [there for there in self.measured if (there.point.sweep, there.point.strategy) == (sweep, strategy)]
        return sorted(found, key=lambda there: (there.point.log_bytes, there.point.keys, there.point.partitions))


HEAD = (
    "log",
    "records after",
    "strategy",
    "seconds",
    "seconds per GB",
    "processor s",
    "peak of a worker, MB",
    "added by the run, MB",
)


def rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row per point."""
    return [
        (
            _title(there.point),
            f"{there.runs[0].messages_written:,}",
            there.point.strategy,
            spread([run.seconds for run in there.runs]),
            f"{statistics.median(there.seconds_per_gb):.2f}",
            f"{there.median(lambda run: run.cpu_seconds):.1f}",
            f"{max(run.worker_bytes for run in there.runs) / MEGABYTE:.0f}",
            f"{max(run.grown_bytes for run in there.runs) / MEGABYTE:.0f}",
        )
        for there in results.measured
    ]


def _title(point: Point) -> str:
    size = f"{point.log_bytes / GIGABYTE:.3g} GB"
    if point.partitions > 1:
        size += f" in {point.partitions:,} partitions"
    if point.value_bytes != VALUE_BYTES:
        size += f", values of {point.value_bytes} bytes"
    return size if point.budget_bytes is None else f"{size}, {point.budget_bytes / MEGABYTE:.0f} MB a task"


def check_claims(results: Results) -> list[tuple[str, str, str]]:
    """Return claim, measurement and result (yes or no) of every claim whose points were measured."""
    claims = []

    def add(what: str, found: str, *, holds: bool) -> None:
        claims.append((what, found, "yes" if holds else "no"))

    for strategy in (WHOLE, SPLIT):
        if len(curve := results.curve("size", strategy)) > 1:
            paces = [statistics.median(there.seconds_per_gb) for there in curve]
            off = max(abs(pace / statistics.median(paces) - 1) for pace in paces)
            sizes = f"{curve[0].point.log_bytes / GIGABYTE:.3g} to {curve[-1].point.log_bytes / GIGABYTE:.3g} GB"
            add(
                f"`{strategy}`, {sizes}: the seconds per GB are within {FLAT:.0%} of their median",
                f"at most {off:.0%} off, {min(paces):.2f} to {max(paces):.2f} s",
                holds=off <= FLAT,
            )
    for there in results.curve("keys"):
        keys, peak = there.point.keys, max(run.worker_bytes for run in there.runs)
        bound = FIXED_BYTES + KEY_BYTES * keys + 2 * min(there.point.segment_bytes, there.runs[0].bytes_after)
        grown = max(run.grown_bytes for run in there.runs)
        add(
            f"`whole`, {keys:,} keys: a worker's peak is at most {FIXED_BYTES // MEGABYTE} MB, {KEY_BYTES} bytes a key "
            "and two segments",
            f"peak {peak / MEGABYTE:.0f} MB, bound {bound / MEGABYTE:.0f} MB; memory added by the run, divided by the "
            f"keys: {grown / keys:.0f} bytes",
            holds=peak <= bound,
        )
    for there in results.curve("keys", SPLIT):
        grown, budget = max(run.grown_bytes for run in there.runs), there.point.budget_bytes or 0
        add(
            f"`split`, {there.point.keys:,} keys: the run adds at most {budget / MEGABYTE:.0f} MB to a worker's memory",
            f"{grown / MEGABYTE:.0f} MB",
            holds=grown <= budget,
        )
    if len(small := results.curve("small")) == 2:
        one, many = small
        extra = many.median(lambda run: run.seconds) - one.median(lambda run: run.seconds)
        each_ms = extra / many.point.partitions * 1000
        add(
            f"{many.point.partitions:,} partitions of 100 KB: at most {SMALL_MS:g} ms per partition, in addition to "
            "the time for their bytes",
            f"{each_ms:.2f} ms",
            holds=each_ms <= SMALL_MS,
        )
    for whole, there in zip(results.curve("size"), results.curve("size", SPLIT), strict=True):
        if there.point.log_bytes == 4 * results.curve("size")[0].point.log_bytes:
            ratios = [one.seconds / other.seconds for one, other in zip(there.runs, whole.runs, strict=True)]
            add(
                f"`split` on one partition of {there.point.log_bytes / GIGABYTE:.3g} GB and two cores takes at most "
                f"{SPLIT_RATIO:g} times as long as `whole`",
                spread(ratios),
                holds=statistics.median(ratios) <= SPLIT_RATIO,
            )
            each = there.median(lambda run: run.shuffled_bytes) / there.sights
            add(
                f"the same run shuffles at most {SHUFFLED_BYTES} bytes for each key of each split, with the list of "
                "survivors",
                f"{each:.1f}",
                holds=each <= SHUFFLED_BYTES,
            )
    return claims


def plot(results: Results, folder: Path) -> list[str]:
    """Draw the curves as SVG files; return their names."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "sediment"
    from matplotlib import pyplot

    # One session cleans all sizes, so its peak is that of the largest size so far; a session for each number of keys
    # runs both strategies.
    peak, growth = ("worker_bytes", "peak of a worker, MB"), ("grown_bytes", "a worker grows by, MB")
    across: tuple[tuple[str, str, tuple[str, str], Callable[[Measured], float]], ...] = (
        ("size", "GB of log, a tenth as many keys as records", peak, lambda there: there.point.log_bytes / GIGABYTE),
        ("keys", "keys (the most of them with values of 4 bytes)", growth, lambda there: there.point.keys),
        ("partitions", "partitions that hold 1 GB together", peak, lambda there: there.point.partitions),
    )
    drawn = []
    for sweep, label, (measure, memory_label), place in across:
        if not results.curve(sweep):
            continue
        drawn.append(sweep)
        ticks = sorted({place(there) for there in results.curve(sweep)})
        figure, (speed, memory) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        for strategy in (WHOLE, SPLIT):
            if curve := results.curve(sweep, strategy):
                curve.sort(key=place)
                xs = [place(there) for there in curve]
                paces = [statistics.median(there.seconds_per_gb) for there in curve]
                below = [pace - min(there.seconds_per_gb) for pace, there in zip(paces, curve, strict=True)]
                above = [max(there.seconds_per_gb) - pace for pace, there in zip(paces, curve, strict=True)]
                speed.errorbar(xs, paces, yerr=(below, above), fmt="o-", capsize=3, label=strategy)
                peaks = [max(getattr(run, measure) for run in there.runs) / MEGABYTE for there in curve]
                memory.plot(xs, peaks, "o-", label=strategy)
        for axes, name in ((speed, "seconds per GB"), (memory, memory_label)):
            axes.set_xlabel(label)
            axes.set_ylabel(name)
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:,g}" if tick < 1_000_000 else f"{tick / 1_000_000:,g}M" for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
        figure.savefig(folder / f"scale-{sweep}.svg", metadata={"Date": None})
        pyplot.close(figure)
    return drawn


def print_tables(results: Results) -> None:
    """Print both tables."""
    console = Console(width=max(Console().width, 150))
    for head, lines in ((HEAD, rows(results)), (("claim", "measured", "holds"), check_claims(results))):
        table = Table(*head)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    console.print(f"{results.machine}; {results.command}; medians (smallest to largest)")


def fill(results: Results) -> None:
    """Write both tables into the page, and the plots beside it."""
    fill_page(PAGE, "claims", markdown_table(("", "measured", "holds"), check_claims(results)))
    where = (
        f"Measured with `{results.command}` on {results.machine}; medians, in brackets the smallest and the largest."
    )
    plots = "\n\n".join(
        f"![seconds per GB, and the memory of a worker, over the {sweep}](scale-{sweep}.svg)"
        for sweep in plot(results, RESULTS)
    )
    fill_page(PAGE, "figures", f"{plots}\n\n{markdown_table(HEAD, rows(results))}\n\n{where}")


def main() -> None:
    """Measure the points that the results do not have, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="file for the results; points in it are not measured again")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink sizes and numbers of keys")
    parser.add_argument("--only", action="append", choices=("size", "keys", "partitions", "small"))
    parser.add_argument("--rounds", type=int, help="runs of a point (default: 2 to 5)")
    parser.add_argument(
        "--scratch", type=Path, help="directory for the data, up to 20 GB (default: a temporary directory)"
    )
    parser.add_argument("--docs", action="store_true", help="write tables and plots into benchmarks/results/")
    given = parser.parse_args()
    results = Results.read(given.results) if given.results else Results()
    results.machine = results.machine or machine()
    results.command = results.command or " ".join(["python -m benchmarks.scale", *sys.argv[1:]])
    known = {there.point.identity for there in results.measured}
    is_warm = False
    for log in logs(given.scale):
        if given.only and log.points[0].sweep not in given.only:
            continue
        if all(point.identity in known for point in log.points):
            continue
        if not is_warm:
            warm_up(given.scratch)
            is_warm = True
        results.measured.extend(measure(log, given.scratch, given.rounds))
        print(f"{_title(log.points[-1])}: done", file=sys.stderr, flush=True)
        if given.results:
            results.write(given.results)
    print_tables(results)
    if given.docs:
        fill(results)


if __name__ == "__main__":
    main()
