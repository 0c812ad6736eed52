"""The choice of the log to clean, pauses for retention, and the logs whose old segments the cleaner deletes."""

from __future__ import annotations

import pytest

from sediment.engine.live.cleaning_states import InProgress, Paused
from sediment.segment_io.format.names import TopicPartition
from tests.engine.managed import (
    T0,
    T1,
    T2,
    append,
    clock_of,
    dirty_log,
    running,
    topic_config,
)
from tests.jobs.log_dirs import read_checkpoint, write_checkpoint
from tests.segments import batch_bytes

FIRST_DIRTY = "cleaner-offset-checkpoint"
EAGER = topic_config("compact", min_cleanable_dirty_ratio=0.0)


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


def log_of_ratio(manager, partition, clean_segments, dirty_segments):
    """Make a log of three-record segments, the first `clean_segments` of them below the cleaner checkpoint."""
    log = manager.create_log(partition)
    for number in range(3 * (clean_segments + dirty_segments)):
        append(log, (str(number % 10), "v"))
    log.roll()
    manager.cleaner.manager.checkpoints.update(manager.directory_of(log), partition, 3 * clean_segments)
    return log


# ------------------------------------------------------------------------------------------------------------ choosing
@pytest.fixture
def filthy(logs):
    """Logs of ratio 0, 0.2 and a third."""
    with running(logs, topic=topic_config("compact", min_cleanable_dirty_ratio=0.05)) as manager:
        for partition, dirty in ((T0, 0), (T1, 1), (T2, 2)):
            log_of_ratio(manager, partition, 4, dirty)
        yield manager


def test_cm_01_the_filthiest_log_is_grabbed(filthy):
    chosen = filthy.cleaner.manager.grab_filthiest()
    assert chosen.log.partition == T2
    assert chosen.range.cleanable_ratio == pytest.approx(1 / 3)
    assert filthy.cleaner.manager.states.of(T2) == InProgress()


def test_cm_02_what_is_in_progress_is_not_grabbed(filthy):
    grabbed = [filthy.cleaner.manager.grab_filthiest() for _ in range(3)]
    assert [chosen and chosen.log.partition for chosen in grabbed] == [T2, T1, None]


def test_cm_02_what_is_uncleanable_is_not_grabbed(filthy):
    log = filthy.get_log(T2)
    filthy.cleaner.manager.checkpoints.quarantine(log, filthy.directory_of(log), ValueError("a fault"), since_ms=0)
    assert set(filthy.cleaner.manager.checkpoints.uncleanable()) == {T2}
    assert filthy.cleaner.manager.grab_filthiest().log.partition == T1
    assert filthy.cleaner.manager.grab_filthiest() is None


def test_what_is_paused_is_not_grabbed(filthy):
    filthy.cleaner.manager.abort_and_pause(T2)
    assert filthy.cleaner.manager.grab_filthiest().log.partition == T1
    filthy.cleaner.manager.resume([T2])
    assert filthy.cleaner.manager.grab_filthiest().log.partition == T2


@pytest.mark.parametrize(("minimum", "grabbed"), [(0.2, False), (0.19, True)])
def test_cm_03_a_ratio_that_equals_the_minimum_is_not_enough(logs, minimum, grabbed):
    with running(logs, topic=topic_config("compact", min_cleanable_dirty_ratio=minimum)) as manager:
        log_of_ratio(manager, T0, 4, 1)
        assert (manager.cleaner.manager.grab_filthiest() is not None) == grabbed


@pytest.mark.parametrize(
    ("start", "checkpoint", "expected"),
    [
        pytest.param(0, 200, 0, id="cm_04_above_the_log_end"),
        pytest.param(1, 0, 1, id="cm_05_below_the_log_start"),
        pytest.param(3, 3, 3, id="at_the_log_start"),
    ],
)
def test_a_checkpoint_outside_the_log_is_rewritten_though_nothing_is_cleaned(logs, start, checkpoint, expected):
    with running(logs, topic=topic_config("compact", min_cleanable_dirty_ratio=1.0)) as manager:
        log = log_of_ratio(manager, T0, 0, 3)
        log.maybe_increment_log_start_offset(start)
        write_checkpoint(logs / FIRST_DIRTY, {"t-0": checkpoint})
        assert manager.cleaner.manager.grab_filthiest() is None
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": expected}


def test_cm_06_a_log_of_which_nothing_is_left_is_not_chosen(logs):
    with running(logs, topic=EAGER) as manager:
        log = manager.create_log(T0)
        append(log, *[(str(number), "v") for number in range(20)])
        log.maybe_increment_log_start_offset(20)
        write_checkpoint(logs / FIRST_DIRTY, {"t-0": 15})
        assert manager.cleaner.manager.grab_filthiest() is None
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": 20}


@pytest.mark.parametrize(("start", "checkpoint"), [(2, 0), (0, 1)])
def test_cm_07_the_active_segment_alone_is_not_chosen(logs, start, checkpoint):
    with running(logs, topic=EAGER) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "1"), ("a", "2"), ("a", "3"))
        log.maybe_increment_log_start_offset(start)
        write_checkpoint(logs / FIRST_DIRTY, {"t-0": checkpoint})
        assert manager.cleaner.manager.grab_filthiest() is None


def test_cm_11_an_open_transaction_holds_the_cleaner_back(logs):
    with running(logs, topic=EAGER) as manager:
        log = manager.create_log(T0)
        guard = log.maybe_start_transaction_verification(7, 0, 0)
        now_ms = clock_of(manager).now_ms()
        records = batch_bytes(0, "aab", producer_id=7, transactional=True, timestamp=now_ms)
        log.append_as_leader(records, 0, verification_guard=guard)
        log.roll()
        log.maybe_increment_high_watermark()
        assert log.last_stable_offset == 0
        assert manager.cleaner.manager.grab_filthiest() is None


@pytest.mark.parametrize(("later_ms", "chosen"), [(1000, False), (1001, True)])
def test_cm_12_an_exceeded_lag_lets_a_log_be_cleaned_below_the_ratio(logs, later_ms, chosen):
    config = topic_config("compact", min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    with running(logs, topic=config) as manager:
        log_of_ratio(manager, T0, 0, 2)
        clock_of(manager).advance(later_ms)
        assert (manager.cleaner.manager.grab_filthiest() is not None) == chosen


def test_cm_13_a_log_without_dirt_is_not_chosen_however_late(logs):
    config = topic_config("compact", max_compaction_lag_ms=1000)
    with running(logs, topic=config) as manager:
        log_of_ratio(manager, T0, 2, 0)
        clock_of(manager).advance(100_000)
        assert manager.cleaner.manager.grab_filthiest() is None


def test_cm_17_which_logs_the_cleaner_and_the_retention_task_delete_from(logs):
    configs = {
        "c": topic_config("compact"),
        "d": topic_config("delete"),
        "cd": topic_config("compact", "delete"),
    }
    with running(logs, topic=configs) as manager:
        for topic in configs:
            manager.create_log(TopicPartition(topic, 0))
        paused = manager.cleaner.manager.pause_for_retention()
        assert [log.partition.topic for log in paused] == ["d"]
        assert manager.cleaner.manager.states.of(TopicPartition("d", 0)) == Paused(1)
        manager.cleaner.manager.resume(log.partition for log in paused)


def test_cm_18_a_log_that_is_paused_for_retention_is_not_cleaned_though_it_is_compacted_meanwhile(logs):
    with running(logs, topic=topic_config("delete")) as manager:
        dirty_log(manager)
        (paused,) = manager.cleaner.manager.pause_for_retention()
        manager.update_topic_config("t", EAGER)
        assert manager.cleaner.manager.grab_filthiest() is None
        manager.cleaner.manager.resume([paused.partition])
        chosen = manager.cleaner.manager.grab_filthiest()
        assert chosen.log is paused
        paused.update_config(topic_config("delete"))
        assert manager.cleaner.manager.pause_for_retention() == []
        manager.cleaner.clean(chosen)
        assert manager.cleaner.manager.pause_for_retention() == [paused]
