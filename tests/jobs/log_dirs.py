"""Log directories for tests of commands: partitions with their checkpoint files, and the command line itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from sediment.jobs.cli import main
from sediment.segment_io.format.checkpoints import format_partition_metadata, format_uuid
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot
from tests.waiting import LIMIT_SECONDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a command; `report` is its JSON if it printed one."""

    status: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.stdout)

    def partitions(self) -> dict[str, dict[str, Any]]:
        return {partition["partition"]: partition for partition in self.report["partitions"]}


def sediment(*arguments: object) -> Outcome:
    """Run the command line in this process, with the SparkContext that is active in it."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def sediment_on_terminal(*arguments: object, columns: int = 80) -> Outcome:
    """Run the command line in this process with stdout on a terminal without colours; stderr is not captured."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read_all() -> None:
        with contextlib.suppress(OSError):  # the command has closed the terminal
            while part := os.read(ours, 1 << 16):
                shown.extend(part)

    reader = threading.Thread(target=read_all)
    reader.start()
    size = {"COLUMNS": str(columns), "LINES": "50", "TERM": "dumb"}
    with (
        open(theirs, "w", encoding="utf-8") as stdout,
        patch.dict(os.environ, size),
        contextlib.redirect_stdout(stdout),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    reader.join()
    os.close(ours)
    return Outcome(int(ended.value.code or 0), shown.decode().replace("\r\n", "\n"), "")


def sediment_process(
    *arguments: object, environment: Mapping[str, str] | None = None, timeout: float = LIMIT_SECONDS
) -> Outcome:
    """Run the command line in a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return Outcome(finished.returncode, finished.stdout, finished.stderr)


def make_log_dir(
    path: Path, partitions: Mapping[str, Path], *, dirty: Mapping[str, int] | None = None, clean: bool = True
) -> Path:
    """Return a log directory with copies of partition directories; `dirty` becomes the cleaner checkpoint."""
    path.mkdir(parents=True)
    for name, source in partitions.items():
        shutil.copytree(source, path / name)
    if dirty:
        write_checkpoint(path / "cleaner-offset-checkpoint", dirty)
    if clean:
        (path / ".kafka_cleanshutdown").touch()
    return path


def write_checkpoint(path: Path, offsets: Mapping[str, int]) -> None:
    lines = [f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {offset}" for name, offset in offsets.items()]
    path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")


def read_checkpoint(path: Path) -> dict[str, int]:
    lines = path.read_text().splitlines()[2:]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in map(str.split, lines)}


def topic_sets(topic: str, configs: Mapping[str, str]) -> list[str]:
    """Options that stand for a topic's whole config: its own keys by `--set`, Kafka's defaults for all others."""
    return ["--broker-defaults", *(f"--set={topic}:{key}={value}" for key, value in configs.items())]


def tree(path: Path) -> dict[str, bytes]:
    """Names and contents of all files below `path`, without the `.lock` that whoever owns a directory leaves."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def corpus_log_dir(path: Path, rounds: Sequence[tuple[Any, Any]], *, clean: bool = True) -> tuple[Path, list[str]]:
    """Return a log directory of corpus cases (case, round) before the round, and the options of their topics."""
    partitions = {case.partition: given.before for case, given in rounds}
    dirty = {case.partition: given.dirty for case, given in rounds if given.dirty is not None}
    sets = [option for case, _ in rounds for option in topic_sets(case.partition.rpartition("-")[0], case.configs)]
    return make_log_dir(path, partitions, dirty=dirty, clean=clean), sets


def write_log(path, keys="ab", end=30):
    """Write a partition with three segments, the last one active."""
    for base in range(0, end, 10):
        batches = [batch_bytes(n, keys[n % len(keys)], timestamp=NOW_MS) for n in range(base, base + 10)]
        write_segment(path, base, batches)
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    topic_id = format_uuid(hashlib.md5(path.name.removesuffix("-0").encode()).digest())
    (path / "partition.metadata").write_bytes(format_partition_metadata(topic_id))
    write_snapshot(path, 10)
    write_snapshot(path, 20)
    return path
