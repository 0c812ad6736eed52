"""Batches changed at random, with an eye for their structure, by compiled loops: millions of them a minute.

A change is a flipped bit, a wild byte, a field set to a value that hurts (huge, negative, off by one, a varint that is
longer than it need be), bytes taken out or put in, an end cut off, or another batch spliced on.  After the changes most
batches get a right length, and most of those a right checksum, so that the decoders after both checks are reached.

Everything follows from the seed that the state of the random numbers is made of.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import store_i8, store_i16, store_i32, store_i64
from sediment.segment_io.format.checksum import crc32c
from sediment.segment_io.format.legacy import crc32
from tests.fuzz.seeds import VARINT

ROOM_BYTES = 8192
MOST_BYTES = 4096

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
State = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_HURTS = np.array(
    [
        *(0, 1, 2, 3, 4, 5, 6, 7, 8, 63, 64, 65, 127, 128, 255, 256, 511, 512, 4095, 4096, 65535, 1 << 20, 1 << 28),
        *(2**31 - 1, 2**31 - 2, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 9223372036854775, 9223372036854776),
        *(-1, -2, -3, -7, -64, -65, -128, -(2**31), -(2**31) + 1, -(2**63), -(2**63) + 1),
    ],
    dtype=np.int64,
)


@kernel
def seed_state(state: State, seed: int, number: int) -> None:
    """Begin the random numbers of batch `number` of the campaign `seed`."""
    mixed = np.uint64(seed) * _STEP + np.uint64(number)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state[0] = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


@kernel
def below(state: State, bound: int) -> int:
    """Return a number in [0, bound)."""
    word = state[0]
    word ^= word >> np.uint64(12)
    word ^= word << np.uint64(25)
    word ^= word >> np.uint64(27)
    state[0] = word
    return np.int64((word * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(33)) % bound


@kernel
def _value(state: State, old: int) -> int:
    kind = below(state, 4)
    if kind == 0:
        return old + below(state, 5) - 2
    if kind == 1:
        return (below(state, 1 << 31) << 33) ^ (below(state, 1 << 31) << 16) ^ below(state, 1 << 31)
    return _HURTS[below(state, _HURTS.size)]


@kernel
def _resize(out: Bytes, size: int, at: int, old: int, new: int) -> int:
    """Make out[at : at + old] out[at : at + new]; returns the size then."""
    if new > old:
        if size + new - old > MOST_BYTES:
            return size
        for index in range(size - 1, at + old - 1, -1):
            out[index + new - old] = out[index]
    elif new < old:
        for index in range(at + old, size):
            out[index + new - old] = out[index]
    return size + new - old


@kernel
def _set_varint(out: Bytes, size: int, at: int, state: State) -> int:
    old = 1
    while at + old < size and out[at + old - 1] > 127 and old < 10:
        old += 1
    value = _value(state, np.int64(out[at]) >> 1)
    raw = np.uint64((value << 1) ^ (value >> 63))
    if below(state, 2):
        raw &= np.uint64(0xFFFFFFFF)
    new = 1
    rest = raw >> np.uint64(7)
    while rest > np.uint64(0):
        new += 1
        rest >>= np.uint64(7)
    if below(state, 4) == 0:
        new += below(state, 6)
    if size + new - old > MOST_BYTES:
        return size
    size = _resize(out, size, at, old, new)
    for index in range(new):
        out[at + index] = np.uint8(raw & np.uint64(127)) | (128 if index < new - 1 else 0)
        raw >>= np.uint64(7)
    return size


@kernel
def _set_field(out: Bytes, size: int, at: int, width: int, state: State) -> int:
    if at + max(width, 1) > size:
        return size
    if width == VARINT:
        return _set_varint(out, size, at, state)
    old = np.int64(0)
    for index in range(width):
        old = (old << 8) | np.int64(out[at + index])
    value = _value(state, old)
    address = out.ctypes.data + at
    if width == 1:
        store_i8(address, value)
    elif width == 2:
        store_i16(address, value)
    elif width == 4:
        store_i32(address, value)
    else:
        store_i64(address, value)
    return size


@kernel
def seal(out: Bytes, size: int) -> None:
    """Give the batch in out[:size] the checksum of its magic, if it has room for one."""
    address = out.ctypes.data
    if size > 21 and out[16] == 2:
        store_i32(address + 17, crc32c(address + 21, size - 21))
    elif size > 16 and out[16] < 2:
        store_i32(address + 12, crc32(address + 16, size - 16))


@kernel
def mutate(
    data: Bytes, starts: Int64s, fields: Int64s, field_starts: Int64s, out: Bytes, state: State
) -> tuple[int, int]:
    """Write a changed batch of the pool to `out`, uint8[ROOM_BYTES]; returns its size and the batch it was."""
    chosen = below(state, starts.size - 1)
    start = starts[chosen]
    size = min(starts[chosen + 1] - start, MOST_BYTES)
    for index in range(size):
        out[index] = data[start + index]
    first_field = field_starts[chosen]
    field_count = field_starts[chosen + 1] - first_field
    for _ in range(1 + below(state, 4)):
        if size == 0:
            break
        kind = below(state, 16)
        at = below(state, size)
        if kind < 7:
            field = fields[first_field + below(state, field_count)]
            size = _set_field(out, size, field[0], field[1], state)
        elif kind < 9:
            out[at] ^= np.uint8(1 << below(state, 8))
        elif kind < 11:
            out[at] = np.uint8(below(state, 256))
        elif kind == 11:
            size = _set_varint(out, size, at, state)
        elif kind == 12:
            size = _resize(out, size, at, min(below(state, 9), size - at), 0)
        elif kind == 13:
            size = _resize(out, size, at, 0, below(state, 9))
        elif kind == 14:
            size = at
        else:
            other = below(state, starts.size - 1)
            behind = starts[other + 1]
            source = starts[other] + below(state, behind - starts[other])
            size = at
            while source < behind and size < MOST_BYTES:
                out[size] = data[source]
                size += 1
                source += 1
    if size > 12 and below(state, 16):
        store_i32(out.ctypes.data + 8, size - 12 if below(state, 32) else size - 12 + below(state, 5) - 2)
    if below(state, 16):
        seal(out, size)
    return size, chosen
