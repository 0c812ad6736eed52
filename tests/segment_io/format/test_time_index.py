import numpy as np

from sediment.segment_io.format.time_index import TimeIndex, TimestampOffset

INT32_MAX = 2**31 - 1
EMPTY = np.zeros(0, dtype=np.int64)


def columns(entries):
    return (np.array(column, dtype=np.int64) for column in zip(*entries, strict=True)) if entries else (EMPTY, EMPTY)


def time_index(base_offset, *entries):
    """Build a time index of (timestamp, offset)."""
    timestamps, offsets = columns(entries)
    return TimeIndex(base_offset, timestamps, offsets - base_offset)


def test_ix_08_a_time_index_finds_the_floor():
    assert time_index(45).lookup(100) == TimestampOffset(-1, 45)
    index = time_index(45, *((10 * i, 45 + 10 * i) for i in range(1, 30)))
    assert index.lookup(9) == TimestampOffset(-1, 45)
    assert index.lookup(25) == TimestampOffset(20, 65)
    assert index.lookup(30) == TimestampOffset(30, 75)
