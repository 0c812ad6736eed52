"""Peak memory of a worker by size of the partition and number of keys.

For each size, a separate process cleans a partition as a task does; the peak is the kernel's own figure (ru_maxrss).
The bound is the sum of 200 MB, 48 bytes per key and two segments of output.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import START_MS, Shape, write_partition

MEGABYTE = 1_000_000
FIXED_MB, KEY_BYTES = 200, 48


def measure(directory: Path) -> dict[str, int]:
    """Clean a partition as a task does; return its keys, its largest output segment and the process's peak in bytes."""
    from sediment.compaction.clean_log import clean_log
    from sediment.compaction.cleanable_range import cleanable_range
    from sediment.compaction.config import CompactionConfig
    from sediment.compaction.grouping import plan_cleaning
    from sediment.segment_io.format.names import Attempt, TopicPartition
    from sediment.segment_io.fs import Fs
    from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
    from sediment.segment_io.partition.listing import list_log
    from sediment.segment_io.partition.log_view import open_view

    fs, config, now_ms = Fs(), CompactionConfig(cleanup_policy=("compact",)), START_MS + 10**9
    listing = list_log(TopicPartition("bench", 0), directory, fs)
    view = open_view(listing, PartitionCheckpoints(), fs, now_ms=now_ms, producer_id_expiration_ms=86_400_000)
    cleanable = cleanable_range(view, config, now_ms=now_ms, force=True)
    swap = clean_log(plan_cleaning(view, cleanable, config, now_ms=now_ms), fs, Attempt("memory", "0"))
    return {
        "keys": sum(group.stats.messages_written for group in swap.groups),
        "segment_bytes": max(group.stats.bytes_written for group in swap.groups),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Print the table; with a directory, measure only that one and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[1, 2, 4])
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000_000, 8_000_000])
    parser.add_argument("--scratch", type=Path)
    given = parser.parse_args()
    if given.directory is not None:
        print(json.dumps(measure(given.directory)))
        return
    table = Table("GB", "keys that live", "peak MB", "bound MB")
    for keys in given.keys:
        for gigabytes in given.gigabytes:
            with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-memory-") as scratch:
                directory = Path(scratch) / "bench-0"
                total_bytes = int(gigabytes * 1000 * MEGABYTE)
                write_partition(directory, Shape(total_bytes=total_bytes, keys=keys, value_bytes=90))
                command = [sys.executable, __file__, str(directory)]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            bound = FIXED_MB * MEGABYTE + KEY_BYTES * found["keys"] + 2 * found["segment_bytes"]
            table.add_row(
                f"{gigabytes:g}",
                f"{found['keys']:,}",
                f"{found['peak_bytes'] / MEGABYTE:.0f}",
                f"{bound / MEGABYTE:.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
