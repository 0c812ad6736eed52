"""Search for records by key, against the plain Python twin."""

from __future__ import annotations

import random
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.rewrite import key_matches
from sediment.compaction.rewrite.key_matches import KeyMatches, find_key_matches
from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.source_segment import SourceSegment
from sediment.segment_io.errors import CorruptBatchError, SourceChangedError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log
from tests.logs import LogShape, write_random_log
from tests.rewrites import PARTITION
from tests.segments import ABORT, batch_bytes, marker_bytes, write_segment
from tests.twin.segments import list_segments

SHAPES = {
    "plain": LogShape(),
    "codecs": LogShape(codecs=(0, 1, 2, 3, 4), most_records=40, segment_bytes=6000),
    "legacy": LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
    "null keys": LogShape(null_keys=0.5, headers=0.8, keys=200),
}
LIMIT_BYTES = 1 << 20


def matches_of(directory: Path, keys: KeySet, *, limit_bytes: int = LIMIT_BYTES) -> list[KeyMatches]:
    segments = list_log(PARTITION, directory, Fs()).segments
    ends = [following.base_offset for _, following in pairwise(segments)]
    return [
        find_key_matches(PARTITION, directory, segment, end, keys, Fs(), limit_bytes=limit_bytes)
        for segment, end in zip(segments, [*ends, INT64_MAX], strict=True)
    ]


def found_in(directory: Path, keys: KeySet) -> list[tuple[int, bytes, bool]]:
    """Return (offset, key, tombstone) of the records found in all segments."""
    return [
        (int(offset), keys.key(number), bool(is_tombstone))
        for each in matches_of(directory, keys)
        for offset, number, is_tombstone in zip(each.offsets, each.keys, each.tombstones, strict=True)
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_the_records_found_are_those_whose_keys_are_in_the_set(shape: str, seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    write_random_log(directory, seed, SHAPES[shape])
    segments = list_segments(directory)
    batches = [[batch for _, batch in segment.batches() if not batch.is_control] for segment in segments]
    records = [[record for batch in own for record in batch.records()] for own in batches]
    present = sorted({record.key for own in records for record in own if record.key is not None})
    pick = random.Random(seed)
    wanted = [*pick.sample(present, len(present) // 2), b"absent", b"", present[0] + b"x", present[0][:-1]]
    keys = KeySet.of(wanted)
    assert found_in(directory, keys) == [
        (record.offset, record.key, record.value is None) for own in records for record in own if record.key in wanted
    ]
    assert [each.scanned for each in matches_of(directory, keys)] == [len(own) for own in records]


def test_control_records_are_not_data_and_aborted_records_are(tmp_path: Path):
    aborted = batch_bytes(0, "ab", producer_id=9, sequence=0, transactional=True)
    write_segment(tmp_path, 0, [aborted, marker_bytes(2, ABORT, producer_id=9)])
    marker_key = bytes.fromhex("00000000")
    assert [offset for offset, _, _ in found_in(tmp_path, KeySet.of([b"a", marker_key]))] == [0]


def test_batches_with_more_records_than_the_first_arrays_are_searched(tmp_path: Path):
    write_segment(tmp_path, 0, [batch_bytes(0, "k" * 10_000), batch_bytes(10_000, "k" * 9_000, codec=4)])
    assert [offset for offset, _, _ in found_in(tmp_path, KeySet.of([b"k"]))] == list(range(19_000))


def test_an_empty_set_finds_nothing(tmp_path: Path):
    write_segment(tmp_path, 0, [batch_bytes(0, "abc")])
    (found,) = matches_of(tmp_path, KeySet.of([]))
    assert (len(found), found.scanned) == (0, 3)


def test_an_equal_hash_is_no_match_if_the_bytes_differ(tmp_path: Path):
    write_segment(tmp_path, 0, [batch_bytes(0, "abc")])
    (segment,) = list_log(PARTITION, tmp_path, Fs()).segments
    keys = KeySet.of([b"b"])
    with ExitStack() as stack:
        source = SourceSegment(tmp_path, segment, INT64_MAX, Fs(), stack)
        search = key_matches.KeySearch(source, keys, LIMIT_BYTES)
        # The table has the hash of `b` already; the search compares with these bytes.
        keys.contents[0] = ord("z")
        for span in source.checked_spans():
            assert search.add(span).size == 0
        assert search.matches().scanned == 3


def test_a_second_key_with_the_same_hash_is_noticed():
    twice = KeySet(KeySet.of([b"ab"]).contents, np.array([0, 1, 2], dtype=np.int64))
    twice.contents[:2] = ord("a")
    _, table = key_matches._table_of(KeySet.of([]))
    assert key_matches.enter_keys(table._replace(contents=twice.contents.ctypes.data, edges=twice.edges)) == 1


def test_zeros_after_the_last_batch_end_the_search_and_other_bytes_are_corrupt(tmp_path: Path):
    path = write_segment(tmp_path, 0, [batch_bytes(0, "ab")])
    whole = path.read_bytes()
    for zeros in (5, 100_000):
        path.write_bytes(whole + bytes(zeros))
        assert [offset for offset, _, _ in found_in(tmp_path, KeySet.of([b"a", b"b"]))] == [0, 1]
    for tail in (batch_bytes(2)[:-1], bytes(100) + b"x"):
        path.write_bytes(whole + tail)
        with pytest.raises(CorruptBatchError) as caught:
            matches_of(tmp_path, KeySet.of([b"a"]))
        assert caught.value.position == len(whole)


def test_a_corrupt_batch_ends_the_search(tmp_path: Path):
    path = write_segment(tmp_path, 0, [batch_bytes(0), batch_bytes(1)])
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError) as caught:
        matches_of(tmp_path, KeySet.of([b"k"]))
    assert (caught.value.partition, caught.value.path, caught.value.offset) == ("t-0", str(path), 1)


def test_records_that_expand_beyond_the_limit_are_corrupt(tmp_path: Path):
    write_segment(tmp_path, 0, [batch_bytes(0), batch_bytes(1, codec=4, value=b"v" * 5000)])
    with pytest.raises(CorruptBatchError, match="4000 bytes") as caught:
        matches_of(tmp_path, KeySet.of([b"k"]), limit_bytes=4000)
    assert (caught.value.position, caught.value.offset) == (len(batch_bytes(0)), 1)


def test_a_segment_that_is_not_the_listed_one_is_refused(tmp_path: Path):
    path = write_segment(tmp_path, 0, [batch_bytes(0)])
    (segment,) = list_log(PARTITION, tmp_path, Fs()).segments
    path.write_bytes(path.read_bytes() + batch_bytes(1))
    with pytest.raises(SourceChangedError):
        find_key_matches(PARTITION, tmp_path, segment, INT64_MAX, KeySet.of([b"k"]), Fs(), limit_bytes=LIMIT_BYTES)
