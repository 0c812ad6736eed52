"""The memory of the cleaner: checkpoints and quarantine over truncation, moves, deletion and restarts."""

from __future__ import annotations

import pytest

from sediment.engine.directory.uncleanable import read_uncleanable
from sediment.segment_io.fs import Fs
from tests.clocks import ManualClock
from tests.engine.managed import T0, append, corrupt, dirty_log, running, topic_config
from tests.jobs.log_dirs import read_checkpoint

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
        manager.cleaner.checkpoints.update(manager.directory_of(log), T0, stored)
        manager.cleaner.checkpoints.truncate(log, offset)
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": expected}


def test_cm_21_a_partition_that_moves_takes_its_checkpoint_and_its_mark_along(tmp_path):
    with running(tmp_path / "a", tmp_path / "b") as manager:
        log = manager.create_log(T0, log_dir=tmp_path / "a")
        append(log, *[("a", "1")] * 4)
        source, target = manager.directories()
        manager.cleaner.checkpoints.update(source, T0, 12)
        corrupt(log)
        manager.update_topic_config("t", EAGER)
        assert not manager.cleaner.clean_filthiest()
        manager.cleaner.checkpoints.update(source, T0, 12)
        manager.cleaner.checkpoints.moved(T0, source, target)
        assert (source.first_dirty_offsets(), target.first_dirty_offsets()) == ({}, {T0: 12})
        assert set(read_uncleanable(source.path, Fs())) == set()
        assert set(read_uncleanable(target.path, Fs())) == {T0} == set(manager.cleaner.checkpoints.uncleanable())


def test_a_quarantine_survives_a_restart_and_ends_with_the_damage(logs):
    with running(logs, topic=EAGER) as manager:
        log = dirty_log(manager)
        whole = (log.directory / "00000000000000000000.log").read_bytes()
        corrupt(log)
        assert not manager.cleaner.clean_filthiest()
        since_ms = manager.cleaner.checkpoints.uncleanable()[T0].since_ms
    with running(logs, topic=EAGER, clock=ManualClock(since_ms + 1)) as manager:
        mark = manager.cleaner.checkpoints.uncleanable()[T0]
        assert (mark.reason_code, mark.since_ms) == ("corrupt-batch", since_ms)
        assert "00000000000000000000.log" in mark.reason
        assert manager.cleaner.grab_filthiest() is None
        (logs / "t-0" / "00000000000000000000.log").write_bytes(whole)
        assert manager.cleaner.clean_filthiest()
        assert manager.cleaner.checkpoints.uncleanable() == {}
    assert not (logs / ".sediment-uncleanable").exists()


def test_the_quarantine_of_a_deleted_partition_is_forgotten(logs):
    with running(logs, topic=EAGER) as manager:
        corrupt(dirty_log(manager))
        assert not manager.cleaner.clean_filthiest()
        manager.delete_log(T0)
        assert manager.cleaner.checkpoints.uncleanable() == {}
    assert not (logs / ".sediment-uncleanable").exists()
