"""Following of a directory that changes: appends, new partitions, removed segments, truncation, and the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sediment.jobs.dumping import follow
from sediment.jobs.dumping.follow import Follower
from sediment.jobs.dumping.plain_rows import rows_of
from sediment.jobs.dumping.row_query import RowQuery
from sediment.jobs.process.cancellation import end_on_signals, stop_on_signals
from sediment.segment_io.format.names import HIGH_WATERMARK_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_offset_checkpoint
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import READ_COMMITTED, READ_UNCOMMITTED, TableRequest
from tests.segments import COMMIT, batch_bytes, marker_bytes, write_segment
from tests.waiting import LIMIT_SECONDS


class Followed:
    """A follower of a directory, read as far as the caller asks."""

    def __init__(self, path: Path, isolation: str = READ_UNCOMMITTED, last: int | None = None) -> None:
        self.notices: list[str] = []
        self.stop = threading.Event()
        request = TableRequest(columns=("partition", "offset"), isolation=isolation)
        query = RowQuery(request, find_sources([path], Fs()), last=last)
        ends = LogEnds([path], isolation)
        follower = Follower(query, ends, on_unreadable=lambda _range: None, on_notice=self.notices.append)
        self._rows = self._all_rows(follower.batches(self.stop))

    @staticmethod
    def _all_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int]]:
        for batch in batches:
            for row in rows_of(batch):
                yield row["partition"], row["offset"]

    def take(self, count: int) -> list[tuple[int, int]]:
        return [next(self._rows) for _ in range(count)]

    def rest(self) -> list[tuple[int, int]]:
        self.stop.set()
        return list(self._rows)


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0.005)


def append(log: Path, batch: bytes) -> None:
    with log.open("ab") as file:
        file.write(batch)


def test_appended_records_new_segments_and_new_partitions_are_returned_once(tmp_path: Path) -> None:
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "ab")])
    followed = Followed(tmp_path)
    assert followed.take(2) == [(0, 0), (0, 1)]
    append(log, batch_bytes(2, "c"))
    assert followed.take(1) == [(0, 2)]
    write_segment(tmp_path / "t-0", 3, [batch_bytes(3, "d")])
    write_segment(tmp_path / "t-1", 0, [batch_bytes(0, "e")])
    assert sorted(followed.take(2)) == [(0, 3), (1, 0)]
    assert (followed.rest(), followed.notices) == ([], [])


def test_a_batch_in_progress_waits_until_it_is_complete(tmp_path: Path) -> None:
    batch = batch_bytes(1, "bc")
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "a"), batch[:-5]])
    followed = Followed(tmp_path)
    assert followed.take(1) == [(0, 0)]
    append(log, batch[-5:] + batch_bytes(3, "d"))
    assert followed.take(3) == [(0, 1), (0, 2), (0, 3)]


def test_only_the_first_round_is_limited_to_the_last_records(tmp_path: Path) -> None:
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abcd")])
    followed = Followed(tmp_path, last=1)
    assert followed.take(1) == [(0, 3)]
    append(log, batch_bytes(4, "ef"))
    assert followed.take(2) == [(0, 4), (0, 5)]


def test_read_committed_waits_for_the_marker(tmp_path: Path) -> None:
    transaction = batch_bytes(1, "bc", producer_id=7, transactional=True)
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "a"), transaction])
    followed = Followed(tmp_path, READ_COMMITTED)
    assert followed.take(1) == [(0, 0)]
    append(log, marker_bytes(3, COMMIT, producer_id=7))
    assert followed.take(2) == [(0, 1), (0, 2)]


def write_high_watermark(log_dir: Path, high_watermark: int) -> None:
    write_offset_checkpoint(Fs(), log_dir / HIGH_WATERMARK_FILE, {TopicPartition("t", 0): high_watermark})


def test_a_high_watermark_below_the_records_that_were_read_repeats_no_record(tmp_path: Path) -> None:
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abcd"), batch_bytes(4, "efgh")])
    beacon = write_segment(tmp_path / "t-1", 0, [batch_bytes(0, "a")])
    followed = Followed(tmp_path, READ_COMMITTED)
    assert len(followed.take(9)) == 9
    for offset, high_watermark in enumerate((4, 6, 8), start=1):
        write_high_watermark(tmp_path, high_watermark)
        append(beacon, batch_bytes(offset, "a"))
        assert followed.take(1) == [(1, offset)]
    append(log, batch_bytes(8, "i"))
    write_high_watermark(tmp_path, 9)
    assert followed.take(1) == [(0, 8)]
    assert (followed.rest(), followed.notices) == ([], [])


def test_a_truncation_below_the_records_that_were_read_is_said_with_the_log_end(tmp_path: Path) -> None:
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abcd"), batch_bytes(4, "efgh")])
    beacon = write_segment(tmp_path / "t-1", 0, [batch_bytes(0, "a")])
    followed = Followed(tmp_path, READ_COMMITTED)
    assert len(followed.take(9)) == 9
    write_high_watermark(tmp_path, 2)
    log.write_bytes(batch_bytes(0, "abcd"))
    append(beacon, batch_bytes(1, "a"))
    assert followed.take(1) == [(1, 1)]
    append(log, batch_bytes(4, "xyz"))
    write_high_watermark(tmp_path, 7)
    assert followed.take(3) == [(0, 4), (0, 5), (0, 6)]
    assert (followed.rest(), followed.notices) == ([], ["t-0 was truncated to offset 4"])


def test_lost_truncated_and_removed_records_are_said(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "ab")])
    write_segment(tmp_path / "t-1", 0, [batch_bytes(0, "a")])
    followed = Followed(tmp_path)
    assert followed.take(3) == [(0, 0), (0, 1), (1, 0)]
    for file in (tmp_path / "t-0").iterdir():
        file.unlink()
    write_segment(tmp_path / "t-0", 5, [batch_bytes(5, "f")])
    shutil.rmtree(tmp_path / "t-1")
    assert followed.take(1) == [(0, 5)]
    assert sorted(followed.notices) == ["t-0: offsets 2 to 4 were removed before they were read", "t-1 was removed"]
    (tmp_path / "t-0" / f"{5:020d}.log").write_bytes(b"")
    write_segment(tmp_path / "t-1", 0, [batch_bytes(0, "z")])
    assert followed.take(1) == [(1, 0)]
    assert followed.notices[2:] == ["t-0 was truncated to offset 5"]


def test_a_partition_that_is_deleted_while_it_is_read_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    bad = batch_bytes(0, "ab")[:-1] + b"!"
    write_segment(tmp_path / "gone-0", 0, [bad])
    write_segment(tmp_path / "gone-0", 2, [batch_bytes(2, "cd")])
    write_segment(tmp_path / "gone-0", 4)
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "a")])
    notices: list[str] = []

    def delete(_range: UnreadableRange) -> None:
        (tmp_path / "gone-0").rename(tmp_path / f"gone-0.{'0' * 32}-delete")
        shutil.rmtree(tmp_path / f"gone-0.{'0' * 32}-delete")

    query = RowQuery(TableRequest(columns=("topic", "offset"), on_corruption="skip"), find_sources([tmp_path], Fs()))
    follower = Follower(query, LogEnds([tmp_path], READ_UNCOMMITTED), on_unreadable=delete, on_notice=notices.append)
    stop = threading.Event()
    rows = (row for batch in follower.batches(stop) for row in rows_of(batch))
    assert next(rows) == {"topic": "t", "offset": 0}
    append(log, batch_bytes(1, "b"))
    assert next(rows) == {"topic": "t", "offset": 1}
    write_segment(tmp_path / "gone-0", 0, [batch_bytes(0, "z")])
    assert next(rows) == {"topic": "gone", "offset": 0}
    assert notices == ["gone-0 was removed while it was read; records below offset 4 may be missing"]


def recreate(partition: Path, batch: bytes) -> None:
    """Do what a broker does: rename the old directory, and remove it later."""
    partition.rename(partition.with_name(f"{partition.name}.{'0' * 32}-delete"))
    write_segment(partition, 0, [batch])


def test_a_partition_that_was_created_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    followed = Followed(tmp_path, last=1)
    assert followed.take(1) == [(0, 2)]
    recreate(tmp_path / "t-0", batch_bytes(0, "defgh"))
    assert followed.take(5) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
    append(log, batch_bytes(5, "i"))
    assert followed.take(1) == [(0, 5)]
    assert (followed.rest(), followed.notices) == ([], ["t-0 was created again and is read from its beginning"])


def test_the_topic_id_says_whether_a_partition_is_the_same(tmp_path: Path) -> None:
    """A directory that moved from another disk is the same partition, and one with another id is not."""
    log, metadata = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")]), tmp_path / "t-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    followed = Followed(tmp_path)
    assert followed.take(3) == [(0, 0), (0, 1), (0, 2)]
    shutil.copytree(tmp_path / "t-0", tmp_path / "moved")
    (tmp_path / "t-0").rename(tmp_path / "t-0.1-delete")
    (tmp_path / "moved").rename(tmp_path / "t-0")
    append(log, batch_bytes(3, "d"))
    assert followed.take(1) == [(0, 3)]
    Fs().replace_file(metadata, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    assert followed.take(4) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [text for text in followed.notices if "removed" not in text] == [
        "t-0 was created again and is read from its beginning"
    ]


def test_a_signal_ends_the_reading_where_no_record_is_selected(tmp_path: Path) -> None:
    bad = [batch_bytes(offset, "ab")[:-1] + b"!" for offset in range(0, 20, 2)]
    write_segment(tmp_path / "t-0", 0, bad)
    read: list[int] = []

    def on_unreadable(unreadable: UnreadableRange) -> None:
        read.append(unreadable.position)
        signal.raise_signal(signal.SIGINT)

    query = RowQuery(TableRequest(on_corruption="skip"), find_sources([tmp_path], Fs()))
    ends = LogEnds([tmp_path], READ_UNCOMMITTED)
    follower = Follower(query, ends, on_unreadable=on_unreadable, on_notice=lambda _text: None)
    with end_on_signals(), stop_on_signals() as stop:
        assert list(follower.batches(stop)) == []
    assert read == [0]


def test_a_reader_that_left_ends_the_command_before_the_next_record(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "a")])
    command = [sys.executable, "-m", "sediment.jobs.cli", "dump", str(tmp_path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(LIMIT_SECONDS), process.stderr.read()) == (141, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_one_sentence_and_status_0(number: int, tmp_path: Path) -> None:
    log = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "ab")])
    command = [sys.executable, "-m", "sediment.jobs.cli", "dump", str(tmp_path), "--follow"]
    if number == signal.SIGINT:
        command += ["-f", r"%o=%k\n", "--last", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        killer = threading.Timer(LIMIT_SECONDS, process.kill)
        killer.start()
        first = process.stdout.readline()
        append(log, batch_bytes(2, "c"))
        others = [process.stdout.readline() for _ in range(1 if number == signal.SIGINT else 2)]
        os.kill(process.pid, number)
        rest, said = process.communicate()
        killer.cancel()
    if number == signal.SIGINT:
        assert (first, others, said) == (b"1=b\n", [b"2=c\n"], b"stopped after 2 records\n")
    else:
        assert (first, others[-1], said) == (b"t-0\t0\ta\tvalue\n", b"t-0\t2\tc\tvalue\n", b"stopped after 3 records\n")
    assert (process.returncode, rest) == (0, b"")
