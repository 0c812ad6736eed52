"""Checks of the trusted segments of a log, which a broker does not read when it loads the log (kafka-log 05 §5).

    situation                             log         offset, time index   transaction index     decided by
    clean stop                            trusted     trusted              last offset >= base   `log_recovery`
    unclean stop, below recovery point    trusted     trusted              last offset >= base   `log_recovery`
    unclean stop, all other segments      every CRC   rebuilt              rebuilt               `log_recovery`
    no offset index                       every CRC   rebuilt              rebuilt               `log_loader`
    corrupt transaction index             every CRC   rebuilt              rebuilt               `log_loader`

After a clean stop, Sediment also checks the end of the log; with `verify_trusted`, it checks every batch.
"""

from __future__ import annotations

from sediment.engine.directory.loading.load_state import LoadCorruption, LoadingSegment, LoadState
from sediment.engine.directory.loading.read_next_offset import end_by_headers
from sediment.engine.directory.loading.segment_recovery import (
    NO_MATCH,
    cut_log,
    is_torn_tail,
    note_corruption,
    recover_segment,
)
from sediment.segment_io.errors import IndexOffsetOverflowError


def check_trusted(state: LoadState) -> None:
    """Check the log after a clean stop: every batch with `verify_trusted`, otherwise only the end of the log.

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
