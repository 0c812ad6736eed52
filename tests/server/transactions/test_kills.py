"""A server that is killed with SIGKILL at each point of the end of a transaction, and its successor."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live.partition import Partition
from tests.consumers import COMMITTED, confluent_records
from tests.served import serving
from tests.server.live.nodes import live, new_node
from tests.server.network.listeners import Client
from tests.server.transactions import killed_server
from tests.server.transactions.producers import NEW_END, NEW_PRODUCE, Producer, committed_offset
from tests.waiting import LIMIT_SECONDS, wait_until

TOPICS = {"t": 2, "__consumer_offsets": 1, "__transaction_state": 2}


def ended_until(point: str, path: Path, *, commit: bool) -> Producer:
    """End a transaction in a server process that kills itself at a point; return the producer before the end."""
    with serving(path, under=[sys.executable, str(killed_server.__file__), point]) as served:
        with Client.to(int(served.bootstrap.rpartition(":")[2])) as client:
            producer = Producer(client)
            assert producer.init() is ErrorCode.NONE
            for number in range(2):
                assert producer.send(number, version=NEW_PRODUCE) is ErrorCode.NONE
            assert producer.commit_offset(5, version=5) is ErrorCode.NONE
            before = Producer(client, producer_id=producer.producer_id, epoch=producer.epoch)
            with suppress(OSError, EOFError, AssertionError):  # the answer may be lost
                producer.end(commit=commit, version=NEW_END)
        served.is_ended = True
        assert served.process.wait(LIMIT_SECONDS) == -signal.SIGKILL
    return before


@pytest.mark.parametrize(
    ("point", "commit"), [*((each, True) for each in killed_server.POINTS), ("marked once", False)]
)
def test_a_decision_outlives_a_kill_at_every_point(tmp_path: Path, point: str, commit: bool) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    producer = ended_until(point, path, commit=commit)
    with live(path) as server, server.connect() as client:
        producer.client = client
        decided = "CompleteCommit" if commit else "CompleteAbort"
        wait_until(lambda: producer.state().transaction_state == decided)
        found = confluent_records(server.bootstrap, ["t-0", "t-1"], COMMITTED)
        assert {name: [seen.value for seen in records] for name, records in found.items()} == dict.fromkeys(
            ["t-0", "t-1"], [b"v"] if commit else []
        )
        for number in range(2):
            partition = server.server.catalog.partition("t", number)
            assert isinstance(partition, Partition)
            assert partition.last_stable_offset == partition.high_watermark
        assert committed_offset(client, stable=True) == (5 if commit else -1, ErrorCode.NONE)
        # The client repeats the request whose answer may have been lost.
        ids = producer.producer_id, producer.epoch
        assert producer.end(commit=not commit, version=NEW_END) is ErrorCode.INVALID_TXN_STATE
        assert producer.end(commit=commit, version=NEW_END) is ErrorCode.NONE
        assert (producer.producer_id, producer.epoch) == (ids[0], ids[1] + 1)
        assert producer.send(0, "next", version=NEW_PRODUCE) is ErrorCode.NONE
        assert producer.end(version=NEW_END) is ErrorCode.NONE
