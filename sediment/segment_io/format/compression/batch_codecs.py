"""gzip, snappy, lz4 and zstd as Kafka frames them: one compressed stream of records per batch (kafka-log 01 §6).

Invariants
* For any input, decompression terminates, and allocates at most `limit_bytes` and one block.  It returns the records or
  raises a SedimentError.  Sizes stated in a stream are never trusted.
* Compression uses Kafka's framing and the codec's default level, so every Kafka client can read the result.
* Default levels: gzip -1, lz4 9, zstd 3.  The cleaner uses the default level.
* snappy: blocks of 32 KiB.  A payload without the header is read as one raw block.
* lz4: a block that does not shrink is stored uncompressed.  For magic 0, the header checksum is not checked, because
  old clients computed the checksum of other bytes.
* zstd is refused for magic 0 and 1; codecs 5 to 7 are unknown.

Snappy framing, integers big-endian:   lz4 framing, integers little-endian:

    82 "SNAPPY" 00 | i32 1 | i32 1      04 22 4d 18 | FLG 60 | BD 40 | header checksum 82
    i32 n | n bytes, raw snappy         u32 n | n bytes, an independent lz4 block (bit 31 of n: not compressed)
    …                                   …
                                        00 00 00 00, the end mark
"""

# The directory of this package is never on the import path, so it cannot hide the standard library's `compression`.

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import cramjam
import deflate
import lz4.block
import numpy as np
import xxhash
import zstandard
from isal import isal_zlib
from isal.igzip_lib import IsalError

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError, ExpandsTooFarError, UnsupportedDataError
from sediment.segment_io.format.layout import (
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_NONE,
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


def decompress(codec: int, payload: Buffer, *, limit_bytes: int, magic: int = 2) -> Buffer:
    """Return the records of a batch with `codec`; for CODEC_NONE, return `payload`.

    `payload` contains the bytes after the batch header (magic 2), or the wrapper's value (`magic` 0 and 1).  The result
    may be a read-only view of `payload`.

    Source: kafka-log 01 §6; every stream that Kafka's readers accept is accepted here.
    """
    view = memoryview(payload).cast("B")
    if codec == CODEC_NONE:
        return view
    if codec == CODEC_GZIP:
        return _decompress_gzip(view, limit_bytes)
    if codec == CODEC_SNAPPY:
        return _decompress_snappy(view, limit_bytes)
    if codec == CODEC_LZ4:
        return _decompress_lz4(view, limit_bytes, verify_header=magic > 0)
    if codec == CODEC_ZSTD:
        if magic < 2:
            raise _corrupt(f"zstd is not allowed in messages of magic {magic}")
        return _decompress_zstd(view, limit_bytes)
    raise _unknown_codec(codec)


def compress(codec: int, payload: Buffer, *, level: int | None = None) -> bytes:
    """Compress `payload`, the records of a batch of magic 2, to one stream of `codec`.

    `level` is a value of Kafka's `compression.<codec>.level`, or None for Kafka's default; snappy has no levels.
    """
    view = memoryview(payload).cast("B")
    if codec == CODEC_NONE:
        return bytes(view)
    if codec == CODEC_GZIP:
        return bytes(deflate.gzip_compress(view, GZIP_LEVEL if level in (None, -1) else level))
    if codec == CODEC_SNAPPY:
        return _compress_snappy(view)
    if codec == CODEC_LZ4:
        return _compress_lz4(view, LZ4_LEVEL if level is None else level)
    if codec == CODEC_ZSTD:
        return _compress_zstd(view, ZSTD_LEVEL if level is None else level)
    raise _unknown_codec(codec)


def _corrupt(what: str) -> CorruptBatchError:
    return CorruptBatchError(what, advice=RESTORE_OR_LEAVE_OUT)


def _unknown_codec(codec: int) -> UnsupportedDataError:
    return UnsupportedDataError(f"unknown compression codec {codec}")


def _too_large(limit_bytes: int) -> ExpandsTooFarError:
    return ExpandsTooFarError(f"compressed records expand beyond {limit_bytes} bytes", advice=RESTORE_OR_LEAVE_OUT)


class _Parts:
    """Decompressed parts, which are joined as they come; joining millions of small ones at the end takes more memory.

    `room_bytes` is the number of bytes that may still be added.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = self.room_bytes = limit_bytes
        self._first: Buffer = b""
        self._joined: bytearray | None = None

    def add(self, part: Buffer) -> None:
        if len(part) > self.room_bytes:
            raise _too_large(self._limit_bytes)
        if self._joined is not None:
            self._joined += part
        elif self.room_bytes == self._limit_bytes:
            self._first = part
        else:
            self._joined = bytearray(self._first)
            self._joined += part
        self.room_bytes -= len(part)

    def records(self) -> Buffer:
        return self._first if self._joined is None else self._joined


# ------------------------------------------------------------------------------------------------------- gzip (§6.1)

_GZIP_WBITS = 31  # a window of 32 KiB, with a gzip header and trailer
_GZIP_MEMBER_START = b"\x1f\x8b\x08"
_GZIP_HEADER_AND_TRAILER_BYTES = 18
# After each gzip member, the library copies the remaining bytes of its input.  So each call gets at most one window of
# input, and the total cost of many small members stays linear.
_GZIP_WINDOW_BYTES = 64 << 10
_GZIP_PART_BYTES = 4 << 20  # the library resizes a part several times, and holds the interpreter lock meanwhile


def _decompress_gzip(payload: memoryview, limit_bytes: int) -> Buffer:
    parts = _Parts(limit_bytes)
    position = 0
    while True:
        inflater = isal_zlib.decompressobj(_GZIP_WBITS)
        while not inflater.eof:
            window = payload[position : position + _GZIP_WINDOW_BYTES]
            try:
                part = inflater.decompress(window, min(parts.room_bytes + 1, _GZIP_PART_BYTES))
            except IsalError as error:  # type: ignore[misc]  # the stub declares an instance
                raise _corrupt(f"gzip stream is malformed: {error}") from error
            if not window and not part and not inflater.eof:
                raise _corrupt("gzip stream ends early")
            parts.add(part)
            position += len(window) - len(inflater.unused_data) - len(inflater.unconsumed_tail)
        # If bytes are not a gzip member, Java's reader treats them as the end of the stream.
        rest = payload[position:]
        if len(rest) <= _GZIP_HEADER_AND_TRAILER_BYTES or rest[:3] != _GZIP_MEMBER_START:
            return parts.records()


# ----------------------------------------------------------------------------------------------------- snappy (§6.2)

_XERIAL_MAGIC = SNAPPY_HEADER[:8]
_XERIAL_MAGIC_AS_LENGTH = _XERIAL_MAGIC[:4]
_CHUNK_LENGTH = struct.Struct(">i")


def _decompress_snappy(payload: memoryview, limit_bytes: int) -> Buffer:
    try:
        total = 0
        for chunk in _snappy_chunks(payload):
            total += cramjam.snappy.decompress_raw_len(chunk)
            if total > limit_bytes:
                raise _too_large(limit_bytes)
        records = np.empty(total, dtype=np.uint8).data
        end = 0
        for chunk in _snappy_chunks(payload):
            size = cramjam.snappy.decompress_raw_len(chunk)
            cramjam.snappy.decompress_raw_into(chunk, records[end : end + size])
            end += size
    except cramjam.DecompressionError as error:
        raise _corrupt(f"snappy stream is malformed: {error}") from error
    return records


def _snappy_chunks(payload: memoryview) -> Iterator[memoryview]:
    """Yield the raw snappy blocks of concatenated streams; one to three bytes at the end are ignored."""
    if len(payload) < len(SNAPPY_HEADER) or payload[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield payload
        return
    position = len(SNAPPY_HEADER)
    while position + _CHUNK_LENGTH.size <= len(payload):
        if payload[position : position + 4] == _XERIAL_MAGIC_AS_LENGTH:
            header = payload[position : position + len(SNAPPY_HEADER)]
            if len(header) < len(SNAPPY_HEADER) or header[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
                raise _corrupt(f"snappy stream header at byte {position} is malformed")
            position += len(SNAPPY_HEADER)
            continue
        (length,) = _CHUNK_LENGTH.unpack_from(payload, position)
        position += _CHUNK_LENGTH.size
        if not 0 < length <= len(payload) - position:
            raise _corrupt(f"snappy chunk claims {length} bytes, but {len(payload) - position} remain")
        yield payload[position : position + length]
        position += length


def _compress_snappy(payload: memoryview) -> bytes:
    parts: list[Buffer] = [SNAPPY_HEADER]
    for start in range(0, len(payload), SNAPPY_BLOCK_BYTES):
        chunk = memoryview(cramjam.snappy.compress_raw(payload[start : start + SNAPPY_BLOCK_BYTES]))
        parts += (_CHUNK_LENGTH.pack(len(chunk)), chunk)
    return b"".join(parts)


# -------------------------------------------------------------------------------------------------------- lz4 (§6.3)

_LZ4_MAGIC = LZ4_FRAME_HEADER[:4]
_LZ4_END_MARK = bytes(4)
_LZ4_CHECKSUM_BYTES = 4
_LZ4_CONTENT_SIZE_BYTES = 8
_LZ4_MAX_RATIO = 255  # the largest expansion of an lz4 block, if all length bytes are 255
_LZ4_WORD = struct.Struct("<I")

_FLG_RESERVED = 0x03
_FLG_CONTENT_CHECKSUM = 0x04
_FLG_CONTENT_SIZE = 0x08
_FLG_BLOCK_CHECKSUM = 0x10
_FLG_INDEPENDENT_BLOCKS = 0x20
_FLG_VERSION = 0xC0
_FLG_VERSION_1 = 0x40
_BD_SIZE_SHIFT = 4
_BD_RESERVED = 0x8F


def _decompress_lz4(payload: memoryview, limit_bytes: int, *, verify_header: bool) -> Buffer:
    """Decompress a frame; `verify_header` is False for magic 0, where header checksums are wrong."""
    flags, max_block_bytes, position = _lz4_header(payload, verify_header=verify_header)
    parts = _Parts(limit_bytes)
    while True:
        word = _lz4_word(payload, position)
        position += _LZ4_WORD.size
        length = word & ~LZ4_STORED
        if length == 0:
            break
        if length > max_block_bytes:
            raise _corrupt(f"lz4 block of {length} bytes is larger than the {max_block_bytes} that its frame allows")
        block = payload[position : position + length]
        if len(block) < length:
            raise _lz4_ends_early()
        position += length
        if flags & _FLG_BLOCK_CHECKSUM:
            if _lz4_word(payload, position) != xxhash.xxh32_intdigest(block):
                raise _corrupt("lz4 block fails its checksum")
            position += _LZ4_CHECKSUM_BYTES
        parts.add(block if word & LZ4_STORED else _lz4_block(block, max_block_bytes))
    if flags & _FLG_CONTENT_CHECKSUM:
        _lz4_word(payload, position)  # Kafka requires this checksum but does not verify it
    return parts.records()


def _lz4_header(payload: memoryview, *, verify_header: bool) -> tuple[int, int, int]:
    """Return (frame flags, largest block in bytes, position of the first block)."""
    if len(payload) < len(LZ4_FRAME_HEADER):
        raise _lz4_ends_early()
    if payload[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        raise _corrupt("lz4 stream does not begin with the frame magic")
    flags, block_descriptor = payload[4], payload[5]
    if flags & _FLG_VERSION != _FLG_VERSION_1 or flags & _FLG_RESERVED or block_descriptor & _BD_RESERVED:
        raise _corrupt(f"lz4 frame descriptor {flags:02x} {block_descriptor:02x} is of an unknown version")
    if not flags & _FLG_INDEPENDENT_BLOCKS:
        raise _corrupt("lz4 frame has dependent blocks, which Kafka cannot read")
    size_code = block_descriptor >> _BD_SIZE_SHIFT
    if size_code < 4:
        raise _corrupt(f"lz4 frame descriptor {flags:02x} {block_descriptor:02x} has no valid block size")
    checksum_at = 6 + (_LZ4_CONTENT_SIZE_BYTES if flags & _FLG_CONTENT_SIZE else 0)
    if checksum_at >= len(payload):
        raise _lz4_ends_early()
    if verify_header and payload[checksum_at] != (xxhash.xxh32_intdigest(payload[4:checksum_at]) >> 8) & 0xFF:
        raise _corrupt("lz4 frame descriptor corrupted: it fails its checksum")
    return flags, 1 << (2 * size_code + 8), checksum_at + 1


def _lz4_word(payload: memoryview, position: int) -> int:
    if position + _LZ4_WORD.size > len(payload):
        raise _lz4_ends_early()
    word: int = _LZ4_WORD.unpack_from(payload, position)[0]
    return word


def _lz4_ends_early() -> CorruptBatchError:
    return _corrupt("lz4 stream ends early")


def _lz4_block(block: memoryview, max_block_bytes: int) -> bytes:
    size_bytes = min(max_block_bytes, _LZ4_MAX_RATIO * len(block))
    try:
        records: bytes = lz4.block.decompress(block, uncompressed_size=size_bytes)
    except lz4.block.LZ4BlockError as error:
        raise _corrupt(f"lz4 block is malformed: {error}") from error
    return records


def _compress_lz4(payload: memoryview, level: int) -> bytes:
    parts: list[Buffer] = [LZ4_FRAME_HEADER]
    for start in range(0, len(payload), LZ4_BLOCK_BYTES):
        raw = payload[start : start + LZ4_BLOCK_BYTES]
        # The streaming interface of the lz4 package writes larger blocks than Kafka, so this function writes the blocks
        # itself.
        if level == LZ4_LEVEL:
            block = memoryview(cramjam.lz4.compress_block(raw, store_size=False))
        else:
            block = memoryview(lz4.block.compress(raw, mode="high_compression", compression=level, store_size=False))
        if len(block) < len(raw):
            parts += (_LZ4_WORD.pack(len(block)), block)
        else:
            parts += (_LZ4_WORD.pack(len(raw) | LZ4_STORED), raw)
    parts.append(_LZ4_END_MARK)
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------------- zstd (§6.4)

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_SKIPPABLE_MAGIC = bytes.fromhex("2a4d18")  # one byte from 50 to 5f precedes these
_ZSTD_BLOCK_HEADER_BYTES = 3
_ZSTD_MAX_BLOCK_BYTES = 128 << 10
_ZSTD_CHECKSUM_BYTES = 4
_ZSTD_RAW, _ZSTD_RLE, _ZSTD_COMPRESSED = range(3)


class _ZstdContexts(threading.local):
    """The zstd contexts of one thread, which are expensive to create; a context handles only one stream at a time."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _ZstdContexts()


def _decompress_zstd(payload: memoryview, limit_bytes: int) -> Buffer:
    try:
        bound_bytes = _zstd_bound(payload)
        records = np.empty(min(bound_bytes, limit_bytes + 1), dtype=np.uint8).data
        filled = 0
        with _zstd.decompressor.stream_reader(payload, read_across_frames=True) as reader:
            while filled < len(records) and (count := reader.readinto(records[filled:])):
                filled += count
            if filled > limit_bytes:
                raise _too_large(limit_bytes)
            # The library compares the last frame's checksum only if more bytes are requested than remain.
            if reader.read(1):
                raise _corrupt("zstd stream expands beyond its blocks")
    except zstandard.ZstdError as error:
        raise _corrupt(f"zstd stream is malformed: {error}") from error
    return records[:filled]


def _zstd_bound(payload: memoryview) -> int:
    """Return an upper bound for the decompressed size of `payload`, from block headers; every frame must be complete.

    The block headers are scanned first, because the library takes a truncated frame for a shorter one, without an
    error.
    """
    bound = 0
    position = 0
    while position < len(payload):
        if payload[position] & 0xF0 == 0x50 and payload[position + 1 : position + 4] == _ZSTD_SKIPPABLE_MAGIC:
            position = _zstd_advance(payload, position, 4)
            skipped = int.from_bytes(payload[position : position + 4], "little")
            position = _zstd_advance(payload, position, 4 + skipped)
            continue
        if payload[position : position + 4] != _ZSTD_MAGIC:
            raise _corrupt(f"zstd stream has no frame at byte {position}")
        frame = payload[position:]
        has_checksum = zstandard.get_frame_parameters(frame).has_checksum
        position = _zstd_advance(payload, position, zstandard.frame_header_size(frame))
        last = False
        while not last:
            at = position
            position = _zstd_advance(payload, position, _ZSTD_BLOCK_HEADER_BYTES)
            header = int.from_bytes(payload[at:position], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            bound += _ZSTD_MAX_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
            position = _zstd_advance(payload, position, 1 if kind == _ZSTD_RLE else size)
        if has_checksum:
            position = _zstd_advance(payload, position, _ZSTD_CHECKSUM_BYTES)
    return bound


def _zstd_advance(payload: memoryview, position: int, count: int) -> int:
    if position + count > len(payload):
        raise _corrupt("zstd stream ends early")
    return position + count


def _compress_zstd(payload: memoryview, level: int) -> bytes:
    """Compress with a flush before the end, as Kafka's stream does, so that the last block is empty."""
    compressor = _zstd.compressors.get(level)
    if compressor is None:
        compressor = zstandard.ZstdCompressor(level=level, write_content_size=False, write_checksum=False)
        _zstd.compressors[level] = compressor
    stream = compressor.compressobj()
    return stream.compress(payload) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.flush()
