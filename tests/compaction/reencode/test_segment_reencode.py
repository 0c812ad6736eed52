"""Re-encoding a partition against the plain Python twin, and what readers, producers and a start find afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding, plan_reencode
from sediment.compaction.reencode.segment_reencode import reencode_segment
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.layout import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.corpus import assert_same_log
from tests.engine.live_logs import LiveLog, batch
from tests.logs import LogShape, write_random_log
from tests.reencodes import random_encoding, reencode, reencode_both, reencode_log
from tests.rewrites import load, producers_of, view_of, visible_records
from tests.segments import ABORT, NOW_MS, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.twin.batches import sign_batch
from tests.twin.indexes import AbortedTransaction
from tests.twin.segments import AnyBatch, list_segments

SHAPES = {
    "plain": LogShape(transactional=0.2, gaps=0.03),
    "codecs": LogShape(codecs=(0, 1, 2, 3, 4), transactional=0.0, idempotent=0.0, horizons=0.3),
    "producers": LogShape(transactional=0.2, idempotent=0.9, most_records=2, segment_bytes=6000, gaps=0.0),
    "legacy": LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
    "append time": LogShape(append_time=0.9, headers=0.8, gaps=0.02, transactional=0.0),
}
MERGE = Encoding(batch_bytes=64 << 10)


def batches_of(directory: Path) -> list[AnyBatch]:
    return [batch for segment in list_segments(directory) for _, batch in segment.batches()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_a_reencoded_log_is_the_twins_and_has_the_same_records_and_producers(shape: str, seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    end = write_random_log(directory, seed, SHAPES[shape])
    records = {committed: visible_records(directory, committed=committed) for committed in (False, True)}
    without_snapshots = tmp_path / "replayed-0"
    shutil.copytree(directory, without_snapshots, ignore=shutil.ignore_patterns("*.snapshot"))
    before = load(shutil.copytree(without_snapshots, tmp_path / "before"), end, clean=False)
    covered = _covered(batches_of(directory))
    encoding = random_encoding(seed)
    # Of some logs the end is not replicated; the last batch below the high watermark may reach past it.
    checkpoints = PartitionCheckpoints(clean_shutdown=True, high_watermark=end - 40 if seed % 2 else None)

    both = reencode_both(directory, encoding, checkpoints=checkpoints)
    assert_same_log(directory, both.expected, compressed=True)
    for committed, expected in records.items():
        assert visible_records(directory, committed=committed) == expected
    assert _covered(batches_of(directory)) == covered
    assert list_segments(directory)[-1].next_offset() == end
    stats = [segment.stats for segment in both.done.segments]
    assert sum(each.batches_after for each in stats) <= sum(each.batches_before for each in stats)

    loaded = load(directory, end, clean=True)
    assert [repair for repair in loaded.repairs if not repair.is_routine] == []
    assert (loaded.damage, loaded.log_end_offset) == ((), end)
    reencode_both(without_snapshots, encoding, checkpoints=checkpoints)
    replayed = load(without_snapshots, end, clean=False)
    assert (replayed.damage, replayed.log_end_offset) == ((), end)
    assert producers_of(replayed) == producers_of(before)


def _covered(batches: Iterable[AnyBatch]) -> list[tuple[int, int]]:
    """Return the ranges [first, end) of offsets that batches cover, adjacent ones joined."""
    ranges: list[tuple[int, int]] = []
    for each in batches:
        if ranges and ranges[-1][1] == each.base_offset:
            ranges[-1] = (ranges[-1][0], each.next_offset)
        else:
            ranges.append((each.base_offset, each.next_offset))
    return ranges


@pytest.mark.parametrize("seed", range(4))
def test_a_second_run_changes_nothing_and_tasks_may_run_in_any_order(seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    write_random_log(directory, seed, SHAPES["codecs"])
    encoding = random_encoding(seed)
    tasks = plan_reencode(view_of(directory), encoding, CompactionConfig())
    done = [reencode_segment(task, Fs(), Attempt("r", "0")) for task in reversed(tasks)]
    parts = [part for each in done for segment in each.group.parts for part in segment.files]
    spread = {part.part_name: (directory / part.part_name).read_bytes() for part in parts}
    for name in spread:
        (directory / name).unlink()
    whole = reencode(directory, encoding)
    written = {part.part_name: (directory / part.final_name).read_bytes() for part in whole.swap.parts()}
    assert written == spread

    again = reencode_log(view_of(directory), encoding, CompactionConfig(), attempt="1")
    assert not again.swap.parts()
    assert not list(directory.glob("*.part"))


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD])
def test_groups_reach_over_chunks_and_are_as_large_as_the_limit_allows(codec: int, tmp_path: Path):
    records = [NewRecord(NOW_MS + n, b"key-%d" % n, b"value" * 40) for n in range(5)]
    batches = [build_batch(records, BatchHead(base_offset=5 * n, leader_epoch=0)) for n in range(2400)]
    write_segment(tmp_path, 0, batches)
    assert len(batches[0]) * len(batches) > 2 << 20
    before = visible_records(tmp_path, committed=False)
    limit_bytes = 20_000
    reencode(tmp_path, Encoding(codec=codec, batch_bytes=limit_bytes))
    after = batches_of(tmp_path)
    assert visible_records(tmp_path, committed=False) == before
    of_each = {each.count for each in after[:-1]}
    assert (
        len(of_each) == 1 and limit_bytes - len(batches[0]) < of_each.pop() * len(batches[0]) / 5 <= limit_bytes * 1.1
    )
    assert {each.codec for each in after} == {codec}


def test_a_client_may_send_the_last_five_batches_again_after_a_reload(tmp_path: Path):
    log = LiveLog(tmp_path)
    for sequence in range(12):
        log.lead(batch(pid=1, seq=sequence))
    log.stop()
    done = reencode(log.directory, Encoding(CODEC_ZSTD, batch_bytes=64 << 10))
    assert done.segments[0].stats.batches_after == 6
    # A start replays the log from its last snapshot.  This one knows no producer, and is before the first batch.
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    write_snapshot(log.directory, 0)
    log.log = log.opened(clean=True)
    for sequence in range(7, 12):
        again = log.lead(batch(pid=1, seq=sequence))
        assert (again.is_duplicate, again.first_offset) == (True, sequence)
    assert log.lead(batch(pid=1, seq=12)).first_offset == 12
    log.stop()


def test_control_batches_and_aborted_transactions_stay(tmp_path: Path):
    directory = tmp_path / "t-0"
    of_transaction = [batch_bytes(n, producer_id=9, sequence=n, transactional=True) for n in range(8)]
    write_segment(
        directory,
        0,
        [*of_transaction, marker_bytes(8, ABORT, producer_id=9), batch_bytes(9), batch_bytes(10)],
        aborted=[AbortedTransaction(9, 0, 8, 9)],
    )
    index = (directory / f"{0:020d}.txnindex").read_bytes()
    reencode(directory, MERGE)
    assert [(each.base_offset, each.last_offset) for each in batches_of(directory)] == [
        (0, 2),
        *((n, n) for n in range(3, 9)),
        (9, 10),
    ]
    assert (directory / f"{0:020d}.txnindex").read_bytes() == index
    assert set(visible_records(directory, committed=True)) == {9, 10}


def test_batches_that_would_grow_stay_unless_they_are_to_be_uncompressed(tmp_path: Path):
    small = batch_bytes(0, value=b"")
    large = batch_bytes(1, value=b"v" * 3000, codec=CODEC_ZSTD)
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [small, large])
    assert not reencode(directory, Encoding(CODEC_ZSTD)).swap.parts()
    assert not reencode(directory, Encoding(CODEC_NONE), CompactionConfig(max_message_bytes=3000)).swap.parts()
    reencode(directory, Encoding(CODEC_NONE), CompactionConfig(max_message_bytes=4000))
    assert [each.codec for each in batches_of(directory)] == [CODEC_NONE, CODEC_NONE]


def test_a_merged_batch_is_not_larger_than_the_topic_allows(tmp_path: Path):
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch_bytes(n, value=b"v" * 400) for n in range(9)])
    reencode(directory, MERGE, CompactionConfig(max_message_bytes=1500))
    assert [each.count for each in batches_of(directory)] == [3, 3, 3]


def test_a_segment_that_grows_is_split_where_its_index_is_full(tmp_path: Path):
    directory = tmp_path / "t-0"
    end = write_random_log(
        directory, 1, LogShape(codecs=(4,), most_records=30, segment_bytes=20_000, transactional=0.0)
    )
    bases = {segment.base_offset for segment in list_segments(directory)}
    config = CompactionConfig(index_interval_bytes=300, segment_index_bytes=60)
    records = visible_records(directory, committed=False)
    reencode(directory, Encoding(CODEC_NONE), config)
    assert bases < {segment.base_offset for segment in list_segments(directory)}
    assert visible_records(directory, committed=False) == records
    assert load(directory, end, clean=False).damage == ()


def test_a_corrupt_batch_ends_its_task_and_leaves_nothing(tmp_path: Path):
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch_bytes(0), batch_bytes(1)])
    path = write_segment(directory, 2, [batch_bytes(2), batch_bytes(3)])
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError) as caught:
        reencode(directory, MERGE)
    assert (caught.value.partition, caught.value.path, caught.value.offset) == ("t-0", str(path), 3)
    assert not list(directory.glob("00000000000000000002.*.part"))


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_LZ4])
def test_records_that_cannot_be_decoded_are_not_merged(codec: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    torn = bytearray(batch_bytes(1))
    torn[65] ^= 0x40  # the length of the key
    write_segment(directory, 0, [batch_bytes(0), sign_batch(bytes(torn)), batch_bytes(2)])
    with pytest.raises(CorruptBatchError) as caught:
        reencode(directory, Encoding(codec, batch_bytes=1000))
    assert caught.value.offset == 1
