"""Appends of coordinators that the disk does not take in time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live import delayed_append
from tests.server.live.nodes import LiveServer, SlowDisk, live, new_node
from tests.server.transactions.producers import Producer, committed_offset, write_markers
from tests.waiting import wait_until

TOPICS = {"t": 2, "__consumer_offsets": 1, "__transaction_state": 1}
NONE = ErrorCode.NONE


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def server(tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(delayed_append, "REQUEST_TIMEOUT_MS", 100)
    with live(new_node(tmp_path / "data", TOPICS), fs=disk, flush_acks=True) as running:
        try:
            yield running
        finally:
            disk.is_fast.set()


def test_a_decision_that_is_not_on_disk_in_time_is_not_taken_and_can_be_repeated(
    server: LiveServer, disk: SlowDisk
) -> None:
    with server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        producer.begin(0)
        disk.is_fast.clear()
        assert producer.end() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert producer.state().transaction_state == "Ongoing"
        assert Producer(client, "other").init() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.is_fast.set()
        assert producer.end(commit=False) is NONE
        wait_until(producer.has_ended)
        assert producer.state().transaction_state == "CompleteAbort"
        assert Producer(client, "other").init() is NONE


def test_markers_and_offsets_that_are_not_on_disk_in_time_get_errors(server: LiveServer, disk: SlowDisk) -> None:
    with server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        assert producer.add_offsets() is NONE
        disk.is_fast.clear()
        assert producer.commit_offset(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = write_markers(client, {"t": [0, 1], "gone": [0]}, producer_id=77, epoch=0)
        assert found == {
            ("t", 0): ErrorCode.REQUEST_TIMED_OUT,
            ("t", 1): ErrorCode.REQUEST_TIMED_OUT,
            ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        disk.is_fast.set()
        assert producer.commit_offset(2) is NONE
        assert producer.end() is NONE
        wait_until(producer.has_ended)
        assert committed_offset(client, stable=True) == (2, NONE)
