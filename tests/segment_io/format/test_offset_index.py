import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.format.offset_index import OffsetIndex, OffsetPosition, parse_offset_index

INT32_MAX = 2**31 - 1
EMPTY = np.zeros(0, dtype=np.int64)


def columns(entries):
    return (np.array(column, dtype=np.int64) for column in zip(*entries, strict=True)) if entries else (EMPTY, EMPTY)


def offset_index(base_offset, *entries):
    """Build an offset index of (offset, position)."""
    offsets, positions = columns(entries)
    return OffsetIndex(base_offset, offsets - base_offset, positions)


def test_ix_01_an_offset_index_finds_the_floor():
    assert offset_index(45).lookup(92) == OffsetPosition(45, 0)
    index = offset_index(45, *((46 + i, i) for i in range(30)))
    assert index.lookup(45) == OffsetPosition(45, 0)
    assert index.lookup(75) == OffsetPosition(75, 29)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=200), st.integers(-5, 25_000))
def test_ix_06_lookups_equal_a_linear_search(steps, target):
    entries = [(7 + int(total), 13 * i) for i, total in enumerate(np.cumsum(steps))]
    index = offset_index(7, *entries)
    below = [entry for entry in entries if entry[0] <= target]
    assert index.lookup(target) == OffsetPosition(*(below[-1] if below else (7, 0)))


def test_ix_06_lookups_in_a_large_index_find_the_entry_at_below_and_between():
    index = offset_index(0, *((10 * i, 100 * i) for i in range(1, 5001)))
    for i in (1, 2, 2500, 4000, 4999, 5000):
        assert index.lookup(10 * i) == OffsetPosition(10 * i, 100 * i)
        assert index.lookup(10 * i + 9) == OffsetPosition(10 * i, 100 * i)
    assert index.lookup(9) == OffsetPosition(0, 0)


def test_ix_07_the_largest_offset_of_a_segment_is_read_again():
    index = offset_index(45, (45 + INT32_MAX, 0))
    assert parse_offset_index(index.to_bytes(), 45).last_offset == 45 + INT32_MAX
