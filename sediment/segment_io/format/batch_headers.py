"""Compiled loops over batch headers: the end of each batch in a file, and header fields as rows (kafka-log 01 §2, §3).

    at most 17 bytes are left, or the batch is cut off       the end, not an error      `batch_at`
    length below 14, or below 61 for magic 2                 corrupt                    `batch_at`
    magic below 0 or above 2                                 corrupt                    `batch_at`
    record count below 0, unknown codec                      corrupt                    `check_header`
    wrong checksum                                           corrupt                    `checksum.check_crc`

Invariants
* Before a length, count or position is used, it is checked against the end of its data.
* At least PADDING_BYTES readable bytes follow a buffer, because a control record is read before its end is checked.
* Positions are int64, relative to `base`, the address of the buffer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i16, load_i32, load_i64
from sediment.segment_io.compiled.status import (
    BAD_CODEC,
    BAD_CONTROL_RECORD,
    BAD_CRC,
    BAD_HEADERS,
    BAD_KEY_LENGTH,
    BAD_LAST_OFFSET,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_RECORD_COUNT,
    BAD_VALUE_LENGTH,
    BAD_VARINT,
    INCOMPLETE,
    LEGACY_MAGIC,
    NESTED_COMPRESSION,
    OFFSET_OUTSIDE_SEGMENT,
    OK,
    RECORD_ENDS_EARLY,
    RECORD_LENGTH_MISMATCH,
    RECORD_TOO_LONG,
    RECORDS_REMAIN,
    ROWS_FULL,
)
from sediment.segment_io.format.control_records import decode_control
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_MIN_LENGTH,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_PREFIX_BYTES,
    MAX_TIMESTAMP,
    MIN_RECORD_BYTES,
    NO_CONTROL_RECORD,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
)

STATUS_TEXT = {
    BAD_LENGTH: "the batch length is smaller than its header",
    BAD_MAGIC: "the batch has an unknown magic",
    LEGACY_MAGIC: "the batch is of message format v0 or v1",
    BAD_CRC: "the batch fails its CRC",
    BAD_CODEC: "the batch has an unknown codec",
    BAD_RECORD_COUNT: "the record count does not fit the batch",
    BAD_LAST_OFFSET: "the last offset delta is negative",
    RECORD_TOO_LONG: "a record is longer than its batch",
    RECORD_ENDS_EARLY: "the batch ends before its last record",
    BAD_VARINT: "a record holds a malformed varint",
    BAD_KEY_LENGTH: "a key is longer than its record",
    BAD_VALUE_LENGTH: "a value is longer than its record",
    BAD_HEADERS: "the headers do not fit their record",
    RECORD_LENGTH_MISMATCH: "a record's fields do not fill its length",
    RECORDS_REMAIN: "bytes remain after the last record",
    BAD_CONTROL_RECORD: "the control record is malformed",
    NESTED_COMPRESSION: "a compressed message contains compressed messages",
    OFFSET_OUTSIDE_SEGMENT: "the offsets of the batch are outside its segment",
}

# ------------------------------------------------------------------------------------------- one row per batch header
BATCH_ROW = np.dtype(
    [
        ("position", np.int64),
        ("size_bytes", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("leader_epoch", np.int32),
        ("magic", np.int8),
        ("attributes", np.int16),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("producer_epoch", np.int16),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
        ("control_type", np.int16),
        ("coordinator_epoch", np.int32),
        ("control_timestamp", np.int64),
    ]
)
"""The fields as stored in the header; `position` is the position in the file, and `last_offset` is absolute.

`control_type` is NO_CONTROL_RECORD for data batches and emptied control batches.  `coordinator_epoch` and
`control_timestamp` are set for a transaction marker; otherwise they are -1.  Rows of magic 0 and 1 contain only
position, size, magic, attributes, max_timestamp and two offsets.  Both offsets are the offset of the wrapper.
"""


@kernel
def batch_at(base: int, position: int, end: int) -> tuple[int, int]:
    """Return (status, size in bytes) of the batch at `position` of a buffer that ends at `end`.

    The status is also INCOMPLETE if fewer bytes remain than an iterator over the file needs (kafka-log 01 §2.2).  The
    size is 0 if the length field is not in the buffer.  The size is valid even if the status is LEGACY_MAGIC.
    """
    remaining = end - position
    if remaining < LOG_OVERHEAD_BYTES:
        return INCOMPLETE, 0
    length = load_i32(base + position + BATCH_LENGTH)
    if length < LEGACY_MIN_LENGTH:
        return (BAD_LENGTH if remaining > MAGIC_PREFIX_BYTES else INCOMPLETE), 0
    size_bytes = length + LOG_OVERHEAD_BYTES
    if remaining <= MAGIC_PREFIX_BYTES:
        return INCOMPLETE, size_bytes
    magic = load_i8(base + position + MAGIC)
    if magic < 0 or magic > 2:
        return BAD_MAGIC, size_bytes
    if magic == 2 and size_bytes < BATCH_HEADER_BYTES:
        return BAD_LENGTH, size_bytes
    if size_bytes > remaining:
        return INCOMPLETE, size_bytes
    return (OK if magic == 2 else LEGACY_MAGIC), size_bytes


@kernel
def check_header(address: int, size_bytes: int) -> int:
    """Check the header counts on which later loops rely, for the complete batch of magic 2 at `address`."""
    if load_i32(address + LAST_OFFSET_DELTA) < 0:
        return BAD_LAST_OFFSET
    codec = load_i16(address + ATTRIBUTES) & CODEC_MASK
    if codec > 4:
        return BAD_CODEC
    count = load_i32(address + RECORD_COUNT)
    if count < 0 or (codec == 0 and count * MIN_RECORD_BYTES > size_bytes - BATCH_HEADER_BYTES):
        return BAD_RECORD_COUNT
    return OK


@kernel
def read_headers(
    base: int, position: int, end: int, file_position: int, rows: npt.NDArray[np.void]
) -> tuple[int, int, int, int]:
    """Fill `rows`, BATCH_ROW[n], with the headers of the whole batches in [position, end).

    `file_position` is the position in the file of the buffer's first byte.

    Returns:
        (status, number of rows, position after the last row's batch, size of the batch at that position or 0).  The
        status is INCOMPLETE at the end of the buffer, and ROWS_FULL if `rows` is full.  Any other status
        is the fault of the batch at that position.
    """
    filled = 0
    while filled < rows.size:
        status, size_bytes = batch_at(base, position, end)
        if status not in (OK, LEGACY_MAGIC):
            return status, filled, position, size_bytes
        address = base + position
        row = rows[filled]
        row["position"] = file_position + position
        row["size_bytes"] = size_bytes
        row["magic"] = load_i8(address + MAGIC)
        row["control_type"] = NO_CONTROL_RECORD
        row["coordinator_epoch"] = -1
        row["control_timestamp"] = -1
        if status == LEGACY_MAGIC:
            _legacy_header(address, row)
        else:
            status = check_header(address, size_bytes)
            if status != OK:
                return status, filled, position, size_bytes
            row["base_offset"] = load_i64(address + BASE_OFFSET)
            row["last_offset"] = load_i64(address + BASE_OFFSET) + load_i32(address + LAST_OFFSET_DELTA)
            row["leader_epoch"] = load_i32(address + LEADER_EPOCH)
            row["attributes"] = load_i16(address + ATTRIBUTES)
            row["base_timestamp"] = load_i64(address + BASE_TIMESTAMP)
            row["max_timestamp"] = load_i64(address + MAX_TIMESTAMP)
            row["producer_id"] = load_i64(address + PRODUCER_ID)
            row["producer_epoch"] = load_i16(address + PRODUCER_EPOCH)
            row["base_sequence"] = load_i32(address + BASE_SEQUENCE)
            row["record_count"] = load_i32(address + RECORD_COUNT)
            if row["attributes"] & CONTROL_BIT and row["record_count"] > 0:
                if row["attributes"] & CODEC_MASK:
                    return BAD_CONTROL_RECORD, filled, position, size_bytes
                status = decode_control(base, position, size_bytes, row)
                if status != OK:
                    return status, filled, position, size_bytes
        filled += 1
        position += size_bytes
    return ROWS_FULL, filled, position, 0


@kernel
def _legacy_header(address: int, row: npt.NDArray[np.void]) -> None:
    row["base_offset"] = load_i64(address)
    row["last_offset"] = load_i64(address)
    row["leader_epoch"] = -1
    row["attributes"] = load_i8(address + MAGIC + 1)
    row["base_timestamp"] = -1
    row["max_timestamp"] = load_i64(address + MAGIC + 2) if row["magic"] == 1 else -1
    row["producer_id"] = -1
    row["producer_epoch"] = -1
    row["base_sequence"] = -1
    row["record_count"] = -1
