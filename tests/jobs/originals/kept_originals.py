"""Commands that keep, and put back, originals; their catalogues; and a restore with only the standard library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, tree, write_checkpoint
from tests.segments import NOW_MS

SOME = ("--set=retention.bytes=360", "--set=retention.ms=-1")
ALL = ("--set=retention.bytes=0", "--set=retention.ms=-1")
Found = dict[str, tuple[bytes, int | None]]


def catalogues(kept: Path) -> list[dict[str, Any]]:
    """Return the catalogues in a directory of originals, oldest run first."""
    found = [json.loads(path.read_text()) for path in kept.glob("catalogue-*.json")]
    return sorted(found, key=lambda catalogue: catalogue["started_ms"])


def originals_of(kept: Path, catalogue: dict[str, Any], partition: str) -> Path:
    """Return the folder with the originals of a partition that a run kept."""
    return kept / catalogue["run_id"] / partition


def put_back(kept: Path, catalogue: dict[str, Any]) -> None:
    """Undo a run, whether it ended or not: files, leader epochs and entries of checkpoint files."""
    for partition in catalogue["partitions"]:
        directory = Path(partition["log_dir"], partition["partition"])
        for new in partition["new_files"] or ():
            (directory / new["name"]).unlink(missing_ok=True)
        for file in partition["files"]:
            link = originals_of(kept, catalogue, partition["partition"]) / file["name"]
            path = directory / file["name"]
            if link.exists():
                status = link.stat()
                assert (status.st_ino, status.st_size) == (file["inode"], file["size_bytes"])
                assert status.st_mtime_ns == file["mtime_ns"]
                path.unlink(missing_ok=True)
                os.link(link, path)
        if partition["leader_epochs"] is not None:
            (directory / "leader-epoch-checkpoint").write_text(partition["leader_epochs"])
    for log_dir in catalogue["log_dirs"]:
        _put_back_checkpoints(Path(log_dir["path"]), log_dir["checkpoint_files"], catalogue["partitions"])


def _put_back_checkpoints(log_dir: Path, there: list[str], partitions: list[dict[str, Any]]) -> None:
    for name in partitions[0]["checkpoints"]:
        path = log_dir / name
        if name not in there:
            path.unlink(missing_ok=True)
            continue
        before = {
            each["partition"]: each["checkpoints"][name] for each in partitions if each["log_dir"] == str(log_dir)
        }
        entries = {other: offset for other, offset in read_checkpoint(path).items() if other not in before}
        entries |= {partition: offset for partition, offset in before.items() if offset is not None}
        if entries != read_checkpoint(path):
            write_checkpoint(path, entries)


def found(log_dir: Path) -> Found:
    """Return every file with its content, and logs with their modification times."""
    return {
        name: (content, (log_dir / name).stat().st_mtime_ns if name.endswith(".log") else None)
        for name, content in tree(log_dir).items()
    }


def expire(log_dir: Path, kept: Path, *sets: str) -> str:
    """Expire and return the run's id."""
    outcome = sediment(
        *("expire", log_dir, "--json", "--quiet", "--broker-defaults", f"--now-ms={NOW_MS}"),
        *(f"--keep-originals={kept}", *sets),
    )
    assert outcome.status == 0, outcome.stderr
    return outcome.report["run_id"]


def restore(log_dir: Path, kept: Path, *more: str) -> Outcome:
    return sediment("restore", log_dir, f"--from={kept}", "--json", "--quiet", "--yes", *more)


def restored(log_dir: Path, kept: Path, *more: str) -> dict[str, Any]:
    """Restore and return the report."""
    outcome = restore(log_dir, kept, *more)
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    assert {row["status"] for row in outcome.report["partitions"]} == {"restored"}
    return outcome.report


def recover(log_dir: Path, kept: Path) -> dict[str, Any]:
    outcome = sediment("recover", log_dir, "--json", "--quiet", f"--keep-originals={kept}", f"--now-ms={NOW_MS}")
    lost = {row["reason_code"] for row in outcome.report["partitions"]} - {None}
    assert outcome.status == len(lost) and lost <= {"records-missing"}, outcome.stdout + outcome.stderr
    return outcome.report
