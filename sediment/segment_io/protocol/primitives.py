"""Functions that the generated decoders and encoders call for varints, uuids and unknown tagged fields.

An unsigned varint has seven bits in each byte, the lowest first, and at most five bytes; only its last byte is below
128.  A compact length is the length plus one, as an unsigned varint; 0 means null.

Invariant: no function reads past its buffer; bad input raises MalformedError or IndexError.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any
from uuid import UUID

MAX_STRING_BYTES = 32767  # limit for UTF-8 strings, as in Kafka's generated classes
ZERO_UUID = UUID(int=0)

_MAX_INT32 = 2**31 - 1
_VARINT_BITS = 35
_KNOWN_UUIDS = 1024
_TWO_BYTES = struct.Struct("BB")
_THREE_BYTES = struct.Struct("BBB")


class MalformedError(ValueError):
    """Bytes contradict the schema, or the schema cannot express a value."""


def read_unsigned_varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > _MAX_INT32:
                raise MalformedError("an unsigned varint is above 2147483647")
            return value, position
        shift += 7
    raise MalformedError("an unsigned varint is longer than five bytes")


def read_long_length(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a compact length and the position after it; the length begins one byte before `position`."""
    value, position = read_unsigned_varint(buffer, position - 1)
    return value - 1, position


def read_long_string_length(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a string's compact length and the position after it; the length begins one byte before `position`."""
    length, position = read_long_length(buffer, position)
    if length > MAX_STRING_BYTES:
        raise MalformedError(f"a string has {length} bytes, more than {MAX_STRING_BYTES}")
    return length, position


def write_unsigned_varint(value: int) -> bytes:
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return _TWO_BYTES.pack(value & 127 | 128, value >> 7)
    if value < 1 << 21:
        return _THREE_BYTES.pack(value & 127 | 128, value >> 7 & 127 | 128, value >> 14)
    return _THREE_BYTES.pack(
        value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128
    ) + write_unsigned_varint(value >> 21)


def skip_tagged_fields(buffer: bytes | memoryview, position: int, end: int, count: int) -> int:
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size_bytes, position = read_unsigned_varint(buffer, position)
        position += size_bytes
        if position > end:
            raise MalformedError("a tagged field is longer than its message")
    return position


@lru_cache(maxsize=_KNOWN_UUIDS)
def uuid_of(raw: bytes) -> UUID:
    """Return 16 bytes as a uuid; results are cached, because the same topic ids occur often."""
    return UUID(bytes=raw)


def records_size_bytes(records: Any) -> int:
    if isinstance(records, memoryview):
        return records.nbytes
    size_bytes = getattr(records, "size_bytes", None)
    return len(records) if size_bytes is None else int(size_bytes)
