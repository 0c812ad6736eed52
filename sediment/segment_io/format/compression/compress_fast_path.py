"""A compiled function that compresses the records of one batch, as `batch_codecs.compress` does.

It supports neither lz4 at levels other than Kafka's default nor codecs whose library is missing.
`batch_codecs.compress` handles these cases.  No library exports snappy, so `snappy_compressor` implements it.

Invariants: the function writes exactly the bytes that `batch_codecs.compress` returns for the same records.  Nothing is
written outside the target.
"""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import (
    call_for_int,
    call_for_size,
    copy_bytes,
    store_i8,
    store_i32,
    store_little_u32,
)
from sediment.segment_io.compiled.native import LIBDEFLATE, LZ4, ZSTD, Tools, address_of, take_tool
from sediment.segment_io.format.compression.snappy_compressor import NO_ROOM, TABLE_BYTES, compress_block
from sediment.segment_io.format.layout import (
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_SNAPPY,
    CODEC_ZSTD,
    GZIP_LEVEL,
    LZ4_BLOCK_BYTES,
    LZ4_FRAME_HEADER,
    LZ4_LEVEL,
    LZ4_STORED,
    SNAPPY_BLOCK_BYTES,
    SNAPPY_HEADER,
    ZSTD_LEVEL,
)

NOT_COMPRESSED = -1

_WORD_BYTES = 8

# -------------------------------- C functions, contexts, arguments and working memory, int64[COMPRESSOR_REGISTERS]
_LZ4_COMPRESS = 0
_GZIP_COMPRESS = 1
_GZIP_CONTEXT = 2
_ZSTD_COMPRESS = 3
_ZSTD_CONTEXT = 4
_ZSTD_OUTPUT = 5  # address, size, bytes used
_ZSTD_INPUT = 8
_HAS_SNAPPY_TABLE = 11  # 0 in an array of zeros, which several threads may use
_SNAPPY_TABLE = 12
COMPRESSOR_REGISTERS = _SNAPPY_TABLE + TABLE_BYTES // _WORD_BYTES

_LZ4_HEADER = tuple(LZ4_FRAME_HEADER)  # as numbers, because a compiled loop can store only numbers
_SNAPPY_HEADER = tuple(SNAPPY_HEADER)
_LZ4_FRAME_BYTES = len(_LZ4_HEADER) + 4
_ZSTD_C_LEVEL = 100
_ZSTD_C_CONTENT_SIZE = 200
_ZSTD_C_CHECKSUM = 201
_ZSTD_CONTINUE, _ZSTD_FLUSH, _ZSTD_END = range(3)


def find_compressors(codec: int | None = None, level: int | None = None) -> Tools:
    """Return int64[COMPRESSOR_REGISTERS]: the addresses of the libraries' functions, with new contexts and memory.

    Each codec has Kafka's default level; if `level` is given, `codec` has this level instead.  The contexts exist as
    long as the array, and only one thread at a time may use them.
    """
    tools = np.zeros(COMPRESSOR_REGISTERS, dtype=np.int64)
    tools[_HAS_SNAPPY_TABLE] = 1
    if codec != CODEC_LZ4 or level in (None, LZ4_LEVEL):
        tools[_LZ4_COMPRESS] = address_of(LZ4, "LZ4_compress_default")
    function, make, free = "libdeflate_gzip_compress", "libdeflate_alloc_compressor", "libdeflate_free_compressor"
    gzip_level = GZIP_LEVEL if codec != CODEC_GZIP or level in (None, -1) else level
    take_tool(tools, _GZIP_COMPRESS, LIBDEFLATE, function, make, free, arguments=(gzip_level,))
    zstd_level = ZSTD_LEVEL if codec != CODEC_ZSTD or level is None else level
    function, make, free = "ZSTD_compressStream2", "ZSTD_createCCtx", "ZSTD_freeCCtx"
    take_tool(tools, _ZSTD_COMPRESS, ZSTD, function, make, free, prepare=partial(_prepare_zstd, zstd_level))
    return tools


def compressors_found() -> dict[str, bool]:
    tools = find_compressors()
    registers = {"lz4": _LZ4_COMPRESS, "gzip": _GZIP_COMPRESS, "zstd": _ZSTD_COMPRESS}
    return {codec: bool(tools[register]) for codec, register in registers.items()}


def _prepare_zstd(level: int, library: ctypes.CDLL, context: ctypes.c_void_p) -> bool:
    set_parameter = getattr(library, "ZSTD_CCtx_setParameter", None)
    if set_parameter is None:
        return False
    set_parameter.restype = ctypes.c_ssize_t  # an error is a size_t near the largest value
    wanted = {_ZSTD_C_LEVEL: level, _ZSTD_C_CONTENT_SIZE: 0, _ZSTD_C_CHECKSUM: 0}
    return all(set_parameter(context, name, value) >= 0 for name, value in wanted.items())


@kernel
def compressed_bound(size_bytes: int) -> int:
    """Return an upper bound for the size of records of `size_bytes` after compression with any codec."""
    # The largest growth is snappy's.  A literal of more than 60 bytes grows by one byte for each 65 bytes, because a
    # copy of at least four bytes is before it.  A block grows by up to ten bytes more: its two lengths and the first
    # literal.
    return size_bytes + (size_bytes >> 5) + 1024


@kernel
def compress_records(codec: int, source: int, size_bytes: int, target: int, room_bytes: int, tools: Tools) -> int:
    """Compress [source, source + size_bytes) to `target`; return the number of bytes written, or NOT_COMPRESSED."""
    if codec == CODEC_LZ4:
        return _lz4(source, size_bytes, target, room_bytes, tools)
    if codec == CODEC_ZSTD:
        return _zstd(source, size_bytes, target, room_bytes, tools)
    if codec == CODEC_SNAPPY:
        return _snappy(source, size_bytes, target, room_bytes, tools)
    if codec == CODEC_GZIP and tools[_GZIP_COMPRESS] != 0:
        written = call_for_size(tools[_GZIP_COMPRESS], tools[_GZIP_CONTEXT], source, size_bytes, target, room_bytes)
        return written if written > 0 else NOT_COMPRESSED
    return NOT_COMPRESSED


@kernel
def _lz4(source: int, size_bytes: int, target: int, room_bytes: int, tools: Tools) -> int:
    """Write one frame of independent blocks without checksums; store a block uncompressed if it would not shrink."""
    if tools[_LZ4_COMPRESS] == 0 or room_bytes < _LZ4_FRAME_BYTES:
        return NOT_COMPRESSED
    for index in range(len(_LZ4_HEADER)):
        store_i8(target + index, _LZ4_HEADER[index])
    end = target + room_bytes - 4
    position = target + len(_LZ4_HEADER)
    done = 0
    while done < size_bytes:
        block_bytes = min(LZ4_BLOCK_BYTES, size_bytes - done)
        room = end - position - 4
        if room < block_bytes:
            return NOT_COMPRESSED
        written = call_for_int(tools[_LZ4_COMPRESS], source + done, position + 4, block_bytes, room)
        if 0 < written < block_bytes:
            store_little_u32(position, written)
        else:
            written = block_bytes
            store_little_u32(position, written | LZ4_STORED)
            copy_bytes(position + 4, source + done, written)
        position += 4 + written
        done += block_bytes
    store_little_u32(position, 0)
    return position + 4 - target


@kernel
def _snappy(source: int, size_bytes: int, target: int, room_bytes: int, tools: Tools) -> int:
    if tools[_HAS_SNAPPY_TABLE] == 0 or room_bytes < len(_SNAPPY_HEADER):
        return NOT_COMPRESSED
    for index in range(len(_SNAPPY_HEADER)):
        store_i8(target + index, _SNAPPY_HEADER[index])
    table = tools.ctypes.data + _WORD_BYTES * _SNAPPY_TABLE
    end = target + room_bytes
    position = target + len(_SNAPPY_HEADER)
    for done in range(0, size_bytes, SNAPPY_BLOCK_BYTES):
        block_bytes = min(SNAPPY_BLOCK_BYTES, size_bytes - done)
        written = compress_block(source + done, block_bytes, position + 4, end - position - 4, table)
        if written == NO_ROOM:
            return NOT_COMPRESSED
        store_i32(position, written)
        position += 4 + written
    return position - target


@kernel
def _zstd(source: int, size_bytes: int, target: int, room_bytes: int, tools: Tools) -> int:
    if tools[_ZSTD_COMPRESS] == 0:
        return NOT_COMPRESSED
    tools[_ZSTD_OUTPUT], tools[_ZSTD_OUTPUT + 1], tools[_ZSTD_OUTPUT + 2] = target, room_bytes, 0
    tools[_ZSTD_INPUT], tools[_ZSTD_INPUT + 1], tools[_ZSTD_INPUT + 2] = source, size_bytes, 0
    output = tools.ctypes.data + _WORD_BYTES * _ZSTD_OUTPUT
    given = tools.ctypes.data + _WORD_BYTES * _ZSTD_INPUT
    for step in (_ZSTD_CONTINUE, _ZSTD_FLUSH, _ZSTD_END):
        # `call_for_size` passes five arguments; this C function takes four, and ignores the fifth.
        left = call_for_size(tools[_ZSTD_COMPRESS], tools[_ZSTD_CONTEXT], output, given, step, 0)
        if left < 0 or tools[_ZSTD_INPUT + 2] != size_bytes or (step != _ZSTD_CONTINUE and left != 0):
            # The context still contains an unfinished frame.
            tools[_ZSTD_COMPRESS] = 0
            return NOT_COMPRESSED
    return tools[_ZSTD_OUTPUT + 2]
