"""Views of partitions: clean, torn, corrupt, incomplete, and as Kafka loaded them."""

import os
import pickle
import struct

import pytest

from sediment.segment_io.errors import CorruptBatchError, CorruptCheckpointError, SourceChangedError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, PartitionCheckpoints, read_checkpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from tests.corpus import load_loading_case, loading_cases
from tests.logs import START_MS, write_random_log
from tests.segments import ABORT, COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.twin import indexes as twin_indexes
from tests.twin.batches import Record
from tests.twin.legacy import encode_legacy
from tests.twin.segments import list_segments
from tests.twin.snapshots import ProducerEntry, load_producers

DAY_MS = 86_400_000
PARTITION = TopicPartition("t", 0)
CLEAN = PartitionCheckpoints(recovery_point=0, clean_shutdown=True)


def view_of(directory, checkpoints=CLEAN, *, now_ms=NOW_MS, first_batch_timestamps=False):
    return open_view(
        list_log(PARTITION, directory, Fs()),
        checkpoints,
        Fs(),
        now_ms=now_ms,
        producer_id_expiration_ms=DAY_MS,
        first_batch_timestamps=first_batch_timestamps,
    )


def producer_ids(view):
    return sorted(entry.producer_id for entry in view.producers)


def index_file(directory, base_offset, suffix=".index"):
    return directory / f"{base_offset:020d}{suffix}"


def many(count, first=0, timestamp=NOW_MS, **fields):
    """Single-record batches, each with a timestamp one higher than the one before."""
    return [batch_bytes(first + n, timestamp=timestamp + n, **fields) for n in range(count)]


# ---------------------------------------------------------------------------------------------------------- log end
def test_the_log_ends_after_the_active_segments_last_batch(tmp_path):
    write_segment(tmp_path, 0, many(3))
    write_segment(tmp_path, 3, [batch_bytes(3, "abc"), batch_bytes(6, "de")])
    assert view_of(tmp_path).log_end_offset == 8


def test_an_empty_active_segment_ends_the_log_at_its_base(tmp_path):
    write_segment(tmp_path, 0, many(3))
    write_segment(tmp_path, 7)
    assert view_of(tmp_path).log_end_offset == 7


@pytest.mark.parametrize("lost", [1, 30, 60])
def test_a_torn_tail_is_no_error(tmp_path, lost):
    log = write_segment(tmp_path, 0, many(5), index_interval_bytes=100)
    os.truncate(log, log.stat().st_size - lost)
    assert view_of(tmp_path).log_end_offset == 4


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\xff" * 40, b"garbage that looks like no batch at all" * 3])
def test_a_preallocated_or_garbage_tail_is_no_error(tmp_path, tail):
    log = write_segment(tmp_path, 0, many(40), index_interval_bytes=100, preallocated_index_bytes=4000)
    log.write_bytes(log.read_bytes() + tail)
    view = view_of(tmp_path)
    assert (view.log_end_offset, view.segment_times[0].largest_timestamp_ms) == (40, NOW_MS + 39)


def test_a_file_of_zeros_is_an_empty_segment(tmp_path):
    log = write_segment(tmp_path, 5, preallocated_index_bytes=1000)
    log.write_bytes(b"\0" * 1000)
    assert view_of(tmp_path).log_end_offset == 5


@pytest.mark.parametrize(
    "entries",
    [
        struct.pack(">ii", 20, 7),
        struct.pack(">ii", 20, 10**9),
        struct.pack(">ii", 20, -5),
        struct.pack(">ii", 3, 70),
        struct.pack(">ii", -4, 0),
        struct.pack(">ii", 0, 700),
        b"\x7f" * 80,
        b"\0" * 80,
        b"odd",
        b"",
        None,
    ],
)
def test_an_offset_index_that_does_not_hold_is_walked_around(tmp_path, entries):
    write_segment(tmp_path, 0, many(40), index_interval_bytes=100)
    index = index_file(tmp_path, 0)
    if entries is None:
        index.unlink()
    else:
        index.write_bytes(entries)
    view = view_of(tmp_path)
    assert (view.log_end_offset, view.segment_times[0].largest_timestamp_ms) == (40, NOW_MS + 39)


def test_an_index_entry_of_a_whole_append_holds(tmp_path):
    batches = many(40)
    write_segment(tmp_path, 0, batches)
    index_file(tmp_path, 0).write_bytes(struct.pack(">ii", 39, sum(map(len, batches[:30]))))
    assert view_of(tmp_path).log_end_offset == 40


@pytest.mark.parametrize("embedded_offset", [5, 900])
def test_a_batch_inside_a_records_value_is_no_batch_of_the_log(tmp_path, embedded_offset):
    embedded = batch_bytes(embedded_offset)
    outer = [*many(3, first=100), batch_bytes(103, value=embedded), *many(3, first=104)]
    log = write_segment(tmp_path, 100, outer)
    index_file(tmp_path, 100).write_bytes(struct.pack(">ii", 3, log.read_bytes().find(embedded)))
    assert view_of(tmp_path).log_end_offset == 107


def test_the_walk_begins_at_the_last_index_entry(tmp_path):
    log = write_segment(tmp_path, 0, many(40), index_interval_bytes=100)
    with log.open("r+b") as file:
        file.write(b"\xff" * 200)
    write_snapshot(tmp_path, 40)
    assert view_of(tmp_path).log_end_offset == 40


def test_a_directory_without_segments_is_an_empty_log_at_its_start(tmp_path):
    view = view_of(tmp_path, PartitionCheckpoints(log_start=9, recovery_point=3))
    assert (view.log_start_offset, view.log_end_offset, view.last_stable_offset) == (9, 9, 9)
    assert (view.segment_times, view.unverified_from_offset) == ((), None)


# --------------------------------------------------------------------------------------------- start, high watermark
def test_the_log_starts_at_the_checkpoint_or_at_the_first_segment(tmp_path):
    write_segment(tmp_path, 5, many(10, first=5))
    assert view_of(tmp_path).log_start_offset == 5
    assert view_of(tmp_path, PartitionCheckpoints(log_start=3)).log_start_offset == 5
    assert view_of(tmp_path, PartitionCheckpoints(log_start=8)).log_start_offset == 8


def test_without_a_high_watermark_checkpoint_everything_is_replicated(tmp_path):
    write_segment(tmp_path, 0, many(10))
    view = view_of(tmp_path)
    assert (view.high_watermark, view.last_stable_offset) == (10, 10)


def test_a_checkpoint_that_does_not_list_the_partition_says_nothing_is_replicated(tmp_path):
    write_segment(tmp_path, 0, many(10))
    view = view_of(tmp_path, PartitionCheckpoints(high_watermark_file=True))
    assert (view.high_watermark, view.last_stable_offset) == (None, 0)


@pytest.mark.parametrize(("stored", "clamped"), [(0, 5), (9, 9), (99, 15)])
def test_the_high_watermark_is_clamped_to_the_log_and_bounds_what_is_stable(tmp_path, stored, clamped):
    write_segment(tmp_path, 5, many(10, first=5))
    view = view_of(tmp_path, PartitionCheckpoints(high_watermark=stored, high_watermark_file=True))
    assert (view.high_watermark, view.last_stable_offset) == (clamped, clamped)


# --------------------------------------------------------------------------------------------------------- producers
def transactional(offset, producer_id, **fields):
    return batch_bytes(offset, producer_id=producer_id, transactional=True, **fields)


def test_a_snapshot_at_the_log_end_spares_reading_the_segments(tmp_path):
    for base in (0, 40):
        log = write_segment(tmp_path, base, many(40, first=base))
        log.write_bytes(b"\xff" * log.stat().st_size)
    write_segment(tmp_path, 80)
    write_snapshot(tmp_path, 80, [ProducerEntry(7, 0, 3, 79, 0, NOW_MS)])
    view = view_of(tmp_path)
    assert producer_ids(view) == [7]
    assert view.producers[0].last_offset == 79


def test_batches_after_the_snapshot_are_replayed(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, producer_id=1), batch_bytes(1, producer_id=2)])
    write_segment(tmp_path, 2, [batch_bytes(2, producer_id=2, sequence=1), batch_bytes(3, producer_id=3)])
    write_snapshot(tmp_path, 2, [ProducerEntry(9, 0, 5, 1, 0, NOW_MS)])
    view = view_of(tmp_path)
    assert {entry.producer_id: entry.last_offset for entry in view.producers} == {9: 1, 2: 2, 3: 3}


def test_a_snapshot_in_the_middle_of_a_segment_is_replayed_from_there(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(n, producer_id=n) for n in range(6)])
    write_snapshot(tmp_path, 4)
    assert producer_ids(view_of(tmp_path)) == [4, 5]


def test_without_a_snapshot_the_log_is_replayed_from_its_start(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, producer_id=1)])
    write_segment(tmp_path, 1, [batch_bytes(1, producer_id=2)])
    assert producer_ids(view_of(tmp_path)) == [1, 2]
    assert producer_ids(view_of(tmp_path, PartitionCheckpoints(log_start=1))) == [2]


def test_ps_12_snapshots_outside_of_the_log_do_not_count(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(n, producer_id=n) for n in range(4)])
    for offset in (0, 2, 5):
        write_snapshot(tmp_path, offset, [ProducerEntry(100 + offset, 0, 0, 0, 0, NOW_MS)])
    assert producer_ids(view_of(tmp_path)) == [2, 3, 102]
    assert producer_ids(view_of(tmp_path, PartitionCheckpoints(log_start=2))) == [2, 3]


def test_ps_14_producers_expire_by_their_stored_timestamp_unless_a_transaction_is_open(tmp_path):
    write_segment(tmp_path, 0, many(4))
    stamps = {1: NOW_MS - DAY_MS, 2: NOW_MS - DAY_MS + 1}
    entries = [ProducerEntry(producer_id, 0, 0, 1, 0, stamp) for producer_id, stamp in stamps.items()]
    opened = ProducerEntry(3, 0, 0, 1, 0, NOW_MS - DAY_MS, transaction_first_offset=1)
    write_snapshot(tmp_path, 4, [*entries, opened])
    assert producer_ids(view_of(tmp_path)) == [2, 3]


def test_producers_expire_alike_with_and_without_a_snapshot(tmp_path):
    old = batch_bytes(0, producer_id=1, timestamp=NOW_MS - DAY_MS)
    write_segment(tmp_path, 0, [old, batch_bytes(1, producer_id=2)])
    assert producer_ids(view_of(tmp_path)) == [2]


def test_ps_22_a_corrupt_snapshot_is_passed_over_for_an_older_one(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(n, producer_id=n) for n in range(6)])
    write_snapshot(tmp_path, 3, [ProducerEntry(30, 0, 0, 2, 0, NOW_MS)])
    newest = write_snapshot(tmp_path, 6, [ProducerEntry(60, 0, 0, 5, 0, NOW_MS)])
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x55")
    assert producer_ids(view_of(tmp_path)) == [3, 4, 5, 30]


def test_a_corrupt_segment_below_the_active_one_is_an_error_where_it_has_to_be_walked(tmp_path):
    log = write_segment(tmp_path, 0, many(3))
    log.write_bytes(b"\xff" * log.stat().st_size)
    write_segment(tmp_path, 3)
    with pytest.raises(CorruptBatchError) as failure:
        view_of(tmp_path)
    assert (failure.value.path, failure.value.partition) == (str(log), "t-0")


@pytest.mark.parametrize("seed", range(12))
def test_producers_and_log_end_agree_with_the_twin(tmp_path, seed):
    directory = tmp_path / "t-0"
    end_offset = write_random_log(directory, seed)
    snapshots = sorted(directory.glob("*.snapshot"))
    for kept in (len(snapshots), 1 + seed % len(snapshots), 0):
        for snapshot in snapshots[kept:]:
            snapshot.unlink(missing_ok=True)
        view = view_of(directory, now_ms=START_MS + 1000)
        start = list_segments(directory)[0].base_offset
        states = load_producers(directory, now_ms=START_MS + 1000, log_start_offset=start)
        assert view.log_end_offset == end_offset
        assert {entry.producer_id: entry.last_offset for entry in view.producers} == {
            producer_id: entry.last_offset for producer_id, entry in states.entries.items()
        }
        assert view.last_stable_offset == min(states.open_transactions(), default=end_offset)


# ------------------------------------------------------------------------------------------------------ transactions
def test_an_open_transaction_bounds_what_is_stable(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0), transactional(1, 5), transactional(2, 6), batch_bytes(3)])
    assert view_of(tmp_path).last_stable_offset == 1
    write_segment(tmp_path, 4, [marker_bytes(4, COMMIT, producer_id=5)])
    assert view_of(tmp_path).last_stable_offset == 2


def test_ps_06_a_transaction_is_unstable_until_its_marker_is_below_the_high_watermark(tmp_path):
    batches = [*many(2), transactional(2, 5), transactional(3, 6), marker_bytes(4, COMMIT, producer_id=5), *many(5, 5)]
    write_segment(tmp_path, 0, batches)
    stable = {
        mark: view_of(tmp_path, PartitionCheckpoints(high_watermark=mark, high_watermark_file=True)).last_stable_offset
        for mark in (1, 3, 4, 5, 10)
    }
    assert stable == {1: 1, 3: 2, 4: 2, 5: 3, 10: 3}


def aborted_log(directory):
    """Producer 5 aborts over two segments, producer 6 within the last, which is active."""
    first = AbortedTxn(5, 0, 3, 4)
    last = AbortedTxn(6, 4, 5, 6)
    write_segment(directory, 0, [transactional(0, 5), batch_bytes(1)])
    write_segment(directory, 2, [batch_bytes(2), marker_bytes(3, ABORT, producer_id=5)], aborted=[_twin_entry(first)])
    write_segment(
        directory, 4, [transactional(4, 6), marker_bytes(5, ABORT, producer_id=6)], aborted=[_twin_entry(last)]
    )
    write_snapshot(directory, 6)
    return (first, last)


def _twin_entry(entry):
    return twin_indexes.AbortedTransaction(
        entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
    )


def test_aborted_transactions_come_from_every_segment_the_active_one_included(tmp_path):
    expected = aborted_log(tmp_path)
    assert view_of(tmp_path).aborted == expected


def test_missing_transaction_indexes_are_rebuilt_where_the_log_is_replayed(tmp_path):
    expected = aborted_log(tmp_path)
    for path in (*tmp_path.glob("*.txnindex"), *tmp_path.glob("*.snapshot")):
        path.unlink()
    assert view_of(tmp_path, PartitionCheckpoints()).aborted == expected


@pytest.mark.parametrize("damage", [struct.pack(">hqqqq", 0, 5, 0, 1, 4), b"\0" * 34])
def test_a_damaged_transaction_index_is_rebuilt_from_the_log(tmp_path, damage):
    expected = aborted_log(tmp_path)
    index_file(tmp_path, 2, ".txnindex").write_bytes(damage)
    assert view_of(tmp_path).aborted == expected


def test_a_transaction_that_ends_where_it_begins_is_damage(tmp_path):
    expected = aborted_log(tmp_path)
    index_file(tmp_path, 0, ".txnindex").write_bytes(b"\0" * 34)
    assert view_of(tmp_path).aborted == expected


def test_a_sparse_transaction_index_that_no_log_could_need_is_rebuilt_unread(tmp_path):
    expected = aborted_log(tmp_path)
    os.truncate(index_file(tmp_path, 2, ".txnindex"), (1 << 31) - 1)
    assert view_of(tmp_path).aborted == expected


def test_an_incomplete_transaction_index_entry_is_ignored(tmp_path):
    expected = aborted_log(tmp_path)
    path = index_file(tmp_path, 4, ".txnindex")
    path.write_bytes(path.read_bytes() + b"\0" * 20)
    assert view_of(tmp_path).aborted == expected


# ------------------------------------------------------------------------------------------------------ unclean stop
def three_segments(directory):
    for base in (0, 10, 20):
        write_segment(directory, base, [batch_bytes(base + n, producer_id=base) for n in range(10)])


@pytest.mark.parametrize(("recovery_point", "unverified_from"), [(0, 0), (10, 10), (19, 10), (25, 20), (99, 20)])
def test_after_an_unclean_stop_the_recovery_points_segment_is_not_verified(tmp_path, recovery_point, unverified_from):
    three_segments(tmp_path)
    view = view_of(tmp_path, PartitionCheckpoints(recovery_point=recovery_point))
    assert (view.unverified_from_offset, view.log_end_offset) == (unverified_from, 30)
    assert view.last_stable_offset == unverified_from
    assert producer_ids(view) == [base for base in (0, 10, 20) if base < unverified_from]


def test_nothing_is_stable_below_the_log_start_even_if_its_segment_is_not_verified(tmp_path):
    three_segments(tmp_path)
    view = view_of(tmp_path, PartitionCheckpoints(log_start=15, recovery_point=12))
    assert (view.unverified_from_offset, view.last_stable_offset, view.producers) == (10, 15, ())


@pytest.mark.parametrize(("high_watermark", "last_stable"), [(20, 20), (30, 30), (31, 30)])
def test_a_high_watermark_in_a_gap_at_the_log_start_bounds_what_is_stable(tmp_path, high_watermark, last_stable):
    write_segment(tmp_path, 0, [batch_bytes(0), transactional(1, 5)])
    write_segment(tmp_path, 30, [batch_bytes(30), batch_bytes(31)])
    write_segment(tmp_path, 32)
    write_snapshot(tmp_path, 32, [ProducerEntry(5, 0, 0, 1, 0, NOW_MS, transaction_first_offset=1)])
    checkpoints = PartitionCheckpoints(log_start=20, high_watermark=high_watermark, clean_shutdown=True)
    assert view_of(tmp_path, checkpoints).last_stable_offset == last_stable


def test_a_high_watermark_at_the_log_start_and_no_transaction_are_no_reason_to_look_after_a_gap(tmp_path):
    write_segment(tmp_path, 0, many(2))
    write_segment(tmp_path, 30, many(2, first=30))
    checkpoints = PartitionCheckpoints(log_start=20, high_watermark=20, clean_shutdown=True)
    assert view_of(tmp_path, checkpoints).last_stable_offset == 20


def test_a_transaction_whose_marker_is_not_verified_is_open(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0), transactional(1, 5)])
    write_segment(tmp_path, 2, [marker_bytes(2, COMMIT, producer_id=5)])
    write_snapshot(tmp_path, 3)
    assert view_of(tmp_path, PartitionCheckpoints(recovery_point=2)).last_stable_offset == 1
    assert view_of(tmp_path).last_stable_offset == 3


def test_a_clean_stop_and_a_bare_copy_leave_nothing_unverified(tmp_path):
    three_segments(tmp_path)
    assert view_of(tmp_path, PartitionCheckpoints(recovery_point=0, clean_shutdown=True)).unverified_from_offset is None
    assert view_of(tmp_path, PartitionCheckpoints()).unverified_from_offset is None


# ------------------------------------------------------------------------------------------------------------- times
def times_of(directory, **options):
    return [times.largest_timestamp_ms for times in view_of(directory, **options).segment_times]


def test_the_largest_timestamp_need_not_be_the_last(tmp_path):
    unordered = [batch_bytes(n, timestamp=stamp) for n, stamp in enumerate([500, 900, 700])]
    write_segment(tmp_path, 0, unordered)
    write_segment(tmp_path, 3, [batch_bytes(3, timestamp=800), batch_bytes(4, timestamp=600)])
    assert times_of(tmp_path) == [900, 800]


@pytest.mark.parametrize(
    "content",
    [
        None,
        struct.pack(">qi", 77, 900),
        struct.pack(">qi", -77, 1),
        struct.pack(">qi", 77, -1),
        b"\0" * 120,
        b"odd",
    ],
)
def test_a_missing_or_damaged_time_index_is_read_from_the_batches(tmp_path, content):
    write_segment(tmp_path, 0, many(40), index_interval_bytes=100)
    write_segment(tmp_path, 40, many(40, first=40), index_interval_bytes=100)
    for base in (0, 40):
        if content is None:
            index_file(tmp_path, base, ".timeindex").unlink()
        else:
            index_file(tmp_path, base, ".timeindex").write_bytes(content)
    assert times_of(tmp_path) == [NOW_MS + 39, NOW_MS + 39]


@pytest.mark.parametrize("used", [1, 2, 3, 17, 84])
def test_the_last_entry_of_an_untrimmed_time_index_is_found(tmp_path, used):
    write_segment(tmp_path, 0, many(100), index_interval_bytes=100)
    write_segment(tmp_path, 100)
    entries = b"".join(struct.pack(">qi", 1000 + n, n) for n in range(used))
    index_file(tmp_path, 0, ".timeindex").write_bytes(entries.ljust(1020, b"\0"))
    assert times_of(tmp_path)[0] == 1000 + used - 1


def test_the_active_segments_largest_timestamp_can_lie_before_its_last_index_entry(tmp_path):
    batches = [batch_bytes(n, timestamp=NOW_MS - n) for n in range(40)]
    write_segment(tmp_path, 0, batches, index_interval_bytes=100)
    assert times_of(tmp_path) == [NOW_MS]
    index_file(tmp_path, 0, ".timeindex").write_bytes(b"")
    assert times_of(tmp_path) == [NOW_MS]


def test_an_empty_time_index_says_that_there_are_no_timestamps(tmp_path):
    write_segment(tmp_path, 0, many(3), mtime_ms=4_000)
    write_segment(tmp_path, 3)
    index_file(tmp_path, 0, ".timeindex").write_bytes(b"")
    assert times_of(tmp_path)[0] == 4_000


def test_a_single_entry_of_zeros_is_a_timestamp(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, timestamp=0)])
    write_segment(tmp_path, 1)
    assert times_of(tmp_path)[0] == 0


def test_without_timestamps_the_files_modification_time_counts(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, timestamp=-1)], mtime_ms=4_000)
    write_segment(tmp_path, 1, mtime_ms=5_000)
    write_segment(tmp_path, 2, [batch_bytes(2, timestamp=-1)], mtime_ms=6_000)
    assert times_of(tmp_path) == [4_000, 5_000, 6_000]


def test_the_first_batchs_timestamp_is_read_only_when_asked_for(tmp_path):
    legacy = encode_legacy([Record(30, 123, b"k", b"v")], magic=1)
    oldest = encode_legacy([Record(40, -1, b"k", b"v")], magic=0)
    contents = {0: many(3, timestamp=7_000), 10: [], 20: many(2, first=20, timestamp=8_000), 30: [legacy], 40: [oldest]}
    for base, batches in contents.items():
        write_segment(tmp_path, base, batches)
    write_segment(tmp_path, 50, many(1, first=50))
    firsts = [times.first_batch_timestamp_ms for times in view_of(tmp_path, first_batch_timestamps=True).segment_times]
    assert firsts == [7_000, -1, 8_000, 123, -1, -1]
    assert {times.first_batch_timestamp_ms for times in view_of(tmp_path).segment_times} == {-1}


# -------------------------------------------------------------------------------------------------------- check points
def test_checkpoints_are_read_for_all_partitions_at_once(tmp_path):
    for name, offset in (("cleaner", 3), ("log-start", 1), ("replication", 9), ("recovery-point", 7)):
        (tmp_path / f"{name}-offset-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")
    (tmp_path / ".kafka_cleanshutdown").touch()
    read = read_checkpoints(tmp_path, Fs())
    assert read.of(PARTITION) == PartitionCheckpoints(3, 1, 9, 7, high_watermark_file=True, clean_shutdown=True)
    unlisted = PartitionCheckpoints(recovery_point=0, high_watermark_file=True, clean_shutdown=True)
    assert read.of(TopicPartition("u", 0)) == unlisted


def test_a_directory_without_checkpoints_is_a_bare_copy(tmp_path):
    assert read_checkpoints(tmp_path, Fs()) == LogDirCheckpoints(None, None, None, None, clean_shutdown=False)
    assert read_checkpoints(tmp_path, Fs()).of(PARTITION) == PartitionCheckpoints()


def test_only_a_malformed_cleaner_checkpoint_is_taken_as_empty(tmp_path):
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n5\nt 0 1\n")
    assert read_checkpoints(tmp_path, Fs()).first_dirty is None
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n5\nt 0 1\n")
    with pytest.raises(CorruptCheckpointError):
        read_checkpoints(tmp_path, Fs())


def test_every_malformed_checkpoint_is_reported_and_left_out_where_asked_for(tmp_path):
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 9\n")
    malformed = [tmp_path / "cleaner-offset-checkpoint", tmp_path / "log-start-offset-checkpoint"]
    for path in malformed:
        path.write_text("0\n5\nt 0 1\n")
    unreadable = [tmp_path / "recovery-point-offset-checkpoint", tmp_path / ".kafka_cleanshutdown"]
    unreadable[0].mkdir()
    unreadable[1].symlink_to(unreadable[1])
    found = []
    read = read_checkpoints(tmp_path, Fs(), on_unreadable=lambda path, _: found.append(path))
    assert (read.first_dirty, read.log_start, read.high_watermark) == (None, None, {PARTITION: 9})
    assert (read.recovery_point, read.clean_shutdown) == (None, False)
    assert found == [*malformed, *unreadable]
    malformed[1].unlink()
    with pytest.raises(IsADirectoryError):
        read_checkpoints(tmp_path, Fs())


# -------------------------------------------------------------------------------------------------------------- whole
def test_a_file_that_goes_away_is_an_error_with_advice(tmp_path):
    write_segment(tmp_path, 0, many(3))
    listing = list_log(PARTITION, tmp_path, Fs())
    index_file(tmp_path, 0, ".timeindex").unlink()
    index_file(tmp_path, 0, ".log").unlink()
    with pytest.raises(SourceChangedError, match="was removed while"):
        open_view(listing, CLEAN, Fs(), now_ms=NOW_MS, producer_id_expiration_ms=DAY_MS)


def test_a_view_travels_to_another_process(tmp_path):
    aborted_log(tmp_path)
    view = view_of(tmp_path)
    assert pickle.loads(pickle.dumps(view)) == view


# What Kafka makes of these on loading, it forgets; the view's docstring says why it does not.
KAFKA_FORGETS = {
    "flipped-middle-unclean": "recovery cuts the log; a view verifies no batch and leaves that part alone",
    "missing-index-clean": "Kafka keeps an ongoing transaction of its recovery in memory",
    "missing-snapshots-clean": "Kafka takes an empty producer state",
    "missing-timeindex-clean": "Kafka goes by the file's modification time",
    "torn-tail-clean": "Kafka's log end falls back to the segment's base",
}


@pytest.mark.parametrize("name", [name for name in loading_cases() if name not in KAFKA_FORGETS])
def test_a_view_is_what_kafka_loads(name, tmp_path):
    case = load_loading_case(name, tmp_path)
    recovery_point = case.recovery_point or 0
    stopped = PartitionCheckpoints(
        log_start=case.log_start_offset, recovery_point=recovery_point, clean_shutdown=case.clean
    )
    loaded = PartitionCheckpoints(
        log_start=case.log_start_offset, recovery_point=case.kafka.recovery_point, clean_shutdown=True
    )
    for directory, checkpoints in ((case.before, stopped), (case.after, loaded)):
        view = view_of(directory, checkpoints, now_ms=case.now_ms)
        assert view.log_start_offset == case.kafka.log_start_offset
        assert view.log_end_offset == case.kafka.log_end_offset
        assert [times.largest_timestamp_ms for times in view.segment_times] == [
            segment.largest_timestamp for segment in case.kafka.segments
        ]
        if view.unverified_from_offset is None:
            unstable = case.kafka.first_unstable_offset
            assert view.last_stable_offset == (case.kafka.log_end_offset if unstable is None else unstable)
            assert {(entry.producer_id, entry.last_sequence) for entry in view.producers} == set(case.kafka.producers)
            assert _tuples(view.aborted) == case.kafka.aborted


def test_a_torn_tail_after_a_clean_stop_forgets_only_the_torn_batch(tmp_path):
    case = load_loading_case("torn-tail-clean", tmp_path)
    view = view_of(case.before, now_ms=case.now_ms)
    assert (case.kafka.log_end_offset, view.log_end_offset) == (1442, 1588)


def test_missing_snapshots_after_a_clean_stop_forget_no_producer(tmp_path):
    case = load_loading_case("missing-snapshots-clean", tmp_path)
    assert case.kafka.producers == ()
    assert producer_ids(view_of(case.before, now_ms=case.now_ms)) == [1000, 1001, 1002]


def _tuples(aborted):
    return tuple(
        (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset) for entry in aborted
    )
