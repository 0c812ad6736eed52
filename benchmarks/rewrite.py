"""Speed of a rewrite by verdicts, compared with `cp` and a sync of the same log; both run in turn, from the page cache.

    one a segment   drop one record of each segment: nearly every byte is copied unchanged
    spread          drop `--verdicts` records, evenly spread over the log
    one a batch     drop one record of each batch: every batch is decoded and written again
    search          search for the records of `--verdicts` keys, and write nothing

CPU time is the better measure if other work shares the machine; the table shows both.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.generate import Shape, write_partition
from sediment.compaction.config import CompactionConfig
from sediment.compaction.rewrite.key_matches import find_key_matches
from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.plan import plan_rewrite
from sediment.compaction.rewrite.segment_rewrite import rewrite_log
from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts
from sediment.segment_io.format.layout import CODEC_LZ4, CODEC_NONE, INT64_MAX
from sediment.segment_io.format.names import Attempt, SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.partition.log_view import LogView, open_view
from sediment.segment_io.segment.reader import HeaderScan

LIMIT_BYTES = CompactionConfig().max_decompressed_batch_bytes
CODECS = {"none": CODEC_NONE, "lz4": CODEC_LZ4}


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the clock and of the CPU, children included."""

    wall: float
    cpu: float


def timed(run: Callable[[], object], undo: Callable[[], object], repeat: int) -> Timing:
    """Return the medians of `repeat` runs after one that is not timed."""
    found = []
    for _ in range(repeat + 1):
        found.append(timed_once(run))
        undo()
    return median(found[1:])


def timed_once(run: Callable[[], object]) -> Timing:
    """Return the time of one run."""
    started, before = time.perf_counter(), _cpu_seconds()
    run()
    return Timing(time.perf_counter() - started, _cpu_seconds() - before)


def median(timings: Sequence[Timing]) -> Timing:
    """Return the medians of `timings`."""
    return Timing(
        statistics.median(timing.wall for timing in timings), statistics.median(timing.cpu for timing in timings)
    )


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def time_rewrite(view: LogView, offsets: list[int], repeat: int) -> Timing:
    """Time a rewrite that drops the records at `offsets`."""
    verdicts = Verdicts.of(Verdict(offset, Action.DROP) for offset in offsets)
    plan = plan_rewrite(view, verdicts, CompactionConfig())

    def run() -> None:
        assert rewrite_log(plan, Fs(), Attempt("bench", "0")).segments

    def undo() -> None:
        for part in view.listing.path.glob("*.part"):
            part.unlink()

    return timed(run, undo, repeat)


def time_search(listing: LogListing, keys: KeySet, repeat: int) -> Timing:
    """Time the search for the records of `keys`."""
    ends = [*(segment.base_offset for segment in listing.segments), INT64_MAX][1:]

    def run() -> None:
        found = 0
        for segment, end_offset in zip(listing.segments, ends, strict=True):
            matches = find_key_matches(
                listing.partition, listing.path, segment, end_offset, keys, Fs(), limit_bytes=LIMIT_BYTES
            )
            found += len(matches)
        assert found >= len(keys)

    return timed(run, lambda: None, repeat)


def first_offsets(listing: LogListing) -> list[int]:
    """Return the base offset of every batch."""
    return [
        int(offset)
        for segment in listing.segments
        for rows in HeaderScan(listing.path / segment_file_name(segment.base_offset, SegmentFileKind.LOG))
        for offset in rows["base_offset"]
    ]


def time_copy(directory: Path, repeat: int) -> Timing:
    """Time `cp` of the logs of a partition, with a sync of each copy."""
    logs = sorted(directory.glob("*.log"))
    copies = [log.with_suffix(".copy") for log in logs]

    def run() -> None:
        for log, copy in zip(logs, copies, strict=True):
            subprocess.run(["cp", "--reflink=never", str(log), str(copy)], check=True)
            descriptor = os.open(copy, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return timed(run, lambda: [copy.unlink() for copy in copies], repeat)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--verdicts", type=int, default=1000)
    parser.add_argument("--codec", choices=CODECS, default="none")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        directory = Path(scratch) / "bench-0"
        write_partition(directory, Shape(given.megabytes * 10**6, keys=1_000_000, codec=CODECS[given.codec]))
        listing = list_log(TopicPartition("bench", 0), directory, Fs())
        view = open_view(
            listing, PartitionCheckpoints(clean_shutdown=True), Fs(), now_ms=0, producer_id_expiration_ms=None
        )
        spread = np.linspace(0, view.log_end_offset - 1, given.verdicts, dtype=np.int64).tolist()
        firsts = [segment.base_offset for segment in listing.segments if segment.log_bytes]
        rows = {
            "cp": time_copy(directory, given.repeat),
            "one a segment": time_rewrite(view, firsts, given.repeat),
            f"spread ({given.verdicts})": time_rewrite(view, spread, given.repeat),
            "one a batch": time_rewrite(view, first_offsets(listing), given.repeat),
            f"search ({given.verdicts})": time_search(
                listing, KeySet.of(b"k%015d" % number for number in range(given.verdicts)), given.repeat
            ),
        }
        megabytes = listing.log_bytes() / 1e6
    table = Table("", "s", "MB/s", "CPU s")
    for name, timing in rows.items():
        table.add_row(name, f"{timing.wall:.2f}", f"{megabytes / timing.wall:.0f}", f"{timing.cpu:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
