"""Committed ranges, compared with a plain scan of all batches and with Kafka's own results."""

import os

import pytest

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.read_committed import committed_range, log_end_offset
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.schema import READ_COMMITTED
from tests.corpus import cleaning_cases, load_case, load_loading_case, loading_cases
from tests.logs import LogShape, write_random_log
from tests.segments import ABORT, COMMIT, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.tables import read_rows
from tests.twin.batches import ControlType
from tests.twin.indexes import AbortedTransaction
from tests.twin.segments import list_segments

# Kafka verifies nothing below the recovery point.
STILL_DAMAGED = ("flipped-before-recovery-point", "flipped-middle-clean")


def committed(directory, **checkpoints):
    (source,) = find_sources([directory], Fs())
    return committed_range(source, PartitionCheckpoints(**checkpoints), Fs())


def committed_offsets(directory):
    return [row["offset"] for row in read_rows(directory, isolation=READ_COMMITTED, columns=("offset",))]


def reference(directory):
    """Offsets of committed data, by a walk over every batch of the log."""
    open_since, data, committed_data = {}, [], []
    for segment in list_segments(directory):
        for _position, batch in segment.batches():
            offsets = [record.offset for record in batch.records()]
            if batch.is_control:
                first = open_since.pop(batch.producer_id, None)
                if offsets and batch.control_type() is ControlType.ABORT and first is not None:
                    data = [entry for entry in data if entry[0] != batch.producer_id or entry[1] < first]
            elif batch.is_transactional:
                open_since.setdefault(batch.producer_id, batch.base_offset)
                data += [(batch.producer_id, offset) for offset in offsets]
            else:
                committed_data += offsets
    stable = min(open_since.values(), default=2**63)
    return sorted(offset for offset in [*committed_data, *(offset for _, offset in data)] if offset < stable)


@pytest.mark.parametrize("seed", range(25))
def test_random_logs_give_what_a_walk_over_all_batches_gives(seed, tmp_path):
    write_random_log(tmp_path / "t-0", seed, LogShape(codecs=(0, 4), transactional=0.6, emptied=0))
    assert committed_offsets(tmp_path / "t-0") == reference(tmp_path / "t-0")


@pytest.mark.parametrize("seed", range(8))
def test_without_snapshots_and_transaction_indexes_the_log_is_replayed(seed, tmp_path):
    write_random_log(tmp_path / "t-0", seed, LogShape(transactional=0.6, emptied=0))
    for path in (tmp_path / "t-0").iterdir():
        if path.suffix in (".snapshot", ".txnindex"):
            path.unlink()
    assert committed_offsets(tmp_path / "t-0") == reference(tmp_path / "t-0")


@pytest.mark.parametrize("name", [name for name in cleaning_cases() if "trans" in name or name == "everything"])
def test_what_kafka_wrote_and_cleaned_gives_what_a_walk_over_all_batches_gives(name, tmp_path):
    case = load_case(name, tmp_path)
    assert committed_offsets(case.before) == reference(case.before)
    for round_ in case.rounds:
        assert committed_offsets(round_.after) == reference(round_.after)


@pytest.mark.parametrize("name", [name for name in loading_cases() if name != "torn-tail-clean"])
def test_logs_that_kafka_loaded_end_where_it_says_and_hide_what_it_says(name, tmp_path):
    case = load_loading_case(name, tmp_path)
    found = committed(case.after, log_start=case.log_start_offset)
    assert (found.first_offset, found.end_offset) == (case.kafka.log_start_offset, case.kafka.log_end_offset)
    aborted = {(e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset) for e in found.aborted}
    assert set(case.kafka.aborted) <= aborted
    if name in STILL_DAMAGED:
        with pytest.raises(CorruptBatchError):
            read_rows(case.after)
    else:
        assert committed_offsets(case.after) == reference(case.after)


# ----------------------------------------------------------------------------------------------------- its single rules
@pytest.fixture
def partition(tmp_path):
    """Producer 1 aborts offsets 0-1, producer 2 commits 3-4, producer 3 is open from 7 on; 6 is of no transaction."""
    directory = tmp_path / "t-0"
    write_segment(
        directory,
        0,
        [
            batch_bytes(0, "ab", producer_id=1, transactional=True),
            marker_bytes(2, ABORT, producer_id=1),
            batch_bytes(3, "cd", producer_id=2, transactional=True),
            marker_bytes(5, COMMIT, producer_id=2),
            batch_bytes(6, "e"),
            batch_bytes(7, "f", producer_id=3, transactional=True),
            batch_bytes(8, "g"),
        ],
        aborted=[AbortedTransaction(1, 0, 2, 3)],
    )
    return directory


def test_aborted_open_and_control_records_are_hidden(partition):
    assert committed_offsets(partition) == [3, 4, 6]
    assert [row["offset"] for row in read_rows(partition, columns=("offset",))] == list(range(9))


def test_batches_are_hidden_as_their_records_are(partition):
    rows = read_rows(partition, what="batches", isolation=READ_COMMITTED, columns=("baseOffset",))
    assert [row["baseOffset"] for row in rows] == [3, 6]


def test_a_high_watermark_and_a_log_start_narrow_the_range(partition):
    assert committed(partition, high_watermark=4, high_watermark_file=True).end_offset == 3
    assert committed(partition, high_watermark=6, high_watermark_file=True).end_offset == 6
    assert committed(partition, high_watermark=100, high_watermark_file=True).end_offset == 7
    assert committed(partition, log_start=4).first_offset == 4
    for name, offset in (("replication-offset-checkpoint", 6), ("log-start-offset-checkpoint", 4)):
        (partition.parent / name).write_text(f"0\n1\nt 0 {offset}\n")
    assert committed_offsets(partition) == [4]


def test_an_abort_that_is_not_indexed_yet_counts(partition):
    (partition / f"{0:020d}.txnindex").write_bytes(b"")
    assert committed_offsets(partition) == [3, 4, 6]


def test_a_damaged_transaction_index_is_replaced_by_a_replay(partition):
    write_snapshot(partition, 8)
    (partition / f"{0:020d}.txnindex").write_bytes(bytes([1]) * 34)
    assert committed_offsets(partition) == [3, 4, 6]


def test_a_sparse_transaction_index_that_no_log_could_need_is_replaced_by_a_replay(partition):
    write_snapshot(partition, 8)
    os.truncate(partition / f"{0:020d}.txnindex", (1 << 31) - 1)
    assert committed_offsets(partition) == [3, 4, 6]


def test_a_snapshot_above_the_log_end_is_of_a_tail_that_was_cut(partition):
    write_snapshot(partition, 50)
    assert committed(partition).end_offset == 7


def test_a_torn_tail_ends_the_range_and_damage_below_the_active_segment_is_an_error(partition):
    log = partition / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + batch_bytes(9)[:-1])
    assert committed(partition).end_offset == 7
    write_segment(partition, 10, [batch_bytes(10)])
    log.write_bytes(log.read_bytes()[:90] + b"\xff" * 60 + log.read_bytes()[150:])
    with pytest.raises(CorruptBatchError):
        committed(partition)


def test_the_log_ends_after_its_last_whole_batch(partition):
    (source,) = find_sources([partition], Fs())
    assert log_end_offset(source, Fs()) == 9
    log = partition / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + batch_bytes(9)[:-1])
    assert log_end_offset(source, Fs()) == 9
    write_segment(partition, 9)
    assert log_end_offset(source, Fs()) == 9


def test_a_segment_ends_where_its_partition_does(partition):
    write_segment(partition, 9, [batch_bytes(9, "ab")])
    for base in (0, 9):
        (source,) = find_sources([partition / f"{base:020d}.log"], Fs())
        assert log_end_offset(source, Fs()) == 11


def test_an_empty_partition_ends_at_0(tmp_path):
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    (source,) = find_sources([tmp_path / "t-0"], Fs())
    assert log_end_offset(source, Fs()) == 0
    assert committed(tmp_path / "t-0").end_offset == 0
