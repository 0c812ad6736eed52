"""The ends of the complete batches of a segment file, from the header fields that all magics share (kafka-log 01 §2.2).

Kafka's FileLogInputStream reads a file in this way.  A broker finds the end of a trusted log in the same way
(LogSegment.readNextOffset).  It uses the offsets of a batch even if the rest of the batch is malformed.

Invariants: no checksum is computed.  Memory use is one window, for files and batches of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    LEGACY_MIN_LENGTH,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_PREFIX_BYTES,
)
from sediment.segment_io.fs import Fs

_WINDOW_BYTES = 1 << 16


def batch_ends(path: Path, fs: Fs, *, position: int = 0, size_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield (last offset, end position) of each complete batch between `position` and `size_bytes` of the file."""
    if size_bytes is None:
        entry = fs.entry(path)
        size_bytes = 0 if entry is None else entry.size_bytes
    window, start = b"", position
    while position < size_bytes - MAGIC_PREFIX_BYTES:
        if position + BATCH_HEADER_BYTES > start + len(window):
            window, start = fs.read_range(path, position, _WINDOW_BYTES), position
        header = window[position - start : position - start + BATCH_HEADER_BYTES]
        first = int.from_bytes(header[BASE_OFFSET : BASE_OFFSET + 8], "big", signed=True)
        length = int.from_bytes(header[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
        magic = int.from_bytes(header[MAGIC : MAGIC + 1], "big", signed=True)
        if length < LEGACY_MIN_LENGTH:
            raise CorruptBatchError(
                f"a batch has a length of {length} bytes, less than the smallest batch",
                path=str(path),
                position=position,
                offset=first,
                advice="a broker refuses to load this partition; restore it from a replica or a backup",
            )
        if position > size_bytes - LOG_OVERHEAD_BYTES - length:
            return
        delta = header[LAST_OFFSET_DELTA : LAST_OFFSET_DELTA + 4] if magic >= 2 else b""
        position += LOG_OVERHEAD_BYTES + length
        yield first + int.from_bytes(delta, "big", signed=True), position


def next_offset_of(path: Path, base_offset: int, fs: Fs) -> int:
    """Return the offset after the last whole batch of a segment file; `base_offset` if there is none.

    Source: kafka-log 01 §2.2, 05 §3 (readNextOffset).
    """
    next_offset = base_offset
    for last_offset, _ in batch_ends(path, fs):
        next_offset = last_offset + 1
    return next_offset
