"""Copies of live logs: the future log has the batches, offsets, epochs and producers of the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.engine.live.future_log import copy_next, copy_rest
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_manager import LogManager
from sediment.segment_io.errors import SedimentError
from tests.engine.live_logs import batch
from tests.engine.managed import DELETED, T0, append, records_of, running, topic_config
from tests.twin.batches import ControlType, encode_marker

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    with running(tmp_path / "a", tmp_path / "b", topic=DELETED) as found:
        yield found


def log_of(manager: LogManager) -> PartitionLog:
    return manager.create_log(T0, log_dir=manager.directories()[0].path, topic_id=TOPIC_ID)


def future_of(manager: LogManager) -> PartitionLog:
    return manager.create_future_log(T0, manager.directories()[1].path)


def content(log: PartitionLog) -> bytes:
    """Return all bytes of a log."""
    return b"".join((log.directory / f"{base:020d}.log").read_bytes() for base in log.base_offsets)


def offsets(log: PartitionLog) -> tuple[int, int, int]:
    return log.log_start_offset, log.high_watermark, log.log_end_offset


def test_a_copy_has_the_same_batches_segments_offsets_and_epochs(manager: LogManager) -> None:
    log = log_of(manager)
    append(log, *((str(number), "v") for number in range(7)))
    log.append_as_leader(batch(("k", "v")), 4)
    future = future_of(manager)
    copy_rest(log, future)
    assert content(future) == content(log)
    assert future.base_offsets == log.base_offsets
    assert offsets(future) == offsets(log)
    assert future.leader_epochs == log.leader_epochs
    assert future.topic_id == TOPIC_ID


def test_a_chunk_has_at_least_one_batch_and_at_most_the_limit(manager: LogManager) -> None:
    log = log_of(manager)
    append(log, ("a", "1"), ("b", "2"), ("c", "3"))
    future = future_of(manager)
    one = log.size_bytes // 3
    assert copy_next(log, future, 1) == one
    assert copy_next(log, future, 2 * one) == 2 * one
    assert copy_next(log, future) == 0


def test_a_copy_of_a_log_that_starts_inside_a_batch_starts_there(manager: LogManager) -> None:
    log = log_of(manager)
    log.append_as_leader(batch(("a", "1"), ("b", "2"), ("c", "3")), 0)
    append(log, ("d", "4"))
    log.delete_records(1)
    future = future_of(manager)
    copy_rest(log, future)
    assert offsets(future) == offsets(log) == (1, 4, 4)
    assert records_of(future) == records_of(log)


def test_a_copy_follows_a_log_start_that_rises_above_its_end(manager: LogManager) -> None:
    log = log_of(manager)
    append(log, *((str(number), "v") for number in range(9)))
    future = future_of(manager)
    copy_next(log, future, 1)
    log.delete_records(5)
    log.delete_segments_below_log_start()
    copy_rest(log, future)
    assert offsets(future) == offsets(log) == (5, 9, 9)
    assert records_of(future) == records_of(log)


def test_a_copy_of_a_log_without_records_continues_at_its_end(manager: LogManager) -> None:
    log = log_of(manager)
    append(log, ("a", "1"), ("b", "2"))
    log.delete_records(-1)
    future = future_of(manager)
    copy_rest(log, future)
    assert offsets(future) == (2, 2, 2)


def test_a_copy_ends_at_the_log_end_even_if_the_last_records_were_removed(manager: LogManager) -> None:
    log = log_of(manager)
    append(log, ("a", "1"))
    log.skip_to(9)
    log.maybe_increment_high_watermark()
    future = future_of(manager)
    copy_rest(log, future)
    assert offsets(future) == offsets(log) == (0, 9, 9)


def test_batches_that_span_more_offsets_than_a_segment_are_copied(manager: LogManager) -> None:
    log = log_of(manager)
    for base in (0, 1 << 31, 1 << 33):
        log.append_as_follower(batch(at=base), 0)
    log.maybe_increment_high_watermark()
    future = future_of(manager)
    copy_rest(log, future)
    assert content(future) == content(log)


def test_a_copy_has_the_producers_and_aborted_transactions(manager: LogManager) -> None:
    log = log_of(manager)
    for pid in (1, 2):
        guard = log.maybe_start_transaction_verification(pid, 0, 0)
        log.append_as_leader(batch(("k", "v"), pid=pid, seq=0, tx=True), 0, verification_guard=guard)
    marker = encode_marker(
        ControlType.ABORT, offset=0, timestamp=1, leader_epoch=0, producer_id=1, producer_epoch=0, coordinator_epoch=0
    )
    log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR, transaction_version=1)
    log.maybe_increment_high_watermark()
    future = future_of(manager)
    copy_rest(log, future)
    assert future.producers == log.producers
    assert future.last_stable_offset == log.last_stable_offset == 1
    now_ms = manager.clock.now_ms()
    views = [each.view(first_dirty_checkpoint=None, now_ms=now_ms) for each in (log, future)]
    assert views[0].aborted == views[1].aborted != ()


def test_a_corrupt_batch_is_not_copied(manager: LogManager) -> None:
    log = log_of(manager)
    append(log, *((str(number), "v") for number in range(4)))
    path = log.directory / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.seek(68)
        file.write(b"\xff")
    future = future_of(manager)
    with pytest.raises(SedimentError):
        copy_rest(log, future)
    assert future.log_end_offset == 0


def test_retention_leaves_a_future_log_alone(tmp_path: Path) -> None:
    expires = topic_config("delete", retention_ms=1)
    with running(tmp_path / "a", tmp_path / "b", topic=expires) as manager:
        log = log_of(manager)
        append(log, *((str(number), "v") for number in range(7)), timestamp_ms=1)
        future = future_of(manager)
        copy_rest(log, future)
        manager.start_deleting()
        assert manager.delete_old_segments() == len(log.base_offsets) + 2
        assert future.log_start_offset == 0
        copy_rest(log, future)
        assert offsets(future) == offsets(log)
