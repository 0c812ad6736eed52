import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import (
    CorruptIndexError,
    IndexFullError,
    IndexOffsetOverflowError,
    IndexOrderError,
    SettingsError,
    UnsupportedDataError,
)
from sediment.segment_io.format.indexes import (
    AbortedTransaction,
    OffsetIndexBuilder,
    OffsetPosition,
    TimeIndexBuilder,
    TimestampOffset,
    TransactionIndex,
    TransactionIndexBuilder,
    build_indexes,
    collect_aborted,
    encode_transaction_index,
    parse_offset_index,
    parse_time_index,
    parse_transaction_index,
)

INT32_MAX = 2**31 - 1


def offset_index(base_offset, *entries, max_bytes=1000):
    builder = OffsetIndexBuilder(base_offset, max_bytes)
    for offset, position in entries:
        builder.append(offset, position)
    return builder


def time_index(base_offset, *entries, max_bytes=1000):
    builder = TimeIndexBuilder(base_offset, max_bytes)
    for timestamp_ms, offset in entries:
        builder.maybe_append(timestamp_ms, offset)
    return builder


def offsets(builder):
    return (builder.base_offset + builder.index().relative_offsets).tolist()


# ------------------------------------------------------------------------------------------------------ offset index


def test_ix_01_an_offset_index_holds_as_many_entries_as_fit_and_finds_the_floor():
    builder = OffsetIndexBuilder(45, 240)
    assert builder.max_entries == 30
    assert builder.index().lookup(92) == OffsetPosition(45, 0)
    for i in range(30):
        builder.append(46 + i, i)
    assert builder.index().lookup(45) == OffsetPosition(45, 0)
    assert builder.index().lookup(75) == OffsetPosition(75, 29)
    assert builder.is_full
    with pytest.raises(IndexFullError, match="full with 30 entries"):
        builder.append(76, 30)


@pytest.mark.parametrize("offset", [50, 51])
def test_ix_02_offsets_must_increase(offset):
    builder = offset_index(40, (51, 0))
    with pytest.raises(IndexOrderError, match="last one indexed, 51"):
        builder.append(offset, 1)
    assert offsets(builder) == [51]


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
def test_ix_03_the_upper_bound_of_a_fetch_is_the_first_entry_behind_it(start, size_bytes, expected):
    index = offset_index(45, (45, 0), (46, 10), (47, 23), (48, 37)).index()
    bound = index.fetch_upper_bound(OffsetPosition(*start), size_bytes)
    assert bound == (None if expected is None else OffsetPosition(*expected))


def test_ix_03_an_empty_index_bounds_no_fetch():
    assert OffsetIndexBuilder(45, 80).index().fetch_upper_bound(OffsetPosition(45, 0), 5) is None


def test_ix_04_truncation_keeps_the_entries_below_the_offset():
    builder = offset_index(0, *((i, i) for i in range(1, 10)), max_bytes=80)
    builder.truncate_to(12)
    assert offsets(builder) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    builder.append(10, 10)
    builder.truncate_to(10)
    assert offsets(builder)[-1] == 9
    builder.truncate_to(9)
    assert offsets(builder)[-1] == 8
    builder.append(9, 9)
    builder.truncate_to(5)
    assert offsets(builder) == [1, 2, 3, 4]
    builder.truncate_to(0)
    assert offsets(builder) == []


def test_ix_05_a_closed_index_reopens_with_its_entries_and_no_room():
    content = offset_index(50, (51, 0), (52, 1)).to_bytes()
    assert len(content) == 16
    reopened = OffsetIndexBuilder.resume(parse_offset_index(content, 50), len(content))
    assert (len(reopened), reopened.index().last_offset) == (2, 52)
    with pytest.raises(IndexFullError):
        reopened.append(53, 2)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=200), st.integers(-5, 25_000))
def test_ix_06_lookups_equal_a_linear_search(steps, target):
    entries = [(7 + int(total), 13 * i) for i, total in enumerate(np.cumsum(steps))]
    index = offset_index(7, *entries, max_bytes=8 * len(entries)).index()
    below = [entry for entry in entries if entry[0] <= target]
    assert index.lookup(target) == OffsetPosition(*(below[-1] if below else (7, 0)))


def test_ix_06_lookups_in_a_large_index_find_the_entry_at_below_and_between():
    index = offset_index(0, *((10 * i, 100 * i) for i in range(1, 5001)), max_bytes=50_000).index()
    for i in (1, 2, 2500, 4000, 4999, 5000):
        assert index.lookup(10 * i) == OffsetPosition(10 * i, 100 * i)
        assert index.lookup(10 * i + 9) == OffsetPosition(10 * i, 100 * i)
    assert index.lookup(9) == OffsetPosition(0, 0)


def test_ix_07_offsets_out_of_the_segments_range_overflow():
    for offset in (44, 45 + INT32_MAX + 1):
        with pytest.raises(IndexOffsetOverflowError, match="base offset 45"):
            OffsetIndexBuilder(45, 80).append(offset, 0)
    builder = offset_index(45, (45 + INT32_MAX, 0))
    assert parse_offset_index(builder.to_bytes(), 45).last_offset == 45 + INT32_MAX


def test_an_index_with_no_room_for_one_entry_is_refused():
    with pytest.raises(SettingsError, match="7 bytes"):
        OffsetIndexBuilder(0, 7)
    with pytest.raises(SettingsError, match="11 bytes"):
        TimeIndexBuilder(0, 11)


def test_an_index_handed_out_does_not_change_with_its_builder():
    builder = offset_index(0, *((i, i) for i in range(1, 101)))
    before = builder.index()
    builder.truncate_to(50)
    builder.append(1000, 7)
    assert before.relative_offsets.tolist() == list(range(1, 101))
    assert offsets(builder) == [*range(1, 50), 1000]


# -------------------------------------------------------------------------------------------------------- time index


def test_ix_08_a_time_index_reserves_its_last_slot_and_finds_the_floor():
    builder = TimeIndexBuilder(45, 360)
    assert builder.index().lookup(100) == TimestampOffset(-1, 45)
    for i in range(1, 30):
        assert not builder.is_full
        builder.maybe_append(10 * i, 45 + 10 * i)
    assert builder.is_full
    index = builder.index()
    assert index.lookup(9) == TimestampOffset(-1, 45)
    assert index.lookup(25) == TimestampOffset(20, 65)
    assert index.lookup(30) == TimestampOffset(30, 75)


def test_ix_09_only_the_last_entry_of_a_segment_may_take_the_reserved_slot():
    builder = time_index(45, *((10 * i, 45 + 10 * i) for i in range(1, 30)), max_bytes=360)
    with pytest.raises(IndexFullError):
        builder.maybe_append(10_000, 1000)
    with pytest.raises(IndexOrderError):
        builder.maybe_append(10_000, 280, skip_full_check=True)
    builder.maybe_append(10_000, 1000, skip_full_check=True)
    assert builder.index().last_entry == TimestampOffset(10_000, 1000)
    with pytest.raises(IndexFullError):
        builder.maybe_append(10_001, 1001, skip_full_check=True)


def test_ix_10_a_time_index_ignores_equal_timestamps_and_refuses_to_go_back():
    builder = time_index(45, (5, 50))
    builder.maybe_append(5, 51)
    assert len(builder) == 1
    with pytest.raises(IndexOrderError, match="timestamp 4"):
        builder.maybe_append(4, 52)
    with pytest.raises(IndexOrderError, match="offset is below"):
        builder.maybe_append(6, 49)
    empty = time_index(45, (-1, 50))
    assert len(empty) == 0


def test_ix_11_a_time_index_is_truncated_by_offset():
    builder = time_index(45, (10, 55), (20, 65))
    builder.truncate_to(65)
    assert builder.index().last_entry == TimestampOffset(10, 55)
    builder.truncate_to(55)
    assert len(builder) == 0


# ------------------------------------------------------------------------------------------------ files and sanity


def test_ix_12_an_active_index_has_its_full_size_and_a_closed_one_its_entries():
    for builder, full_bytes in ((OffsetIndexBuilder(0, 1000), 1000), (TimeIndexBuilder(0, 1000), 996)):
        assert builder.to_bytes(preallocated=True) == bytes(full_bytes)
        assert builder.to_bytes() == b""


@pytest.mark.parametrize(("parse", "size_bytes"), [(parse_offset_index, 12), (parse_time_index, 13)])
def test_ix_13_a_length_of_no_whole_entries_is_corrupt(parse, size_bytes):
    with pytest.raises(CorruptIndexError, match=r"no multiple of .*file x.*position (8|12)"):
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
    offsets_file = offset_index(45, (55, 4096), (70, 8300)).to_bytes(preallocated=True)
    assert parse_offset_index(offsets_file, 45, preallocated=True).positions.tolist() == [4096, 8300]
    with pytest.raises(CorruptIndexError, match="entry 2"):
        parse_offset_index(offsets_file, 45)
    times_file = time_index(45, (1000, 55), (2000, 70)).to_bytes(preallocated=True)
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
    assert time_index(45, (1000, 55), (1000, 60), (2000, 70)).to_bytes() == times_golden
    times = parse_time_index(times_golden, 45)
    assert [times[0], times[1]] == [TimestampOffset(1000, 55), TimestampOffset(2000, 70)]

    aborted_golden = bytes.fromhex("00000000000000000007000000000000006400000000000000c80000000000000096")
    aborted = AbortedTransaction(producer_id=7, first_offset=100, last_offset=200, last_stable_offset=150)
    assert encode_transaction_index([aborted]) == aborted_golden
    assert parse_transaction_index(aborted_golden).transactions() == (aborted,)


# -------------------------------------------------------------------------------------------------- building by batch


def built(batches, *, base_offset=0, index_interval_bytes=4096, max_index_bytes=1000):
    """Indexes of batches given as (last offset, size in bytes, max timestamp)."""
    last_offsets, sizes, timestamps = (np.array(column, dtype=np.int64) for column in zip(*batches, strict=True))
    positions = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    offset_bytes, time_bytes = build_indexes(
        last_offsets,
        positions,
        sizes,
        timestamps,
        base_offset=base_offset,
        index_interval_bytes=index_interval_bytes,
        max_index_bytes=max_index_bytes,
    )
    by_offset, by_time = parse_offset_index(offset_bytes, base_offset), parse_time_index(time_bytes, base_offset)
    return (
        [(by_offset[i].offset, by_offset[i].position) for i in range(len(by_offset))],
        [(by_time[i].timestamp_ms, by_time[i].offset) for i in range(len(by_time))],
    )


def test_ix_20_entries_are_written_when_more_than_the_interval_was():
    batches = [(i, 999, 1000 + i) for i in range(12)]
    assert built(batches) == ([(5, 4995), (10, 9990)], [(1005, 5), (1010, 10), (1011, 11)])


def test_ix_21_with_an_interval_of_zero_every_batch_but_the_first_is_indexed():
    batches = [(1, 70, 10), (3, 80, 30), (7, 90, 20)]
    assert built(batches, index_interval_bytes=0) == ([(3, 70), (7, 150)], [(30, 3)])


def test_the_interval_has_to_be_exceeded():
    assert built([(0, 100, 1), (1, 1, 2), (2, 1, 3)], index_interval_bytes=100)[0] == [(2, 101)]


def test_a_segment_without_timestamps_has_no_time_entries():
    assert built([(0, 100, -1), (1, 100, -1)], index_interval_bytes=0) == ([(1, 100)], [])


def test_an_empty_segment_has_empty_indexes():
    none = np.empty(0, dtype=np.int64)
    assert build_indexes(none, none, none, none, base_offset=9, index_interval_bytes=0, max_index_bytes=12) == (
        b"",
        b"",
    )


def test_building_refuses_what_a_broker_refuses():
    with pytest.raises(IndexOffsetOverflowError):
        built([(0, 100, 1), (INT32_MAX + 1, 100, 1)])
    with pytest.raises(IndexOrderError):
        built([(0, 100, 1), (5, 100, 1), (4, 100, 1)], index_interval_bytes=0)
    with pytest.raises(IndexFullError):
        built([(i, 100, 1) for i in range(4)], index_interval_bytes=0, max_index_bytes=16)


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


def test_ix_14_the_walk_ends_behind_the_entry_that_reaches_the_upper_bound():
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


def test_ix_15_a_transaction_index_is_cut_at_the_first_entry_that_ends_at_or_above_the_offset():
    for offset, kept in ((51, 4), (50, 3), (11, 1), (0, 0)):
        builder = TransactionIndexBuilder(FOUR)
        builder.truncate_to(offset)
        assert builder.to_bytes() == encode_transaction_index(FOUR[:kept]), f"truncated to {offset}"


@pytest.mark.parametrize("last_offset", [15, 10])
def test_ix_16_aborted_transactions_must_end_in_order(last_offset):
    builder = TransactionIndexBuilder()
    builder.append(AbortedTransaction(1, 0, 15, 16))
    with pytest.raises(IndexOrderError, match="last one indexed, 15"):
        builder.append(AbortedTransaction(2, 3, last_offset, 17))


def test_ix_16_the_order_starts_afresh_with_a_reopened_file_and_goes_back_with_a_truncation():
    builder = TransactionIndexBuilder(FOUR)
    builder.append(AbortedTransaction(4, 0, 20, 21))
    builder.truncate_to(50)
    with pytest.raises(IndexOrderError, match="last one indexed, 35"):
        builder.append(AbortedTransaction(5, 30, 33, 34))
    builder.append(AbortedTransaction(5, 40, 45, 46))
    ends = [entry.last_offset for entry in parse_transaction_index(builder.to_bytes()).transactions()]
    assert ends == [10, 15, 35, 45]


def test_ix_17_an_entry_that_ends_below_the_segment_is_corrupt():
    four().check(10)
    with pytest.raises(CorruptIndexError, match=r"ends at offset 10, below base offset 100.*position 0"):
        four().check(100, path="00000000000000000100.txnindex")
    with pytest.raises(CorruptIndexError, match="position 34"):
        parse_transaction_index(encode_transaction_index([FOUR[3], FOUR[0]])).check(20)


def test_ix_18_a_reopened_transaction_index_is_appended_to():
    builder = TransactionIndexBuilder(four().transactions())
    fifth = AbortedTransaction(4, 45, 60, 61)
    builder.append(fifth)
    assert len(builder.to_bytes()) == 170
    assert parse_transaction_index(builder.to_bytes()).transactions() == (*FOUR, fifth)


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
    assert pickle.loads(pickle.dumps(offset_index(45, (55, 4096)).index())).lookup(60) == OffsetPosition(55, 4096)
