"""Regressions found by fuzzing, each as its smallest input, and streams that expand without end."""

from __future__ import annotations

import contextlib
import resource
import struct
import zlib

import cramjam
import lz4.block
import numpy as np
import pytest
import zstandard

from sediment.engine.live.log.append_analysis import AppendBuffers, read_batches
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.engine.live.log.validation import validate_batches
from sediment.engine.log_config import LogConfig
from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.errors import CorruptBatchError, InvalidRecordError
from sediment.segment_io.format.batch_headers import BATCH_ROW, read_headers
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.legacy import unwrap
from sediment.segment_io.format.names import parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.columns import WANT_KEY, RecordColumns
from sediment.segment_io.segment.reader import BatchSpan
from tests.segments import NOW_MS, batch_bytes
from tests.twin import framing
from tests.twin.batches import Record, encode_batch, sign_batch
from tests.twin.legacy import encode_legacy_record

LARGEST = 2**63 - 1


def validated(data, origin=AppendOrigin.COORDINATOR):
    buffers = AppendBuffers()
    batches = read_batches(data, buffers, origin=origin, leader_epoch=3, max_message_bytes=1 << 20)
    checked = validate_batches(batches, buffers, LogConfig(), origin=origin, now_ms=NOW_MS)
    return checked.assigned(first_offset=10, leader_epoch=3, now_ms=NOW_MS)


def resident_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ----------------------------------------------------------------------------------------------------- what was broken
@pytest.mark.parametrize("append_time", [None, LARGEST])
def test_a_record_of_the_largest_timestamp_is_shown_where_no_bound_is_asked_for(append_time):
    data = encode_batch([Record(0, LARGEST, b"k", b"v")], base_offset=0, append_time=append_time)
    buffer = padded_buffer(len(data))
    buffer[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    rows = np.zeros(1, dtype=BATCH_ROW)
    read_headers(buffer.ctypes.data, 0, len(data), 0, rows)
    columns = RecordColumns(WANT_KEY)
    bounds = np.array([-LARGEST - 1, LARGEST, -LARGEST - 1, LARGEST], dtype=np.int64)
    columns.add(BatchSpan(buffer, 0, len(data), 0, rows), 0, np.zeros(1, dtype=np.bool_), bounds)
    assert columns.take().keys().to_pylist() == [b"k"]


def test_a_batch_whose_offsets_wrap_around_gets_those_of_the_log():
    made = validated(batch_bytes(LARGEST, "abc"))
    rows = made.batches.rows
    assert (rows["base_offset"].tolist(), rows["last_offset"].tolist()) == ([10], [12])


def test_a_count_that_the_decompressed_records_cannot_hold_is_refused_before_room_is_made_for_it():
    data = bytearray(batch_bytes(0, "a", value=bytes(1 << 20), codec=framing.ZSTD))
    data[23:27], data[57:61] = struct.pack(">i", (1 << 19) - 1), struct.pack(">i", 1 << 19)
    with pytest.raises(InvalidRecordError, match="record count"):
        validated(sign_batch(bytes(data)), AppendOrigin.CLIENT)


@pytest.mark.parametrize("inner", [-(2**63), -1])
def test_a_wrapper_whose_base_offset_is_beyond_2_63_is_refused(inner):
    entry = encode_legacy_record(Record(inner, NOW_MS, b"k", b"v"), magic=1)
    stream = framing.compress(framing.GZIP, entry, magic=1)
    wrapper = encode_legacy_record(Record(LARGEST, NOW_MS, None, stream), magic=1, attributes=framing.GZIP)
    with pytest.raises(CorruptBatchError, match="below the offsets of its messages"):
        unwrap(wrapper, limit_bytes=1 << 20)


@pytest.mark.parametrize("name", [f"{2**63}.log", "9" * 30 + ".index", f"{2**63}.log.swap"])
def test_a_name_above_the_largest_offset_is_not_a_segment_file(name):
    assert parse_segment_file(name) is None
    assert parse_segment_file(f"{LARGEST:020d}.log").base_offset == LARGEST


def test_a_file_beyond_the_size_of_a_segment_is_not_read_at_once(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        Fs().read_bytes(tmp_path / "huge")


# --------------------------------------------------------------------------------------------------------------- bombs
BOMB_BYTES = 192 << 20
LIMIT_BYTES = 4 << 20


def _gzip_bomb():
    return framing.compress(framing.GZIP, bytes(BOMB_BYTES))


def _snappy_bomb():
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    chunk = struct.pack(">i", len(block)) + block
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + chunk * (BOMB_BYTES >> 20)


def _lz4_bomb():
    head = b"\x60\x70"
    block = lz4.block.compress(bytes(4 << 20), store_size=False)
    one = struct.pack("<I", len(block)) + block
    return b"\x04\x22\x4d\x18" + head + bytes([framing._header_checksum(head)]) + one * (BOMB_BYTES >> 22) + bytes(4)


def _zstd_bomb():
    return zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES))


BOMBS = {framing.GZIP: _gzip_bomb, framing.SNAPPY: _snappy_bomb, framing.LZ4: _lz4_bomb, framing.ZSTD: _zstd_bomb}
CLAIMS = {
    "snappy that claims 4 GB": (framing.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20)),
    "snappy that claims what is allowed": (framing.SNAPPY, b"\x80\x80\x80\x02" + bytes(20)),
    "zstd of a window of 2^41": (framing.ZSTD, bytes.fromhex("28b52ffd00f8") + bytes(20)),
    "zstd that claims 2^63": (framing.ZSTD, bytes.fromhex("28b52ffde0ffffffffffffff7f") + bytes(20)),
    "zstd blocks of one byte repeated": (
        framing.ZSTD,
        bytes.fromhex("28b52ffd0058") + struct.pack("<I", (1 << 17) << 3 | 1 << 1)[:3] * 1 + b"a",
    ),
    "gzip of empty members": (framing.GZIP, framing.compress(framing.GZIP, b"") * 20_000),
    "lz4 of blocks that are one byte": (framing.LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x01\0\0\x80a" * 50_000),
}


@pytest.mark.parametrize("codec", BOMBS, ids=framing.NAMES[1:])
@pytest.mark.parametrize("depth", ["a batch", "a wrapper"])
def test_a_stream_that_expands_beyond_the_limit_takes_no_more_memory_than_the_limit(codec, depth):
    def read(stream):
        with pytest.raises(CorruptBatchError):
            if depth == "a batch":
                decompress(codec, stream, limit_bytes=LIMIT_BYTES)
            else:
                wrapper = encode_legacy_record(Record(0, NOW_MS, None, stream), magic=1, attributes=codec)
                unwrap(wrapper, limit_bytes=LIMIT_BYTES)

    read(framing.compress(codec, bytes(100))[:-9])  # loads libraries and compiled code
    stream = BOMBS[codec]()
    before = resident_bytes()
    read(stream)
    assert resident_bytes() - before < 32 << 20


@pytest.mark.parametrize("case", CLAIMS.values(), ids=CLAIMS)
def test_what_a_stream_claims_for_itself_is_not_believed(case):
    codec, stream = case
    before = resident_bytes()
    with contextlib.suppress(CorruptBatchError):
        assert len(decompress(codec, stream, limit_bytes=LIMIT_BYTES)) <= LIMIT_BYTES
    assert resident_bytes() - before < 32 << 20


def test_wrappers_in_wrappers_end_at_the_second():
    inner = encode_legacy_record(Record(0, NOW_MS, b"k", b"v"), magic=1)
    for _ in range(5):
        stream = framing.compress(framing.GZIP, inner, magic=1)
        inner = encode_legacy_record(Record(0, NOW_MS, None, stream), magic=1, attributes=framing.GZIP)
    assert zlib.crc32(inner[16:]) == int.from_bytes(inner[12:16], "big")
    with pytest.raises(CorruptBatchError, match="compressed message contains compressed messages"):
        unwrap(inner, limit_bytes=LIMIT_BYTES)
