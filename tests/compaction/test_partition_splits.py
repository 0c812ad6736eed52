"""Splits of a partition compared with a whole cleaning: the same parts for all bounds, runs, ranges and budgets."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.compaction.chunk_reader import ChunkReader
from sediment.compaction.clean_log import SplitWork, clean_log, clean_split, collect_split_keys, scan_log
from sediment.compaction.grouping import SegmentGroup
from sediment.compaction.partition_splits import (
    KeyRun,
    RunNumber,
    SplitContents,
    SplitNotApplicableError,
    collect_survivors,
    cut_into_splits,
    fold_range,
    pack_run,
    ranges_for,
    splits_at,
)
from sediment.segment_io.errors import CorruptBatchError, SourceChangedError
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from tests.compaction.cleanings import ALL_CODECS, Round, batch_of, flip, write_log
from tests.compaction.splittings import (
    EMPTY,
    NOTHING,
    Splitting,
    assert_another_content_is_noticed,
    assert_same_as_whole,
    four_segments,
    one_split,
    plan_of,
    survivors_of,
)
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin.batches import Record, encode_batch


@pytest.mark.parametrize("block", range(4))
def test_any_bounds_runs_ranges_and_budgets_give_the_bytes_of_the_whole(tmp_path, block):
    compared = 0
    for seed in range(8 * block, 8 * block + 8):
        chooser = random.Random(seed)
        shape = LogShape(
            codecs=chooser.choice([(0,), ALL_CODECS]),
            transactional=chooser.choice([0, 0.4]),
            keys=chooser.choice([4, 12, 60]),
            batches=chooser.choice([40, 120]),
            segment_bytes=900,
            most_records=chooser.choice([8, 40]),
        )
        directory = tmp_path / f"t-{seed}"
        end_offset = write_random_log(directory, seed, shape)
        dirty = chooser.choice([None, None, chooser.randrange(end_offset)])
        retention_ms = chooser.choice([1000, None, INT64_MAX])
        given = Round(START_MS + 200_000, chooser.choice([1000, 2500]), retention_ms, None, dirty)
        plan = plan_of(directory, given)
        if plan is None:
            continue
        for _ in range(2):
            indexes = range(1, len(plan.groups))
            splitting = Splitting(
                bounds=tuple(sorted(chooser.sample(indexes, chooser.randint(0, len(indexes))))),
                run_limit=chooser.choice([1, 5, 20, 1000]),
                ranges=chooser.choice([2, 4, 16]),
                budget_bytes=chooser.choice([1500, 9000, 1 << 20]),
                scanned=True,
            )
            assert_same_as_whole(directory, plan, splitting)
            compared += 1
    assert compared > 8


def test_a_log_without_transactions_needs_no_scan(tmp_path):
    segments = {10 * n: [batch_of(10 * n + m, b"k%d" % ((n + m) % 17)) for m in range(10)] for n in range(9)}
    directory = write_log(tmp_path / "t-0", segments)
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=800))
    assert plan is not None
    assert len(plan.groups) == 9
    assert scan_log(plan, Fs(), only_if_needed=True) == {}
    assert_same_as_whole(directory, plan, Splitting(bounds=(2, 3, 7)))


def test_transactions_met_without_a_scan_ask_for_one(tmp_path):
    directory = tmp_path / "t-0"
    write_random_log(directory, 3, LogShape(transactional=0.7))
    with pytest.raises(SplitNotApplicableError) as raised:
        one_split(directory, Round(START_MS + 200_000))
    assert raised.value.needs_scan


@pytest.mark.parametrize("offsets", [(0, 3, 2, 9), (0, 5, 12, 6), (0, 1, 19, 19)])
def test_offsets_that_do_not_increase_are_not_split(tmp_path, offsets):
    directory = write_log(
        tmp_path / "t-0", {0: [batch_of(n, b"a") for n in offsets], 20: [batch_of(n, b"a") for n in (20, 21)]}
    )
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=10))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    with pytest.raises(SplitNotApplicableError) as raised:
        for split in splits_at(plan.groups, (1,)):
            list(collect_split_keys(work, split, 2, Fs()))
    assert not raised.value.needs_scan


def test_a_batch_of_a_split_whose_offset_is_not_one_of_its_segment_is_an_error(tmp_path):
    directory = write_log(
        tmp_path / "t-0", {0: [batch_of(n, b"a") for n in (0, 1, 30)], 20: [batch_of(n, b"a") for n in (20, 21)]}
    )
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=10))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    with pytest.raises(CorruptBatchError, match="outside its segment") as raised:
        for split in splits_at(plan.groups, (1,)):
            list(collect_split_keys(work, split, 2, Fs()))
    assert raised.value.offset == 30


def test_a_sweep_that_meets_more_records_than_the_first_sweep_changes_nothing(tmp_path):
    directory = write_log(tmp_path / "t-0", four_segments())
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=800))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    (split,) = splits_at(plan.groups, ())
    with pytest.raises(SourceChangedError, match="earlier sweep"):
        clean_split(work, split, NOTHING, Fs(), Attempt("r", "0"))
    assert not list(directory.glob("*.part"))


def test_a_batch_that_differs_from_the_first_sweeps_changes_nothing(tmp_path):
    directory = write_log(tmp_path / "t-0", four_segments())
    batches = [batch_of(10 + m, b"j" if m == 4 else b"k") for m in range(10)]
    assert_another_content_is_noticed(directory, 10, b"".join(batches))


def test_compressed_batches_without_a_survivor_are_not_decompressed_ahead(tmp_path):
    def packed(offset: int, keys: str) -> bytes:
        records = [Record(offset + n, START_MS, key.encode(), b"v") for n, key in enumerate(keys)]
        return encode_batch(records, base_offset=offset, leader_epoch=0, codec=4)

    batches = [packed(0, "ab"), packed(2, "cd"), batch_of(4, b"e"), packed(5, "ca"), packed(7, "a")]
    directory = write_log(tmp_path / "t-0", {0: batches})
    plan = plan_of(directory, Round(START_MS + 1_000_000))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    (split,) = splits_at(plan.groups, ())
    survivors = survivors_of(work, split)
    assert np.unpackbits(survivors.bits, bitorder="little").tolist() == [1, 0, 1, 1, 1, 0, 1, 0]
    with ExitStack() as stack:
        reader = ChunkReader(directory, plan.view.listing.segments, Fs(), 1 << 20, 0, lambda _: None, stack)
        reader.skip_batches_without_survivors(np.packbits([1, 0, 0, 1, 0, 0, 1, 0], bitorder="little"))
        (chunk,) = reader.chunks(split.groups[0].segments, {}, newest_first=True)
        assert (chunk.payloads[:, 1] != NOT_DECOMPRESSED).tolist() == [True, False, False, False, True]


def test_a_segment_that_went_away_is_reported_as_a_changed_source(tmp_path):
    directory = write_log(tmp_path / "t-0", {10 * n: [batch_of(10 * n + m, b"k") for m in range(10)] for n in range(4)})
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=800))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    (split,) = splits_at(plan.groups, ())
    (directory / f"{10:020d}.log").unlink()
    with pytest.raises(SourceChangedError, match="was removed while"):
        list(collect_split_keys(work, split, 1, Fs()))
    with pytest.raises(SourceChangedError, match="was removed while"):
        clean_log(plan, Fs(), Attempt("r", "0"))


def test_a_corrupt_batch_is_named_and_no_part_is_left(tmp_path):
    directory = write_log(tmp_path / "t-0", {10 * n: [batch_of(10 * n + m, b"k") for m in range(10)] for n in range(4)})
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=800))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    (split,) = splits_at(plan.groups, ())
    survivors = survivors_of(work, split)
    stamp = (directory / f"{0:020d}.log").stat()
    flip(directory / f"{0:020d}.log", 4 * len(batch_of(0, b"k")) + 66)
    os.utime(directory / f"{0:020d}.log", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    for sweep_of_it in (
        lambda: list(collect_split_keys(work, split, 1, Fs())),
        lambda: clean_split(work, split, survivors, Fs(), Attempt("r", "0")),
    ):
        with pytest.raises(CorruptBatchError) as raised:
            sweep_of_it()
        assert (raised.value.partition, raised.value.offset) == ("t-0", 4)
        assert not list(directory.glob("*.part"))


# ---------------------------------------------------------------------------------------------------- the pure pieces
def numbers_of(run: int, keys: int) -> list[int]:
    """Return ascending record numbers in steps of one to three bytes; the second run of a split continues."""
    return [run % 2 * 50_000 + (index * index if index < 30 else 870 + 300 * index) for index in range(keys)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=60), min_size=1, max_size=6),
    st.sampled_from([2, 8, 64]),
    st.sampled_from([100, 900, 1 << 20]),
)
def test_the_fold_finds_keys_that_entered_the_map_in_a_newer_run(runs, ranges, budget_bytes):
    hashes = np.random.default_rng(5).integers(1, 2**64, size=(41, 2), dtype=np.uint64)
    by_range: dict[int, list[tuple[RunNumber, bytes]]] = {}
    for index, keys in enumerate(runs):
        number = RunNumber(index // 2, index % 2)
        mapped = np.array([entered for _, entered in keys], dtype=np.uint8)
        numbers = np.array(numbers_of(index, len(keys)), dtype=np.int64)
        run = KeyRun(number, hashes[[key for key, _ in keys]], mapped, numbers, EMPTY)
        for which, blob in pack_run(run, ranges):
            by_range.setdefault(which, []).append((number, blob))
    entered: set[int] = set()
    expected: dict[int, list[int]] = {}
    for index, keys in enumerate(runs):
        for at, (key, mapped) in zip(numbers_of(index, len(keys)), keys, strict=True):
            if key not in entered:
                expected.setdefault(index // 2, []).append(at)
            if mapped:
                entered.add(key)
    answers: dict[int, list[bytes]] = {}
    for blobs in by_range.values():
        for splits_above, answer in fold_range(blobs, budget_bytes=budget_bytes):
            answers.setdefault(splits_above, []).append(answer)
    for splits_above in range((len(runs) + 1) // 2):
        survivors = collect_survivors(answers[splits_above], SplitContents(100_000, 0))
        found = np.flatnonzero(np.unpackbits(survivors.bits, bitorder="little"))
        assert found.tolist() == expected.get(splits_above, [])


def random_runs(runs: int, keys: int) -> list[KeyRun]:
    """Return runs that share half of their keys with the one before."""
    chooser = np.random.default_rng(3)
    hashes = chooser.integers(1, 2**64, size=((runs + 1) * keys // 2, 2), dtype=np.uint64)
    mapped = chooser.integers(0, 2, size=keys, dtype=np.uint8)
    numbers = np.arange(keys, dtype=np.int64)
    return [KeyRun(RunNumber(n, 0), hashes[n * keys // 2 :][:keys], mapped, numbers, EMPTY) for n in range(runs)]


def test_a_range_that_exceeds_its_memory_goes_to_a_file_and_is_folded_in_passes(tmp_path):
    runs, budget_bytes = random_runs(40, 20_000), 2_000_000

    def blobs() -> Iterator[tuple[RunNumber, bytes]]:
        return ((run.number, blob) for run in runs for number, blob in pack_run(run, 2) if number == 1)

    total_bytes = sum(len(blob) for _, blob in blobs())
    assert total_bytes > 3 * budget_bytes
    expected = fold_range(blobs(), budget_bytes=1 << 30)
    tracemalloc.start()
    try:
        assert fold_range(blobs(), budget_bytes=budget_bytes, scratch=str(tmp_path)) == expected
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < budget_bytes + 500_000


def test_blobs_of_a_run_are_small_and_may_come_in_any_order():
    runs, ranges = random_runs(2, 150_000), 2
    blobs = [(run.number, blob) for run in runs for number, blob in pack_run(run, ranges) if number == 0]
    assert len(blobs) > len(runs)
    assert max(len(blob) for _, blob in blobs) < 1_200_000
    expected = fold_range(blobs, budget_bytes=1 << 30)
    assert [splits_above for splits_above, _ in expected] == [run.number.splits_above for run in runs]
    random.Random(1).shuffle(blobs)
    assert fold_range(blobs, budget_bytes=1 << 30) == expected
    # Half of the newer run's keys entered the map, and half of the older run's keys are among them.
    survivors = collect_survivors([expected[1][1]], SplitContents(150_000, 0)).bits
    superseded = (runs[1].hashes[:, 1] >> 63 == 0).sum() - np.unpackbits(survivors).sum()
    assert superseded == np.count_nonzero(runs[0].mapped[75_000:][(runs[0].hashes[75_000:, 1] >> 63) == 0])


@pytest.mark.parametrize("ranges", [2, 64, 1024, 32768])
def test_the_bytes_that_a_shuffle_gathers_before_it_writes_are_bounded(ranges):
    run = random_runs(1, 200_000)[0]
    largest = max(len(blob) for _, blob in pack_run(run, ranges))
    assert largest * min(10 * ranges, 1000) < 80_000_000


def group(base_offset: int, log_bytes: int) -> SegmentGroup:
    ref = SegmentRef(base_offset, log_bytes, 0, 0, None, 0)
    return SegmentGroup((ref,), base_offset + 9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 12))
def test_splits_are_all_groups_in_order_and_none_is_empty(sizes, wanted):
    groups = [group(10 * index, size) for index, size in enumerate(sizes)]
    splits = cut_into_splits(groups, wanted)
    assert [member for split in splits for member in split.groups] == groups
    assert 1 <= len(splits) <= wanted
    assert [split.end_offset for split in splits] == [*(s.groups[0].base_offset for s in splits[1:]), None]
    assert [split.number for split in splits] == list(range(len(splits)))


def test_empty_groups_are_not_split_more_often_than_asked():
    assert len(cut_into_splits([group(0, 0), group(10, 0)], 1)) == 1


def test_groups_of_one_size_are_split_evenly():
    splits = cut_into_splits([group(10 * n, 100) for n in range(12)], 4)
    assert [len(split.groups) for split in splits] == [3, 3, 3, 3]
    assert [split.log_bytes for split in splits] == [300] * 4


def test_ranges_keep_a_fold_within_its_budget():
    assert ranges_for(10, 1 << 30) == 2
    assert ranges_for(1_000_000, 1_000_000) == 64
