"""Zig-zag variable-length integers (kafka-log 01 §3.4), and the unsigned ones of KRaft values (§4)."""

from __future__ import annotations

from tests.twin.errors import InvalidRecordError

MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def wrap(value: int, bits: int) -> int:
    """`value` as a two's complement integer of `bits`, the way Java arithmetic overflows."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def encode_unsigned(value: int) -> bytes:
    """Base-128 groups, least first, high bit set on all but the last."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode(value: int, bits: int) -> bytes:
    return encode_unsigned(((value << 1) ^ (value >> (bits - 1))) & ((1 << bits) - 1))


def encode_varint(value: int) -> bytes:
    """`value` of 32 bits in 1 to 5 bytes."""
    return _encode(value, 32)


def encode_varlong(value: int) -> bytes:
    """`value` of 64 bits in 1 to 10 bytes."""
    return _encode(value, 64)


def _decode(data: bytes, position: int, bits: int, max_bytes: int, kind: str) -> tuple[int, int]:
    raw = 0
    for index in range(max_bytes):
        if position + index >= len(data):
            raise InvalidRecordError(f"premature end of data inside a {kind} at byte {position}")
        byte = data[position + index]
        raw |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            raw &= (1 << bits) - 1
            return (raw >> 1) ^ -(raw & 1), position + index + 1
    raise InvalidRecordError(f"{kind} at byte {position} does not end within {max_bytes} bytes")


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it); bits of the fifth byte that overflow 32 are dropped.

    Raises:
        InvalidRecordError: more than 5 bytes, or the data ends inside.
    """
    return _decode(data, position, 32, MAX_VARINT_BYTES, "varint")


def decode_varlong(data: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it); bits of the tenth byte that overflow 64 are dropped.

    Raises:
        InvalidRecordError: more than 10 bytes, or the data ends inside.
    """
    return _decode(data, position, 64, MAX_VARLONG_BYTES, "varlong")
