"""A compiled function that writes a raw snappy block, byte for byte as `cramjam.snappy.compress_raw` does.

    block     varint: the bytes of the source | literal or copy | …
    literal   length - 1 in the upper six bits of a byte; or 60 or 61 there, and it in one or two more bytes | bytes
    copy      length and distance, in two or three bytes

    table     little u16[entries]: by the hash of four bytes, the last position at which they were found

The result depends on the library's choices, which are made here too: the hash, the size of the table, the positions
that are entered, and the growing steps through bytes that do not repeat.

Invariants: nothing outside the source is read, and nothing outside the target is written.
"""

from __future__ import annotations

import numpy as np

from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import (
    copy_bytes,
    load_little_i64,
    load_little_u16,
    load_little_u32,
    load_u8,
    load_word64,
    store_i8,
    store_little_u16,
    store_little_u32,
    store_word64,
    trailing_zeros,
    zero_bytes,
)

NO_ROOM = -1
TABLE_BYTES = 2 << 14

_MIN_ENTRIES = 256
_HASH_FACTOR = 0x1E35A7BD
_HASH_BITS = 32
_LITERAL_TAG, _SHORT_COPY_TAG, _COPY_TAG = range(3)
_MARGIN_BYTES = 15  # no match begins in the last bytes of the source
_STEP_SHIFT = 5  # each 32 bytes without a match make the steps one byte longer


@kernel
def compress_block(source: int, size_bytes: int, target: int, room_bytes: int, table: int) -> int:
    """Compress [source, source + size_bytes), at most 64 KiB, to `target`; return the bytes written, or NO_ROOM.

    `table` is the address of TABLE_BYTES of working memory.
    """
    end = source + size_bytes
    limit = target + room_bytes
    out = _write_size(target, size_bytes, limit)
    at = source + 1
    last = end - _MARGIN_BYTES
    if out == NO_ROOM or at >= last:
        return _finish(source, end, target, out, limit)

    entries = _MIN_ENTRIES
    shift = _HASH_BITS - 8
    while 2 * entries < TABLE_BYTES and entries < size_bytes:
        entries *= 2
        shift -= 1
    zero_bytes(table, 2 * entries)

    literal = source
    ahead_word = load_little_u32(at)
    while True:
        # 1. Find four bytes that occurred before.
        steps = 1 << _STEP_SHIFT
        ahead = at
        while True:
            at = ahead
            word = ahead_word
            step = steps >> _STEP_SHIFT
            ahead = at + step
            steps += step
            if ahead > last:
                return _finish(literal, end, target, out, limit)
            entry = table + 2 * _hash(word, shift)
            match = source + load_little_u16(entry)
            store_little_u16(entry, at - source)
            ahead_word = load_little_u32(ahead)
            if load_little_u32(match) == word:
                break

        # 2. Write the bytes before them, then copies for as long as matches follow each other.
        out = _write_literal(literal, at, end, out, limit)
        while out != NO_ROOM:
            length = 4 + _equal_bytes(at + 4, match + 4, end)
            out = _write_copies(at - match, length, out, limit)
            at += length
            literal = at
            if out == NO_ROOM or at >= last:
                return _finish(literal, end, target, out, limit)
            eight = load_little_i64(at - 1)
            store_little_u16(table + 2 * _hash(eight, shift), at - 1 - source)
            word = eight >> 8
            entry = table + 2 * _hash(word, shift)
            match = source + load_little_u16(entry)
            store_little_u16(entry, at - source)
            if load_little_u32(match) != word & 0xFFFFFFFF:
                ahead_word = (eight >> 16) & 0xFFFFFFFF
                at += 1
                break
        if out == NO_ROOM:
            return NO_ROOM


@inlined_kernel
def _hash(word: int, shift: int) -> int:
    return ((word * _HASH_FACTOR) & 0xFFFFFFFF) >> shift


@inlined_kernel
def _equal_bytes(first: int, second: int, end: int) -> int:
    """Return how many bytes at `first`, before `end`, equal those at `second`, which is lower."""
    start = first
    while end - first >= 8:
        difference = load_word64(first) ^ load_word64(second)
        if difference != np.uint64(0):
            first += trailing_zeros(difference) >> 3
            return first - start
        first += 8
        second += 8
    while first < end and load_u8(first) == load_u8(second):
        first += 1
        second += 1
    return first - start


@kernel
def _finish(literal: int, end: int, target: int, out: int, limit: int) -> int:
    if out != NO_ROOM and literal < end:
        out = _write_literal(literal, end, end, out, limit)
    return out - target if out != NO_ROOM else NO_ROOM


# Each of these functions returns the address after what it wrote, or NO_ROOM.


@kernel
def _write_size(out: int, size_bytes: int, limit: int) -> int:
    while out < limit:
        if size_bytes < 128:
            store_i8(out, size_bytes)
            return out + 1
        store_i8(out, (size_bytes & 127) | 128)
        size_bytes >>= 7
        out += 1
    return NO_ROOM


@inlined_kernel
def _write_literal(start: int, stop: int, end: int, out: int, limit: int) -> int:
    """Write a literal of [start, stop), which is not empty; bytes until `end` may be read."""
    length = stop - start
    above = length - 1
    if above < 60:
        if limit - out <= length:
            return NO_ROOM
        store_i8(out, above << 2 | _LITERAL_TAG)
        out += 1
        if length <= 16 and end - start >= 16 and limit - out >= 16:
            # Two words, because the compiler would make one call out of two copies.
            store_word64(out, load_word64(start))
            store_word64(out + 8, load_word64(start + 8))
            return out + length
    elif above < 256:
        if limit - out < length + 2:
            return NO_ROOM
        store_i8(out, 60 << 2 | _LITERAL_TAG)
        store_i8(out + 1, above)
        out += 2
    else:
        if limit - out < length + 3:
            return NO_ROOM
        store_i8(out, 61 << 2 | _LITERAL_TAG)
        store_little_u16(out + 1, above)
        out += 3
    copy_bytes(out, start, length)
    return out + length


@inlined_kernel
def _write_copies(distance: int, length: int, out: int, limit: int) -> int:
    """Write copies of `length` bytes, at least four, from `distance` bytes before."""
    while length > 64:
        # The last copy has at least four bytes, because a short copy has no less.
        taken = 64 if length >= 68 else 60
        if limit - out < 3:
            return NO_ROOM
        store_i8(out, (taken - 1) << 2 | _COPY_TAG)
        store_little_u16(out + 1, distance)
        out += 3
        length -= taken
    is_short = length <= 11 and distance < 2048
    size = 2 if is_short else 3
    if limit - out < size:
        return NO_ROOM
    short = _SHORT_COPY_TAG | (length - 4) << 2 | (distance >> 8) << 5 | (distance & 0xFF) << 8
    copy = short if is_short else _COPY_TAG | (length - 1) << 2 | distance << 8
    if limit - out >= 4:
        store_little_u32(out, copy)
    else:
        store_little_u16(out, copy)
        store_i8(out + size - 1, copy >> (8 * (size - 1)))
    return out + size
