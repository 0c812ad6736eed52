"""`sediment reencode` on real directories: sizes before and after, equal records, originals and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.jobs.log_dirs import sediment, tree, write_checkpoint
from tests.jobs.originals.kept_originals import catalogues, put_back
from tests.rewrites import visible_records
from tests.segments import batch_bytes, write_segment
from tests.twin.segments import list_segments

NAMES = ("orders-0", "orders-1")
SMALLER = ("--codec=zstd", "--level=9", "--batch-bytes=64k")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Lay out two partitions with two segments of small uncompressed batches each."""
    path = tmp_path / "logs"
    for name in NAMES:
        for base in (0, 40):
            write_segment(path / name, base, [batch_bytes(base + n, value=b"value" * 20) for n in range(40)])
    write_checkpoint(path / "recovery-point-offset-checkpoint", dict.fromkeys(NAMES, 80))
    (path / ".kafka_cleanshutdown").touch()
    return path


def reencode(logs: Path, *arguments: object, status: int = 0) -> Mapping[str, Mapping]:
    outcome = sediment("reencode", logs, "--json", *arguments)
    assert outcome.status == status, outcome
    return outcome.partitions()


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def test_a_dry_run_has_the_sizes_of_the_run_and_the_records_stay(logs: Path, tmp_path: Path):
    files = tree(logs)
    before = {name: (log_bytes(logs / name), visible_records(logs / name, committed=True)) for name in NAMES}
    planned = reencode(logs, *SMALLER, "--dry-run")
    assert tree(logs) == files

    kept = tmp_path / "kept"
    found = reencode(logs, *SMALLER, f"--keep-originals={kept}")
    for name, (size_bytes, records) in before.items():
        row = found[name]
        assert (row["status"], row["segments_rewritten"], row["segments"]) == ("reencoded", 2, [0, 40])
        assert (row["bytes_before"], row["bytes_after"]) == (size_bytes, log_bytes(logs / name))
        assert (row["batches_before"], row["batches_after"], row["batches_encoded"]) == (80, 2, 2)
        assert row["bytes_after"] * 10 < row["bytes_before"]
        assert visible_records(logs / name, committed=True) == records
        assert planned[name] == row
    assert [name for name in tree(logs) if name.endswith((".part", ".swap", ".deleted", ".sediment-run"))] == []

    again = reencode(logs, *SMALLER)
    assert {row["status"] for row in again.values()} == {"unchanged"}
    put_back(kept, catalogues(kept)[0])
    assert {name: content for name, content in tree(logs).items() if name in files} == files


def test_a_corrupt_partition_is_quarantined_and_the_other_one_is_done(logs: Path):
    path = logs / "orders-1" / f"{40:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    damaged = {name: content for name, content in tree(logs).items() if name.startswith("orders-1")}
    found = reencode(logs, "--codec=lz4", "--partition=orders-*", status=1)
    assert {name: row["status"] for name, row in found.items()} == {"orders-0": "reencoded", "orders-1": "quarantined"}
    assert {name: content for name, content in tree(logs).items() if name.startswith("orders-1")} == damaged
    assert {batch.codec for segment in list_segments(logs / "orders-0") for _, batch in segment.batches()} == {3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no new encoding is requested"),
        (("--level=3", "--batch-bytes=1m"), "no codec has no levels"),
        (("--codec=snappy", "--level=3"), "snappy has no levels"),
        (("--codec=zstd", "--level=99"), "level 99 is outside"),
        (("--batch-bytes=64x",), "is not a size"),
    ],
)
def test_options_that_make_no_sense_are_refused(logs: Path, arguments: tuple[str, ...], message: str):
    before = tree(logs)
    outcome = sediment("reencode", logs, *arguments)
    assert outcome.status == 2
    assert message in outcome.stderr
    assert tree(logs) == before


def test_a_directory_that_was_not_stopped_cleanly_is_refused(logs: Path):
    (logs / ".kafka_cleanshutdown").unlink()
    outcome = sediment("reencode", logs, "--codec=zstd")
    assert outcome.status == 1
    assert "sediment recover" in outcome.stderr
