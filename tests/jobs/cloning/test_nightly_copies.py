"""The commands of the recipe for nightly copies, as docs/operate/restore-subset-move.md gives them."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import make_log_dir, sediment, write_checkpoint, write_log
from tests.segments import NOW_MS, batch_bytes

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "restore-subset-move.md"
FIRST, SECOND, THIRD = (f"2026-11-{day}" for day in (21, 22, 23))


def commands(root: Path) -> list[list[str]]:
    """Return the command lines of the recipe, with their paths below `root`."""
    recipe = PAGE.read_text().split("### Nightly incremental copies", 1)[1].split("\n#", 1)[0]
    lines = [line.removeprefix("$ sediment ") for line in recipe.splitlines() if line.startswith("$ sediment ")]
    return [[f"{root}{word}" if word.startswith("/") else word for word in shlex.split(line)] for line in lines]


def test_the_recipe_copies_checks_and_restores(tmp_path: Path) -> None:
    logs = {name: write_log(tmp_path / "made" / name) for name in ("orders-0", "payments-0")}
    source = make_log_dir(tmp_path / "snapshots" / FIRST, logs)
    for name in ("recovery-point", "replication"):
        write_checkpoint(source / f"{name}-offset-checkpoint", dict.fromkeys(logs, 30))
    shutil.copytree(source, tmp_path / "snapshots" / SECOND)
    with (tmp_path / "snapshots" / SECOND / "orders-0" / f"{20:020d}.log").open("ab") as log:
        log.write(batch_bytes(30, "c", timestamp=NOW_MS))
    shutil.copytree(tmp_path / "snapshots" / SECOND, tmp_path / "snapshots" / THIRD)
    for folder in ("backup", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    with inline_spark():
        printed = [sediment(*command) for command in commands(tmp_path)]
    assert [each.status for each in printed] == [0] * 5, [each.stderr for each in printed]
    copies = [each.stdout for each in printed]
    assert "1 of them unchanged" in copies[1] and "2 of them unchanged" in copies[2]
    assert "equals its manifest" in copies[3]
    shutil.rmtree(tmp_path / "backup" / FIRST)
    assert sediment("clone", "--check", tmp_path / "backup" / THIRD).status == 0
    restored = tmp_path / "var" / "lib" / "restored"
    logs_of = {path.name: path.read_bytes() for path in (restored / "orders-0").glob("*.log")}
    third = tmp_path / "snapshots" / THIRD / "orders-0"
    assert logs_of == {path.name: path.read_bytes() for path in third.glob("*.log")}
