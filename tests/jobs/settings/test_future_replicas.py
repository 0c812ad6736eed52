"""What a broker's start makes of a future replica, as Kafka 4.2.0 did (one case: tests/e2e/test_recover.py)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.future_replicas import FutureReplica, future_replicas
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints
from tests.jobs.log_dirs import sediment
from tests.segments import batch_bytes, write_segment

PARTITION = TopicPartition("t", 0)
COPY = f"t-0.{'0' * 32}-future"
IDS: Mapping[str, uuid.UUID] = {
    "a": uuid.UUID(int=1 << 70),
    "b": uuid.UUID(int=1 << 71),
    "elsewhere": uuid.UUID(int=9**30),
}


def judged(
    tmp_path: Path,
    *,
    log_in: str | None,
    assigned: str | None,
    batches: int = 3,
    torn: bool = False,
    log_batches: int = 3,
) -> FutureReplica:
    """Judge a copy in b of a log in a, in b or in neither; the metadata names one of the directories, or none."""
    for name in "ab":
        (tmp_path / name).mkdir()
    copy = write_segment(tmp_path / "b" / COPY, 0, [batch_bytes(offset) for offset in range(batches)])
    if torn:
        copy.write_bytes(copy.read_bytes()[:-5])
    if log_in is not None:
        write_segment(tmp_path / log_in / str(PARTITION), 0, [batch_bytes(offset) for offset in range(log_batches)])
    metadata = None
    if assigned is not None:
        metadata = ClusterMetadata(
            {"t": "x"}, {}, {}, 1, replicas={"t": {0: (1,)}}, directory_ids={"t": {0: (IDS[assigned],)}}
        )
    nothing = LogDirCheckpoints(None, None, None, None, clean_shutdown=True)
    directories = [
        SelectedDirectory(
            tmp_path / name,
            MetaProperties(1, "c", 1, format_uuid(IDS[name].bytes)),
            (),
            nothing,
            metadata=metadata,
            all_partitions=(PARTITION,) if name == log_in else (),
        )
        for name in "ab"
    ]
    (found,) = future_replicas(directories, Fs())[tmp_path / "b"]
    assert future_replicas(directories, Fs())[tmp_path / "a"] == ()
    assert (found.name, found.partition, found.log_dir) == (COPY, PARTITION, tmp_path / "b")
    return found


@pytest.mark.parametrize(
    ("log_in", "assigned", "is_dangerous", "what"),
    [
        ("b", "b", True, "which is in the same directory, so a broker does not start"),
        ("b", "a", False, "which is in the same directory, so it serves nothing"),
        ("b", None, False, "which is in the same directory, so it serves nothing"),
        ("a", "a", False, "which a broker completes after its start"),
        ("a", None, False, "which a broker completes after its start"),
        ("a", "b", False, "at the next start of a broker, as the metadata says"),
        (None, "b", False, "no directory of this run has the log itself"),
        (None, None, False, "no directory of this run has the log itself"),
        (None, "a", True, "a broker would create an empty log, and truncate this copy to it"),
        (None, "elsewhere", True, "a broker would create an empty log, and truncate this copy to it"),
    ],
)
def test_a_whole_copy(tmp_path: Path, log_in: str | None, assigned: str | None, is_dangerous: bool, what: str) -> None:
    found = judged(tmp_path, log_in=log_in, assigned=assigned)
    assert what in found.what and "torn" not in found.what
    assert found.is_dangerous is is_dangerous


def test_a_torn_copy_that_would_become_the_log_loses_records(tmp_path: Path) -> None:
    found = judged(tmp_path, log_in="a", assigned="b", torn=True)
    assert found.is_dangerous and found.advice.startswith("move the copy away before a broker starts")
    assert f"ends at offset 2, and the log in {tmp_path / 'a'} ends at 3" in found.what
    assert found.what.endswith(", and its last batch is torn")


def test_a_torn_copy_of_a_log_that_stays_loses_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, log_in="a", assigned="a", torn=True)
    assert not found.is_dangerous and found.what.endswith(", and its last batch is torn")


def test_a_copy_without_a_segment_is_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, log_in="a", assigned="a")
    (found.log_dir / COPY / f"{0:020d}.log").unlink()
    directory = SelectedDirectory(
        found.log_dir, None, (), LogDirCheckpoints(None, None, None, None, clean_shutdown=True)
    )
    (alone,) = future_replicas([directory, replace(directory, path=tmp_path / "a")], Fs())[found.log_dir]
    assert "no directory of this run has the log itself" in alone.what


def test_plan_doctor_and_recover_say_it(tmp_path: Path) -> None:
    for folder in ("t-0", COPY):
        write_segment(tmp_path / "logs" / folder, 0, [batch_bytes(0)])
    log_dir = tmp_path / "logs"
    (warning,) = sediment("plan", log_dir, "--json").partitions()["t-0"]["warnings"]
    assert warning.startswith(f"{COPY} is a copy of t-0, which is in the same directory, so it serves nothing; ")
    checks = sediment("doctor", log_dir, "--json").report["checks"]
    assert [check["status"] for check in checks if check["name"] == "future-replicas"] == ["warning"]
    done = sediment("recover", log_dir, "--dry-run", "--json")
    assert done.status == 0
    assert done.partitions()[COPY]["warnings"] == [f"it {warning.removeprefix(f'{COPY} ')}"]
