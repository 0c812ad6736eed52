"""`sediment clone` with hostile arguments and failing disks: an exit status, one sentence, and nothing half made."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.copying import replica_copy
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.stores import Store
from tests.jobs.cloning.clones import append_a_byte, clone, roll
from tests.jobs.log_dirs import make_log_dir, sediment, tree, write_checkpoint, write_log
from tests.served import contents

pytestmark = pytest.mark.usefixtures("without_spark")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    logs = {name: write_log(tmp_path / "made" / name) for name in ("t-0", "a.b-0")}
    return make_log_dir(tmp_path / "logs", logs)


def refused(source: object, to: Path, *more: object) -> str:
    """Return the sentence of a refusal that made nothing."""
    before = os.path.lexists(to)
    outcome = clone(source, to, *more, status=2)
    assert outcome.stdout == "" and os.path.lexists(to) == before
    assert outcome.stderr.startswith("sediment: ") and outcome.stderr.count("\n") == 1
    return outcome.stderr


# ---------------------------------------------------------------------------------------------------------- directories
def test_source_and_target_are_never_one_or_inside_one_another(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    link = tmp_path / "link"
    link.symlink_to(source)
    for to in (source / "x", source / "t-0" / "x", link / "x", tmp_path):
        assert "is inside the source" in refused(source, to)
    assert "is inside the source" in refused(link, source / "x")
    for one, other in ((source, link), (link, source), (source, source)):
        assert "the output is the source" in refused(one, other)
    assert contents(source) == before and {path.name for path in tmp_path.iterdir()} == {"logs", "link", "made"}


def test_a_target_that_cannot_be_a_directory_is_refused(source: Path, tmp_path: Path) -> None:
    file, dangling = tmp_path / "file", tmp_path / "dangling"
    file.write_text("mine")
    dangling.symlink_to(tmp_path / "nowhere")
    assert "the output is a file" in refused(source, file)
    assert f"{file} is not a directory" in refused(source, file / "deep" / "clone")
    assert f"{dangling} is not a directory" in refused(source, dangling)
    assert file.read_text() == "mine" and not (tmp_path / "nowhere").exists()
    assert "log.dirs cannot contain this path" in refused(source, tmp_path / "a,b")
    assert "UTF-8" in refused(source, tmp_path / "a\udcff")


def test_a_source_without_a_partition_is_refused(tmp_path: Path) -> None:
    to = tmp_path / "clone"
    for number, name in enumerate(("absent", "empty", "checkpoints")):
        given = tmp_path / name
        if number:
            given.mkdir()
        if number == 2:
            write_checkpoint(given / "recovery-point-offset-checkpoint", {})
        refused(given, to)
    assert "contains no partition" in refused(tmp_path / "checkpoints", to)


def test_names_that_kafka_does_not_have_stay_behind(source: Path, tmp_path: Path) -> None:
    for name in ("bad\udcff-0", "sp ace-0", "new\nline-0"):
        (source / name).mkdir()
    (source / "t-0" / "odd\udcff.log").write_bytes(b"x")
    clone(source, tmp_path / "clone")
    assert {path.name for path in (tmp_path / "clone").iterdir() if path.is_dir()} == {"t-0", "a.b-0"}
    assert sediment("clone", "--check", tmp_path / "clone").status == 0


# --------------------------------------------------------------------------------------------------------------- topics
def test_a_renaming_never_gives_two_topics_one_name_or_names_that_collide(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    assert "would be named 'a.b'" in refused(source, to, "--rename", "t=a.b")
    assert "would be named 'z'" in refused(source, to, "--rename", "t=z", "--rename", "a.b=z")
    assert "collide" in refused(source, to, "--rename", "t=a_b")
    assert "not possible" in refused(source, to, "--rename", "t=../x")
    found = clone(source, to, "--rename", "t=a.b", "--rename", "a.b=t").partitions()
    assert {name: row["from"] for name, row in found.items()} == {
        "a.b-0": f"{source}/t-0",
        "t-0": f"{source}/a.b-0",
    }


def test_of_two_equal_replicas_one_is_cloned(source: Path, tmp_path: Path) -> None:
    other = make_log_dir(tmp_path / "other", {name: source / name for name in ("t-0", "a.b-0")})
    outcome = sediment("clone", source, other, f"{source}/", "--to", tmp_path / "clone", "--json")
    assert outcome.status == 0 and len(outcome.report["partitions"]) == 2
    alone = tree(make_log_dir(tmp_path / "alone", {"t-0": source / "t-0"}) / "t-0")
    logs = {name: content for name, content in tree(tmp_path / "clone" / "t-0").items() if name.endswith(".log")}
    assert logs == {name: content for name, content in alone.items() if name.endswith(".log")}


# --------------------------------------------------------------------------------------------------------- ends of logs
def test_a_cut_before_everything_leaves_empty_logs(source: Path, tmp_path: Path) -> None:
    rows = clone(source, tmp_path / "clone", "--until-ms", 0).partitions()
    assert {(row["log_start_offset"], row["log_end_offset"], row["bytes"]) for row in rows.values()} == {(0, 0, 0)}
    assert sediment("clone", "--check", tmp_path / "clone").status == 0


def test_a_cut_below_the_log_start_is_refused_before_anything_is_copied(source: Path, tmp_path: Path) -> None:
    write_checkpoint(source / "log-start-offset-checkpoint", {"t-0": 15})
    assert "below the log start offset 15" in refused(source, tmp_path / "clone", "--until-offset", "t-0:3")


# ------------------------------------------------------------------------------------------------------ while it copies
def _delete(folder: Path) -> None:
    (folder / f"{0:020d}.log").unlink()


@pytest.mark.parametrize("change", [append_a_byte, roll, _delete])
def test_a_source_that_changes_fails_its_partition_and_leaves_no_clone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    copy = replica_copy.copy_partition

    def disturbed(work: Any, *arguments: Any, **options: Any) -> Any:
        if work.folder == "t-0":
            change(source / work.folder)
        return copy(work, *arguments, **options)

    monkeypatch.setattr(replica_copy, "copy_partition", disturbed)
    outcome = clone(source, tmp_path / "clone", status=1)
    rows = outcome.partitions()
    assert (rows["t-0"]["status"], rows["t-0"]["reason_code"]) == ("failed", "source-changed")
    assert "stop the broker" in rows["t-0"]["reason"]
    assert not outcome.report["is_complete"] and not (tmp_path / "clone" / "meta.properties").exists()


@pytest.mark.parametrize("writes", [0, 1, 9, 20, 27, 30])
def test_a_full_disk_leaves_no_clone_and_the_next_run_starts_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    write, count, to = Store.write, 0, tmp_path / "clone"

    def full(store: Store, name: str, chunks: Iterator[Buffer]) -> int:
        nonlocal count
        count += 1
        if count > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return write(store, name, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", full)
        outcome = clone(source, to, status=1)
    assert "the disk is full" in outcome.stderr + outcome.stdout
    assert not (to / "sediment-manifest.json").exists()
    clone(source, to)
    assert sediment("clone", "--check", to).status == 0
