"""Decoding of messages of magic 0 and 1 into the record rows of `record_decoder`, also from compressed wrappers.

`layout` contains the fields of a message (kafka-log 01 §5).  A row is int64[RECORD_FIELDS], as in
`record_decoder.decode_records`, with two differences.  OFFSET_DELTA and TIMESTAMP_DELTA contain absolute values.
HEADERS_START is 0, because messages have no headers.

    magic 0               timestamp -1; the offsets inside a wrapper are absolute
    magic 1               the offsets inside a wrapper are relative; the wrapper has the offset of its last message
    wrapper offset 0      old librdkafka wrote it; the offsets inside the wrapper are absolute
    LogAppendTime         every message inside a wrapper of magic 1 has the wrapper's timestamp
    refused wrappers      no message inside, a message that is compressed again, or no value
    zstd                  refused by `compression.batch_codecs.decompress`
    to magic 2            `upgrade`

The checksum of a log entry is checked.  As in Kafka, checksums inside a wrapper are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64, load_u8, load_u32, load_word64
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_copy
from sediment.segment_io.compiled.status import (
    BAD_CRC,
    BAD_KEY_LENGTH,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_VALUE_LENGTH,
    NESTED_COMPRESSION,
    OK,
)
from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_LENGTH,
    CODEC_MASK,
    INT64_MAX,
    LEGACY_ATTRIBUTES,
    LEGACY_CRC,
    LEGACY_CRC_START,
    LEGACY_MIN_ENTRY_BYTES,
    LEGACY_MIN_LENGTH,
    LEGACY_TIMESTAMP,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.record_decoder import (
    HEADERS_START,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_END,
    RECORD_FIELDS,
    RECORD_START,
    RECORD_TAIL,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
)

ByteArray = npt.NDArray[np.uint8]


def _crc32_tables() -> npt.NDArray[np.uint64]:
    """Return uint64[8, 256] for the IEEE polynomial; row k advances the state of a byte by k more zero bytes."""
    rows = [[0] * 256 for _ in range(8)]
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        rows[0][byte] = crc
    for k in range(1, 8):
        rows[k] = [rows[0][value & 0xFF] ^ (value >> 8) for value in rows[k - 1]]
    return np.array(rows, dtype=np.uint64)


_TABLES = _crc32_tables()
_MASK = np.uint64(0xFFFFFFFF)


@kernel
def crc32(address: int, count: int) -> int:
    """Return the CRC-32 (IEEE) of `count` bytes at `address` as a non-negative int64."""
    crc = _MASK
    low = np.uint64(0xFF)
    end = address + count
    while end - address >= 8:
        word = load_word64(address) ^ crc
        crc = np.uint64(0)
        for byte in range(8):
            crc ^= _TABLES[7 - byte, (word >> np.uint64(8 * byte)) & low]
        address += 8
    while address < end:
        crc = _TABLES[0, (crc ^ np.uint64(load_u8(address))) & low] ^ (crc >> np.uint64(8))
        address += 1
    return np.int64((crc ^ _MASK) & _MASK)


@kernel
def check_legacy_crc(address: int, size_bytes: int) -> int:
    """Return OK or BAD_CRC for a whole entry at `address`, or BAD_LENGTH for an entry shorter than its header."""
    if size_bytes < LEGACY_MIN_ENTRY_BYTES:
        return BAD_LENGTH
    if crc32(address + LEGACY_CRC_START, size_bytes - LEGACY_CRC_START) != load_u32(address + LEGACY_CRC):
        return BAD_CRC
    return OK


@kernel
def decode_entry(base: int, position: int, size_bytes: int, row: npt.NDArray[np.int64]) -> int:
    """Decode the entry of `size_bytes` at `position` into `row`; the value of the entry may be a compressed stream."""
    address = base + position
    end = address + size_bytes
    magic = load_i8(address + MAGIC)
    if magic < 0 or magic > 1:
        return BAD_MAGIC
    row[RECORD_START] = position
    row[RECORD_TAIL] = position
    row[RECORD_END] = position + size_bytes
    row[OFFSET_DELTA] = load_i64(address + BASE_OFFSET)
    row[TIMESTAMP_DELTA] = NO_TIMESTAMP
    row[HEADERS_START] = 0
    at = address + LEGACY_TIMESTAMP
    if magic == 1:
        if end - at < 8:
            return BAD_LENGTH
        row[TIMESTAMP_DELTA] = load_i64(at)
        at += 8
    if end - at < 4:
        return BAD_KEY_LENGTH
    length = load_i32(at)
    at += 4
    if length > end - at:
        return BAD_KEY_LENGTH
    row[KEY_START] = at - base
    row[KEY_BYTES] = max(length, -1)
    at += max(length, 0)
    if end - at < 4:
        return BAD_VALUE_LENGTH
    length = load_i32(at)
    at += 4
    if length > end - at:
        return BAD_VALUE_LENGTH
    row[VALUE_START] = at - base
    row[VALUE_BYTES] = max(length, -1)
    return OK


@kernel
def decode_entries(base: int, end: int, records: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Decode the entries in [0, end) of a decompressed wrapper; leave out an incomplete last entry.

    `records` is int64[>= end // LEGACY_MIN_ENTRY_BYTES + 1, RECORD_FIELDS].

    Returns:
        (status, entries).
    """
    position = 0
    count = 0
    while end - position >= LOG_OVERHEAD_BYTES:
        length = load_i32(base + position + BATCH_LENGTH)
        if length < LEGACY_MIN_LENGTH:
            return BAD_LENGTH, count
        size_bytes = length + LOG_OVERHEAD_BYTES
        if size_bytes > end - position:
            break
        status = decode_entry(base, position, size_bytes, records[count])
        if status != OK:
            return status, count
        if load_i8(base + position + LEGACY_ATTRIBUTES) & CODEC_MASK:
            return NESTED_COMPRESSION, count
        count += 1
        position += size_bytes
    return OK, count


@dataclass(frozen=True, slots=True, eq=False)
class Unwrapped:
    """The messages of one wrapper: `records`, int64[n, RECORD_FIELDS] with n > 0, point into `buffer`.

    Offsets and timestamps have the values that consumers get.
    """

    buffer: ByteArray
    records: npt.NDArray[np.int64]


def unwrap(wrapper: bytes, *, limit_bytes: int) -> Unwrapped:
    """Return the messages inside the compressed entry `wrapper`, whose checksum the caller has checked.

    Source: kafka-log 01 §5.1.
    """
    outer = np.zeros(RECORD_FIELDS, dtype=np.int64)
    source = padded_copy(wrapper)
    _check(decode_entry(source.ctypes.data, 0, len(wrapper), outer))
    if outer[VALUE_BYTES] < 0:
        raise _corrupt("a compressed message has no value")
    magic, attributes = wrapper[MAGIC], wrapper[LEGACY_ATTRIBUTES]
    start = int(outer[VALUE_START])
    value = memoryview(wrapper)[start : start + int(outer[VALUE_BYTES])]
    content = decompress(attributes & CODEC_MASK, value, limit_bytes=limit_bytes, magic=magic)
    buffer = padded_copy(content)
    size_bytes = buffer.size - PADDING_BYTES
    records = np.empty((size_bytes // LEGACY_MIN_ENTRY_BYTES + 1, RECORD_FIELDS), dtype=np.int64)
    status, count = decode_entries(buffer.ctypes.data, size_bytes, records)
    _check(status)
    if not count:
        raise _corrupt("a compressed message holds no messages")
    records = records[:count]
    if magic == 1:
        _make_absolute(records, int(outer[OFFSET_DELTA]))
        if attributes & TIMESTAMP_TYPE_BIT:
            stamped = buffer[records[:, RECORD_START] + MAGIC] > 0
            records[stamped, TIMESTAMP_DELTA] = outer[TIMESTAMP_DELTA]
    return Unwrapped(buffer, records)


def _make_absolute(records: npt.NDArray[np.int64], wrapper_offset: int) -> None:
    if wrapper_offset == 0:
        return
    base_offset = wrapper_offset - int(records[-1, OFFSET_DELTA])
    if not 0 <= base_offset <= INT64_MAX:
        raise _corrupt(f"a compressed message has offset {wrapper_offset}, below the offsets of its messages")
    records[:, OFFSET_DELTA] += base_offset


def _check(status: int) -> None:
    if status != OK:
        raise _corrupt(STATUS_TEXT[status])


def _corrupt(what: str) -> CorruptBatchError:
    return CorruptBatchError(what, advice=RESTORE_OR_LEAVE_OUT)
