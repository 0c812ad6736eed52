"""Producers of a copy without producer snapshots: a load after a clean stop must not forget them."""

from __future__ import annotations

from pathlib import Path

from sediment.engine.clone.partition_clone import note_producers_of_bare_copy
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
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
