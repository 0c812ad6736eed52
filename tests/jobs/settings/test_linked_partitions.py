"""Partition folders that are symbolic links: they are followed, unless two folders would share their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.inline_spark import inline_spark
from tests.jobs.expiring.expired_logs import NAME, make_log
from tests.jobs.log_dirs import Outcome, sediment, tree, write_checkpoint
from tests.segments import NOW_MS

EXPIRE = ("expire", "--set=retention.bytes=360", "--set=retention.ms=-1", "--broker-defaults")
COMMANDS: list[tuple[str, ...]] = [
    EXPIRE,
    ("compact", "--set=cleanup.policy=compact", "--broker-defaults", "--force"),
    ("recover", "--yes"),
    ("reencode", "--codec=gzip"),
    ("plan", "--broker-defaults"),
]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    make_log(tmp_path / "logs")
    write_checkpoint(tmp_path / "logs" / "recovery-point-offset-checkpoint", {NAME: 15})
    return tmp_path / "logs"


def run(command: tuple[str, ...], *more: object) -> Outcome:
    with inline_spark():
        return sediment(command[0], *more, *command[1:], f"--now-ms={NOW_MS}", "--quiet", "--json")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("selection", [(), ("--partition=orders-1",)], ids=str)
def test_two_partitions_with_the_same_files_are_refused(
    log_dir: Path, command: tuple[str, ...], selection: tuple[str, ...]
) -> None:
    (log_dir / "orders-1").symlink_to(log_dir / NAME)
    before = tree(log_dir)
    outcome = run(command, log_dir, *selection)
    assert outcome.status == 2
    assert f"the folder is a link to the same files as {log_dir / NAME}" in outcome.stderr
    assert tree(log_dir) == before


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("both", [True, False], ids=["both given", "one given"])
def test_a_link_into_another_log_directory_is_refused(
    log_dir: Path, tmp_path: Path, command: tuple[str, ...], both: bool
) -> None:
    other = tmp_path / "other"
    make_log(other, "payments-0")
    write_checkpoint(other / "recovery-point-offset-checkpoint", {"payments-0": 15})
    (log_dir / "payments-0").symlink_to(other / "payments-0")
    before = tree(log_dir), tree(other)
    outcome = run(command, log_dir, *((other,) if both else ()))
    assert outcome.status == 2
    assert "same files as" in outcome.stderr if both else f"a link into {other}, a log directory" in outcome.stderr
    assert (tree(log_dir), tree(other)) == before


def test_partitions_beside_such_a_link_can_be_selected(log_dir: Path) -> None:
    make_log(log_dir, "payments-0")
    (log_dir / "orders-1").symlink_to(log_dir / NAME)
    assert run(EXPIRE, log_dir, "--partition=payments-0").status == 0


def test_a_partition_behind_a_link_expires_there_and_comes_back(log_dir: Path, tmp_path: Path) -> None:
    place = tmp_path / "other disk" / NAME
    place.parent.mkdir()
    (log_dir / NAME).rename(place)
    (log_dir / NAME).symlink_to(place)
    before = tree(log_dir / NAME)
    kept = tmp_path / "kept"
    done = run(EXPIRE, log_dir, f"--keep-originals={kept}")
    assert done.status == 0, done.stderr
    assert (log_dir / NAME).is_symlink() and tree(place) != before
    undone = sediment("restore", log_dir, f"--from={kept}", f"--run={done.report['run_id']}", "--json", "--yes")
    assert undone.status == 0, undone.stderr
    assert (log_dir / NAME).is_symlink() and tree(place) == before
