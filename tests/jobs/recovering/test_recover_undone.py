"""A restore that brings back a torn end and is killed: the next restore finishes it, and nothing else takes the end."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.restore import RestoreOptions
from sediment.jobs.restore import restore as run_restore
from sediment.segment_io.format.names import CLEAN_SHUTDOWN_FILE
from sediment.segment_io.fs import Fs
from tests.faults.faulty_fs import Killed
from tests.jobs.expiring.expired_logs import EPOCHS, NAME, make_log
from tests.jobs.log_dirs import read_checkpoint, sediment, tree, write_checkpoint
from tests.jobs.originals.kept_originals import Found, expire, found, recover, restore, restored
from tests.segments import NOW_MS

RECOVERY_POINT = "recovery-point-offset-checkpoint"
CUT = f"{5:020d}.log"
"""A closed log with a torn end; its recovery also removes the segment after it."""


class KilledAfterRename(Fs):
    """Kills the process after the first rename to this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if target.name == self._name:
            raise Killed


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    make_log(path, epochs=EPOCHS)
    write_checkpoint(path / RECOVERY_POINT, {NAME: 15})
    return path


def tear(log_dir: Path) -> None:
    """Leave the log as after an unclean stop, with a torn end."""
    log = log_dir / NAME / CUT
    os.truncate(log, log.stat().st_size - 10)
    (log_dir / CLEAN_SHUTDOWN_FILE).unlink()
    write_checkpoint(log_dir / RECOVERY_POINT, {NAME: 5})


def segments(log_dir: Path) -> Found:
    """Return logs and indexes by name; a start that finishes a replacement removes snapshots in its range."""
    files = {name.removeprefix(f"{NAME}/"): data for name, data in found(log_dir).items()}
    return {name: data for name, data in files.items() if name.endswith((".log", "index"))}


def kill_restore(log_dir: Path, kept: Path, run_id: str) -> None:
    """Kill a restore after the short log lost its name and before the torn one has it."""
    options = CommonOptions(log_dirs=(log_dir,), now_ms=NOW_MS, as_json=True, quiet=True)
    with pytest.raises(Killed):
        run_restore(options, RestoreOptions(kept, run_id=run_id), fs=KilledAfterRename(f"{CUT}.deleted"))
    assert not (log_dir / NAME / CUT).exists()
    assert (log_dir / NAME / f"{CUT}.swap").exists()


def test_the_same_restore_finishes_and_can_be_undone(log_dir: Path, kept: Path) -> None:
    tear(log_dir)
    before = segments(log_dir)
    run = recover(log_dir, kept)["run_id"]
    kill_restore(log_dir, kept, run)
    restored(log_dir, kept, f"--run={run}")
    assert segments(log_dir) == before
    catalogues = [json.loads(path.read_text()) for path in kept.glob("catalogue-*") if run not in path.name]
    for each in sorted(catalogues, key=lambda catalogue: catalogue["started_ms"], reverse=True):
        assert restore(log_dir, kept, f"--run={each['run_id']}").status == 0
    assert (log_dir / NAME / CUT).stat().st_size == 4 * 72


def test_a_restore_of_another_run_finishes_it_first(log_dir: Path, kept: Path) -> None:
    # The torn end came after the other run, so that run itself cannot be undone.
    expired = expire(log_dir, kept, "--set=retention.bytes=720", "--set=retention.ms=-1")
    tear(log_dir)
    before = segments(log_dir)
    run = recover(log_dir, kept)["run_id"]
    kill_restore(log_dir, kept, run)
    row = restore(log_dir, kept, f"--run={expired}").partitions()[NAME]
    assert (row["status"], row["reason_code"], row["segments"]) == ("refused", "changed-since", [5, 10])
    assert segments(log_dir) == before


def test_a_clean_stop_without_the_partition_does_not_vouch_for_the_torn_end(log_dir: Path, kept: Path) -> None:
    tear(log_dir)
    run = recover(log_dir, kept)["run_id"]
    kill_restore(log_dir, kept, run)
    (log_dir / CLEAN_SHUTDOWN_FILE).touch()
    write_checkpoint(log_dir / RECOVERY_POINT, {NAME: 9})
    restored(log_dir, kept, f"--run={run}")
    assert not (log_dir / CLEAN_SHUTDOWN_FILE).exists()
    assert read_checkpoint(log_dir / RECOVERY_POINT) == {NAME: 5}


def test_erased_records_do_not_come_back_with_the_end_of_an_interrupted_restore(log_dir: Path, kept: Path) -> None:
    tear(log_dir)
    run = recover(log_dir, kept)["run_id"]
    kill_restore(log_dir, kept, run)
    catalogue = kept / f"catalogue-{run}.json"
    catalogue.write_text(json.dumps({**json.loads(catalogue.read_text()), "command": "erase"}))
    before = tree(log_dir / NAME)
    (row,) = restore(log_dir, kept, f"--run={run}").report["partitions"]
    assert (row["status"], row["reason_code"], tree(log_dir / NAME)) == ("refused", "erasure", before)
    restored(log_dir, kept, f"--run={run}", "--undo-erasure")
    assert not list((log_dir / NAME).glob("*.swap"))


def test_recover_still_refuses_the_torn_end(log_dir: Path, kept: Path) -> None:
    tear(log_dir)
    run = recover(log_dir, kept)["run_id"]
    kill_restore(log_dir, kept, run)
    before = tree(log_dir / NAME)
    outcome = sediment("recover", log_dir, "--json", "--quiet", f"--now-ms={NOW_MS}")
    assert outcome.partitions()[NAME]["reason_code"] == "corrupt-data"
    assert tree(log_dir / NAME) == before


@pytest.mark.parametrize("change", ["other bytes", "shorter"])
def test_a_new_log_that_is_not_its_original_is_refused(log_dir: Path, kept: Path, change: str) -> None:
    tear(log_dir)
    run = recover(log_dir, kept)["run_id"]
    kill_restore(log_dir, kept, run)
    new = log_dir / NAME / f"{CUT}.swap"
    data = bytearray(new.read_bytes())
    new.unlink()
    new.write_bytes(data[:-1] if change == "shorter" else data[:-1] + bytes([data[-1] ^ 1]))
    before = tree(log_dir / NAME)
    outcome = restore(log_dir, kept, f"--run={run}")
    assert outcome.partitions()[NAME]["reason_code"] == "corrupt-data"
    assert tree(log_dir / NAME) == before


def test_a_torn_new_log_that_no_restore_made_never_replaces_a_whole_log(log_dir: Path, kept: Path) -> None:
    tear(log_dir)
    run = recover(log_dir, kept)["run_id"]
    whole = (log_dir / NAME / CUT).read_bytes()
    shutil.copy(kept / run / NAME / CUT, log_dir / NAME / f"{CUT}.swap")
    outcome = sediment("recover", log_dir, "--json", "--quiet", f"--now-ms={NOW_MS}")
    assert outcome.status == 0, outcome.stdout
    assert (log_dir / NAME / CUT).read_bytes() == whole


def test_a_restore_whose_catalogue_cannot_be_completed_says_so_even_if_it_is_quiet(
    log_dir: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace_file = Fs.replace_file
    catalogues: list[Path] = []

    def fails(self: Fs, path: Path, *given: Any, **named: Any) -> None:
        if path.name.startswith("catalogue-"):
            catalogues.append(path)
            if len(catalogues) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        replace_file(self, path, *given, **named)

    tear(log_dir)
    before = segments(log_dir)
    run = recover(log_dir, kept)["run_id"]
    with monkeypatch.context() as patch:
        patch.setattr(Fs, "replace_file", fails)
        done = sediment("restore", log_dir, f"--from={kept}", f"--run={run}", "--yes", "--quiet")
    assert (done.status, segments(log_dir)) == (0, before)
    (said,) = [each for each in caplog.records if "stays in the state `planned`" in each.getMessage()]
    assert said.levelno == logging.ERROR  # the lowest level that --quiet shows
