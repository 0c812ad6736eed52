"""Checks of indexes and snapshots: Kafka's own files pass, and every kind of damage is reported."""

import numpy as np
import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.index_mismatches import check_indexes
from sediment.segment_io.partition.sources import find_sources
from tests.corpus import cleaning_cases, load_case
from tests.logs import LogShape, write_random_log
from tests.segments import ABORT, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.twin.indexes import AbortedTransaction


def checked(path):
    (source,) = find_sources([path], Fs())
    return {file.file: file for file in check_indexes(source, Fs())}


@pytest.mark.parametrize("name", cleaning_cases(magic2_only=False))
def test_what_kafka_wrote_and_cleaned_has_no_problems(name, tmp_path):
    case = load_case(name, tmp_path)
    for directory in (case.before, *(round_.after for round_ in case.rounds)):
        files = checked(directory)
        assert {file.problem for file in files.values()} == {None}
        on_disk = {
            p.name for p in directory.iterdir() if p.suffix in (".index", ".timeindex", ".txnindex", ".snapshot")
        }
        assert set(files) == on_disk


@pytest.mark.parametrize("seed", range(5))
def test_random_logs_have_no_problems(seed, tmp_path):
    write_random_log(tmp_path / "t-0", seed, LogShape(codecs=(0, 2)))
    assert not any(file.problems for file in checked(tmp_path / "t-0").values())


@pytest.fixture
def partition(tmp_path):
    directory = tmp_path / "t-0"
    batches = [batch_bytes(offset, "abc", timestamp=1000 + offset) for offset in range(0, 60, 3)]
    batches += [batch_bytes(60, producer_id=1, transactional=True), marker_bytes(61, ABORT, producer_id=1)]
    write_segment(directory, 0, batches, index_interval_bytes=150, aborted=[AbortedTransaction(1, 60, 61, 62)])
    write_segment(directory, 62)
    write_snapshot(directory, 62)
    return directory


def rewrite(partition, suffix, dtype, change):
    path = partition / f"{0:020d}{suffix}"
    entries = np.frombuffer(path.read_bytes(), dtype=dtype).copy()
    change(entries)
    path.write_bytes(entries.tobytes())
    return checked(partition)[path.name]


OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
TRANSACTION_ENTRY = np.dtype(
    [("version", ">i2"), ("producer", ">i8"), ("first", ">i8"), ("last", ">i8"), ("lso", ">i8")]
)


def add(field, slot, amount):
    def change(entries):
        entries[field][slot] += amount

    return change


@pytest.mark.parametrize(
    ("suffix", "dtype", "change", "problem"),
    [
        (".index", OFFSET_ENTRY, add("position", 1, 1), "entry 1: no batch begins at position"),
        (".index", OFFSET_ENTRY, add("offset", 1, 1), "entry 1: offset 15, but the batch at position"),
        (".index", OFFSET_ENTRY, add("offset", 1, -1), "entry 1: offset 13, but the batch at position"),
        (".index", OFFSET_ENTRY, add("offset", 1, -9), "does not follow the entry before it"),
        (
            ".timeindex",
            TIME_ENTRY,
            add("timestamp", 1, 1),
            "entry 1: timestamp 1013, but the batch with offset 14 has 1012",
        ),
        (".timeindex", TIME_ENTRY, add("offset", -1, 900), "all batches end below offset"),
        (".txnindex", TRANSACTION_ENTRY, add("producer", 0, 5), "no marker of producer 6 at offset 61"),
        (".txnindex", TRANSACTION_ENTRY, add("last", 0, -1), "a transaction from offset 60 to 60"),
        (".txnindex", TRANSACTION_ENTRY, add("version", 0, 256), "version newer than 0"),
    ],
)
def test_an_entry_that_the_log_contradicts_is_named(suffix, dtype, change, problem, partition):
    found = rewrite(partition, suffix, dtype, change)
    assert found.problems >= 1
    assert problem in found.problem


def test_a_time_index_without_the_largest_timestamp_is_a_problem_of_a_complete_segment_only(partition):
    path = partition / f"{0:020d}.timeindex"
    path.write_bytes(path.read_bytes()[:-12])
    assert "is not indexed" in checked(partition)[path.name].problem
    for suffix in (".log", ".index", ".timeindex", ".snapshot"):
        (partition / f"{62:020d}{suffix}").unlink()
    assert checked(partition)[path.name].problem is None


def test_a_missing_index_and_a_file_of_an_odd_size_are_problems(partition):
    (partition / f"{0:020d}.index").unlink()
    path = partition / f"{0:020d}.timeindex"
    path.write_bytes(path.read_bytes() + b"x")
    files = checked(partition)
    assert "is missing" in files[f"{0:020d}.index"].problem
    assert "not a multiple of 12" in files[path.name].problem
    assert files[path.name].entries is None


def test_a_snapshot_with_a_wrong_checksum_is_a_problem(partition):
    path = partition / f"{62:020d}.snapshot"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert "checksum" in checked(partition)[path.name].problem


def test_a_log_that_cannot_be_walked_is_a_problem_of_its_indexes(partition):
    path = partition / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[8 + len(batch_bytes(0, "abc", timestamp=1000))] = 0xFF
    path.write_bytes(bytes(content))
    assert "the log itself cannot be read" in checked(partition)[f"{0:020d}.index"].problem


def test_the_zeros_of_an_active_segments_indexes_are_no_entries(tmp_path):
    batches = [batch_bytes(offset) for offset in range(9)]
    write_segment(tmp_path / "t-0", 0, batches, index_interval_bytes=100, preallocated_index_bytes=480)
    files = checked(tmp_path / "t-0")
    assert not any(file.problems for file in files.values())
    assert 0 < files[f"{0:020d}.index"].entries < 9


def test_an_index_written_before_4_1_has_no_problem(partition):
    path = partition / f"{0:020d}.index"
    size = len(batch_bytes(0, "abc", timestamp=1000))
    entries = np.array([(5, size), (14, 3 * size)], dtype=OFFSET_ENTRY)
    path.write_bytes(entries.tobytes())
    assert checked(partition)[path.name].problem is None
