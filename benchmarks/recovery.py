"""How fast a log is recovered after a stop that was not clean, beside Kafka's loader on the same bytes in the same run.

Every batch is verified and every index rebuilt.  Both sides get as many recovery threads as there are logs, and copies
of the same directories in turn, from the page cache.  The aim is three times Kafka's speed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import START_MS, Shape, write_partition
from sediment.engine.config import LogConfig
from sediment.engine.loader import load_log
from sediment.segment_io.format import CODEC_LZ4
from sediment.segment_io.fs import Fs
from sediment.segment_io.log_dir import PartitionCheckpoints
from sediment.segment_io.names import TopicPartition
from tests.conformance.oracle import KafkaOracle, OracleUnavailableError, link_partition

BASE = Shape(total_bytes=0, keys=1_000_000, segment_bytes=1 << 30)
SHAPES = {
    "batches of 17 kB": BASE,
    "batches of 17 kB, lz4": replace(BASE, codec=CODEC_LZ4),
    "batches of 1.2 kB": replace(BASE, batch_records=10),
    "batches of 180 B": replace(BASE, batch_records=1),
    "transactions of ten batches of 17 kB": replace(BASE, transaction_batches=10),
    "transactions of ten batches of 1.2 kB": replace(BASE, batch_records=10, transaction_batches=10),
}


def recover(directory: Path) -> int:
    """Load a partition as after a crash, from its first segment on; returns the log end offset."""
    log = load_log(
        TopicPartition("bench", 0),
        directory,
        LogConfig(),
        PartitionCheckpoints(recovery_point=0),
        Fs(),
        now_ms=START_MS,
    )
    assert not log.damage
    return log.log_end_offset


def recover_timed(directories: list[Path], scratch: Path) -> tuple[float, list[int]]:
    """What `KafkaOracle.load_timed` measures, of the loader here."""
    with tempfile.TemporaryDirectory(dir=scratch) as parent, ThreadPoolExecutor(len(directories)) as pool:
        copies = [Path(parent) / directory.name for directory in directories]
        for directory, copy in zip(directories, copies, strict=True):
            link_partition(directory, copy)
        started = time.perf_counter()
        ends = list(pool.map(recover, copies))
        return time.perf_counter() - started, ends


def race(
    oracle: KafkaOracle | None, directories: list[Path], scratch: Path, repeat: int
) -> tuple[list[float], list[float]]:
    """Seconds of each side, in turn."""
    ours: list[float] = []
    kafkas: list[float] = []
    for _ in range(repeat + 1):
        seconds, ends = recover_timed(directories, scratch)
        ours.append(seconds)
        if oracle is not None:
            seconds, kafka_ends = oracle.load_timed(
                directories, scratch, now_ms=START_MS, configs={}, threads=len(directories)
            )
            assert kafka_ends == ends
            kafkas.append(seconds)
    # In the first round what was just written is synced and both sides compile.
    return ours[1:], kafkas[1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), help="the names of some")
    parser.add_argument("--scratch", type=Path, help="where the data go (default: a temporary directory)")
    parser.add_argument("--without-kafka", action="store_true")
    given = parser.parse_args()
    oracle = None
    if not given.without_kafka:
        try:
            oracle = KafkaOracle()
        except OracleUnavailableError as error:
            print(f"without Kafka: {error}", file=sys.stderr)
    table = Table("shape", "threads", "GB", "seconds", "GB/s", "Kafka's seconds", "Kafka's GB/s", "ratio", "of rounds")
    for name in given.shapes:
        for threads in given.threads:
            scratch = Path(tempfile.mkdtemp(dir=given.scratch, prefix="sediment-recovery-"))
            try:
                directories = [scratch / f"bench-{number}" for number in range(threads)]
                for number, directory in enumerate(directories):
                    total_bytes = int(given.gigabytes * 1e9 / threads)
                    write_partition(directory, replace(SHAPES[name], total_bytes=total_bytes, seed=number))
                gigabytes = sum(path.stat().st_size for path in scratch.glob("*/*.log")) / 1e9
                ours, kafkas = race(oracle, directories, scratch, given.repeat)
            finally:
                shutil.rmtree(scratch)
            taken = statistics.median(ours)
            row = [name, str(threads), f"{gigabytes:.1f}", f"{taken:.2f}", f"{gigabytes / taken:.2f}"]
            if kafkas:
                by_kafka = statistics.median(kafkas)
                ratios = sorted(kafka / our for our, kafka in zip(ours, kafkas, strict=True))
                row += [f"{by_kafka:.2f}", f"{gigabytes / by_kafka:.2f}", f"{by_kafka / taken:.1f}"]
                row.append(f"{ratios[0]:.1f} to {ratios[-1]:.1f}")
            table.add_row(*row)
    if oracle is not None:
        oracle.close()
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
