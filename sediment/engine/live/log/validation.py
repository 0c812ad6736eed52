"""Validation of appends by a leader: checks of batches and records, assignment of offsets and timestamps, codecs.

    batch      an append has one batch, or several uncompressed messages of magic 0 or 1; all have the same magic
    client     the record count equals the span of the offsets; a producer's batch has a sequence; control batches are
               refused
    record     a record has a key if the topic is compacted; its CreateTime is -1, or is within the limits
               message.timestamp.before.max.ms and message.timestamp.after.max.ms
    errors     the error names the first MAX_RECORD_ERRORS bad records; if any timestamp is bad, it is about timestamps
    codec      compression.type sets the codec; `producer` keeps the batch's.  An uncompressed control batch is never
               compressed.
    in place   if the codec is the same and the offset deltas are 0, 1, 2 …, only header fields change (`stamp_batch`);
               the compression level does not matter
    rebuilt    all other batches are rebuilt, and so are messages of magic 0 and 1; max.message.bytes is checked again

Source: Kafka's LogValidator, and kafka-log 04 §2.

`validate_batches` does all of this without a lock of the log.

Invariants: nothing is written to a file, and the caller's bytes are not changed, because each thread works in its own
buffers. For batches of magic 2, no Python loop runs over the records, and the memory for decoded records does not
depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sediment.engine.live.log.append_analysis import (
    MAX_RECORD_ERRORS,
    AppendBuffers,
    BatchFields,
    ByteArray,
    CompleteBatches,
    too_large,
)
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.engine.log_config import LogConfig
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.padding import PADDING_BYTES, unfilled_buffer
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    OK,
)
from sediment.segment_io.errors import (
    CorruptBatchError,
    InvalidRecordError,
    RecordValidationError,
    UnsupportedForFormatError,
)
from sediment.segment_io.format import legacy
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, batch_of, build_batch
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.batch_rebuild import rebuilt_bound, write_records
from sediment.segment_io.format.compression.batch_payloads import decompressed_records
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_MASK,
    CODEC_NAMES,
    CODEC_NONE,
    CODEC_ZSTD,
    INT32_MAX,
    MAGIC,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.record_decoder import (
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_END,
    RECORD_FIELDS,
    RECORD_START,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
    decode_next_records,
)
from sediment.segment_io.segment.append_check_kernels import (
    KEY_IS_MISSING,
    MAGIC_IS_MIXED,
    NO_EPOCH_LIMIT,
    RECORD_IS_GOOD,
    TIMESTAMP_IS_OUT_OF_RANGE,
    TIMESTAMP_TYPE_IS_WRONG,
    RecordRules,
    check_payload,
    read_verified,
    stamp_batch,
    time_range,
)

LOG_APPEND_TIME = "LogAppendTime"
PRODUCER_CODEC = "producer"
UNCOMPRESSED = "uncompressed"

_REASON_TEXT = {
    KEY_IS_MISSING: "it has no key, and the topic is compacted",
    TIMESTAMP_IS_OUT_OF_RANGE: "its timestamp is out of the range that the topic accepts",
    TIMESTAMP_TYPE_IS_WRONG: "its timestamp type is LogAppendTime, which only a broker sets",
    MAGIC_IS_MIXED: "its magic differs from that of the compressed message around it",
}


# -------------------------------------------------------------------------------------------------------------- leaders
@dataclass(frozen=True, slots=True)
class ValidatedAppend:
    batches: CompleteBatches
    max_timestamp_ms: int
    log_append_time_ms: int


@dataclass(frozen=True, slots=True)
class CheckedAppend:
    """One checked batch of magic 2, in the buffers of its thread."""

    batches: CompleteBatches
    largest_ms: int
    """The largest timestamp of the records, or -1."""

    gets_append_time: bool

    def assigned(self, *, first_offset: int, leader_epoch: int, now_ms: int) -> ValidatedAppend:
        """Give the records offsets, beginning with `first_offset`; call this only once."""
        append_time_ms = now_ms if self.gets_append_time else NO_TIMESTAMP
        first = self.batches.first()
        # If the caller's base offset is very large, the last offset may have overflowed; the mask undoes this.
        last_delta = (first.last_offset - first.base_offset) & INT32_MAX
        base_offset = first_offset + first.record_count - 1 - last_delta
        max_timestamp_ms = append_time_ms if self.gets_append_time else self.largest_ms
        return _stamped(self.batches, base_offset, leader_epoch, append_time_ms, max_timestamp_ms)


def validate_batches(
    batches: CompleteBatches,
    buffers: AppendBuffers,
    config: LogConfig,
    *,
    origin: AppendOrigin,
    now_ms: int,
    only_quick: bool = False,
) -> CheckedAppend:
    """Source: kafka-log 04 §2."""
    first = batches.first()
    source_codec = _source_codec(batches, first)
    if len(batches.rows) > 1 and (first.magic >= MAGIC_V2 or source_codec != CODEC_NONE):
        raise InvalidRecordError("an append contains more than one batch", advice="append the batches one by one")
    for fields in batches.fields() if len(batches.rows) > 1 else (first,):
        _check_batch(fields, first, origin)
    gets_append_time = config.message_timestamp_type == LOG_APPEND_TIME
    target_codec = _target_codec(config, source_codec)
    if first.magic < MAGIC_V2:
        return _sealed(_convert(batches, config, target_codec, now_ms), config, buffers, gets_append_time)
    payload = decompressed_records(
        batches.buffer,
        first.position,
        first.size_bytes,
        first.codec,
        limit_bytes=config.compaction.max_decompressed_batch_bytes,
        only_quick=only_quick,
    )
    if first.record_count * MIN_RECORD_BYTES > payload.size - PADDING_BYTES:
        raise InvalidRecordError(STATUS_TEXT[BAD_RECORD_COUNT])
    records = buffers.records(first.record_count)
    largest_ms, consecutive = _check_records(payload, first, records, buffers, config, now_ms)
    in_place = source_codec == target_codec and (consecutive or source_codec == CODEC_NONE)
    if in_place or (first.is_control and source_codec == CODEC_NONE):
        return CheckedAppend(batches, largest_ms, gets_append_time)
    assembled = _rebuilt(batches, first, payload, records, largest_ms, config, target_codec)
    return _sealed(assembled, config, buffers, gets_append_time)


def _source_codec(batches: CompleteBatches, first: BatchFields) -> int:
    if len(batches.rows) == 1:
        return first.codec
    codecs = batches.rows["attributes"] & CODEC_MASK
    compressed = codecs[codecs != CODEC_NONE]
    return int(compressed[-1]) if compressed.size else CODEC_NONE


def _target_codec(config: LogConfig, source_codec: int) -> int:
    if config.compression_type == PRODUCER_CODEC:
        return source_codec
    return CODEC_NONE if config.compression_type == UNCOMPRESSED else CODEC_NAMES.index(config.compression_type)


def _level(config: LogConfig, codec: int) -> int | None:
    return {
        CODEC_GZIP: config.compression_gzip_level,
        CODEC_LZ4: config.compression_lz4_level,
        CODEC_ZSTD: config.compression_zstd_level,
    }.get(codec)


def _check_batch(fields: BatchFields, first: BatchFields, origin: AppendOrigin) -> None:
    """Source: kafka-log 04 §2.1."""
    if fields.magic != first.magic:
        raise InvalidRecordError(f"batches of magic {first.magic} and {fields.magic} are mixed in one append")
    if origin is AppendOrigin.CLIENT and fields.magic >= MAGIC_V2:
        span = fields.last_offset - fields.base_offset + 1
        if fields.record_count <= 0 or span != fields.record_count:
            raise InvalidRecordError(f"a batch of {fields.record_count} records spans {span} offsets")
        if fields.is_control:
            raise InvalidRecordError("a client may not write control records")
        if fields.producer_id != NO_PRODUCER_ID and fields.base_sequence < 0:
            raise InvalidRecordError(f"a batch of producer {fields.producer_id} has sequence {fields.base_sequence}")
    if fields.magic < MAGIC_V2 and fields.producer_id != NO_PRODUCER_ID:
        raise UnsupportedForFormatError(f"messages of magic {fields.magic} have no producer")


def _check_records(
    payload: ByteArray,
    fields: BatchFields,
    records: npt.NDArray[np.int64],
    buffers: AppendBuffers,
    config: LogConfig,
    now_ms: int,
) -> tuple[int, bool]:
    """Source: kafka-log 04 §2.2."""
    status, bad, bad_timestamps, largest_ms, consecutive = check_payload(
        payload.ctypes.data,
        payload.size - PADDING_BYTES,
        fields.record_count,
        fields.max_timestamp if fields.is_append_time else fields.base_timestamp,
        RecordRules(
            config.compacts and not fields.is_control,
            config.message_timestamp_type != LOG_APPEND_TIME,
            fields.is_append_time,
            *_time_range(config, now_ms),
        ),
        records,
        buffers.errors,
    )
    if status != OK:
        raise InvalidRecordError(STATUS_TEXT[status], advice="produce the batch again")
    if bad:
        raise _record_errors(buffers.errors[:bad].tolist(), bad, has_invalid_timestamp=bad_timestamps > 0)
    return largest_ms, consecutive


def _time_range(config: LogConfig, now_ms: int) -> tuple[int, int]:
    return time_range(now_ms, config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms)


def _record_errors(
    first_errors: Sequence[Sequence[int]], count: int, *, has_invalid_timestamp: bool
) -> RecordValidationError:
    errors = tuple((index, _REASON_TEXT[reason]) for index, reason in first_errors)
    index, what = errors[0]
    return RecordValidationError(
        f"record {index} of the batch cannot be appended: {what}" + (f" ({count} such)" if count > 1 else ""),
        record_errors=errors,
        has_invalid_timestamp=has_invalid_timestamp,
        advice="correct the records and append again",
    )


def _stamped(
    batches: CompleteBatches, base_offset: int, leader_epoch: int, append_time_ms: int, max_timestamp_ms: int
) -> ValidatedAppend:
    row = batches.rows[0]
    is_append_time = append_time_ms != NO_TIMESTAMP
    stamp_batch(
        batches.buffer.ctypes.data, batches.size_bytes, base_offset, leader_epoch, is_append_time, max_timestamp_ms
    )
    row["last_offset"] = base_offset + (int(row["last_offset"]) - int(row["base_offset"]) & INT32_MAX)
    row["base_offset"] = base_offset
    row["leader_epoch"] = leader_epoch
    row["max_timestamp"] = max_timestamp_ms
    if is_append_time:
        row["attributes"] |= TIMESTAMP_TYPE_BIT
    else:
        row["attributes"] &= ~TIMESTAMP_TYPE_BIT
    return ValidatedAppend(batches, max_timestamp_ms, append_time_ms)


# -------------------------------------------------------------------------------------------------------------- rebuilt
@dataclass(frozen=True, slots=True)
class _Assembled:
    payload: Buffer
    count: int
    base_timestamp_ms: int
    largest_ms: int
    head: BatchHead


def _sealed(assembled: _Assembled, config: LogConfig, buffers: AppendBuffers, gets_append_time: bool) -> CheckedAppend:
    """Source: kafka-log 04 §2.4, §2.5 step 4, §1 step 4."""
    max_message_bytes = config.compaction.max_message_bytes
    uncompressed_bytes = BATCH_HEADER_BYTES + len(assembled.payload)
    if assembled.head.codec == CODEC_NONE and uncompressed_bytes > max_message_bytes:
        raise too_large(uncompressed_bytes, max_message_bytes)
    content = batch_of(
        assembled.payload, assembled.count, assembled.base_timestamp_ms, assembled.largest_ms, assembled.head
    )
    if len(content) > max_message_bytes:
        raise too_large(len(content), max_message_bytes)
    buffer, size_bytes = buffers.copy_of(content)
    _, count, _, _ = read_verified(buffer.ctypes.data, size_bytes, NO_EPOCH_LIMIT, buffers.rows)
    return CheckedAppend(
        CompleteBatches(buffer, size_bytes, buffers.rows[:count]), assembled.largest_ms, gets_append_time
    )


def _rebuilt(
    batches: CompleteBatches,
    fields: BatchFields,
    payload: ByteArray,
    records: npt.NDArray[np.int64],
    largest_ms: int,
    config: LogConfig,
    codec: int,
) -> _Assembled:
    """`records` contains the checked records; if it has too few rows for them, they are decoded again, in parts."""
    count, size_bytes = fields.record_count, payload.size - PADDING_BYTES
    target = unfilled_buffer(rebuilt_bound(payload.size, count))
    header = batches.buffer.ctypes.data + fields.position
    stored = fields.max_timestamp if fields.is_append_time else fields.base_timestamp
    base_timestamp_ms = NO_TIMESTAMP
    end = target.ctypes.data
    position = 0
    for first in range(0, count, len(records)):
        rows = min(len(records), count - first)
        if count > len(records):
            _, position = decode_next_records(payload.ctypes.data, position, size_bytes, rows, records)
        if not first:
            base_timestamp_ms = stored if fields.is_append_time else stored + int(records[0, TIMESTAMP_DELTA])
        records[:rows, OFFSET_DELTA] = np.arange(first, first + rows)
        end = write_records(end, header, payload.ctypes.data, records, rows, base_timestamp_ms)
    head = BatchHead(
        codec=codec,
        level=_level(config, codec),
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=fields.base_sequence,
        is_transactional=fields.is_transactional,
        is_control=fields.is_control,
    )
    return _Assembled(target[: end - target.ctypes.data].data, count, base_timestamp_ms, largest_ms, head)


def _convert(batches: CompleteBatches, config: LogConfig, codec: int, now_ms: int) -> _Assembled:
    earliest_ms, latest_ms = _time_range(config, now_ms)
    new: list[NewRecord] = []
    errors: list[tuple[int, int]] = []
    for fields in batches.fields():
        for record, magic in _legacy_records(batches, fields, config):
            reason = RECORD_IS_GOOD
            if magic != fields.magic:
                reason = MAGIC_IS_MIXED
            elif config.compacts and record.key is None:
                reason = KEY_IS_MISSING
            elif config.message_timestamp_type != LOG_APPEND_TIME and record.timestamp_ms != NO_TIMESTAMP:
                if not earliest_ms <= record.timestamp_ms <= latest_ms:
                    reason = TIMESTAMP_IS_OUT_OF_RANGE
            elif fields.is_append_time:
                reason = TIMESTAMP_TYPE_IS_WRONG
            if reason != RECORD_IS_GOOD:
                errors.append((len(new), reason))
            new.append(record)
    if errors:
        has_invalid_timestamp = any(
            reason in (TIMESTAMP_IS_OUT_OF_RANGE, TIMESTAMP_TYPE_IS_WRONG) for _, reason in errors
        )
        raise _record_errors(errors[:MAX_RECORD_ERRORS], len(errors), has_invalid_timestamp=has_invalid_timestamp)
    head = BatchHead(codec=CODEC_NONE)
    payload = build_batch(new, head)[BATCH_HEADER_BYTES:]
    largest_ms = max(record.timestamp_ms for record in new)
    head = replace(head, codec=codec, level=_level(config, codec))
    return _Assembled(payload, len(new), new[0].timestamp_ms, largest_ms, head)


def _legacy_records(
    batches: CompleteBatches, fields: BatchFields, config: LogConfig
) -> Iterator[tuple[NewRecord, int]]:
    if fields.codec == CODEC_NONE:
        buffer = batches.buffer
        records = np.zeros((1, RECORD_FIELDS), dtype=np.int64)
        status = legacy.decode_entry(buffer.ctypes.data, fields.position, fields.size_bytes, records[0])
        if status != OK:
            raise InvalidRecordError(STATUS_TEXT[status])
    else:
        entry = batches.buffer[fields.position : fields.position + fields.size_bytes].tobytes()
        unwrapped = legacy.unwrap(entry, limit_bytes=config.compaction.max_decompressed_batch_bytes)
        buffer, records = unwrapped.buffer, unwrapped.records
        for start, end in records[:, [RECORD_START, RECORD_END]].tolist():
            # As in Kafka, a message of another magic is refused without a look at its checksum.
            has_magic = buffer[start + MAGIC] == fields.magic
            if has_magic and legacy.check_legacy_crc(buffer.ctypes.data + start, end - start) != OK:
                raise CorruptBatchError("a message inside a compressed message fails its checksum", position=start)
    for record in records.tolist():
        new = NewRecord(
            record[TIMESTAMP_DELTA] if fields.magic > 0 else NO_TIMESTAMP,
            _slice(buffer, record[KEY_START], record[KEY_BYTES]),
            _slice(buffer, record[VALUE_START], record[VALUE_BYTES]),
        )
        yield new, int(buffer[record[RECORD_START] + MAGIC])


def _slice(buffer: ByteArray, start: int, count: int) -> bytes | None:
    return None if count < 0 else buffer[start : start + count].tobytes()
