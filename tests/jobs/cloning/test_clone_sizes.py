"""Clones of sparse files, of files that no broker opens, and on disks that are too small."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest

from sediment.engine.copying import partition_copy
from sediment.segment_io.stores import Store
from tests.jobs.cloning.clones import clone, logs_of
from tests.jobs.log_dirs import make_log_dir, sediment
from tests.segments import batch_bytes, write_segment

pytestmark = pytest.mark.usefixtures("without_spark")

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    log = tmp_path / "t"
    for base in (0, 20):
        write_segment(log, base, [batch_bytes(n, "k") for n in range(base, base + 20)], index_interval_bytes=100)
    return make_log_dir(tmp_path / "source", {"good-0": log, "t-0": log})


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def statuses(outcome) -> dict[str, str]:
    return {name: row["status"] for name, row in outcome.partitions().items()}


def test_a_segment_larger_than_any_of_a_broker_is_refused_before_it_is_copied(source: Path, tmp_path: Path) -> None:
    os.truncate(source / "t-0" / f"{0:020d}.log", 2 << 40)
    outcome = clone(source, tmp_path / "clone", status=1)
    assert statuses(outcome) == {"good-0": "cloned", "t-0": "failed"}
    row = outcome.partitions()["t-0"]
    assert row["reason_code"] == "corrupt-data" and "2199023255552 bytes is larger than any file" in row["reason"]
    assert disk_bytes(tmp_path / "clone") < MIB


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_larger_than_any_of_a_broker_counts_as_missing(source: Path, tmp_path: Path, kind: str) -> None:
    path = source / "t-0" / f"{0:020d}.{kind}"
    os.truncate(path, 3 << 40)
    clone(source, tmp_path / "clone")
    path.unlink()
    clone(source, tmp_path / "without")
    assert logs_of(tmp_path / "clone") == logs_of(tmp_path / "without")
    assert sediment("clone", "--check", tmp_path / "clone", "--json").status == 0


def test_holes_stay_holes_in_a_clone_and_in_an_output(source: Path, tmp_path: Path) -> None:
    for name in ("good-0", "t-0"):
        snapshot = source / name / f"{20:020d}.snapshot"
        snapshot.touch()
        with (source / name / f"{20:020d}.log").open("r+b") as log:
            log.truncate(64 * MIB)  # as an active segment that was preallocated
    (source / ".kafka_cleanshutdown").unlink()
    outcome = clone(source, tmp_path / "clone")
    assert set(statuses(outcome).values()) == {"cloned"}
    arguments = ("--set=cleanup.policy=compact", "--broker-defaults", "--partition=t-0")
    done = sediment("compact", source, *arguments, "--output", tmp_path / "output", "--json")
    assert done.status == 0, done.stderr
    assert (tmp_path / "output" / "t-0" / f"{20:020d}.log").stat().st_size == 64 * MIB
    assert disk_bytes(tmp_path / "clone") < 4 * MIB and disk_bytes(tmp_path / "output") < 4 * MIB


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    with mock.patch.object(Store, "free_bytes", lambda _: 2000):
        outcome = sediment("clone", source, "--to", to, "--json")
        assert outcome.status == 1 and not to.exists()
        assert "the logs need 5.9 kB, and 2.0 kB are free" in outcome.stderr and "--link" in outcome.stderr
        assert clone(source, to, "--link=hard").report["is_complete"]
    shutil.rmtree(to)
    with mock.patch.object(Store, "free_bytes", lambda _: 6000):  # enough for both logs, but one has become larger
        real = partition_copy._allocated_bytes
        with mock.patch.object(partition_copy, "_allocated_bytes", lambda *given: 1000 * real(*given)):
            outcome = clone(source, to, status=1)
    assert {row["reason_code"] for row in outcome.report["partitions"]} == {"no-space"}
    assert not list(to.glob("*/*"))
