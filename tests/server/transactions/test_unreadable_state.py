"""Transactional ids whose partition of `__transaction_state` cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.live.partition import Partition
from tests.server.live.nodes import LiveServer, live, new_node
from tests.server.transactions.producers import NEW_END, NEW_PRODUCE, Producer
from tests.waiting import wait_until

TOPICS = {"t": 1, "__consumer_offsets": 1, "__transaction_state": 2}
NONE, FAILED = ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR
NAMES = {coordinator_partition(name, 2): name for name in "xy"}
"""An id for each partition."""


def _flip_a_byte(path: Path) -> None:
    (log,) = (path / "__transaction_state-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)


def _append_an_unknown_value(server: LiveServer) -> None:
    partition = server.server.catalog.partition("__transaction_state", 0)
    assert isinstance(partition, Partition)
    key = b"\0\0" + bytes(m.TransactionLogKey(transactional_id=NAMES[0]).to_bytes(0))
    records = [NewRecord(0, key, b"\0\x09later")]
    partition.append_of_coordinator(build_batch(records, BatchHead(base_offset=0, leader_epoch=0)))


@pytest.mark.parametrize("what", ["a corrupt batch", "a value of a later version"])
def test_ids_of_an_unreadable_partition_get_an_error_and_never_another_state(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    producers = {}
    with live(path) as server, server.connect() as client:
        for number, name in NAMES.items():
            producer = producers[number] = Producer(client, name)
            assert producer.init() is NONE
            assert producer.send(version=NEW_PRODUCE) is NONE
        if what != "a corrupt batch":
            _append_an_unknown_value(server)
    if what == "a corrupt batch":
        _flip_a_byte(path)
    with live(path) as server, server.connect() as client:
        for producer in producers.values():
            producer.client = client
        lost, other = producers[0], producers[1]
        wait_until(lambda: other.state().error_code == NONE)
        assert "__transaction_state-0 cannot be read" in caplog.text
        assert lost.init(wait=False) is FAILED
        assert lost.init(wait=False, producer_id=lost.producer_id, producer_epoch=lost.epoch) is FAILED
        assert set(lost.add(0).values()) == {FAILED}
        assert set(lost.add_topics({"t": [0]}, version=4, verify_only=True).values()) == {FAILED}
        assert lost.send(version=NEW_PRODUCE) is FAILED
        assert lost.add_offsets() is FAILED
        assert lost.commit_offset(1, version=5) is FAILED
        assert lost.end(version=NEW_END) is FAILED
        assert lost.state().error_code == FAILED
        assert other.end(version=NEW_END) is NONE
        wait_until(other.has_ended)
