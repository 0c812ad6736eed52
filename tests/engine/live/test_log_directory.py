"""A log directory that an engine owns: how it is opened, what its files contain, and how checkpoints are written."""

from __future__ import annotations

import errno
import os

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.live.log_directory import LogDirectory, check_owners
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    DirectoryInUseError,
    NotALogDirectoryError,
    UsageError,
)
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.partition.clean_shutdown_file import CleanShutdown, read_clean_shutdown
from tests.jobs.log_dirs import read_checkpoint, write_checkpoint

T0, T1, X1 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("x", 1)
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
)


@pytest.fixture
def directory(tmp_path):
    directory = LogDirectory(tmp_path / "logs", Fs())
    directory.open()
    yield directory
    directory.release()


def test_a_missing_directory_is_made_with_empty_checkpoints(directory):
    assert {path.name for path in directory.path.iterdir()} == {".lock", *CHECKPOINTS}
    for name in CHECKPOINTS:
        assert (directory.path / name).read_bytes() == b"0\n0\n"
    assert directory.meta is None and not directory.is_offline


def test_checkpoints_that_are_there_stay(tmp_path):
    write_checkpoint(tmp_path / "cleaner-offset-checkpoint", {"t-0": 7})
    directory = LogDirectory(tmp_path, Fs())
    directory.open()
    assert directory.first_dirty_offsets() == {T0: 7}
    directory.release()


def test_a_file_is_no_log_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotALogDirectoryError, match="not a directory"):
        LogDirectory(tmp_path / "file", Fs()).open()


def test_lm_01_a_directory_is_taken_once(directory):
    with pytest.raises(DirectoryInUseError, match=r"\.lock"):
        LogDirectory(directory.path, Fs()).open()
    directory.release()
    with DirectoryLock(directory.path):
        pass


def test_a_directory_whose_meta_properties_are_malformed_is_let_go(tmp_path):
    (tmp_path / "meta.properties").write_text("version=9\n")
    with pytest.raises(CorruptCheckpointError, match=r"meta\.properties"):
        LogDirectory(tmp_path, Fs()).open()
    with DirectoryLock(tmp_path):
        pass


def test_lm_03_the_marker_of_a_clean_stop_is_read_and_gone(directory):
    (directory.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":42}')
    assert directory.read_state().clean_shutdown
    assert directory.clean_shutdown == CleanShutdown(42)
    assert not (directory.path / ".kafka_cleanshutdown").exists()
    assert not directory.read_state().clean_shutdown


def test_lm_03_the_marker_that_is_written_has_the_broker_epoch(directory):
    directory.write_clean_shutdown(17)
    assert (directory.path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":17}'
    assert read_clean_shutdown(Fs(), directory.path) == CleanShutdown(17)


def test_a_malformed_checkpoint_is_reported_after_the_marker_is_removed(directory):
    (directory.path / ".kafka_cleanshutdown").touch()
    (directory.path / "recovery-point-offset-checkpoint").write_text("1\n0\n")
    with pytest.raises(CorruptCheckpointError, match="version 1"):
        directory.read_state()
    assert directory.clean_shutdown is not None
    assert not (directory.path / ".kafka_cleanshutdown").exists()


# --------------------------------------------------------------------------------------------------------- checkpoints
def test_a_checkpoint_holds_what_is_written_once_all_logs_are_loaded(directory):
    write_checkpoint(directory.path / "recovery-point-offset-checkpoint", {"t-0": 1, "x-1": 9})
    directory.is_loaded = True
    directory.write_recovery_points({T0: 5})
    assert read_checkpoint(directory.path / "recovery-point-offset-checkpoint") == {"t-0": 5}


def test_a_checkpoint_keeps_the_logs_that_were_not_loaded(directory):
    write_checkpoint(directory.path / "recovery-point-offset-checkpoint", {"t-0": 1, "x-1": 9})
    directory.write_recovery_points({T0: 5})
    assert read_checkpoint(directory.path / "recovery-point-offset-checkpoint") == {"t-0": 5, "x-1": 9}


def test_a_cleaner_checkpoint_is_changed_from_its_present_entries(directory):
    write_checkpoint(directory.path / "cleaner-offset-checkpoint", {"t-1": 3})
    directory.change_first_dirty(lambda before: {**before, T0: 5})
    assert read_checkpoint(directory.path / "cleaner-offset-checkpoint") == {"t-0": 5, "t-1": 3}


def test_a_malformed_cleaner_checkpoint_counts_as_empty(directory):
    (directory.path / "cleaner-offset-checkpoint").write_text("nonsense\n")
    assert directory.first_dirty_offsets() == {}
    directory.change_first_dirty(lambda before: {**before, T0: 5})
    assert directory.first_dirty_offsets() == {T0: 5}


def test_nothing_is_written_to_a_directory_that_failed(directory):
    directory.failure = "Input/output error"
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    directory.write_recovery_points({T0: 5})
    directory.write_log_starts({T0: 5})
    directory.write_high_watermarks({T0: 5})
    directory.change_first_dirty(lambda _: {T0: 5})
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before


def test_an_error_of_the_disk_is_the_callers(tmp_path):
    class FullFs(Fs):
        def sync_file(self, path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    directory = LogDirectory(tmp_path, FullFs())
    with pytest.raises(OSError, match="No space"):
        directory.open()
    with DirectoryLock(tmp_path):
        pass


# -------------------------------------------------------------------------------------------------------------- owners
def owned(path, meta):
    directory = LogDirectory(path, Fs())
    directory.meta = meta
    return directory


def test_a_new_directory_gets_meta_properties_of_its_own(directory):
    directory.name_owner("cluster", 3)
    meta = read_meta_properties(Fs(), directory.path / "meta.properties")
    assert meta == directory.meta
    assert meta is not None and (meta.version, meta.cluster_id, meta.node_id) == (1, "cluster", 3)
    assert len(meta.directory_id or "") == 22


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (MetaProperties(1, "other", 1, None), "node 1 of cluster other"),
        (MetaProperties(1, "cluster", 2, None), "node 2 of cluster cluster"),
        (MetaProperties(1, "cluster", 1, "AAAAAAAAAAAAAAAAAAAAAQ"), "directory.id of"),
    ],
)
def test_directories_of_other_owners_or_copies_are_refused(tmp_path, second, words):
    first = owned(tmp_path / "a", MetaProperties(1, "cluster", 1, "AAAAAAAAAAAAAAAAAAAAAQ"))
    with pytest.raises(UsageError, match=words):
        check_owners([first, owned(tmp_path / "b", second)])


def test_directories_of_one_owner_are_accepted(tmp_path):
    check_owners(
        [
            owned(tmp_path / "a", MetaProperties(1, "cluster", 1, "AAAAAAAAAAAAAAAAAAAAAQ")),
            owned(tmp_path / "b", MetaProperties(1, "cluster", 1, "AAAAAAAAAAAAAAAAAAAAAg")),
            owned(tmp_path / "c", None),
        ]
    )
