"""Replay of `__transaction_state`, and the two APIs that show it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.handlers.transactions import TransactionHandlers
from sediment.server.transactions.stored_transactions import encode_transaction, replay_transactions
from sediment.server.transactions.transaction import Transaction, TransactionState
from tests.served import unpacked
from tests.server.groups.coordinator_logs import STATES, CoordinatorLogBuilder, versioned
from tests.server.network.listeners import Client, listener
from tests.twin.segments import file_batches

GOLDEN = Path(__file__).parents[2] / "data" / "kafka-4.2.0-coordinator-records.jsonl"
NOW_MS = 1_700_000_100_000


def key(transactional_id: str) -> bytes:
    return versioned(0, m.TransactionLogKey(transactional_id=transactional_id))


def value(state: int, producer_id: int = 5, version: int = 1, start_ms: int = 1_700_000_000_000) -> bytes:
    partitions = m.TransactionLogValue.PartitionsSchema(topic="orders", partition_ids=[2, 0])
    message = m.TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=state,
        transaction_partitions=[partitions] if state == 1 else None,
        transaction_start_timestamp_ms=start_ms,
    )
    return versioned(version, message, version)


@pytest.fixture
def log(tmp_path: Path) -> CoordinatorLogBuilder:
    return CoordinatorLogBuilder(tmp_path, STATES)


def replay(log: CoordinatorLogBuilder) -> dict[str, Transaction]:
    return replay_transactions(log.write().log, Fs())


@contextlib.contextmanager
def serving(log: CoordinatorLogBuilder | None) -> Iterator[Client]:
    handlers = TransactionHandlers(lambda: NOW_MS)
    if log is not None:
        stored = replay(log)
        handlers.load(lambda: stored)
    with listener(handlers.handlers()) as running, running.connect() as client:
        yield client


# -------------------------------------------------------------------------------------------------------------- replay
@pytest.mark.parametrize("version", [0, 1])
def test_the_last_state_of_an_id_counts(log: CoordinatorLogBuilder, version: int) -> None:
    for state in (0, 1, 2, 4, 1):
        log.add(key("writer"), value(state, version=version))
    assert replay(log) == {
        "writer": Transaction(
            "writer",
            5,
            3,
            60_000,
            1_700_000_000_000,
            TransactionState.ONGOING,
            frozenset({TopicPartition("orders", 0), TopicPartition("orders", 2)}),
            last_update_ms=0,
        )
    }


def test_a_tombstone_removes_an_id(log: CoordinatorLogBuilder) -> None:
    log.add(key("writer"), value(4))
    log.add(key("other"), value(4))
    log.add(key("writer"), None)
    assert set(replay(log)) == {"other"}


def test_records_of_unknown_types_are_left_out(log: CoordinatorLogBuilder, caplog: pytest.LogCaptureFixture) -> None:
    log.add(key("writer"), value(4))
    log.add(b"\0\1\0\0", b"\0\0")
    with caplog.at_level(logging.WARNING):
        assert set(replay(log)) == {"writer"}
    assert "records of unknown types are skipped: 1" in caplog.text


@pytest.mark.parametrize(
    ("bad_key", "bad_value"),
    [(key("x"), value(8)), (key("y"), b"\0\5"), (key("z"), b"\0"), (b"\0\0\0\7a", value(1)), (b"\0", value(1))],
)
def test_a_record_that_cannot_be_decoded_makes_the_partition_unreadable(
    log: CoordinatorLogBuilder, bad_key: bytes, bad_value: bytes
) -> None:
    log.add(key("writer"), value(4))
    log.add(bad_key, bad_value)
    with pytest.raises(UnsupportedDataError, match="offset 1"):
        replay(log)


def test_a_corrupt_batch_makes_the_partition_unreadable(log: CoordinatorLogBuilder) -> None:
    for state in (1, 2, 4):
        log.add(key("writer"), value(state))
    written = log.write()
    (path,) = written.log.source.directory.glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError):
        replay_transactions(written.log, Fs())


def test_every_record_of_kafka_is_taken(log: CoordinatorLogBuilder, caplog: pytest.LogCaptureFixture) -> None:
    records = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    records = [record for record in records if record["topic"] == STATES]
    known = [record for record in records if 0 <= record["valueJson"]["transactionStatus"] <= 7]
    for record in known:
        log.add(bytes.fromhex(record["key"]), bytes.fromhex(record["value"]))
    assert set(replay(log)) == {record["keyJson"]["transactionalId"] for record in known}
    assert caplog.records == []


# -------------------------------------------------------------------------------------------------------------- encode
def test_records_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    """Every record of a broker of Kafka 4.2.0 (tests/data/served) is encoded to the same bytes."""
    written = 0
    for log in unpacked(tmp_path / "data").glob(f"{STATES}-*/*.log"):
        for _, batch in file_batches(log.read_bytes()):
            for record in batch.records():
                one = CoordinatorLogBuilder(tmp_path / str(written), STATES)
                one.add(record.key or b"", record.value)
                (transaction,) = replay(one).values()
                assert encode_transaction(transaction, 2) == (record.key, record.value)
                written += 1
    assert written > 50


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("state", [TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_ABORT])
def test_a_written_record_is_read_back(tmp_path: Path, state: TransactionState, level: int) -> None:
    has_partitions = state is not TransactionState.EMPTY
    partitions = frozenset({TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)})
    transaction = Transaction("x", 7, 3, 1000, NOW_MS, state, partitions if has_partitions else frozenset(), NOW_MS + 1)
    if level > 0:
        transaction = replace(transaction, client_version=2)
    log = CoordinatorLogBuilder(tmp_path, STATES)
    log.add(*encode_transaction(transaction, level))
    assert replay(log) == {"x": transaction}


# ------------------------------------------------------------------------------------------------------------ describe
def test_a_transaction_is_described(log: CoordinatorLogBuilder) -> None:
    log.add(key("writer"), value(1))
    log.add(key("expired"), value(6))
    with serving(log) as client:
        request = m.DescribeTransactionsRequest(transactional_ids=["writer", "nothing", "", "expired"])
        found, *errors = client.ask(request, 0).transaction_states
    assert [each.error_code for each in errors] == [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ]
    assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (found.producer_id, found.producer_epoch, found.transaction_start_time_ms) == (5, 3, 1_700_000_000_000)
    assert [(topic.topic, tuple(topic.partitions)) for topic in found.topics] == [("orders", (0, 2))]


# ---------------------------------------------------------------------------------------------------------------- list
def listed(client: Client, version: int = 2, **filters: Any) -> dict[str, tuple[int, str]]:
    response = client.ask(m.ListTransactionsRequest(**filters), version)
    assert response.error_code == 0
    return {each.transactional_id: (each.producer_id, each.transaction_state) for each in response.transaction_states}


def test_transactions_are_listed_by_every_filter(log: CoordinatorLogBuilder) -> None:
    log.add(key("writer-1"), value(1, 5))
    log.add(key("writer-2"), value(4, 6, start_ms=NOW_MS - 10))
    log.add(key("reader"), value(0, 7, start_ms=-1))
    log.add(key("expired"), value(6))
    with serving(log) as client:
        every = {"writer-1": (5, "Ongoing"), "writer-2": (6, "CompleteCommit"), "reader": (7, "Empty")}
        for version in range(3):
            assert listed(client, version) == every
        assert set(listed(client, state_filters=["Ongoing", "CompleteCommit"])) == {"writer-1", "writer-2"}
        assert set(listed(client, producer_id_filters=[6, 7])) == {"writer-2", "reader"}
        assert set(listed(client, duration_filter=10)) == {"writer-1", "reader"}
        assert set(listed(client, duration_filter=9)) == set(every)
        assert set(listed(client, transactional_id_pattern="writer-.")) == {"writer-1", "writer-2"}
        assert set(listed(client, transactional_id_pattern="writer")) == set()
        assert set(listed(client, transactional_id_pattern="reader|writer-1")) == {"writer-1", "reader"}
        assert set(listed(client, transactional_id_pattern="")) == set(every)


def test_the_next_producer_id_of_a_prepared_transaction_is_stored(log: CoordinatorLogBuilder) -> None:
    prepared = Transaction(
        "writer", 5, 32_767, 60_000, NOW_MS, TransactionState.PREPARE_COMMIT, client_version=2, next_producer_id=6
    )
    log.add(*encode_transaction(prepared, 2))
    assert replay(log)["writer"].next_producer_id == 6


def test_the_previous_producer_id_is_stored_if_it_is_another_one(log: CoordinatorLogBuilder) -> None:
    rotated = Transaction("writer", 6, 0, 60_000, NOW_MS, TransactionState.COMPLETE_COMMIT, previous_producer_id=5)
    log.add(*encode_transaction(rotated, 2))
    assert replay(log)["writer"].previous_producer_id == 5
    kept = replace(rotated, previous_producer_id=6)
    assert encode_transaction(kept, 2) == encode_transaction(replace(rotated, previous_producer_id=-1), 2)


def test_unknown_states_are_named(log: CoordinatorLogBuilder) -> None:
    log.add(key("writer"), value(1))
    with serving(log) as client:
        response = client.ask(m.ListTransactionsRequest(state_filters=["Ongoing", "Lost"]), 0)
        assert (list(response.unknown_state_filters), len(response.transaction_states)) == (["Lost"], 1)
        response = client.ask(m.ListTransactionsRequest(state_filters=["Lost"]), 0)
        assert (list(response.unknown_state_filters), len(response.transaction_states)) == (["Lost"], 0)


@pytest.mark.parametrize("pattern", ["(", "a)", "[", "(?=a)", "*"])
def test_a_pattern_that_is_not_one_is_refused(log: CoordinatorLogBuilder, pattern: str) -> None:
    log.add(key("writer"), value(1))
    with serving(log) as client:
        response = client.ask(m.ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_cannot_keep_the_server_busy(log: CoordinatorLogBuilder) -> None:
    log.add(key("a" * 200), value(1))
    with serving(log) as client:
        assert listed(client, transactional_id_pattern="(a*)*b") == {}


def test_clients_are_asked_to_retry_until_the_transactions_are_loaded() -> None:
    with serving(None) as client:
        assert client.ask(m.ListTransactionsRequest(), 0).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        (found,) = client.ask(m.DescribeTransactionsRequest(transactional_ids=["w"]), 0).transaction_states
        assert found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
