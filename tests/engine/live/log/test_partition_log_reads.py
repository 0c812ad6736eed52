"""Reading, looking up by timestamp, sending (kafka-log 04 §8, §9; 07 G)."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sediment.engine.live.log.fetched_data import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    Isolation,
    LogOffsetMetadata,
    TimestampOffsetEpoch,
)
from sediment.segment_io.errors import OffsetOutOfRangeError, UsageError
from sediment.segment_io.partition.file_slice import FileSlice
from tests.engine.live_logs import NOW_MS, LiveLog, batch
from tests.twin.batches import ControlType, Record
from tests.twin.legacy import encode_legacy
from tests.waiting import LIMIT_SECONDS

COMMITTED, HIGH_WATERMARK = Isolation.TXN_COMMITTED, Isolation.HIGH_WATERMARK
TWO = (("a", "1"), ("b", "2"))


def test_rd_01_offsets_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(3):
        log.lead(batch())
    log.log.maybe_increment_log_start_offset(1)
    assert log.log.read(3, 100).read() == b""
    for offset in (4, 0):
        with pytest.raises(OffsetOutOfRangeError):
            log.log.read(offset, 100)
        with pytest.raises(OffsetOutOfRangeError):
            log.log.read(offset, 100, HIGH_WATERMARK)


def test_rd_02_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(*TWO))
    log.lead(batch(*TWO, ("c", "3")))
    fetched = log.log.read(3, 1000)
    assert fetched.start == LogOffsetMetadata(2, 0, 79)
    assert log.fetched_offsets(3) == [2, 3, 4]


def test_rd_03_a_read_finds_the_next_batch_after_a_gap(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(40)
    log.follow(batch(*TWO, at=50))
    log.follow(batch(*TWO, at=60))
    assert log.fetched_offsets(41) == [50, 51, 60, 61]
    assert log.fetched_offsets(52) == [60, 61]
    assert log.log.read(62, 100).read() == b""
    log.log.roll()
    log.follow(batch(at=70))
    assert log.fetched_offsets(62) == [70]


def test_rd_04_a_read_after_a_segment_goes_on_in_the_next(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch())
    log.log.roll(5)
    log.follow(batch(at=5))
    assert log.log.read(1, 100).start == LogOffsetMetadata(5, 5, 0)


def test_rd_05_sizes_and_the_first_batch(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(3):
        log.lead(batch())
    assert log.log.read(0, 0).read() == b""
    cut = log.log.read(1, 1)
    assert (cut.size_bytes, cut.first_entry_incomplete, len(cut.read())) == (1, True, 1)
    whole = log.log.read(1, 1, min_one_message=True)
    assert (whole.size_bytes, whole.first_entry_incomplete) == (71, False)
    assert log.log.read(0, 0, min_one_message=True).size_bytes == 71
    with pytest.raises(UsageError):
        log.log.read(0, -1)


def test_rd_06_readers_stop_at_the_high_watermark(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(5):
        log.lead(batch(), high_watermark=False)
    log.log.update_high_watermark(3)
    assert log.fetched_offsets(0, HIGH_WATERMARK) == [0, 1, 2]
    assert log.log.read(3, 100, HIGH_WATERMARK).size_bytes == 0
    assert log.log.read(4, 100, HIGH_WATERMARK).size_bytes == 0
    assert log.fetched_offsets(0) == [0, 1, 2, 3, 4]


def test_rd_07_readers_of_committed_data_stop_at_an_open_transaction(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(2):
        log.lead(batch())
    log.lead(batch(pid=1, seq=0, tx=True))
    log.lead(batch())
    assert log.log.last_stable_offset == log.log.first_unstable_offset == 2
    assert log.fetched_offsets(0, COMMITTED) == [0, 1]
    assert log.log.read(2, 100, COMMITTED).size_bytes == 0
    log.mark(1, ControlType.COMMIT)
    assert log.log.last_stable_offset == 5
    assert log.fetched_offsets(0, COMMITTED) == [0, 1, 2, 3, 4]


def test_rd_08_an_aborted_transaction_is_told_from_every_segment_that_it_touches(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(3):
        log.lead(batch(pid=137, seq=sequence, tx=True))
        log.log.roll()
    log.mark(137, ControlType.ABORT)
    log.lead(batch(pid=7, seq=0, tx=True))
    for offset in range(3):
        aborted = log.log.read(offset, 1000, COMMITTED).aborted
        assert aborted is not None
        assert [(one.producer_id, one.first_offset, one.last_offset) for one in aborted] == [(137, 0, 3)]
    assert log.log.read(4, 1000, COMMITTED).aborted == ()
    assert log.log.read(0, 1000).aborted is None
    log.mark(7, ControlType.ABORT)
    (mine,) = log.log.read(4, 1000, COMMITTED).aborted or ()
    assert (mine.producer_id, mine.first_offset) == (7, 4)


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of Python functions that an action calls."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_a_read_of_committed_data_costs_the_same_however_many_segments_follow(tmp_path: Path) -> None:
    calls = []
    for segments in (5, 60):
        (tmp_path / str(segments)).mkdir()
        log = LiveLog(tmp_path / str(segments), segment_bytes=71)
        for _ in range(segments):
            log.lead(batch())
        assert len(log.bases()) == segments
        assert log.fetched_offsets(0, Isolation.TXN_COMMITTED) == [0]
        calls.append(calls_of(lambda log=log: log.log.read(0, 1000, Isolation.TXN_COMMITTED)))  # type: ignore[misc]
    assert calls[0] == calls[1] > 0


@pytest.mark.parametrize("asked_first", [False, True])
def test_aborted_transactions_are_told_after_rolls_cuts_and_cleanings(tmp_path: Path, asked_first: bool) -> None:
    log = LiveLog(tmp_path, segment_bytes=300)

    def aborted(offset: int) -> list[tuple[int, int]]:
        found = log.log.read(offset, 1000, Isolation.TXN_COMMITTED).aborted
        assert found is not None
        return [(transaction.first_offset, transaction.last_offset) for transaction in found]

    if asked_first:
        log.lead(batch())
        assert aborted(0) == []
        log.log.truncate_fully_and_start_at(0)
    for number in range(6):
        log.lead(batch(pid=1, seq=number, tx=True))
        log.lead(batch())
        log.mark(1, ControlType.ABORT)
        log.lead(batch())
    bases = log.bases()
    assert len(bases) == 6
    assert [aborted(base) for base in bases] == [[(4 * n, 4 * n + 2)] for n in range(6)]
    log.log.truncate_to(bases[5])
    assert [aborted(base) for base in bases[:5]] == [[(4 * n, 4 * n + 2)] for n in range(5)]
    log.log.truncate_to(bases[4] + 2)
    assert aborted(bases[3]) == [(12, 14)]
    log.mark(1, ControlType.ABORT)
    assert aborted(bases[4]) == [(16, 18)]
    log.log.maybe_increment_log_start_offset(bases[2])
    log.log.delete_old_segments()
    assert [aborted(base) for base in bases[2:5]] == [[(8, 10)], [(12, 14)], [(16, 18)]]


def test_rd_09_a_read_is_of_one_segment(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=142)
    for _ in range(4):
        log.lead(batch())
    assert log.fetched_offsets(0) == [0, 1]
    assert log.fetched_offsets(2) == [2, 3]


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_rd_10_the_first_record_at_or_after_a_time(tmp_path: Path, interval: int) -> None:
    log = LiveLog(tmp_path, index_interval_bytes=interval)
    log.log.truncate_fully_and_start_at(40)
    for step in range(10):
        log.follow(batch(at=40 + step, ts=400 + 10 * step))
    wanted = {420: 42, 421: 43, 430: 43, 431: 44, 399: 40}
    for target, offset in wanted.items():
        found = log.log.lookup_timestamp(target)
        assert found == TimestampOffsetEpoch(400 + 10 * (offset - 40), offset, 0)
    assert log.log.lookup_timestamp(491) is None
    log.restart()
    assert log.log.lookup_timestamp(431) == TimestampOffsetEpoch(440, 44, 0)


@pytest.mark.parametrize("codec", [1, 4])
def test_a_lookup_looks_into_compressed_batches(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(*TWO, ("c", "3"), ts=[10, 30, 20], codec=codec))
    assert log.log.lookup_timestamp(15) == TimestampOffsetEpoch(30, 1, 0)
    assert log.log.lookup_timestamp(MAX_TIMESTAMP) == TimestampOffsetEpoch(30, 1, 0)


@pytest.mark.parametrize("codec", [0, 1])
def test_a_lookup_looks_into_messages_of_magic_1(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path)
    records = [Record(at, ts, b"k", b"v") for at, ts in ((0, 10), (1, 30), (2, 20))]
    log.follow(encode_legacy(records, magic=1, codec=codec))
    assert log.log.lookup_timestamp(15) == TimestampOffsetEpoch(30, 1, -1)


def test_rd_11_earliest_and_latest(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    assert log.log.lookup_timestamp(0) is None
    assert log.log.lookup_timestamp(EARLIEST_TIMESTAMP) == TimestampOffsetEpoch(-1, 0, -1)
    log.lead(batch(), epoch=1)
    log.lead(batch(), epoch=1)
    earliest = TimestampOffsetEpoch(-1, 0, 1)
    assert log.log.lookup_timestamp(EARLIEST_TIMESTAMP) == earliest
    assert log.log.lookup_timestamp(EARLIEST_LOCAL_TIMESTAMP) == earliest
    assert log.log.lookup_timestamp(LATEST_TIMESTAMP) == TimestampOffsetEpoch(-1, 2, 1)
    log.log.assign_leader_epoch(2, 2)
    assert log.log.lookup_timestamp(LATEST_TIMESTAMP) == TimestampOffsetEpoch(-1, 2, 2)
    with pytest.raises(UsageError):
        log.log.lookup_timestamp(-9)


def test_rd_12_the_largest_timestamp(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    assert log.log.lookup_timestamp(MAX_TIMESTAMP) is None
    for ts in (NOW_MS, NOW_MS + 1, NOW_MS):
        log.lead(batch(ts=ts))
        log.log.roll()
    assert log.log.lookup_timestamp(MAX_TIMESTAMP) == TimestampOffsetEpoch(NOW_MS + 1, 1, 0)


def test_rd_13_a_lookup_begins_at_the_log_start(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(*TWO, ("c", "3"), ts=[1, 2, 3]))
    log.log.maybe_increment_log_start_offset(2)
    assert log.log.lookup_timestamp(1) == TimestampOffsetEpoch(3, 2, 0)


def test_rd_14_nothing_is_tiered(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for target in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        assert log.log.lookup_timestamp(target) == TimestampOffsetEpoch(-1, -1, -1)


def test_rd_15_the_segments_of_a_range(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for base in (10, 20):
        log.log.roll(base)
        log.follow(batch(at=base))
    between = log.log.segment_bases_between
    assert between(10, 10) == ()
    assert between(0, 21) == (0, 10, 20)
    assert between(1, 5) == (0,)
    assert between(13, 21) == (10, 20)
    assert between(13, 17) == (10,)
    with pytest.raises(UsageError):
        between(10, 0)


def test_a_segment_without_timestamps_is_looked_up_by_its_modification_time(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(ts=-1))
    log.log.roll()
    log.lead(batch(ts=NOW_MS))
    os.utime(log.directory / f"{0:020d}.log", ns=(5_000_000_000, 5_000_000_000))
    assert log.log.lookup_timestamp(5000) is None
    assert log.log.lookup_timestamp(5001) == TimestampOffsetEpoch(NOW_MS, 1, 0)


def test_lookups_in_a_long_index_hit_every_batch(tmp_path: Path) -> None:
    """Warm and cold part: 3000 entries are 24,000 bytes of offset index."""
    log = LiveLog(tmp_path, index_interval_bytes=0, segment_index_bytes=60_000)
    log.follow(*(batch(at=10 * step, ts=NOW_MS + step) for step in range(3000)))
    for step in (0, 1, 2, 500, 1974, 1975, 1976, 2500, 2998, 2999):
        for offset in (10 * step, 10 * step - 9):
            if offset >= 0:
                assert log.log.read(offset, 1).start.offset == 10 * step
        found = log.log.lookup_timestamp(NOW_MS + step)
        assert found is not None
        assert found.offset == 10 * step
    log.restart()
    assert log.log.read(19_741, 1).start.offset == 19_750


def test_a_slice_is_sent_to_a_socket(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_index_bytes=12_000)
    for _ in range(2000):
        log.lead(batch(("k", "v" * 900)))
    fetched = log.log.read(3, 1 << 20)
    here, there = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while data := there.recv(1 << 16):
            received.extend(data)

    reader = threading.Thread(target=receive)
    reader.start()
    with here:
        assert fetched.records is not None
        assert fetched.records.send_waiting(here, 0, lambda: True) == fetched.size_bytes == 1 << 20
    reader.join()
    there.close()
    assert bytes(received) == fetched.read()


def filled_slice(tmp_path: Path) -> tuple[LiveLog, FileSlice, bytes]:
    """Return a slice that no socket takes at once, with its log and its bytes."""
    log = LiveLog(tmp_path)
    log.lead(batch(("k", "v" * 900_000)))
    log.lead(batch(("k", "w" * 900_000)))
    data = log.log.read(1, 10_000_000).records
    assert data is not None
    return log, data, data.read()


def test_a_slice_is_sent_piece_by_piece_to_a_socket_that_does_not_block(tmp_path: Path) -> None:
    log, data, content = filled_slice(tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        sent, received, waited = 0, bytearray(), 0
        while sent < data.size_bytes:
            count = data.send_some(ours, sent)
            sent += count
            if not count:
                waited += 1
                received += theirs.recv(1 << 20)
        assert waited > 1
        assert data.send_some(ours, sent) == 0
        while len(received) < sent:
            received += theirs.recv(1 << 20)
    assert bytes(received) == content
    assert os.pread(data.fileno(), data.size_bytes, data.position) == content
    assert data.position > 0
    empty = log.log.read(2, 100)
    assert (empty.records, empty.size_bytes, empty.read()) == (None, 0, b"")


def test_a_slice_outlives_the_segment_that_it_is_of(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch())
    before = log.log.read(0, 1000)
    content = before.read()
    log.log.truncate_fully_and_start_at(5)
    log.tasks.move(60_000)
    log.log.close()
    assert f"{0:020d}.log.deleted" not in log.names()
    assert before.read() == content == batch()


def test_offsets_are_found_in_files(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=142)
    for _ in range(3):
        log.lead(batch())
    assert log.log.convert_to_offset_metadata(1) == LogOffsetMetadata(1, 0, 71)
    assert log.log.convert_to_offset_metadata(2) == LogOffsetMetadata(2, 2, 0)
    assert log.log.convert_to_offset_metadata(3) == LogOffsetMetadata(3, 2, 71)
    with pytest.raises(OffsetOutOfRangeError):
        log.log.convert_to_offset_metadata(4)


def test_a_reader_follows_a_writer_that_rolls_flushes_and_deletes(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=4000, index_interval_bytes=100, retention_bytes=8000)
    total = 1500
    seen: list[int] = []

    def read() -> None:
        offset = 0
        while offset < total:
            offset = max(offset, log.log.log_start_offset)
            try:
                batches = log.fetch(offset, HIGH_WATERMARK, 700)
            except OffsetOutOfRangeError:
                continue
            for found in batches:
                assert found.is_valid()
                if found.base_offset >= offset:
                    seen.append(found.base_offset)
                    offset = found.base_offset + 1

    reader = threading.Thread(target=read)
    reader.start()
    for at in range(total):
        log.lead(batch(("kk", "v" * (at % 50)), ts=NOW_MS + at))
        if at % 100 == 50:
            log.log.flush()
            log.log.delete_old_segments()
    reader.join(LIMIT_SECONDS)
    assert not reader.is_alive()
    assert seen == sorted(set(seen))
    assert seen[-1] == total - 1
