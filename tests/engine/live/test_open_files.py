"""Descriptors of a live log: their number, their release, and calls at the limit of open files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.log.fetched_data import Isolation
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_manager import IDLE_FILES_CHECK_INTERVAL_MS, LogManager
from sediment.segment_io.errors import OpenFilesLimitError, StorageError
from sediment.segment_io.format.names import TopicPartition
from tests.engine.live_logs import LiveLog, batch
from tests.engine.managed import (
    T0,
    T1,
    T2,
    ShortFs,
    advance,
    append,
    dirty_log,
    latest_of,
    manager_of,
    one_batch,
    records_of,
    running,
    short,
    topic_config,
)
from tests.twin.batches import ControlType

MARKER = ".kafka_cleanshutdown"


def descriptors_below(directory: Path) -> int:
    """Descriptors that this process has open on files of partitions in a log directory."""
    paths = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            paths.append(entry.readlink())
        except OSError:
            continue
    return sum(path.is_relative_to(directory) and path.parent != directory for path in paths)


def test_a_log_needs_three_descriptors_to_be_appended_to_and_one_a_segment_to_be_read(tmp_path: Path) -> None:
    partitions = [TopicPartition("t", number) for number in range(10)]
    topic = topic_config("delete", segment_bytes=10_000, index_interval_bytes=0)
    with running(tmp_path, topic=topic) as manager:
        for partition in partitions:
            log = manager.create_log(partition)
            for _ in range(2):
                append(log, *(("a", str(number)) for number in range(5)))
                log.roll()
            append(log, ("a", "1"))
        assert descriptors_below(tmp_path) <= 5 * len(partitions)
    with running(tmp_path, topic=topic) as manager:
        logs = manager.all_logs()
        assert len(logs) == len(partitions)
        assert descriptors_below(tmp_path) == 0
        for log in logs:
            append(log, ("a", "2"))
        assert descriptors_below(tmp_path) == 3 * len(logs)
        for log in logs:
            assert len(records_of(log)) == 12
            assert log.lookup_timestamp(1) is not None
        assert descriptors_below(tmp_path) == 5 * len(logs)

        advance(manager, IDLE_FILES_CHECK_INTERVAL_MS)
        append(logs[0], ("a", "3"))
        advance(manager, IDLE_FILES_CHECK_INTERVAL_MS)
        # What is not flushed yet keeps its `.log`; the log that was used meanwhile keeps all three.
        assert descriptors_below(tmp_path) == 3 + (len(logs) - 1)
        for log in logs:
            log.flush()
        for _ in range(2):
            advance(manager, IDLE_FILES_CHECK_INTERVAL_MS)
        assert descriptors_below(tmp_path) == 0
        for log in logs:
            append(log, ("a", "4"))
            assert len(records_of(log)) >= 13
    with running(tmp_path, topic=topic) as manager:
        assert [len(records_of(log)) for log in manager.all_logs()] == [14, *[13] * 9]


def test_a_reader_keeps_a_file_that_was_given_back(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch())
    log.log.flush()
    data = log.log.read(0, 1000)
    for _ in range(3):
        log.log.close_idle_files()
    assert len(data.read()) == 71
    assert log.fetched_offsets(0) == [0]


def all_given_back(manager: LogManager) -> None:
    for log in manager.all_logs():
        log.flush()
    manager.close_idle_files()
    manager.close_idle_files()


CALLS: dict[str, Any] = {
    "append": lambda log: log.append_as_leader(one_batch(("a", "9"), timestamp_ms=log._clock()), 0),
    "append of another epoch": lambda log: log.append_as_leader(one_batch(("a", "9"), timestamp_ms=log._clock()), 5),
    "read": lambda log: log.read(0, 1000, Isolation.HIGH_WATERMARK),
    "lookup": lambda log: log.lookup_timestamp(1),
    "roll": lambda log: log.roll(),
    "truncate": lambda log: log.truncate_to(1),
    "truncate fully": lambda log: log.truncate_fully_and_start_at(7),
    "delete records": lambda log: log.delete_records(1),
    "assign epoch": lambda log: log.assign_leader_epoch(4, 9),
    "segments": lambda log: log.segments(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_can_open_no_file_says_so_and_changes_nothing(tmp_path: Path, name: str) -> None:
    fs = ShortFs()
    with running(tmp_path, fs=fs, topic=topic_config("delete")) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "1"), ("b", "2"))
        all_given_back(manager)
        before = (log.log_end_offset, log.log_start_offset, log.base_offsets, log.leader_epochs, log.high_watermark)
        with short(fs), pytest.raises(OpenFilesLimitError, match=r"may open no more files.*raise ulimit -n"):
            CALLS[name](log)
        assert (
            *(log.log_end_offset, log.log_start_offset, log.base_offsets, log.leader_epochs),
            log.high_watermark,
        ) == before
        assert not log.is_offline and not manager.directories()[0].is_offline
        assert [record.value for record in records_of(log)] == [b"1", b"2"]
        assert append(log, ("c", "3")) == 2
    assert (tmp_path / MARKER).exists()
    with running(tmp_path) as manager:
        found = manager.get_log(T0)
        assert found is not None
        assert [record.value for record in records_of(found)] == [b"1", b"2", b"3"]


def test_an_abort_marker_is_not_appended_where_its_index_cannot_be_opened(tmp_path: Path) -> None:
    fs = ShortFs()
    log = LiveLog(tmp_path, fs=fs)
    log.lead(batch(pid=1, seq=0, tx=True))
    with short(fs), pytest.raises(OpenFilesLimitError):
        log.mark(1, ControlType.ABORT)
    assert log.log.log_end_offset == 1
    log.mark(1, ControlType.ABORT)
    found = log.log.read(0, 1000, Isolation.TXN_COMMITTED).aborted
    assert found is not None
    assert [(txn.first_offset, txn.last_offset) for txn in found] == [(0, 1)]


@pytest.mark.parametrize("left", [16, 17])
def test_a_change_that_breaks_off_takes_its_log_offline_and_no_directory(tmp_path: Path, left: int) -> None:
    class GreedyFs(ShortFs):
        """Other threads take the descriptors after they were counted."""

        def require_descriptors(self, count: int) -> None:
            super().require_descriptors(count)
            if self.is_short:
                self.left -= 16

    fs = GreedyFs()
    with running(tmp_path, fs=fs, topic=topic_config("delete")) as manager:
        log, other = manager.create_log(T0), manager.create_log(T1)
        for each in (log, other):
            append(each, ("a", "1"), ("b", "2"))
        with short(fs, left), pytest.raises(OpenFilesLimitError):
            log.roll()
        assert log.is_offline
        with pytest.raises(StorageError, match="no more files could be opened"):
            append(log, ("c", "3"))
        assert not manager.directories()[0].is_offline
        assert append(other, ("c", "3")) == 2
    assert not (tmp_path / MARKER).exists()
    with running(tmp_path) as manager:
        recovered, other_again = manager.get_log(T0), manager.get_log(T1)
        assert recovered is not None and other_again is not None
        assert [len(records_of(recovered)), len(records_of(other_again))] == [2, 3]


def test_tasks_and_the_cleaner_go_on_once_files_can_be_opened_again(tmp_path: Path, caplog: Any) -> None:
    fs = ShortFs()
    with running(tmp_path, fs=fs) as manager:
        log = dirty_log(manager)
        wanted = latest_of(log)
        all_given_back(manager)
        with short(fs):
            assert not manager.cleaner.clean_filthiest()
            manager.checkpoint_recovery_points()
            manager.checkpoint_high_watermarks()
            for call in (lambda: manager.create_log(T2), lambda: manager.delete_log(T0)):
                with pytest.raises(OpenFilesLimitError):
                    call()
        assert "ulimit -n" in caplog.text and "was not written" in caplog.text
        assert not manager.directories()[0].is_offline and manager.cleaner.manager.checkpoints.uncleanable() == {}
        assert manager.get_log(T0) is log and manager.get_log(T2) is None
        assert manager.cleaner.clean_filthiest()
        assert latest_of(log) == wanted


def test_a_start_that_can_open_no_file_fails_and_leaves_the_directories_as_they_were(tmp_path: Path) -> None:
    with running(tmp_path) as manager:
        for partition in (T0, T1):
            append(manager.create_log(partition), ("a", "1"))
    fs = ShortFs()
    with short(fs, 12), pytest.raises(OpenFilesLimitError, match="ulimit -n"):
        manager_of(tmp_path, fs=fs).start()
    with running(tmp_path) as manager:
        assert not manager.directories()[0].is_offline
        assert [len(records_of(log)) for log in manager.all_logs()] == [1, 1]


def test_a_process_with_few_descriptors_keeps_its_directories(tmp_path: Path) -> None:
    program = """
        import resource, sys
        from pathlib import Path
        from sediment.engine.live.broker_config import BrokerConfig
        from sediment.engine.log_config import LogConfig
        from sediment.engine.live.log_manager import LogManager
        from sediment.segment_io.format.batch_builder import NewRecord, build_batch
        from sediment.segment_io.errors import OpenFilesLimitError
        from sediment.segment_io.format.names import TopicPartition

        manager = LogManager([Path(sys.argv[1])], lambda topic: LogConfig(), BrokerConfig(background_threads=0))
        manager.start()
        import time
        batch = build_batch([NewRecord(time.time_ns() // 1_000_000, b"k", b"v")])
        manager.create_log(TopicPartition("warm", 0)).append_as_leader(batch, 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        appended = 0
        try:
            for number in range(200):
                manager.create_log(TopicPartition("t", number)).append_as_leader(batch, 0)
                appended += 1
        except OpenFilesLimitError as error:
            print(error)
        assert 10 < appended < 40, appended
        assert not manager.directories()[0].is_offline
        for log in manager.all_logs():
            log.flush()
        manager.close_idle_files()
        manager.close_idle_files()
        manager.create_log(TopicPartition("more", 0)).append_as_leader(batch, 0)
        assert sum(log.log_end_offset for log in manager.all_logs()) == appended + 2
        manager.shutdown()
        assert (Path(sys.argv[1]) / ".kafka_cleanshutdown").exists()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "raise ulimit -n" in done.stdout


def test_a_log_that_is_closed_gives_nothing_back(tmp_path: Path) -> None:
    log: PartitionLog = LiveLog(tmp_path).log
    log.close()
    log.close_idle_files()
    assert descriptors_below(tmp_path) == 0
