"""Originals that somebody has changed by hand: links out of the directory, other kinds of files, and garbage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sediment.engine.directory.originals import restore as restoring
from sediment.engine.directory.originals.kept_files import begins_with_batch
from tests.jobs.expiring.expired_logs import NAME, make_log
from tests.jobs.log_dirs import Outcome, sediment, tree
from tests.segments import NOW_MS, batch_bytes

FIRST = f"{0:020d}.log"
SNAPSHOT_OR_INDEX = f"{0:020d}.index"
SOME = ("--set=retention.bytes=360", "--set=retention.ms=-1")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    make_log(tmp_path / "logs")
    return tmp_path / "logs"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file that is no part of the originals, with the bytes of a log."""
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_bytes(batch_bytes(0, "aaa"))
    path.chmod(0o640)
    return path


@pytest.fixture
def run(log_dir: Path, tmp_path: Path) -> str:
    """Return the id of a run that has deleted the first segments."""
    done = sediment(
        *("expire", log_dir, "--json", "--quiet", "--broker-defaults", f"--now-ms={NOW_MS}"),
        *(f"--keep-originals={tmp_path / 'kept'}", *SOME),
    )
    assert done.status == 0, done.stderr
    return done.report["run_id"]


def change_entry(kept: Path, run: str, name: str, path: Path) -> None:
    """Describe `path` in the catalogue as the original of this name."""
    file = kept / f"catalogue-{run}.json"
    catalogue = json.loads(file.read_text())
    status = path.stat()
    for entry in catalogue["partitions"][0]["files"]:
        if entry["name"] == name:
            entry.update(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)
    file.write_text(json.dumps(catalogue))


def link_log(kept: Path, run: str, secret: Path) -> None:
    (kept / run / NAME / FIRST).unlink()
    (kept / run / NAME / FIRST).symlink_to(secret)
    change_entry(kept, run, FIRST, secret)


def link_index(kept: Path, run: str, secret: Path) -> None:
    (kept / run / NAME / SNAPSHOT_OR_INDEX).unlink()
    (kept / run / NAME / SNAPSHOT_OR_INDEX).symlink_to(secret)
    change_entry(kept, run, SNAPSHOT_OR_INDEX, secret)


def link_partition(kept: Path, run: str, secret: Path) -> None:
    (kept / run / NAME).rename(secret.parent / NAME)
    (kept / run / NAME).symlink_to(secret.parent / NAME)


def link_run(kept: Path, run: str, secret: Path) -> None:
    (kept / run).rename(secret.parent / run)
    (kept / run).symlink_to(secret.parent / run)


def make_pipe(kept: Path, run: str, _secret: Path) -> None:
    (kept / run / NAME / FIRST).unlink()
    os.mkfifo(kept / run / NAME / FIRST)


def fill_with_text(kept: Path, run: str, _secret: Path) -> None:
    path = kept / run / NAME / FIRST
    status = path.stat()
    path.write_bytes(b"root:x:0:0:root:/root:/bin/bash\n" * 100)
    os.truncate(path, status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


HARMS = [link_log, link_index, link_partition, link_run, make_pipe, fill_with_text]


def restore(log_dir: Path, kept: Path, run: str) -> Outcome:
    return sediment("restore", log_dir, f"--from={kept}", f"--run={run}", "--json", "--quiet", "--yes")


def row_of(outcome: Outcome) -> dict[str, Any]:
    (row,) = outcome.report["partitions"]
    return row


@pytest.mark.parametrize("harm", HARMS)
def test_a_partition_with_such_originals_is_refused_and_stays(
    log_dir: Path, tmp_path: Path, run: str, secret: Path, harm: Callable[[Path, str, Path], None]
) -> None:
    kept = tmp_path / "kept"
    before = tree(log_dir)
    harm(kept, run, secret)
    listed = sediment("originals", kept, "--json")
    (listed_row,) = listed.report["partitions"]
    assert (listed.status, listed_row["status"], listed_row["reason_code"]) == (
        0,
        "not-restorable",
        "originals-missing",
    )
    done = restore(log_dir, kept, run)
    row = row_of(done)
    assert (done.status, row["status"], row["reason_code"]) == (1, "refused", "originals-missing")
    expected = "does not begin with a batch" if harm is fill_with_text else "is a symbolic link or another kind of file"
    assert expected in row["reason"]
    assert tree(log_dir) == before
    assert not any(path.is_symlink() for path in log_dir.rglob("*"))


@pytest.fixture
def planned_before_the_harm() -> Iterator[None]:
    """Let a plan see the originals as they were, as if they were changed between the plan and the restore."""
    with (
        mock.patch.object(restoring, "foreign_entry", lambda *_: None),
        mock.patch.object(restoring, "begins_with_batch", lambda *_: True),
        mock.patch.object(
            restoring,
            "kept_files",
            lambda folder: {path.name: restoring.original_file(path) for path in folder.iterdir()},
        ),
    ):
        yield


@pytest.mark.usefixtures("planned_before_the_harm")
@pytest.mark.parametrize("harm", [link_log, link_index])
def test_originals_that_change_after_the_plan_are_not_put_back(
    log_dir: Path, tmp_path: Path, run: str, secret: Path, harm: Callable[[Path, str, Path], None]
) -> None:
    before = tree(log_dir / NAME)
    harm(tmp_path / "kept", run, secret)
    done = restore(log_dir, tmp_path / "kept", run)
    assert (done.status, row_of(done)["status"]) == (1, "failed")
    assert tree(log_dir / NAME) == before
    assert not any(path.is_symlink() for path in log_dir.rglob("*"))


def test_a_catalogue_and_a_list_of_pins_that_are_links_are_not_read(
    log_dir: Path, tmp_path: Path, run: str, secret: Path
) -> None:
    kept = tmp_path / "kept"
    secret.write_text(json.dumps({"pins": {"x": run}}))
    (kept / "pins.json").symlink_to(secret)
    for command in (("originals", kept), ("vacuum", kept, "--older-than=1s", "--force", "--yes")):
        outcome = sediment(*command)
        assert outcome.status != 0 and "pins.json" in outcome.stderr and "Traceback" not in outcome.stderr
    (kept / "pins.json").unlink()
    catalogue = kept / f"catalogue-{run}.json"
    catalogue.rename(secret.parent / catalogue.name)
    catalogue.symlink_to(secret.parent / catalogue.name)
    outcome = restore(log_dir, kept, run)
    assert outcome.status == 1 and "it is a symbolic link" in outcome.stderr


def test_pins_behind_a_dangling_link_are_not_taken_for_no_pins(tmp_path: Path, run: str) -> None:
    kept = tmp_path / "kept"
    (kept / "pins.json").symlink_to(tmp_path / "nowhere")
    before = tree(kept)
    outcome = sediment("vacuum", kept, "--older-than=1s", "--force", "--yes")
    assert outcome.status == 1 and "pins.json" in outcome.stderr
    assert tree(kept) == before and (kept / f"catalogue-{run}.json").exists()


@pytest.mark.parametrize("kind", ["directory", "pipe", "dangling link"])
def test_a_catalogue_that_is_no_file_is_not_overlooked(log_dir: Path, tmp_path: Path, run: str, kind: str) -> None:
    kept = tmp_path / "kept"
    other = kept / "catalogue-other.json"
    {"directory": other.mkdir, "pipe": lambda: os.mkfifo(other), "dangling link": lambda: other.symlink_to("gone")}[
        kind
    ]()
    before = tree(log_dir), tree(kept)
    for outcome in (
        restore(log_dir, kept, run),
        sediment("originals", kept),
        sediment("vacuum", kept, "--older-than=1s", "--force", "--yes"),
    ):
        assert outcome.status == 1 and "catalogue-other.json" in outcome.stderr
    assert (tree(log_dir), tree(kept)) == before


def test_a_catalogue_that_lists_a_partition_twice_is_refused(log_dir: Path, tmp_path: Path, run: str) -> None:
    kept = tmp_path / "kept"
    (tmp_path / "link").symlink_to(log_dir)
    file = kept / f"catalogue-{run}.json"
    catalogue = json.loads(file.read_text())
    (entry,) = catalogue["partitions"]
    catalogue["partitions"].append({**entry, "log_dir": str(tmp_path / "link")})
    file.write_text(json.dumps(catalogue))
    before = tree(log_dir)
    outcome = restore(log_dir, kept, run)
    assert outcome.status == 1 and "it lists a partition twice" in outcome.stderr
    assert tree(log_dir) == before


def test_a_catalogue_whose_log_directory_is_a_link_to_itself_is_of_another_place(
    log_dir: Path, tmp_path: Path, run: str
) -> None:
    kept = tmp_path / "kept"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    file = kept / f"catalogue-{run}.json"
    catalogue = json.loads(file.read_text())
    catalogue["partitions"][0]["log_dir"] = str(tmp_path / "loop")
    file.write_text(json.dumps(catalogue))
    outcome = restore(log_dir, kept, run)
    assert outcome.status == 2 and "no chosen run changed this log directory" in outcome.stderr
    assert sediment("originals", kept, "--json").report["partitions"][0]["status"] == "not-restorable"


def test_what_a_recovery_cut_off_comes_back_even_if_it_is_garbage(tmp_path: Path) -> None:
    log_dir, kept = tmp_path / "logs", tmp_path / "kept"
    make_log(log_dir)
    last = max((log_dir / NAME).glob("*.log"))
    garbage = b"\xff" * last.stat().st_size
    last.write_bytes(garbage)
    (log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    done = sediment("recover", log_dir, f"--keep-originals={kept}", "--json", "--quiet", "--yes")
    assert done.status == 0, done.stderr + done.stdout
    assert last.read_bytes() != garbage if last.exists() else True
    undone = restore(log_dir, kept, done.report["run_id"])
    assert undone.status == 0, undone.stdout
    assert last.read_bytes() == garbage


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (b"", True),
        (bytes(4096), True),
        (batch_bytes(7, "a"), True),
        (batch_bytes(4, "a"), False),
        (batch_bytes(5 + (1 << 31), "a"), False),
        (batch_bytes(7, "a")[:40], False),
        (bytes(61) + b"x", False),
        (b"x", False),
        (b"root:x:0:0:root:/root:/bin/bash\n" * 9, False),
        ((7).to_bytes(8, "big") + (14).to_bytes(4, "big") + bytes(14), True),
        ((7).to_bytes(8, "big") + (14).to_bytes(4, "big") + b"\0\0\0\0\2" + bytes(9), False),
        ((7).to_bytes(8, "big") + (13).to_bytes(4, "big") + bytes(14), False),
    ],
)
def test_a_log_begins_with_a_batch_of_its_segment(tmp_path: Path, content: bytes, is_one: bool) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert begins_with_batch(path, 5) is is_one
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        begins_with_batch(tmp_path / "link", 5)
