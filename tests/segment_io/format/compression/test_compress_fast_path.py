"""Records compressed by a compiled function: the bytes that `batch_codecs.compress` makes of them, or none."""

import random

import numpy as np
import pytest

from sediment.segment_io.compiled import native
from sediment.segment_io.format.compression import batch_codecs, compress_fast_path
from sediment.segment_io.format.compression.compress_fast_path import (
    COMPRESSOR_REGISTERS,
    NOT_COMPRESSED,
    compress_records,
    compressed_bound,
    find_compressors,
)
from sediment.segment_io.format.layout import CODEC_GZIP, CODEC_LZ4, CODEC_NAMES, CODEC_SNAPPY, CODEC_ZSTD

GUARD = 0xA5
GUARD_BYTES = 64
CALLED = [CODEC_GZIP, CODEC_LZ4, CODEC_ZSTD]
CODECS = [*CALLED, CODEC_SNAPPY]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=[CODEC_NAMES[codec] for codec in CODECS])


def compressed(codec, content, tools, *, room=None):
    """Return `content` as the kernel compresses it, or None."""
    room = compressed_bound(len(content)) if room is None else room
    source = np.frombuffer(content, dtype=np.uint8)
    area = np.full(room + GUARD_BYTES, GUARD, dtype=np.uint8)
    size = compress_records(codec, source.ctypes.data, source.size, area.ctypes.data, room, tools)
    assert (area[room:] == GUARD).all()
    assert size == NOT_COMPRESSED or 0 < size <= room
    return None if size == NOT_COMPRESSED else area[:size].tobytes()


def contents(seed):
    chance = random.Random(seed)
    for size in (1, 2, 12, 13, 100, 4096, 32767, 32768, 32769, 65535, 65536, 65537, 100_000, 131072, 131073, 300_000):
        yield chance.randbytes(size)
        yield bytes(size)
        yield bytes(chance.choices(range(chance.choice((2, 9, 40))), k=size))
        yield (b"key-%d a value that others have too;" % chance.randrange(1000) * (size // 30 + 1))[:size]


@every_codec
@pytest.mark.parametrize("seed", range(3))
def test_records_come_out_as_the_writer_of_every_codec_makes_them(codec, seed):
    tools = find_compressors()
    for content in contents(seed):
        assert compressed(codec, content, tools) == batch_codecs.compress(codec, content)


@every_codec
def test_a_target_that_is_too_small_gets_nothing(codec):
    content = random.Random(1).randbytes(70_000)
    for room in (0, 5, 11, 1000, 65_536):
        assert compressed(codec, content, find_compressors(), room=room) is None


def test_a_zstd_context_with_half_a_frame_in_it_is_not_used_again():
    tools = find_compressors()
    assert compressed(CODEC_ZSTD, random.Random(1).randbytes(70_000), tools, room=100) is None
    assert compressed(CODEC_ZSTD, b"records", tools) is None
    assert compressed(CODEC_ZSTD, b"records", find_compressors()) == batch_codecs.compress(CODEC_ZSTD, b"records")


def test_without_libraries_all_but_snappy_is_left_to_others(monkeypatch):
    monkeypatch.setattr(native, "_library", lambda module: None)
    tools = find_compressors()
    for codec in CALLED:
        assert compressed(codec, b"records", tools) is None
    assert compressed(CODEC_SNAPPY, b"records", tools) == batch_codecs.compress(CODEC_SNAPPY, b"records")


def test_an_array_of_zeros_compresses_nothing():
    for codec in CODECS:
        assert compressed(codec, b"records", np.zeros(COMPRESSOR_REGISTERS, dtype=np.int64)) is None


def test_a_context_that_cannot_be_set_up_is_not_used(monkeypatch):
    monkeypatch.setattr(compress_fast_path, "_prepare_zstd", lambda *_: False)
    assert compressed(CODEC_ZSTD, b"records", find_compressors()) is None
