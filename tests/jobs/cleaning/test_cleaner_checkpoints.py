"""The cleaner checkpoints of a run: how often they are written, and entries that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.cleaning.cleaner_checkpoints import CleanerCheckpoints
from sediment.jobs.rewriting import run as rewriting_run
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, topic_sets, write_checkpoint

FILE = "cleaner-offset-checkpoint"


class SlowFs(Fs):
    """A filesystem that needs a second to write a file; `now` is the time, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.writes = 0
        self.is_full = False

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace_file(path, content, like=like)
        self.now += 1
        self.writes += 1


@pytest.fixture
def slow() -> SlowFs:
    return SlowFs()


@pytest.fixture
def checkpoints(tmp_path: Path, slow: SlowFs) -> CleanerCheckpoints:
    (tmp_path / ".lock").touch()
    return CleanerCheckpoints(slow, lambda _log_dir: None, clock=lambda: slow.now)


def test_a_directory_that_the_run_has_lost_gets_no_entries(tmp_path, slow):
    with DirectoryLock(tmp_path) as lock:
        checkpoints = CleanerCheckpoints(slow, lambda _log_dir: lock.check())
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
        checkpoints.add(tmp_path, TopicPartition("t", 0), 1)
        checkpoints.write()
    assert not (tmp_path / FILE).exists()
    (why,) = checkpoints.unwritten().values()
    assert "lock file was removed or replaced" in why


def test_writing_takes_a_twentieth_of_a_run_however_many_tasks_end(tmp_path, slow, checkpoints):
    write_checkpoint(tmp_path / FILE, {"other-3": 77})
    for number in range(1000):  # ten tasks a second
        checkpoints.add(tmp_path, TopicPartition("t", number), number)
        checkpoints.write_if_due()
        slow.now += 0.1
    assert slow.writes == 5
    assert 0 < len(read_checkpoint(tmp_path / FILE)) < 1000
    checkpoints.write()
    assert read_checkpoint(tmp_path / FILE) == {"other-3": 77, **{f"t-{number}": number for number in range(1000)}}
    assert checkpoints.unwritten() == {}


def test_a_file_that_could_not_be_written_is_tried_again(tmp_path, slow, checkpoints):
    slow.is_full = True
    checkpoints.add(tmp_path, TopicPartition("t", 0), 5)
    checkpoints.write_if_due()
    (why,) = checkpoints.unwritten().values()
    assert why.startswith("the disk is full")
    slow.is_full = False
    checkpoints.write()
    assert checkpoints.unwritten() == {}
    assert read_checkpoint(tmp_path / FILE) == {"t-0": 5}


def test_an_entry_that_a_broker_could_not_read_does_not_hold_up_the_others(tmp_path, checkpoints):
    bad, good = TopicPartition("a b", 0), TopicPartition("t", 0)
    checkpoints.add(tmp_path, bad, 5)
    checkpoints.add(tmp_path, good, 6)
    checkpoints.write()
    assert read_checkpoint(tmp_path / FILE) == {"t-0": 6}
    assert list(checkpoints.unwritten()) == [(tmp_path, bad)]


def test_a_partition_whose_entry_is_in_no_file_at_the_end_has_failed(tmp_path, monkeypatch):
    class FullFs(Fs):
        def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
            if path.name == FILE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            super().replace_file(path, content, like=like)

    monkeypatch.setattr(rewriting_run, "Fs", FullFs)
    plain = load_case("plain", tmp_path / "corpus")
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before})
    outcome = sediment("compact", log_dir, "--json", "--now-ms=1700001000000", *topic_sets("plain", plain.configs))
    partition = outcome.partitions()["plain-0"]
    assert (outcome.status, partition["status"], partition["reason_code"]) == (1, "failed", "checkpoint-not-written")
    assert partition["reason"].startswith("the segments are clean, but the checkpoint was not written: ")
    assert partition["groups_rewritten"] > 0
