"""The memory of the cleaner: checkpoints and quarantine over truncation, moves, deletion and restarts."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.engine.managed import T0, T1, corrupt, dirty_log, running, topic_config
from tests.jobs.log_dirs import read_checkpoint, write_checkpoint

FIRST_DIRTY = "cleaner-offset-checkpoint"
EAGER = topic_config("compact", min_cleanable_dirty_ratio=0.0)


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("policy", "stored", "offset", "expected"),
    [("compact", 20, 15, 15), ("compact", 10, 15, 10), ("delete", 20, 15, 20)],
)
def test_cm_20_a_truncation_lowers_a_checkpoint_above_it(logs, policy, stored, offset, expected):
    with running(logs, topic=topic_config(policy)) as manager:
        log = manager.create_log(T0)
        manager.cleaner.manager.checkpoints.update(manager.directory_of(log), T0, stored)
        manager.cleaner.manager.checkpoints.truncate(log, offset)
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": expected}


def test_cm_19_a_checkpoint_forgets_partitions_that_are_not_there(logs):
    with running(logs, topic=topic_config("compact")) as manager:
        directory = manager.directory_of(manager.create_log(T0))
        manager.create_log(T1)
        write_checkpoint(logs / FIRST_DIRTY, {"t-1": 3, "x-1": 9})
        manager.cleaner.manager.checkpoints.update(directory, T0, 5)
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": 5, "t-1": 3}
        manager.cleaner.manager.checkpoints.forget(directory, [T1])
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": 5}


def test_cm_21_a_partition_that_moved_to_another_directory_is_cleaned_from_its_start(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    with running(source, target, topic=EAGER) as manager:
        log = dirty_log(manager)
        assert manager.cleaner.clean_filthiest()
        cleaned = {"t-0": log.active_base_offset}
        moved_from, moved_to = (source, target) if log.directory.parent == source else (target, source)
    assert read_checkpoint(moved_from / FIRST_DIRTY) == cleaned
    (moved_from / "t-0").rename(moved_to / "t-0")
    with running(source, target, topic=EAGER) as manager:
        log = manager.get_log(T0)
        log.update_high_watermark(log.log_end_offset)
        assert manager.cleaner.clean_filthiest()
        assert read_checkpoint(moved_to / FIRST_DIRTY) == cleaned


def test_a_quarantine_survives_a_restart_and_ends_with_the_damage(logs):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        whole = (log.directory / "00000000000000000000.log").read_bytes()
        corrupt(log)
        assert not manager.cleaner.clean_filthiest()
        since_ms = manager.cleaner.manager.checkpoints.uncleanable()[T0].since_ms
    with running(logs, topic=EAGER, clock=ManualClock(since_ms + 1)) as manager:
        mark = manager.cleaner.manager.checkpoints.uncleanable()[T0]
        assert (mark.reason_code, mark.since_ms) == ("corrupt-batch", since_ms)
        assert "00000000000000000000.log" in mark.reason
        assert manager.cleaner.manager.grab_filthiest() is None
        (logs / "t-0" / "00000000000000000000.log").write_bytes(whole)
        assert manager.cleaner.clean_filthiest()
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
    assert not (logs / ".sediment-uncleanable").exists()


def test_the_quarantine_of_a_deleted_partition_is_forgotten(logs):
    with running(logs, topic=EAGER) as manager:
        corrupt(dirty_log(manager))
        assert not manager.cleaner.clean_filthiest()
        manager.delete_log(T0)
        assert manager.cleaner.manager.checkpoints.uncleanable() == {}
    assert not (logs / ".sediment-uncleanable").exists()
