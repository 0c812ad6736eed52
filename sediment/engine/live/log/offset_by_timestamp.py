"""Offsets of a live log by time: Kafka's fetchOffsetByTimestamp (kafka-log 04 §9).

    a time                the first record at or after it; only the first segment that reaches this time is searched
    earliest (-2, -4)     the log start, with the first leader epoch
    latest (-1)           the log end, with the latest epoch
    largest time (-3)     the first record with the largest timestamp (`Segment.largest_timestamp_search`)
    tiered (-5, -6)       unknown: -1

Records below the log start are skipped (`Segment.timestamp_search`).  The epoch of a record is the epoch of its batch.

The lock is held only until it is known where to search, because a batch may expand to many bytes.  If the log was
truncated meanwhile, the search begins again.
"""

from __future__ import annotations

from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.live.log.fetched_data import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NOT_KNOWN,
    TimestampOffsetEpoch,
)
from sediment.engine.live.log.local_log import LocalLog
from sediment.segment_io.errors import CorruptBatchError, UsageError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH, NO_TIMESTAMP
from sediment.segment_io.segment.timestamp_search import FoundRecord, TimestampSearch


def lookup_timestamp(log: LocalLog, target_ms: int, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
    """Return the first record at or after a time; None if there is none.

    If the time is a constant such as EARLIEST_TIMESTAMP, return the offset that it stands for.

    Raises:
        UsageError: the time is negative and not one of these constants.
        CorruptBatchError: the segment is corrupt.
        StorageError: the disk failed.
        LongWorkError: `only_quick` is True, and a large batch must be searched.
    """
    while True:
        with log.locked():
            if target_ms < 0 and target_ms != MAX_TIMESTAMP:
                return _special(log, target_ms)
            search, truncations = _search(log, target_ms), log.truncations
        if search is None:
            return None
        try:
            record = search.find(only_quick=only_quick)
        except OSError as error:
            with log.lock:
                log.fail(error)
        except CorruptBatchError:
            if log.truncations == truncations:
                raise
        else:
            if log.truncations == truncations:
                return None if record is None else _found(record)


def _special(log: LocalLog, target_ms: int) -> TimestampOffsetEpoch:
    log_start = log.offsets.log_start
    if target_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        first = log.epochs[0] if log.epochs else None
        known = first is not None and first.start_offset <= log_start
        epoch = first.epoch if first is not None and known else NO_LEADER_EPOCH
        return TimestampOffsetEpoch(NO_TIMESTAMP, log_start, epoch)
    if target_ms == LATEST_TIMESTAMP:
        return TimestampOffsetEpoch(NO_TIMESTAMP, log.offsets.log_end, latest_epoch(log.epochs))
    if target_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return TimestampOffsetEpoch(NO_TIMESTAMP, NOT_KNOWN, NO_LEADER_EPOCH)
    raise UsageError(f"timestamp {target_ms} has no meaning", partition=str(log.partition))


def _search(log: LocalLog, target_ms: int) -> TimestampSearch | None:
    """Return where to search; only the first segment with a timestamp at or above the target is searched."""
    if target_ms == MAX_TIMESTAMP:
        latest = max(log.segments, key=lambda segment: segment.largest.timestamp_ms)
        return None if latest.largest.timestamp_ms < 0 else latest.largest_timestamp_search()
    segment = next((each for each in log.segments if each.largest_timestamp_ms >= target_ms), None)
    return None if segment is None else segment.timestamp_search(target_ms, log.offsets.log_start)


def _found(record: FoundRecord) -> TimestampOffsetEpoch:
    return TimestampOffsetEpoch(record.timestamp_ms, record.offset, record.leader_epoch)
