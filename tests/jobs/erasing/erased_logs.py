"""Log directories for tests of `erase`, and their records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.jobs.log_dirs import sediment, write_checkpoint
from tests.segments import batch_bytes, write_segment
from tests.twin.segments import list_segments

STATED = ("--set=people:cleanup.policy=compact", "--set=visits:cleanup.policy=delete")


def make_logs(path: Path, *, clean: bool = True) -> Path:
    """A log directory with people-0 (keys a b a, c a, d) and visits-0 (keys a x, b a), each of two segments."""
    for name, batches in {
        "people-0": {0: [batch_bytes(0, "aba")], 3: [batch_bytes(3, "ca"), batch_bytes(5, "d")]},
        "visits-0": {0: [batch_bytes(0, "ax", codec=4)], 2: [batch_bytes(2, "ba")]},
    }.items():
        for base, content in batches.items():
            write_segment(path / name, base, content)
    write_checkpoint(path / "recovery-point-offset-checkpoint", {"people-0": 6, "visits-0": 4})
    if clean:
        (path / ".kafka_cleanshutdown").touch()
    return path


def records(directory: Path) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Key and value of the records by offset."""
    return {
        record.offset: (record.key, record.value)
        for segment in list_segments(directory)
        for _, batch in segment.batches()
        for record in batch.records()
    }


def erase(logs: Path, *arguments: object) -> Mapping[str, Mapping]:
    outcome = sediment("erase", logs, "--json", "--yes", *arguments)
    assert outcome.status == 0, outcome
    return outcome.partitions()
