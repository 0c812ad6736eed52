"""Conversion of messages of magic 0 and 1 to batches of magic 2 with the same offsets, timestamps, keys and values.

    message                     | offset | size | crc | magic | … | key | value |
    batch of one record         | header, 61 bytes | record |
    wrapper of n messages       | header, 61 bytes |             its n records are a separate uncompressed payload

A batch keeps the codec and the timestamp type of its message.  A message of magic 0 gets timestamp -1 of type
CreateTime.  Leader epoch and producer are set to "unknown", as in Kafka (kafka-log 02 §6.4).

Invariants: the batches have no checksum.  Only the cleaner reads these batches, and it rebuilds every batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import copy_bytes, load_i8, store_i8, store_i16, store_i32, store_i64
from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import OK
from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.batch_rebuild import field_bytes, varlong_bytes, write_field, write_varlong
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CRC,
    INT32_MAX,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_ATTRIBUTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_V2,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.legacy import decode_entry, unwrap
from sediment.segment_io.format.record_decoder import (
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_FIELDS,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
)

# Besides key and value, a record of magic 2 has at most 32 bytes, and a message of magic 0 has at least 26.
_RECORD_GROWTH_BYTES = 6

# Fields that describe wrappers, int64[messages, WRAPPER_FIELDS]
FIRST_OFFSET = 0
LAST_OFFSET = 1
FIRST_TIMESTAMP = 2
LARGEST_TIMESTAMP = 3
COUNT = 4
WRAPPER_FIELDS = 5

ByteArray = npt.NDArray[np.uint8]


@kernel
def _write_header(
    target: int,
    size_bytes: int,
    attributes: int,
    first_offset: int,
    last_offset: int,
    first_timestamp: int,
    largest_timestamp: int,
    count: int,
) -> None:
    store_i64(target + BASE_OFFSET, first_offset)
    store_i32(target + BATCH_LENGTH, size_bytes - LOG_OVERHEAD_BYTES)
    store_i32(target + LEADER_EPOCH, -1)
    store_i8(target + MAGIC, MAGIC_V2)
    store_i32(target + CRC, 0)
    store_i16(target + ATTRIBUTES, attributes)
    store_i32(target + LAST_OFFSET_DELTA, last_offset - first_offset)
    store_i64(target + BASE_TIMESTAMP, first_timestamp)
    store_i64(target + MAX_TIMESTAMP, largest_timestamp)
    store_i64(target + PRODUCER_ID, -1)
    store_i16(target + PRODUCER_EPOCH, -1)
    store_i32(target + BASE_SEQUENCE, -1)
    store_i32(target + RECORD_COUNT, count)


@kernel
def _write_record(
    target: int, source: int, record: npt.NDArray[np.int64], timestamp_delta: int, offset_delta: int
) -> int:
    """Write a message as a record; return the address after it."""
    key_bytes = record[KEY_BYTES]
    value_bytes = record[VALUE_BYTES]
    body = 2 + varlong_bytes(timestamp_delta) + varlong_bytes(offset_delta)
    target = write_varlong(target, body + field_bytes(key_bytes) + field_bytes(value_bytes))
    store_i8(target, 0)
    target = write_varlong(target + 1, timestamp_delta)
    target = write_varlong(target, offset_delta)
    target = write_field(target, source + record[KEY_START], key_bytes)
    target = write_field(target, source + record[VALUE_START], value_bytes)
    store_i8(target, 0)
    return target + 1


@kernel
def _write_records(
    target: int, source: int, records: npt.NDArray[np.int64], first_offset: int, first_timestamp: int
) -> int:
    for index in range(records.shape[0]):
        record = records[index]
        target = _write_record(
            target, source, record, record[TIMESTAMP_DELTA] - first_timestamp, record[OFFSET_DELTA] - first_offset
        )
    return target


@kernel
def _upgrade_batches(
    base: int,
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    skipped: npt.NDArray[np.bool_],
    wrappers: npt.NDArray[np.int64],
    target: int,
    upgraded: npt.NDArray[np.int64],
    record: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Write the batches at `positions` one after another to `target`; return (status, bytes written).

    `upgraded` receives the start of each batch.  `record`, int64[RECORD_FIELDS], is working memory.  If the status is
    not OK, the second value is the index of the bad message.
    """
    start = target
    for index in range(positions.size):
        upgraded[index] = target - start
        if skipped[index]:
            continue
        address = base + positions[index]
        if load_i8(address + MAGIC) >= MAGIC_V2:
            copy_bytes(target, address, sizes[index])
            target += sizes[index]
            continue
        attributes = load_i8(address + LEGACY_ATTRIBUTES) & (CODEC_MASK | TIMESTAMP_TYPE_BIT)
        if load_i8(address + MAGIC) == 0:
            attributes &= CODEC_MASK
        if attributes & CODEC_MASK:
            known = wrappers[index]
            _write_header(
                target,
                BATCH_HEADER_BYTES,
                attributes,
                known[FIRST_OFFSET],
                known[LAST_OFFSET],
                known[FIRST_TIMESTAMP],
                known[LARGEST_TIMESTAMP],
                known[COUNT],
            )
            target += BATCH_HEADER_BYTES
            continue
        status = decode_entry(base, positions[index], sizes[index], record)
        if status != OK:
            return status, index
        end = _write_record(target + BATCH_HEADER_BYTES, base, record, 0, 0)
        offset = record[OFFSET_DELTA]
        timestamp = record[TIMESTAMP_DELTA]
        _write_header(target, end - target, attributes, offset, offset, timestamp, timestamp, 1)
        target = end
    return OK, target - start


@dataclass(frozen=True, slots=True, eq=False)
class UpgradedWrapper:
    """The messages of a wrapper: `known` is int64[WRAPPER_FIELDS], and `payload` has their records of magic 2."""

    known: npt.NDArray[np.int64]
    payload: bytes


def upgrade_wrapper(wrapper: bytes, *, limit_bytes: int) -> UpgradedWrapper:
    """Convert a compressed message, whose checksum was checked, to records of magic 2.

    Raises:
        CorruptBatchError: as in `unwrap`; also if the offsets of the messages do not increase, or span more than 2^31.
    """
    unwrapped = unwrap(wrapper, limit_bytes=limit_bytes)
    records = unwrapped.records
    offsets, timestamps = records[:, OFFSET_DELTA], records[:, TIMESTAMP_DELTA]
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or last - first > INT32_MAX or np.any(offsets[1:] <= offsets[:-1]):
        raise CorruptBatchError(
            "the offsets inside a compressed message do not increase, or are too far apart",
            advice=RESTORE_OR_LEAVE_OUT,
        )
    is_append_time = wrapper[MAGIC] > 0 and bool(wrapper[LEGACY_ATTRIBUTES] & TIMESTAMP_TYPE_BIT)
    first_timestamp = int(timestamps[0])
    # All records of a LogAppendTime batch have the time of the batch, even inner messages of magic 0 without a
    # timestamp.
    largest = int(timestamps.max())
    known = np.array([first, last, largest if is_append_time else first_timestamp, largest, len(records)])
    bound_bytes = unwrapped.buffer.size + len(records) * _RECORD_GROWTH_BYTES
    target = np.empty(bound_bytes + PADDING_BYTES, dtype=np.uint8)
    start = target.ctypes.data
    end = _write_records(start, unwrapped.buffer.ctypes.data, records, first, int(known[FIRST_TIMESTAMP]))
    return UpgradedWrapper(known, target[: end - start].tobytes())


def upgrade_batches(
    buffer: ByteArray,
    size_bytes: int,
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    skipped: npt.NDArray[np.bool_],
    wrappers: npt.NDArray[np.int64],
) -> tuple[ByteArray, npt.NDArray[np.int64]]:
    """Convert the messages in the first `size_bytes` of `buffer` to magic 2; return (padded buffer, batch starts).

    `positions`, `sizes` and `skipped` are int64[n], int64[n] and bool[n]; skipped batches are left out.  `wrappers`,
    int64[n, WRAPPER_FIELDS], describes compressed messages.

    Raises:
        CorruptBatchError: a message is malformed; `position` is its position in `buffer`.
    """
    upgraded = np.empty(positions.size, dtype=np.int64)
    growth_bytes = positions.size * (BATCH_HEADER_BYTES + _RECORD_GROWTH_BYTES)
    target = np.zeros(size_bytes + growth_bytes + PADDING_BYTES, dtype=np.uint8)
    status, end = _upgrade_batches(
        buffer.ctypes.data,
        positions,
        sizes,
        skipped,
        wrappers,
        target.ctypes.data,
        upgraded,
        np.zeros(RECORD_FIELDS, dtype=np.int64),
    )
    if status != OK:
        raise CorruptBatchError(STATUS_TEXT[status], position=int(positions[end]))
    return target[: end + PADDING_BYTES], upgraded


def no_wrappers(count: int) -> npt.NDArray[np.int64]:
    return np.full((count, WRAPPER_FIELDS), NO_TIMESTAMP, dtype=np.int64)
