"""Speed of appends to a live log, compared with Kafka's UnifiedLog on the same bytes in the same run.

Each side uses one thread and does not flush.  Both sides copy and verify the batches, assign offsets, write the batches
and index them.  CPU time is the better measure if other work shares the machine; the table shows both CPU and wall
time.  The appends of an idempotent producer are measured for Sediment only.
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

from benchmarks.measure import open_oracle
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.conformance.oracle import TimedAppends

NOW_MS = 1_700_000_000_000
_VALUE_BYTES = 100
_TIMED_TOGETHER = 100
"""Appends of one batch between two looks at the clocks, which take almost as long as an append."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload: each call appends `batches` copies of `batch`, as a leader or as a follower.

    With `is_idempotent`, the batches have the sequences of one producer.
    """

    name: str
    batch: bytes
    records: int
    batches: int
    appends: int
    is_idempotent: bool = False

    def contents(self, number: int, base_offset: int) -> bytes:
        """Return the bytes of an append by its number."""
        if self.is_idempotent:
            record = NewRecord(NOW_MS, b"key-%08d" % 0, bytes(_VALUE_BYTES))
            return build_batch([record], BatchHead(producer_id=1, producer_epoch=0, base_sequence=number))
        if self.batches == 1:
            return self.batch
        offsets = range(base_offset, base_offset + self.batches * self.records, self.records)
        return b"".join(offset.to_bytes(8, "big") + self.batch[8:] for offset in offsets)


def cases(scale: float) -> list[Case]:
    """Return the workloads: 16 kB batches, single records, and many small batches in one call."""

    def batch(records: int) -> bytes:
        new = [NewRecord(NOW_MS + n, b"key-%08d" % n, os.urandom(_VALUE_BYTES)) for n in range(records)]
        return build_batch(new, BatchHead(leader_epoch=0))

    return [
        Case("leader, batches of 16 kB", batch(132), 132, 1, int(20_000 * scale)),
        Case("leader, batches of one record", batch(1), 1, 1, int(40_000 * scale)),
        Case("leader, batches of one record, idempotent", batch(1), 1, 1, int(40_000 * scale), is_idempotent=True),
        Case("follower, 1000 batches of one record a call", batch(1), 1, 1000, int(400 * scale)),
        Case("follower, 1000 batches of ten records a call", batch(10), 10, 1000, int(80 * scale)),
    ]


class _Never:
    """A scheduler without background work, so that nothing is flushed."""

    def schedule_once(self, _name: str, _task: Callable[[], None], *, delay_ms: int = 0) -> None:
        return None


def append_timed(directory: Path, case: Case) -> TimedAppends:
    """Measure appends to a PartitionLog in the same way as `KafkaOracle.append_timed`."""
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
    append = log.append_as_leader if case.batches == 1 else log.append_as_follower
    together = _TIMED_TOGETHER if case.batches == 1 else 1
    for number in range(0, case.appends, together):
        contents = [case.contents(each, log.log_end_offset) for each in range(number, number + together)]
        cpu_before, before = time.thread_time(), time.perf_counter()
        for each in contents:
            append(each, 0)
        if number >= case.appends // 4:
            wall += time.perf_counter() - before
            cpu += time.thread_time() - cpu_before
            counted += together
    log.close()
    return TimedAppends(counted, wall, cpu)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="number of appends, as a fraction of the default")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--without-kafka", action="store_true")
    given = parser.parse_args()
    oracle = None if given.without_kafka else open_oracle()
    table = Table("append", "side", "MB/s", "records/s", "MB/s of CPU", "records/s of CPU", "CPU ratio")
    for case in cases(given.scale):
        timed: dict[str, list[TimedAppends]] = {"sediment": [], "kafka": []}
        for _ in range(given.repeat):
            with tempfile.TemporaryDirectory(prefix="sediment-append-") as scratch:
                for side in ("sediment", "kafka") if oracle and not case.is_idempotent else ("sediment",):
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
