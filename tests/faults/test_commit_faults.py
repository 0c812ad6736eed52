"""Commits of several partitions at the same time, and the removal of replaced files in the background."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sediment.engine.directory.lock import is_locked
from sediment.segment_io.fs import Fs
from tests.faults.crash_scenarios import SEVERAL, CrashScenario, crash_scenarios, leftovers
from tests.faults.fs_trace import Crash, contents, read_tree
from tests.faults.matrix import recorded

_REPLACING = (".cleaned", ".swap")


@pytest.fixture
def several(tmp_path: Path) -> CrashScenario:
    found = crash_scenarios()[SEVERAL]
    found.prepare(tmp_path / "root")
    return found


def _directories(names: Iterator[str]) -> set[str]:
    return {str(Path(name).parent) for name in names}


def test_the_matrix_has_images_of_two_commits_at_once_and_of_removals_during_a_later_replacement(
    several: CrashScenario,
):
    killed = [contents(image.tree) for image in recorded(several).images if image.crash is Crash.KILLED]
    replacing = [_directories(name for name in image if name.endswith(_REPLACING)) for image in killed]
    assert any(len(directories) > 1 for directories in replacing)
    removing = [_directories(name for name in image if name.endswith(".deleted")) for image in killed]
    assert any(old & new for old, new in zip(removing, replacing, strict=True))


def test_replaced_files_that_cannot_be_removed_fail_their_partition_and_no_other(several: CrashScenario):
    unlink = Fs.unlink

    def failing(fs: Fs, path: Path, *, missing_ok: bool = False) -> None:
        if path.name.endswith(".deleted") and path.parent.name == "t-1":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(fs, path, missing_ok=missing_ok)

    with mock.patch.object(Fs, "unlink", failing):
        outcome = several.run()
    assert outcome.status == 1
    partitions = outcome.partitions()
    assert {name: partition["status"] for name, partition in partitions.items()} == {
        "t-0": "compacted",
        "t-1": "failed",
    }
    assert partitions["t-1"]["reason_code"] == "replaced-files-left"
    reason = partitions["t-1"]["reason"]
    assert "is replaced, but some of its old files, which end in .deleted, could not be removed: [Errno 5]" in reason
    assert "interrupted" not in reason
    left = [name for name in contents(read_tree(several.root)) if name.endswith(".deleted")]
    assert left and all("/t-1/" in name for name in left)
    several.assert_repeats()


def test_the_directory_stays_locked_until_the_last_replaced_file_is_removed(several: CrashScenario):
    may_remove = threading.Event()
    locked: list[bool] = []
    unlink, sync_directory = Fs.unlink, Fs.sync_directory

    def late(fs: Fs, path: Path, *, missing_ok: bool = False) -> None:
        if path.name.endswith(".deleted"):
            assert may_remove.wait(timeout=60)
            locked.append(is_locked(several.log_dir))
        unlink(fs, path, missing_ok=missing_ok)

    def after_checkpoint(fs: Fs, path: Path) -> None:
        sync_directory(fs, path)
        if (several.log_dir / "cleaner-offset-checkpoint").exists():
            may_remove.set()

    with mock.patch.object(Fs, "unlink", late), mock.patch.object(Fs, "sync_directory", after_checkpoint):
        outcome = several.run()
    assert outcome.status == 0
    assert locked and all(locked)
    assert leftovers(read_tree(several.root)) == []
