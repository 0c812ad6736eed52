"""The append of plain batches of a client: the most frequent append, made by one compiled call and few Python steps.

    1  check     a kernel verifies the checksum, the header and every record, without the lock
    2  decide    the append must change no leader epoch, open no segment and need no flush; its producer must be known,
                 and the batch must be the next one of this producer
    3  write     write offset and leader epoch into the header, then the batch and its index entries; then set the log
                 end and the producer's state

A plain batch is a batch that needs no new checksum: see `check_plain_batch`.

Invariants: `append` returns None only if nothing has changed. Files, state and result are
the same as after `log_append.append`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.log.log_append import THREAD_LOCAL, AppendInfo
from sediment.engine.live.log.log_flush import should_flush
from sediment.engine.live.log.log_roll import should_roll
from sediment.engine.live.log.segment import CheckedRun
from sediment.engine.live.log.validation import LOG_APPEND_TIME, PRODUCER_CODEC, UNCOMPRESSED
from sediment.engine.log_config import LogConfig
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.layout import ATTRIBUTES, BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, NO_TIMESTAMP
from sediment.segment_io.segment.append_check_kernels import (
    AFTER_MAX_MS,
    BEFORE_MAX_MS,
    NEEDS_KEY,
    NOT_PLAIN_BITS,
    PLAIN_RULE_FIELDS,
    PlainRules,
    check_plain_batch,
    check_short_plain_batch,
)
from sediment.segment_io.segment.append_run_kernels import RUN_END, RunRows, check_plain_run, check_short_plain_run

_put_offset_length_epoch = struct.Struct(">qii").pack_into
_new_tuple = tuple.__new__  # each append makes an AppendInfo, and the constructor of that class takes longer
_LOW_ATTRIBUTES = ATTRIBUTES + 1
_SHORT_BYTES = 32 << 10
"""The largest batch that is checked under the interpreter lock; such a check takes a few microseconds."""


class _Rules(NamedTuple):
    config: LogConfig
    max_bytes: int
    """The size of the largest batch; 0 if an append changes the records, because of another codec or LogAppendTime."""

    segment_bytes: int
    max_segment_ms: int
    for_records: PlainRules

    @classmethod
    def of(cls, config: LogConfig) -> _Rules:
        keeps_codec = config.compression_type in (PRODUCER_CODEC, UNCOMPRESSED)
        keeps_records = keeps_codec and config.message_timestamp_type != LOG_APPEND_TIME
        largest = min(config.compaction.max_message_bytes, config.compaction.segment_bytes)
        for_records = np.zeros(PLAIN_RULE_FIELDS, dtype=np.int64)
        for_records[NEEDS_KEY] = config.compacts
        for_records[BEFORE_MAX_MS] = config.message_timestamp_before_max_ms
        for_records[AFTER_MAX_MS] = config.message_timestamp_after_max_ms
        return cls(
            config,
            largest if keeps_records else 0,
            config.compaction.segment_bytes,
            config.max_segment_ms,
            for_records,
        )


class AppendedRun(NamedTuple):
    batches: int
    first_offset: int
    log_start_offset: int


class PlainAppends:
    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._rules = _Rules.of(log.config)

    def append(self, records: Buffer, leader_epoch: int) -> AppendInfo | None:
        log, buffers = self._log, THREAD_LOCAL.buffers
        size_bytes = len(records)
        config = log.config
        rules = self._rules
        if config is not rules.config:
            rules = self._rules = _Rules.of(config)
        if (
            not BATCH_HEADER_BYTES <= size_bytes <= rules.max_bytes
            or size_bytes > len(buffers.content)
            or (type(records) is memoryview and not (records.format == "B" and records.c_contiguous))
            or records[_LOW_ATTRIBUTES] & NOT_PLAIN_BITS
        ):
            return None
        content = buffers.content[:size_bytes]
        content[:] = records
        now_ms = log.clock()
        check = check_short_plain_batch if size_bytes <= _SHORT_BYTES else check_plain_batch
        count, largest_ms, producer_id, producer_epoch, sequence = check(
            buffers.address, size_bytes, now_ms, rules.for_records, buffers.all_records, buffers.errors
        )
        if not count:
            return None
        with log.lock:
            log.check_usable()
            offsets, epochs = log.offsets, log.epochs
            base_offset = offsets.log_end
            last_offset = base_offset + count - 1
            if (
                log.config is not config
                or not epochs
                or epochs[-1].epoch != leader_epoch
                or epochs[-1].start_offset > base_offset
                or should_flush(offsets, last_offset + 1, config)
            ):
                return None
            producer = None
            if producer_id >= 0:
                producer = log.producers.next_state(
                    producer_id, producer_epoch, sequence, base_offset, last_offset, largest_ms
                )
                if producer is None:
                    return None
            active = log.segments.active
            try:
                if should_roll(
                    active,
                    segment_bytes=rules.segment_bytes,
                    max_segment_ms=rules.max_segment_ms,
                    append_bytes=size_bytes,
                    max_timestamp_ms=largest_ms,
                    last_offset=last_offset,
                    now_ms=now_ms,
                ):
                    return None
                # Every file that the next steps need is now open.
                _put_offset_length_epoch(content, 0, base_offset, size_bytes - LOG_OVERHEAD_BYTES, leader_epoch)
                active.append_one(content, last_offset, largest_ms)
            except OSError as error:
                log.fail(error)
            log.offsets = offsets.appended_to(last_offset + 1)
            if producer is not None:
                log.producers.put(producer)
            return _new_tuple(
                AppendInfo, (base_offset, last_offset, largest_ms, NO_TIMESTAMP, offsets.log_start, size_bytes, False)
            )

    def append_run(self, address: int, rows: RunRows, count: int, leader_epoch: int) -> AppendedRun | None:
        """Append the batches of `count` requests, but stop before the first batch for which `append` would return None.

        The requests are at `address`; `repeated_requests` has filled `rows`. If `append` must decide on the first
        batch, change nothing and return None.
        """
        log, buffers = self._log, THREAD_LOCAL.buffers
        config = log.config
        rules = self._rules
        if config is not rules.config:
            rules = self._rules = _Rules.of(config)
        view = rows.data
        now_ms = log.clock()
        # Another thread's append may use up this room, so the room is checked again below.
        room_bytes = min(len(buffers.content), rules.segment_bytes - log.segments.active.size_bytes)
        check = check_short_plain_run if view[count - 1, RUN_END] <= _SHORT_BYTES else check_plain_run
        batches, size_bytes, records, largest_ms, has_producer = check(
            address,
            count,
            rules.max_bytes,
            now_ms,
            rules.for_records,
            buffers.address,
            room_bytes,
            rows,
            buffers.all_records,
            buffers.errors,
        )
        if not batches:
            return None
        with log.lock:
            log.check_usable()
            offsets, epochs = log.offsets, log.epochs
            base_offset = offsets.log_end
            last_offset = base_offset + records - 1
            active = log.segments.active
            if (
                log.config is not config
                or not epochs
                or epochs[-1].epoch != leader_epoch
                or epochs[-1].start_offset > base_offset
                or should_flush(offsets, last_offset + 1, config)
                or not active.size_bytes
            ):
                return None
            accepted, states = batches, None
            if has_producer:
                accepted, states = log.producers.after_run(view, batches, base_offset)
            if accepted == batches:
                try:
                    if should_roll(
                        active,
                        segment_bytes=rules.segment_bytes,
                        max_segment_ms=rules.max_segment_ms,
                        append_bytes=size_bytes,
                        max_timestamp_ms=largest_ms,
                        last_offset=last_offset,
                        now_ms=now_ms,
                    ) or not active.has_index_room(batches, size_bytes):
                        return None
                    # Every file that the next steps need is now open.
                    run = CheckedRun(batches, size_bytes, records, largest_ms, base_offset)
                    active.append_run(buffers, rows, run, leader_epoch)
                except OSError as error:
                    log.fail(error)
                log.offsets = offsets.appended_to(last_offset + 1)
                if states is not None:
                    log.producers.put_all(states)
                return AppendedRun(batches, base_offset, offsets.log_start)
        return self.append_run(address, rows, accepted, leader_epoch) if accepted else None
