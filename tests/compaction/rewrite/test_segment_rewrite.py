"""Rewriting a partition by verdicts against the plain Python twin, and what a start finds afterwards."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.config import CompactionConfig
from sediment.compaction.rewrite.plan import collect_rewrite, plan_rewrite
from sediment.compaction.rewrite.segment_rewrite import rewrite_log, rewrite_segment
from sediment.compaction.rewrite.verdicts import Action, Reason, Verdicts
from sediment.engine.directory.swap import commit
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptBatchError, SourceChangedError, UsageError
from sediment.segment_io.format.layout import MAX_SEGMENT_BYTES
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.corpus import assert_same_log
from tests.logs import LogShape, write_random_log
from tests.rewrites import load, producers_of, random_table, rewrite_both, verdicts_of, view_of, visible_records
from tests.segments import ABORT, NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.batches import Record, encode_batch
from tests.twin.indexes import AbortedTransaction
from tests.twin.rewrite import Change, Verdict, changed_record
from tests.twin.segments import list_segments
from tests.twin.snapshots import load_producers

SHAPES = {
    "plain": LogShape(),
    "codecs": LogShape(codecs=(0, 1, 2, 3, 4), tombstones=0.3),
    "producers": LogShape(transactional=0.2, idempotent=0.8, most_records=2, segment_bytes=6000),
    "legacy": LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
    "null keys": LogShape(null_keys=0.5, headers=0.8, horizons=0.5),
}
DROP, TOMBSTONE = Verdict(Change.DROP), Verdict(Change.TOMBSTONE)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_a_rewritten_log_is_the_twins_and_readers_see_the_verdicts(shape: str, seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    end = write_random_log(directory, seed, SHAPES[shape])
    table = random_table(directory, seed)
    # Of some logs the end is not replicated; the last batch below the high watermark may reach past it.
    checkpoints = PartitionCheckpoints(clean_shutdown=True, high_watermark=end - 40 if seed % 2 else None)
    before = {committed: visible_records(directory, committed=committed) for committed in (False, True)}
    both = rewrite_both(directory, table, checkpoints=checkpoints)
    assert_same_log(directory, both.expected, compressed=True)
    not_reached = {int(offset) for offset in both.done.not_reached.offsets}
    for committed, records in before.items():
        model = {
            offset: after
            for offset, record in records.items()
            if (after := changed_record(record, None if offset in not_reached else table.get(offset))) is not None
        }
        assert visible_records(directory, committed=committed) == model
    assert list_segments(directory)[-1].next_offset() == end
    stats = [segment.stats for segment in both.done.segments]
    assert sum(each.matched for each in stats) <= len(table) - len(not_reached)


@pytest.mark.parametrize("seed", range(3))
def test_a_segment_whose_index_would_be_full_is_split_so_that_a_start_can_rebuild_it(seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    end = write_random_log(directory, seed, SHAPES["plain"])
    bases = {segment.base_offset for segment in list_segments(directory)}
    table = {offset: Verdict(Change.VALUE, b"v" * 400) for offset in visible_records(directory, committed=False)}
    both = rewrite_both(directory, table, index_bytes=60)
    assert_same_log(directory, both.expected, compressed=False)
    assert bases < {segment.base_offset for segment in list_segments(directory)}
    assert load(directory, end, clean=False).damage == ()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(6, 9))
def test_a_start_finds_nothing_to_repair_and_the_same_producers(shape: str, seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    end = write_random_log(directory, seed, SHAPES[shape])
    without_snapshots = tmp_path / "replayed-0"
    shutil.copytree(directory, without_snapshots, ignore=shutil.ignore_patterns("*.snapshot"))
    before = load(shutil.copytree(without_snapshots, tmp_path / "before"), end, clean=False)
    rewrite_both(directory, table := random_table(directory, seed))
    rewrite_both(without_snapshots, table)

    loaded = load(directory, end, clean=True)
    assert [repair for repair in loaded.repairs if not repair.is_routine] == []
    assert (loaded.damage, loaded.log_end_offset) == ((), end)
    # A start that replays the whole log also knows the batches that a producer may send again.
    replayed = load(without_snapshots, end, clean=False)
    assert (replayed.damage, replayed.log_end_offset) == ((), end)
    assert producers_of(replayed) == producers_of(before)
    expected = load_producers(tmp_path / "t-0-twin", now_ms=0, expiration_ms=None)
    assert load_producers(directory, now_ms=0, expiration_ms=None).entries == expected.entries


@pytest.mark.parametrize("seed", range(3))
def test_tasks_in_any_order_write_the_files_of_the_whole_rewrite_and_a_second_one_changes_nothing(
    seed: int, tmp_path: Path
):
    directory = tmp_path / "t-0"
    write_random_log(directory, seed, SHAPES["codecs"])
    table = {
        offset: given for offset, given in random_table(directory, seed).items() if given.change is not Change.DROP
    }
    plan = plan_rewrite(view_of(directory), verdicts_of(table), CompactionConfig(index_interval_bytes=300))
    assert [task.segment for task in plan.tasks] == sorted(
        (task.segment for task in plan.tasks), key=lambda segment: segment.base_offset
    )
    done = [rewrite_segment(task, Fs(), Attempt("r", "0")) for task in reversed(plan.tasks)]
    spread = collect_rewrite(plan, done)
    parts = {part.part_name: (directory / part.part_name).read_bytes() for part in spread.swap.parts()}
    for name in parts:
        (directory / name).unlink()
    whole = rewrite_log(plan, Fs(), Attempt("r", "0"))
    assert whole.swap == spread.swap
    assert {part.part_name: (directory / part.part_name).read_bytes() for part in whole.swap.parts()} == parts
    commit(whole.swap, Fs())

    again = plan_rewrite(view_of(directory), verdicts_of(table), plan.tasks[0].config)
    assert not rewrite_log(again, Fs(), Attempt("r", "1")).swap.parts()
    assert not list(directory.glob("*.part"))


def write_batches(directory: Path, *segments: tuple[int, list[bytes]]) -> Path:
    for base, batches in segments:
        write_segment(directory, base, batches)
    return directory


def dropped(directory: Path, offsets: set[int], *, checkpoints: PartitionCheckpoints | None = None) -> dict[int, str]:
    """Drop the records at `offsets` in place; return the reasons of those not reached."""
    done = rewrite_both(directory, dict.fromkeys(offsets, DROP), checkpoints=checkpoints).done
    reasons = zip(done.not_reached.offsets, done.not_reached.reasons, strict=True)
    return {int(offset): Reason(reason).code for offset, reason in reasons}


def spans_of(directory: Path) -> list[tuple[int, int, int]]:
    """Return (base offset, last offset, records) of every batch."""
    return [(b.base_offset, b.last_offset, b.count) for s in list_segments(directory) for _, b in s.batches()]


def test_the_last_batch_of_a_segment_and_the_last_five_of_a_producer_keep_their_headers(tmp_path: Path):
    of_producer = [batch_bytes(n, producer_id=9, sequence=n) for n in range(7)]
    directory = write_batches(
        tmp_path / "t-0", (0, [*of_producer, batch_bytes(7), batch_bytes(8)]), (9, [batch_bytes(9), batch_bytes(10)])
    )
    assert dropped(directory, set(range(11))) == {}
    assert spans_of(directory) == [(n, n, 0) for n in (2, 3, 4, 5, 6, 8, 10)]


def test_only_segments_with_a_changed_record_are_replaced(tmp_path: Path):
    directory = write_batches(
        tmp_path / "t-0", *((base, [batch_bytes(base), batch_bytes(base + 1)]) for base in (0, 2, 4))
    )
    before = {path.name: path.stat().st_ino for path in directory.iterdir()}
    assert dropped(directory, {2, 5, 6}) == {6: "no-record"}
    kept = {name for name, inode in before.items() if (directory / name).stat().st_ino == inode}
    assert {int(name.partition(".")[0]) for name in kept} == {0}
    assert spans_of(directory) == [(0, 0, 1), (1, 1, 1), (3, 3, 1), (4, 4, 1), (5, 5, 0)]


def test_markers_stay_and_so_do_entries_of_aborted_transactions(tmp_path: Path):
    transaction = [
        batch_bytes(0, producer_id=9, sequence=0, transactional=True),
        batch_bytes(1, producer_id=9, sequence=1, transactional=True),
        marker_bytes(2, ABORT, producer_id=9),
        batch_bytes(3),
    ]
    directory = tmp_path / "t-0"
    entry = AbortedTransaction(9, 0, 2, 3)
    write_segment(directory, 0, transaction, aborted=[entry])
    index = (directory / f"{0:020d}.txnindex").read_bytes()
    assert dropped(directory, {0, 1, 2}) == {2: "control-record"}
    assert (directory / f"{0:020d}.txnindex").read_bytes() == index
    assert spans_of(directory) == [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1)]
    assert set(visible_records(directory, committed=True)) == {3}


@pytest.mark.parametrize(
    ("checkpoints", "reasons"),
    [
        (
            PartitionCheckpoints(clean_shutdown=True, high_watermark=3),
            dict.fromkeys((2, 3, 4, 5), "above-high-watermark"),
        ),
        (PartitionCheckpoints(clean_shutdown=True), dict.fromkeys((4, 5), "open-transaction")),
        (PartitionCheckpoints(recovery_point=2), dict.fromkeys((2, 3, 4, 5), "unverified")),
    ],
    ids=["high watermark inside a batch", "open transaction", "unclean stop"],
)
def test_nothing_at_or_above_the_last_stable_offset_is_touched(
    checkpoints: PartitionCheckpoints, reasons: dict[int, str], tmp_path: Path
):
    open_batch = batch_bytes(4, producer_id=9, sequence=0, transactional=True)
    pair = encode_batch([Record(n, NOW_MS, b"k", b"v") for n in (2, 3)], base_offset=2, leader_epoch=0)
    directory = write_batches(
        tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]), (2, [pair, open_batch]), (5, [batch_bytes(5)])
    )
    assert dropped(directory, {0, 2, 3, 4, 5, 9}, checkpoints=checkpoints) == {**reasons, 9: "no-record"}
    assert set(visible_records(directory, committed=False)) == {1, *reasons}


def test_a_record_without_a_key_is_no_tombstone(tmp_path: Path):
    directory = tmp_path / "t-0"
    records = [Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS, b"k", b"v")]
    write_batches(directory, (0, [encode_batch(records, base_offset=0, leader_epoch=0)]))
    done = rewrite_both(directory, {0: TOMBSTONE, 1: TOMBSTONE}).done
    assert done.not_reached.by_reason() == {Reason.NO_KEY: 1}
    assert done.segments[0].stats.tombstoned == 1
    assert [r.value for r in visible_records(directory, committed=False).values()] == [b"v", None]


def test_a_corrupt_batch_ends_the_rewrite_and_leaves_nothing(tmp_path: Path):
    directory = write_batches(
        tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]), (2, [batch_bytes(2), batch_bytes(3)]), (4, [])
    )
    path = directory / f"{2:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    before = files_of(directory)
    plan = plan_rewrite(view_of(directory), verdicts_of({0: DROP, 2: DROP}), CompactionConfig())
    with pytest.raises(CorruptBatchError) as caught:
        rewrite_log(plan, Fs(), Attempt("r", "0"))
    assert (caught.value.partition, caught.value.path, caught.value.offset) == ("t-0", str(path), 3)
    assert files_of(directory) == before


def test_a_segment_that_ends_inside_a_batch_is_corrupt(tmp_path: Path):
    directory = write_batches(tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]))
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + batch_bytes(2)[:30])
    plan = plan_rewrite(view_of(directory), verdicts_of({0: DROP}), CompactionConfig())
    with pytest.raises(CorruptBatchError, match="ends inside a batch"):
        rewrite_log(plan, Fs(), Attempt("r", "0"))


def test_records_that_expand_beyond_the_limit_are_corrupt(tmp_path: Path):
    directory = write_batches(tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1, codec=4, value=b"v" * 5000)]))
    config = CompactionConfig(max_decompressed_batch_bytes=4000)
    with pytest.raises(CorruptBatchError, match="4000 bytes") as caught:
        rewrite_log(plan_rewrite(view_of(directory), verdicts_of({1: DROP}), config), Fs(), Attempt("r", "0"))
    assert (caught.value.partition, caught.value.position, caught.value.offset) == ("t-0", len(batch_bytes(0)), 1)
    assert not list(directory.glob("*.part"))


def test_a_batch_with_replacements_larger_than_a_segment_is_refused(tmp_path: Path):
    directory = write_batches(tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]))
    replacement = np.zeros(MAX_SEGMENT_BYTES, dtype=np.uint8)
    verdicts = Verdicts(
        np.array([1], dtype=np.int64),
        np.array([Action.REPLACE_VALUE], dtype=np.uint8),
        np.array([0, replacement.size], dtype=np.int64),
        replacement,
    )
    with pytest.raises(UsageError, match="larger than a segment") as caught:
        rewrite_log(plan_rewrite(view_of(directory), verdicts, CompactionConfig()), Fs(), Attempt("r", "0"))
    assert caught.value.offset == 1
    assert not list(directory.glob("*.part"))


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_a_segment_that_is_not_the_planned_one_is_refused(change: str, tmp_path: Path):
    directory = write_batches(tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]))
    plan = plan_rewrite(view_of(directory), verdicts_of({0: DROP}), CompactionConfig())
    path = directory / f"{0:020d}.log"
    if change == "gone":
        path.unlink()
    else:
        os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChangedError):
        rewrite_log(plan, Fs(), Attempt("r", "0"))
    assert not list(directory.glob("*.part"))


class FullFs(Fs):
    """A filesystem that is full after a number of files."""

    def __init__(self, files: int) -> None:
        self._files = files

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        if self._files == 0:
            path.touch()
            raise OSError(errno.ENOSPC, "no space", str(path))
        self._files -= 1
        return super().write_new(path, chunks)


@pytest.mark.parametrize("files", range(6))
def test_a_full_disk_leaves_no_part(files: int, tmp_path: Path):
    directory = write_batches(
        tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]), (2, [batch_bytes(2), batch_bytes(3)])
    )
    before = files_of(directory)
    plan = plan_rewrite(view_of(directory), verdicts_of({0: DROP, 2: DROP}), CompactionConfig())
    with pytest.raises(OSError, match="no space"):
        rewrite_log(plan, FullFs(files), Attempt("r", "0"))
    assert files_of(directory) == before


def test_an_exception_of_progress_ends_the_rewrite(tmp_path: Path):
    directory = write_batches(tmp_path / "t-0", (0, [batch_bytes(0), batch_bytes(1)]))
    plan = plan_rewrite(view_of(directory), verdicts_of({0: DROP}), CompactionConfig())

    def stop(_size_bytes: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        rewrite_log(plan, Fs(), Attempt("r", "0", stop))
    assert not list(directory.glob("*.part"))
