import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import (
    CorruptIndexError,
    UnsupportedDataError,
)
from sediment.segment_io.format.indexes import (
    AbortedTransaction,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
    collect_aborted,
    encode_transaction_index,
    parse_offset_index,
    parse_time_index,
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


# ------------------------------------------------------------------------------------------------------ offset index


def test_ix_01_an_offset_index_finds_the_floor():
    assert offset_index(45).lookup(92) == OffsetPosition(45, 0)
    index = offset_index(45, *((46 + i, i) for i in range(30)))
    assert index.lookup(45) == OffsetPosition(45, 0)
    assert index.lookup(75) == OffsetPosition(75, 29)


@pytest.mark.parametrize(
    ("start", "size_bytes", "expected"),
    [
        ((45, 0), 5, (46, 10)),
        ((45, 0), 10, (46, 10)),
        ((45, 0), 22, (47, 23)),
        ((45, 0), 23, (47, 23)),
        ((46, 10), 24, (48, 37)),
        ((48, 37), 1, None),
        ((45, 0), 200, None),
    ],
)
def test_ix_03_the_upper_bound_of_a_fetch_is_the_first_entry_after_it(start, size_bytes, expected):
    index = offset_index(45, (45, 0), (46, 10), (47, 23), (48, 37))
    bound = index.fetch_upper_bound(OffsetPosition(*start), size_bytes)
    assert bound == (None if expected is None else OffsetPosition(*expected))


def test_ix_03_an_empty_index_bounds_no_fetch():
    assert offset_index(45).fetch_upper_bound(OffsetPosition(45, 0), 5) is None


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


# -------------------------------------------------------------------------------------------------------- time index


def test_ix_08_a_time_index_finds_the_floor():
    assert time_index(45).lookup(100) == TimestampOffset(-1, 45)
    index = time_index(45, *((10 * i, 45 + 10 * i) for i in range(1, 30)))
    assert index.lookup(9) == TimestampOffset(-1, 45)
    assert index.lookup(25) == TimestampOffset(20, 65)
    assert index.lookup(30) == TimestampOffset(30, 75)


# ------------------------------------------------------------------------------------------------ files and sanity


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
    aborted = AbortedTransaction(producer_id=7, first_offset=100, last_offset=200, last_stable_offset=150)
    assert encode_transaction_index([aborted]) == aborted_golden
    assert parse_transaction_index(aborted_golden).transactions() == (aborted,)


# ------------------------------------------------------------------------------------------------- transaction index

FOUR = tuple(AbortedTransaction(*entry) for entry in ((0, 0, 10, 11), (1, 5, 15, 13), (2, 18, 35, 25), (3, 32, 50, 40)))


def four():
    return parse_transaction_index(encode_transaction_index(FOUR))


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "expected", "is_complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
    ],
)
def test_ix_14_aborted_transactions_of_a_range_are_collected(fetch_offset, upper_bound, expected, is_complete):
    collected = four().collect(fetch_offset, upper_bound)
    assert (collected.transactions, collected.is_complete) == (expected, is_complete)


def test_ix_14_the_search_ends_after_the_entry_that_reaches_the_upper_bound():
    entries = [AbortedTransaction(1, 0, 10, 30), AbortedTransaction(2, 5, 40, 41)]
    collected = parse_transaction_index(encode_transaction_index(entries)).collect(0, 30)
    assert (collected.transactions, collected.is_complete) == ((entries[0],), True)


def test_aborted_transactions_are_collected_over_segments_until_one_is_complete():
    def indexes():
        yield parse_transaction_index(b"")
        yield parse_transaction_index(encode_transaction_index(FOUR[:2]))
        yield parse_transaction_index(encode_transaction_index(FOUR[2:]))
        raise AssertionError("walked past the complete index")

    assert collect_aborted(indexes(), 0, 35) == FOUR
    assert collect_aborted([four()], 60, 100) == ()
    assert collect_aborted([], 0, 100) == ()


def test_ix_17_an_entry_that_ends_below_the_segment_is_corrupt():
    four().check(10)
    with pytest.raises(CorruptIndexError, match=r"ends at offset 10, below base offset 100.*position 0"):
        four().check(100, path="00000000000000000100.txnindex")
    with pytest.raises(CorruptIndexError, match="position 34"):
        parse_transaction_index(encode_transaction_index([FOUR[3], FOUR[0]])).check(20)


def test_ix_18_bytes_that_make_no_entry_are_ignored():
    assert parse_transaction_index(encode_transaction_index(FOUR)[:50]).transactions() == FOUR[:1]


def test_newer_transaction_entries_are_refused_by_the_first_byte_of_their_version():
    content = bytearray(encode_transaction_index(FOUR))
    content[35] = 1
    assert parse_transaction_index(content).transactions() == FOUR
    content[34] = 0xFF
    assert parse_transaction_index(content).transactions() == FOUR
    content[34] = 1
    with pytest.raises(UnsupportedDataError, match="position 34"):
        parse_transaction_index(content)


def test_indexes_survive_the_way_to_an_executor():
    index = pickle.loads(pickle.dumps(four()))
    assert isinstance(index, TransactionIndex)
    assert index.transactions() == FOUR
    assert pickle.loads(pickle.dumps(offset_index(45, (55, 4096)))).lookup(60) == OffsetPosition(55, 4096)
