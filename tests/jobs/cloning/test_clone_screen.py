"""The screen of `clone`: a terminal counts empty partitions and lists the others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import make_log_dir, sediment_on_terminal, write_checkpoint
from tests.segments import batch_bytes, write_segment


def test_many_empty_partitions_get_no_rows_on_a_terminal(tmp_path: Path) -> None:
    write_segment(tmp_path / "full", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "empty", 0)
    logs = {"t-0": tmp_path / "full"} | {f"t-{number}": tmp_path / "empty" for number in range(1, 21)}
    source = make_log_dir(tmp_path / "logs", logs)
    for name in ("recovery-point", "replication"):
        write_checkpoint(source / f"{name}-offset-checkpoint", dict.fromkeys(logs, 0) | {"t-0": 3})
    with inline_spark():
        done = sediment_on_terminal("clone", source, "--to", tmp_path / "clone", "--local-only")
    assert done.status == 0, done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(" t-")] == ["t-0"]
    assert "21 partitions of 1 topic cloned to" in done.stdout and "s, 20 of them empty; start" in done.stdout


def test_the_commands_that_end_the_hold_are_in_natural_order(tmp_path: Path) -> None:
    write_segment(tmp_path / "full", 0, [batch_bytes(0, "abc")])
    logs = {f"{topic}-0": tmp_path / "full" for topic in ("g10", "g2", "a")}
    source = make_log_dir(tmp_path / "logs", logs)
    for name in ("recovery-point", "replication"):
        write_checkpoint(source / f"{name}-offset-checkpoint", dict.fromkeys(logs, 3))
    with inline_spark():
        done = sediment_on_terminal("clone", source, "--to", tmp_path / "clone", "--local-only")
    assert done.status == 0, done.stdout
    assert re.findall(r"--entity-name (\S+)", done.stdout) == ["a", "g2", "g10"]
