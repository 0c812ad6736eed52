"""Compressed payloads as Kafka frames them (kafka-log 01 §6), through the codecs' own libraries.

`compress` need not give the bytes of Kafka's libraries, only its framing; `decompress` accepts what Kafka's
readers accept.
"""

from __future__ import annotations

import struct
import zlib

import cramjam
import lz4.block
import xxhash
import zstandard

from tests.twin.errors import CorruptRecordError, UnsupportedCodecError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """`data` as one stream of `codec` at its default level; `magic` 0 writes lz4's broken header checksum."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gzip(data)
    if codec == SNAPPY:
        return _snappy(data)
    if codec == LZ4:
        return _lz4(data, magic)
    if codec == ZSTD:
        return _zstd(data)
    raise UnsupportedCodecError(f"unknown compression type id {codec}")


def decompress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """Return the whole content of a compressed payload.

    Raises:
        CorruptRecordError: the stream is malformed or ends early.
        UnsupportedCodecError: codec bits 5 to 7.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gunzip(data)
    if codec == SNAPPY:
        return _unsnappy(data)
    if codec == LZ4:
        return _unlz4(data, magic)
    if codec == ZSTD:
        return _unzstd(data)
    raise UnsupportedCodecError(f"unknown compression type id {codec}")


# ---------------------------------------------------------------------------------------------------------- gzip (§6.1)
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")


def _gzip(data: bytes) -> bytes:
    deflate = zlib.compressobj(-1, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    return _GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _gunzip(data: bytes) -> bytes:
    out = []
    while True:
        inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            out.append(inflate.decompress(data))
        except zlib.error as error:
            raise CorruptRecordError(f"gzip: {error}") from error
        if not inflate.eof:
            raise CorruptRecordError("gzip: the stream ends early")
        data = inflate.unused_data
        if not data.startswith(_GZIP_HEADER[:2]):
            return b"".join(out)


# -------------------------------------------------------------------------------------------------------- snappy (§6.2)
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_CHUNK_BYTES = 32768


def _snappy(data: bytes) -> bytes:
    out = [_SNAPPY_HEADER]
    for start in range(0, len(data), _SNAPPY_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_CHUNK_BYTES]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def _snappy_block(block: bytes) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"snappy: {error}") from error


def _unsnappy(data: bytes) -> bytes:
    if not data:
        raise CorruptRecordError("snappy: the payload is empty")
    if data[:8] != _SNAPPY_MAGIC:
        return _snappy_block(data)
    out = []
    position = len(_SNAPPY_HEADER)
    while position < len(data):
        if data[position : position + 4] == _SNAPPY_MAGIC[:4]:
            position += len(_SNAPPY_HEADER)
            continue
        if position + 4 > len(data):
            raise CorruptRecordError("snappy: the stream ends inside a chunk length")
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if size < 0 or position + size > len(data):
            raise CorruptRecordError("snappy: the stream ends inside a chunk")
        out.append(_snappy_block(data[position : position + size]))
        position += size
    return b"".join(out)


# ----------------------------------------------------------------------------------------------------------- lz4 (§6.3)
_LZ4_MAGIC = struct.pack("<I", 0x184D2204)
_LZ4_DESCRIPTOR = b"\x60\x40"  # version 01, independent blocks; blocks of 64 KiB
_LZ4_BLOCK_BYTES = 65536
_LZ4_RAW_BIT = 0x80000000
_VERSION_MASK, _INDEPENDENT_BIT, _BLOCK_SUM_BIT, _SIZE_BIT = 0xC0, 0x20, 0x10, 0x08


def _header_checksum(covered: bytes) -> int:
    return (xxhash.xxh32_intdigest(covered) >> 8) & 0xFF


def _lz4(data: bytes, magic: int) -> bytes:
    covered = _LZ4_MAGIC + _LZ4_DESCRIPTOR if magic == 0 else _LZ4_DESCRIPTOR
    out = [_LZ4_MAGIC, _LZ4_DESCRIPTOR, bytes([_header_checksum(covered)])]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        raw = data[start : start + _LZ4_BLOCK_BYTES]
        block = lz4.block.compress(raw, store_size=False)
        if len(block) >= len(raw):
            out += [struct.pack("<I", len(raw) | _LZ4_RAW_BIT), raw]
        else:
            out += [struct.pack("<I", len(block)), block]
    out.append(struct.pack("<I", 0))
    return b"".join(out)


def _unlz4(data: bytes, magic: int) -> bytes:
    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        raise CorruptRecordError("lz4: no frame magic")
    flags, block_descriptor = data[4], data[5]
    if flags & _VERSION_MASK != 0x40 or flags & 0x03:
        raise CorruptRecordError("lz4: version or reserved bits of the frame flags")
    if not flags & _INDEPENDENT_BIT:
        raise CorruptRecordError("lz4: dependent blocks are not supported")
    size_code = block_descriptor >> 4
    if block_descriptor & 0x8F or not 4 <= size_code <= 7:
        raise CorruptRecordError("lz4: block descriptor")
    max_block = 1 << (8 + 2 * size_code)
    position = 14 if flags & _SIZE_BIT else 6
    if position >= len(data):
        raise CorruptRecordError("lz4: the stream ends inside the frame descriptor")
    if magic > 0 and data[position] != _header_checksum(data[4:position]):
        raise CorruptRecordError("lz4: stream frame descriptor corrupted")
    position += 1
    out: list[bytes] = []
    while True:
        if position + 4 > len(data):
            raise CorruptRecordError("lz4: the stream ends without an end mark")
        (length,) = struct.unpack_from("<I", data, position)
        position += 4
        if length == 0:
            return b"".join(out)
        size = length & ~_LZ4_RAW_BIT
        block = data[position : position + size]
        if size > max_block or len(block) < size:
            raise CorruptRecordError("lz4: block too large or cut short")
        position += size
        if flags & _BLOCK_SUM_BIT:
            if data[position : position + 4] != struct.pack("<I", xxhash.xxh32_intdigest(block)):
                raise CorruptRecordError("lz4: block checksum mismatch")
            position += 4
        if length & _LZ4_RAW_BIT:
            out.append(block)
            continue
        try:
            out.append(lz4.block.decompress(block, uncompressed_size=max_block))
        except lz4.block.LZ4BlockError as error:
            raise CorruptRecordError(f"lz4: {error}") from error


# ---------------------------------------------------------------------------------------------------------- zstd (§6.4)
def _zstd(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    flushed = stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return flushed + stream.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


def _unzstd(data: bytes) -> bytes:
    out = []
    while data:
        stream = zstandard.ZstdDecompressor().decompressobj()
        try:
            out.append(stream.decompress(data))
        except zstandard.ZstdError as error:
            raise CorruptRecordError(f"zstd: {error}") from error
        if not stream.eof:
            raise CorruptRecordError("zstd: the stream ends early")
        data = stream.unused_data
    return b"".join(out)
