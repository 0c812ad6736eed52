"""Cleaning of a partition in a task, and its contract with the driver."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from sediment.compaction import clean_log
from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.lock import place_run_token
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.cleaning.report import settled
from sediment.jobs.cleaning.splits import finish_splits
from sediment.jobs.cleaning.task import check_listed, clean_partition, start_partition
from sediment.jobs.rewriting.partition_task import InPlace
from sediment.jobs.rewriting.result import CleaningResult
from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.format.names import parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from tests.segments import NOW_MS, batch_bytes, write_segment

FORCED = CompactOptions(force=True, dry_run=False, from_start=False)
DRY_RUN = CompactOptions(force=True, dry_run=True, from_start=False)
AS_CONFIGURED = CompactOptions(force=False, dry_run=False, from_start=False)


def task_of(
    directory: Path, options: CompactOptions = FORCED, *, dirty: int | None = None, **config: float | None
) -> CleaningTask:
    listing = list_log(parse_partition_directory(directory.name)[0], directory, Fs())
    checkpoints = PartitionCheckpoints(first_dirty=dirty)
    return CleaningTask(
        listing, checkpoints, CompactionConfig(cleanup_policy=("compact",), **config), options, NOW_MS, "run"
    )


def write_three_segments(directory: Path) -> int:
    """Write two rolled segments and an empty active one; return the bytes of a rolled segment."""
    for base in (0, 10):
        path = write_segment(directory, base, [batch_bytes(base + n, "k", value=bytes(50)) for n in range(10)])
    write_segment(directory, 20)
    return path.stat().st_size


@pytest.mark.parametrize(
    ("options", "dirty", "config", "segments"),
    [
        (AS_CONFIGURED, None, {}, 2),
        (AS_CONFIGURED, 0, {}, 2),
        (AS_CONFIGURED, 10, {}, 0),
        (AS_CONFIGURED, 9, {}, 2),
        (AS_CONFIGURED, 25, {}, 2),
        (AS_CONFIGURED, 10, {"min_cleanable_dirty_ratio": 0.4}, 2),
        (AS_CONFIGURED, 20, {}, 0),
        (AS_CONFIGURED, 20, {"max_compaction_lag_ms": 1}, 2),
        (FORCED, 20, {}, 2),
        (CompactOptions(force=False, dry_run=False, from_start=True), 20, {}, 2),
    ],
)
def test_a_partition_weighs_what_its_cleaning_is_likely_to_read(tmp_path, options, dirty, config, segments):
    segment_bytes = write_three_segments(tmp_path / "t-0")
    assert task_of(tmp_path / "t-0", options, dirty=dirty, **config).expected_bytes() == segments * segment_bytes


def test_a_dry_run_of_segments_that_change_while_they_are_read_fails(tmp_path, monkeypatch):
    """`plan --exact` and `compact --dry-run` must not give figures of a mixture of two states."""
    write_three_segments(tmp_path / "t-0")
    swept = clean_log.sweep_log

    def changed_during(*given, **more):
        found = swept(*given, **more)
        write_segment(tmp_path / "t-0", 10, [batch_bytes(10, "other")])
        return found

    monkeypatch.setattr(clean_log, "sweep_log", changed_during)
    result = clean_partition(task_of(tmp_path / "t-0", DRY_RUN), "0")
    assert (result.reason_code, result.swap) == ("source-changed", None)
    assert "changed while they were read" in result.reason


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize(
    ("change", "is_refused"), [("grow", False), ("roll", False), ("truncate", True), ("start later", True)]
)
def test_a_dry_run_allows_that_the_active_segment_grows_and_rolls_but_not_that_the_log_is_replaced(
    tmp_path, segments, change, is_refused
):
    directory = tmp_path / "t-0"
    for base in range(0, 10 * segments, 10):
        active = write_segment(directory, base, [batch_bytes(base, "k"), batch_bytes(base + 1, "k")])
    task = task_of(directory, DRY_RUN)
    if change == "truncate":
        active.write_bytes(batch_bytes(base, "k"))
    elif change == "start later":
        for path in directory.glob(f"{base:020d}.*"):
            path.unlink()
        write_segment(directory, base + 5, [batch_bytes(base + 5, "k"), batch_bytes(base + 6, "k")])
    else:
        active.write_bytes(active.read_bytes() + batch_bytes(base + 2, "k"))
        if change == "roll":
            write_segment(directory, base + 3, [batch_bytes(base + 3, "k")])
    with pytest.raises(SourceChangedError) if is_refused else nullcontext():
        check_listed(task, Fs())


def test_a_dry_run_in_splits_of_segments_that_change_while_they_are_read_fails(tmp_path):
    write_three_segments(tmp_path / "t-0")
    task = task_of(tmp_path / "t-0", DRY_RUN)
    swap = clean_partition(task, "0").swap
    assert swap is not None
    assert finish_splits(task, CleaningResult(), swap, InPlace()).swap is swap
    write_segment(tmp_path / "t-0", 10, [batch_bytes(10, "other")])
    with pytest.raises(SourceChangedError, match="changed while they were read"):
        finish_splits(task, CleaningResult(), swap, InPlace())


def test_a_write_that_fails_during_the_next_partition_fails_its_own_and_leaves_no_part(tmp_path, monkeypatch):
    for number in range(2):
        write_three_segments(tmp_path / f"t-{number}")
    place_run_token(tmp_path, "run", Fs())
    written = Fs.write_new

    def full(self, path, chunks):
        if path.parent.name == "t-0" and path.name.count("timeindex"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return written(self, path, chunks)

    monkeypatch.setattr(Fs, "write_new", full)
    begun = [start_partition(task_of(tmp_path / f"t-{number}"), "0") for number in range(2)]
    first, second = [unfinished.finish() for unfinished in begun]
    assert first.failed and first.swap is None and "disk is full" in first.reason
    assert not second.failed and second.swap is not None
    assert not list((tmp_path / "t-0").glob("*.part"))
    assert len(list((tmp_path / "t-1").glob("*.part"))) == len(second.swap.parts())


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "1 batch got no delete horizon and keeps its"), (2, "2 batches got no delete horizon and keep")],
)
def test_the_report_says_where_tombstones_stayed_because_no_retention_is_stated(tmp_path, count, said):
    batches = [batch_bytes(n, "abc"[n], value=None) for n in range(count)]
    write_segment(tmp_path / "t-0", 0, [*batches, batch_bytes(count, "z"), batch_bytes(count + 1, "z")])
    write_segment(tmp_path / "t-0", count + 2)
    place_run_token(tmp_path, "run", Fs())
    task = task_of(tmp_path / "t-0", delete_retention_ms=None)
    report, _ = settled(task, clean_partition(task, "0"))
    assert (report.status, report.reason_code) == ("compacted", "tombstones-kept")
    assert said in report.reason
    assert "delete.retention.ms is not stated" in report.reason
    assert "--set t:delete.retention.ms=" in report.reason
    assert (report.messages_written, report.tombstones_waiting) == (count + 1, count)
    assert (report.first_delete_horizon_ms, report.last_delete_horizon_ms) == (None, None)


@pytest.mark.parametrize(("retention_ms", "value"), [(None, b"v"), (1000, None), (2**63 - 1, None)])
def test_the_report_says_nothing_where_no_tombstone_stayed_for_that(tmp_path, retention_ms, value):
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "a", value=value), batch_bytes(1, "z"), batch_bytes(2, "z")])
    write_segment(tmp_path / "t-0", 3)
    place_run_token(tmp_path, "run", Fs())
    task = task_of(tmp_path / "t-0", delete_retention_ms=retention_ms)
    report, _ = settled(task, clean_partition(task, "0"))
    assert (report.status, report.reason_code, report.reason) == ("compacted", None, None)
    horizon_ms = NOW_MS + 1000 if retention_ms == 1000 else None
    assert (report.first_delete_horizon_ms, report.last_delete_horizon_ms) == (horizon_ms, horizon_ms)
