"""Raw snappy blocks from a compiled function: the bytes that the library makes, inside the memory that was given."""

import ctypes
import mmap
import random

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.format.compression.snappy_compressor import NO_ROOM, TABLE_BYTES, compress_block

GUARD = 0xA5
GUARD_BYTES = 64
MOST_BYTES = 64 << 10
SIZES = [*range(1, 21), 59, 60, 61, 62, 255, 256, 257, 258, 4096, 16_383, 16_384, 32_767, 32_768, 65_535, MOST_BYTES]


def block(content, room=None):
    """Return the block that the kernel makes of `content`, or None if it finds no room."""
    room = 32 + len(content) + len(content) // 6 if room is None else room
    source = np.frombuffer(content, dtype=np.uint8)
    area = np.full(room + 2 * GUARD_BYTES, GUARD, dtype=np.uint8)
    table = np.full(TABLE_BYTES + GUARD_BYTES, GUARD, dtype=np.uint8)  # of an earlier block
    target = area.ctypes.data + GUARD_BYTES
    size = compress_block(source.ctypes.data, source.size, target, room, table.ctypes.data)
    assert (area[:GUARD_BYTES] == GUARD).all() and (area[GUARD_BYTES + room :] == GUARD).all()
    assert (table[TABLE_BYTES:] == GUARD).all()
    assert size == NO_ROOM or 0 < size <= room
    return None if size == NO_ROOM else area[GUARD_BYTES : GUARD_BYTES + size].tobytes()


def library_block(content):
    return bytes(cramjam.snappy.compress_raw(content))


def contents_of(size, seed):
    chance = random.Random(seed)
    yield chance.randbytes(size)
    yield bytes(size)
    yield bytes(chance.choices(range(chance.choice((2, 3, 8, 40))), k=size))
    yield b"".join(b"key-%d a value that others have too;" % chance.randrange(1000) for _ in range(size // 30 + 1))[
        :size
    ]
    half = chance.randbytes(size // 2 + 1)
    yield (half + half)[:size]
    # matches of every length, near and far, between literals of every length
    mixed = bytearray(chance.randbytes(4))
    while len(mixed) < size:
        mixed += chance.randbytes(chance.choice((1, 5, 16, 17, 60, 61, 256, 257)))
        start = len(mixed) - chance.randint(1, min(len(mixed), chance.choice((8, 2047, 2048, 40_000))))
        mixed += mixed[start : start + chance.choice((4, 11, 12, 59, 64, 65, 67, 68, 69, 131, 300))]
    yield bytes(mixed[:size])


@pytest.mark.parametrize("seed", range(3))
def test_blocks_are_those_of_the_library(seed):
    chance = random.Random(seed)
    for size in [*SIZES, *(chance.randint(1, MOST_BYTES) for _ in range(30))]:
        for content in contents_of(size, seed + size):
            assert block(content) == library_block(content)


@given(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=6), st.data())
@settings(max_examples=300, deadline=None)
def test_pieces_in_any_order_are_compressed_as_by_the_library(pieces, data):
    content = b"".join(data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=60)))
    assert block(content) == library_block(content)


def test_no_bytes_are_a_block_too():
    assert block(b"") == library_block(b"") == b"\0"


@pytest.mark.parametrize("seed", range(3))
def test_a_block_is_made_exactly_if_it_has_room(seed):
    for size in (1, 20, 61, 130, 300, 700):
        for content in contents_of(size, seed + size):
            expected = library_block(content)
            for room in range(len(expected) + 70):
                assert block(content, room) == (expected if room >= len(expected) else None)


def test_nothing_after_the_source_is_read():
    memory = mmap.mmap(-1, 3 * MOST_BYTES)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = start + 2 * MOST_BYTES
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(end, MOST_BYTES, 0) == 0, ctypes.get_errno()  # a read from here on ends the process
    table = np.zeros(TABLE_BYTES, dtype=np.uint8)
    target = np.zeros(2 * MOST_BYTES, dtype=np.uint8)
    for size in SIZES:
        for content in contents_of(size, size):
            ctypes.memmove(end - size, content, size)
            written = compress_block(end - size, size, target.ctypes.data, target.size, table.ctypes.data)
            assert target[:written].tobytes() == library_block(content)
