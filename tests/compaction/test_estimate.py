"""Estimates from samples: exact for a complete sample, right if keys never or always repeat, close otherwise."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sediment.compaction.estimate import collect_sample, estimate_cleaning, estimate_distinct
from sediment.compaction.kernels.delete_horizon import next_horizon_ms
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.sample import SAMPLE_CHUNK_BYTES, sampled_batches
from tests.segments import COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.batches import Record, encode_batch

PARTITION = TopicPartition("t", 0)


def segments_of(path):
    return list_log(PARTITION, path, Fs()).segments


def estimate(path, budget_bytes=1 << 40, now_ms=NOW_MS, retention_ms=1000):
    segments = segments_of(path)
    sample = collect_sample(sampled_batches(path, segments, Fs(), budget_bytes=budget_bytes))
    total = sum(segment.log_bytes for segment in segments)
    return estimate_cleaning(sample, total, now_ms=now_ms, horizon_ms=next_horizon_ms(retention_ms, now_ms))


def large_log(path, keys, *, records=60_000, codec=0, segments=4):
    """About 7 MB of batches of 20 records with random keys below `keys`."""
    chance = random.Random(1)
    for number in range(segments):
        base = number * records // segments
        batches = []
        for start in range(base, base + records // segments, 20):
            drawn = [b"key-%08d" % chance.randrange(keys) for _ in range(20)]
            rows = [Record(start + n, NOW_MS, key, chance.randbytes(100)) for n, key in enumerate(drawn)]
            batches.append(encode_batch(rows, base_offset=start, leader_epoch=0, codec=codec))
        write_segment(path, base, batches)
    return path


def test_a_sample_that_is_the_whole_is_counted():
    counts = np.array([1, 1, 2, 5], dtype=np.int64)
    assert estimate_distinct(counts, 9) == 4


def test_keys_that_never_repeat_are_as_many_as_records():
    assert estimate_distinct(np.ones(100, dtype=np.int64), 10_000) == pytest.approx(10_000)


def test_keys_that_all_repeat_are_those_that_were_seen():
    assert estimate_distinct(np.full(50, 20, dtype=np.int64), 1_000_000) == 50


def test_no_keys_are_none():
    assert estimate_distinct(np.zeros(0, dtype=np.int64), 0) == 0


@pytest.mark.parametrize("keys", [50, 2_000, 20_000, 10**8])
def test_the_keys_of_a_log_are_near_from_a_seventh_of_it(tmp_path, keys):
    path = large_log(tmp_path / "t-0", keys)
    found = estimate(path, budget_bytes=1 << 20)
    assert found.sampled_bytes < 2 << 20
    whole = estimate(path)
    assert found.keys == pytest.approx(whole.keys, rel=0.2)
    assert found.log_bytes == pytest.approx(whole.log_bytes, rel=0.2)


def test_pieces_are_spread_over_the_log_and_bounded(tmp_path):
    path = large_log(tmp_path / "t-0", 100)
    positions = [int(span.rows["base_offset"][0]) for span in
                 sampled_batches(path, segments_of(path), Fs(), budget_bytes=4 * SAMPLE_CHUNK_BYTES)]  # fmt: skip
    assert min(positions) < 15_000
    assert max(positions) >= 45_000
    assert positions == sorted(positions)


def test_a_piece_whose_index_leads_astray_is_left_out(tmp_path):
    path = large_log(tmp_path / "t-0", 100)
    index = path / f"{0:020d}.index"
    entries = np.frombuffer(index.read_bytes(), dtype=">i4").reshape(-1, 2).copy()
    entries[:, 1] += 7
    index.write_bytes(entries.tobytes())
    found = estimate(path, budget_bytes=1 << 20)
    assert found.keys == pytest.approx(100, rel=0.1)


def test_compressed_batches_are_looked_into(tmp_path):
    path = large_log(tmp_path / "t-0", 500, records=4000, codec=4)
    assert estimate(path).keys == pytest.approx(500, rel=0.01)


def test_tombstones_wait_for_their_horizon_or_get_one(tmp_path):
    deleted = [Record(n, NOW_MS, b"k%d" % n, None) for n in range(4)]
    with_horizon = encode_batch(deleted[:2], base_offset=0, leader_epoch=0, delete_horizon_ms=NOW_MS + 10)
    without = encode_batch(deleted[2:], base_offset=2, leader_epoch=0)
    write_segment(tmp_path / "t-0", 0, [with_horizon, without])
    found = estimate(tmp_path / "t-0")
    assert (found.tombstones_waiting, found.first_horizon_ms, found.last_horizon_ms) == (4, NOW_MS + 10, NOW_MS + 1000)
    later = estimate(tmp_path / "t-0", now_ms=NOW_MS + 10)
    assert (later.tombstones_waiting, later.messages) == (2, 2)


def test_markers_are_no_keys_and_null_keys_do_not_live(tmp_path):
    null = encode_batch([Record(0, NOW_MS, None, b"x")], base_offset=0, leader_epoch=0)
    write_segment(tmp_path / "t-0", 0, [null, batch_bytes(1, "a"), marker_bytes(2, COMMIT, producer_id=5)])
    found = estimate(tmp_path / "t-0")
    assert (found.keys, found.messages) == (1, 2)


def test_an_empty_log_is_estimated_as_it_is(tmp_path):
    write_segment(tmp_path / "t-0", 0)
    found = estimate(tmp_path / "t-0")
    assert (found.keys, found.log_bytes, found.first_horizon_ms) == (0, 0, None)


@pytest.mark.parametrize("retention_ms", [None, 0, 2**63 - 1])
def test_tombstones_without_a_horizon_wait_whatever_the_retention(tmp_path, retention_ms):
    deleted = [Record(n, NOW_MS, b"k%d" % n, None) for n in range(4)]
    passed = encode_batch(deleted[:2], base_offset=0, leader_epoch=0, delete_horizon_ms=NOW_MS)
    without = encode_batch(deleted[2:], base_offset=2, leader_epoch=0)
    write_segment(tmp_path / "t-0", 0, [passed, without])
    found = estimate(tmp_path / "t-0", retention_ms=retention_ms)
    assert (found.tombstones_waiting, found.messages) == (2, 2)
    expected_ms = NOW_MS if retention_ms == 0 else None
    assert (found.first_horizon_ms, found.last_horizon_ms) == (expected_ms, expected_ms)


def test_an_unstated_retention_leaves_the_horizons_that_batches_have(tmp_path):
    deleted = [Record(n, NOW_MS, b"k%d" % n, None) for n in range(4)]
    with_horizon = encode_batch(deleted[:2], base_offset=0, leader_epoch=0, delete_horizon_ms=NOW_MS + 10)
    without = encode_batch(deleted[2:], base_offset=2, leader_epoch=0)
    write_segment(tmp_path / "t-0", 0, [with_horizon, without])
    found = estimate(tmp_path / "t-0", retention_ms=None)
    assert (found.tombstones_waiting, found.first_horizon_ms, found.last_horizon_ms) == (4, NOW_MS + 10, NOW_MS + 10)
