"""Kafka's rule for index entries, and entries that Sediment leaves out although a broker would fail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import IndexOffsetOverflowError
from sediment.segment_io.format.index_appends import (
    OFFSET_INDEX_BYTES,
    PROGRESS_FIELDS,
    TIME_INDEX_BYTES,
    IndexEntries,
    add_batch,
    end_time_index,
    entry_goes_back,
    fits_segment,
    relative_offset,
    start_indexes,
)
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.format.time_index import parse_time_index
from tests.twin.batches import Record, encode_batch, parse_batch
from tests.twin.indexes import build_indexes


def indexed(batches, *, base_offset=0, interval_bytes=4096, max_index_bytes=1000):
    """Bytes of both indexes for batches given as (last offset, size in bytes, largest timestamp)."""
    progress = np.full(PROGRESS_FIELDS, 77, dtype=np.int64)
    offset_entries = np.zeros(max_index_bytes // 8 * 8, dtype=np.uint8)
    time_entries = np.zeros(max_index_bytes // 12 * 12, dtype=np.uint8)
    indexes = IndexEntries(base_offset, interval_bytes, progress, offset_entries, time_entries)
    start_indexes(progress)
    position = 0
    for last_offset, size_bytes, timestamp in batches:
        add_batch(last_offset, timestamp, position, size_bytes, indexes)
        position += size_bytes
    end_time_index(indexes)
    filled = progress[OFFSET_INDEX_BYTES], progress[TIME_INDEX_BYTES]
    return offset_entries[: filled[0]].tobytes(), time_entries[: filled[1]].tobytes()


def built(batches, *, base_offset=0, **limits):
    by_offset, by_time = indexed(batches, base_offset=base_offset, **limits)
    offsets, times = parse_offset_index(by_offset, base_offset), parse_time_index(by_time, base_offset)
    return (
        [(offsets[i].offset, offsets[i].position) for i in range(len(offsets))],
        [(times[i].timestamp_ms, times[i].offset) for i in range(len(times))],
    )


def test_ix_20_entries_are_written_when_more_than_the_interval_was():
    batches = [(i, 999, 1000 + i) for i in range(12)]
    assert built(batches) == ([(5, 4995), (10, 9990)], [(1005, 5), (1010, 10), (1011, 11)])


def test_ix_21_with_an_interval_of_zero_every_batch_but_the_first_is_indexed():
    batches = [(1, 70, 10), (3, 80, 30), (7, 90, 20)]
    assert built(batches, interval_bytes=0) == ([(3, 70), (7, 150)], [(30, 3)])


def test_the_interval_has_to_be_exceeded():
    assert built([(0, 100, 1), (1, 1, 2), (2, 1, 3)], interval_bytes=100)[0] == [(2, 101)]


def test_a_segment_without_timestamps_has_no_time_entries():
    assert built([(0, 100, -1), (1, 100, -1)], interval_bytes=0) == ([(1, 100)], [])


def test_an_empty_segment_has_empty_indexes():
    assert indexed([], base_offset=9) == (b"", b"")


def test_a_full_index_is_left_sparser_and_the_last_time_slot_is_reserved():
    batches = [(i, 100, 10 + i) for i in range(5)]
    assert built(batches, interval_bytes=0, max_index_bytes=24) == (
        [(1, 100), (2, 200), (3, 300)],
        [(11, 1), (14, 4)],
    )
    assert built(batches, interval_bytes=0, max_index_bytes=7) == ([], [])


def test_an_entry_that_would_go_back_is_left_out_and_announced():
    batches = [(0, 100, 1), (5, 100, 2), (4, 100, 3), (6, 100, 4)]
    assert built(batches, interval_bytes=0) == ([(5, 100), (6, 300)], [(2, 5), (4, 6)])
    progress, entries = np.zeros(PROGRESS_FIELDS, dtype=np.int64), np.zeros(96, dtype=np.uint8)
    start_indexes(progress)
    assert not entry_goes_back(0, 1, 0, progress)
    indexes = IndexEntries(0, 0, progress, entries, entries[48:])
    add_batch(0, 1, 0, 100, indexes)
    add_batch(5, 2, 100, 100, indexes)
    assert entry_goes_back(5, -1, 0, progress)
    assert entry_goes_back(4, 3, 0, progress)
    assert not entry_goes_back(4, 3, 100, progress)
    assert not entry_goes_back(6, 3, 0, progress)


_BATCHES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 40), st.integers(-1, 2000)), max_size=40)


@given(_BATCHES, st.sampled_from([0, 100, 300, 4096]))
def test_the_entries_are_those_of_the_plain_twin(steps, interval_bytes):
    batches, offset = [], 0
    for gap, value_bytes, timestamp in steps:
        offset += gap
        record = Record(offset=offset, timestamp=timestamp, key=b"k", value=bytes(value_bytes), headers=())
        batches.append(parse_batch(encode_batch([record], base_offset=offset)))
    ours = indexed(
        [(batch.last_offset, len(batch.data), batch.max_timestamp) for batch in batches],
        interval_bytes=interval_bytes,
        max_index_bytes=10_000,
    )
    assert ours == build_indexes(batches, 0, interval_bytes=interval_bytes)


@pytest.mark.parametrize(("offset", "relative"), [(7, 0), (8, 1), (7 + 2**31 - 1, 2**31 - 1)])
def test_an_entry_stores_its_offset_relative_to_the_segment(offset, relative):
    assert fits_segment(offset, 7)
    assert relative_offset(offset, 7) == relative


@pytest.mark.parametrize("offset", [6, 7 + 2**31])
def test_an_offset_that_an_entry_cannot_store_is_refused(offset):
    assert not fits_segment(offset, 7)
    with pytest.raises(IndexOffsetOverflowError, match="not within 2\\^31 of the segment's base offset 7"):
        relative_offset(offset, 7)
