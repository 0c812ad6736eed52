"""Batches cut at every offset, and logs that end at a cut or with markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.clone.log_end import batch_head, change_end
from sediment.engine.clone.partition_clone import note_producers
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptBatchError, UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch, parse_batch

PARTITION = TopicPartition("t", 0)
CLEAN = PartitionCheckpoints(clean_shutdown=True)
LIMIT_BYTES = 1 << 20
OPEN = 77


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_keeps_its_records_below_the_cut(codec: int) -> None:
    records = [Record(10 + 2 * n, NOW_MS + n, b"k%d" % n, b"value" * n) for n in range(6)]
    content = encode_batch(records, base_offset=10, codec=codec, producer_id=5, producer_epoch=0, base_sequence=3)
    for end in range(11, 21):
        found = parse_batch(batch_head(content, end, LIMIT_BYTES))
        assert found.is_valid()
        assert found.records() == tuple(record for record in records if record.offset < end)
        assert (found.base_offset, found.last_offset, found.producer_id) == (10, end - 1, 5)


def test_a_batch_that_claims_more_records_than_bytes_is_corrupt() -> None:
    content = bytearray(batch_bytes(0))
    content[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="record count"):
        batch_head(bytes(content), 1, LIMIT_BYTES)


def log_with_an_open_transaction(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    plain = [batch_bytes(n) for n in range(5)]
    transactional = batch_bytes(5, producer_id=OPEN, producer_epoch=2, transactional=True)
    write_segment(directory, 0, [*plain, transactional])
    assert note_producers(PARTITION, directory, 0, 6, Fs())
    return directory


def changed(directory: Path, **how: object) -> tuple[int, LoadedLog]:
    ended = change_end(PARTITION, directory, LogConfig(), CLEAN, Fs(), now_ms=NOW_MS, **how)  # type: ignore[arg-type]
    return ended, load_log(PARTITION, directory, LogConfig(), CLEAN, Fs(), now_ms=NOW_MS)


def test_an_open_transaction_ends_with_a_marker(tmp_path: Path) -> None:
    ended, log = changed(log_with_an_open_transaction(tmp_path), ends_transactions=True)
    assert ended == 1
    assert (log.log_end_offset, log.first_unstable_offset) == (7, None)
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in log.aborted] == [(OPEN, 5, 6)]


def test_a_decided_transaction_is_committed(tmp_path: Path) -> None:
    how = {"ends_transactions": True, "committing": frozenset({OPEN})}
    ended, log = changed(log_with_an_open_transaction(tmp_path), **how)
    assert (ended, log.log_end_offset, log.first_unstable_offset, log.aborted) == (1, 7, None, ())


def test_a_cut_removes_the_transaction_after_it(tmp_path: Path) -> None:
    ended, log = changed(log_with_an_open_transaction(tmp_path), until_offset=5, ends_transactions=True)
    assert (ended, log.log_end_offset) == (0, 5)
    assert OPEN not in log.producers.entries


def test_a_cut_at_or_past_the_end_changes_nothing(tmp_path: Path) -> None:
    directory = log_with_an_open_transaction(tmp_path)
    before = (directory / "00000000000000000000.log").read_bytes()
    _, log = changed(directory, until_offset=6)
    assert log.log_end_offset == 6
    assert (directory / "00000000000000000000.log").read_bytes() == before


def test_a_cut_below_the_log_start_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_segment(directory, 10, [batch_bytes(10)])
    with pytest.raises(UsageError):
        changed(directory, until_offset=9)
