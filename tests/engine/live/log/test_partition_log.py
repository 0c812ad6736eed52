"""Appending as a follower, leader epochs, rolling, flushing, high watermark (kafka-log 04 §1, §4 to §7; 07 F)."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest

from sediment.engine.clone.log_end import AtOnce
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import (
    CorruptBatchError,
    OffsetsOutOfOrderError,
    StorageError,
    UnexpectedAppendOffsetError,
    UsageError,
)
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs, OpenFile
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.engine.live_logs import NOW_MS, LiveLog, batch
from tests.segments import batch_bytes, write_segment
from tests.twin.batches import Record, parse_batch
from tests.twin.indexes import parse_offset_index, parse_time_index
from tests.twin.legacy import encode_legacy
from tests.waiting import LIMIT_SECONDS


def epochs_of(log: LiveLog) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in log.log.leader_epochs]


def epochs_in_file(log: LiveLog) -> list[tuple[int, int]]:
    lines = (log.directory / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    return [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]


def offset_entries(log: LiveLog, base: int = 0) -> list[tuple[int, int]]:
    data = (log.directory / f"{base:020d}.index").read_bytes()
    return [(entry.offset, entry.position) for entry in parse_offset_index(data, base) if entry.position]


def time_entries(log: LiveLog, base: int = 0) -> list[tuple[int, int]]:
    data = (log.directory / f"{base:020d}.timeindex").read_bytes()
    return [(entry.timestamp, entry.offset) for entry in parse_time_index(data, base) if entry.timestamp]


# ------------------------------------------------------------------------------------------------------------ followers
def test_ap_15_a_follower_takes_offsets_that_ascend_and_gaps(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    with pytest.raises(OffsetsOutOfOrderError):
        log.follow(*(batch(at=at) for at in (0, 1, 3, 2, 4)))
    assert log.log.log_end_offset == 0
    log.follow(*(batch(at=at) for at in (0, 1)))
    with pytest.raises(UnexpectedAppendOffsetError):
        log.follow(batch(at=1))
    info = log.follow(batch(at=7))
    assert (info.first_offset, log.log.log_end_offset) == (7, 8)


def test_batches_whose_offsets_fit_no_segment_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(batch(at=5))
    with pytest.raises(UnexpectedAppendOffsetError, match="segment"):
        log.follow(batch(at=6), batch(at=6 + 2**31))
    assert log.log.log_end_offset == 6
    log.follow(batch(at=6), batch(at=5 + 2**31))
    assert log.log.log_end_offset == 6 + 2**31


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 3), (1, 0), (1, 3), (2, 0), (2, 3)])
def test_ap_16_offsets_below_the_end_are_told(tmp_path: Path, magic: int, codec: int) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(7)
    records = [Record(offset, NOW_MS, b"k", b"v") for offset in (4, 5, 6)]
    data = (
        batch(*[("k", "v")] * 3, at=4, codec=codec) if magic == 2 else encode_legacy(records, magic=magic, codec=codec)
    )
    with pytest.raises(UnexpectedAppendOffsetError) as refused:
        log.follow(data)
    assert (refused.value.first_offset, refused.value.last_offset) == (4, 6)
    assert log.log.log_end_offset == 7


@pytest.mark.parametrize(
    ("magic", "codec", "first"), [(0, 0, 4), (0, 3, -1), (1, 0, 4), (1, 3, -1), (2, 0, 4), (2, 3, 4)]
)
def test_a_follower_is_told_the_first_offset_where_the_header_has_it(
    tmp_path: Path, magic: int, codec: int, first: int
) -> None:
    log = LiveLog(tmp_path)
    records = [Record(offset, NOW_MS, b"k", b"v") for offset in (4, 5, 6)]
    data = (
        batch(*[("k", "v")] * 3, at=4, codec=codec) if magic == 2 else encode_legacy(records, magic=magic, codec=codec)
    )
    info = log.follow(data)
    assert (info.first_offset, info.last_offset, log.log.log_end_offset) == (first, 6, 7)


def test_ap_17_messages_without_epochs_empty_the_leader_epochs(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(batch(at=0, epoch=3), epoch=3)
    assert epochs_in_file(log) == [(3, 0)]
    log.follow(encode_legacy([Record(1, NOW_MS, b"k", b"v")], magic=1), epoch=3)
    assert epochs_of(log) == epochs_in_file(log) == []


def test_ap_34_batches_after_a_later_leader_epoch_are_left_out(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(batch(at=0, epoch=3), batch(at=1, epoch=5), batch(at=2, epoch=3), epoch=4)
    assert (log.log.log_end_offset, epochs_of(log)) == (1, [(3, 0)])


def test_every_leader_epoch_of_an_append_is_noted(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(*(batch(at=at, epoch=epoch) for at, epoch in ((0, 1), (1, 1), (2, 4), (3, 7))), epoch=9)
    assert epochs_of(log) == epochs_in_file(log) == [(1, 0), (4, 2), (7, 3)]
    assert log.log.end_offset_for_epoch(1) == (1, 2)
    assert log.log.end_offset_for_epoch(2) == (1, 2)
    assert log.log.end_offset_for_epoch(0) == (0, 0)
    assert log.log.end_offset_for_epoch(7) == (7, 4)
    assert log.log.end_offset_for_epoch(8) == (-1, -1)
    assert log.log.end_offset_for_epoch(-1) == (-1, -1)


# ----------------------------------------------------------------------------------------------------------------- roll
@pytest.mark.parametrize(("segment_bytes", "bases"), [(213, [0, 3, 6]), (212, [0, 2, 4, 6])])
def test_ap_18_a_segment_that_would_be_too_large_is_rolled(
    tmp_path: Path, segment_bytes: int, bases: list[int]
) -> None:
    log = LiveLog(tmp_path, segment_bytes=segment_bytes)
    for _ in range(7):
        log.lead(batch())
    assert log.bases() == bases


def test_ap_19_record_timestamps_roll_a_segment_and_the_clock_does_not(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_ms=1000)
    log.lead(batch(ts=5000))
    log.tasks.move(100_000)
    log.lead(batch(ts=6000))
    assert log.bases() == [0]
    log.lead(batch(ts=6001))
    assert log.bases() == [0, 2]


def test_ap_19_the_first_batch_of_the_first_append_counts(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_ms=1000)
    log.follow(batch(ts=5000), batch(at=1, ts=5600))
    log.follow(batch(at=2, ts=6200))
    assert log.bases() == [0, 2]


def test_ap_20_without_timestamps_the_age_of_the_segment_counts(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_ms=1000)
    log.tasks.move(50_000)
    log.lead(batch(ts=-1))
    assert log.bases() == [0]
    log.log.roll()
    log.lead(batch(ts=-1))
    log.tasks.move(1000)
    log.lead(batch(ts=-1))
    assert log.bases() == [0, 1]
    log.tasks.move(1)
    log.lead(batch(ts=-1))
    assert log.bases() == [0, 1, 3]


def test_ap_21_a_first_record_without_timestamp_leaves_it_to_the_clock(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_ms=1000)
    log.lead(batch(ts=-1))
    log.tasks.move(1000)
    log.lead(batch(ts=NOW_MS + 10_000))
    assert log.bases() == [0]


def test_ap_22_jitter_makes_a_segment_roll_earlier(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_ms=1000, segment_jitter_ms=600, random_jitter=lambda bound: bound - 200)
    log.lead(batch(ts=5000))
    log.lead(batch(ts=5600))
    assert log.bases() == [0]
    log.lead(batch(ts=5601))
    assert log.bases() == [0, 2]


def test_ap_23_a_full_time_index_rolls_a_segment(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_index_bytes=24, index_interval_bytes=0)
    for at in range(6):
        log.lead(batch(ts=NOW_MS + at))
    assert log.bases() == [0, 2, 4]


def test_ap_24_offsets_that_do_not_fit_roll_a_segment(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(batch(at=0))
    log.follow(batch(at=2147483647))
    assert log.bases() == [0]
    log.follow(batch(at=2147483648))
    assert log.bases() == [0, 2147483648]


def test_ap_25_a_roll_trims_indexes_and_leaves_a_snapshot(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, index_interval_bytes=0)
    log.lead(batch(pid=1, seq=0))
    log.lead(batch(pid=1, seq=1, ts=NOW_MS + 1))
    assert (log.size(f"{0:020d}.index"), log.size(f"{0:020d}.timeindex")) == (1000, 996)
    assert log.log.roll() == 2
    assert (log.size(f"{0:020d}.index"), log.size(f"{0:020d}.timeindex")) == (8, 12)
    assert log.names(".log") == [f"{0:020d}.log", f"{2:020d}.log"]
    assert log.names(".snapshot") == [f"{2:020d}.snapshot"]
    assert f"{2:020d}.index" not in log.names()
    log.lead(batch(pid=1, seq=2))
    assert log.size(f"{2:020d}.index") == 1000


def test_ap_26_an_empty_active_segment_is_made_anew(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch())
    for _ in range(3):
        assert log.log.roll() == 1
        assert log.bases() == [0, 1]
    assert log.lead(batch()).first_offset == 1
    assert log.fetched_offsets(0) == [0]
    assert log.fetched_offsets(1) == [1]


def test_rolling_below_the_active_segment_is_refused(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.roll(10)
    with pytest.raises(UsageError):
        log.log.roll(5)
    assert log.bases() == [0, 10]


def test_ap_27_files_that_lie_where_a_segment_begins_are_deleted(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(7):
        log.lead(batch())
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        (log.directory / f"{7:020d}{suffix}").write_bytes(b"stray")
    log.log.roll()
    assert (log.size(f"{7:020d}.log"), log.names(".txnindex")) == (0, [])
    assert log.lead(batch()).first_offset == 7
    assert log.fetched_offsets(7) == [7]


def test_a_preallocated_segment_has_its_full_size_until_it_is_rolled(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, preallocate=True, segment_bytes=1024)
    log.log.roll(5)
    log.follow(batch(at=5))
    assert log.size(f"{5:020d}.log") == 1024
    assert log.log.read(5, 5000).size_bytes == 71
    log.log.roll()
    assert log.size(f"{5:020d}.log") == 71
    log.stop()
    assert log.size(f"{6:020d}.log") == 0


def test_the_first_segment_of_a_log_is_preallocated_too(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, preallocate=True, segment_bytes=1024)
    assert log.size(f"{0:020d}.log") == 1024
    assert log.log.size_bytes == 0
    log.lead(batch())
    log.restart(clean=False, recovery_point=0)
    assert (log.log.log_end_offset, log.size(f"{0:020d}.log")) == (1, 71)
    log.log.truncate_fully_and_start_at(5)
    assert log.size(f"{5:020d}.log") == 1024
    log.stop()
    assert log.size(f"{5:020d}.log") == 0


# ---------------------------------------------------------------------------------------------------------------- flush
def test_ap_28_so_many_unflushed_records_force_a_flush(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, flush_messages=5)
    for _ in range(2):
        log.lead(batch(("a", "1"), ("b", "2")))
    assert log.log.recovery_point == 0
    log.lead(batch())
    assert log.log.recovery_point == 5


def test_ap_29_the_work_after_a_roll_moves_the_recovery_point(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, held=True)
    log.lead(batch())
    log.log.roll()
    assert log.log.recovery_point == 0
    log.tasks.run()
    assert log.log.recovery_point == 1


@dataclass(slots=True)
class UnsyncableFs(Fs):
    """A disk that fails when files whose name ends with `suffix` are synced."""

    suffix: str

    def sync_file(self, path: Path) -> None:
        if path.name.endswith(self.suffix):
            raise OSError(errno.EIO, "no", str(path))
        Fs.sync_file(self, path)


def test_ap_29_a_snapshot_that_cannot_be_synced_leaves_the_recovery_point(tmp_path: Path) -> None:
    told: list[OSError] = []
    log = LiveLog(tmp_path, fs=UnsyncableFs(".nothing"), held=True, on_failure=lambda _log, error: told.append(error))
    log.lead(batch())
    log.log.roll()
    assert isinstance(log.fs, UnsyncableFs)
    log.fs.suffix = ".snapshot"
    log.tasks.run()
    assert log.log.recovery_point == 0
    assert log.log.is_offline
    assert [error.errno for error in told] == [errno.EIO]
    with pytest.raises(StorageError):
        log.lead(batch())
    with pytest.raises(StorageError):
        log.log.read(0, 10)


def test_ap_30_only_a_forced_flush_touches_an_empty_active_segment(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch())
    log.log.roll()
    log.log.flush()
    assert f"{1:020d}.index" not in log.names()
    log.log.flush(force_last_segment=True)
    assert f"{1:020d}.index" in log.names()
    log.lead(batch())
    assert log.size(f"{1:020d}.index") == 1000


def test_checksums_are_verified_while_another_thread_has_the_log(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    pool = ThreadPoolExecutor(2)
    with log.log.lock:
        with pytest.raises(CorruptBatchError, match="partition t-0"):
            pool.submit(log.log.append_as_leader, bytes(damaged), 0).result(LIMIT_SECONDS)
        good = pool.submit(log.log.append_as_leader, batch(("a", "of the other thread")), 0)
        wait([good], timeout=0.05)
        assert not good.done()
        assert log.log.append_as_leader(batch(("a", "of this thread")), 0).first_offset == 0
    assert good.result(LIMIT_SECONDS).first_offset == 1
    pool.shutdown()
    assert [record.value for found in log.batches() for record in found.records()] == [
        b"of this thread",
        b"of the other thread",
    ]


def test_ap_31_appending_nothing_changes_nothing(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=71)
    log.lead(batch())
    assert log.lead(b"").first_offset == -1
    assert log.follow(b"").last_offset == -1
    assert (log.log.log_end_offset, log.bases()) == (1, [0])


def test_ap_32_index_entries_are_those_of_batches(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, index_interval_bytes=100)
    one = [batch(("k", "v"), at=at) for at in range(10)]
    log.follow(one[0], one[1])
    log.follow(one[2], one[3])
    assert offset_entries(log) == [(2, 140)]
    (tmp_path / "other").mkdir()
    other = LiveLog(tmp_path / "other", index_interval_bytes=100)
    other.follow(*one[:5])
    assert offset_entries(other) == [(2, 140), (4, 280)]


def test_index_entries_of_one_append_are_those_of_many(tmp_path: Path) -> None:
    """IX-20: and the time index names the largest timestamp so far."""
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    data = [batch((None, "v" * 923), at=at, ts=1000 + at) for at in range(12)]
    assert {len(one) for one in data} == {len(data[0])}
    many, one = LiveLog(tmp_path / "many"), LiveLog(tmp_path / "one")
    for piece in data:
        many.follow(piece)
    one.follow(*data)
    assert offset_entries(many) == offset_entries(one)
    assert time_entries(many) == time_entries(one) == [(1000 + at, at) for at, _position in offset_entries(one)]
    for log in (many, one):
        log.stop()
        assert time_entries(log)[-1] == (1011, 11)


# ------------------------------------------------------------------------------------------------------- high watermark
def test_an_append_that_fills_an_index_leaves_it_sparser(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_index_bytes=60, index_interval_bytes=0)
    log.follow(*(batch(at=at, ts=NOW_MS + at) for at in range(20)))
    assert (len(offset_entries(log)), len(time_entries(log))) == (7, 4)
    assert [log.log.read(at, 1).start.offset for at in (3, 12, 19)] == [3, 12, 19]
    found = log.log.lookup_timestamp(NOW_MS + 17)
    assert found is not None
    assert found.offset == 17
    log.follow(batch(at=20))
    assert log.bases() == [0, 20]


def test_ap_33_the_high_watermark_stays_within_the_log(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(90)
    for at in range(90, 100):
        log.follow(batch(at=at))
    assert log.log.high_watermark == 90
    assert log.log.update_high_watermark(101) == 100
    assert log.log.update_high_watermark(3) == 90
    assert log.log.maybe_increment_high_watermark(95)
    assert not log.log.maybe_increment_high_watermark(95)
    with pytest.raises(UsageError):
        log.log.maybe_increment_high_watermark(101)
    assert log.log.high_watermark == 95


# --------------------------------------------------------------------------------------------------------------- faults
class FailingFile(OpenFile):
    """A file whose writes stop in the middle once the disk is full."""

    full = False
    __slots__ = ()

    def write(self, content: bytes | bytearray | memoryview, position: int) -> None:
        if FailingFile.full and self.path.name.endswith(".log"):
            OpenFile.write(self, bytes(content[: len(content) // 2]), position)
            raise OSError(errno.ENOSPC, "full", str(self.path))
        OpenFile.write(self, content, position)


class FullFs(Fs):
    def open_file(self, path: Path) -> OpenFile:
        return FailingFile(path, create=False)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        return FailingFile(path, create=True)


def test_a_torn_append_takes_the_log_offline_and_is_not_read_after_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LiveLog(tmp_path, fs=FullFs())
    log.lead(batch())
    monkeypatch.setattr(FailingFile, "full", True)
    with pytest.raises(StorageError):
        log.lead(batch())
    assert log.log.log_end_offset == 1
    assert log.log.is_offline
    log.log.close()
    monkeypatch.setattr(FailingFile, "full", False)
    recovered = log.restart(clean=False)
    assert recovered.log_end_offset == 1
    assert log.lead(batch()).first_offset == 1
    assert log.fetched_offsets(0) == [0, 1]


# ----------------------------------------------------------------------------------------------------- stop and restart
def test_a_clean_stop_is_taken_up_where_it_was(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=213, index_interval_bytes=0)
    for at in range(8):
        log.lead(batch(pid=1, seq=at, ts=NOW_MS + at), epoch=at // 3)
    before = (log.bases(), epochs_of(log), log.log.producers.entries)
    again = log.restart()
    assert isinstance(again, PartitionLog)
    assert (log.bases(), epochs_of(log), again.producers.entries) == before
    assert (again.log_end_offset, again.recovery_point) == (8, 8)
    assert not [repair for repair in again.loaded.repairs if repair.action != "deleted"]
    log.lead(batch(pid=1, seq=8, ts=NOW_MS + 8))
    assert [b.base_offset for b in log.batches()] == list(range(9))
    assert all(parse_batch(b.data).is_valid() for b in log.batches())


def test_a_start_says_what_it_cuts_off_before_it_cuts_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = PartitionCheckpoints(high_watermark=3, recovery_point=0)
    for name, damaged, said in (
        ("whole", None, False),
        ("torn above the high watermark", 3, False),
        ("torn below it", 2, True),
    ):
        folder = tmp_path / name / "t-0"
        log = write_segment(folder, 0, [batch_bytes(offset) for offset in range(4)])
        if damaged is not None:
            log.write_bytes(log.read_bytes()[: damaged * log.stat().st_size // 4 + 70])
        caplog.clear()
        opened = PartitionLog.open(
            TopicPartition("t", 0), folder, LogConfig(), checkpoints, Fs(), clock=lambda: NOW_MS, scheduler=AtOnce()
        )
        opened.close()
        assert ("are missing at the end of the log" in caplog.text) is said, name


def test_a_log_that_was_never_closed_recovers_what_was_written(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=213, index_interval_bytes=0, held=True)
    for at in range(8):
        log.lead(batch(pid=1, seq=at, ts=NOW_MS + at))
    entries = log.log.producers.entries
    again = log.restart(clean=False)
    assert (again.log_end_offset, again.recovery_point, log.bases()) == (8, 0, [0, 3, 6])
    assert again.producers.entries == entries
    assert offset_entries(log, 3) == [(4, 71), (5, 142)]


def test_partition_metadata_is_written_once_and_then_checked(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.options["topic_id"] = "AAAAAAAAAAAAAAAAAAAAAQ"
    assert log.restart().topic_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    del log.options["topic_id"]
    assert log.restart().topic_id == "AAAAAAAAAAAAAAAAAAAAAQ"
    log.options["topic_id"] = "AAAAAAAAAAAAAAAAAAAAAg"
    with pytest.raises(UsageError):
        log.restart()


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.stop()
    assert log.log.is_closed
    log.log.close()
    with pytest.raises(UsageError):
        log.lead(batch())


def test_a_renamed_directory_is_written_to_and_deleted_with_all_that_is_in_it(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=213)
    for _ in range(4):
        log.lead(batch())
    aside = tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete"
    log.log.rename_directory(aside)
    assert not log.directory.exists()
    log.lead(batch())
    log.log.roll()
    assert (aside / f"{5:020d}.log").exists()
    log.log.delete()
    assert list(tmp_path.iterdir()) == []
