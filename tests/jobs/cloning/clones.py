"""Calls of `sediment clone`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, tree
from tests.segments import NOW_MS


def clone(source: object, to: object, *more: object, status: int = 0) -> Outcome:
    """Clone `source` to `to`, at NOW_MS unless another time is given, and check the exit status."""
    time = () if "--now-ms" in more else ("--now-ms", NOW_MS)
    outcome = sediment("clone", source, "--to", to, "--json", *time, *more)
    assert outcome.status == status, outcome.stderr
    return outcome


def logs_of(log_dir: Path) -> dict[str, object]:
    """Return the logs and the checkpoints; other files have ids that each clone makes for itself."""
    found = tree(log_dir)
    logs = {name: content for name, content in found.items() if "/" in name and "partition.metadata" not in name}
    return {**logs, **{path.name: read_checkpoint(path) for path in log_dir.glob("*-checkpoint")}}


def damaged_copy(source: Path, to: Path) -> Path:
    """Copy a log directory, change a byte of a record in orders-0, and return the changed file."""
    shutil.copytree(source, to)
    log = min((to / "orders-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(content)
    return log


def append_a_byte(folder: Path) -> None:
    """Change a source while it is copied: its last segment grows."""
    with (folder / f"{20:020d}.log").open("ab") as log:
        log.write(b"x")


def roll(folder: Path) -> None:
    """Change a source while it is copied: it gets another segment."""
    (folder / f"{30:020d}.log").touch()
