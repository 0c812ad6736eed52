"""A sample of a log: chunks that are spread evenly over its segments; each chunk begins at an indexed batch.

Invariants: a log that fits into the budget is read completely.  Only one chunk at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan

SAMPLE_CHUNK_BYTES = 1 << 20


def sampled_batches(
    directory: Path, segments: Sequence[SegmentRef], fs: Fs, *, budget_bytes: int = INT64_MAX
) -> Iterator[BatchSpan]:
    """Yield about `budget_bytes` of whole batches of `segments`; a span is valid until the next span is requested.

    CRCs are not checked.
    """
    total_bytes = sum(segment.log_bytes for segment in segments)
    if total_bytes <= budget_bytes:
        for segment in segments:
            if segment.log_bytes:
                yield from _spans(directory, segment, fs)
        return
    chunks = max(budget_bytes // SAMPLE_CHUNK_BYTES, 1)
    middles = [(2 * number + 1) * total_bytes // (2 * chunks) for number in range(chunks)]
    below = 0
    for segment in segments:
        inside = [middle - below for middle in middles if below <= middle < below + segment.log_bytes]
        below += segment.log_bytes
        for position in _indexed_positions(directory, segment, inside, fs):
            try:
                yield from _chunk(directory, segment, position, fs)
            # The index may be wrong, so chunks that do not begin with a batch are skipped.
            except CorruptDataError:
                continue


def _indexed_positions(directory: Path, segment: SegmentRef, positions: Sequence[int], fs: Fs) -> list[int]:
    if not positions:
        return []
    entries = [0]
    if segment.offset_index_bytes:
        name = segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
        with suppress(CorruptDataError):
            entries += parse_offset_index(fs.read_bytes(directory / name), segment.base_offset).positions.tolist()
    return sorted({max(entry for entry in entries if entry <= position) for position in positions})


def _chunk(directory: Path, segment: SegmentRef, position: int, fs: Fs) -> Iterator[BatchSpan]:
    taken_bytes = 0
    for span in _spans(directory, segment, fs, position):
        yield span
        taken_bytes += span.end - span.start
        if 2 * taken_bytes >= SAMPLE_CHUNK_BYTES:
            return


def _spans(directory: Path, segment: SegmentRef, fs: Fs, position: int = 0) -> Iterator[BatchSpan]:
    path = directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)
    return HeaderScan(path, position, size_bytes=segment.log_bytes, fs=fs).spans()
