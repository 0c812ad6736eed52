"""Compiled loops that decompress many batches in one call, in the framing of Kafka's producers (kafka-log 01 §6).

    area      | records of a batch | records of the next | …        | padding |
    payloads  (address, bytes) of each batch's records; bytes is NOT_DECOMPRESSED if the records are not in the area

This module itself implements snappy, because no library exports it.  A batch is skipped if it is framed differently, is
malformed, or needs a library that is missing.  `batch_codecs.decompress` then reads the batch or reports the error.

Invariants
* A payload is used only if `batch_codecs.decompress` would return the same bytes.
* Nothing is written outside the area and its padding.
* No read goes more than PADDING_BYTES past the end of a payload; the payload's buffer has as much padding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import (
    call_for_int,
    call_for_size,
    call_for_status,
    copy_bytes,
    load_i16,
    load_i32,
    load_little_u32,
    load_u8,
    load_word64,
    store_i8,
)
from sediment.segment_io.compiled.native import LIBDEFLATE, LZ4, ZSTD, Tools, address_of, take_tool
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_MASK,
    CODEC_SNAPPY,
    CODEC_ZSTD,
    LOG_OVERHEAD_BYTES,
    LZ4_BLOCK_BYTES,
    LZ4_STORED,
)

NOT_DECOMPRESSED = -1
_NO_ROOM = -2

# ---------------------------------------------------------------- C functions and their contexts, int64[TOOL_REGISTERS]
_LZ4_DECOMPRESS = 0  # addresses; 0: the library is missing
_ZSTD_DECOMPRESS = 1
_ZSTD_CONTEXT = 2
_GZIP_DECOMPRESS = 3
_GZIP_CONTEXT = 4
_SIZES = 5  # two words for the results of a function
TOOL_REGISTERS = 7

_WORD_BYTES = 8
_LIBDEFLATE_SUCCESS = 0
_LIBDEFLATE_INSUFFICIENT_SPACE = 3
_ZSTD_TOO_SMALL = -70

_GZIP_MIN_BYTES = 18
_GZIP_START = 0x00088B1F  # magic, deflate, no flags; little-endian
_LZ4_MIN_BYTES = 11
_LZ4_START = 0x184D2204
_LZ4_MAX_RATIO = 255
_SNAPPY_START = 0x00595050414E5382  # "\x82SNAPPY\0"
_SNAPPY_HEADER_BYTES = 16
_ZSTD_MIN_BYTES = 6
_ZSTD_START = 0xFD2FB528
_ZSTD_SINGLE_SEGMENT = 0x20
_ZSTD_MAX_WINDOW_EXPONENT = 17  # a window of 128 MiB, the largest that streaming readers accept


def find_tools() -> Tools:
    """Return int64[TOOL_REGISTERS]: the addresses of the libraries' functions, with new contexts.

    The contexts exist as long as the array, and only one thread at a time may use them.
    """
    tools = np.zeros(TOOL_REGISTERS, dtype=np.int64)
    tools[_LZ4_DECOMPRESS] = address_of(LZ4, "LZ4_decompress_safe")
    take_tool(tools, _ZSTD_DECOMPRESS, ZSTD, "ZSTD_decompressDCtx", "ZSTD_createDCtx", "ZSTD_freeDCtx")
    function, make = "libdeflate_gzip_decompress_ex", "libdeflate_alloc_decompressor"
    take_tool(tools, _GZIP_DECOMPRESS, LIBDEFLATE, function, make, "libdeflate_free_decompressor")
    return tools


def decompressors_found() -> dict[str, bool]:
    tools = find_tools()
    registers = {"lz4": _LZ4_DECOMPRESS, "gzip": _GZIP_DECOMPRESS, "zstd": _ZSTD_DECOMPRESS}
    return {codec: bool(tools[register]) for codec, register in registers.items()}


@kernel
def decompress_batches(
    base: int,
    positions: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.int64],
    limit_bytes: int,
    tools: Tools,
    area: int,
    area_bytes: int,
    payloads: npt.NDArray[np.int64],
) -> int:
    """Decompress the batches with the indexes `wanted`, in this order, until a batch does not fit into the area.

    `positions`, int64[batches], are the positions of batches of magic 2, relative to `base`.  PADDING_BYTES follow the
    area.  Rows of `payloads`, int64[batches, 2], are set for the decompressed batches.  Return the used bytes of the
    area.
    """
    used = 0
    for ordinal in wanted:
        header = base + positions[ordinal]
        codec = load_i16(header + ATTRIBUTES) & CODEC_MASK
        start = header + BATCH_HEADER_BYTES
        end = header + LOG_OVERHEAD_BYTES + load_i32(header + BATCH_LENGTH)
        room = min(area_bytes - used, limit_bytes)
        size = NOT_DECOMPRESSED
        if codec == CODEC_LZ4:
            size = _lz4(start, end, area + used, room, tools)
        elif codec == CODEC_ZSTD:
            size = _zstd(start, end, area + used, room, tools)
        elif codec == CODEC_SNAPPY:
            size = _snappy(start, end, area + used, room)
        elif codec == CODEC_GZIP:
            size = _gzip(start, end, area + used, room, tools)
        if size == _NO_ROOM and room < limit_bytes:
            break
        if size >= 0:
            payloads[ordinal, 0] = area + used
            payloads[ordinal, 1] = size
            used += size
    return used


@kernel
def _gzip(start: int, end: int, target: int, room: int, tools: Tools) -> int:
    if tools[_GZIP_DECOMPRESS] == 0 or end - start < _GZIP_MIN_BYTES or load_little_u32(start) != _GZIP_START:
        return NOT_DECOMPRESSED
    sizes = tools.ctypes.data + _WORD_BYTES * _SIZES
    status = call_for_status(
        tools[_GZIP_DECOMPRESS], tools[_GZIP_CONTEXT], start, end - start, target, room, sizes, sizes + _WORD_BYTES
    )
    if status == _LIBDEFLATE_INSUFFICIENT_SPACE:
        return _NO_ROOM
    # If bytes follow the first member, skip the batch: `batch_codecs.decompress` treats these bytes as Java does.
    if status != _LIBDEFLATE_SUCCESS or tools[_SIZES] != end - start:
        return NOT_DECOMPRESSED
    return tools[_SIZES + 1]


@kernel
def _zstd(start: int, end: int, target: int, room: int, tools: Tools) -> int:
    if tools[_ZSTD_DECOMPRESS] == 0 or end - start < _ZSTD_MIN_BYTES or load_little_u32(start) != _ZSTD_START:
        return NOT_DECOMPRESSED
    if load_u8(start + 4) & _ZSTD_SINGLE_SEGMENT == 0 and load_u8(start + 5) >> 3 > _ZSTD_MAX_WINDOW_EXPONENT:
        return NOT_DECOMPRESSED
    size = call_for_size(tools[_ZSTD_DECOMPRESS], tools[_ZSTD_CONTEXT], target, room, start, end - start)
    if size == _ZSTD_TOO_SMALL:
        return _NO_ROOM
    return max(size, NOT_DECOMPRESSED)


@kernel
def _lz4(start: int, end: int, target: int, room: int, tools: Tools) -> int:
    """Read the frames that Kafka and librdkafka write: independent blocks of at most 64 KiB, without checksums."""
    if tools[_LZ4_DECOMPRESS] == 0 or end - start < _LZ4_MIN_BYTES or load_little_u32(start) != _LZ4_START:
        return NOT_DECOMPRESSED
    if load_u8(start + 4) != 0x60 or load_u8(start + 5) != 0x40 or load_u8(start + 6) != 0x82:
        return NOT_DECOMPRESSED
    position = start + 7
    size = 0
    while True:
        if end - position < 4:
            return NOT_DECOMPRESSED
        word = load_little_u32(position)
        position += 4
        length = word & ~LZ4_STORED
        if length == 0:
            return size
        if length > LZ4_BLOCK_BYTES or length > end - position:
            return NOT_DECOMPRESSED
        if word & LZ4_STORED:
            if length > room - size:
                return _NO_ROOM
            copy_bytes(target + size, position, length)
            size += length
        else:
            most = min(LZ4_BLOCK_BYTES, _LZ4_MAX_RATIO * length)
            if most > room - size:
                return _NO_ROOM
            block = call_for_int(tools[_LZ4_DECOMPRESS], position, target + size, length, most)
            if block < 0:
                return NOT_DECOMPRESSED
            size += block
        position += length


@kernel
def _snappy(start: int, end: int, target: int, room: int) -> int:
    """Read raw snappy, or one stream of chunks in the framing of xerial's library."""
    if end - start < _SNAPPY_HEADER_BYTES or load_word64(start) != np.uint64(_SNAPPY_START):
        return _snappy_block(start, end, target, room)
    position = start + _SNAPPY_HEADER_BYTES
    size = 0
    while end - position >= 4:
        length = load_i32(position)
        position += 4
        if length <= 0 or length > end - position:
            return NOT_DECOMPRESSED
        block = _snappy_block(position, position + length, target + size, room - size)
        if block < 0:
            return block
        size += block
        position += length
    return size


@kernel
def _snappy_block(source: int, end: int, target: int, room: int) -> int:
    """Decompress a raw snappy block, and return its uncompressed size; NOT_DECOMPRESSED if the block is malformed."""
    size = 0
    shift = 0
    while True:
        if source >= end or shift > 28:
            return NOT_DECOMPRESSED
        byte = load_u8(source)
        source += 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > room:
        return _NO_ROOM
    out = target
    limit = target + size
    while source < end:
        tag = load_u8(source)
        source += 1
        kind = tag & 3
        if kind == 0:
            length = (tag >> 2) + 1
            if length <= 16 and end - source >= length and limit - out >= length:
                copy_bytes(out, source, 16)
                source += length
                out += length
                continue
            if length > 60:
                extra = length - 60
                length = (load_little_u32(source) & ((1 << (8 * extra)) - 1)) + 1
                source += extra
            if length > end - source or length > limit - out:
                return NOT_DECOMPRESSED
            copy_bytes(out, source, length)
            source += length
            out += length
            continue
        if kind == 1:
            length = 4 + ((tag >> 2) & 7)
            distance = ((tag >> 5) << 8) | load_u8(source)
            source += 1
        elif kind == 2:
            length = (tag >> 2) + 1
            distance = load_little_u32(source) & 0xFFFF
            source += 2
        else:
            length = (tag >> 2) + 1
            distance = load_little_u32(source)
            source += 4
        if source > end or distance == 0 or distance > out - target or length > limit - out:
            return NOT_DECOMPRESSED
        if distance >= 16:
            # Copy whole words, even past the end. The bytes past the end are overwritten later, or are padding.
            for at in range(0, length, 16):
                copy_bytes(out + at, out + at - distance, 16)
        else:
            for at in range(length):
                store_i8(out + at, load_u8(out + at - distance))
        out += length
    return size if out == limit else NOT_DECOMPRESSED
