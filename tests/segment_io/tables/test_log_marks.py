"""Marks of logs: what they record, and how a log is compared with a mark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sediment.segment_io.format.names import PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_partition_metadata
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_marks import LogMark, LogMatch, RecordMark, mark_of, match_log
from tests.segments import batch_bytes, write_segment

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def source_of(directory: Path) -> Source:
    return Source(TopicPartition("t", 0), directory)


def mark(directory: Path, end_offset: int) -> LogMark:
    source = source_of(directory)
    return mark_of(source, PartitionIdentity.of(source, Fs()), end_offset, Fs())


def match(known: LogMark, directory: Path) -> LogMatch:
    source = source_of(directory)
    return match_log(known, source, PartitionIdentity.of(source, Fs()), Fs())


@pytest.mark.parametrize(
    ("known", "now", "crc", "expected"),
    [
        (LogMark("A"), ("A", 1), None, LogMatch.SAME),
        (LogMark("A"), ("B", 1), None, LogMatch.OTHER),
        (LogMark("A"), (None, 1), None, LogMatch.UNKNOWN),
        (LogMark(None, "1-5", RecordMark(9, 7)), (None, 1), 8, LogMatch.SAME),
        (LogMark(None, "1-5", RecordMark(9, 7)), ("A", 1), 8, LogMatch.SAME),
        (LogMark(None, "1-5", RecordMark(9, 7)), (None, 2), 7, LogMatch.SAME),
        (LogMark(None, "1-5", RecordMark(9, 7)), (None, 2), 8, LogMatch.OTHER),
        (LogMark(None, "1-5", RecordMark(9, 7)), ("A", 2), 8, LogMatch.OTHER),
        (LogMark(None, "1-5", RecordMark(9, 7)), (None, 2), None, LogMatch.UNKNOWN),
        (LogMark(None, "1-5"), (None, 2), 8, LogMatch.UNKNOWN),
    ],
)
def test_ids_decide_before_directories_and_these_before_records(
    known: LogMark, now: tuple[str | None, int], crc: int | None, expected: LogMatch
) -> None:
    asked = []
    assert known.match(PartitionIdentity(*now, 5), lambda offset: asked.append(offset) or crc) is expected
    assert asked in ([], [9])


def test_the_mark_of_a_topic_with_an_id_reads_no_segment(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [b"no batch"])
    write_partition_metadata(Fs(), tmp_path / "t-0" / PARTITION_METADATA_FILE, TOPIC_ID)
    assert mark(tmp_path / "t-0", 5) == LogMark(TOPIC_ID)
    assert match(LogMark(TOPIC_ID), tmp_path / "t-0") is LogMatch.SAME


def test_a_mark_has_the_last_record_below_the_end(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "ab"), batch_bytes(4, "cd")], index_interval_bytes=50)
    write_segment(tmp_path / "t-0", 6)
    ends = {0: None, 1: 0, 2: 1, 3: 1, 4: 1, 5: 4, 6: 5, 9: 5}
    for end, offset in ends.items():
        found = mark(tmp_path / "t-0", end)
        assert (None if found.record is None else found.record.offset) == offset
    assert mark(tmp_path / "t-0", 2).record != mark(tmp_path / "t-0", 1).record


@pytest.mark.parametrize("change", ["key", "value", "timestamp", "null value", "length"])
def test_another_record_at_the_offset_is_another_log_and_none_tells_nothing(change: str, tmp_path: Path) -> None:
    changed = {
        "key": batch_bytes(0, "abx"),
        "value": batch_bytes(0, "abc", value=b"other"),
        "timestamp": batch_bytes(0, "abc", timestamp=5),
        "null value": batch_bytes(0, "abc", value=None),
        "length": batch_bytes(0, "abc", value=b""),
    }[change]
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    known = mark(tmp_path / "t-0", 3)
    shutil.copytree(tmp_path / "t-0", tmp_path / "copy")
    assert match(known, tmp_path / "copy") is LogMatch.SAME
    write_segment(tmp_path / "copy", 0, [changed])
    assert match(known, tmp_path / "copy") is LogMatch.OTHER
    write_segment(tmp_path / "copy", 0, [batch_bytes(0, "ab"), batch_bytes(3, "d")])
    assert match(known, tmp_path / "copy") is LogMatch.UNKNOWN


def test_a_batch_that_cannot_be_read_is_no_record(tmp_path: Path) -> None:
    bad = bytearray(batch_bytes(2, "c"))
    bad[-1] ^= 1
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "ab"), bytes(bad)])
    assert mark(tmp_path / "t-0", 3).record == mark(tmp_path / "t-0", 2).record
