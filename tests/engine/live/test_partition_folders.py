"""Folders of new partitions, and logs that are created and deleted together."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.live.partition_folders import (
    is_unfinished,
    make_future_folder,
    make_partition_folders,
    remove_folder,
)
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import OpenFilesLimitError, StorageError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import DirectoryState, TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint, read_partition_metadata
from tests.engine.managed import T0, T1, T2, FailingFs, ShortFs, advance, append, clock_of, running, short, topic_config
from tests.faults.faulty_fs import FaultyFs, Kill, Killed
from tests.waiting import LIMIT_SECONDS

ID, OTHER_ID = format_uuid(bytes(range(16))), format_uuid(bytes(range(1, 17)))
CHECKPOINTS = ("recovery-point", "log-start", "replication")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    path.mkdir()
    return path


def folders(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.is_dir())


def test_a_folder_is_whole_when_it_has_its_name(logs: Path) -> None:
    fs = FaultyFs()
    make_partition_folders(logs, {T0: ID}, fs)
    steps = fs.operations
    for number in range(1, steps + 1):
        path = logs.parent / str(number)
        path.mkdir()
        with pytest.raises(Killed):
            make_partition_folders(path, {T0: ID}, FaultyFs(fault=Kill(number)))
        (name,) = folders(path)
        assert name == "t-0" or name.endswith("-delete")
        assert is_unfinished(path / name, Fs())
        if name == "t-0":
            assert read_partition_metadata(Fs(), path / name / "partition.metadata") == ID
            assert (path / name / f"{0:020d}.log").stat().st_size == 0


def test_the_folder_of_a_future_log_is_whole_when_it_has_its_name(logs: Path) -> None:
    fs = FaultyFs()
    make_partition_folders(logs, {T0: ID}, Fs())
    (logs / "t-0").chmod(0o700)
    like = logs / "t-0" / f"{0:020d}.log"
    like.chmod(0o600)
    made = make_future_folder(logs, T0, ID, fs, like=like)
    assert made.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in made.iterdir()} == {0o600}
    for number in range(1, fs.operations + 1):
        path = logs.parent / str(number)
        path.mkdir()
        with pytest.raises(Killed):
            make_future_folder(path, T0, ID, FaultyFs(fault=Kill(number)), like=like)
        (name,) = folders(path)
        partition, state = parse_partition_directory(name)
        assert partition == T0
        assert state in (DirectoryState.DELETE, DirectoryState.FUTURE)
        if state is DirectoryState.FUTURE:
            assert read_partition_metadata(Fs(), path / name / "partition.metadata") == ID


@pytest.mark.parametrize(
    "files",
    [
        {"00000000000000000000.log": b"record"},
        {"00000000000000000000.index": b"entry", "00000000000000000000.timeindex": b""},
        {"partition.metadata": b"version: 0"},
        {"00000000000000000007.log": b""},
        {"leader-epoch-checkpoint": b""},
    ],
)
def test_a_folder_with_records_or_other_files_is_not_that_of_an_unfinished_creation(
    logs: Path, files: dict[str, bytes]
) -> None:
    for name, content in files.items():
        (logs / name).write_bytes(content)
    assert not is_unfinished(logs, Fs())


def test_a_folder_that_is_there_stays_as_it_is(logs: Path) -> None:
    (logs / "t-0").mkdir()
    assert make_partition_folders(logs, {T0: ID, T1: None}, Fs()) == {T1}
    assert list((logs / "t-0").iterdir()) == []
    assert not (logs / "t-1" / "partition.metadata").exists()


def test_logs_are_created_together_each_in_its_directory_and_checkpointed(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    with running(first, second) as manager:
        manager.create_logs({T0: ID, T1: ID, T2: ID}, {T0: first, T1: second, T2: first})
        assert (folders(first), folders(second)) == (["t-0", "t-2"], ["t-1"])
        assert append(manager.create_log(T1), ("a", "1")) == 0
        assert "t 0 0\n" in (first / "recovery-point-offset-checkpoint").read_text()
        other = TopicPartition("other", 0)
        with pytest.raises(UsageError, match="not a log directory of the engine"):
            manager.create_logs({other: ID}, {other: tmp_path})


def test_logs_are_deleted_together_and_removed_later(logs: Path) -> None:
    with running(logs, deletes=False) as manager:
        manager.create_logs({T0: ID, T1: ID, T2: ID}, dict.fromkeys((T0, T1, T2), logs))
        manager.start_deleting(by_limits=False)
        manager.delete_logs([T0, T1])
        assert [name.rpartition("-")[2] for name in folders(logs)] == ["delete", "delete", "2"]
        for _ in range(2):
            advance(manager, manager.config.log_segment_delete_delay_ms + 60_000)
        assert folders(logs) == ["t-2"]


def test_a_killed_removal_never_leaves_a_log_without_its_indexes(tmp_path: Path) -> None:
    """A broker would report such a log as damaged, and rebuild the indexes before it deletes them."""
    folder = tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete"
    folder.mkdir()
    for name in ("partition.metadata", *(f"{base:020d}{kind}" for base in (0, 7) for kind in (".index", ".log"))):
        (folder / name).touch()
    fs = FaultyFs()
    remove_folder(folder, fs)
    assert fs.log[:2] == [f"unlink {0:020d}.log", f"unlink {7:020d}.log"]
    assert len(fs.log) == 5
    assert not folder.exists()


def test_without_deletes_a_log_that_was_renamed_before_the_start_stays(logs: Path) -> None:
    with running(logs) as manager:
        manager.create_log(T0)
        manager.delete_log(T0)
    with running(logs, deletes=False) as manager:
        for _ in range(3):
            advance(manager, manager.config.log_segment_delete_delay_ms + 60_000)
    (name,) = folders(logs)
    assert name.endswith("-delete")


def listed(path: Path, partition: TopicPartition = T0) -> list[str]:
    """Return the checkpoints that list a partition."""
    found = {kind: read_offset_checkpoint(Fs(), path / f"{kind}-offset-checkpoint") for kind in CHECKPOINTS}
    return [kind for kind, offsets in found.items() if partition in (offsets or {})]


def test_a_deleted_log_is_in_no_checkpoint(logs: Path) -> None:
    with running(logs) as manager:
        manager.create_logs({T0: ID, T1: ID}, {T0: logs, T1: logs})
        manager.checkpoint_all()
        assert listed(logs) == ["recovery-point", "replication"]
        manager.delete_logs([T0])
        assert listed(logs) == []
        assert listed(logs, T1) == ["recovery-point", "replication"]


class UnrenamedFs(ShortFs):
    """A disk on which the process may open no file at the second step of a deletion: the sync of the renames."""

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.is_short |= target.name.endswith("-delete")


def test_a_deletion_that_can_open_no_file_is_tried_again_before_its_name_is_used(logs: Path) -> None:
    fs = ShortFs()
    with running(logs, fs=fs) as manager:
        manager.create_logs({T0: ID}, {T0: logs})
        append(manager.create_log(T0), ("a", "1"))
        for log in manager.all_logs():
            log.flush()
        with short(fs), pytest.raises(OpenFilesLimitError):
            manager.delete_logs([T0])
        assert folders(logs) == ["t-0"]
        for call in (lambda: manager.create_logs({T0: OTHER_ID}, {T0: logs}), lambda: manager.create_log(T0)):
            with short(fs), pytest.raises(OpenFilesLimitError):
                call()
        with short(fs), pytest.raises(OpenFilesLimitError):
            manager.check_ready([T0])
        manager.check_ready([T0])
        assert listed(logs) == []
        manager.create_logs({T0: OTHER_ID}, {T0: logs})
        assert manager.create_log(T0).log_end_offset == 0
        assert len(folders(logs)) == 2


def test_a_deletion_whose_renames_cannot_be_synced_is_finished_in_the_background(logs: Path) -> None:
    fs = UnrenamedFs()
    with running(logs, fs=fs) as manager:
        manager.create_logs({T0: ID}, {T0: logs})
        with pytest.raises(OpenFilesLimitError):
            manager.delete_logs([T0])
        # Until its folder is renamed for good, the checkpoint proves that the log was here.
        assert (manager.get_log(T0), listed(logs)) == (None, ["recovery-point"])
        fs.is_short = False
        advance(manager, manager.config.log_initial_task_delay_ms)
        assert (manager.get_log(T0), listed(logs)) == (None, [])
        for _ in range(2):
            advance(manager, manager.config.log_segment_delete_delay_ms)
        assert folders(logs) == []


class UnlistedFs(Fs):
    """A disk on which the process may open no file at the last step of a deletion: its checkpoints."""

    is_short = False

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        if self.is_short and path.name.endswith("-offset-checkpoint") and not path.name.startswith("cleaner"):
            raise OSError(errno.EMFILE, "too many open files")
        super().replace_file(path, content, like=like)


def test_a_deletion_whose_checkpoints_cannot_be_written_is_tried_again_before_its_name_is_used(logs: Path) -> None:
    # After a kill, the checkpoints would show that a partition of this name had a folder.
    fs = UnlistedFs()
    with running(logs, fs=fs) as manager:
        manager.create_logs({T0: ID}, {T0: logs})
        manager.checkpoint_all()
        fs.is_short = True
        with pytest.raises(StorageError, match="may list logs of deleted topics"):
            manager.delete_logs([T0])
        assert (manager.get_log(T0), listed(logs)) == (None, ["recovery-point", "replication"])
        for call in (
            lambda: manager.check_ready([T0]),
            lambda: manager.create_logs({T0: OTHER_ID}, {T0: logs}),
            lambda: manager.create_log(T0),
        ):
            with pytest.raises(StorageError, match="may list logs of deleted topics"):
                call()
        fs.is_short = False
        manager.check_ready([T0])
        assert listed(logs) == []
        manager.create_logs({T0: OTHER_ID}, {T0: logs})
        fs.is_short = True
        with pytest.raises(StorageError, match="may list logs of deleted topics"):
            manager.delete_logs([T0])
        fs.is_short = False
        advance(manager, manager.config.log_initial_task_delay_ms)
        assert listed(logs) == []


def test_a_log_whose_change_was_interrupted_is_deleted_without_its_files_being_opened(logs: Path) -> None:
    fs = ShortFs()
    with running(logs, fs=fs) as manager:
        manager.create_logs({T0: ID, T1: ID}, {T0: logs, T1: logs})
        log = manager.create_log(T0)
        append(log, ("a", "1"))
        log.go_offline("a change was interrupted")
        fs.is_short = True
        with pytest.raises(OpenFilesLimitError):
            manager.delete_logs([T0])
        fs.is_short = False
        manager.check_ready([T0])
        manager.create_logs({T0: OTHER_ID}, {T0: logs})
        assert manager.create_log(T0).log_end_offset == 0
        assert len(folders(logs)) == 3
        clock_of(manager).advance(manager.config.log_initial_task_delay_ms)
        for _ in range(2):
            advance(manager, manager.config.log_segment_delete_delay_ms)
        assert folders(logs) == ["t-0", "t-1"]


def test_a_stop_ends_a_creation_of_many_logs(logs: Path) -> None:
    partitions = [TopicPartition("t", number) for number in range(200)]

    class StoppedFs(Fs):
        """A disk that stops the manager while its third folder is made."""

        made = 0

        def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
            self.made += 1
            if self.made == 3:
                stop.start()
                while not manager._state.is_stopping:
                    time.sleep(0.001)
            super().make_unsynced_directory(path, like=like)

    fs = StoppedFs()
    with running(logs, fs=fs) as manager:
        stop = threading.Thread(target=manager.shutdown)
        with pytest.raises(StorageError, match="the engine stops"):
            manager.create_logs(dict.fromkeys(partitions, ID), dict.fromkeys(partitions, logs))
        stop.join()
        assert fs.made < 20
    assert all(is_unfinished(logs / name, Fs()) and name.endswith("-delete") for name in folders(logs))


def test_the_config_of_a_topic_goes_with_its_logs_even_if_these_are_offline(logs: Path, tmp_path: Path) -> None:
    fs, other = FailingFs(), tmp_path / "other"
    with running(logs, other, fs=fs) as manager:
        manager.create_logs({T0: ID}, {T0: logs})
        before = manager.create_log(T0).config
        manager.update_topic_config("t", replace(before, flush_ms=1))
        fs.broken.add(logs)
        manager.checkpoint_recovery_points()
        assert manager.get_log(T0) is None
        manager.delete_logs([T0])
        manager.create_logs({T0: OTHER_ID}, {T0: other})
        assert manager.create_log(T0).config == before


def test_folders_of_a_creation_that_can_open_no_file_are_removed(logs: Path) -> None:
    class Short(Fs):
        def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
            if path.parent.name.startswith("t-1"):
                raise OSError(errno.EMFILE, "too many open files")
            return super().write_new(path, chunks)

    with running(logs, fs=Short()) as manager:
        with pytest.raises(OpenFilesLimitError):
            manager.create_logs({T0: ID, T1: ID}, {T0: logs, T1: logs})
        assert not manager.directories()[0].is_offline
    assert folders(logs) == []


def test_folders_that_are_left_out_stay_in_the_checkpoints_until_they_are_put_away(logs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with running(logs, other) as manager:
        manager.create_logs({T0: ID, T1: ID}, {T0: logs, T1: logs})
    with running(other, logs, deletes=False, left_out=[logs / "t-0"]) as manager:
        assert [log.partition for log in manager.all_logs()] == [T1]
        manager.checkpoint_all()
        assert listed(logs) == ["recovery-point", "replication"]
        # The partition of a new topic of the name is in another directory.
        manager.create_logs({T0: OTHER_ID}, {T0: other})
        manager.put_away([logs / "t-0"])
        assert (listed(logs), listed(other)) == ([], ["recovery-point"])
        (stray,) = (name for name in folders(logs) if name.endswith("-stray"))
        assert manager.strays() == [logs / stray]
    deleted = stray.replace("-stray", "-delete")
    shutil.copytree(logs / stray, logs / deleted)
    with running(other, logs, deletes=False) as manager:
        manager.put_away([logs / deleted])
        manager.start_deleting(by_limits=False)
        clock_of(manager).advance(manager.config.log_initial_task_delay_ms)
        for _ in range(2):
            advance(manager, manager.config.log_segment_delete_delay_ms)
        assert folders(logs) == sorted([stray, "t-1"])
    assert folders(other) == ["t-0"]


def test_a_checkpoint_does_not_replace_a_newer_one(logs: Path) -> None:
    with running(logs, topic=topic_config("delete")) as manager:
        first, second = (manager.create_log(partition) for partition in (T0, T1))
        append(first, *(("a", str(number)) for number in range(9)))
        for offset in range(1, 9):
            with second.lock:
                # It has read the log start of the first log, and waits for that of the second one.
                early = threading.Thread(target=manager.checkpoint_log_starts)
                early.start()
                time.sleep(0.01)
                first.delete_records(offset)
                late = threading.Thread(target=manager.checkpoint_log_starts)
                late.start()
            early.join()
            late.join()
            found = read_offset_checkpoint(Fs(), logs / "log-start-offset-checkpoint") or {}
            assert found.get(T0, first.first_base_offset) == offset or offset == first.first_base_offset


def test_a_checkpoint_that_waits_for_its_disk_does_not_stop_changes_in_another_directory(
    logs: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    with running(logs, other) as manager:

        def change() -> None:
            manager.create_logs({T0: ID}, {T0: other})
            manager.checkpoint_log_starts([other])
            manager.delete_logs([T0])

        thread = threading.Thread(target=change)
        with manager.directories()[0].checkpoint_guard:
            thread.start()
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive()


def test_directories_whose_log_starts_cannot_be_written_are_returned(logs: Path, tmp_path: Path) -> None:
    fs, other = ShortFs(), tmp_path / "other"
    with running(logs, other, fs=fs) as manager:
        assert manager.checkpoint_log_starts() == frozenset()
        with short(fs):
            assert manager.checkpoint_log_starts() == {logs, other}
            assert manager.checkpoint_log_starts([other]) == {other}
        assert not any(directory.is_offline for directory in manager.directories())
