"""Rolling of a live log: finish the active segment and start the next one (kafka-log 04 §6).

    size          an append rolls if the segment would become larger than segment.bytes
    age           an append rolls if the segment is older than max_segment_ms minus the jitter; the age is counted from
                  the timestamp of the first batch to that of the append, or from the creation of the segment
    index         an append rolls if an index is full; a time index is full one entry early (`Segment.open_to_append`)
    offset        an append rolls if an offset is above the base offset + 2^31 - 1
    base offset   it is the higher of the append's first offset and the log end
    roll          complete and trim the old segment (`Segment.become_inactive`), create the new one, write a snapshot of
                  the producers, and flush snapshot and old segment in the background

Stray files with the base offset are removed first; an empty active segment with this base offset is replaced.
"""

from __future__ import annotations

from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.log.log_flush import flush
from sediment.engine.live.log.segment import Segment
from sediment.segment_io.errors import StorageError, UsageError
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name

_SNAPSHOT = SegmentFileKind.SNAPSHOT


def should_roll(
    active: Segment,
    *,
    segment_bytes: int,
    max_segment_ms: int,
    append_bytes: int,
    max_timestamp_ms: int,
    last_offset: int,
    now_ms: int,
) -> bool:
    """Source: kafka-log 04 §6."""
    if active.size_bytes > segment_bytes - append_bytes:
        return True
    if active.size_bytes:
        first_ms = active.first_timestamp_ms()
        waited_ms = max_timestamp_ms - first_ms if first_ms >= 0 else now_ms - active.created_ms
        if waited_ms > max_segment_ms - active.jitter_ms:
            return True
    return not active.open_to_append(last_offset)


def roll(log: LocalLog, expected_offset: int) -> int:
    """Start a segment at the log end, or at `expected_offset` if it is higher; return the segment's base offset.

    The caller holds the lock. An empty active segment with that base offset is replaced.
    """
    base_offset = max(expected_offset, log.offsets.log_end)
    old = log.segments.active
    if base_offset == old.base_offset and not old.size_bytes:
        log.remove_segments([old.base_offset], snapshots=False)
    elif base_offset <= old.base_offset:
        raise UsageError(
            f"a segment cannot begin at {base_offset}, because the active one begins at {old.base_offset}",
            partition=str(log.partition),
        )
    else:
        _remove_stray_files(log, base_offset)
        old.become_inactive()
    log.add_segment(base_offset)
    log.write_snapshot(base_offset, synced=False)
    log.scheduler.schedule_once("flush-log", lambda: _flush_rolled(log, base_offset))
    return base_offset


def _remove_stray_files(log: LocalLog, base_offset: int) -> None:
    for kind in SegmentFileKind:
        if kind is not _SNAPSHOT:
            log.fs.unlink(log.directory / segment_file_name(base_offset, kind), missing_ok=True)


def _flush_rolled(log: LocalLog, base_offset: int) -> None:
    if log.is_closed or log.failure is not None:
        return
    try:
        with log.locked():
            snapshot = log.directory / segment_file_name(base_offset, _SNAPSHOT)
            if log.fs.exists(snapshot):
                log.fs.sync_file(snapshot)
        flush(log, base_offset, force_last_segment=False)
    except (StorageError, UsageError):
        # If the log was closed after the roll, it was flushed or needs no flush.  A disk failure was already reported.
        if not log.is_closed and log.failure is None:
            raise
