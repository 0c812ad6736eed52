"""Removing segments: the renamed files, their order, and the remaining files."""

from __future__ import annotations

from pathlib import Path

from sediment.engine.directory.delete_segments import (
    bases_after,
    expire_log,
    mark_deleted,
    remove_deleted,
    roll_empty,
)
from sediment.retention.policy import RetentionConfig, plan_view
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import LogView, open_view
from tests.faults.faulty_fs import FaultyFs
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot
from tests.twin.indexes import AbortedTransaction

PARTITION = TopicPartition("topic", 0)
EVERYTHING = RetentionConfig(retention_ms=0)


def make(directory: Path) -> LogView:
    for base in (0, 5, 10):
        aborted = [AbortedTransaction(1, base, base + 1, base)] if base == 5 else []
        write_segment(directory, base, [batch_bytes(base, "abcde")], aborted=aborted)
        write_snapshot(directory, base)
    return view_of(directory)


def view_of(directory: Path) -> LogView:
    fs = Fs()
    return open_view(
        list_log(PARTITION, directory, fs),
        PartitionCheckpoints(clean_shutdown=True),
        fs,
        now_ms=NOW_MS,
        producer_id_expiration_ms=86_400_000,
    )


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_files_are_renamed_segment_by_segment_in_the_given_order_each_log_first(tmp_path):
    make(tmp_path)
    fs = FaultyFs()
    renamed = mark_deleted(tmp_path, [5, 0], fs)
    kinds = [".log", ".index", ".timeindex", ".txnindex"]
    assert list(renamed) == [f"{5:020d}{kind}.deleted" for kind in kinds] + [
        f"{0:020d}{kind}.deleted" for kind in kinds[:3]
    ]
    assert [entry.split()[0] for entry in fs.log] == ["rename"] * 7 + ["sync"]
    assert {f"{0:020d}.snapshot", f"{5:020d}.snapshot", f"{10:020d}.log"} <= names(tmp_path)
    remove_deleted(tmp_path, renamed, fs)
    assert not [name for name in names(tmp_path) if name.endswith(".deleted")]


def test_where_nothing_is_there_nothing_is_renamed_and_nothing_synced(tmp_path):
    fs = FaultyFs()
    assert mark_deleted(tmp_path, [7], fs, kinds=(SegmentFileKind.SNAPSHOT,)) == ()
    assert fs.operations == 0


def test_a_rolled_segment_has_the_owner_and_mode_of_the_log_and_comes_after_its_indexes(tmp_path):
    view = make(tmp_path)
    (tmp_path / f"{10:020d}.log").chmod(0o600)
    fs = FaultyFs()
    roll_empty(view, fs)
    renames = [entry.split()[2] for entry in fs.log if entry.startswith("rename")]
    assert renames == [f"{15:020d}{kind}" for kind in (".snapshot", ".timeindex", ".index", ".log")]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in renames} == {0o600}
    assert view_of(tmp_path).log_end_offset == 15


def test_a_snapshot_that_a_clean_stop_left_at_the_log_end_stays(tmp_path):
    make(tmp_path)
    snapshot = write_snapshot(tmp_path, 15)
    inode = snapshot.stat().st_ino
    roll_empty(view_of(tmp_path), Fs())
    assert snapshot.stat().st_ino == inode


def test_a_log_of_which_everything_goes_keeps_its_offsets_and_one_empty_segment(tmp_path):
    view = make(tmp_path)
    plan = plan_view(view, EVERYTHING, now_ms=NOW_MS + 1)
    assert bases_after(view, plan) == (15,)
    roll_empty(view, Fs())
    expire_log(view, plan, Fs())
    assert names(tmp_path) == {f"{15:020d}{kind}" for kind in (".log", ".index", ".timeindex", ".snapshot")}
    assert view_of(tmp_path).log_start_offset == view_of(tmp_path).log_end_offset == 15


def test_without_a_durable_log_start_each_segment_goes_durably_before_the_next(tmp_path):
    view = make(tmp_path)
    plan = plan_view(view, RetentionConfig(retention_ms=-1, retention_bytes=1), now_ms=NOW_MS)
    fs = FaultyFs()
    expire_log(view, plan, fs, log_start_is_durable=False)
    logs = [entry for entry in fs.log if ".log" in entry or entry.startswith("sync")]
    first, second = (
        next(place for place, entry in enumerate(logs) if entry.startswith(f"rename {base:020d}.log"))
        for base in (0, 5)
    )
    assert any(entry.startswith("sync") for entry in logs[first:second])
    assert any(entry.startswith(f"unlink {0:020d}.log") for entry in logs[first:second])
    assert [segment.base_offset for segment in view_of(tmp_path).listing.segments] == [10]
