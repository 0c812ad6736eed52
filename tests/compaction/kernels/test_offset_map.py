"""The map against a dict, through every growth of its tables."""

import numpy as np
import pytest

from sediment.compaction.kernels.offset_map import (
    SET_SLOT_BYTES,
    OffsetMap,
    fill_slot,
    find_slot,
    get_offset,
    put_offset,
)
from sediment.segment_io.compiled.huge_pages import LARGE_PAGE_BYTES


def random_keys(count):
    random = np.random.default_rng(5)
    return random.integers(1, 2**64, size=(count, 2), dtype=np.uint64)


@pytest.mark.parametrize("with_offsets", [False, True])
def test_keys_and_offsets_survive_every_growth(with_offsets):
    keys = random_keys(20_000)
    offset_map = OffsetMap(with_offsets=with_offsets)
    for start in range(0, len(keys), 100):
        offset_map.reserve(100)
        for number, (low, high) in enumerate(keys[start : start + 100], start):
            if with_offsets:
                assert put_offset(offset_map.tables, low, high, number) == 1
            else:
                found, address = find_slot(offset_map.tables, SET_SLOT_BYTES, low, high)
                assert not found
                fill_slot(offset_map.tables, address, low, high)
    assert len(offset_map) == len(keys)
    for number, (low, high) in enumerate(keys):
        if with_offsets:
            assert get_offset(offset_map.tables, low, high) == number
        else:
            assert find_slot(offset_map.tables, SET_SLOT_BYTES, low, high)[0]


def test_memory_is_that_of_the_tables_and_of_what_they_share_pages_with():
    offset_map = OffsetMap(with_offsets=False)
    first_bytes = offset_map.size_bytes()
    offset_map.reserve(3_000)
    expected = offset_map.size_bytes_with(0)
    assert first_bytes < expected <= offset_map.size_bytes() <= expected + LARGE_PAGE_BYTES


def test_tables_larger_than_a_large_page_hold_nothing_but_themselves():
    offset_map = OffsetMap(with_offsets=False)
    offset_map.reserve(LARGE_PAGE_BYTES // SET_SLOT_BYTES)
    assert offset_map.size_bytes() == offset_map.size_bytes_with(0)
