"""Every command on a partition whose folder has the longest name that a filesystem allows, 255 bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import make_log_dir, sediment, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot

TOPIC = "t" * 249
NAME = f"{TOPIC}-99999"
STATED = ("--set=cleanup.policy=compact", "--broker-defaults", f"--now-ms={NOW_MS}")


@pytest.fixture(autouse=True)
def tasks_in_this_process() -> Iterator[None]:
    with inline_spark():
        yield


def make_logs(path: Path, name: str = NAME) -> Path:
    source = path.with_name(f"{path.name}-source")
    for base in range(0, 30, 10):
        batches = [batch_bytes(n, "ab"[n % 2], timestamp=NOW_MS) for n in range(base, base + 10)]
        write_segment(source, base, batches)
    write_snapshot(source, 20)
    log_dir = make_log_dir(path, {name: source}, dirty={name: 0})
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {name: 20})
    return log_dir


@pytest.mark.parametrize(
    "command",
    [
        ("compact", *STATED, "--force"),
        ("compact", *STATED, "--force", "--strategy=split"),
        ("reencode", "--codec=none", "--batch-bytes=16k", "--broker-defaults"),
        ("expire", "--broker-defaults", "--set=cleanup.policy=delete", "--set=retention.bytes=0", f"--now-ms={NOW_MS}"),
        ("erase", "--broker-defaults", "--yes", "--action=drop", "--keys-file=KEYS"),
    ],
    ids=lambda command: "-".join((command[0], *command[5:])),
)
def test_a_run_that_keeps_originals_can_be_undone(tmp_path: Path, command: tuple[str, ...]) -> None:
    log_dir, kept = make_logs(tmp_path / "logs"), tmp_path / "kept"
    (tmp_path / "keys").write_text("a\n")
    arguments = [word.replace("KEYS", str(tmp_path / "keys")) for word in command[1:]]
    before = tree(log_dir / NAME)
    done = sediment(command[0], log_dir, *arguments, f"--keep-originals={kept}", "--json")
    assert done.status == 0, done.stderr + done.stdout
    assert tree(log_dir / NAME) != before
    undo = ("--undo-erasure",) if command[0] == "erase" else ()
    undone = sediment("restore", log_dir, f"--from={kept}", f"--run={done.report['run_id']}", "--yes", "--json", *undo)
    assert undone.status == 0, undone.stdout
    assert tree(log_dir / NAME) == before
    assert sediment("vacuum", kept, "--all", "--yes", "--force").status in (0, 2)


def test_a_compaction_that_keeps_the_state_before_it_is_verified(tmp_path: Path) -> None:
    log_dir, before = make_logs(tmp_path / "logs"), tmp_path / "before"
    done = sediment("compact", log_dir, *STATED, "--force", f"--keep-before={before}", "--json")
    assert done.status == 0, done.stderr
    assert [path.name for path in before.iterdir() if path.is_dir()] == [NAME]


def test_an_output_and_a_copy_of_it(tmp_path: Path) -> None:
    log_dir = make_logs(tmp_path / "logs")
    for more in ((), ("--roll-active",)):
        output = tmp_path / f"output{len(more)}"
        done = sediment("compact", log_dir, *STATED, "--force", *more, "--output", output, "--json")
        assert done.status == 0, done.stderr
        names = {file["name"] for file in json.loads((output / "sediment-manifest.json").read_text())["files"]}
        assert f"{NAME}/{0:020d}.log" in names


@pytest.mark.parametrize("more", [(), ("--strategy=split",), ("--compact", "--set=cleanup.policy=compact")])
def test_a_clone_of_the_longest_topic_is_complete(tmp_path: Path, more: tuple[str, ...]) -> None:
    name = f"{TOPIC}-10"
    log_dir = make_logs(tmp_path / "logs", name)
    to = tmp_path / "clone"
    done = sediment("clone", log_dir, "--to", to, "--json", *more)
    assert done.status == 0, done.stdout + done.stderr
    assert done.report["is_complete"] and (to / name / f"{0:020d}.log").exists()
    assert sediment("clone", "--check", to, "--json").status == 0
    assert not [path for path in to.rglob("*") if path.name.endswith(".part")]


def test_recover_and_plan(tmp_path: Path) -> None:
    log_dir = make_logs(tmp_path / "logs")
    (log_dir / ".kafka_cleanshutdown").unlink()
    assert sediment("recover", log_dir, "--json").status == 0
    assert sediment("plan", log_dir, *STATED, "--json").status == 0
