"""Loading a partition: Kafka's scenarios, Kafka's own results, and an interruption at every step."""

import errno
import os
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.loading import log_recovery
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptBatchError, CorruptDataError, SourceChangedError, UnsupportedDataError
from sediment.segment_io.format.checkpoints import EpochEntry, format_leader_epochs
from sediment.segment_io.format.names import DirectoryState, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_leader_epochs
from tests.corpus import assert_same_log, assert_same_snapshots, assert_valid_indexes, load_loading_case, loading_cases
from tests.faults.faulty_fs import Disk, FaultyFs, Kill, Killed, read_image, write_image
from tests.logs import START_MS, LogShape, write_random_log
from tests.segments import ABORT, COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.twin.batches import Record, encode_batch
from tests.twin.indexes import AbortedTransaction, encode_transaction_index, parse_offset_index, parse_transaction_index
from tests.twin.legacy import encode_legacy
from tests.twin.segments import list_segments, list_snapshots
from tests.twin.snapshots import ProducerEntry, load_producers, parse_snapshot

DAY_MS = 86_400_000
PARTITION = TopicPartition("t", 0)
HAZARDS = ("torn-tail-clean", "flipped-middle-clean")


def load(
    directory,
    *,
    clean=False,
    recovery_point=0,
    log_start=None,
    high_watermark=None,
    fs=None,
    verify=False,
    interval=4096,
    index_bytes=10 << 20,
    now_ms=NOW_MS,
    state=DirectoryState.LIVE,
    threads=1,
):
    return load_log(
        PARTITION,
        directory,
        LogConfig(compaction=CompactionConfig(index_interval_bytes=interval, segment_index_bytes=index_bytes)),
        PartitionCheckpoints(
            log_start=log_start, recovery_point=recovery_point, clean_shutdown=clean, high_watermark=high_watermark
        ),
        fs or Fs(),
        now_ms=now_ms,
        mode=LoadMode(verify_trusted=verify, directory_state=state, threads=threads),
    )


def record(offset, **fields):
    """Return a batch of 71 bytes with one record."""
    records = [Record(offset, NOW_MS + offset, b"kk", b"v")]
    data = encode_batch(records, base_offset=offset, **{"leader_epoch": 0} | fields)
    assert len(data) == 71
    return data


def write_log(directory, *bases, end, snapshots=(), **fields):
    """Segments of single-record batches of 71 bytes, the last one up to `end`."""
    for base, following in zip(bases, (*bases[1:], end), strict=True):
        write_segment(directory, base, [record(offset) for offset in range(base, following)], **fields)
    for offset in snapshots:
        write_snapshot(directory, offset)
    return directory


def path_of(directory, base, suffix=".log"):
    return directory / f"{base:020d}{suffix}"


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def rename_segment(directory, base, state, suffixes=(".log", ".index", ".timeindex")):
    for suffix in suffixes:
        path_of(directory, base, suffix).rename(path_of(directory, base, suffix + state))


def bases(directory):
    return [segment.base_offset for segment in list_segments(directory)]


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def temporary(directory):
    return [name for name in names(directory) if name.endswith((".cleaned", ".swap", ".deleted", ".tmp", ".part"))]


def sentences(log):
    return [str(repair) for repair in log.repairs]


def contents(directory):
    """Names and bytes of all files, without what the next start deletes."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith(".deleted")}


# --------------------------------------------------------------------------------------------- interrupted replacements
def test_rc_01_cleaned_files_go_and_the_log_is_unchanged(tmp_path):
    write_log(tmp_path, 0, 2, 4, end=5)
    before = contents(tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        path_of(tmp_path, 0, suffix + ".cleaned").write_bytes(b"half")
    log = load(tmp_path)
    assert {name: before[name] for name in before} == {name: contents(tmp_path)[name] for name in before}
    assert (log.log_end_offset, temporary(tmp_path)) == (5, [])


def test_rc_02_a_swap_beside_a_cleaned_file_of_the_same_base_goes(tmp_path):
    write_log(tmp_path, 0, 2, 4, end=5)
    path_of(tmp_path, 0, ".log.swap").write_bytes(record(0))
    path_of(tmp_path, 0, ".index.cleaned").write_bytes(b"")
    load(tmp_path)
    assert (bases(tmp_path), temporary(tmp_path)) == ([0, 2, 4], [])
    assert path_of(tmp_path, 0).stat().st_size == 142


def replacement(directory):
    """Segments 0 and 2 cleaned to one of offsets 0 and 3, all of it `.swap`; segment 4 active."""
    write_segment(directory, 0, [record(0), record(3)])
    rename_segment(directory, 0, ".swap")
    write_log(directory, 0, 2, 4, end=5, snapshots=(2, 4, 5))
    return directory


def test_rc_03_a_complete_swap_replaces_what_it_covers(tmp_path):
    log = load(replacement(tmp_path), clean=True)
    assert (bases(tmp_path), temporary(tmp_path), list_snapshots(tmp_path)) == ([0, 4], [], [4, 5])
    assert path_of(tmp_path, 0).read_bytes() == record(0) + record(3)
    assert [segment.next_offset for segment in log.segments] == [4, 5]


def test_rc_04_a_swap_is_completed_where_its_sources_were_half_deleted(tmp_path):
    replacement(tmp_path)
    path_of(tmp_path, 0).rename(path_of(tmp_path, 0, ".log.deleted"))
    load(tmp_path, clean=True)
    assert (bases(tmp_path), temporary(tmp_path)) == ([0, 4], [])
    assert path_of(tmp_path, 0).read_bytes() == record(0) + record(3)


def test_rc_05_index_swaps_of_a_finished_log_get_their_final_names(tmp_path):
    write_log(tmp_path, 0, 4, end=5)
    rename_segment(tmp_path, 0, ".swap", (".index", ".timeindex"))
    load(tmp_path, clean=True)
    assert (bases(tmp_path), temporary(tmp_path)) == ([0, 4], [])
    assert path_of(tmp_path, 0, ".index").exists()


@pytest.mark.parametrize("swapped", [(), (100,)])
def test_rc_06_a_split_that_was_not_complete_is_dropped(tmp_path, swapped):
    for base, batches in ((0, [record(0)]), (100, [record(100)])):
        write_segment(tmp_path, base, batches)
        rename_segment(tmp_path, base, ".swap" if base in swapped else ".cleaned")
    write_segment(tmp_path, 0, [record(0), record(100)])
    load(tmp_path)
    assert (bases(tmp_path), temporary(tmp_path)) == ([0], [])
    assert path_of(tmp_path, 0).stat().st_size == 142


@pytest.mark.parametrize("old_is_there", [True, False])
def test_rc_06_a_split_that_was_complete_is_finished(tmp_path, old_is_there):
    for base in (0, 100):
        write_segment(tmp_path, base, [record(base)])
        rename_segment(tmp_path, base, ".swap")
    if old_is_there:
        write_segment(tmp_path, 0, [record(0), record(100)])
    load(tmp_path)
    assert (bases(tmp_path), temporary(tmp_path)) == ([0, 100], [])
    assert [path_of(tmp_path, base).stat().st_size for base in (0, 100)] == [71, 71]


def test_rc_07_deleted_files_and_orphan_indexes_go(tmp_path):
    write_log(tmp_path, 0, end=3)
    path_of(tmp_path, 50, ".log.deleted").write_bytes(b"x")
    path_of(tmp_path, 77, ".index").write_bytes(b"12345678")
    log = load(tmp_path, clean=True)
    assert (temporary(tmp_path), path_of(tmp_path, 77, ".index").exists()) == ([], False)
    assert len(sentences(log)) == 3  # and the snapshot at the log end


@pytest.mark.parametrize("name", ["foo.log", "foo.index", "-1.timeindex", "5.log"])
def test_rc_07_a_segment_file_without_an_offset_keeps_the_log_from_loading(tmp_path, name):
    write_log(tmp_path, 0, end=3)
    (tmp_path / name).write_bytes(b"")
    before = contents(tmp_path)
    with pytest.raises(CorruptDataError, match=name):
        load(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        f"{0:020d}.log\n",
        f"{0:020d}.log.swap\n",
        f"{0:024d}.log",
        f"{2:024d}.log",
        f"{2:020d}.log.bak",
        "2.index",
    ],
)
def test_a_file_that_a_broker_passes_over_is_passed_over(tmp_path, name, clean):
    write_log(tmp_path, 0, 2, 4, end=5)
    expected = load(tmp_path, clean=clean)
    (tmp_path / name).write_bytes(b"stray")
    log = load(tmp_path, clean=clean)
    assert (log.segments, log.log_end_offset, log.repairs) == (expected.segments, 5, ())
    assert (tmp_path / name).read_bytes() == b"stray"


def test_rc_28_nothing_temporary_is_left(tmp_path):
    replacement(tmp_path)
    for name in ("leader-epoch-checkpoint.tmp", "00000000000000000004.index.tmp", "00000000000000000004.snapshot.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "00000000000000000004.log.run-1.part").write_bytes(b"half")
    load(tmp_path)
    assert temporary(tmp_path) == []


def test_files_that_are_none_of_the_logs_stay(tmp_path):
    write_log(tmp_path, 0, end=3)
    (tmp_path / "partition.metadata").write_bytes(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    (tmp_path / "notes.tmp").write_bytes(b"mine")
    (tmp_path / "subdirectory").mkdir()
    load(tmp_path)
    assert {"partition.metadata", "notes.tmp", "subdirectory"} <= set(names(tmp_path))


# -------------------------------------------------------------------------------------------------------------- indexes
def test_rc_08_a_missing_offset_index_is_rebuilt_after_a_clean_stop_too(tmp_path):
    write_log(tmp_path, 0, 50, end=60, index_interval_bytes=200)
    expected = contents(tmp_path)
    path_of(tmp_path, 0, ".index").unlink()
    log = load(tmp_path, clean=True, interval=200)
    assert {name: contents(tmp_path)[name] for name in expected} == expected
    assert log.segments[0].offset_index_entries == 16


def test_rc_08_damage_found_by_the_rebuild_is_reported_and_not_cut(tmp_path):
    write_log(tmp_path, 0, 50, end=60, index_interval_bytes=200)
    path_of(tmp_path, 0, ".index").unlink()
    flip(path_of(tmp_path, 0), 71 * 20 + 40)
    log = load(tmp_path, clean=True, interval=200)
    assert path_of(tmp_path, 0).stat().st_size == 50 * 71
    assert [str(damage) for damage in log.damage] == [
        "00000000000000000000.log is damaged at position 1420 (offset 20): the batch fails its CRC; "
        "29 good batches follow in this segment"
    ]
    entries = parse_offset_index(path_of(tmp_path, 0, ".index").read_bytes(), 0)
    assert entries[-1].offset < 20


def test_rc_09_garbage_in_an_index_is_not_noticed_after_a_clean_stop(tmp_path):
    write_log(tmp_path, 0, 50, end=60, index_interval_bytes=200)
    garbage = random.Random(1).randbytes(80)
    path_of(tmp_path, 0, ".index").write_bytes(garbage)
    log = load(tmp_path, clean=True, interval=200)
    assert path_of(tmp_path, 0, ".index").read_bytes() == garbage
    assert log.log_end_offset == 60


def test_garbage_in_the_last_index_does_not_move_the_log_end(tmp_path):
    write_log(tmp_path, 0, 50, end=90, index_interval_bytes=200)
    for garbage in (b"\0" * 16, b"\x7f" * 16, struct.pack(">ii", 5, 71), struct.pack(">ii", 30, 100)):
        path_of(tmp_path, 50, ".index").write_bytes(garbage)
        assert load(tmp_path, clean=True, interval=200).log_end_offset == 90
        assert path_of(tmp_path, 50, ".index").read_bytes() == garbage


def test_rc_10_indexes_above_the_recovery_point_are_rebuilt(tmp_path):
    write_log(tmp_path, 0, 50, end=90, index_interval_bytes=200)
    expected = contents(tmp_path)
    for base in (0, 50):
        for suffix in (".index", ".timeindex"):
            path_of(tmp_path, base, suffix).write_bytes(b"  ")
    load(tmp_path, interval=200)
    assert {name: contents(tmp_path)[name] for name in expected} == expected
    for segment in list_segments(tmp_path):
        assert_valid_indexes(segment)


def test_a_missing_time_index_is_created_empty(tmp_path):
    write_log(tmp_path, 0, 50, end=60)
    path_of(tmp_path, 0, ".timeindex").unlink()
    log = load(tmp_path, clean=True)
    assert path_of(tmp_path, 0, ".timeindex").read_bytes() == b""
    assert log.segments[0].largest_timestamp_ms == NOW_MS


def test_a_transaction_index_that_ends_below_its_base_is_rebuilt(tmp_path):
    write_segment(tmp_path, 10, [record(10)])
    path_of(tmp_path, 10, ".txnindex").write_bytes(encode_transaction_index([AbortedTransaction(1, 2, 9, 9)]))
    log = load(tmp_path, clean=True)
    assert path_of(tmp_path, 10, ".txnindex").read_bytes() == b""
    assert log.aborted == ()


def test_a_sparse_transaction_index_that_no_log_could_need_is_rebuilt_unread(tmp_path):
    write_segment(tmp_path, 0, [record(0)])
    path = path_of(tmp_path, 0, ".txnindex")
    path.touch()
    os.truncate(path, (1 << 31) - 1)
    assert load(tmp_path, clean=True).aborted == ()
    assert path.read_bytes() == b""


def test_preallocated_indexes_are_trimmed_to_their_entries(tmp_path):
    write_log(tmp_path, 0, end=50, index_interval_bytes=200)
    expected = contents(tmp_path)
    for suffix, size in ((".index", 1000), (".timeindex", 996)):
        path = path_of(tmp_path, 0, suffix)
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    log = load(tmp_path, interval=200)
    assert {name: contents(tmp_path)[name] for name in expected} == expected
    assert "00000000000000000000.index trimmed to 128 bytes: it has no entries after that size" in sentences(log)


def bytes_read():
    """Bytes that this process has read so far, whatever the call."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs the kernel's count of bytes read")
def test_the_unused_rest_of_preallocated_indexes_is_not_read(tmp_path):
    directories = [
        write_log(tmp_path / name / "t-0", 0, end=50, index_interval_bytes=200) for name in ("first", "second")
    ]
    for directory in directories:
        for suffix in (".index", ".timeindex"):
            with path_of(directory, 0, suffix).open("r+b") as file:
                file.truncate(12 << 20)
    load(directories[0], interval=200)
    before = bytes_read()
    log = load(directories[1], interval=200)
    assert bytes_read() - before < 1 << 18
    assert "00000000000000000000.index trimmed to 128 bytes: it has no entries after that size" in sentences(log)


def test_an_index_with_bytes_far_after_its_entries_is_said_to_be_rewritten(tmp_path):
    write_log(tmp_path, 0, end=50, index_interval_bytes=200)
    path = path_of(tmp_path, 0, ".index")
    expected = path.read_bytes()
    path.write_bytes(expected + bytes(3 << 20) + b"garbage!")
    log = load(tmp_path, interval=200)
    assert path.read_bytes() == expected
    assert "00000000000000000000.index rewritten: it did not match its log" in sentences(log)


def test_an_index_without_room_is_left_sparser_where_a_broker_would_not_load(tmp_path):
    write_log(tmp_path, 0, end=50)
    log = load(tmp_path, interval=0, index_bytes=40)
    assert (log.segments[0].offset_index_entries, log.segments[0].time_index_entries) == (5, 3)
    assert log.log_end_offset == 50


# ------------------------------------------------------------------------------------------------------------- recovery
def test_rc_11_garbage_after_the_active_log_and_index_goes(tmp_path):
    write_log(tmp_path, 0, 50, end=60, index_interval_bytes=200)
    chance = random.Random(11)
    for suffix in (".log", ".index"):
        with path_of(tmp_path, 50, suffix).open("ab") as file:
            file.write(chance.randbytes(500))
    log = load(tmp_path, recovery_point=50, interval=200)
    assert path_of(tmp_path, 50).stat().st_size == 10 * 71
    assert (log.log_end_offset, log.recovery_point) == (60, 50)
    assert_valid_indexes(list_segments(tmp_path)[1])


@pytest.mark.parametrize("recovery_point", [8, 3])
def test_rc_12_a_flip_below_the_recovery_points_segment_is_not_noticed(tmp_path, recovery_point):
    write_log(tmp_path, 0, 3, 6, end=8, snapshots=(3, 6, 8))
    flip(path_of(tmp_path, 0), 71 + 30)
    log = load(tmp_path, recovery_point=recovery_point)
    assert (log.log_end_offset, bases(tmp_path)) == (8, [0, 3, 6])
    assert path_of(tmp_path, 0).stat().st_size == 3 * 71


def test_rc_12_a_flip_above_the_recovery_point_ends_the_log(tmp_path):
    write_log(tmp_path, 0, 3, 6, end=8, snapshots=(3, 6, 8))
    flip(path_of(tmp_path, 0), 71 + 30)
    later = path_of(tmp_path, 3).read_bytes()
    log = load(tmp_path, recovery_point=0)
    assert (log.log_end_offset, bases(tmp_path), list_snapshots(tmp_path)) == (1, [0], [1])
    assert path_of(tmp_path, 0).stat().st_size == 71
    assert path_of(tmp_path, 3, ".log.deleted").read_bytes() == later
    assert (
        "00000000000000000000.log cut from 213 to 71 bytes: the batch fails its CRC; the log ends at offset 1, and 1 "
        "good batches after it, up to offset 2, were cut off too"
    ) in sentences(log)


def test_rc_13_a_flip_after_a_clean_stop_changes_nothing_and_is_told_when_asked(tmp_path):
    write_log(tmp_path, 0, 3, 6, end=8, snapshots=(3, 6, 8))
    flip(path_of(tmp_path, 0), 71 + 30)
    before = contents(tmp_path)
    unnoticed = load(tmp_path, clean=True)
    noticed = load(tmp_path, clean=True, verify=True)
    assert (unnoticed.damage, unnoticed.log_end_offset, noticed.log_end_offset) == ((), 8, 8)
    assert [(damage.name, damage.position, damage.offset) for damage in noticed.damage] == [
        ("00000000000000000000.log", 71, 1)
    ]
    assert contents(tmp_path) == before


def test_rc_14_a_new_active_segment_without_an_index_gets_one(tmp_path):
    write_log(tmp_path, 0, end=5)
    path_of(tmp_path, 5).write_bytes(b"")
    log = load(tmp_path, recovery_point=2)
    assert path_of(tmp_path, 5, ".index").read_bytes() == path_of(tmp_path, 5, ".timeindex").read_bytes() == b""
    assert (log.log_end_offset, log.recovery_point) == (5, 2)


@pytest.mark.parametrize("lost_bytes", [1, 5, 7, 8, 10])
def test_a_batch_whose_offset_did_not_reach_the_disk_ends_the_log(tmp_path, lost_bytes):
    """Kafka does not load such a log, or uses the offset as it is, because no checksum covers it."""
    base = (9 << 56) | 700
    size = 1024 - lost_bytes
    batches = [batch_bytes(base, value=b"v" * (size - 71)), batch_bytes(base + 1), batch_bytes(base + 2)]
    assert len(batches[0]) == size
    write_segment(tmp_path, base, batches)
    data = bytearray(path_of(tmp_path, base).read_bytes())
    data[size:1024] = bytes(lost_bytes)
    path_of(tmp_path, base).write_bytes(data)
    log = load(tmp_path, recovery_point=base, log_start=base)
    assert log.log_end_offset == base + 1
    assert path_of(tmp_path, base).read_bytes() == batches[0]


def test_a_segment_without_an_index_waits_for_a_torn_one_before_it(tmp_path):
    """Kafka replays the torn one to know the producers before the other, and does not load the log."""
    write_log(tmp_path, 0, 3, 6, end=8)
    data = path_of(tmp_path, 3).read_bytes()
    path_of(tmp_path, 3).write_bytes(data[:71].ljust(len(data), b"\0"))
    path_of(tmp_path, 6, ".index").unlink()
    log = load(tmp_path, recovery_point=1)
    assert (log.log_end_offset, bases(tmp_path)) == (4, [0, 3])
    assert path_of(tmp_path, 3).read_bytes() == data[:71]


@pytest.mark.parametrize(
    ("clean", "checkpoint", "expected"), [(False, 3, 3), (False, 50, 8), (True, 3, 8), (True, 0, 8)]
)
def test_rc_15_the_recovery_point_moves_only_after_a_clean_stop(tmp_path, clean, checkpoint, expected):
    write_log(tmp_path, 0, 3, 6, end=8)
    assert load(tmp_path, clean=clean, recovery_point=checkpoint).recovery_point == expected


@pytest.mark.parametrize("bad", range(6))
def test_rc_16_batches_before_a_corrupt_tail_remain(tmp_path, bad):
    write_log(tmp_path, 0, end=6)
    data = path_of(tmp_path, 0).read_bytes()
    path_of(tmp_path, 0).write_bytes(data[: 71 * bad] + random.Random(bad).randbytes(71 * (6 - bad)))
    log = load(tmp_path)
    assert path_of(tmp_path, 0).read_bytes() == data[: 71 * bad]
    assert log.log_end_offset == bad


def test_rc_17_the_unused_rest_of_a_preallocated_file_goes(tmp_path):
    log_file = write_segment(tmp_path, 0, [batch_bytes(0, value=b"v"), batch_bytes(1, value=b"v")])
    log_file.write_bytes(log_file.read_bytes().ljust(1000, b"\0"))
    log = load(tmp_path)
    assert (log_file.stat().st_size, log.log_end_offset) == (140, 2)


@pytest.mark.parametrize(("earlier", "expected"), [(None, (2, 102, 106, 100)), (75, (2, 75, 106, 100))])
def test_rc_18_the_transaction_index_is_rebuilt(tmp_path, earlier, expected):
    def transaction(offset, producer_id):
        return batch_bytes(offset, "ab", producer_id=producer_id, transactional=True)

    batches = [
        transaction(100, 1),
        transaction(102, 2),
        batch_bytes(104, "ab"),
        marker_bytes(106, ABORT, producer_id=2),
        marker_bytes(107, COMMIT, producer_id=1),
    ]
    write_segment(tmp_path, 100, batches)
    if earlier is not None:
        write_segment(tmp_path, 50)
        write_snapshot(tmp_path, 100, [ProducerEntry(2, epoch=0, timestamp=NOW_MS, transaction_first_offset=earlier)])
    log = load(tmp_path, recovery_point=100)
    (entry,) = parse_transaction_index(path_of(tmp_path, 100, ".txnindex").read_bytes())
    assert (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset) == expected
    assert log.log_end_offset == 108
    assert [(a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in log.aborted] == [expected]


def test_an_offset_that_goes_back_ends_the_log_there_and_not_at_the_segments_base(tmp_path):
    write_segment(tmp_path, 0, [record(0), record(5), record(6)])
    with path_of(tmp_path, 0).open("ab") as file:
        file.write(record(3) + record(7))
    log = load(tmp_path, interval=0)
    assert (log.log_end_offset, path_of(tmp_path, 0).stat().st_size) == (7, 3 * 71)


def test_a_batch_of_an_unknown_magic_with_a_right_checksum_is_not_cut(tmp_path):
    write_log(tmp_path, 0, end=3)
    data = bytearray(path_of(tmp_path, 0).read_bytes())
    data[71 + 16] = 3
    path_of(tmp_path, 0).write_bytes(data)
    with pytest.raises(UnsupportedDataError) as caught:
        load(tmp_path)
    assert caught.value.partition == "t-0"
    assert path_of(tmp_path, 0).read_bytes() == data


def test_an_io_error_fails_the_partition_and_cuts_nothing(tmp_path, monkeypatch):
    write_log(tmp_path, 0, 3, end=6)
    before = contents(tmp_path)

    def fail(*_arguments):
        raise OSError(errno.EIO, "Input/output error", str(path_of(tmp_path, 3)))

    monkeypatch.setattr("sediment.segment_io.segment.recovery_scan.read_into", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load(tmp_path)
    assert contents(tmp_path) == before


def test_a_torn_tail_after_a_clean_stop_is_cut_where_its_batches_end(tmp_path):
    write_log(tmp_path, 0, 3, end=6, snapshots=(3, 6), index_interval_bytes=0)
    data = path_of(tmp_path, 3).read_bytes()
    path_of(tmp_path, 3).write_bytes(data[:-1])
    log = load(tmp_path, clean=True, interval=0)
    assert (log.log_end_offset, log.recovery_point) == (5, 5)
    assert path_of(tmp_path, 3).read_bytes() == data[:-71]
    assert list_snapshots(tmp_path) == [3, 5]
    assert_valid_indexes(list_segments(tmp_path)[1])


def test_a_file_that_has_another_name_too_keeps_its_bytes_there_when_a_torn_tail_is_cut(tmp_path):
    log, before = tmp_path / "log", tmp_path / "before"
    log.mkdir()
    before.mkdir()
    write_log(log, 0, 3, end=6, snapshots=(3, 6), index_interval_bytes=0)
    torn = path_of(log, 3).read_bytes()[:-1]
    path_of(log, 3).write_bytes(torn)
    path_of(log, 3).chmod(0o640)
    path_of(before, 3).hardlink_to(path_of(log, 3))
    assert load(log, clean=True, interval=0).log_end_offset == 5
    assert path_of(log, 3).read_bytes() == torn[:-70]
    assert path_of(before, 3).read_bytes() == torn
    assert path_of(log, 3).stat().st_mode & 0o777 == 0o640
    assert not list(log.glob("*.part"))


def test_a_torn_tail_that_hides_good_batches_is_not_cut_after_a_clean_stop(tmp_path):
    write_log(tmp_path, 0, 3, end=9)
    data = bytearray(path_of(tmp_path, 3).read_bytes())
    data[71 + 8 : 71 + 12] = struct.pack(">i", 5)
    path_of(tmp_path, 3).write_bytes(data)
    log = load(tmp_path, clean=True)
    assert path_of(tmp_path, 3).read_bytes() == data
    assert [(damage.name, damage.offset) for damage in log.damage] == [("00000000000000000003.log", 4)]
    assert "4 good batches follow" in log.damage[0].what


def test_a_tail_that_is_no_batch_goes_from_a_trusted_segment_if_the_next_goes_on_after_it(tmp_path):
    write_log(tmp_path, 0, 3, end=6, snapshots=(3, 6))
    before = contents(tmp_path)
    with path_of(tmp_path, 0).open("ab") as file:
        file.write(b"\0" * 100)
    log = load(tmp_path, clean=True, verify=True)
    assert (contents(tmp_path), log.damage) == (before, ())
    path_of(tmp_path, 0).write_bytes(b"".join(map(record, (0, 1))) + b"\0" * 100)
    log = load(tmp_path, clean=True, verify=True)
    assert [(damage.name, damage.offset) for damage in log.damage] == [("00000000000000000000.log", 2)]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("position", [8 * 71 + 57, 9 * 71 + 57, 9 * 71 + 65])
def test_damage_that_stays_in_the_last_segment_does_not_free_its_offsets(tmp_path, position, has_index):
    write_log(tmp_path, 0, end=10, snapshots=(10,))
    flip(path_of(tmp_path, 0), position, bit=6)
    if not has_index:
        path_of(tmp_path, 0, ".index").unlink()
    log = load(tmp_path, clean=True, verify=True)
    assert (log.log_end_offset, list_snapshots(tmp_path)) == (10, [10])
    assert [damage.offset for damage in log.damage] == [position // 71]


@pytest.mark.parametrize("log_start_offset", [0, 105])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_damaged_base_offset_of_the_last_batch_does_not_free_the_offsets_before_it(
    tmp_path, is_kept, log_start_offset
):
    write_log(tmp_path, 0, 100, end=110)
    log = path_of(tmp_path, 100)
    content = bytearray(log.read_bytes())
    content[9 * 71 : 9 * 71 + 8] = bytes(8)
    content[-1] ^= 0xFF
    log.write_bytes(content)
    if not is_kept:
        path_of(tmp_path, 100, ".index").unlink()
    loaded = load(tmp_path, clean=True, log_start=log_start_offset)
    assert loaded.log_end_offset >= 109
    assert log.read_bytes() == content


def test_a_damaged_batch_before_a_tail_that_is_no_batch_keeps_no_log_from_loading(tmp_path):
    write_log(tmp_path, 0, end=3, snapshots=(9,))
    flip(path_of(tmp_path, 0), 71 + 65)
    with path_of(tmp_path, 0).open("ab") as file:
        file.write(b"\0" * 100)
    log = load(tmp_path, clean=True)
    assert (log.log_end_offset, [damage.offset for damage in log.damage]) == (3, [1])


def test_producers_are_known_after_a_torn_tail_of_an_unknown_magic(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, producer_id=1)])
    torn = bytearray(record(1))
    torn[16] = 0xD5
    with path_of(tmp_path, 0).open("ab") as file:
        file.write(torn[:-1])
    write_segment(tmp_path, 1)
    assert sorted(load(tmp_path, recovery_point=1).producers.entries) == [1]


# ----------------------------------------------------------------------------------------------- leader epochs and ends
def test_rc_19_leader_epochs_are_rebuilt_from_the_batches(tmp_path):
    epochs = {104: 0, 106: 1, 108: 1, 110: 2}
    write_segment(tmp_path, 104, [record(offset, leader_epoch=epoch) for offset, epoch in epochs.items()])
    log = load(tmp_path)
    expected = (EpochEntry(0, 104), EpochEntry(1, 106), EpochEntry(2, 110))
    assert log.leader_epochs == read_leader_epochs(Fs(), tmp_path / "leader-epoch-checkpoint") == expected


def write_epochs(directory, *entries):
    content = format_leader_epochs([EpochEntry(*entry) for entry in entries])
    (directory / "leader-epoch-checkpoint").write_bytes(content)


def test_rc_20_a_leader_epoch_after_the_log_end_goes(tmp_path):
    write_log(tmp_path, 0, end=6)
    write_epochs(tmp_path, (0, 0), (7, 9))
    load(tmp_path)
    assert read_leader_epochs(Fs(), tmp_path / "leader-epoch-checkpoint") == (EpochEntry(0, 0),)


@pytest.mark.parametrize(("clean", "snapshots"), [(True, [500]), (False, [])])
def test_rc_21_an_empty_directory_begins_at_its_log_start(tmp_path, clean, snapshots):
    log = load(tmp_path, log_start=500, clean=clean)
    assert (log.log_start_offset, log.log_end_offset, bases(tmp_path)) == (500, 500, [500])
    assert {path.stat().st_size for path in tmp_path.glob("*[gx]")} == {0}
    assert list_snapshots(tmp_path) == snapshots


def test_rc_22_a_log_start_inside_the_log_moves_the_first_leader_epoch(tmp_path):
    write_log(tmp_path, 0, 3, 6, end=8)
    write_epochs(tmp_path, (0, 0))
    log = load(tmp_path, log_start=4)
    assert (log.log_start_offset, log.high_watermark, log.recovery_point) == (4, 4, 4)
    assert log.leader_epochs == (EpochEntry(0, 4),)
    assert bases(tmp_path) == [0, 3, 6]


def test_a_log_that_ends_below_its_start_begins_anew(tmp_path):
    write_log(tmp_path, 0, 3, end=6, snapshots=(3, 6))
    write_epochs(tmp_path, (0, 0))
    log = load(tmp_path, log_start=10)
    assert (log.log_start_offset, log.log_end_offset, bases(tmp_path), log.leader_epochs) == (10, 10, [10], ())
    assert path_of(tmp_path, 3, ".log.deleted").exists()
    assert list_snapshots(tmp_path) == []


@pytest.mark.parametrize(("checkpoint", "expected"), [(None, 3), (5, 5), (1, 3), (99, 8)])
def test_the_high_watermark_is_the_checkpoint_within_the_log(tmp_path, checkpoint, expected):
    write_log(tmp_path, 3, 6, end=8)
    assert load(tmp_path, high_watermark=checkpoint).high_watermark == expected


def test_the_last_stable_offset_is_never_below_the_log_start(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, "abcd", producer_id=1, transactional=True)])
    log = load(tmp_path, log_start=2)
    assert (log.first_unstable_offset, log.last_stable_offset) == (2, 2)


def test_rc_23_a_directory_being_deleted_loads_without_recovery(tmp_path):
    log = load(tmp_path, state=DirectoryState.DELETE)
    assert (bases(tmp_path), log.log_end_offset, log.recovery_point) == ([0], 0, 0)
    flip_me = write_log(tmp_path / "t-0.00-delete", 0, 3, end=6)
    flip(path_of(flip_me, 0), 40)
    log = load(flip_me, state=DirectoryState.DELETE)
    assert (bases(flip_me), log.log_end_offset) == ([0, 3], 0)


# --------------------------------------------------------------------------------------------------------------- splits
def test_rc_24_a_segment_whose_offsets_do_not_fit_is_split(tmp_path):
    batches = [batch_bytes(offset) for offset in (0, 7, 2_147_483_650, 2_147_483_651, 4_294_967_400)]
    path_of(tmp_path, 0).write_bytes(b"".join(batches))
    path_of(tmp_path, 0, ".index").write_bytes(b"")
    log = load(tmp_path)
    assert [segment.base_offset for segment in log.segments] == [0, 2_147_483_650, 4_294_967_400]
    assert b"".join(path_of(tmp_path, base).read_bytes() for base in bases(tmp_path)) == b"".join(batches)
    assert (log.log_end_offset, temporary(tmp_path)) == (4_294_967_401, [])
    for segment in list_segments(tmp_path):
        assert_valid_indexes(segment)


def test_a_torn_tail_of_a_split_segment_goes_and_its_transactions_stay(tmp_path):
    far = 2_147_483_650
    batches = [
        batch_bytes(0, producer_id=1, transactional=True),
        marker_bytes(1, ABORT, producer_id=1),
        batch_bytes(far, producer_id=1, sequence=1, transactional=True),
        marker_bytes(far + 1, ABORT, producer_id=1),
    ]
    path_of(tmp_path, 0).write_bytes(b"".join(batches) + batches[0][:-2])
    log = load(tmp_path)
    assert [(entry.first_offset, entry.last_offset) for entry in log.aborted] == [(0, 1), (far, far + 1)]
    assert path_of(tmp_path, far).read_bytes() == b"".join(batches[2:])


def test_a_flipped_offset_is_no_reason_to_split(tmp_path):
    write_log(tmp_path, 0, 3, end=9)
    flip(path_of(tmp_path, 3), 71 + 2)
    before = contents(tmp_path)
    with pytest.raises(CorruptBatchError, match="far above the offsets around it"):
        load(tmp_path, recovery_point=3)
    assert {name: contents(tmp_path)[name] for name in before} == before


def test_messages_of_magic_1_are_not_split(tmp_path):
    far = Record(1 << 32, 1, b"k", b"v")
    write_segment(tmp_path, 0)
    path_of(tmp_path, 0).write_bytes(encode_legacy([Record(0, 1, b"k", b"v"), far], magic=1))
    with pytest.raises(UnsupportedDataError, match="v0 or v1"):
        load(tmp_path)


def test_a_segment_with_an_offset_past_the_next_segment_is_not_split(tmp_path):
    write_log(tmp_path, 0, 3, end=6)
    with path_of(tmp_path, 0).open("ab") as file:
        file.write(batch_bytes(1 << 40))
    with pytest.raises(CorruptBatchError, match="past the next segment's base offset 3"):
        load(tmp_path)
    assert bases(tmp_path) == [0, 3]


# ------------------------------------------------------------------------------------------------------------ snapshots
@pytest.mark.parametrize(
    ("clean", "recovery_point", "expected"), [(True, 0, [6, 9, 11]), (False, 11, [6, 9, 11]), (False, 0, [3, 6, 9, 11])]
)
def test_rc_25_snapshots_are_taken_at_the_last_bases_and_at_the_end(tmp_path, clean, recovery_point, expected):
    write_log(tmp_path, 0, 3, 6, 9, end=11)
    load(tmp_path, clean=clean, recovery_point=recovery_point)
    assert list_snapshots(tmp_path) == expected


def test_rc_26_a_snapshot_inside_the_log_goes(tmp_path):
    write_log(tmp_path, 0, 1, 2, end=4, snapshots=(1, 2, 3, 4))
    load(tmp_path, clean=True)
    assert list_snapshots(tmp_path) == [1, 2, 4]


@pytest.mark.parametrize(("clean", "expected"), [(True, [4, 6, 8]), (False, [2, 4, 6, 8])])
def test_rc_27_messages_of_magic_1_get_snapshots_by_the_same_rules(tmp_path, clean, expected):
    for base in (0, 2, 4, 6):
        write_segment(tmp_path, base, [encode_legacy([Record(base + n, 1, b"k", b"vv")], magic=1) for n in range(2)])
    log = load(tmp_path, clean=clean)
    assert (list_snapshots(tmp_path), log.log_end_offset) == (expected, 8)


def test_ps_11_a_snapshot_that_is_there_is_not_written_again(tmp_path):
    write_log(tmp_path, 0, 3, end=6)
    load(tmp_path)
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    log = load(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stamps
    assert log.repairs == ()


def test_ps_12_snapshots_out_of_the_logs_range_go(tmp_path):
    write_log(tmp_path, 0, 1, 2, 3, 4, end=5, snapshots=(1, 2, 3, 4, 5))
    load(tmp_path, clean=True, log_start=2)
    assert list_snapshots(tmp_path) == [3, 4, 5]


@pytest.mark.parametrize(("age_ms", "expected"), [(DAY_MS, ()), (DAY_MS - 1, (1,))])
def test_ps_14_producers_that_expired_are_not_loaded(tmp_path, age_ms, expected):
    write_segment(tmp_path, 0, [batch_bytes(0, producer_id=1)])
    write_snapshot(tmp_path, 1, [ProducerEntry(1, epoch=0, last_sequence=0, last_offset=0, timestamp=NOW_MS)])
    log = load(tmp_path, clean=True, now_ms=NOW_MS + age_ms)
    assert tuple(log.producers.entries) == expected


def test_ps_14_a_producer_with_an_open_transaction_never_expires(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, producer_id=1, transactional=True)])
    load(tmp_path)
    log = load(tmp_path, clean=True, now_ms=NOW_MS + 9 * DAY_MS)
    assert (tuple(log.producers.entries), log.first_unstable_offset) == ((1,), 0)


def test_ps_22_a_corrupt_snapshot_goes_and_an_older_one_is_replayed_from(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, producer_id=1)])
    write_segment(tmp_path, 1, [batch_bytes(1, producer_id=2)])
    load(tmp_path)
    good = path_of(tmp_path, 2, ".snapshot").read_bytes()
    path_of(tmp_path, 2, ".snapshot").write_bytes(good[:-1])
    log = load(tmp_path, clean=True)
    assert sorted(log.producers.entries) == [1, 2]
    assert path_of(tmp_path, 2, ".snapshot").read_bytes() == good


@pytest.mark.parametrize("seed", range(10))
def test_producers_at_the_log_end_are_those_of_the_twin(tmp_path, seed):
    write_random_log(tmp_path / "t-0", seed)
    now_ms = START_MS + 60_000
    expected = load_producers(tmp_path / "t-0", now_ms=now_ms).entries
    for path in random.Random(seed).sample(sorted((tmp_path / "t-0").glob("*.snapshot")), k=2):
        path.unlink()
    log = load(tmp_path / "t-0", now_ms=now_ms)
    assert {key: entry.last_sequence for key, entry in log.producers.entries.items()} == {
        key: entry.last_sequence for key, entry in expected.items()
    }
    assert parse_snapshot(path_of(tmp_path / "t-0", log.log_end_offset, ".snapshot").read_bytes()) == expected


# ------------------------------------------------------------------------------------------------------ Kafka's results
@dataclass(frozen=True)
class Loaded:
    case: object
    log: object


def load_case(name, tmp_path, fs=None):
    case = load_loading_case(name, tmp_path)
    log = load(
        case.before,
        clean=case.clean,
        recovery_point=case.recovery_point or 0,
        log_start=case.log_start_offset,
        now_ms=case.now_ms,
        verify=case.clean,
        fs=fs,
    )
    return Loaded(case, log)


def assert_kafkas_state(log, kafka, mtime_of=lambda base: None):
    assert log.log_start_offset == kafka.log_start_offset
    assert log.log_end_offset == kafka.log_end_offset
    assert log.last_stable_offset == kafka.last_stable_offset
    assert log.first_unstable_offset == kafka.first_unstable_offset
    assert log.recovery_point == kafka.recovery_point
    for ours, theirs in zip(log.segments, kafka.segments, strict=True):
        timestamp = theirs.largest_timestamp if theirs.time_index_entries else mtime_of(theirs.base_offset)
        assert (
            ours.base_offset,
            ours.log_bytes,
            ours.offset_index_entries,
            ours.time_index_entries,
            ours.next_offset,
            ours.largest_timestamp_ms,
        ) == (
            theirs.base_offset,
            theirs.log_bytes,
            theirs.offset_index_entries,
            theirs.time_index_entries,
            theirs.next_offset,
            timestamp,
        )
    assert tuple((key, entry.last_sequence) for key, entry in sorted(log.producers.entries.items())) == kafka.producers
    assert [(a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in log.aborted] == list(
        kafka.aborted
    )


def mtime_ms(directory):
    return lambda base: path_of(directory, base).stat().st_mtime_ns // 1_000_000


@pytest.mark.parametrize("name", [name for name in loading_cases() if name not in HAZARDS])
def test_a_damaged_log_is_loaded_as_kafka_loads_it(tmp_path, name):
    loaded = load_case(name, tmp_path)
    case = loaded.case
    assert_kafkas_state(loaded.log, case.kafka, mtime_ms(case.before))
    assert_same_log(case.before, case.after, compressed=False)
    assert_same_snapshots(case.before, case.after)
    assert names(case.before) == names(case.after)
    assert loaded.log.damage == ()


def test_hazard_torn_tail_clean_keeps_the_offsets_that_are_on_disk(tmp_path):
    loaded, unclean = load_case("torn-tail-clean", tmp_path), load_case("torn-tail-unclean", tmp_path)
    assert loaded.log.log_end_offset == 1588 > loaded.case.kafka.log_end_offset
    assert loaded.log.recovery_point == 1588
    assert contents(loaded.case.before) == contents(unclean.case.before)


def test_hazard_flipped_middle_clean_changes_nothing_and_is_reported(tmp_path):
    loaded = load_case("flipped-middle-clean", tmp_path)
    assert_kafkas_state(loaded.log, loaded.case.kafka)
    assert contents(loaded.case.before) == contents(loaded.case.after)
    assert [(damage.name, damage.offset) for damage in loaded.log.damage] == [("00000000000000000713.log", 892)]


@pytest.mark.parametrize("name", loading_cases())
def test_loading_again_changes_nothing(tmp_path, name):
    loaded = load_case(name, tmp_path)
    case = loaded.case
    before = contents(case.before)
    again = load(
        case.before,
        clean=True,
        recovery_point=loaded.log.log_end_offset,
        log_start=case.log_start_offset,
        now_ms=case.now_ms,
        verify=True,
    )
    assert contents(case.before) == before
    assert (again.log_end_offset, again.segments) == (loaded.log.log_end_offset, loaded.log.segments)
    assert {repair.name.rpartition(".")[2] for repair in again.repairs} <= {"deleted"}


# -------------------------------------------------------------------------------------------------------------- crashes
class RecoveryFs(FaultyFs):
    def truncate(self, path, size_bytes):
        self._run(f"cut {path.name}", path.parent, lambda: Fs.truncate(self, path, size_bytes), lambda disk: None)


def crash_cases(tmp_path, name):
    """(image of the directory before, how to load it, expected content)."""
    case = load_loading_case(name, tmp_path)
    image = read_image(case.before)
    directory = tmp_path / "t-0"

    def run(fs):
        return load(
            directory,
            clean=case.clean,
            recovery_point=case.recovery_point or 0,
            log_start=case.log_start_offset,
            now_ms=case.now_ms,
            verify=case.clean,
            fs=fs,
        )

    return image, directory, run


def whole(directory, run, image):
    write_image(directory, image)
    fs = RecoveryFs()
    run(fs)
    return contents(directory), fs.operations


@pytest.mark.parametrize("name", [name for name in loading_cases() if name != "missing-snapshots-clean"])
def test_a_start_that_was_killed_anywhere_is_finished_by_the_next(tmp_path, name):
    image, directory, run = crash_cases(tmp_path, name)
    expected, operations = whole(directory, run, image)
    for number in range(1, operations + 1):
        write_image(directory, image)
        with pytest.raises(Killed):
            run(RecoveryFs(Kill(number)))
        run(RecoveryFs())
        assert contents(directory) == expected, f"killed after operation {number}"


def test_a_start_killed_among_its_first_snapshots_leaves_the_log_as_it_is(tmp_path):
    """Check that the next start goes on from the empty snapshots, as a broker does; they do not count as an upgrade."""
    image, directory, run = crash_cases(tmp_path, "missing-snapshots-clean")
    expected, operations = whole(directory, run, image)
    for number in range(1, operations + 1):
        write_image(directory, image)
        with pytest.raises(Killed):
            run(RecoveryFs(Kill(number)))
        log = run(RecoveryFs())
        assert (log.log_end_offset, log.damage) == (1613, ())
        assert sorted(contents(directory)) == sorted(expected)


@pytest.mark.parametrize(
    "name", ["flipped-middle-unclean", "torn-tail-unclean", "leftover-swap", "missing-index-clean"]
)
def test_a_start_that_lost_its_power_anywhere_is_finished_by_the_next(tmp_path, name):
    image, directory, run = crash_cases(tmp_path, name)
    expected, operations = whole(directory, run, image)
    for number in range(1, operations + 1):
        write_image(directory, image)
        disk = Disk(directory)
        with pytest.raises(Killed):
            run(RecoveryFs(Kill(number), disk))
        for survivor in disk.after_power_loss():
            write_image(directory, survivor)
            run(RecoveryFs())
            assert contents(directory) == expected, f"power lost after operation {number}"


def test_a_split_that_was_killed_anywhere_is_finished_by_the_next(tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    batches = [batch_bytes(offset) for offset in (0, 7, 2_147_483_650, 2_147_483_651)]
    path_of(directory, 0).write_bytes(b"".join(batches))
    image = read_image(directory)

    def run(fs):
        return load(directory, fs=fs)

    expected, operations = whole(directory, run, image)
    for number in range(1, operations + 1):
        write_image(directory, image)
        with pytest.raises(Killed):
            run(RecoveryFs(Kill(number)))
        run(RecoveryFs())
        assert contents(directory) == expected, f"killed after operation {number}"


@pytest.mark.parametrize("seed", range(8))
def test_random_logs_survive_loading_byte_for_byte(tmp_path, seed):
    source = tmp_path / "source"
    write_random_log(source, seed, LogShape(interval_bytes=4096))
    copy = Path(shutil.copytree(source, tmp_path / "t-0"))
    log = load(copy, now_ms=START_MS + 60_000)
    assert log.damage == ()
    for segment in list_segments(source):
        assert path_of(copy, segment.base_offset).read_bytes() == segment.read(".log")
        assert_valid_indexes(next(s for s in list_segments(copy) if s.base_offset == segment.base_offset))


@pytest.mark.parametrize("most_batches_ahead", [1 << 18, 7])
@pytest.mark.parametrize("seed", range(8))
def test_several_threads_recover_a_log_as_one_does(tmp_path, seed, most_batches_ahead, monkeypatch):
    monkeypatch.setattr(log_recovery, "_MOST_BATCHES_AHEAD", most_batches_ahead)
    chance = random.Random(seed)
    directory = tmp_path / "t-0"
    shape = LogShape(batches=120, transactional=chance.choice([0.0, 0.7]), idempotent=0.3)
    end_offset = write_random_log(directory, seed, shape)
    paths = sorted(directory.glob("*.log"))
    assert len(paths) > 3
    if seed % 2:
        victim = chance.choice(paths[:-1])
        content = bytearray(victim.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        victim.write_bytes(content)
    for path in directory.glob("*.snapshot"):
        path.unlink()
    recovery_point = chance.choice([0, 0, chance.randrange(end_offset)])
    answers = []
    for threads in (1, 3):
        copy = tmp_path / str(threads) / "t-0"
        shutil.copytree(directory, copy)
        try:
            loaded = load(copy, recovery_point=recovery_point, threads=threads)
        except (CorruptDataError, UnsupportedDataError) as error:
            answers.append((type(error), error.what, error.partition))
        else:
            files = {name: content for name, (content, _) in read_image(copy).items()}
            repairs = [str(repair) for repair in loaded.repairs]
            answers.append(
                (loaded.log_end_offset, loaded.producers, loaded.aborted, loaded.leader_epochs, repairs, files)
            )
    assert answers[0] == answers[1]


class ShrinkingFs(Fs):
    """Cuts an index right before it is read, as another process might."""

    def __init__(self, suffix):
        self.suffix = suffix

    def read_range(self, path, position, count):
        if path.suffix == self.suffix:
            path.write_bytes(path.read_bytes()[:5])
        return super().read_range(path, position, count)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_becomes_shorter_while_its_log_is_loaded_is_said(tmp_path, suffix):
    directory = tmp_path / "t-0"
    write_random_log(directory, 3, LogShape(transactional=0, batches=120))
    with pytest.raises(SourceChangedError, match="became shorter"):
        load(directory, clean=True, fs=ShrinkingFs(suffix))
