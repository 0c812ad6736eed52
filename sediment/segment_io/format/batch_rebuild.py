"""Compiled loops that rebuild a batch from its kept records, or merge several batches into one.

kafka-log 02 §6.4 lists which fields of a batch are kept and which are recomputed.  The caller passes packed rows: the
rows of the kept records are first (`pack_kept`).  A record is written as length, attributes 0, timestamp delta and
offset delta.  The record's other bytes are copied, unless an edit replaces the key or the value.  The target needs
`rebuilt_bound` free bytes.  For edited records it needs `edited_bound`; for records that are appended to an earlier
batch it needs `rebased_bound`.

    base timestamp    the delete horizon, or the timestamp of the first kept record       `kept_timestamps`
    bit 6             set if the batch has a delete horizon; `compaction.kernels.delete_horizon` decides this
    max timestamp     the largest kept timestamp; with LogAppendTime, the append time     `kept_timestamps`
    no record left    61 bytes: no codec, no delete horizon, base timestamp -1            `write_empty_batch`
    varints           zig-zag, seven bits per byte; `record_decoder` reads them           `write_varlong`
    unchanged         offsets, codec, leader epoch, producer, sequence                    `write_header`
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import (
    copy_bytes,
    load_i16,
    load_i64,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
)
from sediment.segment_io.format.checksum import crc32c
from sediment.segment_io.format.compression.compress_fast_path import compressed_bound
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CRC,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD_BYTES,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.record_decoder import (
    HEADERS_START,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_END,
    RECORD_FIELDS,
    RECORD_TAIL,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
)
from sediment.segment_io.format.timestamps import timestamp_in, with_delete_horizon

NO_HORIZON = -1

# Edits of records, int64[records, EDIT_FIELDS]: the new key and value, each as (start in the replacements, bytes)
NEW_KEY_START = 0
NEW_KEY_BYTES = 1  # -1: null; UNCHANGED: the record keeps its key
NEW_VALUE_START = 2
NEW_VALUE_BYTES = 3
EDIT_FIELDS = 4
UNCHANGED = -2

_ROW_BYTES = 8 * RECORD_FIELDS
_GROWTH_PER_RECORD_BYTES = 16  # a longer timestamp delta (at most 10 bytes), and so perhaps a longer length


@kernel
def rebuilt_bound(payload_bytes: int, records: int) -> int:
    """Return the largest size of an uncompressed batch after a rebuild from `records` records of `payload_bytes`."""
    return BATCH_HEADER_BYTES + payload_bytes + records * _GROWTH_PER_RECORD_BYTES


@kernel
def rebuild_room(size_bytes: int, payload_bytes: int, records: int, codec: int) -> tuple[int, int]:
    """Return the memory for a rebuild: (bytes for the raw and compressed records, bytes for the rebuilt batch)."""
    bound = max(size_bytes, rebuilt_bound(payload_bytes, records))
    if codec == 0:
        return 0, bound
    packed_bound = compressed_bound(bound)
    return bound + packed_bound, BATCH_HEADER_BYTES + packed_bound


@kernel
def varlong_bytes(value: int) -> int:
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= np.uint64(128):
        raw >>= np.uint64(7)
        size += 1
    return size


@kernel
def write_varlong(address: int, value: int) -> int:
    """Write a zig-zag varlong or varint; return the address after it."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw >= np.uint64(128):
        store_i8(address, np.int64((raw & np.uint64(127)) | np.uint64(128)))
        raw >>= np.uint64(7)
        address += 1
    store_i8(address, np.int64(raw))
    return address + 1


@kernel
def field_bytes(size_bytes: int) -> int:
    """Return the encoded size of a key or value of `size_bytes`, which is -1 for null."""
    return varlong_bytes(size_bytes) + max(size_bytes, 0)


@kernel
def write_field(target: int, source: int, size_bytes: int) -> int:
    """Write the key or value of `size_bytes` at `source`; a size of -1 means null.  Return the address after it."""
    target = write_varlong(target, size_bytes)
    copy_bytes(target, source, max(size_bytes, 0))
    return target + max(size_bytes, 0)


@kernel
def copy_batch(target: int, header: int, size_bytes: int) -> None:
    copy_bytes(target, header, size_bytes)


@kernel
def pack_kept(records: npt.NDArray[np.int64], count: int, kept: npt.NDArray[np.uint8]) -> None:
    first = records.ctypes.data
    packed = 0
    for index in range(count):
        # Every row is copied, because a branch on `kept` would be unpredictable.
        copy_bytes(first + packed * _ROW_BYTES, first + index * _ROW_BYTES, _ROW_BYTES)
        packed += kept[index]


@kernel
def kept_timestamps(header: int, records: npt.NDArray[np.int64], count: int) -> tuple[int, int]:
    """Return (timestamp of the first of `count` > 0 kept records, maxTimestamp of their batch).

    If the timestamp type is LogAppendTime, both are the batch's append time.
    """
    if load_i16(header + ATTRIBUTES) & TIMESTAMP_TYPE_BIT:
        append_time = load_i64(header + MAX_TIMESTAMP)
        return append_time, append_time
    base = load_i64(header + BASE_TIMESTAMP)
    first = base + records[0, TIMESTAMP_DELTA]
    largest = first
    for index in range(1, count):
        largest = max(largest, base + records[index, TIMESTAMP_DELTA])
    return first, largest


@kernel
def begin_at_first_kept(header: int, records: npt.NDArray[np.int64], count: int) -> None:
    """Set the offset range of the batch at `header` to the range of its `count` > 0 kept records."""
    first_delta = records[0, OFFSET_DELTA]
    for index in range(count):
        records[index, OFFSET_DELTA] -= first_delta
    store_i64(header + BASE_OFFSET, load_i64(header + BASE_OFFSET) + first_delta)
    store_i32(header + LAST_OFFSET_DELTA, records[count - 1, OFFSET_DELTA])


@kernel
def records_size(header: int, records: npt.NDArray[np.int64], count: int, base_timestamp: int) -> int:
    total = 0
    for index in range(count):
        body = (
            1
            + varlong_bytes(timestamp_in(header, records[index, TIMESTAMP_DELTA]) - base_timestamp)
            + varlong_bytes(records[index, OFFSET_DELTA])
            + records[index, RECORD_END]
            - records[index, RECORD_TAIL]
        )
        total += varlong_bytes(body) + body
    return total


@kernel
def write_records(
    target: int, header: int, payload: int, records: npt.NDArray[np.int64], count: int, base_timestamp: int
) -> int:
    """Write `count` kept records of `payload` at `target`; return the address after them."""
    # Rows are indexed in place, because otherwise numba would count references to a separate array for every record.
    for index in range(count):
        delta = timestamp_in(header, records[index, TIMESTAMP_DELTA]) - base_timestamp
        tail_bytes = records[index, RECORD_END] - records[index, RECORD_TAIL]
        body = 1 + varlong_bytes(delta) + varlong_bytes(records[index, OFFSET_DELTA]) + tail_bytes
        target = write_varlong(target, body)
        store_i8(target, 0)
        target = write_varlong(target + 1, delta)
        target = write_varlong(target, records[index, OFFSET_DELTA])
        copy_bytes(target, payload + records[index, RECORD_TAIL], tail_bytes)
        target += tail_bytes
    return target


@kernel
def edited_bound(payload_bytes: int, records: int, replacement_bytes: int) -> int:
    # A longer key or value can lengthen its length field, and also the length field of the record.
    return payload_bytes + replacement_bytes + 2 * records * _GROWTH_PER_RECORD_BYTES


@kernel
def write_edited_records(
    target: int,
    header: int,
    payload: int,
    records: npt.NDArray[np.int64],
    count: int,
    edits: npt.NDArray[np.int64],
    replacements: int,
    base_timestamp: int,
) -> int:
    """Write `count` kept records of `payload` at `target` with the keys and values of `edits`; return the end.

    Offsets, timestamps and headers of the records do not change.  Lengths are written in their shortest form.
    """
    for index in range(count):
        delta = timestamp_in(header, records[index, TIMESTAMP_DELTA]) - base_timestamp
        key, key_bytes = payload + records[index, KEY_START], records[index, KEY_BYTES]
        if edits[index, NEW_KEY_BYTES] != UNCHANGED:
            key, key_bytes = replacements + edits[index, NEW_KEY_START], edits[index, NEW_KEY_BYTES]
        value, value_bytes = payload + records[index, VALUE_START], records[index, VALUE_BYTES]
        if edits[index, NEW_VALUE_BYTES] != UNCHANGED:
            value, value_bytes = replacements + edits[index, NEW_VALUE_START], edits[index, NEW_VALUE_BYTES]
        headers_bytes = records[index, RECORD_END] - records[index, HEADERS_START]
        body = (
            1
            + varlong_bytes(delta)
            + varlong_bytes(records[index, OFFSET_DELTA])
            + field_bytes(key_bytes)
            + field_bytes(value_bytes)
            + headers_bytes
        )
        target = write_varlong(target, body)
        store_i8(target, 0)
        target = write_varlong(target + 1, delta)
        target = write_varlong(target, records[index, OFFSET_DELTA])
        target = write_field(target, key, key_bytes)
        target = write_field(target, value, value_bytes)
        copy_bytes(target, payload + records[index, HEADERS_START], headers_bytes)
        target += headers_bytes
    return target


@kernel
def rebased_bound(payload_bytes: int, records: int) -> int:
    return payload_bytes + records * _GROWTH_PER_RECORD_BYTES


@kernel
def write_rebased_records(
    target: int, payload: int, records: npt.NDArray[np.int64], count: int, offset_shift: int, timestamp_shift: int
) -> int:
    """Write `count` records of `payload` at `target`, and add the two shifts to their deltas; return the end.

    A shift is a difference of base offsets or base timestamps: this batch's value, minus the value of the batch to
    which the records are added.
    """
    for index in range(count):
        timestamp_delta = records[index, TIMESTAMP_DELTA] + timestamp_shift
        offset_delta = records[index, OFFSET_DELTA] + offset_shift
        tail_bytes = records[index, RECORD_END] - records[index, RECORD_TAIL]
        body = 1 + varlong_bytes(timestamp_delta) + varlong_bytes(offset_delta) + tail_bytes
        target = write_varlong(target, body)
        store_i8(target, 0)
        target = write_varlong(target + 1, timestamp_delta)
        target = write_varlong(target, offset_delta)
        copy_bytes(target, payload + records[index, RECORD_TAIL], tail_bytes)
        target += tail_bytes
    return target


@kernel
def write_joined_header(
    target: int, first_header: int, size_bytes: int, codec: int, last_delta: int, count: int, max_timestamp: int
) -> None:
    """Write the header of a merged batch of `size_bytes`, with its CRC; its records are already in place.

    Fields that a merge does not change come from the header of the first batch.
    """
    copy_batch(target, first_header, BATCH_HEADER_BYTES)
    store_i32(target + BATCH_LENGTH, size_bytes - LOG_OVERHEAD_BYTES)
    store_i16(target + ATTRIBUTES, (load_i16(first_header + ATTRIBUTES) & ~CODEC_MASK) | codec)
    store_i32(target + LAST_OFFSET_DELTA, last_delta)
    store_i64(target + MAX_TIMESTAMP, max_timestamp)
    store_i32(target + RECORD_COUNT, count)
    store_i32(target + CRC, crc32c(target + ATTRIBUTES, size_bytes - ATTRIBUTES))


@kernel
def write_header(
    target: int, header: int, size_bytes: int, count: int, base_timestamp: int, max_timestamp: int, has_horizon: bool
) -> None:
    """Write the header of a rebuilt batch of `size_bytes`, with its CRC; its records are already in place."""
    copy_batch(target, header, BATCH_HEADER_BYTES)
    attributes = with_delete_horizon(load_i16(header + ATTRIBUTES) & 0xFF, has_horizon)
    store_i32(target + BATCH_LENGTH, size_bytes - LOG_OVERHEAD_BYTES)
    store_i16(target + ATTRIBUTES, attributes)
    store_i64(target + BASE_TIMESTAMP, base_timestamp)
    store_i64(target + MAX_TIMESTAMP, max_timestamp)
    store_i32(target + RECORD_COUNT, count)
    store_i32(target + CRC, crc32c(target + ATTRIBUTES, size_bytes - ATTRIBUTES))


@kernel
def write_empty_batch(target: int, header: int) -> None:
    copy_batch(target, header, BATCH_HEADER_BYTES)
    attributes = with_delete_horizon(load_i16(header + ATTRIBUTES) & 0xFF & ~CODEC_MASK, has_horizon=False)
    store_i32(target + BATCH_LENGTH, BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES)
    store_i16(target + ATTRIBUTES, attributes)
    store_i64(target + BASE_TIMESTAMP, -1)
    store_i32(target + RECORD_COUNT, 0)
    store_i32(target + CRC, crc32c(target + ATTRIBUTES, BATCH_HEADER_BYTES - ATTRIBUTES))


@kernel
def write_plain(
    end: int,
    header: int,
    payload: int,
    records: npt.NDArray[np.int64],
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    has_horizon: bool,
) -> int:
    """Write an uncompressed batch of `count` kept records of `payload`, so that it ends at `end`; return its size."""
    size_bytes = BATCH_HEADER_BYTES + records_size(header, records, count, base_timestamp)
    target = end - size_bytes
    write_records(target + BATCH_HEADER_BYTES, header, payload, records, count, base_timestamp)
    write_header(target, header, size_bytes, count, base_timestamp, max_timestamp, has_horizon)
    return size_bytes


@kernel
def write_compressed(
    end: int,
    header: int,
    compressed: int,
    compressed_bytes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    has_horizon: bool,
) -> int:
    """Write a batch of `count` compressed records, so that it ends at `end`; return its size."""
    size_bytes = BATCH_HEADER_BYTES + compressed_bytes
    target = end - size_bytes
    copy_batch(target + BATCH_HEADER_BYTES, compressed, compressed_bytes)
    write_header(target, header, size_bytes, count, base_timestamp, max_timestamp, has_horizon)
    return size_bytes
