"""Speed of re-encoding, compared in one run with the bare codec over the same records, in turn and from the cache.

    codec      the records of each new batch are compressed, one batch after another; nothing else happens
    reencode   the log is read, checked, encoded anew, written and synced

The batches of both are equal: each batch alone, or merged up to `--batch-bytes`.  CPU time is the better measure if
other work shares the machine; the table shows both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.generate import Shape, write_partition
from benchmarks.rewrite import Timing, timed
from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.reencode.segment_reencode import reencode_log
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


def time_reencode(view: LogView, encoding: Encoding, repeat: int) -> Timing:
    """Time the re-encoding of the partition."""

    def run() -> None:
        assert reencode_log(view, encoding, CONFIG, Fs(), run_id="bench", attempt="0").swap.parts()

    def undo() -> None:
        for part in view.listing.path.glob("*.part"):
            part.unlink()

    return timed(run, undo, repeat)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--source", choices=CODEC_NAMES, default="none", help="codec of the log")
    parser.add_argument("--codec", choices=CODEC_NAMES, default="zstd")
    parser.add_argument("--level", type=int)
    parser.add_argument("--batch-bytes", type=int, help="merge batches up to this size")
    parser.add_argument("--batch-records", type=int, default=150, help="records of a batch of the log")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    codec = CODEC_NAMES.index(given.codec)
    encoding = Encoding(codec, given.level, given.batch_bytes)
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
        reencoded = time_reencode(view, encoding, given.repeat)
        commit(reencode_log(view, encoding, CONFIG, Fs(), run_id="bench", attempt="0").swap, Fs())
        after = view_of(directory)
        payloads = payloads_of(after)
        bare = timed(
            lambda: [compress(codec, payload, level=given.level) for payload in payloads], lambda: None, given.repeat
        )
        megabytes = sum(memoryview(payload).nbytes for payload in payloads) / 1e6
        after_bytes = after.listing.log_bytes()
    table = Table("", "s", "MB/s of records", "CPU s")
    for name, timing in {"codec": bare, "reencode": reencoded}.items():
        table.add_row(name, f"{timing.wall:.2f}", f"{megabytes / timing.wall:.0f}", f"{timing.cpu:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"{before_bytes / 1e6:.0f} MB before, {after_bytes / 1e6:.0f} MB after, {len(payloads)} batches; "
        f"the codec takes {bare.cpu / reencoded.cpu:.0%} of the CPU time of the re-encoding"
    )


if __name__ == "__main__":
    main()
