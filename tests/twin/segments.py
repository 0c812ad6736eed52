"""A log's bytes as batches, and a partition directory as segments (kafka-log 01 §1.1, §2).

Two iterators with different manners: a file ends silently at an incomplete batch, a memory buffer (which is how Kafka's
cleaner reads) is strict about sizes and magics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.twin.batches import LOG_OVERHEAD_BYTES, Batch, parse_batch
from tests.twin.errors import CorruptRecordError
from tests.twin.legacy import MIN_RECORD_BYTES, LegacyBatch, parse_legacy_batch

AnyBatch: TypeAlias = Batch | LegacyBatch

MAGIC_PREFIX_BYTES = 17
LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"


def parse_any(data: bytes) -> AnyBatch:
    """Return the batch that `data` holds, of whatever magic."""
    return parse_legacy_batch(data) if data[16] < 2 or data[16] > 127 else parse_batch(data)


def file_batches(data: bytes, start: int = 0) -> Iterator[tuple[int, AnyBatch]]:
    """(position, batch) of a file's content, from `start` to the first batch that is not complete (01 §2.2).

    Raises:
        CorruptRecordError: a size below 14.
    """
    position = start
    while position < len(data) - MAGIC_PREFIX_BYTES:
        (size,) = struct.unpack_from(">i", data, position + 8)
        if size < MIN_RECORD_BYTES:
            raise CorruptRecordError(f"batch of size {size} at position {position}")
        end = position + LOG_OVERHEAD_BYTES + size
        if end > len(data):
            return
        yield position, parse_any(data[position:end])
        position = end


def buffer_batches(data: bytes, start: int = 0) -> Iterator[tuple[int, AnyBatch]]:
    """(position, batch) of a buffer's content from `start`, with the order of checks of 01 §2.3.

    Raises:
        CorruptRecordError: a size below 14, a magic outside of 0 to 2.
    """
    position = start
    while position + LOG_OVERHEAD_BYTES <= len(data):
        (size,) = struct.unpack_from(">i", data, position + 8)
        if size < MIN_RECORD_BYTES:
            raise CorruptRecordError(f"batch of size {size} at position {position}")
        if position + MAGIC_PREFIX_BYTES > len(data):
            return
        if data[position + 16] > 2:
            raise CorruptRecordError(f"batch of magic {data[position + 16]} at position {position}")
        end = position + LOG_OVERHEAD_BYTES + size
        if end > len(data):
            return
        yield position, parse_any(data[position:end])
        position = end


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a directory; files are read when asked for."""

    directory: Path
    base_offset: int

    def path(self, suffix: str) -> Path:
        """Return the segment's file with `suffix`."""
        return self.directory / f"{self.base_offset:020d}{suffix}"

    def read(self, suffix: str) -> bytes:
        """Content of the file with `suffix`, empty where there is none."""
        path = self.path(suffix)
        return path.read_bytes() if path.exists() else b""

    def log_bytes(self) -> int:
        """Length of the `.log`."""
        return self.path(LOG).stat().st_size

    def mtime_ms(self) -> int:
        """Modification time of the `.log`."""
        return self.path(LOG).stat().st_mtime_ns // 1_000_000

    def batches(self) -> list[tuple[int, AnyBatch]]:
        """(position, batch) of every complete batch."""
        return list(file_batches(self.read(LOG)))

    def next_offset(self) -> int:
        """Return one past the last complete batch's last offset, the base offset where there is none."""
        batches = self.batches()
        return batches[-1][1].next_offset if batches else self.base_offset


def list_segments(directory: Path) -> list[Segment]:
    """Return the segments of a partition directory, ascending."""
    return [Segment(directory, int(path.name.split(".", 1)[0])) for path in sorted(directory.glob("*" + LOG))]


def list_snapshots(directory: Path) -> list[int]:
    """Offsets of the producer snapshots in a partition directory, ascending."""
    return sorted(int(path.name.split(".", 1)[0]) for path in directory.glob("*" + SNAPSHOT))


def segments_between(segments: list[Segment], start: int, end: int) -> list[Segment]:
    """Kafka's `segments(from, to)`: from the one that contains `start` up to, not including, base offset `end`."""
    if start == end:
        return []
    floors = [segment.base_offset for segment in segments if segment.base_offset <= start]
    first = floors[-1] if floors else start
    return [segment for segment in segments if first <= segment.base_offset < end]
