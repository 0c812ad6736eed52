"""Catalogues of originals, and restoring a log directory from one with only the standard library."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.jobs.log_dirs import read_checkpoint, write_checkpoint


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
