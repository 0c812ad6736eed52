"""Produce requests over real sockets: appends, acknowledgements, duplicates and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptBatchError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
    SedimentError,
    StorageError,
    TransactionCoordinatorFencedError,
    UnsupportedForFormatError,
)
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import append_error_code_of
from tests.engine.live_logs import NOW_MS, batch, config
from tests.engine.managed import FailingFs
from tests.server.live.nodes import LiveServer, fetch, live, new_node, produce, produce_request, topic_id
from tests.server.network.listeners import Client
from tests.twin.segments import file_batches

VERSIONS = list(supported_versions(ApiKey.PRODUCE))
ZSTD = 4
ONE = batch()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    path = new_node(tmp_path_factory.mktemp("node") / "data", {"t": 20, "compacted": 1, "__consumer_offsets": 1})
    configs = {"compacted": config(cleanup_policy=("compact",), message_timestamp_after_max_ms=1000)}
    small = config(segment_bytes=2000, max_message_bytes=1000)
    with live(path, topic_config=lambda topic: configs.get(topic, small)) as server:
        yield server


@pytest.fixture
def client(node: LiveServer) -> Iterator[Client]:
    with node.connect() as connected:
        yield connected


def code_of(answer: object) -> ErrorCode:
    return ErrorCode(answer.error_code)  # type: ignore[attr-defined]


# -------------------------------------------------------------------------------------------------------------- appends
@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_appends_and_the_records_can_be_fetched_at_once(client: Client, version: int) -> None:
    number = version
    for offset in (0, 2):
        answer = produce(client, batch(("a", "1"), ("b", "2")), number=number, version=version)
        assert (code_of(answer), answer.base_offset, answer.log_append_time_ms) == (ErrorCode.NONE, offset, -1)
        assert answer.log_start_offset == (0 if version >= 5 else -1)
    (found,) = fetch(client, (number, 0))
    assert (found.high_watermark, found.last_stable_offset) == (4, 4)
    values = [record.value for _, each in file_batches(bytes(found.records)) for record in each.records()]
    assert values == [b"1", b"2", b"1", b"2"]


def test_versions_below_3_are_advertised_and_refused(client: Client) -> None:
    (produce_range,) = (
        each
        for each in client.ask(m.ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4).api_keys
        if each.api_key == ApiKey.PRODUCE
    )
    assert (produce_range.min_version, produce_range.max_version) == (0, VERSIONS[-1])
    client.send_frame(b"\0\0" + b"\0\2" + b"\0\0\0\1" + b"\0\1t" + b"\0\1" + bytes(8))
    assert client.is_closed()


@pytest.mark.parametrize("acks", [1, -1])
def test_an_idempotent_batch_that_is_sent_again_gets_its_first_offset(client: Client, acks: int) -> None:
    number = 14 if acks == 1 else 15
    batches = [batch(pid=5, seq=sequence) for sequence in range(3)]
    for sequence, each in enumerate([*batches, batches[1]]):
        answer = produce(client, each, number=number, acks=acks)
        assert (code_of(answer), answer.base_offset) == (ErrorCode.NONE, sequence if sequence < 3 else 1)
    (found,) = fetch(client, (number, 0))
    assert found.high_watermark == 3


def test_without_acks_there_is_no_answer_and_a_refusal_closes_the_connection(node: LiveServer) -> None:
    with node.connect() as client:
        client.send(produce_request(ONE, number=16, acks=0), 13)
        assert produce(client, ONE, number=16).base_offset == 1
        client.send(produce_request(b"", number=16, acks=0), 13)
        assert client.is_closed()


# ------------------------------------------------------------------------------------------------------------- refusals
def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


REFUSED = {
    "null records": (None, 13, {}, ErrorCode.INVALID_RECORD),
    "no batch": (b"", 13, {}, ErrorCode.INVALID_RECORD),
    "a torn batch": (ONE[:-1], 13, {}, ErrorCode.INVALID_RECORD),
    "two batches": (ONE + ONE, 13, {}, ErrorCode.INVALID_RECORD),
    "an old magic": (ONE[:16] + b"\1" + ONE[17:], 13, {}, ErrorCode.INVALID_RECORD),
    "a batch that is too short": (ONE[:8] + b"\0\0\0\x0e" + ONE[12:26], 13, {}, ErrorCode.CORRUPT_MESSAGE),
    "a wrong checksum": (damaged(ONE), 13, {}, ErrorCode.CORRUPT_MESSAGE),
    "a base offset": (batch(at=3), 13, {}, ErrorCode.INVALID_RECORD),
    "zstd in an old version": (batch(codec=ZSTD), 6, {}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a transactional batch": (batch(pid=1, tx=True), 13, {}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    "a large batch": (batch(("k", "v" * 2000)), 13, {}, ErrorCode.MESSAGE_TOO_LARGE),
    "a sequence gap": (batch(pid=99, seq=5, producer_epoch=0), 13, {"after": batch(pid=99)}, None),
    "wrong acks": (ONE, 13, {"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
    "an unknown partition": (ONE, 13, {"number": 20}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "an unknown topic id": (ONE, 13, {"asked_id": topic_id("other")}, ErrorCode.UNKNOWN_TOPIC_ID),
    "an unknown topic": (ONE, 12, {"topic": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "an internal topic": (ONE, 13, {"topic": "__consumer_offsets", "number": 0}, ErrorCode.INVALID_TOPIC_EXCEPTION),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_batch_gets_kafkas_code_and_leaves_no_trace(client: Client, what: str) -> None:
    records, version, given, code = REFUSED[what]
    fields = {"number": 17, **given}
    before = fields.pop("after", None)
    if before is not None:
        produce(client, before, number=17)
        code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    (found,) = fetch(client, (17, 0))
    answer = produce(client, records, version=version, **fields)
    assert (code_of(answer), answer.base_offset) == (code, -1)
    assert version < 8 or answer.error_message or code.name.startswith("UNKNOWN_")
    (after,) = fetch(client, (17, 0))
    assert after.high_watermark == found.high_watermark


def test_records_that_break_the_rules_of_a_topic_are_named(client: Client) -> None:
    answer = produce(client, batch(("k", "v"), (None, "v"), (None, "w"), ts=1), topic="compacted")
    assert code_of(answer) == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [1, 2]
    answer = produce(client, batch(ts=NOW_MS * 2), topic="compacted")
    assert code_of(answer) == ErrorCode.INVALID_TIMESTAMP


def test_one_bad_partition_does_not_affect_the_others(client: Client) -> None:
    request = produce_request(ONE, number=18)
    request.topic_data[0].partition_data.append(m.ProduceRequest.PartitionProduceData(index=19, records=damaged(ONE)))
    (topic,) = client.ask(request, 13).responses
    assert [code_of(each) for each in topic.partition_responses] == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptBatchError("x"), ErrorCode.CORRUPT_MESSAGE),
        (RecordTooLargeError("x"), ErrorCode.MESSAGE_TOO_LARGE),
        (RecordBatchTooLargeError("x"), ErrorCode.RECORD_LIST_TOO_LARGE),
        (InvalidRecordError("x"), ErrorCode.INVALID_RECORD),
        (RecordValidationError("x"), ErrorCode.INVALID_RECORD),
        (RecordValidationError("x", has_invalid_timestamp=True), ErrorCode.INVALID_TIMESTAMP),
        (UnsupportedForFormatError("x"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (OutOfOrderSequenceError("x"), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (InvalidProducerEpochError("x"), ErrorCode.INVALID_PRODUCER_EPOCH),
        (InvalidTransactionStateError("x"), ErrorCode.INVALID_TXN_STATE),
        (TransactionCoordinatorFencedError("x"), ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (StorageError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (CommitStateUnknownError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (OffsetsOutOfOrderError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_every_error_of_an_append_has_kafkas_code(error: SedimentError, code: ErrorCode) -> None:
    assert append_error_code_of(error) is code


def test_a_server_whose_disk_fails_says_so(tmp_path: Path) -> None:
    fs = FailingFs()
    path = new_node(tmp_path / "data", {"t": 2})
    with live(path, fs=fs) as server, server.connect() as client:
        assert code_of(produce(client, ONE)) == ErrorCode.NONE
        fs.broken.add(path)
        for number in (0, 1):
            assert code_of(produce(client, ONE, number=number)) == ErrorCode.KAFKA_STORAGE_ERROR
            (found,) = fetch(client, (number, 0))
            assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not (path / ".kafka_cleanshutdown").exists()
