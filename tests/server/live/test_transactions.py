"""Transactional producers of Kafka's clients on a live server, and transactions that outlive a kill of the server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from kafka import KafkaProducer

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live.partition import Partition
from tests.consumers import COMMITTED, UNCOMMITTED, committed_offsets, confluent_consumer, confluent_records, ends
from tests.served import Served, serving
from tests.server.live.nodes import LiveServer, live, new_node
from tests.server.transactions.producers import NEW_END, NEW_PRODUCE, Producer, committed_offset
from tests.waiting import LIMIT_SECONDS, wait_until

TOPICS = {"t": 2, "out": 1, "__consumer_offsets": 1, "__transaction_state": 2}
PARTITIONS = ["t-0", "t-1"]
QUICK = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 20}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveServer]:
    with live(new_node(tmp_path / "data", TOPICS), topic_config=None, flush_acks=True) as server:
        yield server


def producer_at(bootstrap: str, name: str = "x", **config: Any) -> confluent.Producer:
    made = confluent.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0, **config}
    )
    made.init_transactions(LIMIT_SECONDS)
    return made


def values(bootstrap: str, isolation: str = COMMITTED, names: list[str] = PARTITIONS) -> dict[str, list[Any]]:
    found = confluent_records(bootstrap, names, isolation)
    return {name: [seen.value for seen in records] for name, records in found.items()}


def write(producer: confluent.Producer, value: str) -> None:
    """Write a value to both partitions, in a transaction."""
    producer.begin_transaction()
    for number in range(2):
        producer.produce("t", value, partition=number)


# -------------------------------------------------------------------------------------------------------------- clients
def test_readers_of_committed_records_see_whole_transactions_only(served: LiveServer) -> None:
    producer = producer_at(served.bootstrap)
    for number in range(6):
        write(producer, str(number))
        assert producer.flush(LIMIT_SECONDS) == 0
        if number % 2:
            producer.abort_transaction(LIMIT_SECONDS)
        else:
            producer.commit_transaction(LIMIT_SECONDS)
    python = KafkaProducer(bootstrap_servers=served.bootstrap, transactional_id="python")
    python.init_transactions()
    for value, end in ((b"kept", python.commit_transaction), (b"dropped", python.abort_transaction)):
        python.begin_transaction()
        for number in range(2):
            python.send("t", value, partition=number).get(LIMIT_SECONDS)
        end()
    python.close()
    kept, every = [b"0", b"2", b"4", b"kept"], [b"0", b"1", b"2", b"3", b"4", b"5", b"kept", b"dropped"]
    assert values(served.bootstrap) == dict.fromkeys(PARTITIONS, kept)
    assert values(served.bootstrap, UNCOMMITTED) == dict.fromkeys(PARTITIONS, every)


def test_readers_of_committed_records_find_the_end_of_a_partition_where_a_transaction_is_open(
    served: LiveServer,
) -> None:
    producer = producer_at(served.bootstrap)
    write(producer, "done")
    producer.commit_transaction(LIMIT_SECONDS)
    write(producer, "open")
    assert producer.flush(LIMIT_SECONDS) == 0
    assert ends(served.bootstrap, PARTITIONS) == dict.fromkeys(PARTITIONS, (0, 3, 2))
    producer.abort_transaction(LIMIT_SECONDS)
    assert ends(served.bootstrap, PARTITIONS) == dict.fromkeys(PARTITIONS, (0, 4, 4))


def test_a_second_producer_with_the_same_id_fences_the_first(served: LiveServer) -> None:
    first = producer_at(served.bootstrap)
    write(first, "first")
    assert first.flush(LIMIT_SECONDS) == 0
    second = producer_at(served.bootstrap)
    write(second, "second")
    second.commit_transaction(LIMIT_SECONDS)
    with pytest.raises(confluent.KafkaException) as fenced:
        first.commit_transaction(LIMIT_SECONDS)
    assert fenced.value.args[0].code() in (confluent.KafkaError._FENCED, confluent.KafkaError.PRODUCER_FENCED)
    assert values(served.bootstrap) == {"t-0": [b"second"], "t-1": [b"second"]}


def test_records_and_offsets_of_a_transformation_are_committed_together(served: LiveServer) -> None:
    source = confluent.Producer({"bootstrap.servers": served.bootstrap})
    for number in range(10):
        source.produce("t", str(number), partition=0)
    assert source.flush(LIMIT_SECONDS) == 0
    for first, commits in ((0, False), (0, True), (5, True)):
        producer = producer_at(served.bootstrap)
        with confluent_consumer(served.bootstrap, group_id="transform", isolation_level=COMMITTED) as consumer:
            assert max(committed_offsets(served.bootstrap, "transform", ["t-0"])["t-0"][0], 0) == first
            consumer.assign([confluent.TopicPartition("t", 0, first)])
            producer.begin_transaction()
            for _ in range(5):
                message = consumer.poll(LIMIT_SECONDS)
                assert message is not None and message.error() is None
                producer.produce("out", message.value() + b"!", partition=0)
            producer.send_offsets_to_transaction(
                consumer.position([confluent.TopicPartition("t", 0)]), consumer.consumer_group_metadata()
            )
            if commits:
                producer.commit_transaction(LIMIT_SECONDS)
            else:
                producer.abort_transaction(LIMIT_SECONDS)
    wait_until(lambda: committed_offsets(served.bootstrap, "transform", ["t-0"])["t-0"][0] == 10)
    assert values(served.bootstrap, names=["out-0"]) == {"out-0": [b"%d!" % number for number in range(10)]}


# -------------------------------------------------------------------------------------------------------- kill and stop
def partition_of(server: LiveServer, number: int = 0) -> Partition:
    partition = server.server.catalog.partition("t", number)
    assert isinstance(partition, Partition)
    return partition


def killed_in_state(path: Path, copy: Path, state: str, *, flush_acks: bool) -> Producer:
    """Bring a transaction into `state`, and copy the directory as a kill of the server would leave it."""
    with live(path, flush_acks=flush_acks) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init(timeout_ms=300) is ErrorCode.NONE
        if state != "Empty":
            for number in range(2):
                assert producer.send(number, version=NEW_PRODUCE) is ErrorCode.NONE
            assert producer.commit_offset(5, version=5) is ErrorCode.NONE
        is_prepared = state.startswith("Prepare")
        # While the log is locked, no marker is appended to it.
        locked = partition_of(server).log.lock
        if is_prepared:
            locked.acquire()
        try:
            if state not in ("Empty", "Ongoing"):
                assert producer.end(commit=state.endswith("Commit"), version=NEW_END) is ErrorCode.NONE
                wait_until(lambda: producer.state().transaction_state == state)
            assert producer.state().transaction_state == state
            shutil.copytree(path, copy)
        finally:
            if is_prepared:
                locked.release()
    return producer


STATES = {
    "Empty": "Empty",
    "Ongoing": "CompleteAbort",
    "PrepareCommit": "CompleteCommit",
    "PrepareAbort": "CompleteAbort",
    "CompleteCommit": "CompleteCommit",
    "CompleteAbort": "CompleteAbort",
}


@pytest.mark.parametrize("flush_acks", [False, True], ids=["written", "flushed"])
@pytest.mark.parametrize("state", STATES)
def test_a_transaction_reaches_its_end_after_a_kill(tmp_path: Path, state: str, flush_acks: bool) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    producer = killed_in_state(path, tmp_path / "copy", state, flush_acks=flush_acks)
    with live(tmp_path / "copy", flush_acks=flush_acks, **QUICK) as server, server.connect() as client:
        producer.client = client
        wait_until(lambda: producer.state().transaction_state == STATES[state])
        found = values(server.bootstrap)
        is_committed = STATES[state] == "CompleteCommit"
        assert found == dict.fromkeys(PARTITIONS, [b"v"] if is_committed else [])
        for number in range(2):
            partition = partition_of(server, number)
            assert partition.last_stable_offset == partition.high_watermark
        assert committed_offset(client, stable=True) == (5 if is_committed else -1, ErrorCode.NONE)
        again = Producer(client)
        assert again.init() is ErrorCode.NONE
        assert (again.producer_id, again.epoch > producer.epoch) == (producer.producer_id, True)
        assert again.send(value="next", version=NEW_PRODUCE) is ErrorCode.NONE
        assert again.end(version=NEW_END) is ErrorCode.NONE
        wait_until(again.has_ended)
        assert values(server.bootstrap)["t-0"][-1] == b"next"


class Load:
    """Transactions until the server is killed; `committed` are the values whose commit was acknowledged."""

    def __init__(self) -> None:
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self._next = 0

    def run(self, served: Served, count: int) -> None:
        """Run transactions, and kill the server in the middle of one; the next run begins with its successor."""
        producer = producer_at(served.bootstrap)
        for number in range(count):
            value = str(self._next)
            self._next += 1
            write(producer, value)
            if number == count - 1:
                producer.flush(LIMIT_SECONDS)
                served.kill()
            elif number % 3 == 2:
                producer.abort_transaction(LIMIT_SECONDS)
                self.aborted.append(value.encode())
            else:
                producer.commit_transaction(LIMIT_SECONDS)
                self.committed.append(value.encode())


@pytest.mark.parametrize("options", [(), ("--flush-acks",)], ids=["written", "flushed"])
def test_no_committed_transaction_is_lost_or_torn_when_the_server_is_killed(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    load = Load()
    for _ in range(2):
        with serving(path, *options) as served:
            load.run(served, 8)
    with live(path, topic_config=None) as server:
        producer_at(server.bootstrap)  # aborts the transaction that the kill left open
        found = values(server.bootstrap)
    assert found == dict.fromkeys(PARTITIONS, load.committed)
    assert not set(load.aborted) & set(found["t-0"])


def test_a_stop_in_the_middle_of_a_transaction_leaves_it_to_the_next_start(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    with live(path) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is ErrorCode.NONE
        assert producer.send(version=NEW_PRODUCE) is ErrorCode.NONE
    with live(path) as server, server.connect() as client:
        producer.client = client
        wait_until(lambda: producer.state().transaction_state == "Ongoing")
        assert producer.send(value="w", version=NEW_PRODUCE) is ErrorCode.NONE
        assert producer.end(version=NEW_END) is ErrorCode.NONE
        wait_until(producer.has_ended)
        assert values(server.bootstrap, names=["t-0"]) == {"t-0": [b"v", b"w"]}
