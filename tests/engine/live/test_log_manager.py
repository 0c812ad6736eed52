"""The log manager: start, serving, background tasks, failing directories and the clean stop.

Times are moved by the tests; what is due then runs in the thread that moves them.
"""

from __future__ import annotations

import logging
import shutil
import threading
from contextlib import contextmanager

import pytest

from sediment.engine.live import log_manager
from sediment.engine.live.manager.log_loading import LoadProgress
from sediment.segment_io.errors import CorruptDataError, DirectoryInUseError, StorageError, UsageError
from sediment.segment_io.format.meta_properties import MetaProperties, format_meta_properties
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from tests.engine.managed import (
    COMPACTED,
    DELETED,
    T0,
    T1,
    T2,
    FailingFs,
    advance,
    append,
    clock_of,
    dirty_log,
    latest_of,
    manager_of,
    open_files_below,
    records_of,
    running,
    topic_config,
)
from tests.jobs.log_dirs import read_checkpoint, write_checkpoint
from tests.waiting import LIMIT_SECONDS, wait_until

MARKER = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
FIRST_DIRTY = "cleaner-offset-checkpoint"

MINUTE_MS = 60_000


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def three(tmp_path):
    return [tmp_path / name for name in ("a", "b", "c")]


def names_in(directory):
    return {path.name for path in directory.iterdir()}


def partitions_in(directory):
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


# --------------------------------------------------------------------------------------------------------------- start
def test_lm_01_two_managers_on_one_directory_the_second_fails(logs):
    with running(logs):
        with pytest.raises(DirectoryInUseError, match=r"\.lock"):
            manager_of(logs).start()
        assert manager_of(logs).directories() == []
    with running(logs):
        pass


def test_a_directory_named_twice_is_refused(logs, tmp_path):
    logs.mkdir()
    (tmp_path / "link").symlink_to(logs)
    with pytest.raises(UsageError, match="directory is the same as"):
        manager_of(logs, tmp_path / "link").start()
    with running(logs):
        pass


def test_what_was_appended_is_there_after_a_clean_stop(logs):
    with running(logs) as manager:
        append(manager.create_log(T0), ("a", "1"), ("b", "2"))
    with running(logs) as manager:
        log = manager.get_log(T0)
        assert log is not None
        assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (2, 2, 2)
        assert latest_of(log) == {b"a": b"1", b"b": b"2"}
        assert append(log, ("a", "3")) == 2


def test_lm_03_a_clean_stop_leaves_the_marker_everywhere_and_a_start_takes_it(three):
    manager = manager_of(*three)
    manager.start()
    manager.create_log(T0)
    assert not any((directory / MARKER).exists() for directory in three)
    manager.shutdown(broker_epoch=42)
    for directory in three:
        assert (directory / MARKER).read_bytes() == b'{"version":0,"brokerEpoch":42}'
    with running(*three) as manager:
        assert not any((directory / MARKER).exists() for directory in three)
        assert [directory.clean_shutdown.broker_epoch for directory in manager.directories()] == [42, 42, 42]


@pytest.mark.parametrize("was_clean", [True, False])
def test_lm_04_a_stop_before_loading_is_finished_leaves_the_marker_that_was_there(logs, was_clean):
    with running(logs) as manager:
        for partition in (T0, T1, T2):
            append(manager.create_log(partition), ("a", "1"))
    if not was_clean:
        (logs / MARKER).unlink()
    stop = threading.Event()
    manager = manager_of(logs, num_recovery_threads_per_data_dir=1)
    manager.start(progress=lambda _progress: stop.set(), stop=stop)
    assert len(manager.all_logs()) == 1
    manager.shutdown()
    assert (logs / MARKER).exists() == was_clean
    assert read_checkpoint(logs / RECOVERY_POINTS) == {"t-0": 1, "t-1": 1, "t-2": 1}
    with running(logs) as manager:
        assert len(manager.all_logs()) == 3


def test_lm_04_a_log_that_cannot_be_closed_keeps_the_marker_from_its_directory_only(three, caplog):
    fs = FailingFs()
    manager = manager_of(*three, fs=fs)
    manager.start()
    for partition in (T0, T1, T2):
        append(manager.create_log(partition), ("a", "1"))
    fs.broken.add(three[1] / partitions_in(three[1])[0])
    manager.shutdown()
    assert [(directory / MARKER).exists() for directory in three] == [True, False, True]
    assert "could not be closed" in caplog.text


def test_logs_are_loaded_in_parallel_with_progress(three):
    with running(*three) as manager:
        for number in range(12):
            append(manager.create_log(TopicPartition("p", number)), ("a", "1"))
    seen, threads = [], set()

    def note(progress):
        seen.append(progress)
        threads.add(threading.current_thread().name)

    manager = manager_of(*three, num_recovery_threads_per_data_dir=2)
    manager.start(progress=note)
    assert len(manager.all_logs()) == 12
    assert {(progress.loaded, progress.total) for progress in seen} == {(n, 4) for n in (1, 2, 3, 4)}
    assert {progress.log_dir for progress in seen} == set(three)
    assert LoadProgress(three[0], seen[0].name, 1, 4).name.startswith("p-")
    assert all(name.startswith("sediment-load-") for name in threads) and len(threads) >= 3
    manager.shutdown()


def test_lm_08_what_is_no_log_of_ours_is_left_alone(logs):
    for name in ("remote-log-index-cache", "__cluster_metadata-0"):
        (logs / name).mkdir(parents=True)
        (logs / name / "file").touch()
    with running(logs) as manager:
        assert manager.all_logs() == []
    assert names_in(logs / "__cluster_metadata-0") == {"file"}


@pytest.mark.parametrize("name", ["lost+found", "topic", "topic-x", "topic-1-delete"])
def test_lm_07_a_directory_that_is_no_partition_ends_the_start(logs, name):
    (logs / name).mkdir(parents=True)
    with pytest.raises(UsageError, match="not named topic-partition"):
        manager_of(logs).start()
    (logs / name).rmdir()
    with running(logs):
        pass


def test_a_start_that_fails_leaves_directories_as_cleanly_stopped_as_they_were(three):
    manager = manager_of(*three)
    manager.start()
    for partition in (T0, T1, T2):
        append(manager.create_log(partition), ("a", "1"))
    manager.shutdown(broker_epoch=42)
    (three[1] / MARKER).unlink()
    (three[2] / "lost+found").mkdir()
    marker = (three[0] / MARKER).read_bytes()
    for _ in range(2):
        with pytest.raises(UsageError, match="lost"):
            manager_of(*three).start()
        assert (three[0] / MARKER).read_bytes() == (three[2] / MARKER).read_bytes() == marker
        assert not (three[1] / MARKER).exists()
        for directory in three:
            assert len(read_checkpoint(directory / RECOVERY_POINTS)) == 1
    (three[2] / "lost+found").rmdir()
    with running(*three) as manager:
        assert len(manager.all_logs()) == 3


def test_lm_11_a_partition_in_two_directories_ends_the_start(three):
    with running(three[0]) as manager:
        append(manager.create_log(T0), ("a", "1"))
    shutil.copytree(three[0] / "t-0", three[1] / "t-0")
    with pytest.raises(UsageError, match="the partition is also in"):
        manager_of(*three).start()
    shutil.rmtree(three[1] / "t-0")
    with running(*three) as manager:
        assert manager.get_log(T0) is not None


def test_lm_14_a_log_of_an_unknown_topic_is_set_aside(logs):
    with running(logs) as manager:
        append(manager.create_log(T0, topic_id="AAAAAAAAAAAAAAAAAAAAAQ"), ("a", "1"))
        append(manager.create_log(T1), ("a", "1"))
    with running(logs, is_stray=lambda _partition, topic_id: topic_id is None) as manager:
        assert [log.partition for log in manager.all_logs()] == [T0]
        (stray,) = manager.strays()
        assert stray.name.startswith("t-1.") and stray.name.endswith("-stray")
        assert partitions_in(logs) == ["t-0", stray.name]
    with running(logs) as manager:
        assert manager.strays() == [stray]
        assert manager.get_log(T1) is None


def test_a_log_that_no_broker_would_load_ends_the_start(logs):
    with running(logs) as manager:
        append(manager.create_log(T0), ("a", "1"))
        append(manager.create_log(T1), ("a", "1"))
    (logs / "t-1" / "foo.log").touch()
    with pytest.raises(CorruptDataError, match=r"foo\.log"):
        manager_of(logs).start()
    (logs / "t-1" / "foo.log").unlink()
    with running(logs) as manager:
        assert len(manager.all_logs()) == 2


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS])
@pytest.mark.parametrize("content", ["nonsense\n", "0\n1\nt 0 nonsense\n"])
def test_a_malformed_checkpoint_takes_its_directory_offline(three, name, content):
    with running(*three) as manager:
        for partition in (T0, T1, T2):
            append(manager.create_log(partition), ("a", "1"))
    (three[0] / name).write_text(content)
    with running(*three) as manager:
        assert [directory.is_offline for directory in manager.directories()] == [True, False, False]
        assert len(manager.all_logs()) == 2


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_a_malformed_file_of_a_log_takes_its_directory_offline_and_the_others_are_loaded(three, name, caplog):
    with running(*three) as manager:
        for partition in (T0, T1, T2):
            append(manager.create_log(partition, topic_id="AAAAAAAAAAAAAAAAAAAAAQ"), ("a", "1"))
    (three[0] / "t-0" / name).write_text("nonsense\n")
    with running(*three) as manager:
        assert [log.partition for log in manager.all_logs()] == [T1, T2]
        assert [directory.is_offline for directory in manager.directories()] == [True, False, False]
        assert name in manager.directories()[0].failure
        assert "is offline" in caplog.text and name in caplog.text
        with pytest.raises(StorageError, match=name):
            manager.create_log(T0, is_new=False)
    assert [(directory / MARKER).exists() for directory in three] == [False, True, True]
    with pytest.raises(StorageError, match=name):
        manager_of(three[0]).start()


def test_no_log_of_a_directory_with_a_malformed_file_is_served(three):
    partitions = [TopicPartition("t", number) for number in range(12)]
    with running(three[0]) as manager:
        for partition in partitions:
            append(manager.create_log(partition), ("a", "1"))
    with running(three[1]) as manager:
        append(manager.create_log(TopicPartition("x", 0)), ("a", "1"))
    (three[0] / "t-3" / "leader-epoch-checkpoint").write_text("nonsense\n")
    with running(*three[:2]) as manager:
        assert [log.partition for log in manager.all_logs()] == [TopicPartition("x", 0)]
        manager.run_due()
        assert open_files_below(three[0]) == []
        with running_after_repair(three[0]) as repaired:
            assert [len(records_of(log)) for log in repaired.all_logs()] == [1] * len(partitions)


@contextmanager
def running_after_repair(directory):
    (directory / "t-3" / "leader-epoch-checkpoint").unlink()
    with running(directory) as manager:
        yield manager


def test_without_any_usable_directory_there_is_no_engine(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="no log directory is usable"):
        manager_of(tmp_path / "file").start()


def test_a_directory_that_cannot_be_locked_is_left_out(three):
    (three[1] / ".lock").mkdir(parents=True)
    with running(*three) as manager:
        assert [directory.is_offline for directory in manager.directories()] == [False, True, False]
        assert manager.create_log(T0).directory.parent != three[1]


def test_new_directories_get_the_owner_of_the_others(three):
    meta = MetaProperties(1, "cluster", 7, "AAAAAAAAAAAAAAAAAAAAAQ")
    three[1].mkdir()
    (three[1] / "meta.properties").write_bytes(format_meta_properties(meta))
    with running(*three):
        pass
    found = [read_meta_properties(Fs(), directory / "meta.properties") for directory in three]
    assert found[1] == meta
    assert [(each.cluster_id, each.node_id) for each in found] == [("cluster", 7)] * 3
    assert len({each.directory_id for each in found}) == 3


def test_a_directory_of_another_broker_is_refused(three):
    with running(three[0], cluster_id="one", node_id=1), pytest.raises(UsageError, match="cluster two"):
        two = manager_of(three[1], cluster_id="two", node_id=1)
        two.start()
        two.shutdown()
        manager_of(three[1], three[2], cluster_id="one", node_id=1).start()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"node_id": 8}, "node 7, but the engine is configured with node.id 8"),
        ({"cluster_id": "other"}, "cluster one, but the engine is configured with cluster.id other"),
        ({"cluster_id": "other", "node_id": 7}, "cluster one"),
    ],
)
@pytest.mark.parametrize("fresh", ["missing", "empty"])
def test_another_node_or_cluster_is_refused_before_anything_is_written(three, wrong, words, fresh):
    right = {"cluster_id": "one", "node_id": 7}
    with running(three[1], **right) as manager:
        append(manager.create_log(T0), ("a", "1"))
    if fresh == "empty":
        three[0].mkdir()
    before = {path: path.read_bytes() if path.is_file() else None for path in three[0].parent.rglob("*")}
    with pytest.raises(UsageError, match=words):
        manager_of(three[0], three[1], **wrong).start()
    assert {path: path.read_bytes() if path.is_file() else None for path in three[0].parent.rglob("*")} == before
    with running(three[0], three[1], **right) as manager:
        assert [log.partition for log in manager.all_logs()] == [T0]
    owners = [read_meta_properties(Fs(), directory / "meta.properties") for directory in three[:2]]
    assert [(owner.cluster_id, owner.node_id) for owner in owners] == [("one", 7)] * 2


def test_an_engine_without_a_cluster_writes_no_meta_properties(logs):
    with running(logs):
        assert "meta.properties" not in names_in(logs)


# ---------------------------------------------------------------------------------------------------------------- logs
def test_lm_02_new_partitions_are_spread_over_the_directories(three):
    with running(*three) as manager:
        for number in range(20):
            manager.create_log(TopicPartition("spread", number))
            counts = [len(partitions_in(directory)) for directory in three]
            assert max(counts) - min(counts) <= 1
        assert sum(counts) == 20


def test_a_log_that_is_there_is_not_created_again(logs):
    with running(logs) as manager:
        log = manager.create_log(T0)
        assert manager.create_log(T0) is log
        assert manager.get_log(T1) is None


BAD_PARTITIONS = [
    TopicPartition(topic, 0)
    for topic in ("", ".", "..", "../x", "slash/y", "a b", "n\nl", "nul\0", "caf\u00e9", "a" * 250, "a" * 5000)
] + [TopicPartition("t", -1), TopicPartition("t", 2**31), TopicPartition("a" * 249, 2**31 - 1)]


@pytest.mark.parametrize("partition", BAD_PARTITIONS, ids=lambda partition: repr(str(partition))[:20])
def test_names_that_kafka_does_not_allow_are_refused_and_nothing_is_touched(three, partition):
    with running(*three) as manager:
        append(manager.create_log(T0), ("a", "1"))
        before = sorted(three[0].parent.rglob("*"))
        for call in (manager.create_log, manager.delete_log):
            with pytest.raises(UsageError, match=r"is not a|longer than 255"):
                call(partition)
        if partition.topic not in ("t", "a" * 249):
            with pytest.raises(UsageError, match="is not a topic name"):
                manager.update_topic_config(partition.topic, COMPACTED)
        assert sorted(three[0].parent.rglob("*")) == before
        assert not any(directory.is_offline for directory in manager.directories())
    with running(*three) as manager:
        assert [log.partition for log in manager.all_logs()] == [T0]


def test_the_longest_names_that_kafka_allows_are_taken(logs):
    longest = [TopicPartition("a" * 249, 99_999), TopicPartition("._-", 0), TopicPartition("t", 2**31 - 1)]
    with running(logs) as manager:
        for partition in longest:
            append(manager.create_log(partition), ("a", "1"))
    with running(logs) as manager:
        assert [log.partition for log in manager.all_logs()] == sorted(longest)
        for partition in longest:
            manager.delete_log(partition)


@pytest.mark.parametrize("topic_id", ["", "short", "A" * 22, "!" * 22, "AAAAAAAAAAAAAAAAAAAAAQ\n"])
def test_a_topic_id_that_no_broker_would_read_is_refused(logs, topic_id):
    with running(logs) as manager:
        with pytest.raises(UsageError, match="topic id"):
            manager.create_log(T0, topic_id=topic_id)
        assert partitions_in(logs) == []


def test_a_log_of_another_engine_has_no_directory_here(three):
    with running(three[0]) as manager, running(three[1]) as other:
        log = other.create_log(T0)
        with pytest.raises(UsageError, match="not a log of the engine"):
            manager.directory_of(log)


def test_a_log_is_created_where_it_is_wanted(three):
    with running(*three) as manager:
        manager.create_log(T0, log_dir=three[2])
        manager.create_log(T1, log_dir=three[2])
        assert partitions_in(three[2]) == ["t-0", "t-1"]
        with pytest.raises(UsageError, match="not a log directory of the engine"):
            manager.create_log(T2, log_dir=three[2] / "other")


def test_a_directory_that_a_crash_left_without_a_log_becomes_one(logs):
    with running(logs) as manager:
        (logs / "t-0").mkdir()
        assert append(manager.create_log(T0), ("a", "1")) == 0
        assert not manager.directories()[0].is_offline


def test_the_files_of_a_new_log_are_read_and_written_by_those_who_may_enter_its_directory(logs):
    with running(logs) as manager:
        logs.chmod(0o2750)
        append(manager.create_log(T0), ("a", "1"))
        directory_mode = (logs / "t-0").stat().st_mode
        for path in (logs / "t-0").iterdir():
            assert path.stat().st_mode & 0o7777 == directory_mode & 0o666, path


def test_a_new_segment_of_private_files_is_private(logs):
    with running(logs) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "1"))
        for path in (logs / "t-0").iterdir():
            path.chmod(0o600)
        log.roll()
        append(log, ("a", "2"))
        assert {path.stat().st_mode & 0o777 for path in (logs / "t-0").glob(f"{1:020d}.*")} == {0o600}


def test_two_threads_that_create_a_log_get_the_same(logs):
    with running(logs) as manager:
        start, found = threading.Barrier(4), []

        def create():
            start.wait(timeout=LIMIT_SECONDS)
            found.append(manager.create_log(T0))

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=LIMIT_SECONDS)
        assert len(found) == 4 and len({id(log) for log in found}) == 1


def test_a_deleted_log_is_renamed_at_once_and_removed_later(logs):
    with running(logs, log_segment_delete_delay_ms=MINUTE_MS) as manager:
        append(manager.create_log(T0), ("a", "1"))
        append(manager.create_log(T1), ("a", "1"))
        manager.checkpoint_recovery_points()
        manager.delete_log(T0)
        assert manager.get_log(T0) is None
        deleted, kept = partitions_in(logs)
        assert kept == "t-1" and deleted.startswith("t-0.") and deleted.endswith("-delete")
        assert len(deleted) == len("t-0.") + 32 + len("-delete")
        assert read_checkpoint(logs / RECOVERY_POINTS) == {"t-1": 0}
        advance(manager, 59_999)
        assert partitions_in(logs) == [deleted, "t-1"]
        advance(manager, MINUTE_MS)
        assert partitions_in(logs) == ["t-1"]
        with pytest.raises(UsageError, match="the log does not exist"):
            manager.delete_log(T0)


def test_a_log_may_be_created_again_while_the_deleted_one_waits(logs):
    with running(logs) as manager:
        append(manager.create_log(T0), ("a", "1"))
        manager.delete_log(T0)
        assert manager.create_log(T0).log_end_offset == 0


def test_a_deleted_log_that_a_stop_left_is_removed_by_the_next_engine(logs):
    with running(logs) as manager:
        append(manager.create_log(T0), ("a", "1"))
        manager.delete_log(T0)
    assert len(partitions_in(logs)) == 1
    with running(logs) as manager:
        assert manager.all_logs() == []
        advance(manager, 2 * MINUTE_MS)
        assert partitions_in(logs) == []


def test_the_directory_of_a_deleted_log_of_a_long_topic_has_a_name_that_fits(logs):
    with running(logs) as manager:
        manager.create_log(TopicPartition("x" * 249, 3))
        manager.delete_log(TopicPartition("x" * 249, 3))
        (name,) = partitions_in(logs)
        assert len(name) == 255 and name.endswith("-delete") and "-3." in name


# --------------------------------------------------------------------------------------------------------------- tasks
def test_lm_05_the_recovery_points_of_all_partitions_are_written(three):
    with running(*three) as manager:
        for partition, count in ((T0, 1), (T1, 2)):
            log = manager.create_log(partition)
            append(log, *[("a", "1")] * count)
            log.flush()
        advance(manager, 90_000)
        assert read_checkpoint(three[0] / RECOVERY_POINTS) == {"t-0": 1}
        assert read_checkpoint(three[1] / RECOVERY_POINTS) == {"t-1": 2}
        assert read_checkpoint(three[2] / RECOVERY_POINTS) == {}


def test_lm_05_a_truncation_rewrites_the_recovery_points_of_its_directory_only(three):
    with running(*three) as manager:
        for partition in (T0, T1):
            log = manager.create_log(partition)
            append(log, *[("a", "1")] * 5)
            log.flush()
        manager.checkpoint_recovery_points()
        before = {directory: (directory / RECOVERY_POINTS).stat().st_ino for directory in three}
        manager.truncate_to({T0: 2})
        assert manager.get_log(T0).log_end_offset == 2
        assert read_checkpoint(three[0] / RECOVERY_POINTS) == {"t-0": 2}
        assert [(d / RECOVERY_POINTS).stat().st_ino == before[d] for d in three] == [False, True, True]


def test_a_truncation_lowers_the_cleaner_checkpoint(logs):
    with running(logs, topic=topic_config("compact", min_cleanable_dirty_ratio=0.0)) as manager:
        log = dirty_log(manager)
        assert manager.cleaner.clean_filthiest()
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": log.active_base_offset}
        manager.truncate_to({T0: 2})
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": log.active_base_offset}
        assert log.active_base_offset <= 2 == log.log_end_offset
        manager.truncate_fully_and_start_at(T0, 0)
        assert read_checkpoint(logs / FIRST_DIRTY) == {"t-0": 0}
        assert manager.cleaner.manager.states.of(T0) is None


def test_lm_06_log_starts_are_written_only_where_they_are_inside_a_segment(logs):
    with running(logs) as manager:
        for partition, start in ((T0, 0), (T1, 1), (T2, 3)):
            log = manager.create_log(partition)
            append(log, *[("a", "1")] * 5)
            log.maybe_increment_log_start_offset(start)
            log.delete_old_segments()
        advance(manager, 30_000)
        assert read_checkpoint(logs / LOG_STARTS) == {"t-1": 1}
    with running(logs) as manager:
        assert [manager.get_log(partition).log_start_offset for partition in (T0, T1, T2)] == [0, 1, 3]


def test_high_watermarks_are_written_every_five_seconds(logs):
    with running(logs) as manager:
        append(manager.create_log(T0), ("a", "1"), ("b", "1"))
        advance(manager, 0)
        assert read_checkpoint(logs / HIGH_WATERMARKS) == {"t-0": 2}
        append(manager.get_log(T0), ("a", "2"))
        advance(manager, 4999)
        assert read_checkpoint(logs / HIGH_WATERMARKS) == {"t-0": 2}
        advance(manager, 1)
        assert read_checkpoint(logs / HIGH_WATERMARKS) == {"t-0": 3}


@pytest.mark.parametrize("policies", [("delete",), ("compact",), ("compact", "delete")])
def test_lm_09_the_retention_task_touches_only_logs_that_are_not_compacted(logs, policies):
    config = topic_config(*policies, retention_ms=1000)
    with running(logs, topic=config, log_cleaner_enable=False) as manager:
        log = manager.create_log(T0)
        append(log, *[("a", "1")] * 7)
        advance(manager, 29_999)
        assert log.base_offsets == (0, 3, 6)
        advance(manager, 1)
        assert log.base_offsets == ((7,) if policies == ("delete",) else (0, 3, 6))
        assert manager.cleaner.manager.states.of(T0) is None


def test_a_manager_that_deletes_nothing_leaves_segments_and_renamed_logs(logs):
    with running(logs, log_segment_delete_delay_ms=10 * MINUTE_MS) as manager:
        append(manager.create_log(T0), ("a", "1"))
        manager.delete_log(T0)
    with running(logs, topic=topic_config("delete", retention_ms=1000), deletes=False) as manager:
        log = manager.create_log(T1)
        append(log, *[("a", "1")] * 7)
        for _ in range(20):
            advance(manager, MINUTE_MS)
        assert log.base_offsets == (0, 3, 6)
    renamed, kept = partitions_in(logs)
    assert renamed.endswith("-delete") and kept == "t-1"


def test_retention_runs_again_after_its_interval(logs):
    with running(
        logs, topic=topic_config("delete", retention_bytes=0), log_retention_check_interval_ms=1000
    ) as manager:
        log = manager.create_log(T0)
        advance(manager, 30_000)
        append(log, *[("a", "1")] * 4)
        advance(manager, 999)
        assert log.base_offsets == (0, 3)
        advance(manager, 1)
        assert log.base_offsets == (4,)
        assert "00000000000000000000.log.deleted" in names_in(logs / "t-0")
        advance(manager, MINUTE_MS)
        assert not any(name.endswith(".deleted") for name in names_in(logs / "t-0"))


def test_lm_10_the_flusher_flushes_what_was_not_flushed_for_flush_ms(logs):
    config = topic_config("delete", flush_ms=1000)
    with running(logs, topic=config, log_flush_scheduler_interval_ms=500, log_initial_task_delay_ms=0) as manager:
        log = manager.create_log(T0)
        append(log, ("a", "1"))
        advance(manager, 999)
        assert log.recovery_point == 0
        advance(manager, 501)
        assert log.recovery_point == 1


def test_expired_producers_are_forgotten(logs):
    from tests.segments import batch_bytes

    config = topic_config("delete", producer_id_expiration_ms=MINUTE_MS)
    with running(logs, topic=config, producer_id_expiration_check_interval_ms=30_000) as manager:
        log = manager.create_log(T0)
        log.append_as_leader(batch_bytes(0, producer_id=7, timestamp=clock_of(manager).now_ms()), 0)
        advance(manager, 30_000)
        assert set(log.producers.entries) == {7}
        advance(manager, 30_000)
        assert set(log.producers.entries) == set()


@pytest.mark.parametrize(
    ("counts", "limit", "each"),
    [([], 5, 5), ([3], 5, 3), ([7], 5, 5), ([1, 2, 3], 6, 3), ([1, 2, 4], 6, 3), ([9, 1, 9], 9, 4), ([5, 5, 5], 2, 0)],
)
def test_a_limit_is_shared_so_that_the_smallest_counts_stay(counts, limit, each):
    assert log_manager.limit_of_each(counts, limit) == each
    assert sum(min(count, each) for count in counts) <= max(limit, 0)


def test_producers_above_the_limit_of_all_logs_are_forgotten_where_there_are_most(logs, monkeypatch):
    from tests.segments import batch_bytes

    monkeypatch.setattr(log_manager, "MAX_PRODUCERS_OF_ALL_LOGS", 6)
    with running(logs, topic=topic_config("delete")) as manager:
        first, second = manager.create_log(T0), manager.create_log(T1)
        for log, producers in ((first, [1, 2]), (second, [3, 4, 5, 6, 7, 3])):
            sequences = dict.fromkeys(producers, 0)
            for producer in producers:
                log.append_as_leader(batch_bytes(0, producer_id=producer, sequence=sequences[producer]), 0)
                sequences[producer] += 1
        advance(manager, log_manager.PRODUCERS_CHECK_INTERVAL_MS)
        assert [set(log.producers.entries) for log in (first, second)] == [{1, 2}, {3, 5, 6, 7}]


def test_an_error_in_one_log_keeps_no_task_from_the_others(three, caplog):
    fs = FailingFs()
    with running(*three, fs=fs, topic=topic_config("delete", retention_bytes=0)) as manager:
        for partition in (T0, T1, T2):
            append(manager.create_log(partition), *[("a", "1")] * 4)
        fs.broken.add(three[1])
        advance(manager, 30_000)
        assert [manager.get_log(partition) is None for partition in (T0, T1, T2)] == [False, True, False]
        assert [manager.get_log(partition).base_offsets for partition in (T0, T2)] == [(4,), (4,)]


def test_a_future_log_is_loaded_beside_the_live_one_and_counts_for_its_directory(three):
    with running(*three) as manager:
        append(manager.create_log(T0), ("a", "1"))
    future = f"t-0.{'0' * 32}-future"
    shutil.copytree(three[0] / "t-0", three[1] / future)
    with running(*three) as manager:
        log = manager.get_future_log(T0)
        assert (log.directory.name, log.log_end_offset) == (future, 1)
        assert manager.get_log(T0).directory == three[0] / "t-0"
        assert manager.create_log(T1).directory.parent == three[2]
        append(log, ("a", "2"))
    assert read_checkpoint(three[0] / RECOVERY_POINTS) == {"t-0": 1}
    assert read_checkpoint(three[1] / RECOVERY_POINTS) == {"t-0": 2}


# -------------------------------------------------------------------------------------------------------------- config
def test_a_changed_config_holds_for_open_logs_and_for_new_ones(logs):
    with running(logs, topic=COMPACTED) as manager:
        log = manager.create_log(T0)
        other = manager.create_log(TopicPartition("u", 0))
        manager.update_topic_config("t", DELETED)
        assert log.config == DELETED and other.config == COMPACTED
        assert manager.create_log(T1).config == DELETED


def test_lm_12_a_log_that_is_no_longer_compacted_is_not_cleaned_on(logs):
    with running(logs, topic=topic_config("compact", min_cleanable_dirty_ratio=0.0)) as manager:
        log = dirty_log(manager)
        chosen = manager.cleaner.manager.grab_filthiest()
        changing = threading.Thread(target=manager.update_topic_config, args=("t", DELETED))
        changing.start()
        while log.config != DELETED or str(manager.cleaner.manager.states.of(T0)) != "Aborted()":
            assert changing.is_alive()
        before = {path.name: path.read_bytes() for path in (logs / "t-0").iterdir()}
        assert not manager.cleaner.clean(chosen)
        changing.join(timeout=LIMIT_SECONDS)
        assert manager.cleaner.manager.states.of(T0) is None
        assert {path.name: path.read_bytes() for path in (logs / "t-0").iterdir()} == before
        assert read_checkpoint(logs / FIRST_DIRTY) == {}


def test_lm_12_another_change_of_the_config_lets_a_cleaning_go_on(logs):
    with running(logs, topic=topic_config("compact", min_cleanable_dirty_ratio=0.0)) as manager:
        dirty_log(manager)
        chosen = manager.cleaner.manager.grab_filthiest()
        manager.update_topic_config("t", topic_config("compact", "delete", min_cleanable_dirty_ratio=0.0))
        assert manager.cleaner.clean(chosen)


# ---------------------------------------------------------------------------------------------------------- stop, crash
def test_stopping_again_changes_nothing(logs):
    manager = manager_of(logs)
    manager.start()
    log = manager.create_log(T0)
    append(log, ("a", "1"))
    manager.shutdown()
    before = {path.name: path.read_bytes() for path in logs.iterdir() if path.is_file()}
    manager.shutdown()
    assert {path.name: path.read_bytes() for path in logs.iterdir() if path.is_file()} == before
    with pytest.raises(UsageError, match="closed"):
        append(log, ("a", "2"))


def test_an_engine_that_died_is_recovered_up_to_what_was_written(logs, caplog):
    manager = manager_of(logs)
    manager.start()
    log = manager.create_log(T0)
    append(log, *[("a", str(number)) for number in range(7)])
    log.flush()
    manager.checkpoint_recovery_points()
    manager.checkpoint_high_watermarks()
    append(log, ("b", "1"))
    image = logs.with_name("image")
    shutil.copytree(logs, image)
    manager.shutdown()
    with (image / "t-0" / f"{log.active_base_offset:020d}.log").open("ab") as active:
        active.write(b"torn")
    with running(image) as other:
        found = other.get_log(T0)
        assert (found.log_end_offset, found.high_watermark, found.recovery_point) == (8, 7, 7)
        assert latest_of(found) == {b"a": b"6", b"b": b"1"}


def test_checkpoints_of_partitions_that_are_gone_are_dropped(logs):
    logs.mkdir()
    write_checkpoint(logs / RECOVERY_POINTS, {"gone-0": 5})
    with running(logs) as manager:
        manager.create_log(T0)
        manager.checkpoint_recovery_points()
        assert read_checkpoint(logs / RECOVERY_POINTS) == {"t-0": 0}


def test_with_threads_the_tasks_run_by_themselves(logs):
    from sediment.engine.live.scheduler import Clock

    with running(
        logs, clock=Clock(), background_threads=2, replica_high_watermark_checkpoint_interval_ms=10
    ) as manager:
        append(manager.create_log(T0), ("a", "1"))
        wait_until(lambda: read_checkpoint(logs / HIGH_WATERMARKS) == {"t-0": 1})


def test_repairs_of_the_start_are_told_of(logs, caplog):
    with running(logs) as manager:
        append(manager.create_log(T0), ("a", "1"))
    (logs / "t-0" / "00000000000000000000.index").unlink()
    with caplog.at_level(logging.INFO), running(logs):
        pass
    assert "t-0: 00000000000000000000.index" in caplog.text
