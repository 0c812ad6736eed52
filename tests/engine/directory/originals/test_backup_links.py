"""Links to a log directory before a run: all files, linked once, and only on the same filesystem."""

from __future__ import annotations

import errno
import json

import pytest

from sediment.engine.directory.originals.backup_links import BEFORE_OF_FILE, snapshot_log_dir, snapshot_partition
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from tests.jobs.log_dirs import tree, write_checkpoint

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def log_dir(tmp_path):
    path = tmp_path / "logs"
    (path / "t-0").mkdir(parents=True)
    (path / "t-0" / f"{0:020d}.log").write_bytes(b"segment")
    (path / "t-0" / f"{0:020d}.log.run-1.part").write_bytes(b"what a task made of it")
    (path / ".lock").touch()
    (path / ".sediment-run").write_bytes(b"run")
    write_checkpoint(path / "cleaner-offset-checkpoint", {"t-0": 5})
    return path


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "before"
    path.mkdir()
    return path


def test_all_of_a_partition_and_the_checkpoints_are_kept_by_links(log_dir, target):
    snapshot_log_dir(log_dir, target, 0, Fs())
    snapshot_partition(PARTITION, log_dir, target, Fs())
    segment = f"t-0/{0:020d}.log"
    assert set(tree(target)) == {BEFORE_OF_FILE, "cleaner-offset-checkpoint", segment}
    assert (target / segment).samefile(log_dir / segment)


def test_the_first_of_several_runs_decides_what_was_before(log_dir, target):
    snapshot_log_dir(log_dir, target, 0, Fs())
    snapshot_partition(PARTITION, log_dir, target, Fs())
    first = tree(target)
    fs = Fs()
    fs.replace_file(log_dir / "t-0" / f"{0:020d}.log", b"cleaned")
    fs.replace_file(log_dir / "cleaner-offset-checkpoint", b"0\n1\nt 0 9\n")
    (log_dir / "replication-offset-checkpoint").touch()
    snapshot_log_dir(log_dir, target, 7, fs)
    snapshot_partition(PARTITION, log_dir, target, fs)
    after = tree(target)
    marks = [json.loads(files.pop(BEFORE_OF_FILE)) for files in (first, after)]
    assert after == first
    assert marks == [marks[0], {**marks[0], "is_reused": True}]
    assert (marks[0]["now_ms"], marks[0]["is_reused"]) == (0, False)


class StopsAtLink(Fs):
    """The process ends at the `number`-th link."""

    def __init__(self, number: int) -> None:
        self.left = number

    def link(self, source, target):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        super().link(source, target)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_run_that_is_killed_while_it_links_leaves_nothing_that_counts(log_dir, target, number):
    (log_dir / "meta.properties").touch()
    (log_dir / "t-0" / f"{0:020d}.index").touch()
    fs = StopsAtLink(number)
    with pytest.raises(KeyboardInterrupt):
        snapshot_log_dir(log_dir, target, 0, fs)
        snapshot_partition(PARTITION, log_dir, target, fs)
    assert not (target / "t-0").exists()
    assert (target / BEFORE_OF_FILE).exists() == (number > 2)
    if number <= 2:
        Fs().replace_file(log_dir / "meta.properties", b"newer")
    snapshot_log_dir(log_dir, target, 0, Fs())
    snapshot_partition(PARTITION, log_dir, target, Fs())
    kept = tree(target)
    assert json.loads(kept.pop(BEFORE_OF_FILE))["log_dir"] == str(log_dir)
    ours = {name: content for name, content in tree(log_dir).items() if not name.endswith((".part", ".sediment-run"))}
    assert kept == ours


def test_a_directory_with_other_things_in_it_is_refused(log_dir, target):
    (target / "notes.txt").touch()
    with pytest.raises(UsageError, match="not empty"):
        snapshot_log_dir(log_dir, target, 0, Fs())
    assert set(tree(target)) == {"notes.txt"}


def test_one_directory_shows_one_log_directory(log_dir, target, tmp_path):
    snapshot_log_dir(log_dir, target, 0, Fs())
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="another log directory"):
        snapshot_log_dir(tmp_path / "other", target, 0, Fs())


def test_a_filesystem_without_links_is_a_sentence(log_dir, target):
    class WithoutLinks(Fs):
        def link(self, source, target):
            raise OSError(errno.EPERM, "Operation not permitted", str(source))

    with pytest.raises(UsageError, match="a filesystem without hard links"):
        snapshot_log_dir(log_dir, target, 0, WithoutLinks())
