"""Appending to a live log (kafka-log 04 §1 to §3).

    1  read_batches     check sizes and checksums, without the lock
    2  check            check and decompress the batches of a leader, without the lock; the lock is held only for the
                        assignment of offsets and append time, or for the check of given offsets
    3  producers.check  refuse old epochs, gaps in sequences and unverified transactions; recognise duplicates
    4  roll             roll the log if the active segment is full
    5  write            write leader epochs and batches, then update producers and log end; flush after flush.messages

    log end             a leader assigns offsets from the log end on; a follower's append must not begin below the log
                        end, but may leave a gap
    segment.bytes       an append larger than this is refused
    magic 0 and 1       an append of these removes all leader epochs
    duplicate           a duplicate is not written; the result has the offsets of the first append
    no batch            an append without a batch changes nothing and rolls nothing

An append does not write partition.metadata, which is written when the log is opened.

Invariant: an append is checked completely before anything changes, so a refused append leaves no trace.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sediment.engine.directory.leader_epochs import Epochs, assign
from sediment.engine.live.log.append_analysis import AppendBuffers, BatchFields, CompleteBatches, read_batches
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.log.log_flush import flush_locked, should_flush
from sediment.engine.live.log.log_roll import roll, should_roll
from sediment.engine.live.log.producer_appends import ProducerUpdate, VerificationGuard
from sediment.engine.live.log.validation import validate_batches
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import RecordBatchTooLargeError, SedimentError, UnexpectedAppendOffsetError, UsageError
from sediment.segment_io.format import legacy
from sediment.segment_io.format.index_appends import fits_segment
from sediment.segment_io.format.layout import CODEC_NONE, INT32_MAX, MAGIC_V2, NO_TIMESTAMP
from sediment.segment_io.format.record_decoder import OFFSET_DELTA
from sediment.segment_io.partition.producer_state import NO_OFFSET, RememberedBatch
from sediment.segment_io.segment.reader import Rows


class AppendInfo(NamedTuple):
    """The result of an append; without batches the offsets are -1 and nothing changed.

    As in Kafka, `first_offset` is also -1 if a follower appended a compressed message of magic 0 or 1.  The header of
    such a message contains only the last offset.  For a duplicate, offsets and timestamp come from the first append.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    appended_bytes: int
    is_duplicate: bool = False


class _ThreadLocalBuffers(threading.local):
    """One set of append buffers for each thread; a thread uses its set for all logs."""

    def __init__(self) -> None:
        self.buffers = AppendBuffers()


THREAD_LOCAL = _ThreadLocalBuffers()


class AppendRequest(NamedTuple):
    """`guard` is used for the first batch of a transaction, and `transaction_version` for a marker.

    With `only_quick`, a large batch is not appended, because others wait for this thread.
    """

    leader_epoch: int
    origin: AppendOrigin
    transaction_version: int
    guard: VerificationGuard | None = None
    only_quick: bool = False


def append(log: LocalLog, records: Buffer, request: AppendRequest) -> AppendInfo:
    try:
        log.check_usable()
        while True:
            info = _append(log, records, request)
            if info is not None:
                return info
    except SedimentError as error:
        error.partition = str(log.partition)
        raise


def _append(log: LocalLog, records: Buffer, request: AppendRequest) -> AppendInfo | None:
    config, buffers = log.config, THREAD_LOCAL.buffers
    # The lock is not held here, because checksums, decompression and checks take most of the time of a large append.
    batches = read_batches(
        records,
        buffers,
        origin=request.origin,
        leader_epoch=request.leader_epoch,
        max_message_bytes=config.compaction.max_message_bytes,
    )
    checked = None
    if request.origin.assigns_offsets and len(batches.rows):
        checked = validate_batches(
            batches, buffers, config, origin=request.origin, now_ms=log.clock(), only_quick=request.only_quick
        )
    with log.locked():
        if log.config is not config:
            return None
        if not len(batches.rows):
            return AppendInfo(-1, -1, NO_TIMESTAMP, NO_TIMESTAMP, log.offsets.log_start, 0)
        now_ms = log.clock()
        append_time_ms = NO_TIMESTAMP
        if checked is None:
            _check_given_offsets(log, batches)
        else:
            validated = checked.assigned(
                first_offset=log.offsets.log_end, leader_epoch=request.leader_epoch, now_ms=now_ms
            )
            batches, append_time_ms = validated.batches, validated.log_append_time_ms
        return _write(log, batches, append_time_ms, now_ms, request)


def _check_given_offsets(log: LocalLog, batches: CompleteBatches) -> None:
    first = batches.first()
    log_end = log.offsets.log_end
    if first.base_offset < log_end:
        first_offset, last_offset = _first_offset(batches, first), int(batches.rows["last_offset"][-1])
        raise UnexpectedAppendOffsetError(
            f"batches at offsets {first_offset} to {last_offset} cannot follow the log end offset {log_end}",
            first_offset=first_offset,
            last_offset=last_offset,
            offset=first_offset,
            advice="truncate the log or fetch from its end",
        )
    last_offset = int(batches.rows["last_offset"][-1])
    if not fits_segment(last_offset, first.base_offset):
        raise UnexpectedAppendOffsetError(
            f"batches at offsets {first.base_offset} to {last_offset} do not fit into one segment",
            first_offset=first.base_offset,
            last_offset=last_offset,
            offset=first.base_offset,
            advice="append them one after the other",
        )


def _write(
    log: LocalLog, batches: CompleteBatches, append_time_ms: int, now_ms: int, request: AppendRequest
) -> AppendInfo:
    """Source: kafka-log 04 §1 steps 5 to 13."""
    rows = batches.rows
    first_offset, last_offset, max_timestamp_ms, has_producer = batches.summary()
    if batches.size_bytes > log.config.compaction.segment_bytes:
        raise RecordBatchTooLargeError(
            f"an append of {batches.size_bytes} bytes is larger than segment.bytes, "
            f"{log.config.compaction.segment_bytes}",
            advice="append less at once",
        )
    epochs = _assign_epochs(log.epochs, rows)
    update = None
    if has_producer:
        with_producer = (fields for fields in batches.fields() if fields.producer_id >= 0 and fields.magic >= MAGIC_V2)
        update = log.producers.check(
            with_producer,
            origin=request.origin,
            guard=request.guard,
            transaction_version=request.transaction_version,
        )
        if update.duplicate is not None:
            return _duplicate(log, update.duplicate)
    rolls = should_roll(
        log.segments.active,
        segment_bytes=log.config.compaction.segment_bytes,
        max_segment_ms=log.config.max_segment_ms,
        append_bytes=batches.size_bytes,
        max_timestamp_ms=max_timestamp_ms,
        last_offset=last_offset,
        now_ms=now_ms,
    )
    log_end = last_offset + 1
    flushes = should_flush(log.offsets, log_end, log.config)
    if rolls or flushes or epochs is not log.epochs or (update is not None and update.ended):
        with log.changing_files():
            if rolls:
                roll(log, first_offset if rows["magic"][0] >= MAGIC_V2 else last_offset - INT32_MAX)
            log.put_epochs(epochs)
            _store(log, batches, log_end, update)
            if flushes:
                flush_locked(log, log_end)
    else:
        # From here on, every file that the next steps need is open.
        _store(log, batches, log_end, update)
    return AppendInfo(
        first_offset if request.origin.assigns_offsets or _has_first_offset(batches) else NO_OFFSET,
        last_offset,
        max_timestamp_ms if append_time_ms == NO_TIMESTAMP else append_time_ms,
        append_time_ms,
        log.offsets.log_start,
        batches.size_bytes,
    )


def _assign_epochs(entries: Epochs, rows: Rows) -> Epochs:
    """Source: kafka-log 04 §1 step 5."""
    found = rows["leader_epoch"]
    if len(rows) == 1:
        starts: Sequence[int] = (0,)
    else:
        starts = [0, *(np.flatnonzero((found[1:] != found[:-1]) | (rows["magic"][1:] != rows["magic"][:-1])) + 1)]
    for start in starts:
        epoch, offset = int(found[start]), int(rows["base_offset"][start])
        if rows["magic"][start] < MAGIC_V2:
            entries = () if entries else entries
        elif epoch < 0:
            raise UsageError(f"a batch has leader epoch {epoch}", offset=offset)
        elif not entries or entries[-1].epoch != epoch or entries[-1].start_offset > offset:
            entries = assign(entries, epoch, offset)
    return entries


def _store(log: LocalLog, batches: CompleteBatches, log_end: int, update: ProducerUpdate | None) -> None:
    log.segments.active.append(batches)
    log.offsets = log.offsets.appended_to(log_end)
    if update is not None:
        aborted = log.producers.apply(update)
        if aborted:
            log.segments.add_aborted(aborted)


def _duplicate(log: LocalLog, batch: RememberedBatch) -> AppendInfo:
    return AppendInfo(
        batch.first_offset,
        batch.last_offset,
        batch.timestamp_ms,
        NO_TIMESTAMP,
        log.offsets.log_start,
        0,
        is_duplicate=True,
    )


def _has_first_offset(batches: CompleteBatches) -> bool:
    # In the header of a compressed message of magic 0 or 1, the first offset is missing.
    return int(batches.rows["magic"][0]) >= MAGIC_V2 or batches.first().codec == CODEC_NONE


def _first_offset(batches: CompleteBatches, first: BatchFields) -> int:
    if _has_first_offset(batches):
        return first.base_offset
    entry = batches.buffer[first.position : first.position + first.size_bytes].tobytes()
    return int(legacy.unwrap(entry, limit_bytes=INT32_MAX).records[0, OFFSET_DELTA])
