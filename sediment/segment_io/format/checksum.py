"""CRC-32C as a compiled loop, with the same results as the crc32c library; the check of a batch's checksum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import CRC_INSTRUCTION, crc32c_word, load_u8, load_u32, load_word64
from sediment.segment_io.compiled.status import BAD_CRC, OK
from sediment.segment_io.format.layout import ATTRIBUTES, CRC

_POLYNOMIAL = 0x82F63B78
_MASK = np.uint64(0xFFFFFFFF)
LONG_STREAM_BYTES = 2048
SHORT_STREAM_BYTES = 256


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


def _slicing_tables() -> npt.NDArray[np.uint64]:
    """Return uint64[8, 256]; entry [k, b] is the state after byte b and k zero bytes."""
    rows = [_byte_table()]
    for _ in range(7):
        rows.append([rows[0][value & 0xFF] ^ (value >> 8) for value in rows[-1]])
    return np.array(rows, dtype=np.uint64)


def _zero_tables(count: int) -> npt.NDArray[np.uint64]:
    """Return uint64[4, 256]: the effect of `count` zero bytes on each byte of a state."""
    table = _byte_table()

    def advance(crc: int) -> int:
        for _ in range(count):
            crc = table[crc & 0xFF] ^ (crc >> 8)
        return crc

    columns = [advance(1 << bit) for bit in range(32)]
    rows = []
    for part in range(4):
        row = []
        for byte in range(256):
            crc = 0
            for bit in range(8):
                if byte >> bit & 1:
                    crc ^= columns[8 * part + bit]
            row.append(crc)
        rows.append(row)
    return np.array(rows, dtype=np.uint64)


_SLICES = _slicing_tables()
_LONG = _zero_tables(LONG_STREAM_BYTES)
_SHORT = _zero_tables(SHORT_STREAM_BYTES)


@kernel
def _software_step(crc: np.uint64, word: np.uint64) -> np.uint64:
    word ^= crc
    low = np.uint64(0xFF)
    result = np.uint64(0)
    for byte in range(8):
        result ^= _SLICES[7 - byte, (word >> np.uint64(8 * byte)) & low]
    return result


# A CPU without the instruction needs eight table look-ups per word.
_step = crc32c_word if CRC_INSTRUCTION is not None else _software_step


@kernel
def _over_zeros(table: npt.NDArray[np.uint64], crc: np.uint64) -> np.uint64:
    low = np.uint64(0xFF)
    return (
        table[0, crc & low]
        ^ table[1, (crc >> np.uint64(8)) & low]
        ^ table[2, (crc >> np.uint64(16)) & low]
        ^ table[3, (crc >> np.uint64(24)) & low]
    )


@kernel
def _three_streams(crc: np.uint64, address: int, stream_bytes: int, zeros: npt.NDArray[np.uint64]) -> np.uint64:
    second = np.uint64(0)
    third = np.uint64(0)
    for position in range(address, address + stream_bytes, 8):
        crc = _step(crc, load_word64(position))
        second = _step(second, load_word64(position + stream_bytes))
        third = _step(third, load_word64(position + 2 * stream_bytes))
    crc = _over_zeros(zeros, crc) ^ second
    return _over_zeros(zeros, crc) ^ third


@kernel
def crc32c(address: int, count: int) -> int:
    """Return the CRC-32C of `count` bytes at `address` as a non-negative int64."""
    crc = _MASK
    end = address + count
    while end - address >= 3 * LONG_STREAM_BYTES:
        # The CPU can begin a CRC-32C instruction in every cycle, but each takes three cycles.  Therefore the loop
        # interleaves three streams.  To join the states of two streams, the first state is advanced over as many zero
        # bytes as the second stream has bytes.  This advance is a linear operation, so a few table look-ups are enough.
        crc = _three_streams(crc, address, LONG_STREAM_BYTES, _LONG)
        address += 3 * LONG_STREAM_BYTES
    while end - address >= 3 * SHORT_STREAM_BYTES:
        crc = _three_streams(crc, address, SHORT_STREAM_BYTES, _SHORT)
        address += 3 * SHORT_STREAM_BYTES
    while end - address >= 8:
        crc = _step(crc, load_word64(address))
        address += 8
    while address < end:
        crc = _SLICES[0, (crc ^ np.uint64(load_u8(address))) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
        address += 1
    return np.int64((crc ^ _MASK) & _MASK)


@kernel
def check_crc(address: int, size_bytes: int) -> int:
    if crc32c(address + ATTRIBUTES, size_bytes - ATTRIBUTES) != load_u32(address + CRC):
        return BAD_CRC
    return OK
