"""The marks of uncleanable partitions: how long they are valid, and that changing one keeps the others."""

import json
import os
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from sediment.engine.directory.uncleanable import read_uncleanable, uncleanable_after, update_uncleanable
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.names import UNCLEANABLE_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef, list_log

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


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
def test_a_file_that_was_mended_under_the_same_size_and_time_ends_a_mark(log_dir, suffix):
    for name in ("a", "b"):
        for kind in (".log", ".index", ".timeindex", ".txnindex"):
            (log_dir / "t-0" / f"{10 if name == 'a' else 20:020d}{kind}").write_bytes(b"damaged")
    found = list_log(TopicPartition("t", 0), log_dir / "t-0", Fs())
    update_uncleanable(log_dir, Fs(), add=[mark_of(found)])
    (mark,) = read_uncleanable(log_dir, Fs()).values()
    assert mark.holds_for(list_log(found.partition, found.path, Fs()))
    mended = log_dir / "t-0" / f"{10:020d}{suffix}"
    times = mended.stat().st_atime_ns, mended.stat().st_mtime_ns
    time.sleep(0.05)  # the clock of a filesystem ticks every few milliseconds
    copy = log_dir / "copy"
    copy.write_bytes(b"as good")
    os.utime(copy, ns=times)
    copy.rename(mended)
    again = list_log(found.partition, found.path, Fs())
    assert again.segments == found.segments
    assert not mark.holds_for(again)


def test_a_change_of_another_segment_leaves_a_mark(log_dir):
    for base in (10, 20):
        (log_dir / "t-0" / f"{base:020d}.log").write_bytes(b"damaged")
    found = list_log(TopicPartition("t", 0), log_dir / "t-0", Fs())
    mark = mark_of(found)
    (log_dir / "t-0" / f"{20:020d}.log").write_bytes(b"goes on and on")
    assert mark.holds_for(list_log(found.partition, found.path, Fs()))


def test_a_mark_without_a_fingerprint_holds_by_the_segments_alone(log_dir):
    update_uncleanable(log_dir, Fs(), add=[mark_of(listing(0, 10))])
    path = log_dir / UNCLEANABLE_FILE
    document = json.loads(path.read_text())
    assert document["version"] == 1
    assert set(document["partitions"][0]["segments"][0]) == {field.name for field in fields(SegmentRef)}
    del document["partitions"][0]["fingerprint"]
    path.write_text(json.dumps(document))
    (mark,) = read_uncleanable(log_dir, Fs()).values()
    assert mark.fingerprint is None and mark.holds_for(listing(0, 10, 20))


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
