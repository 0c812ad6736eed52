"""Speed of appends to a live log, compared with Kafka's UnifiedLog on the same bytes in the same run.

Each side uses one thread and does not flush.  Both sides copy and verify the batches, assign offsets, write the batches
and index them.  CPU time is the better measure if other work shares the machine; the table shows both CPU and wall
time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from sediment.engine.config import LogConfig
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.conformance.oracle import KafkaOracle, OracleUnavailableError, TimedAppends

NOW_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A workload: every append holds `batches` copies of `batch`, as a leader or as a follower."""

    name: str
    batch: bytes
    records: int
    batches: int
    appends: int


def cases(scale: float) -> list[Case]:
    """Return the workloads: 16 kB batches, single records, and many small batches in one call."""

    def batch(records: int, value_bytes: int) -> bytes:
        new = [NewRecord(NOW_MS + n, b"key-%08d" % n, os.urandom(value_bytes)) for n in range(records)]
        return build_batch(new, BatchHead(leader_epoch=0))

    return [
        Case("leader, batches of 16 kB", batch(132, 100), 132, 1, int(20_000 * scale)),
        Case("leader, batches of one record", batch(1, 100), 1, 1, int(40_000 * scale)),
        Case("follower, 1000 batches of one record a call", batch(1, 100), 1, 1000, int(400 * scale)),
        Case("follower, 1000 batches of ten records a call", batch(10, 100), 10, 1000, int(80 * scale)),
    ]


class _Never:
    """A scheduler without background work, so that nothing is flushed."""

    def schedule_once(self, _name: str, _task: Callable[[], None], *, delay_ms: int = 0) -> None:
        return None


def append_timed(directory: Path, case: Case) -> TimedAppends:
    """Measure appends to a PartitionLog as `KafkaOracle.append_timed` measures them."""
    log = PartitionLog.open(
        TopicPartition("bench", 0),
        directory,
        LogConfig(),
        PartitionCheckpoints(clean_shutdown=True),
        Fs(),
        clock=lambda: NOW_MS,
        scheduler=_Never(),
    )
    wall = cpu = 0.0
    counted = 0
    for number in range(case.appends):
        data = case.batch
        if case.batches > 1:
            base_offset = log.log_end_offset
            data = b"".join(
                (base_offset + n * case.records).to_bytes(8, "big") + case.batch[8:] for n in range(case.batches)
            )
        cpu_before, before = time.thread_time(), time.perf_counter()
        if case.batches > 1:
            log.append_as_follower(data, 0)
        else:
            log.append_as_leader(data, 0)
        if number >= case.appends // 4:
            wall += time.perf_counter() - before
            cpu += time.thread_time() - cpu_before
            counted += 1
    log.close()
    return TimedAppends(counted, wall, cpu)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="number of appends, as a fraction of the default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--without-kafka", action="store_true")
    given = parser.parse_args()
    oracle = None
    if not given.without_kafka:
        try:
            oracle = KafkaOracle()
        except OracleUnavailableError as error:
            print(f"without Kafka: {error}", file=sys.stderr)
    table = Table("append", "side", "MB/s", "records/s", "MB/s of CPU", "records/s of CPU", "CPU ratio")
    for case in cases(given.scale):
        timed: dict[str, list[TimedAppends]] = {"sediment": [], "kafka": []}
        for _ in range(given.repeat):
            with tempfile.TemporaryDirectory(prefix="sediment-append-") as scratch:
                for side in ("sediment", "kafka") if oracle else ("sediment",):
                    directory = Path(scratch) / side / "bench-0"
                    directory.mkdir(parents=True)
                    if side == "sediment" or oracle is None:
                        timed[side].append(append_timed(directory, case))
                    else:
                        timed[side].append(
                            oracle.append_timed(
                                directory,
                                case.batch,
                                appends=case.appends,
                                now_ms=NOW_MS,
                                configs={},
                                batches=case.batches,
                            )
                        )
        rates = {side: _rates(case, found) for side, found in timed.items() if found}
        for side, (wall, cpu) in rates.items():
            ratio = f"{cpu / rates['kafka'][1]:.2f}" if side == "sediment" and "kafka" in rates else ""
            size_mb = len(case.batch) * case.batches / 1e6
            records = case.batches * case.records
            table.add_row(
                case.name,
                side,
                f"{wall * size_mb:,.0f}",
                f"{wall * records:,.0f}",
                f"{cpu * size_mb:,.0f}",
                f"{cpu * records:,.0f}",
                ratio,
            )
    if oracle is not None:
        oracle.close()
    Console(width=160).print(table)


def _rates(case: Case, found: list[TimedAppends]) -> tuple[float, float]:
    """Return median appends per second, by wall time and by CPU time."""
    return (
        statistics.median(one.appends / one.wall_seconds for one in found),
        statistics.median(one.appends / one.cpu_seconds for one in found),
    )


if __name__ == "__main__":
    main()
