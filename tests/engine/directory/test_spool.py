"""The hand-off folder: the files of the engine, those of a job, and files that belong to neither."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sediment.compaction.prepared_swap import (
    CleanedGroup,
    CleanStats,
    PartFile,
    PartSegment,
    PreparedSwap,
    swap_from_json,
)
from sediment.engine.directory.lock import DirectoryLock, is_locked
from sediment.engine.directory.spool import (
    PREPARED,
    CommitReply,
    announce,
    check_announced,
    reply,
    spool_swap,
    withdraw,
)
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from tests.spool_replies import read_replies

FS = Fs()


def swap_of(name="t-0"):
    topic, _, number = name.rpartition("-")
    part = PartFile("00000000000000000000.log.abc-0.1.2.part", "00000000000000000000.log", 7)
    group = CleanedGroup((SegmentRef(0, 70, 8, 12, None, 1),), (PartSegment(0, (part,)),), CleanStats())
    return PreparedSwap(TopicPartition(topic, int(number)), f"/logs/{name}", (group,), 5)


@pytest.fixture
def log_dir(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "hand-off"


def test_a_job_finds_the_folder_of_the_engine_that_owns_the_directory(log_dir, folder):
    with DirectoryLock(log_dir):
        announce(folder, [log_dir], FS)
        check_announced(folder, [log_dir], FS)


def test_a_folder_without_an_engine_is_refused(log_dir, folder, tmp_path):
    with DirectoryLock(log_dir):
        with pytest.raises(UsageError, match="no running engine"):
            check_announced(folder, [log_dir], FS)
        (tmp_path / "others").mkdir()
        announce(folder, [tmp_path / "others"], FS)
        with pytest.raises(UsageError, match="no running engine"):
            check_announced(folder, [log_dir], FS)
        announce(folder, [log_dir], FS)
        withdraw(folder, FS)
        with pytest.raises(UsageError, match="no running engine"):
            check_announced(folder, [log_dir], FS)


def test_the_folder_of_an_engine_that_died_is_refused(log_dir, folder):
    announce(folder, [log_dir], FS)
    with pytest.raises(UsageError, match="no running engine"):
        check_announced(folder, [log_dir], FS)


def test_a_folder_inside_a_log_directory_is_refused(log_dir):
    with pytest.raises(UsageError, match="inside a log directory"):
        announce(log_dir / "hand-off", [log_dir], FS)
    assert list(log_dir.iterdir()) == []


def test_a_folder_into_which_others_can_put_swaps_is_refused(log_dir, folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match=r"others can put files into it: every user can change .*hand-off"):
        announce(folder, [log_dir], FS)
    assert list(folder.iterdir()) == []


def test_a_new_folder_is_as_private_as_the_log_directory(log_dir, folder):
    log_dir.chmod(0o700)
    announce(folder, [log_dir], FS)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_swap_is_left_as_json_under_its_partition_and_run(folder):
    folder.mkdir()
    path = spool_swap(swap_of("a.b-c-12"), folder, "abc123", FS)
    match = PREPARED.fullmatch(path.name)
    assert match is not None and (match["partition"], match["run_id"]) == ("a.b-c-12", "abc123")
    assert swap_from_json(path.read_bytes()) == swap_of("a.b-c-12")


def test_the_answer_takes_the_place_of_the_swap(folder):
    folder.mkdir()
    path = spool_swap(swap_of(), folder, "abc", FS)
    reply(path, CommitReply("t-0", "abc", "a segment is not the one that was cleaned"), FS)
    assert [entry.name for entry in folder.iterdir()] == ["t-0.abc.refused"]
    assert read_replies(folder) == [CommitReply("t-0", "abc", "a segment is not the one that was cleaned")]


def test_only_the_last_answer_of_a_partition_stays(folder):
    folder.mkdir()
    reply(spool_swap(swap_of("t-1"), folder, "a", FS), CommitReply("t-1", "a", None), FS)
    for run_id, refusal in (("a", "no"), ("b", None), ("c", None)):
        reply(spool_swap(swap_of(), folder, run_id, FS), CommitReply("t-0", run_id, refusal), FS)
    assert sorted(entry.name for entry in folder.iterdir()) == ["t-0.c.committed", "t-1.a.committed"]
    assert read_replies(folder) == [CommitReply("t-0", "c", None), CommitReply("t-1", "a", None)]


def test_the_longest_partition_is_handed_off_and_answered_under_a_shorter_name(folder):
    folder.mkdir()
    name, other = "t" * 249 + "-99999", "t" * 249 + "-99998"
    paths = [spool_swap(swap_of(each), folder, "a" * 12, FS) for each in (name, other)]
    assert all(len(f"{path.name}.tmp") <= 255 and PREPARED.fullmatch(path.name) for path in paths)
    assert swap_from_json(paths[0].read_bytes()) == swap_of(name)
    for path, each in zip(paths, (name, other), strict=True):
        reply(path, CommitReply(each, "a" * 12, None), FS)
    reply(spool_swap(swap_of(name), folder, "b" * 12, FS), CommitReply(name, "b" * 12, "no"), FS)
    expected = [CommitReply(other, "a" * 12, None), CommitReply(name, "b" * 12, "no")]
    assert sorted(read_replies(folder), key=lambda each: each.partition) == expected


# ----------------------------------------------------------------------------------------------------- who has the lock
def test_a_lock_of_this_process_is_seen_and_survives_the_look(log_dir):
    assert not is_locked(log_dir)
    with DirectoryLock(log_dir) as lock:
        assert is_locked(log_dir)
        lock.check()
        assert not other_process_gets_the_lock(log_dir)
    assert not is_locked(log_dir)


def test_a_lock_of_another_process_is_seen(log_dir):
    code = (
        "import sys; from pathlib import Path; from sediment.engine.directory.lock import DirectoryLock\n"
        "with DirectoryLock(Path(sys.argv[1])):\n    print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(log_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        assert is_locked(log_dir)
        assert process.stdin is not None
        process.stdin.close()
    assert not is_locked(log_dir)


def other_process_gets_the_lock(log_dir):
    code = (
        "import sys; from pathlib import Path; from sediment.engine.directory.lock import DirectoryLock\n"
        "DirectoryLock(Path(sys.argv[1])).acquire()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log_dir)], check=False, capture_output=True)
    return done.returncode == 0
