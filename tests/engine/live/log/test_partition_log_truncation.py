"""Truncation, log start offset, retention and replacement of segments of a live log (kafka-log 03, 04 §10; 07 E, H)."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sediment.compaction.clean_log import clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.segment_io.errors import (
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SourceChangedError,
    UsageError,
)
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from tests.engine.live_logs import NOW_MS, LiveLog, batch, with_retention
from tests.engine.managed import DELETED, append, running
from tests.twin.batches import ControlType


def epochs_of(log: LiveLog) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in log.log.leader_epochs]


def filled(tmp_path: Path, batches: int, **keys: object) -> LiveLog:
    log = LiveLog(tmp_path, **keys)
    for at in range(batches):
        log.lead(batch(ts=NOW_MS + at))
    return log


# ------------------------------------------------------------------------------------------------------------- truncate
def test_tr_01_a_log_is_cut_and_filled_again(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    size = log.log.size_bytes
    assert not log.log.truncate_to(10)
    assert not log.log.truncate_to(11)
    assert (log.log.log_end_offset, log.log.size_bytes) == (10, size)
    assert log.log.truncate_to(5)
    assert (log.log.log_end_offset, log.log.size_bytes) == (5, size // 2)
    assert log.log.truncate_to(0)
    assert (log.log.log_end_offset, log.log.size_bytes, log.bases()) == (0, 0, [0])
    for at in range(10):
        log.lead(batch(ts=NOW_MS + at))
    assert log.log.size_bytes == log.size(f"{0:020d}.log") == size
    assert log.fetched_offsets(0) == list(range(10))


def test_tr_02_everything_goes_and_the_log_begins_elsewhere(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.log.truncate_fully_and_start_at(1)
    assert (log.bases(), log.log.log_end_offset, log.log.size_bytes) == ([1], 1, 0)
    assert f"{0:020d}.log.deleted" in log.names()
    assert log.log.truncate_to(0)
    assert (log.bases(), log.log.log_end_offset) == ([0], 0)
    log.tasks.move(60_000)
    assert log.names(".deleted") == []
    assert log.lead(batch()).first_offset == 0


def test_tr_03_segments_above_go_and_the_one_at_the_offset_stays_empty(tmp_path: Path) -> None:
    log = filled(tmp_path, 8, segment_bytes=213)
    assert log.bases() == [0, 3, 6]
    assert log.log.truncate_to(6)
    assert (log.bases(), log.size(f"{6:020d}.log")) == ([0, 3, 6], 0)
    assert log.log.truncate_to(3)
    assert (log.bases(), log.size(f"{3:020d}.log")) == ([0, 3], 0)
    gone = [f"{6:020d}{suffix}.deleted" for suffix in (".index", ".log", ".snapshot", ".timeindex")]
    assert log.names(".deleted") == gone
    assert log.lead(batch()).first_offset == 3


def test_tr_04_a_segment_that_becomes_active_again_takes_entries(tmp_path: Path) -> None:
    log = filled(tmp_path, 8, segment_bytes=213, index_interval_bytes=0)
    assert log.size(f"{3:020d}.index") == 16
    log.log.truncate_to(4)
    assert (log.size(f"{3:020d}.index"), log.size(f"{3:020d}.timeindex")) == (1000, 996)
    log.lead(batch(ts=NOW_MS + 50))
    log.lead(batch(ts=NOW_MS + 51))
    assert log.bases() == [0, 3]
    found = log.log.lookup_timestamp(NOW_MS + 51)
    assert found is not None
    assert found.offset == 5
    log.restart(clean=False, recovery_point=0)
    assert log.fetched_offsets(3) == [3, 4, 5]


def test_tr_05_offsets_in_a_gap_end_the_log_there(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(40)
    log.follow(batch(at=40))
    log.follow(batch(at=43))
    assert log.log.truncate_to(41)
    assert (log.log.log_end_offset, log.fetched_offsets(40)) == (41, [40])


def test_a_batch_that_spans_the_offset_goes_as_a_whole(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(3):
        log.lead(batch(("a", "1"), ("b", "2")))
    assert log.log.truncate_to(5)
    assert (log.log.log_end_offset, log.fetched_offsets(0)) == (5, [0, 1, 2, 3])
    assert not log.log.truncate_to(5)
    assert log.lead(batch()).first_offset == 5


def test_tr_06_a_negative_offset_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path, 1)
    with pytest.raises(UsageError):
        log.log.truncate_to(-1)
    with pytest.raises(UsageError):
        log.log.truncate_fully_and_start_at(-1)


def test_tr_07_leader_epochs_are_cut_too(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for epoch, count in ((0, 10), (1, 6), (2, 4)):
        for _ in range(count):
            log.lead(batch(), epoch=epoch)
    assert epochs_of(log) == [(0, 0), (1, 10), (2, 16)]
    for offset, entries in ((20, 3), (11, 2), (10, 1), (0, 0)):
        log.log.truncate_to(offset)
        assert len(log.log.leader_epochs) == entries


def test_tr_08_an_epoch_in_which_nothing_was_written_goes(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    for offset in (3, 4):
        log.log.assign_leader_epoch(5, 3)
        assert not log.log.truncate_to(offset)
        assert epochs_of(log) == [(0, 0)]


def test_tr_09_everything_goes_with_the_producers(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(3):
        log.lead(batch(pid=1, seq=sequence))
        log.log.roll()
    log.log.truncate_fully_and_start_at(29)
    assert log.names(".snapshot") == [f"{29:020d}.snapshot"]
    assert (log.log.producers.entries, log.log.producers.end_offset) == ({}, 29)
    assert (log.log.log_start_offset, log.log.high_watermark) == (29, 29)
    log.log.truncate_fully_and_start_at(29, 20)
    assert (log.log.log_start_offset, log.log.log_end_offset) == (20, 29)


def test_tr_10_producers_are_those_of_what_is_left(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(3):
        log.lead(batch(pid=1, seq=sequence))
    log.log.truncate_to(1)
    assert log.log.producers.entries[1].last_sequence == 0
    for sequence in (1, 2):
        log.lead(batch(pid=1, seq=sequence))
        log.log.roll()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    log.log.truncate_to(2)
    assert log.log.producers.entries[1].last_sequence == 1
    assert log.lead(batch(pid=1, seq=2)).first_offset == 2


def test_tr_11_the_time_index_is_cut_by_offset(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(40)
    log.follow(*(batch(at=40 + step, ts=400 + step) for step in range(30)))
    log.log.truncate_to(41)
    (state,) = log.log.segment_states()
    assert state.largest_timestamp_ms == 400
    log.stop()
    assert (log.size(f"{40:020d}.timeindex"), log.size(f"{40:020d}.index")) == (12, 0)


def test_tr_12_the_other_offsets_follow_the_end(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.log.flush()
    log.log.maybe_increment_log_start_offset(7)
    log.log.truncate_to(5)
    assert (log.log.high_watermark, log.log.log_start_offset, log.log.recovery_point) == (5, 5, 5)


def test_a_truncated_transaction_is_open_again(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, tx=True))
    log.mark(1, ControlType.ABORT)
    assert log.size(f"{0:020d}.txnindex") == 34
    log.log.truncate_to(1)
    assert log.size(f"{0:020d}.txnindex") == 0
    assert (log.log.first_unstable_offset, log.log.last_stable_offset) == (0, 0)


# ------------------------------------------------------------------------------------------------------------ retention
def five_in_three(tmp_path: Path, *, ts: int = NOW_MS, **keys: object) -> LiveLog:
    """Fifteen batches of 72 bytes in segments 0, 5 and 10."""
    log = LiveLog(tmp_path, segment_bytes=360, **keys)
    for _ in range(15):
        log.lead(batch(("kk", "vv"), ts=ts))
    assert (log.bases(), log.log.size_bytes) == ([0, 5, 10], 1080)
    return log


@pytest.mark.parametrize(
    ("retention_bytes", "deleted", "start"), [(720, 1, 5), (719, 1, 5), (721, 0, 0), (1080, 0, 0), (0, 3, 15)]
)
def test_rt_01_the_oldest_segments_go_while_the_rest_holds_enough(
    tmp_path: Path, retention_bytes: int, deleted: int, start: int
) -> None:
    log = five_in_three(tmp_path, retention_bytes=retention_bytes)
    assert log.log.delete_old_segments() == deleted
    assert log.log.log_start_offset == start
    assert log.bases()[0] == start


@pytest.mark.parametrize(("high_watermark", "bases"), [(0, [0, 5, 10]), (5, [5, 10]), (9, [5, 10]), (10, [10])])
def test_rt_02_nothing_above_the_high_watermark_goes(tmp_path: Path, high_watermark: int, bases: list[int]) -> None:
    log = five_in_three(tmp_path, ts=NOW_MS - 2000, retention_ms=1000)
    log.log.update_high_watermark(high_watermark)
    log.log.delete_old_segments()
    assert log.bases() == bases


@pytest.mark.parametrize(("age_ms", "deleted", "bases"), [(1000, 0, [0, 5, 10]), (1001, 3, [15])])
def test_rt_03_segments_go_by_age_to_the_millisecond(
    tmp_path: Path, age_ms: int, deleted: int, bases: list[int]
) -> None:
    log = five_in_three(tmp_path, ts=NOW_MS - age_ms, retention_ms=1000)
    assert log.log.delete_old_segments() == deleted
    assert log.bases() == bases


def test_rt_04_files_are_renamed_and_deleted_in_a_while(tmp_path: Path) -> None:
    log = five_in_three(tmp_path, ts=NOW_MS - 1001, retention_ms=1000)
    log.log.delete_old_segments()
    renamed = log.names(".deleted")
    assert {f"{0:020d}{suffix}.deleted" for suffix in (".log", ".index", ".timeindex")} <= set(renamed)
    assert f"{5:020d}.snapshot.deleted" in renamed
    log.tasks.move(59_999)
    assert log.names(".deleted") == renamed
    log.tasks.move(1)
    assert log.names(".deleted") == []
    assert {f"{15:020d}.log", f"{15:020d}.snapshot"} <= set(log.names())


def test_rt_05_a_newer_segment_keeps_the_older_ones_after_it(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=360, retention_ms=1000)
    for ages_ms in (1001, 1000, 1001):
        for _ in range(5):
            log.lead(batch(("kk", "vv"), ts=NOW_MS - ages_ms))
    assert log.bases() == [0, 5, 10]
    assert log.log.delete_old_segments() == 1
    assert (log.bases(), log.log.log_start_offset) == ([5, 10], 5)


def test_rt_06_without_limits_nothing_goes_ever(tmp_path: Path) -> None:
    log = five_in_three(tmp_path, ts=0, retention_ms=-1, retention_bytes=-1)
    assert log.log.delete_old_segments() == 0


def test_rt_07_compacted_logs_go_by_their_start_only(tmp_path: Path) -> None:
    log = five_in_three(tmp_path, ts=0, retention_ms=1, retention_bytes=1, cleanup_policy=("compact",))
    assert log.log.delete_old_segments() == 0
    log.log.maybe_increment_log_start_offset(5)
    assert log.log.delete_old_segments() == 1
    assert log.bases() == [5, 10]


def test_rt_08_and_rt_09_the_log_start_lets_segments_go(tmp_path: Path) -> None:
    log = five_in_three(tmp_path)
    log.log.maybe_increment_log_start_offset(1)
    assert (log.log.delete_old_segments(), log.log.log_start_offset) == (0, 1)
    log.log.maybe_increment_log_start_offset(6)
    assert (log.log.delete_old_segments(), log.log.log_start_offset) == (1, 6)
    log.log.maybe_increment_log_start_offset(15)
    assert log.log.delete_old_segments() == 1
    assert (log.bases(), log.log.log_start_offset) == ([10], 15)
    with pytest.raises(OffsetOutOfRangeError):
        log.log.read(14, 100)
    assert log.log.read(15, 100).size_bytes == 0
    assert log.lead(batch(("kk", "vv"))).first_offset == 15
    assert log.bases() == [10, 15]


@pytest.mark.parametrize(("epochs", "left"), [((0, 5, 10), [(1, 5), (2, 10)]), ((0, 7, 10), [(0, 5), (1, 7), (2, 10)])])
def test_rt_10_leader_epochs_begin_with_the_log(
    tmp_path: Path, epochs: tuple[int, ...], left: list[tuple[int, int]]
) -> None:
    log = LiveLog(tmp_path, segment_bytes=360, retention_bytes=720)
    for at in range(15):
        log.lead(batch(("kk", "vv")), epoch=sum(at >= start for start in epochs) - 1)
    assert log.log.delete_old_segments() == 1
    assert epochs_of(log) == left
    assert (log.directory / "leader-epoch-checkpoint").read_text().count("\n") == 2 + len(left)


def test_rt_11_when_all_segments_go_the_latest_epoch_begins_at_the_end(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=720, retention_ms=1000)
    for at in range(100):
        log.lead(batch(("kk", "vv"), ts=NOW_MS - 1001), epoch=int(at >= 90))
    assert epochs_of(log) == [(0, 0), (1, 90)]
    log.log.delete_old_segments()
    assert (log.bases(), epochs_of(log)) == ([100], [(1, 100)])


def test_rt_12_without_timestamps_the_modification_time_decides(tmp_path: Path) -> None:
    log = five_in_three(tmp_path, ts=-1, retention_ms=1000)
    for base, age_ms in ((0, 1001), (5, 1000), (10, 0)):
        moment = (NOW_MS - age_ms) * 1_000_000
        os.utime(log.directory / f"{base:020d}.log", ns=(moment, moment))
    assert log.log.delete_old_segments() == 1
    assert log.bases() == [5, 10]


def test_rt_13_and_rt_14_an_empty_segment_stays(tmp_path: Path) -> None:
    log = five_in_three(tmp_path, ts=0, retention_ms=1000)
    assert log.log.delete_old_segments() == 3
    for _ in range(3):
        assert log.log.delete_old_segments() == 0
    assert log.log.log_end_offset == 15
    assert log.lead(batch()).first_offset == 15


def test_rt_15_the_log_start_goes_up_to_the_high_watermark(tmp_path: Path) -> None:
    log = five_in_three(tmp_path)
    log.log.update_high_watermark(7)
    with pytest.raises(OffsetOutOfRangeError):
        log.log.maybe_increment_log_start_offset(8)
    assert log.log.maybe_increment_log_start_offset(7)
    assert not log.log.maybe_increment_log_start_offset(6)
    assert log.log.log_start_offset == 7


@pytest.mark.parametrize("policy", [("compact", "delete"), ("delete",), ()])
def test_rt_16_records_are_deleted_up_to_the_high_watermark_unless_a_log_is_only_compacted(
    tmp_path: Path, policy: tuple[str, ...]
) -> None:
    log = five_in_three(tmp_path, cleanup_policy=policy)
    log.log.update_high_watermark(12)
    assert log.log.delete_records(3) == 3
    assert log.log.delete_records(-1) == 12
    assert log.log.delete_records(4) == 12
    for offset in (-2, 13):
        with pytest.raises(OffsetOutOfRangeError):
            log.log.delete_records(offset)
    assert log.log.delete_old_segments() == 2
    assert log.fetched_offsets(12) == [12, 13, 14]
    with pytest.raises(OffsetOutOfRangeError):
        log.log.read(11, 100)
    log.reconfigure(cleanup_policy=("compact",))
    with pytest.raises(PolicyViolationError):
        log.log.delete_records(13)
    assert log.log.log_start_offset == 12


def test_rt_16_records_of_a_topic_of_the_broker_are_not_deleted(tmp_path: Path) -> None:
    with running(tmp_path, topic=DELETED) as manager:
        log = manager.create_log(TopicPartition("__consumer_offsets", 0))
        append(log, ("a", "1"))
        with pytest.raises(InvalidTopicError):
            log.delete_records(1)
        assert log.log_start_offset == 0


def test_rt_17_producers_outlive_their_segments_until_a_restart_without_snapshots(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=213, retention_bytes=142)
    log.lead(batch(pid=1, seq=0))
    for sequence in range(8):
        log.lead(batch(pid=2, seq=sequence))
    assert log.log.delete_old_segments() > 0
    assert set(log.log.producers.entries) == {1, 2}
    log.log.close_handlers()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    assert set(log.opened(clean=False).producers.entries) == {2}


def test_rt_18_snapshots_of_segments_that_stay_stay(tmp_path: Path) -> None:
    log = five_in_three(tmp_path, retention_bytes=720)
    log.log.delete_old_segments()
    log.tasks.move(60_000)
    assert log.names(".snapshot") == [f"{5:020d}.snapshot", f"{10:020d}.snapshot"]


def test_rt_20_a_retention_of_nothing_leaves_an_empty_segment(tmp_path: Path) -> None:
    for batches in (0, 1, 25):
        (tmp_path / str(batches)).mkdir()
        log = filled(tmp_path / str(batches), batches, segment_bytes=213)
        with_retention(log, retention_ms=0)
        log.tasks.move(1000)
        deleted = log.log.delete_old_segments()
        assert (deleted == 0) == (batches == 0)
        assert (log.bases(), log.log.size_bytes) == ([batches], 0)


# ------------------------------------------------------------------------------------------------------------- cleaning
def cleaned(log: LiveLog) -> object:
    config = log.config.compaction
    now_ms = log.tasks.now_ms
    view = log.log.view(first_dirty_checkpoint=None, now_ms=now_ms)
    found = cleanable_range(view, config, now_ms=now_ms)
    return clean_log(plan_cleaning(view, found, config, now_ms=now_ms), log.fs, Attempt("test", "1"))


def compacted(tmp_path: Path) -> LiveLog:
    log = LiveLog(tmp_path, cleanup_policy=("compact",), segment_bytes=213)
    for at in range(8):
        log.lead(batch(("kk", str(at)), pid=1, seq=at))
    assert log.bases() == [0, 3, 6]
    return log


def test_a_log_is_cleaned_while_it_is_open(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    before = log.log.read(0, 1000)
    content = before.read()
    swap = cleaned(log)
    log.lead(batch(("kk", "8"), pid=1, seq=8))
    log.log.replace_segments(swap)  # type: ignore[arg-type]
    assert before.read() == content
    assert log.bases()[0] == 0
    assert log.fetched_offsets(0) == [5]
    assert log.fetched_offsets(6) == [6, 7, 8]
    assert log.lead(batch(("kk", "9"), pid=1, seq=9)).first_offset == 9
    again = log.restart()
    assert again.log_end_offset == 10
    assert log.fetched_offsets(0) == [5]


def test_a_cleaning_of_segments_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    log = compacted(tmp_path)
    swap = cleaned(log)
    os.utime(log.directory / f"{3:020d}.log", ns=(1, 1))
    with pytest.raises(SourceChangedError):
        log.log.replace_segments(swap)  # type: ignore[arg-type]
    assert log.fetched_offsets(0) == [0, 1, 2]
    assert log.lead(batch(("kk", "8"), pid=1, seq=8)).first_offset == 8


class WatchedFs(Fs):
    """Says of each rename whether another thread could have taken the log's lock."""

    def __init__(self) -> None:
        self.log: LiveLog | None = None
        self.was_free: list[bool] = []

    def rename(self, source: Path, target: Path) -> None:
        if self.log is not None:
            self.was_free.append(in_another_thread(self._can_take_lock, self.log.log.lock))
        super().rename(source, target)

    @staticmethod
    def _can_take_lock(lock: Any) -> bool:
        taken: bool = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken


def in_another_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call in a thread, which has to end in time."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call, *arguments).result(10)
    finally:
        pool.shutdown(wait=False)


def test_appends_and_reads_go_on_between_the_groups_of_a_cleaning(tmp_path: Path) -> None:
    fs = WatchedFs()
    log = LiveLog(tmp_path, fs=fs, cleanup_policy=("compact",), segment_bytes=213)
    for at in range(30):
        log.lead(batch((f"k{at % 2}", str(at)), pid=1, seq=at))
    for at in range(30, 33):
        log.lead(batch((f"x{at}", str(at)), pid=1, seq=at))
    log.log.roll()
    swap: PreparedSwap = cleaned(log)  # type: ignore[assignment]
    groups = [group for group in swap.groups if group.parts]
    assert len(groups) > 3
    appended: list[int] = []
    bases: list[tuple[int, ...]] = []

    def append_and_read() -> None:
        def work() -> int:
            info = log.log.append_as_leader(batch(("new", "v")), 0)
            assert log.fetched_offsets(info.first_offset) == [info.first_offset]
            assert max(log.fetched_offsets(0)) <= 33
            return info.first_offset

        appended.append(in_another_thread(work))
        bases.append(log.log.base_offsets)

    fs.log = log
    log.log.replace_segments(swap, before_group=append_and_read)
    fs.log = None
    assert appended == list(range(33, 33 + len(groups)))
    assert len(fs.was_free) > 4 * len(groups) and not any(fs.was_free)
    # Each group was taken in before the next one began.
    for done, seen in enumerate(bases):
        replaced = {source.base_offset for group in groups[:done] for source in group.sources}
        kept = {part.base_offset for group in groups[:done] for part in group.parts}
        assert not (replaced - kept) & set(seen) and kept <= set(seen)
    everything = [record.offset for found in log.batches() for record in found.records()]
    assert everything == [*range(28, 33), *appended]
    log.restart()
    assert [record.offset for found in log.batches() for record in found.records()] == everything


def test_a_cleaning_that_is_refused_at_a_later_group_keeps_the_earlier_ones(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, cleanup_policy=("compact",), segment_bytes=213)
    for at in range(33):
        log.lead(batch((f"k{at % 2}", str(at)), pid=1, seq=at))
    swap: PreparedSwap = cleaned(log)  # type: ignore[assignment]
    groups = [group for group in swap.groups if group.parts]
    rounds = iter(range(len(groups)))

    def spoil_the_third() -> None:
        if next(rounds) == 2:
            os.utime(log.directory / f"{groups[2].sources[0].base_offset:020d}.log", ns=(1, 1))

    with pytest.raises(SourceChangedError):
        log.log.replace_segments(swap, before_group=spoil_the_third)
    kept = {part.base_offset for group in groups[:2] for part in group.parts}
    old = {source.base_offset for group in groups[2:] for source in group.sources}
    assert kept | old <= set(log.bases())
    assert sorted(log.bases()) == sorted(ref.base_offset for ref in log.log.segments())
    assert max(log.fetched_offsets(31)) == 32
    assert log.lead(batch(("kk", "8"), pid=1, seq=33)).first_offset == 33
