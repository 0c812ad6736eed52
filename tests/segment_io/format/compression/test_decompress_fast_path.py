"""Batches decompressed by compiled loops: the bytes that `batch_codecs.decompress` makes of them, or none."""

import random
from contextlib import suppress

import cramjam
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled import native
from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.compression import decompress_fast_path
from sediment.segment_io.format.compression.batch_codecs import compress, decompress
from sediment.segment_io.format.layout import CODEC_GZIP, CODEC_LZ4, CODEC_NAMES, CODEC_SNAPPY, CODEC_ZSTD

CODECS = [CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD]
LIMIT = 1 << 20
GUARD = 0xA5
every_codec = pytest.mark.parametrize("codec", CODECS, ids=[CODEC_NAMES[codec] for codec in CODECS])


def batch(codec, payload):
    size = 61 + len(payload)
    return (
        bytes(8)
        + (size - 12).to_bytes(4, "big")
        + bytes(4)
        + b"\2"
        + bytes(4)
        + bytes([0, codec])
        + bytes(38)
        + payload
    )


def decompressed(batches, *, area_bytes=LIMIT, limit_bytes=LIMIT, tools=None):
    """Return the records of each batch, None for a batch left out; the kernel takes the last batch first."""
    positions = np.cumsum([0, *map(len, batches[:-1])]).astype(np.int64)
    chunk = np.frombuffer(b"".join(batches) + bytes(PADDING_BYTES), dtype=np.uint8)
    area = np.full(area_bytes + 2 * PADDING_BYTES, GUARD, dtype=np.uint8)
    found = np.full((len(batches), 2), decompress_fast_path.NOT_DECOMPRESSED, dtype=np.int64)
    used = decompress_fast_path.decompress_batches(
        chunk.ctypes.data,
        positions,
        np.arange(len(batches), dtype=np.int64)[::-1].copy(),
        limit_bytes,
        decompress_fast_path.find_tools() if tools is None else tools,
        area.ctypes.data,
        area_bytes,
        found,
    )
    assert used == found[found[:, 1] >= 0, 1].sum() <= area_bytes
    assert (area[area_bytes + PADDING_BYTES :] == GUARD).all()
    start = area.ctypes.data
    return [area[at - start : at - start + size].tobytes() if size >= 0 else None for at, size in found.tolist()]


def some_records(seed, size_bytes):
    """Bytes with matches near and far, long and overlapping, and stretches without any."""
    choose = random.Random(seed)
    content = bytearray()
    while len(content) < size_bytes:
        if content and choose.random() < 0.6:
            distance = choose.choice([1, 2, 3, 7, 8, 15, 16, 17, 100, 5000, 40_000])
            start = max(len(content) - distance, 0)
            piece = bytes(content[start:])
            content += (piece * 200)[: choose.choice([4, 11, 16, 60, 64, 65, 300])]
        else:
            content += choose.randbytes(choose.choice([1, 5, 16, 17, 60, 61, 200, 300]))
    return bytes(content[:size_bytes])


@every_codec
def test_what_kafka_frames_is_decompressed(codec):
    records = [some_records(seed, size) for seed, size in enumerate([0, 1, 40, 1000, 17_000, 70_000, 200_000])]
    assert decompressed([batch(codec, compress(codec, each)) for each in records]) == records


@every_codec
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_corrupt_streams_give_the_bytes_of_the_general_reader_or_nothing(codec, data):
    stream = bytearray(compress(codec, some_records(data.draw(st.integers(0, 50)), data.draw(st.integers(1, 3000)))))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    stream = bytes(stream)[: data.draw(st.integers(0, len(stream)))] + data.draw(st.binary(max_size=8))
    (found,) = decompressed([batch(codec, stream)])
    if found is not None:
        assert found == bytes(decompress(codec, stream, limit_bytes=LIMIT))


@given(stream=st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_as_raw_snappy_give_what_the_library_gives_or_nothing(stream):
    (found,) = decompressed([batch(CODEC_SNAPPY, stream)])
    expected = None
    with suppress(CorruptBatchError):
        expected = bytes(decompress(CODEC_SNAPPY, stream, limit_bytes=LIMIT))
    assert found == expected


def test_a_raw_snappy_block_with_copies_of_every_kind_is_decompressed():
    far = some_records(1, 70_000)
    records = far + far[:300] + b"ab" * 40 + far[60_000:60_100]
    raw = bytes(cramjam.snappy.compress_raw(records))
    with_long_distance = bytes([0b000100_11, *(70_000).to_bytes(4, "little")])
    size = len(records) + 5
    preamble = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    literal = bytes([0b111110_00, *(len(records) - 1).to_bytes(3, "little")])
    assert decompressed([batch(CODEC_SNAPPY, raw)]) == [records]
    assert decompressed([batch(CODEC_SNAPPY, preamble + literal + records + with_long_distance)]) == [
        records + records[-70_000:][:5]
    ]


@every_codec
def test_the_first_batch_that_does_not_fit_ends_the_call(codec):
    records = [some_records(seed, 3000) for seed in range(4)]
    batches = [batch(codec, compress(codec, each)) for each in records]
    room = 65_536 + 3000 if codec == CODEC_LZ4 else 7000
    assert decompressed(batches, area_bytes=room) == [None, None, *records[2:]]


@every_codec
def test_what_expands_beyond_the_limit_is_left_out_and_the_others_are_not(codec):
    records = [some_records(1, 500), bytes(100_000), some_records(2, 500)]
    batches = [batch(codec, compress(codec, each)) for each in records]
    assert decompressed(batches, limit_bytes=66_000) == [records[0], None, records[2]]


def test_a_zstd_window_that_streams_may_not_have_is_left_out():
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stream = compressor.compress(bytes(1000)) + compressor.flush()
    assert decompressed([batch(CODEC_ZSTD, stream)]) == [None]


def test_lz4_frames_of_other_shapes_and_several_gzip_members_are_left_out():
    large_blocks = compress(CODEC_LZ4, b"a").replace(bytes.fromhex("604082"), bytes.fromhex("605073"))
    members = compress(CODEC_GZIP, b"a") * 2
    assert decompressed([batch(CODEC_LZ4, large_blocks), batch(CODEC_GZIP, members)]) == [None, None]


def test_without_libraries_all_but_snappy_is_left_out(monkeypatch):
    monkeypatch.setattr(native, "_library", lambda module: None)
    batches = [batch(codec, compress(codec, b"records" * 100)) for codec in CODECS]
    assert decompressed(batches, tools=decompress_fast_path.find_tools()) == [None, b"records" * 100, None, None]
