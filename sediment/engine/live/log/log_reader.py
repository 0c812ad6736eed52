"""Reading a live log: slices of segments, offsets by time, the last stable offset, and the view for the cleaner.

    read      the isolation gives the limit -> the segment -> a slice of its file        kafka-log 04 §8

    offset               below the log start or above the log end, it raises OffsetOutOfRangeError; at or above the
                         limit, the result is empty
    limit                the log end, the high watermark, or the last stable offset (TXN_COMMITTED)
    size                 a slice has at most max_bytes and may end inside a batch; with min_one_message, its first batch
                         is always complete
    start                a slice begins with a batch, which may begin below the offset; in a gap, with the next batch
    aborted              `transaction_index.collect_aborted` searches up to the next offset index entry after the slice

Invariants: a read finds its position under the lock, and reads its bytes without the lock; no function here changes the
log.
"""

from __future__ import annotations

from dataclasses import replace

from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.live.log.fetched_data import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NOT_KNOWN,
    FetchedData,
    Isolation,
    LogOffsetMetadata,
    TimestampOffsetEpoch,
)
from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.log.segment import Segment
from sediment.segment_io.errors import CorruptBatchError, UsageError
from sediment.segment_io.format.layout import INT64_MAX, NO_LEADER_EPOCH, NO_TIMESTAMP
from sediment.segment_io.format.transaction_index import AbortedTxn, collect_aborted
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.segment_io.partition.listing import SegmentRef, list_log
from sediment.segment_io.partition.log_view import LogView, SegmentTimes
from sediment.segment_io.segment.timestamp_search import FoundRecord, TimestampSearch


def read(
    log: LocalLog, start_offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
) -> FetchedData:
    if max_bytes < 0:
        raise UsageError(f"max_bytes is {max_bytes}; give at least 0", partition=str(log.partition))
    with log.locked():
        offsets = log.offsets
        if not offsets.log_start <= start_offset <= offsets.log_end:
            raise log.out_of_range(start_offset)
        limit = _limit(log, isolation)
        wants_aborted = isolation is Isolation.TXN_COMMITTED
        if start_offset >= limit:
            return _empty(start_offset, wants_aborted)
        if start_offset < log.segments.first_base_offset:
            raise log.out_of_range(start_offset)
        location = log.segments.find(start_offset)
        if location is None:
            return _empty(offsets.log_end, wants_aborted)
        segment, found = location
        end_position = _end_position(log, segment, limit)
        start = LogOffsetMetadata(found.base_offset, segment.base_offset, found.position)
        most = max(max_bytes, found.size_bytes) if min_one_message else max_bytes
        size_bytes = max(min(end_position - found.position, most), 0)
        if most == 0:
            return FetchedData(start, None, False, () if wants_aborted else None)
        aborted = None
        if wants_aborted:
            aborted = _aborted(log, segment, start_offset, found.position + size_bytes)
        records = FileSlice(segment.file, found.position, size_bytes) if size_bytes else None
        return FetchedData(start, records, most < found.size_bytes, aborted)


def _empty(offset: int, wants_aborted: bool) -> FetchedData:
    return FetchedData(LogOffsetMetadata(offset), None, False, () if wants_aborted else None)


def _limit(log: LocalLog, isolation: Isolation) -> int:
    if isolation is Isolation.LOG_END:
        return log.offsets.log_end
    return log.offsets.high_watermark if isolation is Isolation.HIGH_WATERMARK else last_stable_offset(log)


def _end_position(log: LocalLog, segment: Segment, limit: int) -> int:
    if limit >= log.offsets.log_end:
        return segment.size_bytes
    found = segment.find(limit)
    return segment.size_bytes if found is None else found.position


def _aborted(log: LocalLog, segment: Segment, start_offset: int, end_position: int) -> tuple[AbortedTxn, ...]:
    """Source: kafka-log 04 §8 step 7."""
    bound = segment.upper_bound(end_position)
    upper = log.segments.base_offset_after(segment) if bound is None else bound.offset
    return collect_aborted(
        log.segments.transaction_indexes_from(segment), start_offset, log.offsets.log_end if upper is None else upper
    )


def first_unstable_offset(log: LocalLog) -> int | None:
    """A transaction is undecided if it is open, or if its marker is at or above the high watermark.

    If that transaction began below the log start, return the base offset of the first batch that a read at the log
    start returns.
    """
    with log.lock:
        unstable = log.producers.first_unstable_offset()
        log_start = log.offsets.log_start
        if unstable is None or unstable >= log_start:
            return unstable
        with log.locked():
            found = log.segments.find(log_start)
        return log_start if found is None else max(found[1].base_offset, log_start)


def last_stable_offset(log: LocalLog) -> int:
    unstable = first_unstable_offset(log)
    high_watermark = log.offsets.high_watermark
    return high_watermark if unstable is None else min(unstable, high_watermark)


def offset_metadata(log: LocalLog, offset: int) -> LogOffsetMetadata:
    with log.locked():
        if not log.offsets.log_start <= offset <= log.offsets.log_end:
            raise log.out_of_range(offset)
        location = None if offset == log.offsets.log_end else log.segments.find(offset)
        if location is None:
            return LogOffsetMetadata(offset, log.segments.active.base_offset, log.segments.active.size_bytes)
        segment, found = location
        return LogOffsetMetadata(offset, segment.base_offset, found.position)


def segment_refs(log: LocalLog) -> tuple[SegmentRef, ...]:
    with log.locked():
        found = list_log(log.partition, log.directory, log.fs).segments
        sizes = log.segments.sizes_bytes()
        return tuple(replace(ref, log_bytes=sizes[ref.base_offset]) for ref in found if ref.base_offset in sizes)


def view(log: LocalLog, *, first_dirty_checkpoint: int | None, now_ms: int) -> LogView:
    with log.locked():
        segments = list(log.segments)
        has_lag = log.config.compaction.max_compaction_lag_ms < INT64_MAX
        times = [
            SegmentTimes(
                segment.largest_timestamp_ms,
                segment.first_timestamp_ms() if has_lag and segment is not log.segments.active else NO_TIMESTAMP,
            )
            for segment in segments
        ]
        aborted = [entry for segment in segments for entry in segment.transaction_index.index().transactions()]
        offsets = log.offsets
        producers = log.producers.state(offsets.log_end)
        producers = producers.without_expired(now_ms, log.producers.expiration_ms)
        return LogView(
            listing=list_log(log.partition, log.directory, log.fs),
            segment_times=tuple(times),
            first_dirty_checkpoint=first_dirty_checkpoint,
            log_start_offset=offsets.log_start,
            high_watermark=offsets.high_watermark,
            last_stable_offset=last_stable_offset(log),
            log_end_offset=offsets.log_end,
            unverified_from_offset=None,
            producers=tuple(producers.entries.values()),
            aborted=tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
        )


def lookup_timestamp(log: LocalLog, target_ms: int, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
    """Return the first record at or after a time; None if there is none (kafka-log 04 §9).

    If the time is a constant such as EARLIEST_TIMESTAMP, return the offset that it stands for.

        a time                the first record at or after it; only the first segment that reaches this time is searched
        earliest (-2, -4)     the log start, with the first leader epoch
        latest (-1)           the log end, with the latest epoch
        largest time (-3)     the first record with the largest timestamp (`Segment.largest_timestamp_search`)
        tiered (-5, -6)       unknown: -1

    Records below the log start are skipped (`Segment.timestamp_search`). The lock is held only until it is known where
    to search, because a batch may expand to many bytes. If the log was truncated meanwhile, the search begins again.

    Raises:
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
    if target_ms == MAX_TIMESTAMP:
        latest = max(log.segments, key=lambda segment: segment.largest.timestamp_ms)
        return None if latest.largest.timestamp_ms < 0 else latest.largest_timestamp_search()
    segment = next((each for each in log.segments if each.largest_timestamp_ms >= target_ms), None)
    return None if segment is None else segment.timestamp_search(target_ms, log.offsets.log_start)


def _found(record: FoundRecord) -> TimestampOffsetEpoch:
    return TimestampOffsetEpoch(record.timestamp_ms, record.offset, record.leader_epoch)
