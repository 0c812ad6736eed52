"""The end of a segment that is being loaded: the next offset and the position after its last batch.

The search begins at the last offset index entry, and reads only the headers of batches.  A segment without a batch ends
at its base offset.

Source: Kafka's LogSegment.readNextOffset (kafka-log 05 §3).
"""

from __future__ import annotations

from contextlib import suppress

from sediment.engine.directory.loading.load_state import LoadingSegment, LoadState
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.layout import INT32_MAX, OFFSET_ENTRY_BYTES, OFFSET_ENTRY_STRUCT
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.segment.batch_boundaries import batch_ends

_OFFSET_INDEX = SegmentFileKind.OFFSET_INDEX


def end_by_headers(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    """Return (next offset, end position) of the last complete batch; the search begins at the last offset index entry.

    If that entry is wrong, the search begins at the segment's start.  Corruption inside a batch is ignored, because the
    batch's offsets must not be assigned again.

    Source: kafka-log 05 §3 (readNextOffset).
    """
    key = segment.base_offset, segment.ref.log_bytes, segment.ref.offset_index_bytes
    if key not in state.segment_ends:
        state.segment_ends[key] = _find_end(state, segment)
    return state.segment_ends[key]


def _find_end(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    position, offset = _last_offset_entry(state, segment)
    for start, largest in ((position, offset), (0, None)):
        next_offset, end_position = None, start
        with suppress(CorruptBatchError):
            for last_offset, batch_end in batch_ends(
                state.path(segment), state.fs, position=start, size_bytes=segment.ref.log_bytes
            ):
                if next_offset is None and largest is not None and last_offset > largest:
                    break
                if last_offset - segment.base_offset <= INT32_MAX:
                    next_offset = max(next_offset or 0, last_offset + 1)
                end_position = batch_end
        if next_offset is not None and next_offset > segment.base_offset:
            return next_offset, end_position
    return segment.base_offset, 0


def _last_offset_entry(state: LoadState, segment: LoadingSegment) -> tuple[int, int | None]:
    """Return (position, offset) of the last entry of the offset index; (0, None) if the index is missing or wrong."""
    count = (segment.ref.offset_index_bytes or 0) // OFFSET_ENTRY_BYTES
    if not count:
        return 0, None
    path = state.path(segment, _OFFSET_INDEX)
    relative_offset, position = OFFSET_ENTRY_STRUCT.unpack(state.index_entry(path, count - 1, OFFSET_ENTRY_BYTES))
    if relative_offset <= 0 or not 0 < position < segment.ref.log_bytes:
        return 0, None
    return position, segment.base_offset + relative_offset


def end_of(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    """Return (next offset, end position) of the last batch, even if there is corruption before this batch."""
    if segment.scan is None:
        return end_by_headers(state, segment)
    next_offset, position = segment.scan.next_offset, segment.scan.good_bytes
    if position < segment.ref.log_bytes:
        found_offset, found_position = end_by_headers(state, segment)
        return max(next_offset, found_offset), max(position, found_position)
    return next_offset, position
