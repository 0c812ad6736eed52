"""The end of a segment that is being loaded: the next offset and the position after its last batch."""

from __future__ import annotations

from sediment.engine.directory.loading.load_state import LoadingSegment, LoadState
from sediment.segment_io.partition.segment_end import find_segment_end


def end_by_headers(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    """Return (next offset, end position) of the last complete batch, as `find_segment_end` finds it.

    Source: kafka-log 05 §3 (readNextOffset).
    """
    key = segment.base_offset, segment.ref.log_bytes, segment.ref.offset_index_bytes
    if key not in state.segment_ends:
        state.segment_ends[key] = find_segment_end(state.directory, segment.ref, state.fs)
    return state.segment_ends[key]


def end_of(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    """Return (next offset, end position) of the last batch, even if there is corruption before this batch."""
    if segment.scan is None:
        return end_by_headers(state, segment)
    next_offset, position = segment.scan.next_offset, segment.scan.good_bytes
    if position < segment.ref.log_bytes:
        found_offset, found_position = end_by_headers(state, segment)
        return max(next_offset, found_offset), max(position, found_position)
    return next_offset, position
