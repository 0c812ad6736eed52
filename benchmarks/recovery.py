"""How fast a log is recovered after a stop that was not clean: every batch verified, every index rebuilt.

Data are read from the page cache, several times in turn; beside each shape stands what a plain read of the same bytes
takes.  The aim is 1.5 GB/s a core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
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

BASE = Shape(total_bytes=0, keys=1_000_000, segment_bytes=1 << 30)
SHAPES = {
    "batches of 17 kB": BASE,
    "batches of 17 kB, lz4": replace(BASE, codec=CODEC_LZ4),
    "batches of 1.2 kB": replace(BASE, batch_records=10),
    "batches of 180 B": replace(BASE, batch_records=1),
    "transactions of ten batches of 17 kB": replace(BASE, transaction_batches=10),
    "transactions of ten batches of 1.2 kB": replace(BASE, batch_records=10, transaction_batches=10),
}


def recover(directory: Path) -> None:
    """Load a partition as after a crash, from its first segment on."""
    log = load_log(
        TopicPartition("bench", 0),
        directory,
        LogConfig(),
        PartitionCheckpoints(recovery_point=0),
        Fs(),
        now_ms=START_MS,
    )
    assert not log.damage


def read(directory: Path) -> None:
    """Read every segment once."""
    buffer = bytearray(1 << 20)
    for path in sorted(directory.glob("*.log")):
        descriptor = os.open(path, os.O_RDONLY)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)


def seconds(work: Callable[[Path], None], directories: list[Path], repeat: int) -> float:
    """Median of `repeat` runs over all `directories` at a time, one thread each."""
    taken = []
    with ThreadPoolExecutor(len(directories)) as pool:
        for _ in range(repeat):
            started = time.perf_counter()
            list(pool.map(work, directories))
            taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where the data go (default: a temporary directory)")
    given = parser.parse_args()
    table = Table("shape", "threads", "GB", "seconds", "GB/s", "GB/s a thread", "reading GB/s")
    for name, shape in SHAPES.items():
        for threads in given.threads:
            with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-recovery-") as scratch:
                directories = [Path(scratch) / f"bench-{number}" for number in range(threads)]
                for number, directory in enumerate(directories):
                    total_bytes = int(given.gigabytes * 1e9 / threads)
                    write_partition(directory, replace(shape, total_bytes=total_bytes, seed=number))
                gigabytes = sum(path.stat().st_size for path in Path(scratch).glob("*/*.log")) / 1e9
                seconds(recover, directories, 1)  # what was just written is synced, kernels are compiled
                taken = seconds(recover, directories, given.repeat)
                reading = seconds(read, directories, given.repeat)
            rate = gigabytes / taken
            table.add_row(
                name,
                str(threads),
                f"{gigabytes:.1f}",
                f"{taken:.2f}",
                f"{rate:.2f}",
                f"{rate / threads:.2f}",
                f"{gigabytes / reading:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
