"""The state directory of a read-only server: commits survive a kill, a torn end and a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sediment.segment_io.errors import DirectoryInUseError, UsageError
from sediment.segment_io.fs import Fs, OpenFile
from sediment.server.groups import state_directory
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.state_directory import StateDirectory
from tests.tables import read_rows

LOG = Path("__consumer_offsets-0") / "00000000000000000000.log"


def offset(number: int) -> CommittedOffset:
    return CommittedOffset(number, 1, f"note {number}", 1_700_000_000_000)


def open_state(path: Path, fs: Fs | None = None) -> StateDirectory:
    return StateDirectory(path, [], fs or Fs())


def current(state: StateDirectory) -> dict[tuple[str, str, int], int]:
    return {
        (group, topic, partition): value.offset
        for group, offsets in state.offsets.items()
        for topic, partition, value in offsets
    }


def reopened(path: Path) -> dict[tuple[str, str, int], int]:
    state = open_state(path)
    try:
        return current(state)
    finally:
        state.close()


def test_commits_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.append("readers", [("orders", 0, offset(1)), ("orders", 1, offset(2))])
    state.append("readers", [("orders", 0, offset(3))])
    state.append("auditors", [("orders", 0, offset(4))])
    expected = {("readers", "orders", 0): 3, ("readers", "orders", 1): 2, ("auditors", "orders", 0): 4}
    assert current(state) == expected
    state.close()
    state = open_state(path)
    assert current(state) == expected
    kept = state.offsets["readers"].get("orders", 0)
    assert kept is not None and (kept.leader_epoch, kept.metadata) == (1, "note 3")
    state.close()


def test_the_log_is_a_partition_that_the_tables_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.append("readers", [("orders", 0, offset(1)), ("orders", 1, offset(2))])
    state.append("readers", [("orders", 0, offset(3))])
    assert [row["offset"] for row in read_rows(path)] == [0, 1, 2]
    state.close()


def test_a_restart_compacts_the_log(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    for number in range(50):
        state.append("readers", [("orders", 0, offset(number))])
    grown = (path / LOG).stat().st_size
    state.close()
    assert reopened(path) == {("readers", "orders", 0): 49}
    assert (path / LOG).stat().st_size < grown / 20


def test_a_log_that_has_grown_is_compacted_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_directory, "_LEAST_BYTES_TO_REWRITE", 1000)
    path = tmp_path / "state"
    state = open_state(path)
    for number in range(200):
        state.append("readers", [("orders", number % 2, offset(number))])
        assert (path / LOG).stat().st_size < 2500
    state.close()
    assert reopened(path) == {("readers", "orders", 0): 198, ("readers", "orders", 1): 199}


@pytest.mark.parametrize("torn", [b"\0" * 61, b"\0" * 5000, b"\xff" * 80, b"half"])
def test_a_torn_end_is_ignored(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.append("readers", [("orders", 0, offset(1))])
    state.close()
    with (path / LOG).open("ab") as file:
        file.write(torn)
    assert reopened(path) == {("readers", "orders", 0): 1}


def test_every_cut_of_the_last_batch_leaves_the_commits_before_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.append("readers", [("orders", 0, offset(1))])
    first = (path / LOG).stat().st_size
    state.append("readers", [("orders", 0, offset(2))])
    content = (path / LOG).read_bytes()
    state.close()
    for size in range(first, len(content), 7):
        (path / LOG).write_bytes(content[:size])
        assert reopened(path) == {("readers", "orders", 0): 1}


def test_a_leftover_of_an_interrupted_rewrite_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = open_state(path)
    state.append("readers", [("orders", 0, offset(1))])
    state.close()
    (path / LOG).with_name(LOG.name + ".tmp").write_bytes(b"half of a rewrite")
    assert reopened(path) == {("readers", "orders", 0): 1}


# ---------------------------------------------------------------------------------------------------------- one server
def test_one_server_at_a_time(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    with pytest.raises(DirectoryInUseError):
        open_state(tmp_path / "state")
    state.close()
    open_state(tmp_path / "state").close()


def test_it_lies_outside_the_log_directories(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "link").symlink_to(logs)
    for path in (logs, logs / "state", tmp_path / "link" / "state"):
        with pytest.raises(UsageError, match="inside the log directory"):
            StateDirectory(path, [logs], Fs())
    assert list(logs.iterdir()) == []
    StateDirectory(tmp_path / "logs-state", [logs], Fs()).close()


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("")
    with pytest.raises(UsageError, match=r"contains other files, such as meta\.properties"):
        open_state(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["meta.properties"]


# --------------------------------------------------------------------------------------------------------------- faults
class FullDisk(Fs):
    """Filesystem that fails writes or syncs of open files while `fails` names them."""

    fails = ""

    def open_file(self, path: Path) -> OpenFile:
        disk = self

        class Failing(OpenFile):
            def write(self, content: bytes, position: int) -> None:
                if disk.fails == "write":
                    super().write(content[:30], position)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                super().write(content, position)

            def sync(self) -> None:
                if disk.fails == "sync":
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                super().sync()

        return Failing(path, create=False)


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_commit_that_fails_is_not_made_and_the_next_one_is(tmp_path: Path, fails: str) -> None:
    disk = FullDisk()
    path = tmp_path / "state"
    state = open_state(path, disk)
    state.append("readers", [("orders", 0, offset(1))])
    disk.fails = fails
    for _ in range(2):
        with pytest.raises(OSError):
            state.append("readers", [("orders", 0, offset(2))])
    assert current(state) == {("readers", "orders", 0): 1}
    disk.fails = ""
    state.append("readers", [("orders", 1, offset(3))])
    state.close()
    assert reopened(path) == {("readers", "orders", 0): 1, ("readers", "orders", 1): 3}


COMMITS = """
import sys
from pathlib import Path
from sediment.segment_io.fs import Fs
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.state_directory import StateDirectory

state = StateDirectory(Path(sys.argv[1]), [], Fs())
first = max((value.offset for offsets in state.offsets.values() for *_, value in offsets), default=0)
for number in range(first + 1, first + 1_000_000):
    state.append("readers", [("orders", number % 3, CommittedOffset(number))])
    print(number, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "state"
    acknowledged = 0
    for kills in range(2):
        with subprocess.Popen([sys.executable, "-c", COMMITS, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged > 40 * (kills + 1):
                    process.send_signal(signal.SIGKILL)
                    break
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        found = max(reopened(path).values())
        assert acknowledged <= found <= acknowledged + 1


def test_offsets_of_a_group_are_false_only_without_any() -> None:
    offsets = GroupOffsets()
    assert not offsets
    offsets.commit_in_transaction(9, "orders", 0, offset(1))
    assert offsets
    offsets.end_transaction(9, is_committed=False)
    assert not offsets
