"""Speed of re-encoding, compared with the bare codec on the same records; both run alternately, from the page cache.

    codec      compress the records of each new batch, one batch after another, and do nothing else
    reencode   read, check and encode the log, and write and sync the result

Both produce the same batches: each batch alone, or merged up to `--batch-bytes`.  CPU time is the better measure if
other work shares the machine; the table shows both.  The exit status is 1 if, in the median of all rounds, the CPU time
of the codec is less than `--bar` times that of the re-encoding.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import Shape, write_partition
from benchmarks.rewrite import Timing, median, timed_once
from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.swap import commit
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.compression.batch_codecs import compress, decompress
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CODEC_MASK, CODEC_NAMES
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import LogView, open_view
from sediment.segment_io.segment.reader import HeaderScan
from tests.reencodes import reencode_log

CONFIG = CompactionConfig()


def view_of(directory: Path) -> LogView:
    """Return the view of the partition."""
    listing = list_log(TopicPartition("bench", 0), directory, Fs())
    return open_view(listing, PartitionCheckpoints(clean_shutdown=True), Fs(), now_ms=0, producer_id_expiration_ms=None)


def payloads_of(view: LogView) -> list[Buffer]:
    """Return the uncompressed records of each batch."""
    found: list[Buffer] = []
    for segment in view.listing.segments:
        path = view.listing.path / segment_file_name(segment.base_offset, SegmentFileKind.LOG)
        content = memoryview(path.read_bytes())
        for rows in HeaderScan(path):
            for position, size_bytes, attributes in rows[["position", "size_bytes", "attributes"]].tolist():
                payload = content[position + BATCH_HEADER_BYTES : position + size_bytes]
                limit_bytes = CONFIG.max_decompressed_batch_bytes
                found.append(decompress(attributes & CODEC_MASK, payload, limit_bytes=limit_bytes))
    return found


def encoded_copy(directory: Path, encoding: Encoding, copy: Path) -> LogView:
    """Return the view of a copy of the partition, re-encoded; unchanged files are hard links."""
    shutil.copytree(directory, copy, copy_function=os.link)
    commit(reencode_log(view_of(copy), encoding, CONFIG).swap, Fs())
    return view_of(copy)


def time_reencode(view: LogView, encoding: Encoding) -> Timing:
    """Time one re-encoding of the partition; remove its result."""

    def run() -> None:
        assert reencode_log(view, encoding, CONFIG).swap.parts()

    timing = timed_once(run)
    for part in view.listing.path.glob("*.part"):
        part.unlink()
    return timing


def time_codec(payloads: Sequence[Buffer], encoding: Encoding) -> Timing:
    """Time the compression of the records of all batches."""
    codec = encoding.codec
    assert codec is not None
    return timed_once(lambda: [compress(codec, payload, level=encoding.level) for payload in payloads])


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--source", choices=CODEC_NAMES, default="none", help="codec of the log")
    parser.add_argument("--codec", choices=CODEC_NAMES, default="zstd")
    parser.add_argument("--level", type=int)
    parser.add_argument("--batch-bytes", type=int, help="merge batches up to this size")
    parser.add_argument("--batch-records", type=int, default=150, help="records of a batch of the log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bar", type=float, default=0.75, help="CPU time of the codec for each of a re-encoding")
    given = parser.parse_args()
    encoding = Encoding(CODEC_NAMES.index(given.codec), given.level, given.batch_bytes)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        shape = Shape(
            given.megabytes * 10**6,
            keys=1_000_000,
            codec=CODEC_NAMES.index(given.source),
            batch_records=given.batch_records,
        )
        directory = Path(scratch) / "bench-0"
        write_partition(directory, shape)
        view = view_of(directory)
        before_bytes = view.listing.log_bytes()
        after = encoded_copy(directory, encoding, Path(scratch) / "encoded" / directory.name)
        payloads = payloads_of(after)
        bare: list[Timing] = []
        reencoded: list[Timing] = []
        time_codec(payloads, encoding)  # warm; the copy has warmed the re-encoding
        for _ in range(given.rounds):
            bare.append(time_codec(payloads, encoding))
            reencoded.append(time_reencode(view, encoding))
        share = statistics.median(one.cpu / other.cpu for one, other in zip(bare, reencoded, strict=True))
        megabytes = sum(memoryview(payload).nbytes for payload in payloads) / 1e6
        after_bytes = after.listing.log_bytes()
    table = Table("", "s", "MB/s of records", "CPU s")
    for name, timing in {"codec": median(bare), "reencode": median(reencoded)}.items():
        table.add_row(name, f"{timing.wall:.2f}", f"{megabytes / timing.wall:.0f}", f"{timing.cpu:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"{before_bytes / 1e6:.0f} MB before, {after_bytes / 1e6:.0f} MB after, {len(payloads)} batches; "
        f"the codec takes {share:.0%} of the CPU time of the re-encoding; the bar is {given.bar:.0%}"
    )
    return int(share < given.bar)


if __name__ == "__main__":
    raise SystemExit(main())
