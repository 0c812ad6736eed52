"""Snapshots of producer state: which ones are taken, used and dropped."""

import pytest

from sediment.engine.directory.producer_state_manager import ProducerStateManager, ReplayedSegment, Snapshots
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_snapshots import encode_snapshot
from sediment.segment_io.partition.producer_state import ProducerEntry
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.segments import list_snapshots
from tests.twin.snapshots import parse_snapshot

DAY_MS = 86_400_000
ENTRY = ProducerEntry(7, producer_epoch=0, last_sequence=3, last_offset=3, timestamp_ms=NOW_MS)


@pytest.fixture
def repairs():
    return []


def snapshots_of(directory, repairs, *offsets, entries=()):
    for offset in offsets:
        (directory / f"{offset:020d}.snapshot").write_bytes(encode_snapshot(entries))
    return Snapshots(directory, offsets, Fs(), like=lambda: directory, repairs=repairs)


def manager_of(snapshots):
    return ProducerStateManager(snapshots, now_ms=NOW_MS, expiration_ms=DAY_MS)


def test_ps_11_a_snapshot_without_a_new_offset_is_not_taken(tmp_path, repairs):
    manager = manager_of(snapshots_of(tmp_path, repairs))
    manager.map_end_offset = 5
    manager.take_snapshot()
    manager.take_snapshot()
    assert (list_snapshots(tmp_path), len(repairs)) == ([5], 1)


@pytest.mark.parametrize(
    ("offsets", "start", "end", "expected"),
    [((1, 2, 3, 4, 5), 1, 3, [2, 3]), ((3, 5), 3, 5, [5])],
)
def test_ps_12_snapshots_out_of_range_are_dropped(tmp_path, repairs, offsets, start, end, expected):
    snapshots = snapshots_of(tmp_path, repairs, *offsets)
    manager_of(snapshots).truncate_and_reload(start, end)
    assert list(snapshots.offsets()) == expected
    assert list_snapshots(tmp_path) == list(offsets)
    snapshots.delete_dropped()
    assert list_snapshots(tmp_path) == expected


@pytest.mark.parametrize(
    ("offsets", "bases", "expected"),
    [
        ((2, 5, 42), (5,), [5, 42]),
        ((2, 5, 42), (42,), [42]),
        ((5, 2, 1), (5,), [5]),
        ((1, 2, 3, 4, 5), (2, 4), [2, 4, 5]),
        ((1, 2, 3, 4), (0, 1, 2), [1, 2, 4]),
        ((1, 2), (), [2]),
        ((), (5,), []),
    ],
)
def test_ps_13_strays_are_dropped_except_one_after_the_last_segment(tmp_path, repairs, offsets, bases, expected):
    snapshots = snapshots_of(tmp_path, repairs, *offsets)
    manager_of(snapshots).remove_stray_snapshots(bases)
    assert list(snapshots.offsets()) == expected


def test_ps_22_a_corrupt_snapshot_is_dropped_and_the_next_older_one_used(tmp_path, repairs):
    snapshots = snapshots_of(tmp_path, repairs, 4, 9, entries=[ENTRY])
    (tmp_path / f"{9:020d}.snapshot").write_bytes(b"\0\1garbage")
    manager = manager_of(snapshots)
    manager.truncate_and_reload(0, 20)
    assert (manager.map_end_offset, dict(manager.state.entries)) == (4, {7: ENTRY})
    assert snapshots.offsets() == (4,)


def test_a_dropped_snapshot_taken_again_with_the_same_producers_is_not_rewritten(tmp_path, repairs):
    snapshots = snapshots_of(tmp_path, repairs, 4, entries=[ENTRY])
    snapshots.drop(4, "it was in doubt")
    snapshots.take(4, [ENTRY])
    snapshots.delete_dropped()
    assert (list_snapshots(tmp_path), repairs) == ([4], [])
    snapshots.take(4, [])
    assert parse_snapshot((tmp_path / f"{4:020d}.snapshot").read_bytes()) == {}
    assert [str(repair) for repair in repairs] == [
        "00000000000000000004.snapshot rewritten: it contains the 0 producers known at this offset"
    ]


def test_a_state_is_rebuilt_from_the_newest_snapshot_and_the_batches_after_it(tmp_path, repairs):
    segments = []
    for base in (0, 2, 4):
        log = write_segment(tmp_path, base, [batch_bytes(base + n, producer_id=base + n) for n in range(2)])
        segments.append(ReplayedSegment(base, log, log.stat().st_size, Fs()))
    manager = manager_of(snapshots_of(tmp_path, repairs, 2, entries=[ENTRY]))
    manager.rebuild(segments, 0, 5, reload_from_clean_shutdown=True)
    assert sorted(manager.state.entries) == [2, 3, 4, 7]
    assert (manager.map_end_offset, list_snapshots(tmp_path)) == (5, [2, 4, 5])
    assert sorted(parse_snapshot((tmp_path / f"{4:020d}.snapshot").read_bytes())) == [2, 3, 7]


def test_a_batch_counts_whatever_its_offset_unless_it_lies_before_the_start_or_after_the_end(tmp_path, repairs):
    offsets = {0: [0, 1, 2**30, 0, 3], 4: [4, 5, 4]}
    segments = []
    for base, found in offsets.items():
        batches = [batch_bytes(offset, producer_id=10 * base + place) for place, offset in enumerate(found)]
        log = write_segment(tmp_path, base, batches)
        segments.append(ReplayedSegment(base, log, log.stat().st_size, Fs()))
    manager = manager_of(snapshots_of(tmp_path, repairs, 1))
    manager.rebuild(segments, 0, 5, reload_from_clean_shutdown=False)
    assert sorted(manager.state.entries) == [1, 2, 3, 4, 40]
