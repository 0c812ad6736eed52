"""The marks of partitions that cleaning gave up on: how long they hold, and that nothing else is lost with them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.directory.uncleanable import read_uncleanable, uncleanable_after, update_uncleanable
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.names import UNCLEANABLE_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef

NOW_MS = 1_700_000_000_000


def listing(*bases, topic="t", number=0):
    segments = tuple(SegmentRef(base, 100, 8, 12, None, 7) for base in bases)
    partition = TopicPartition(topic, number)
    return LogListing(partition, Path("/logs") / str(partition), segments, (), ())


def mark_of(found, path="/logs/t-0/00000000000000000010.log"):
    error = CorruptBatchError("bad", path=path)
    return uncleanable_after(error, found, reason_code="corrupt-batch", reason="bad (…)", since_ms=NOW_MS)


@pytest.fixture
def log_dir(tmp_path):
    for name in ("t-0", "t-1"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_mark_holds_while_the_damaged_segment_is_as_it_was_and_the_log_goes_on():
    found = listing(0, 10, 20)
    mark = mark_of(found)
    assert [segment.base_offset for segment in mark.segments] == [10]
    assert mark.holds_for(found)
    assert mark.holds_for(listing(10, 20, 30)), "retention and appends elsewhere mend nothing"
    assert not mark.holds_for(listing(20, 30)), "the segment is gone"
    for changed in ({"log_bytes": 90}, {"mtime_ns": 8}):
        segments = (found.segments[0], replace(found.segments[1], **changed), found.segments[2])
        assert not mark.holds_for(replace(found, segments=segments))


def test_without_a_segment_to_blame_a_mark_holds_on_all_but_the_active_one():
    assert [s.base_offset for s in mark_of(listing(0, 10, 20), path=None).segments] == [0, 10]


def test_marks_are_read_back_as_they_were_written(log_dir):
    marks = [mark_of(listing(0, 10)), mark_of(listing(0, 10, number=1))]
    update_uncleanable(log_dir, Fs(), add=marks)
    assert read_uncleanable(log_dir, Fs()) == {mark.partition: mark for mark in marks}
    document = json.loads((log_dir / UNCLEANABLE_FILE).read_text())
    assert [entry["partition"] for entry in document["partitions"]] == ["t-0", "t-1"]
    assert document["partitions"][0]["since_ms"] == NOW_MS


def test_removing_a_mark_keeps_the_others_and_the_last_one_takes_the_file_along(log_dir):
    update_uncleanable(log_dir, Fs(), add=[mark_of(listing(0, 10)), mark_of(listing(0, 10, number=1))])
    update_uncleanable(log_dir, Fs(), remove=[TopicPartition("t", 0)])
    assert list(read_uncleanable(log_dir, Fs())) == [TopicPartition("t", 1)]
    update_uncleanable(log_dir, Fs(), remove=[TopicPartition("t", 1)])
    assert sorted(path.name for path in log_dir.iterdir()) == ["t-0", "t-1"]


def test_the_mark_of_a_partition_that_is_gone_goes_with_the_next_change(log_dir):
    update_uncleanable(log_dir, Fs(), add=[mark_of(listing(0, 10)), mark_of(listing(0, 10, number=1))])
    (log_dir / "t-1").rmdir()
    update_uncleanable(log_dir, Fs(), add=[mark_of(listing(0, 10, 20))])
    assert list(read_uncleanable(log_dir, Fs())) == [TopicPartition("t", 0)]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 2, "partitions": []}', b'{"version": 1, "partitions": [{"partition": "t-0"}]}'],
)
def test_a_file_that_cannot_be_understood_counts_as_empty_and_is_replaced(log_dir, content):
    (log_dir / UNCLEANABLE_FILE).write_bytes(content)
    assert read_uncleanable(log_dir, Fs()) == {}
    mark = mark_of(listing(0, 10))
    update_uncleanable(log_dir, Fs(), add=[mark])
    assert read_uncleanable(log_dir, Fs()) == {mark.partition: mark}


def test_a_change_of_nothing_writes_nothing(log_dir):
    mark = mark_of(listing(0, 10))
    update_uncleanable(log_dir, Fs(), add=[mark])
    inode = (log_dir / UNCLEANABLE_FILE).stat().st_ino
    update_uncleanable(log_dir, Fs(), add=[mark])
    assert (log_dir / UNCLEANABLE_FILE).stat().st_ino == inode
