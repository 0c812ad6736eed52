"""The engine's cleaner: which log it chooses, how it stops, what it remembers, and that a log in use stays correct."""

from __future__ import annotations

import logging
import shutil
import threading
import time

import pytest

from sediment.engine.directory.uncleanable import read_uncleanable
from sediment.engine.live.cleaning_states import Aborted, Paused
from sediment.engine.live.log_cleaner_manager import LogToClean
from sediment.engine.live.scheduler import Clock
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from tests.clocks import ManualClock
from tests.engine.live_logs import batch
from tests.engine.managed import (
    T0,
    T1,
    T2,
    FailingFs,
    advance,
    append,
    clock_of,
    corrupt,
    dirty_log,
    latest_of,
    manager_of,
    one_batch,
    records_of,
    running,
    topic_config,
)
from tests.faults.faulty_fs import FaultyFs, Kill, Killed
from tests.jobs.log_dirs import read_checkpoint, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.batches import ControlType, Record, encode_batch
from tests.waiting import LIMIT_SECONDS, wait_until

FIRST_DIRTY = "cleaner-offset-checkpoint"
EAGER = topic_config("compact", min_cleanable_dirty_ratio=0.0)


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def parts_in(directory):
    return [path.name for path in directory.iterdir() if path.name.endswith((".part", ".cleaned", ".swap"))]


def test_a_cleaned_log_has_the_end_of_its_cleaning_as_checkpoint(logs):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        before = latest_of(log)
        assert manager.cleaner.clean_filthiest()
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": log.active_base_offset}
        assert latest_of(log) == before
        assert len(records_of(log)) < log.log_end_offset
        assert manager.cleaner.manager.states.of(T0) is None
        assert not manager.cleaner.clean_filthiest()
        append(log, ("a", "9"))
        assert parts_in(logs / "t-0") == []
    with running(logs, topic=EAGER) as manager:
        assert latest_of(manager.get_log(T0)) == {**before, b"a": b"9"}


def test_what_supersedes_is_durable_before_what_it_supersedes_goes(logs):
    class ListingFs(Fs):
        """Notes how far the log is durable when the first old file goes."""

        def rename(self, source, target):
            if target.name.endswith(".deleted"):
                recovery_points.append(log.recovery_point)
            super().rename(source, target)

    recovery_points: list[int] = []
    with running(logs, topic=EAGER, fs=ListingFs()) as manager:
        log = dirty_log(manager)
        assert log.recovery_point == 0
        chosen = manager.cleaner.manager.grab_filthiest()
        assert manager.cleaner.clean(chosen)
        assert recovery_points[0] >= chosen.range.first_uncleanable_offset > 0


def test_cp_09_records_without_a_key_go_as_in_a_broker_and_the_log_says_how_many(logs, caplog):
    keyless = encode_batch([Record(n, NOW_MS, None, b"x") for n in range(3)], base_offset=0, leader_epoch=0)
    write_segment(logs / "t-0", 0, [keyless, batch_bytes(3, "a")])
    write_segment(logs / "t-0", 4, [batch_bytes(4, "b")])
    with running(logs, topic=EAGER) as manager:
        log = manager.get_log(T0)
        log.maybe_increment_high_watermark()
        assert len(records_of(log)) == 5
        assert manager.cleaner.clean_filthiest()
        assert [record.offset for record in records_of(log)] == [3, 4]
    assert "t-0: dropped 3 invalid messages (records without a key)" in caplog.text


# ------------------------------------------------------------------------------------------------------------- stopping
class HaltingFs(Fs):
    """A filesystem that halts a cleaning at its first part until `go_on` is set."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def write_new(self, path, chunks):
        if path.name.endswith(".part") and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(timeout=LIMIT_SECONDS)
        return super().write_new(path, chunks)


@pytest.fixture
def halting(logs):
    """Run a manager whose cleaner halts at its first part in a thread; yield it with the answers and its filesystem."""
    fs = HaltingFs()
    with running(logs, topic=EAGER, fs=fs) as manager:
        dirty_log(manager)
        answers = []
        cleaning = threading.Thread(target=lambda: answers.append(manager.cleaner.clean_filthiest()))
        cleaning.start()
        assert fs.reached.wait(timeout=LIMIT_SECONDS)
        yield manager, fs, cleaning, answers
        fs.go_on.set()
        cleaning.join(timeout=LIMIT_SECONDS)


def test_cp_39_an_aborted_cleaning_leaves_the_log_and_the_checkpoint_as_they_were(logs, halting):
    manager, fs, cleaning, answers = halting
    before = {name: content for name, content in files_of(logs / "t-0").items() if not name.endswith(".part")}
    aborting = threading.Thread(target=manager.cleaner.manager.abort_and_pause, args=(T0,))
    aborting.start()
    wait_until(lambda: manager.cleaner.manager.states.of(T0) == Aborted())
    assert aborting.is_alive()
    fs.go_on.set()
    cleaning.join(timeout=LIMIT_SECONDS)
    aborting.join(timeout=LIMIT_SECONDS)
    assert answers == [False]
    assert manager.cleaner.manager.states.of(T0) == Paused(1)
    assert files_of(logs / "t-0") == before
    assert read_checkpoint(logs / FIRST_DIRTY) == {}
    assert not manager.cleaner.clean_filthiest()
    manager.cleaner.manager.resume([T0])
    assert manager.cleaner.clean_filthiest()


def test_a_log_that_is_deleted_while_it_is_cleaned_waits_for_the_end_of_that(logs, halting):
    manager, fs, cleaning, answers = halting
    deleting = threading.Thread(target=manager.delete_log, args=(T0,))
    deleting.start()
    wait_until(lambda: manager.cleaner.manager.states.of(T0) == Aborted())
    assert (logs / "t-0").exists()
    fs.go_on.set()
    deleting.join(timeout=LIMIT_SECONDS)
    cleaning.join(timeout=LIMIT_SECONDS)
    assert answers == [False]
    assert manager.cleaner.manager.states.of(T0) is None
    (deleted,) = [path for path in logs.iterdir() if path.is_dir()]
    assert deleted.name.endswith("-delete") and parts_in(deleted) == []
    assert read_checkpoint(logs / FIRST_DIRTY) == {}


def test_a_truncation_into_what_is_being_cleaned_waits_for_the_end_of_that(logs, halting):
    manager, fs, cleaning, answers = halting
    cutting = threading.Thread(target=manager.truncate_to, args=({T0: 2},))
    cutting.start()
    wait_until(lambda: manager.cleaner.manager.states.of(T0) == Aborted())
    assert manager.get_log(T0).log_end_offset == 12
    fs.go_on.set()
    cutting.join(timeout=LIMIT_SECONDS)
    cleaning.join(timeout=LIMIT_SECONDS)
    assert answers == [False]
    assert manager.get_log(T0).log_end_offset == 2
    assert manager.cleaner.manager.states.of(T0) is None


def test_appends_and_reads_go_on_while_a_log_is_cleaned(logs, halting):
    manager, fs, cleaning, answers = halting
    log = manager.get_log(T0)
    append(log, ("a", "x"), ("c", "y"))
    before = latest_of(log)
    fs.go_on.set()
    cleaning.join(timeout=LIMIT_SECONDS)
    assert answers == [True]
    assert latest_of(log) == before == {b"a": b"x", b"b": b"5", b"c": b"y"}


def test_a_reader_that_has_a_segment_reads_it_to_the_end_though_it_is_cleaned_away(logs):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        before = log.read(0, 1 << 20)
        expected = before.read()
        assert manager.cleaner.clean_filthiest()
        assert before.read() == expected
        assert log.read(0, 1 << 20).read() != expected


def test_an_engine_that_stops_ends_its_cleaning_first(logs):
    fs = HaltingFs()
    with running(logs, topic=EAGER, fs=fs, clock=Clock(), background_threads=1, log_cleaner_backoff_ms=10) as manager:
        log = dirty_log(manager)
        before = latest_of(log)
        assert fs.reached.wait(timeout=LIMIT_SECONDS)
        stopping = threading.Thread(target=manager.shutdown)
        stopping.start()
        wait_until(manager.cleaner._stopping.is_set)
        fs.go_on.set()
        stopping.join(timeout=LIMIT_SECONDS)
    assert parts_in(logs / "t-0") == []
    with running(logs, topic=EAGER) as manager:
        assert latest_of(manager.get_log(T0)) == before
        assert len(records_of(manager.get_log(T0))) == 12


def test_cp_41_a_swap_whose_first_segment_is_gone_changes_nothing(logs, caplog):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        before = latest_of(log)
        chosen = manager.cleaner.manager.grab_filthiest()
        log.maybe_increment_log_start_offset(3)
        assert log.delete_old_segments() == 1
        assert not manager.cleaner.clean(chosen)
        assert "was not cleaned" in caplog.text
        assert set(manager.cleaner.manager.checkpoints.uncleanable()) == set()
        assert latest_of(log) == before
        assert manager.cleaner.clean_filthiest()
        assert latest_of(log) == before


# ---------------------------------------------------------------------------------------------------------- quarantine
def test_cp_33_a_damaged_partition_is_left_alone_and_the_others_are_cleaned(logs, caplog):
    with running(logs, topic=EAGER) as manager:
        bad, good = dirty_log(manager, T0), dirty_log(manager, T1)
        corrupt(bad)
        before = files_of(logs / "t-0")
        advance(manager, 0)
        mark = manager.cleaner.manager.checkpoints.uncleanable()[T0]
        assert (mark.reason_code, mark.since_ms) == ("corrupt-batch", clock_of(manager).now_ms())
        assert "t-0 is not cleaned any more" in caplog.text and "Traceback" not in caplog.text
        assert files_of(logs / "t-0") == before
        advance(manager, 15_000)
        assert len(records_of(good)) < good.log_end_offset
        assert manager.cleaner.manager.states.of(T0) is None


def test_cm_22_a_log_that_cannot_be_looked_at_is_left_alone_and_the_others_are_cleaned(logs, caplog):
    nonsense = topic_config("compact")
    # Past the checks of a config, for an unexpected error.
    object.__setattr__(nonsense.compaction, "min_compaction_lag_ms", "soon")
    with running(logs, topic={"bad": nonsense, "t": EAGER}) as manager:
        bad, good = dirty_log(manager, TopicPartition("bad", 0)), dirty_log(manager, T0)
        assert manager.cleaner.clean_filthiest()
        assert len(records_of(good)) < good.log_end_offset
        assert set(manager.cleaner.manager.checkpoints.uncleanable()) == {bad.partition}
        assert "bad-0 is not cleaned any more: cleaning failed: TypeError" in caplog.text
    assert read_uncleanable(logs, Fs()) == {}


def test_a_log_that_is_closed_under_the_cleaner_is_no_damage(logs):
    with running(logs, topic=EAGER) as manager:
        gone, good = dirty_log(manager, T0), dirty_log(manager, T1)
        gone.close()
        assert manager.cleaner.clean_filthiest()
        assert len(records_of(good)) < good.log_end_offset
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
        assert manager.cleaner.delete_old_segments() == 0


@pytest.mark.parametrize("what", ["data", "commit"])
def test_cm_23_a_disk_that_fails_under_a_cleaning_takes_its_directory_offline(tmp_path, what):
    class HalfFs(FailingFs):
        def write_new(self, path, chunks):
            if what == "data" and path.name.endswith(".part"):
                self.broken.add(path.parent.parent)
            return super().write_new(path, chunks)

        def rename(self, source, target):
            if what == "commit" and target.name.endswith(".deleted"):
                self.broken.add(source.parent.parent)
            super().rename(source, target)

    fs = HalfFs()
    with running(tmp_path / "a", tmp_path / "b", topic=EAGER, fs=fs) as manager:
        dirty_log(manager, T0)
        good = dirty_log(manager, T1)
        before = latest_of(manager.get_log(T0))
        write_checkpoint(tmp_path / "a" / FIRST_DIRTY, {"t-0": 0})
        manager.cleaner.manager.abort_and_pause(T1)
        assert not manager.cleaner.clean_filthiest()
        assert manager.get_log(T0) is None and manager.get_log(T1) is good
        assert manager.cleaner.manager.states.of(T0) is None
        assert set(manager.cleaner.manager.checkpoints.uncleanable()) == set()
        assert read_checkpoint(tmp_path / "a" / FIRST_DIRTY) == {"t-0": 0}
        fs.broken = {tmp_path / "a"}
        manager.cleaner.manager.resume([T1])
        what = "nothing"
        assert manager.cleaner.clean_filthiest()
    with running(tmp_path / "a", tmp_path / "b", topic=EAGER) as manager:
        assert latest_of(manager.get_log(T0)) == before


def test_a_directory_whose_lock_was_taken_away_is_not_cleaned_any_more(logs):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        before = files_of(logs / "t-0")
        (logs / ".lock").unlink()
        assert not manager.cleaner.clean_filthiest()
        assert manager.directories()[0].is_offline and manager.get_log(T0) is None
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
        manager.run_due()
        assert log.is_closed
        after = files_of(logs / "t-0")
        assert {name: after[name] for name in before if name.endswith(".log")} == {
            name: content for name, content in before.items() if name.endswith(".log")
        }


# ------------------------------------------------------------------------------------------------------------ retention
def test_cp_45_the_cleaner_deletes_expired_segments_of_what_is_compacted_and_deleted(logs):
    both = topic_config("compact", "delete", retention_ms=1000, min_cleanable_dirty_ratio=1.0)
    only = topic_config("compact", retention_ms=1000, min_cleanable_dirty_ratio=1.0)
    with running(logs, topic={"both": both, "only": only}) as manager:
        for topic in ("both", "only"):
            log = manager.create_log(TopicPartition(topic, 0))
            append(log, *[("a", "1")] * 7)
        clock_of(manager).advance(1001)
        manager.get_log(TopicPartition("only", 0)).maybe_increment_log_start_offset(4)
        advance(manager, 15_000)
        assert manager.get_log(TopicPartition("both", 0)).base_offsets == (7,)
        assert manager.get_log(TopicPartition("only", 0)).base_offsets == (3, 6)
        assert manager.cleaner.manager.states.of(TopicPartition("both", 0)) is None


# ------------------------------------------------------------------------------------------------------------- throttle
def test_a_throttled_cleaning_keeps_to_its_rate(logs):
    class WalkingClock(ManualClock):
        """Every look takes half a second."""

        def monotonic_ms(self):
            self.advance(500)
            return self.time_ms

    with running(logs, topic=EAGER, clock=WalkingClock(), log_cleaner_io_max_bytes_per_second=50.0) as manager:
        log = manager.create_log(T0)
        for number in range(60):
            append(log, (str(number % 20), "v" * 40))
        chosen = manager.cleaner.manager.grab_filthiest()
        clock = clock_of(manager)
        before_ms, slept_before_ms = clock.time_ms, clock.slept_ms
        assert manager.cleaner.clean(chosen)
        seconds = (clock.time_ms - before_ms) / 1000
        assert seconds >= chosen.range.cleanable_bytes / 50
        assert clock.slept_ms > slept_before_ms
        state = manager.cleaner._throttle_state
        assert state.exists()
    assert not state.exists()


def test_an_abort_does_not_wait_for_the_throttle(logs):
    class StandingClock(Clock):
        """Sleeping takes no time and never ends what one sleeps for."""

        def __init__(self):
            self.slept = threading.Event()
            self.time_ms = 1_700_000_000_000

        def now_ms(self):
            return self.time_ms

        def monotonic_ms(self):
            return self.time_ms

        def sleep_ms(self, duration_ms):
            self.slept.set()
            time.sleep(0.001)

    clock = StandingClock()
    with running(logs, topic=EAGER, clock=clock, log_cleaner_io_max_bytes_per_second=1.0) as manager:
        dirty_log(manager)
        chosen = manager.cleaner.manager.grab_filthiest()
        answers = []

        def clean():
            answers.append(manager.cleaner.clean(chosen))

        throttled = threading.Thread(target=clean)
        clock_moves(manager, clock)
        throttled.start()
        assert clock.slept.wait(timeout=LIMIT_SECONDS)
        manager.cleaner.manager.abort_and_pause(T0)
        throttled.join(timeout=LIMIT_SECONDS)
        assert answers == [False]


def test_cp_39_a_cleaning_is_aborted_while_it_walks_over_transactions(logs, log_bytes_read):
    class Aborting(ManualClock):
        """A clock that acts when a throttled cleaning reads it for the second time, after its first read of data."""

        second_look = None
        looks = 0

        def monotonic_ms(self):
            self.looks += 1
            if self.second_look is not None and self.looks == 2:
                self.second_look()
            return super().monotonic_ms()

    clock = Aborting()
    with running(logs, topic=EAGER, clock=clock, log_cleaner_io_max_bytes_per_second=1e9) as manager:
        log = dirty_log(manager)
        log.append_as_follower(batch(at=log.log_end_offset, pid=7, tx=True), 0)
        log.append_as_follower(marker_bytes(log.log_end_offset, ControlType.ABORT, producer_id=7), 0)
        append(log, ("c", "1"), ("c", "2"), ("c", "3"), ("c", "4"))
        chosen = manager.cleaner.manager.grab_filthiest()
        aborting = threading.Thread(target=manager.cleaner.manager.abort_and_pause, args=(T0,))

        def abort():
            aborting.start()
            wait_until(lambda: manager.cleaner.manager.states.of(T0) == Aborted())

        clock.looks, clock.second_look = 0, abort
        log_bytes_read.clear()
        assert not manager.cleaner.clean(chosen)
        aborting.join(timeout=LIMIT_SECONDS)
        # The walk ascends; what filters the records begins with the last segment.
        assert len(log.base_offsets) > 4
        assert set(log_bytes_read) == {"00000000000000000000.log", "00000000000000000003.log"}
        assert parts_in(log.directory) == []
        assert manager.cleaner.manager.states.of(T0) == Paused(1)


def clock_moves(manager, clock):
    """Move the clock so that the throttle finds a whole window gone from its first reading on."""
    original = clock.monotonic_ms
    looks = []

    def monotonic_ms():
        looks.append(1)
        return original() + (301 if len(looks) > 1 else 0)

    clock.monotonic_ms = monotonic_ms


# ----------------------------------------------------------------------------------------------------------- background
def test_a_cleaner_that_found_something_looks_again_at_once_and_else_after_its_backoff(logs):
    with running(logs, topic=EAGER, log_cleaner_backoff_ms=15_000) as manager:
        first, second = dirty_log(manager, T0), dirty_log(manager, T1)
        advance(manager, 0)
        assert all(len(records_of(log)) < log.log_end_offset for log in (first, second))
        third = dirty_log(manager, T2)
        advance(manager, 14_999)
        assert len(records_of(third)) == third.log_end_offset
        advance(manager, 1)
        assert len(records_of(third)) < third.log_end_offset


def test_without_a_cleaner_nothing_is_cleaned(logs):
    with running(logs, topic=EAGER, log_cleaner_enable=False) as manager:
        log = dirty_log(manager)
        advance(manager, 60_000)
        assert len(records_of(log)) == log.log_end_offset


def test_two_threads_clean_two_logs_at_once(logs):
    class MeetingFs(Fs):
        def __init__(self):
            self.meeting = threading.Barrier(2)
            self.met = set()

        def write_new(self, path, chunks):
            if path.name.endswith(".part") and path.parent not in self.met:
                self.met.add(path.parent)
                self.meeting.wait(timeout=LIMIT_SECONDS)
            return super().write_new(path, chunks)

    with running(
        logs,
        topic=EAGER,
        fs=MeetingFs(),
        clock=Clock(),
        background_threads=1,
        log_cleaner_threads=2,
        log_cleaner_backoff_ms=10,
    ) as manager:
        for partition in (T0, T1):
            manager.cleaner.manager.abort_and_pause(partition)
            dirty_log(manager, partition)
        for partition in (T0, T1):
            manager.cleaner.manager.resume([partition])
        wait_until(lambda: all(len(records_of(log)) < log.log_end_offset for log in manager.all_logs()))


def test_an_unknown_outcome_of_finish_is_wrong_use(logs):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        chosen = manager.cleaner.manager.grab_filthiest()
        manager.cleaner.clean(chosen)
        with pytest.raises(UsageError, match="finished"):
            manager.cleaner.clean(LogToClean(log, chosen.directory, chosen.view, chosen.range))


def test_records_that_lose_their_key_later_stay_right_over_many_rounds(logs, caplog):
    """Appends and cleanings in turns; whatever was cleaned, the latest values are those of a dictionary."""
    with caplog.at_level(logging.WARNING), running(logs, topic=EAGER) as manager:
        log = manager.create_log(T0)
        expected: dict[bytes, bytes] = {}
        for number in range(120):
            key, value = f"k{number * 7 % 11}", None if number % 13 == 5 else f"v{number}"
            log.append_as_leader(one_batch((key, value), timestamp_ms=clock_of(manager).now_ms() + number), 0)
            log.maybe_increment_high_watermark()
            if value is None:
                expected.pop(key.encode(), None)
            else:
                expected[key.encode()] = value.encode()
            if number % 17 == 0:
                advance(manager, 15_000)
                assert latest_of(log) == expected
        advance(manager, 15_000)
        assert latest_of(log) == expected
        assert len(records_of(log)) < 60
    assert caplog.text == ""


# --------------------------------------------------------------------------------------------------------------- crash
class KillingFs(FaultyFs):
    """Once it was killed it does nothing any more."""

    is_dead = False

    def _run(self, what, directory, operation, tell):
        if self.is_dead:
            raise Killed(what)
        try:
            return super()._run(what, directory, operation, tell)
        except Killed:
            self.is_dead = True
            raise


def crash_at(tmp_path, number):
    """Run an engine that dies after change `number` of a cleaning; return None if the cleaning has fewer.

    Returns the records of its log and the directory after the crash.
    """
    logs, image = tmp_path / f"logs-{number}", tmp_path / f"image-{number}"
    fs = KillingFs()
    manager = manager_of(logs, topic=EAGER, fs=fs)
    manager.start()
    log = dirty_log(manager, rounds=4)
    expected = latest_of(log)
    chosen = manager.cleaner.manager.grab_filthiest()
    fs.fault = Kill(fs.operations + number)
    try:
        manager.cleaner.clean(chosen)
    except Killed:
        shutil.copytree(logs, image)
    fs.fault, fs.is_dead = None, False
    manager.shutdown()
    return (expected, image) if image.exists() else None


def test_a_crash_at_any_step_of_a_cleaning_loses_no_record(tmp_path):
    number, kept = 0, set()
    while (crashed := crash_at(tmp_path, number := number + 1)) is not None:
        expected, image = crashed
        with running(image, topic=EAGER, fs=FaultyFs()) as manager:
            log = manager.get_log(T0)
            assert latest_of(log) == expected, number
            assert log.log_end_offset == 8
            assert parts_in(log.directory) == []
            kept.add(len(records_of(log)))
            manager.cleaner.clean_filthiest()
            assert latest_of(log) == expected, number
    assert number > 20
    assert max(kept) == 8 and min(kept) < 6


def test_cp_40_offsets_that_overflow_a_segment_are_cleaned_into_segments_that_hold_them(logs):
    """Kafka splits the source, ends the round, and cleans in the next one; the segments and records are the same."""
    far = 2**31 + 2
    directory = logs / "t-0"
    directory.mkdir(parents=True)
    contents = {0: [0, 1, far], far + 8: [far + 8]}
    for base, offsets in contents.items():
        batches = b"".join(batch_bytes(offset, "a" if offset else "b") for offset in offsets)
        (directory / f"{base:020d}.log").write_bytes(batches)
        for kind in ("index", "timeindex"):
            (directory / f"{base:020d}.{kind}").touch()
    write_checkpoint(logs / "replication-offset-checkpoint", {"t-0": far + 9})
    (logs / ".kafka_cleanshutdown").touch()
    with running(logs, topic=EAGER) as manager:
        log = manager.get_log(T0)
        assert log.log_end_offset == far + 9
        while manager.cleaner.clean_filthiest():
            pass
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
        assert [record.offset for record in records_of(log)] == [0, far, far + 8]
        assert log.base_offsets == (0, far, far + 8)


# ------------------------------------------------------------------------------------- scenarios that need a live log
def test_cp_04_exactly_the_records_without_a_later_one_of_their_key_remain(logs):
    with running(logs, topic=EAGER) as manager:
        log = manager.create_log(T0)
        append(log, *[(str(number), "old") for number in range(10)])
        append(log, *[(str(number), "new") for number in (1, 3, 5, 7, 9)])
        log.roll()
        assert manager.cleaner.clean_filthiest()
        assert [(record.key, record.offset) for record in records_of(log)] == [
            *[(str(number).encode(), number) for number in (0, 2, 4, 6, 8)],
            *[(str(number).encode(), 10 + index) for index, number in enumerate((1, 3, 5, 7, 9))],
        ]


def test_cp_13_a_cleaned_segment_is_not_preallocated(logs):
    with running(logs, topic=topic_config("compact", segment_bytes=1024, preallocate=True)) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "0"))
        log.roll()
        append(log, *[("a", str(number)) for number in range(1, 6)])
        assert (logs / "t-0" / "00000000000000000001.log").stat().st_size == 1024
        log.roll()
        assert manager.cleaner.clean_filthiest()
        assert log.base_offsets == (0, 6)
        assert (logs / "t-0" / "00000000000000000000.log").stat().st_size == 70


@pytest.mark.parametrize("most_bytes", [1_048_588, 1000], ids=["cp_30", "cp_31"])
def test_a_batch_above_every_buffer_is_cleaned(logs, most_bytes):
    """CP-31: `max.message.bytes` was lowered after the batch was written."""
    config = topic_config("compact", segment_bytes=1 << 20)
    with running(logs, topic=config) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "x" * 70_000), ("b", "1"), ("b", "2"))
        log.roll()
        manager.update_topic_config("t", topic_config("compact", segment_bytes=1 << 20, max_message_bytes=most_bytes))
        assert manager.cleaner.clean_filthiest()
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
        assert latest_of(log) == {b"a": b"x" * 70_000, b"b": b"2"}
        assert len(records_of(log)) == 2


@pytest.mark.parametrize(("keys_of_map", "rounds"), [(4, 3), (1000, 1)])
def test_the_offset_map_of_the_cleaner_is_bounded_and_more_keys_take_more_rounds(logs, keys_of_map, rounds):
    topic = topic_config("compact", segment_bytes=400, min_cleanable_dirty_ratio=0.0)
    with running(
        logs, topic=topic, log_cleaner_dedupe_buffer_size=24 * keys_of_map, log_cleaner_io_buffer_load_factor=1.0
    ) as manager:
        log = manager.create_log(T0)
        for number in range(3):
            append(log, *((f"k{key}", str(number)) for key in range(4)))
        log.roll()
        wanted = latest_of(log)
        ends = []
        while manager.cleaner.clean_filthiest():
            ends.append(manager.directories()[0].first_dirty_offsets()[T0])
        assert len(ends) == rounds and ends == sorted(ends) and ends[-1] == log.log_end_offset == 12
        assert latest_of(log) == wanted
        assert len(records_of(log)) == 4
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
