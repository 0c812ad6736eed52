"""Failing log directories: they go offline with their logs, and the others stay online."""

from __future__ import annotations

import pytest

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.errors import DirectoryInUseError, StorageError
from tests.engine.managed import (
    T0,
    T1,
    T2,
    FailingFs,
    advance,
    append,
    manager_of,
    one_batch,
    open_files_below,
    records_of,
    running,
    topic_config,
)

MARKER = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def three(tmp_path):
    return [tmp_path / name for name in ("a", "b", "c")]


# ------------------------------------------------------------------------------------------------------------- failure
def test_a_directory_that_fails_goes_offline_with_its_logs_and_the_others_go_on(three, caplog):
    fs = FailingFs()
    manager = manager_of(*three, fs=fs)
    manager.start()
    logs = {partition: manager.create_log(partition) for partition in (T0, T1, T2)}
    for log in logs.values():
        append(log, ("a", "1"))
    fs.broken.add(three[1])
    with pytest.raises(StorageError, match="Input/output error"):
        logs[T1].roll()
    assert [manager.get_log(partition) for partition in (T0, T1, T2)] == [logs[T0], None, logs[T2]]
    assert [directory.is_offline for directory in manager.directories()] == [False, True, False]
    assert "is offline with its 1 logs" in caplog.text
    with pytest.raises(StorageError):
        append(logs[T1], ("a", "2"))
    advance(manager, 30_000)
    for log in (logs[T0], logs[T2]):
        append(log, ("a", "2"))
        log.flush()
    before = {path.name: path.read_bytes() for path in three[1].iterdir() if path.is_file()}
    manager.checkpoint_recovery_points()
    manager.shutdown()
    assert [(directory / MARKER).exists() for directory in three] == [True, False, True]
    assert {path.name: path.read_bytes() for path in three[1].iterdir() if path.is_file()} == before
    fs.broken.clear()
    with running(*three) as manager:
        assert {log.partition: len(records_of(log)) for log in manager.all_logs()} == {T0: 2, T1: 1, T2: 2}


def calls_of(log):
    """Calls of a log that an offline log answers with StorageError, by name."""
    return {
        "append_as_leader": lambda: log.append_as_leader(one_batch(("a", "1"), timestamp_ms=log._clock()), 0),
        "append_as_follower": lambda: log.append_as_follower(one_batch(("a", "1"), timestamp_ms=log._clock()), 0),
        "read": lambda: log.read(0, 1000),
        "lookup_timestamp": lambda: log.lookup_timestamp(1),
        "convert_to_offset_metadata": lambda: log.convert_to_offset_metadata(0),
        "roll": log.roll,
        "flush": log.flush,
        "truncate_to": lambda: log.truncate_to(0),
        "truncate_fully_and_start_at": lambda: log.truncate_fully_and_start_at(5),
        "delete_records": lambda: log.delete_records(-1),
        "delete_old_segments": log.delete_old_segments,
        "maybe_increment_log_start_offset": lambda: log.maybe_increment_log_start_offset(0),
        "assign_leader_epoch": lambda: log.assign_leader_epoch(3, 9),
        "segments": log.segments,
        "segment_states": log.segment_states,
        "remove_expired_producers": log.remove_expired_producers,
        "rename_directory": lambda: log.rename_directory(log.directory),
        "delete": log.delete,
    }


@pytest.mark.parametrize("is_closed", [False, True], ids=["at once", "after its files were closed"])
def test_every_log_of_a_directory_that_failed_raises_the_error_of_a_failed_disk(three, is_closed):
    fs = FailingFs()
    topic = topic_config("delete")
    with running(three[0], fs=fs, topic=topic) as manager:
        logs = [manager.create_log(partition) for partition in (T0, T1, T2)]
        for log in logs:
            append(log, ("a", "1"))
        manager.delete_log(T2)
        fs.broken.add(three[0] / "t-0")
        with pytest.raises(StorageError):
            logs[0].roll()
        if is_closed:
            manager.run_due()
            assert all(log.is_closed for log in logs)
        for log in logs:
            assert log.is_offline
            for name, call in calls_of(log).items():
                with pytest.raises(StorageError, match="Input/output error"):
                    call()
                    pytest.fail(f"{name} of {log.partition}")
        manager.run_due()
        assert open_files_below(three[0]) == []


def test_no_file_of_a_failed_directory_stays_open_though_its_logs_are_held(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        logs = {partition: manager.create_log(partition) for partition in (T0, T1, T2)}
        for log in logs.values():
            append(log, ("a", "1"), ("a", "2"))
            log.roll()
            append(log, ("a", "3"))
            records_of(log)
        assert open_files_below(three[0]) and open_files_below(three[1])
        fs.broken.add(three[0] / "t-0")
        with pytest.raises(StorageError):
            append(logs[T0], ("a", "4"))
        manager.run_due()
        assert open_files_below(three[0]) == []
        assert open_files_below(three[1])
    assert [open_files_below(directory) for directory in three] == [[], [], []]


@pytest.mark.parametrize(
    "look",
    [
        lambda log: log.read(0, 1000, Isolation.LOG_END),
        lambda log: log.lookup_timestamp(1),
        lambda log: log.convert_to_offset_metadata(0),
        lambda log: log.truncate_to(1),
    ],
    ids=["read", "timestamp", "position", "truncation"],
)
def test_a_log_that_cannot_be_read_takes_its_directory_offline_and_the_others_go_on(three, look):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        logs = {partition: manager.create_log(partition) for partition in (T0, T1, T2)}
        for log in logs.values():
            append(log, ("a", "1"), ("b", "2"))
        fs.broken.add(three[1] / "t-1" / "00000000000000000000.log")
        with pytest.raises(StorageError, match="Input/output error"):
            look(logs[T1])
        assert [directory.is_offline for directory in manager.directories()] == [False, True, False]
        assert manager.get_log(T1) is None
        for partition in (T0, T2):
            assert len(records_of(logs[partition])) == 2


def test_a_slice_that_cannot_be_read_leaves_the_log_online_until_it_needs_the_disk(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "1"))
        data = log.read(0, 1000)
        fs.broken.add(three[0] / "t-0")
        with pytest.raises(OSError, match="Input/output error"):
            data.read()
        assert not log.is_offline
        with pytest.raises(StorageError):
            append(log, ("a", "2"))
        assert manager.get_log(T0) is None


def test_a_log_that_cannot_be_read_while_it_is_recovered_takes_its_directory_offline(three):
    manager = manager_of(*three)
    manager.start()
    for partition in (T0, T1, T2):
        append(manager.create_log(partition), ("a", "1"))
    images = {path: path.read_bytes() for directory in three for path in directory.rglob("*") if path.is_file()}
    manager.shutdown()
    for directory in three:
        (directory / MARKER).unlink()
    fs = FailingFs()
    fs.broken.add(three[2] / "t-2" / "00000000000000000000.log")
    with running(*three, fs=fs) as manager:
        assert [log.partition for log in manager.all_logs()] == [T0, T1]
        assert [directory.is_offline for directory in manager.directories()] == [False, False, True]
    log = three[2] / "t-2" / "00000000000000000000.log"
    assert log.read_bytes() == images[log]


def test_rt_19_a_disk_that_fails_under_a_deletion_takes_its_directory_offline(three):
    fs = FailingFs()
    topic = topic_config("delete", retention_bytes=100)
    with running(*three, fs=fs, topic=topic) as manager:
        logs = {partition: manager.create_log(partition) for partition in (T0, T1, T2)}
        for log in logs.values():
            append(log, *(("a", str(number)) for number in range(9)))
        fs.broken.add(three[0] / "t-0")
        with pytest.raises(StorageError, match="Input/output error"):
            logs[T0].delete_old_segments()
        assert manager.directories()[0].is_offline
        advance(manager, 30_000)
        assert [logs[partition].base_offsets for partition in (T1, T2)] == [(6,), (6,)]
    assert sorted(path.name for path in (three[0] / "t-0").glob("*.log")) == [f"{base:020d}.log" for base in (0, 3, 6)]


def test_the_lock_of_a_directory_that_failed_is_given_back(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        log = manager.create_log(T0)
        fs.broken.add(three[0])
        with pytest.raises(StorageError):
            log.roll()
        with pytest.raises(DirectoryInUseError):
            manager_of(three[0]).start()
        manager.run_due()
        assert log.is_closed
        with running(three[0]) as other:
            assert other.get_log(T0) is not None


def test_a_disk_that_fails_under_a_checkpoint_takes_its_directory_offline(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        for partition in (T0, T1, T2):
            manager.create_log(partition)
        fs.broken.add(three[0] / RECOVERY_POINTS)
        manager.checkpoint_recovery_points()
        assert manager.get_log(T0) is None
        assert len(manager.all_logs()) == 2
        assert not manager.is_halted()


def test_when_every_directory_failed_nothing_is_served(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        manager.create_log(T0)
        fs.broken.update(three)
        manager.checkpoint_recovery_points()
        assert manager.is_halted() and manager.all_logs() == []
        with pytest.raises(StorageError, match="no log directory accepts"):
            manager.create_log(T1)
    assert not any((directory / MARKER).exists() for directory in three)


def test_lm_13_a_partition_that_may_be_in_an_offline_directory_is_not_created_again(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        fs.broken.add(three[0])
        manager.checkpoint_recovery_points()
        with pytest.raises(StorageError, match=r"may be in an offline directory.*Input/output"):
            manager.create_log(T0, is_new=False)
        assert manager.create_log(T0, is_new=True).directory == three[1] / "t-0"


def test_a_new_log_goes_to_the_next_directory_where_one_refuses_it(three):
    fs = FailingFs()
    with running(*three, fs=fs) as manager:
        fs.broken.add(three[0] / "t-0")
        assert manager.create_log(T0).directory == three[1] / "t-0"
        assert manager.directories()[0].is_offline


def test_a_directory_that_cannot_be_read_at_the_start_is_left_out(three):
    with running(*three) as manager:
        for partition in (T0, T1, T2):
            append(manager.create_log(partition), ("a", "1"))
    fs = FailingFs()
    fs.broken.add(three[2] / "t-2")
    with running(*three, fs=fs) as manager:
        assert [log.partition for log in manager.all_logs()] == [T0, T1]
        assert manager.directories()[2].failure is not None
    assert [(directory / MARKER).exists() for directory in three] == [True, True, False]
