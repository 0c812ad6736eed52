import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import (
    CorruptIndexError,
)
from sediment.segment_io.format.index_sanity import check_last_offsets
from sediment.segment_io.format.offset_index import OffsetIndex, OffsetPosition, parse_offset_index
from sediment.segment_io.format.time_index import TimeIndex, TimestampOffset, parse_time_index
from sediment.segment_io.format.transaction_index import (
    AbortedTxn,
    encode_transaction_index,
    parse_transaction_index,
)

INT32_MAX = 2**31 - 1
EMPTY = np.zeros(0, dtype=np.int64)


def columns(entries):
    return (np.array(column, dtype=np.int64) for column in zip(*entries, strict=True)) if entries else (EMPTY, EMPTY)


def offset_index(base_offset, *entries):
    """Build an offset index of (offset, position)."""
    offsets, positions = columns(entries)
    return OffsetIndex(base_offset, offsets - base_offset, positions)


def time_index(base_offset, *entries):
    """Build a time index of (timestamp, offset)."""
    timestamps, offsets = columns(entries)
    return TimeIndex(base_offset, timestamps, offsets - base_offset)


@pytest.mark.parametrize(("parse", "size_bytes"), [(parse_offset_index, 12), (parse_time_index, 13)])
def test_ix_13_a_length_that_is_not_one_of_whole_entries_is_corrupt(parse, size_bytes):
    with pytest.raises(CorruptIndexError, match=r"not a multiple of .*file x.*position (8|12)"):
        parse(bytes(size_bytes), 0, path="x")


def test_ix_13_entries_that_go_back_are_corrupt():
    with pytest.raises(CorruptIndexError, match=r"entry 1 .*file t.*position 12"):
        parse_time_index(struct.pack(">qiqi", 20, 1, 10, 2), 0, path="t")
    with pytest.raises(CorruptIndexError, match="entry 2 "):
        parse_time_index(struct.pack(">qiqiqi", 10, 1, 20, 5, 30, 4), 0)
    with pytest.raises(CorruptIndexError, match=r"entry 1 .*position 8"):
        parse_offset_index(struct.pack(">iiii", 5, 1, 5, 2), 0)
    with pytest.raises(CorruptIndexError, match="entry 1 "):
        parse_offset_index(struct.pack(">iiii", 5, 10, 6, 9), 0)
    with pytest.raises(CorruptIndexError, match="entry 0 is negative"):
        parse_offset_index(struct.pack(">ii", -1, 10), 0)


def test_ix_13_an_entry_equal_to_the_base_offset_is_fine():
    index = parse_offset_index(bytes(8), 45)
    assert (len(index), index.last_offset) == (1, 45)


def test_a_preallocated_index_ends_before_its_zero_tail():
    offsets_file = offset_index(45, (55, 4096), (70, 8300)).to_bytes().ljust(1000, b"\0")
    assert parse_offset_index(offsets_file, 45, preallocated=True).positions.tolist() == [4096, 8300]
    with pytest.raises(CorruptIndexError, match="entry 2"):
        parse_offset_index(offsets_file, 45)
    times_file = time_index(45, (1000, 55), (2000, 70)).to_bytes().ljust(996, b"\0")
    assert parse_time_index(times_file, 45, preallocated=True).timestamps.tolist() == [1000, 2000]


def test_a_preallocated_index_of_zeros_is_empty():
    assert len(parse_offset_index(bytes(1000), 45, preallocated=True)) == 0
    assert len(parse_time_index(bytes(996), 45, preallocated=True)) == 0


def test_a_preallocated_index_ends_where_entries_stop_increasing():
    content = struct.pack(">iiiiii", 5, 10, 9, 20, 7, 30) + b"odd"
    index = parse_offset_index(content, 100, preallocated=True)
    assert [index[i] for i in range(len(index))] == [OffsetPosition(105, 10), OffsetPosition(109, 20)]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_an_index_that_ascends_or_corrupt(content, preallocated):
    for parse in (parse_offset_index, parse_time_index):
        try:
            index = parse(content, 10, preallocated=preallocated)
        except CorruptIndexError:
            assert not preallocated
            continue
        assert content.startswith(index.to_bytes())
        keys = index.timestamps if parse is parse_time_index else index.relative_offsets
        assert (np.diff(keys) > 0).all()
        assert (index.relative_offsets >= 0).all()


def test_ix_17_an_aborted_transaction_that_ends_below_the_segment_is_corrupt():
    check_last_offsets(np.array([10, 15, 35, 50]), 10)
    check_last_offsets(EMPTY, 10)
    with pytest.raises(CorruptIndexError, match=r"ends at offset 10, below base offset 100.*position 0"):
        check_last_offsets(np.array([10, 15, 35, 50]), 100, path="00000000000000000100.txnindex")
    with pytest.raises(CorruptIndexError, match="position 34"):
        check_last_offsets(np.array([50, 10]), 20)


def test_ix_19_golden_indexes_are_produced_and_parsed():
    offsets_golden = bytes.fromhex("0000000a00001000000000190000206c")
    assert offset_index(45, (55, 4096), (70, 8300)).to_bytes() == offsets_golden
    index = parse_offset_index(offsets_golden, 45)
    assert [index[0], index[1]] == [OffsetPosition(55, 4096), OffsetPosition(70, 8300)]

    times_golden = bytes.fromhex("00000000000003e80000000a00000000000007d000000019")
    assert time_index(45, (1000, 55), (2000, 70)).to_bytes() == times_golden
    times = parse_time_index(times_golden, 45)
    assert [times[0], times[1]] == [TimestampOffset(1000, 55), TimestampOffset(2000, 70)]

    aborted_golden = bytes.fromhex("00000000000000000007000000000000006400000000000000c80000000000000096")
    aborted = AbortedTxn(producer_id=7, first_offset=100, last_offset=200, last_stable_offset=150)
    assert encode_transaction_index([aborted]) == aborted_golden
    assert parse_transaction_index(aborted_golden).transactions() == (aborted,)


def test_indexes_survive_the_way_to_an_executor():
    assert pickle.loads(pickle.dumps(offset_index(45, (55, 4096)))).lookup(60) == OffsetPosition(55, 4096)
