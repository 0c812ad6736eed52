"""Producers of a copy: those without snapshots are not forgotten, and those of Kafka 0.11 name their data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sediment.engine.clone.partition_clone import note_producers, note_producers_of_bare_copy
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.producer_snapshots import parse_snapshot
from tests.compaction.test_last_data_batches import END, write_log
from tests.jobs.log_dirs import sediment
from tests.segments import NOW_MS, batch_bytes, write_segment

PARTITION = TopicPartition("t", 0)
CLEAN = PartitionCheckpoints(clean_shutdown=True)
OPEN = 77


def test_an_open_transaction_stays_open_in_a_copy_without_snapshots(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [batch_bytes(0), batch_bytes(1, producer_id=OPEN, transactional=True)])
    note_producers_of_bare_copy(PARTITION, directory, CLEAN, Fs())
    for _ in range(2):
        log = load_log(PARTITION, directory, LogConfig(), CLEAN, Fs(), now_ms=NOW_MS)
        assert log.producers.entries[OPEN].has_open_transaction
        assert log.producers.first_unstable_offset(log.log_end_offset, log_start_offset=0) == 1


def test_a_log_with_a_snapshot_or_after_a_crash_stays_as_it_is(tmp_path: Path) -> None:
    for name, checkpoints in (("t-0", CLEAN), ("u-0", PartitionCheckpoints(recovery_point=0))):
        directory = tmp_path / name
        write_segment(directory, 0, [batch_bytes(0, producer_id=OPEN)])
        if checkpoints is CLEAN:
            (directory / "00000000000000000001.snapshot").touch()
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        note_producers_of_bare_copy(TopicPartition(name[0], 0), directory, checkpoints, Fs())
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


# ----------------------------------------------------------------------------------------------- Kafka 0.11's snapshots
def named(directory: Path) -> tuple[int, int]:
    """Return the last offset and the offset delta of the producer in the snapshot at the log end."""
    (entry,) = parse_snapshot((directory / f"{END:020d}.snapshot").read_bytes())
    return entry.last_offset, entry.offset_delta


def test_a_snapshot_that_names_a_marker_is_rewritten_once_and_no_other_name_of_it(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0")
    os.link(directory / f"{END:020d}.snapshot", tmp_path / f"{END:020d}.snapshot")
    assert note_producers(PARTITION, directory, 0, END, Fs())
    assert (named(directory), named(tmp_path)) == ((1, 1), (2, 0))
    assert not note_producers(PARTITION, directory, 0, END, Fs())


def test_a_clone_and_an_adopted_directory_name_the_data_and_the_source_stays(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "data" / "t-0")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    for name, more in (("copy", ()), ("linked", ("--link=hard",))):
        done = sediment("clone", tmp_path / "data", "--to", tmp_path / name, *more)
        assert done.status == 0, done.stderr
        assert named(tmp_path / name / "t-0") == (1, 1)
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    shutil.copytree(tmp_path / "data", tmp_path / "adopted")
    done = sediment("adopt", tmp_path / "adopted", "--yes")
    assert done.status == 0, done.stderr
    assert named(tmp_path / "adopted" / "t-0") == (1, 1)
