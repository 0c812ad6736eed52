"""Ids of idempotent producers: the server never assigns an id twice, even after a crash."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sediment.segment_io.errors import CommitStateUnknownError
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live.producer_ids import ProducerIdManager
from tests.engine.live_logs import batch
from tests.server.live.nodes import NODE, live, new_node, produce
from tests.waiting import wait_until


class Writer:
    """A writer that keeps the next ids of its records, and fails while `is_broken`."""

    def __init__(self) -> None:
        self.next_ids: list[int] = []
        self.is_broken = False

    def append(self, values: list[bytes]) -> None:
        if self.is_broken:
            raise CommitStateUnknownError("broken")
        self.next_ids += [decode_metadata_record(value).next_producer_id for value in values]

    def close(self) -> None:
        return None


def test_a_block_is_durable_before_its_first_id_is_given_out() -> None:
    writer = Writer()
    ids = ProducerIdManager(NODE, 3000, writer)
    assert writer.next_ids == []
    given = [ids.generate() for _ in range(1001)]
    assert given == list(range(3000, 4001))
    assert writer.next_ids == [4000, 5000]


def test_threads_get_different_ids() -> None:
    ids = ProducerIdManager(NODE, 0, Writer())
    given: list[int] = []
    threads = [threading.Thread(target=lambda: given.extend(ids.generate() for _ in range(500))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(3000))


def test_without_a_durable_block_there_is_no_id() -> None:
    writer = Writer()
    ids = ProducerIdManager(NODE, 0, writer)
    writer.is_broken = True
    with pytest.raises(CommitStateUnknownError):
        ids.generate()
    writer.is_broken = False
    assert ids.generate() == 0


def test_ids_go_on_above_those_of_the_metadata_and_of_the_logs(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1}, next_producer_id=2000)
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with live(path) as server, server.connect() as client:
        for wanted in (2000, 2001):
            answer = client.ask(request, 5)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, wanted, 0)
        assert produce(client, batch(pid=7300, ts=time.time_ns() // 1_000_000)).error_code == ErrorCode.NONE
    metadata = read_bootstrap_checkpoint(path, Fs())
    assert metadata is not None and metadata.next_producer_id == 3000
    with live(path) as server, server.connect() as client:
        assert client.ask(request, 5).producer_id == 8000


@pytest.mark.parametrize(("name", "code"), [("t", ErrorCode.NOT_COORDINATOR), ("", ErrorCode.INVALID_REQUEST)])
def test_a_transactional_producer_needs_a_name_and_a_coordinator(tmp_path: Path, name: str, code: ErrorCode) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
    with live(path) as server, server.connect() as client:
        wait_until(lambda: client.ask(request, 5).error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        answer = client.ask(request, 5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


def test_no_id_below_a_reserved_one_is_assigned() -> None:
    writer = Writer()
    ids = ProducerIdManager(NODE, 1000, writer)  # type: ignore[arg-type]
    assert ids.generate() == 1000
    ids.reserve(1500)
    assert ids.generate() == 1500
    ids.reserve(1200)
    assert ids.generate() == 1501
    ids.reserve(4321)
    assert (ids.generate(), writer.next_ids) == (4321, [2000, 5321])
