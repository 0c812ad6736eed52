"""Compiled loops that decode varints and records; they return a status and never raise.

    varint             zig-zag, at most 5 bytes        `read_varint`        written by `batch_rebuild.write_varlong`
    varlong            zig-zag, at most 10 bytes       `read_varlong`
    length -1          the key or value is null; a length of 0 means an empty key or value
    timestamp          `timestamps.record_timestamp` computes it from the delta and the header
    malformed batch    wrong lengths, too few records, bytes after the last record        `decode_records`

Invariants
* Before a length, count or position is used, it is checked against the end of its data.
* At least PADDING_BYTES readable bytes follow a buffer, so a varint may be read before its end is checked.  A varint
  has at most ten bytes, so a varint that starts inside the buffer ends inside the padding.
* Positions are int64, relative to `base`, the address of the buffer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_u8
from sediment.segment_io.compiled.status import (
    BAD_HEADERS,
    BAD_KEY_LENGTH,
    BAD_VALUE_LENGTH,
    BAD_VARINT,
    OK,
    RECORD_ENDS_EARLY,
    RECORD_LENGTH_MISMATCH,
    RECORD_TOO_LONG,
    RECORDS_REMAIN,
)
from sediment.segment_io.format.layout import (
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
)

# -------------------------------------------------------------------------------------------------- one row per record
RECORD_START = 0  # the length varint
RECORD_TAIL = 1  # the key length varint, from which a rebuilt record is copied
RECORD_END = 2
KEY_START = 3
KEY_BYTES = 4  # -1: null
VALUE_START = 5
VALUE_BYTES = 6  # -1: null
HEADERS_START = 7  # the header count varint
TIMESTAMP_DELTA = 8
OFFSET_DELTA = 9
RECORD_FIELDS = 10


@kernel
def read_varlong(address: int) -> tuple[int, int]:
    """Read a zig-zag varlong; return (value, address after it), or (0, 0) if it does not end within ten bytes."""
    byte = load_u8(address)
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), address + 1
    raw = byte & 127
    shift = 7
    for position in range(address + 1, address + MAX_VARLONG_BYTES):
        byte = load_u8(position)
        raw |= (byte & 127) << shift
        if byte < 128:
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position + 1
        shift += 7
    return 0, 0


@kernel
def read_varint(address: int) -> tuple[int, int]:
    """Read a zig-zag varint of 32 bits; return (value, address after it), or (0, 0) if it is longer than five bytes."""
    byte = load_u8(address)
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), address + 1
    raw = byte & 127
    shift = 7
    for position in range(address + 1, address + MAX_VARINT_BYTES):
        byte = load_u8(position)
        raw |= (byte & 127) << shift
        if byte < 128:
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), position + 1
        shift += 7
    return 0, 0


@kernel
def _skip_headers(address: int, end: int) -> int:
    """Return the address after the header count and headers at `address`, or 0 if they go past `end`."""
    count, address = read_varint(address)
    if address == 0 or count < 0 or count > end - address:
        return 0
    for _ in range(count):
        length, address = read_varint(address)
        if address == 0 or length < 0 or length > end - address:
            return 0
        address += length
        if address >= end:
            return 0
        length, address = read_varint(address)
        if address == 0 or length > end - address:
            return 0
        if length > 0:
            address += length
    return address


@kernel
def decode_next_records(base: int, start: int, end: int, count: int, records: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Decode the first `count` of the uncompressed records in [start, end) into `records`, as `decode_records` does.

    Return (status, position after these records).
    """
    address = base + start
    limit = base + end
    # Rows are indexed in place, because otherwise numba would count references to a separate array for every record.
    for index in range(count):
        if address >= limit:
            return RECORD_ENDS_EARLY, 0
        records[index, RECORD_START] = address - base
        length, address = read_varint(address)
        if address == 0:
            return BAD_VARINT, 0
        if length < 0 or length > limit - address:
            return RECORD_TOO_LONG, 0
        record_end = address + length
        delta, address = read_varlong(address + 1)
        if address == 0 or address >= record_end:
            return BAD_VARINT, 0
        records[index, TIMESTAMP_DELTA] = delta
        delta, address = read_varint(address)
        if address == 0 or address >= record_end:
            return BAD_VARINT, 0
        records[index, OFFSET_DELTA] = delta
        records[index, RECORD_TAIL] = address - base
        length, address = read_varint(address)
        if address == 0 or length > record_end - address:
            return BAD_KEY_LENGTH, 0
        records[index, KEY_START] = address - base
        records[index, KEY_BYTES] = max(length, -1)
        if length > 0:
            address += length
        if address >= record_end:
            return BAD_KEY_LENGTH, 0
        length, address = read_varint(address)
        if address == 0 or length > record_end - address:
            return BAD_VALUE_LENGTH, 0
        records[index, VALUE_START] = address - base
        records[index, VALUE_BYTES] = max(length, -1)
        if length > 0:
            address += length
        if address >= record_end:
            return BAD_VALUE_LENGTH, 0
        records[index, HEADERS_START] = address - base
        headers_end = _skip_headers(address, record_end)
        if headers_end == 0:
            return BAD_HEADERS, 0
        if headers_end != record_end:
            return RECORD_LENGTH_MISMATCH, 0
        records[index, RECORD_END] = record_end - base
        # This address equals `headers_end`, but is available earlier, so the CPU can start on the next record.
        address = record_end
    return OK, address - base


@kernel
def decode_records(base: int, start: int, end: int, count: int, records: npt.NDArray[np.int64]) -> int:
    """Decode `count` uncompressed records in [start, end) into `records`, int64[>= count, RECORD_FIELDS].

    Source: kafka-log 01 §3.4, reader checks.
    """
    status, position = decode_next_records(base, start, end, count, records)
    if status != OK:
        return status
    return OK if position == end else RECORDS_REMAIN
