"""Speed of recovery after an unclean stop, compared with Kafka's loader on the same bytes in the same run.

Every batch is verified and every index rebuilt.  Both sides have the same number of recovery threads.  Kafka uses one
thread per log; the engine also gives spare threads to a log.  Both load copies of the same directories in turn, from
the page cache.  The target is three times Kafka's speed.  CPU time is the better measure if other work shares the
machine; the table shows both.  Kafka's CPU time excludes compilation and garbage collection.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import START_MS, Shape, write_partition
from benchmarks.measure import open_oracle
from benchmarks.reporting.comparisons import Comparison
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.layout import CODEC_LZ4, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.conformance.oracle import KafkaOracle, TimedLoad, link_partition

BASE = Shape(total_bytes=0, keys=1_000_000, segment_bytes=1 << 30)
SHAPES = {
    "batches of 17 kB": BASE,
    "batches of 17 kB, lz4": replace(BASE, codec=CODEC_LZ4),
    "batches of 1.2 kB": replace(BASE, batch_records=10),
    "batches of 180 B": replace(BASE, batch_records=1),
    "transactions of ten batches of 17 kB": replace(BASE, transaction_batches=10),
    "transactions of ten batches of 1.2 kB": replace(BASE, batch_records=10, transaction_batches=10),
}


def preallocate_indexes(directory: Path) -> None:
    """Extend the indexes of the active segment to the size that a crashed broker leaves."""
    size_bytes = LogConfig().compaction.segment_index_bytes
    for suffix, entry_bytes in ((".index", OFFSET_ENTRY_BYTES), (".timeindex", TIME_ENTRY_BYTES)):
        os.truncate(max(directory.glob(f"*{suffix}")), size_bytes // entry_bytes * entry_bytes)


def recover(directory: Path, threads: int = 1) -> int:
    """Load a partition as after a crash, from its first segment; return the log end offset."""
    log = load_log(
        TopicPartition("bench", 0),
        directory,
        LogConfig(),
        PartitionCheckpoints(recovery_point=0),
        Fs(),
        now_ms=START_MS,
        mode=LoadMode(threads=threads),
    )
    assert not log.damage
    return log.log_end_offset


def recover_timed(directories: list[Path], scratch: Path, threads: int) -> TimedLoad:
    """Measure the loader as `KafkaOracle.load_timed` measures Kafka's."""

    with tempfile.TemporaryDirectory(dir=scratch) as parent, ThreadPoolExecutor(threads) as pool:
        copies = [Path(parent) / directory.name for directory in directories]
        for directory, copy in zip(directories, copies, strict=True):
            link_partition(directory, copy)
        spare = max(threads // len(directories), 1)
        cpu_before, started = time.process_time(), time.perf_counter()
        ends = tuple(pool.map(lambda copy: recover(copy, spare), copies))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_before
    return TimedLoad(seconds, cpu, ends)


def race(
    oracle: KafkaOracle | None, directories: list[Path], scratch: Path, *, threads: int, repeat: int
) -> list[list[TimedLoad]]:
    """Return the times of both sides, measured in turn; Kafka's are empty without an oracle."""
    sides: list[list[TimedLoad]] = [[], []]
    for _ in range(repeat + 1):
        sides[0].append(recover_timed(directories, scratch, threads))
        if oracle is not None:
            sides[1].append(oracle.load_timed(directories, scratch, now_ms=START_MS, configs={}, threads=threads))
            assert sides[0][-1].log_ends == sides[1][-1].log_ends
    # The first round syncs new data and compiles both sides, so it is not measured.
    return [side[1:] for side in sides]


_LOGS, _THREADS, _LEAST_SPEED = 4, 2, 3.0


def compare(scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparison of the loader with Kafka's: four logs after an unclean stop, two recovery threads."""
    megabytes, rounds = (4, 1) if is_quick else (1000, 3)
    found = Comparison(
        "recover",
        "`recover`, the loader",
        f"{_LOGS} × {megabytes} MB",
        "Kafka's loader",
        _LEAST_SPEED,
        is_speed=True,
    )
    directories = [scratch / f"bench-{number}" for number in range(_LOGS)]
    for number, directory in enumerate(directories):
        write_partition(directory, replace(BASE, total_bytes=megabytes * 1_000_000, seed=number))
        preallocate_indexes(directory)
    with KafkaOracle() as oracle:
        ours, kafkas = race(oracle, directories, scratch, threads=_THREADS, repeat=rounds)
    for directory in directories:
        shutil.rmtree(directory)
    found.seconds.extend(load.wall_seconds for load in ours)
    found.cpu_seconds.extend(load.cpu_seconds for load in ours)
    found.reference_seconds.extend(load.wall_seconds for load in kafkas)
    found.reference_cpu_seconds.extend(load.cpu_seconds for load in kafkas)
    yield found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--logs", type=int, nargs="*", default=[1, 2], help="number of logs that share the bytes")
    parser.add_argument("--threads", type=int, default=2, help="recovery threads of each side (a broker's default: 2)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), help="only these data sets")
    parser.add_argument("--scratch", type=Path, help="directory for the data (default: a temporary directory)")
    parser.add_argument("--without-kafka", action="store_true")
    given = parser.parse_args()
    oracle = None if given.without_kafka else open_oracle()
    columns = ("seconds", "GB/s", "s of CPU")
    kafkas_columns = (f"Kafka's {column}" for column in columns)
    table = Table("shape", "logs", "GB", *columns, *kafkas_columns, "ratio", "of rounds", "of CPU")
    for name in given.shapes:
        for logs in given.logs:
            scratch = Path(tempfile.mkdtemp(dir=given.scratch, prefix="sediment-recovery-"))
            try:
                directories = [scratch / f"bench-{number}" for number in range(logs)]
                for number, directory in enumerate(directories):
                    total_bytes = int(given.gigabytes * 1e9 / logs)
                    write_partition(directory, replace(SHAPES[name], total_bytes=total_bytes, seed=number))
                    preallocate_indexes(directory)
                gigabytes = sum(path.stat().st_size for path in scratch.glob("*/*.log")) / 1e9
                ours, kafkas = race(oracle, directories, scratch, threads=given.threads, repeat=given.repeat)
            finally:
                shutil.rmtree(scratch)
            taken, cpu = _medians(ours)
            row = [name, str(logs), f"{gigabytes:.1f}", f"{taken:.2f}", f"{gigabytes / taken:.2f}", f"{cpu:.2f}"]
            if kafkas:
                by_kafka, cpu_of_kafka = _medians(kafkas)
                ratios = sorted(kafka.wall_seconds / our.wall_seconds for our, kafka in zip(ours, kafkas, strict=True))
                row += [f"{by_kafka:.2f}", f"{gigabytes / by_kafka:.2f}", f"{cpu_of_kafka:.2f}"]
                row += [f"{by_kafka / taken:.1f}", f"{ratios[0]:.1f} to {ratios[-1]:.1f}", f"{cpu_of_kafka / cpu:.1f}"]
            table.add_row(*row)
    if oracle is not None:
        oracle.close()
    Console(width=160).print(table)


def _medians(loads: list[TimedLoad]) -> tuple[float, float]:
    """Return wall seconds and CPU seconds."""
    return (
        statistics.median(load.wall_seconds for load in loads),
        statistics.median(load.cpu_seconds for load in loads),
    )


if __name__ == "__main__":
    main()
