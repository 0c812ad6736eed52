"""The files that a load trusts, and the checks of these files (kafka-log 05 §5).

    situation                             log         offset, time index   transaction index     decided by
    clean stop                            trusted     trusted              last offset >= base   unverified_from
    unclean stop, below recovery point    trusted     trusted              last offset >= base   unverified_from
    unclean, from the recovery point on   every CRC   rebuilt              rebuilt               unverified_from
    no offset index                       every CRC   rebuilt              rebuilt               why_recover
    corrupt transaction index             every CRC   rebuilt              rebuilt               why_recover

A broker calls sanityCheck only on the transaction index.  After a clean stop, Sediment also checks the end of the log;
with `verify_trusted`, it checks every batch.
"""

from __future__ import annotations

from bisect import bisect_right

from sediment.engine.directory.loading.load_state import LoadCorruption, LoadingSegment, LoadState
from sediment.engine.directory.loading.read_next_offset import end_by_headers
from sediment.engine.directory.loading.segment_recovery import (
    NO_MATCH,
    cut_log,
    is_torn_tail,
    note_corruption,
    recover_segment,
)
from sediment.segment_io.errors import CorruptIndexError, IndexOffsetOverflowError
from sediment.segment_io.format.index_sanity import check_last_offsets
from sediment.segment_io.format.layout import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.transaction_index import parse_transaction_index

_, _OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX, _ = SegmentFileKind


def unverified_from(state: LoadState, base_offsets: list[int]) -> int:
    """Return the index of the first segment that a broker would verify; the number of segments if there is none.

    After an unclean stop, this is the segment that contains the recovery point.
    """
    if state.is_clean:
        return len(base_offsets)
    return max(bisect_right(base_offsets, state.recovery_point_checkpoint) - 1, 0)


def why_recover(state: LoadState, segment: LoadingSegment) -> str | None:
    """Return the reason why a broker recovers this segment regardless of the recovery point, or None."""
    if segment.ref.offset_index_bytes is None:
        return "the segment had no offset index"
    path = state.path(segment, _TRANSACTION_INDEX)
    if segment.ref.transaction_index_bytes:
        try:
            index = parse_transaction_index(state.fs.read_bytes(path), path=str(path))
            check_last_offsets(index.last_offsets, segment.base_offset)
        except CorruptIndexError as error:
            return error.what
    return None


def trim_indexes(state: LoadState, segment: LoadingSegment) -> None:
    """Cut a partial last entry off trusted indexes, as a broker does when it stops."""
    for kind, size_bytes, entry_bytes in (
        (_OFFSET_INDEX, segment.ref.offset_index_bytes, OFFSET_ENTRY_BYTES),
        (_TIME_INDEX, segment.ref.time_index_bytes, TIME_ENTRY_BYTES),
    ):
        if size_bytes is not None and size_bytes % entry_bytes:
            content = state.fs.read_bytes(state.path(segment, kind))
            whole_bytes = size_bytes - size_bytes % entry_bytes
            state.put(segment, kind, content[:whole_bytes], "its last entry was not whole")


def check_trusted(state: LoadState) -> None:
    """Check the log after a clean stop: with `verify_trusted` every batch, otherwise its end.

    A broker does not check the end: it finds the last complete batch, and appends after the torn bytes that follow it.
    """
    for segment in state.segments:
        if segment.scan is not None:
            continue
        is_last = segment.following_base_offset is None
        is_torn = is_last and end_by_headers(state, segment)[1] < segment.ref.log_bytes
        if not (is_torn or state.verify_trusted):
            continue
        try:
            scan = state.scan(segment, None, 0, stop_if_offsets_go_back=False)
        except IndexOffsetOverflowError as error:
            _note_overflow(state, segment, error)
            continue
        if is_torn_tail(state, segment, scan):
            if is_last:
                recover_segment(state, segment, cut=False, reason=NO_MATCH)
            else:
                cut_log(state, segment, scan)
                state.fs.sync_file(state.path(segment))
        elif scan.good_bytes < segment.ref.log_bytes:
            note_corruption(state, segment, scan)


def _note_overflow(state: LoadState, segment: LoadingSegment, overflow: IndexOffsetOverflowError) -> None:
    state.corruption.append(LoadCorruption(segment.name(), overflow.position or 0, overflow.offset or 0, overflow.what))
