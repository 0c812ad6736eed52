"""Recovery of a log during a load: the verification after an unclean stop, and the ends of the log.

    unverified_from      finds the segment at which the recovery begins: the one that contains the recovery point
    recover_unverified   recovers this segment and all later ones after an unclean stop
    check_trusted        checks the trusted segments, which a broker does not read when it loads the log
    settle_ends          determines the log end; if it is below the log start checkpoint, an empty segment at the log
                         start replaces all segments (with `verify_trusted`, a cleanly stopped log is refused instead)
                         determines the recovery point: the log end after a clean stop; otherwise its checkpoint, but
                         at most the log end

    situation                             log         offset, time index   transaction index     decided by
    clean stop                            trusted     trusted              last offset >= base   `log_recovery`
    unclean stop, below recovery point    trusted     trusted              last offset >= base   `log_recovery`
    unclean stop, all other segments      every CRC   rebuilt              rebuilt               `log_recovery`
    no offset index                       every CRC   rebuilt              rebuilt               `log_loader`
    corrupt transaction index             every CRC   rebuilt              rebuilt               `log_loader`

A decreasing offset ends the scan of a segment, as a corrupt batch does (`recovery_scan`).  An I/O error is not
corruption: it ends the load of the partition.

Source: Kafka's LogLoader.recoverLog (kafka-log 05 §3, §5).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from sediment.engine.directory.loading.load_state import (
    LoadCorruption,
    LoadingSegment,
    LoadState,
    end_by_headers,
    end_of,
)
from sediment.engine.directory.loading.segment_recovery import (
    NO_MATCH,
    ScannedAhead,
    announce_cut,
    cut_log,
    is_torn_tail,
    note_corruption,
    recover_segment,
    repair_segment,
    verify_segment,
)
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    CorruptDataError,
    IndexOffsetOverflowError,
    UnsupportedDataError,
)
from sediment.segment_io.format.layout import INT64_MAX, NO_LEADER_EPOCH
from sediment.segment_io.format.names import LOG_START_FILE
from sediment.segment_io.segment.reader import Rows

_MOST_BATCHES_AHEAD = 1 << 18


class _TooManyBatchesError(Exception):
    """The scan of a segment before its turn would have to keep too many batches in memory."""


def unverified_from(state: LoadState, base_offsets: list[int]) -> int:
    """Return the index of the first segment that a broker would verify; the number of segments if there is none."""
    if state.is_clean:
        return len(base_offsets)
    return max(bisect_right(base_offsets, state.recovery_point_checkpoint) - 1, 0)


def recover_unverified(state: LoadState) -> None:
    """The segments after a corrupt one are removed before the corrupt one is cut.

    So after a crash between these steps, the next start finds the corruption again.

    Source: kafka-log 05 §3.
    """
    first = unverified_from(state, [segment.base_offset for segment in state.segments])
    unverified = state.segments[first:]
    threads = min(state.threads, len(unverified))
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="sediment-verify") as pool:
        scans: deque[Future[ScannedAhead | None]] = deque()
        for index, segment in enumerate(unverified):
            if threads > 1:
                following = unverified[index + len(scans) : index + threads]
                scans.extend(pool.submit(_scan_ahead, state, one) for one in following)
            ahead = scans.popleft().result() if scans else None
            verified = verify_segment(state, segment, cut=True, ahead=ahead)
            if verified.cuts:
                for scan in scans:
                    scan.cancel()
                announce_cut(state, segment, verified.scan, unverified[index + 1 :])
                why = f"the log ends at offset {verified.scan.next_offset}, in segment {segment.base_offset}"
                state.remove_segments(unverified[index + 1 :], why)
            repair_segment(state, segment, verified, NO_MATCH)
            if verified.cuts:
                return


def _scan_ahead(state: LoadState, segment: LoadingSegment) -> ScannedAhead | None:
    """Return None if the scan must be repeated after the earlier segments are verified.

    This is so if the scan finds corruption, or too many batches to keep in memory.
    """
    tables: list[Rows] = []

    def keep(rows: Rows) -> None:
        if len(rows) + sum(map(len, tables)) > _MOST_BATCHES_AHEAD:
            raise _TooManyBatchesError
        tables.append(rows.copy())

    try:
        scan = state.scan(segment, keep, NO_LEADER_EPOCH, stop_if_offsets_go_back=True)
    except (CorruptDataError, UnsupportedDataError, _TooManyBatchesError):
        return None
    return ScannedAhead(scan, tuple(tables))


def settle_ends(state: LoadState) -> tuple[int, int]:
    """Return (recovery point, log end offset); afterwards, the log has at least one segment.

    Source: kafka-log 05 §3 steps 3 to 5.
    """
    if state.segments:
        log_end_offset, _ = end_of(state, state.segments[-1])
        if not state.segments[-1].base_offset <= log_end_offset <= INT64_MAX:
            raise CorruptDataError(
                "the last batch has the largest possible offset, so no further record can have an offset",
                partition=str(state.partition),
                path=str(state.path(state.segments[-1])),
                advice="a broker would delete the whole log; move this segment out of the directory",
            )
        if log_end_offset >= state.log_start_checkpoint:
            if state.is_clean:
                return log_end_offset, log_end_offset
            return min(state.recovery_point_checkpoint, log_end_offset), log_end_offset
        if state.is_clean and state.verify_trusted and any(segment.ref.log_bytes for segment in state.segments):
            raise CorruptCheckpointError(
                f"the log start offset {state.log_start_checkpoint} is above the log end {log_end_offset}, and a "
                "broker would delete every segment at its start",
                partition=str(state.partition),
                path=str(state.directory.parent / LOG_START_FILE),
                advice="restore the checkpoint that belongs to these segments, or remove the partition from it",
            )
        why = f"the log ends at {log_end_offset}, below the log start offset {state.log_start_checkpoint}"
        state.remove_segments(list(state.segments), why)
        state.put_epochs(())
        for offset in state.snapshots.offsets():
            state.snapshots.drop(offset, why)
    state.create_segment(state.log_start_checkpoint)
    return min(state.recovery_point_checkpoint, state.log_start_checkpoint), state.log_start_checkpoint


def check_trusted(state: LoadState) -> None:
    # A broker does not check the end: it finds the last complete batch, and appends after the torn bytes that follow
    # it.
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
