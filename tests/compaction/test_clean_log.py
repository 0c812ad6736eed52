"""The cleaner against the plain Python twin: random logs, each kind of pass, errors, and write-behind."""

from __future__ import annotations

import errno
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.compaction import chunk_reader, kernel_driver
from sediment.compaction.clean_log import clean_log, sweep_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.write_behind import WriteBehind
from sediment.segment_io.compiled import native, status
from sediment.segment_io.errors import CorruptBatchError, MapFullError, SourceChangedError, UnsupportedDataError
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import compress, decompress
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, INT64_MAX
from sediment.segment_io.format.names import Attempt, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import DryRunFs, Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from tests.compaction.cleanings import (
    ALL_CODECS,
    NOW,
    PARTITION,
    Round,
    batch_of,
    clean_both,
    flip,
    plan_of,
    prepare,
    renumbered,
    write_log,
)
from tests.logs import START_MS, LogShape, write_random_log, write_segment
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import file_batches
from tests.twin.snapshots import ProducerStates
from tests.waiting import LIMIT_SECONDS


@pytest.mark.parametrize("block", range(10))
def test_random_logs_are_cleaned_as_by_the_twin(tmp_path, block):
    cleaned = 0
    for seed in range(30 * block, 30 * block + 30):
        chooser = random.Random(seed)
        shape = LogShape(
            codecs=chooser.choice([(0,), (0,), ALL_CODECS]),
            transactional=chooser.choice([0, 0.4, 0.7]),
            idempotent=chooser.choice([0, 0.3]),
            batches=chooser.choice([20, 60, 120]),
        )
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, shape)
        now_ms, dirty = START_MS + chooser.choice([0, 20_000, 200_000]), None
        map_bytes = chooser.choice([None, None, 24 * 8, 24 * 20])
        for _ in range(3):
            given = Round(
                now_ms,
                chooser.choice([2500, 4000, 9000]),
                chooser.choice([0, 1000, 1000, None, INT64_MAX]),
                map_bytes,
                dirty,
                chooser.choice([86_400_000, 30_000, None]),
            )
            end_offset = clean_both(directory, given, compressed=shape.codecs != (0,))
            if end_offset is None:
                break
            cleaned += 1
            dirty = end_offset if chooser.random() < 0.5 else None
            now_ms += chooser.choice([0, 1000, 70_000])
    assert cleaned > 20


def test_chunks_of_any_size_give_the_same_bytes(tmp_path, monkeypatch):
    for chunk_bytes in (64, 200, 1000, 1 << 20):
        monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", chunk_bytes)
        for seed in range(15):
            directory = tmp_path / f"{chunk_bytes}-{seed}"
            write_random_log(directory, seed, LogShape(transactional=0.3 if seed % 2 else 0))
            clean_both(directory, Round(START_MS + 200_000), compressed=False)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_an_index_that_points_into_a_batch_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", 200)
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"k%d" % (n % 7)) for n in range(60)]})
    index = directory / f"{0:020d}.index"
    index.write_bytes(b"".join((n).to_bytes(4, "big") + (n * 70 + 13).to_bytes(4, "big") for n in range(3, 50, 3)))
    clean_both(directory, NOW, compressed=False)


def test_a_segment_without_an_index_is_scanned_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", 200)
    monkeypatch.setattr(chunk_reader, "_LARGEST_INDEX_GAP", 1000)
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"k%d" % (n % 7)) for n in range(60)]})
    (directory / f"{0:020d}.index").write_bytes(b"")
    clean_both(directory, NOW, compressed=False)


def test_offsets_that_do_not_increase_are_filtered_by_a_filled_map(tmp_path):
    batches = [batch_of(offset, b"k%d" % (offset % 5)) for offset in (0, 3, 2, 9, 5, 10, 11, 4, 20)]
    directory = tmp_path / "t-0"
    directory.mkdir()
    states = ProducerStates()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    (directory / f"{0:020d}.index").write_bytes(b"")
    (directory / f"{0:020d}.timeindex").write_bytes(b"")
    write_segment(directory, 21, [], states, LogShape())
    clean_both(directory, NOW, compressed=False)


def test_transactions_met_after_groups_were_finished_start_over_and_leave_no_stray_files(tmp_path):
    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True, "leader_epoch": 0}
    old = [
        encode_batch([Record(n, START_MS, b"k", b"v")], base_offset=n, base_sequence=n, **transaction) for n in range(3)
    ]
    commit = encode_batch([Record(3, START_MS, b"\0\0\0\1", b"\0" * 6)], base_offset=3, control=True, **transaction)
    segments = {0: [*old, commit]} | {
        10 * n: [batch_of(10 * n + m, b"k%d" % (m % 3)) for m in range(10)] for n in range(1, 8)
    }
    directory = write_log(tmp_path / "t-0", segments)
    # So late that no producer is active any more: only the oldest segment itself mentions transactions.
    given = Round(START_MS + 10 * 86_400_000, segment_bytes=100)
    clean_both(directory, given, compressed=False)
    assert not list(directory.glob("*.part"))


def test_a_map_grows_through_many_sizes(tmp_path):
    records = [
        Record(n, START_MS, b"key-%d" % ((n * 7919) % 150_000), b"v" if n % 11 else None) for n in range(200_000)
    ]
    batches = [
        encode_batch(records[start : start + 500], base_offset=start, leader_epoch=0)
        for start in range(0, 200_000, 500)
    ]
    directory = write_log(tmp_path / "t-0", {0: batches[:200], 100_000: batches[200:]})
    clean_both(directory, Round(START_MS, segment_bytes=1 << 30), compressed=False)


def test_a_batch_with_more_records_and_bytes_than_any_buffer_grows_them(tmp_path):
    for codec in (0, 4):
        records = [Record(n, START_MS, b"%d" % (n % 9000), None) for n in range(30_000)]
        big = encode_batch(records, base_offset=0, leader_epoch=0, codec=codec)
        directory = write_log(tmp_path / f"t-{codec}", {0: [big, batch_of(30_000, b"7")]})
        clean_both(directory, NOW, compressed=codec != 0)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_all_rebuilt_batches_but_the_first_are_compressed_in_the_sweep(tmp_path, monkeypatch, codec):
    outside = []
    monkeypatch.setattr(kernel_driver, "compress", lambda *given: outside.append(given) or compress(*given))
    keys = [*range(3000), *range(0, 3000, 2)]
    records = [Record(offset, START_MS, b"key-%d" % key, b"value %d " % key * 9) for offset, key in enumerate(keys)]
    batches = [
        encode_batch(records[start : start + 150], base_offset=start, leader_epoch=0, codec=codec)
        for start in range(0, len(records), 150)
    ]
    directory = write_log(tmp_path / "t-0", {0: batches})
    swap = prepare(directory, NOW)
    assert swap is not None
    (part,) = [part for group in swap.groups for part in group.parts]
    cleaned = [batch for _, batch in file_batches((directory / part.files[0].part_name).read_bytes())]
    assert [len(batch.records()) for batch in cleaned] == [75] * 20 + [150] * 10
    for batch in cleaned[:20]:
        payload = batch.data[BATCH_HEADER_BYTES:]
        assert payload == compress(codec, decompress(codec, payload, limit_bytes=1 << 20))
    assert len(outside) == 1


def test_delete_horizons_that_outgrow_the_sources_enlarge_the_output(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", 16)
    records = [Record(n, START_MS, b"%d" % n, None) for n in range(300)]
    directory = write_log(tmp_path / "t-0", {0: [encode_batch(records, base_offset=0, leader_epoch=0)]})
    clean_both(directory, NOW, compressed=False)


def test_a_group_whose_files_would_come_out_as_they_are_is_not_rewritten(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"k%d" % n) for n in range(40)]})
    first = prepare(directory, NOW)
    assert first is not None
    assert first.groups[0].parts == ()
    assert not list(directory.glob("*.part"))


def test_a_group_whose_index_would_come_out_differently_is_rewritten(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"k%d" % n) for n in range(40)]})
    (directory / f"{0:020d}.index").write_bytes(b"")
    swap = prepare(directory, NOW)
    assert swap is not None
    assert len(swap.groups[0].parts) == 1


def test_a_group_with_an_empty_transaction_index_is_rewritten_without_one(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"k%d" % n) for n in range(40)]})
    (directory / f"{0:020d}.txnindex").touch()
    swap = prepare(directory, NOW)
    assert swap is not None
    (part,) = swap.groups[0].parts
    assert {file.final_name.partition(".")[2] for file in part.files} == {"log", "index", "timeindex"}


def test_two_segments_with_nothing_to_drop_are_merged_as_kafka_merges_them(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        {0: [batch_of(n, b"k%d" % n) for n in range(10)], 10: [batch_of(n, b"k%d" % n) for n in range(10, 20)]},
    )
    swap = prepare(directory, NOW)
    assert swap is not None
    assert [[source.base_offset for source in group.sources] for group in swap.groups] == [[0, 10]]
    assert len(swap.groups[0].parts) == 1


def test_parts_keep_the_modification_time_of_the_last_source_cp_14(tmp_path):
    import os

    directory = write_log(tmp_path / "t-0", {0: [batch_of(0, b"a")], 1: [batch_of(1, b"a")]})
    os.utime(directory / f"{0:020d}.log", ns=(10**18, 10**18))
    os.utime(directory / f"{1:020d}.log", ns=(2 * 10**18, 2 * 10**18))
    swap = prepare(directory, NOW)
    assert swap is not None
    assert {p.stat().st_mtime_ns for p in directory.glob("*.part")} == {2 * 10**18}


def test_a_dry_run_writes_nothing(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"a") for n in range(10)]})
    before = names(directory)
    swap = prepare(directory, NOW, DryRunFs())
    assert swap is not None
    assert swap.groups[0].stats.messages_written == 1
    assert names(directory) == before


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_batch_with_a_wrong_crc_is_an_error_with_its_place_and_nothing_is_left(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"a") for n in range(10)]})
    size = len(batch_of(0, b"a"))
    flip(directory / f"{0:020d}.log", 4 * size + 66)
    before = names(directory)
    with pytest.raises(CorruptBatchError) as raised:
        prepare(directory, NOW)
    error = raised.value
    assert (error.partition, error.position, error.offset) == ("t-0", 4 * size, 4)
    assert "CRC" in str(error)
    assert names(directory) == before


@pytest.mark.parametrize(
    "offset", [1 + 2**20, 1 + 2**31, 1 + 2**40, 1 - 2**63, 2**63 - 1, -5, 9, 20], ids=lambda offset: f"{offset:x}"
)
@pytest.mark.parametrize("map_bytes", [None, 24 * 100])
@pytest.mark.parametrize("place", [0, 1, 9])
def test_a_batch_whose_offset_is_not_one_of_its_segment_is_an_error_with_its_place(tmp_path, offset, map_bytes, place):
    # As many batches of one key: an offset that is too high would supersede what was written later.
    batches = [batch_of(10 + n, b"k") for n in range(10)]
    directory = write_log(tmp_path / "t-0", {10: batches, 20: [batch_of(20, b"z")]})
    batches[place] = renumbered(batches[place], offset)
    (directory / f"{10:020d}.log").write_bytes(b"".join(batches))
    before = names(directory)
    with pytest.raises(CorruptBatchError, match="outside its segment") as raised:
        prepare(directory, replace(NOW, map_bytes=map_bytes))
    assert (raised.value.position, raised.value.offset) == (place * len(batches[0]), offset)
    assert names(directory) == before


def test_a_batch_that_reaches_into_the_next_segment_is_an_error(tmp_path):
    reaching = bytearray(batch_of(2, b"k"))
    reaching[23:27] = (1).to_bytes(4, "big")
    directory = write_log(tmp_path / "t-0", {0: [batch_of(0, b"k"), batch_of(1, b"k")], 3: [batch_of(3, b"z")]})
    (directory / f"{0:020d}.log").write_bytes(batch_of(0, b"k") + resealed(bytes(reaching)))
    with pytest.raises(CorruptBatchError, match="outside its segment"):
        prepare(directory, NOW)


def resealed(batch: bytes) -> bytes:
    """Return the batch with the CRC of its current bytes."""
    import google_crc32c

    return batch[:17] + google_crc32c.value(batch[21:]).to_bytes(4, "big") + batch[21:]


@pytest.mark.parametrize(
    "mutate",
    [
        lambda b: b[:57] + (9).to_bytes(4, "big") + b[61:],
        lambda b: b[:57] + (-1).to_bytes(4, "big", signed=True) + b[61:],
        lambda b: b[:23] + (-5).to_bytes(4, "big", signed=True) + b[27:],
        lambda b: b[:61] + b"\xff\xff\xff\xff\x0f" + b[66:],
        lambda b: b[:65] + b"\xfe\xff\xff\xff\x0f" + b[70:],
        lambda b: b[:22] + b"\x05" + b[23:],
        lambda b: b[:22] + b"\x04" + b[23:],
        lambda b: b[:22] + b"\x02" + b[23:],
    ],
)
def test_a_malformed_batch_with_a_right_crc_is_an_error_with_its_place(tmp_path, mutate):
    bad = resealed(mutate(batch_of(5, b"key", b"value-value-value")))
    batches = [*(batch_of(n, b"a") for n in range(5)), bad, *(batch_of(n, b"a") for n in range(6, 9))]
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    (directory / f"{0:020d}.index").write_bytes(b"")
    (directory / f"{0:020d}.timeindex").write_bytes(b"")
    write_segment(directory, 9, [], ProducerStates(), LogShape())
    with pytest.raises((CorruptBatchError, UnsupportedDataError)) as raised:
        prepare(directory, NOW)
    assert (raised.value.position, raised.value.offset) == (5 * len(batches[0]), 5)


@pytest.mark.parametrize("map_bytes", [None, 24 * 100])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_compressed_batch_that_claims_two_billion_records_is_an_error(tmp_path, codec, map_bytes):
    batch = encode_batch([Record(0, START_MS, b"k", b"v")], base_offset=0, leader_epoch=0, codec=codec)
    bad = resealed(batch[:57] + (2**31 - 1).to_bytes(4, "big") + batch[61:])
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(bad)
    write_segment(directory, 1, [], ProducerStates(), LogShape())
    with pytest.raises(CorruptBatchError, match="record count"):
        prepare(directory, Round(START_MS, map_bytes=map_bytes))


def test_a_batch_that_expands_beyond_the_bound_is_an_error(tmp_path):
    records = [Record(0, START_MS, b"k", b"\0" * 4_000_000)]
    directory = write_log(tmp_path / "t-0", {0: [encode_batch(records, base_offset=0, leader_epoch=0, codec=4)]})
    config = CompactionConfig(cleanup_policy=("compact",), max_decompressed_batch_bytes=1_000_000)
    fs = Fs()
    view = open_view(
        list_log(PARTITION, directory, fs),
        PartitionCheckpoints(),
        fs,
        now_ms=NOW.now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )
    plan = plan_cleaning(view, cleanable_range(view, config, now_ms=NOW.now_ms, force=True), config, now_ms=NOW.now_ms)
    with pytest.raises(CorruptBatchError, match="1000000"):
        clean_log(plan, fs, Attempt("r", "0"))


@pytest.mark.parametrize("ahead_chunks", [0, 8])
def test_compressed_batches_are_cleaned_alike_without_native_libraries(tmp_path, monkeypatch, ahead_chunks):
    monkeypatch.setattr(native, "_library", lambda module: None)
    monkeypatch.setattr(chunk_reader, "_AHEAD_CHUNKS", ahead_chunks)
    for seed in range(4):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, LogShape(codecs=ALL_CODECS))
        clean_both(directory, NOW, compressed=True)


def test_a_segment_that_ends_inside_a_batch_is_an_error(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"a") for n in range(4)]})
    log = directory / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(CorruptBatchError, match="ends inside a batch"):
        prepare(directory, NOW)


def test_a_map_too_small_for_one_key_more_is_an_error(tmp_path):
    records = [Record(n, START_MS, b"k%d" % n, b"v") for n in range(4)]
    directory = write_log(tmp_path / "t-0", {0: [encode_batch(records, base_offset=0, leader_epoch=0)]})
    with pytest.raises(MapFullError):
        prepare(directory, Round(START_MS, map_bytes=24))


def test_a_segment_that_changed_since_it_was_listed_is_an_error(tmp_path):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, b"a") for n in range(4)]})
    fs, config = Fs(), NOW.config()
    listing = list_log(PARTITION, directory, fs)
    view = open_view(
        listing,
        PartitionCheckpoints(),
        fs,
        now_ms=NOW.now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )
    plan = plan_cleaning(view, cleanable_range(view, config, now_ms=NOW.now_ms, force=True), config, now_ms=NOW.now_ms)
    (directory / f"{0:020d}.log").write_bytes(batch_of(0, b"b"))
    with pytest.raises(SourceChangedError):
        clean_log(plan, fs, Attempt("r", "0"))


class HeldBack(Fs):
    """Writes nothing of one directory before it may, or until it is to fail."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.may_write = threading.Event()
        self.error: OSError | None = None

    def write_new(self, path, chunks):
        if path.parent == self.directory:
            assert self.may_write.wait(LIMIT_SECONDS)
            if self.error is not None:
                raise self.error
        return super().write_new(path, chunks)


@pytest.fixture
def two_logs(tmp_path):
    logs = [tmp_path / "t-0", tmp_path / "t-1"]
    for seed, directory in enumerate(logs):
        write_random_log(directory, seed, LogShape())
    # One group a partition, so that its only output is its last one.
    return logs, Round(START_MS + 20_000, segment_bytes=1 << 20)


def test_a_partition_is_swept_while_the_one_before_is_being_written(two_logs):
    (first, second), given = two_logs
    expected = [prepare(directory, given) for directory in (first, second)]
    for swap in expected:
        for part in swap.parts():
            (Path(swap.directory) / part.part_name).unlink()
    fs = HeldBack(first)
    with WriteBehind() as write_behind:
        before = sweep_log(plan_of(first, given), fs, write_behind, Attempt("r", "0"))
        # Not before something of the second partition was read may the first one be written.
        after = sweep_log(plan_of(second, given), fs, write_behind, Attempt("r", "0", lambda _: fs.may_write.set()))
        assert [before.written(), after.written()] == expected


def test_a_write_that_fails_is_its_own_partitions_failure(two_logs):
    (first, second), given = two_logs
    fs = HeldBack(first)
    fs.error = OSError(errno.ENOSPC, "full")
    fs.may_write.set()
    with WriteBehind() as write_behind:
        before = sweep_log(plan_of(first, given), fs, write_behind, Attempt("r", "0"))
        after = sweep_log(plan_of(second, given), fs, write_behind, Attempt("r", "0"))
        assert after.written().groups
        with pytest.raises(OSError, match="full"):
            before.written()


def test_a_bounded_memory_has_every_output_written_when_the_sweep_ends(two_logs):
    (first, _), given = two_logs
    plan = plan_of(first, given, config=replace(given.config(), task_memory_bytes=100_000_000))
    fs = HeldBack(first)
    with WriteBehind() as write_behind:
        threading.Timer(0.2, fs.may_write.set).start()
        swept = sweep_log(plan, fs, write_behind, Attempt("r", "0"))
        assert fs.may_write.is_set()
        there = set(first.glob("*.part"))
        assert there == {first / part.part_name for part in swept.written().parts()}


def test_a_partition_whose_write_fails_frees_its_disk_space_at_once(two_logs):
    (first, _), given = two_logs
    many = replace(given, segment_bytes=4000)
    expected = prepare(first, many)
    for part in expected.parts():
        (first / part.part_name).unlink()
    assert len(expected.groups) > 2
    oldest = expected.groups[0].parts[0].base_offset

    class Full(Fs):
        def write_new(self, path, chunks):
            if path.name.startswith(f"{oldest:020d}.index"):
                super().write_new(path, [b"half"])
                raise OSError(errno.ENOSPC, "full")
            return super().write_new(path, chunks)

    with WriteBehind() as write_behind:
        swept = sweep_log(plan_of(first, many), Full(), write_behind, Attempt("r", "0"))
        write_behind.settle()
        assert not list(first.glob("*.part"))
        with pytest.raises(OSError, match="full"):
            swept.written()


def test_a_sweep_that_ends_with_an_error_leaves_no_part(two_logs):
    (first, _), given = two_logs
    plan, fs, seen = plan_of(first, replace(given, segment_bytes=2000)), Fs(), []

    def stop_after_a_write(_size_bytes):
        seen.extend(first.glob("*.part"))
        if seen:
            raise InterruptedError

    with WriteBehind() as write_behind, pytest.raises(InterruptedError):
        sweep_log(plan, fs, write_behind, Attempt("r", "0", stop_after_a_write))
    assert seen
    assert not list(first.glob("*.part"))


def test_every_status_of_the_sweep_that_is_an_error_has_a_text():
    statuses = {value for name, value in vars(status).items() if name.startswith("BAD_")}
    assert statuses <= set(STATUS_TEXT)


@pytest.mark.parametrize("codecs", [(0,), (3,)])
def test_kept_tombstones_are_counted_with_the_horizons_of_their_batches(tmp_path, codecs):
    counted = 0
    for seed in range(6):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, LogShape(codecs=codecs, tombstones=0.4, transactional=0.3 * (seed % 2)))
        swap = prepare(directory, Round(START_MS + 20_000))
        assert swap is not None
        for group in swap.groups:
            names = [part.files[0].part_name for part in group.parts] or [
                segment_file_name(source.base_offset, SegmentFileKind.LOG) for source in group.sources
            ]
            batches = [batch for name in names for _, batch in file_batches((directory / name).read_bytes())]
            waiting = [
                (batch.delete_horizon_ms, sum(record.value is None for record in batch.records()))
                for batch in batches
                if not batch.is_control
            ]
            horizons = [horizon for horizon, count in waiting if count]
            assert group.stats.tombstones_waiting == sum(count for _, count in waiting)
            if horizons:
                counted += 1
                assert (group.stats.first_horizon_ms, group.stats.last_horizon_ms) == (min(horizons), max(horizons))
    assert counted > 3
