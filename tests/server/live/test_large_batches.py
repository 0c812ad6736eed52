"""Produces and look-ups of batches that expand far: who handles them, and what the client gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.log.append_analysis import MAX_RECORD_ERRORS
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.segment import timestamp_search
from tests.engine.large_batches import ZSTD, bomb, encoded, large_batch
from tests.engine.live_logs import NOW_MS, batch, config
from tests.server.live.nodes import LiveServer, fetch, live, new_node, produce, produce_request
from tests.server.network.listeners import Client

LARGE_BYTES = 3 << 20
KEYLESS = large_batch(encoded(None) * 2000, 2000)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveServer]:
    configs = {"compacted": config(cleanup_policy=("compact",))}
    with live(
        new_node(tmp_path / "data", {"t": 4, "compacted": 3}),
        topic_config=lambda topic: configs.get(topic, config(segment_bytes=1 << 20)),
    ) as server:
        yield server


@pytest.fixture
def client(node: LiveServer) -> Iterator[Client]:
    with node.connect() as connected:
        yield connected


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the threads that decompress large batches; the list grows."""
    names: list[str] = []

    def noting(module: Any) -> None:
        real = module.decompressed_records

        def decompressed_records(*arguments: Any, **keys: Any) -> Any:
            if not keys["only_quick"]:
                names.append(threading.current_thread().name)
            return real(*arguments, **keys)

        monkeypatch.setattr(module, "decompressed_records", decompressed_records)

    import sediment.engine.live.log.validation as validation

    noting(validation)
    noting(timestamp_search)
    return names


def are_long(threads: list[str]) -> bool:
    return all(name.startswith("data-plane-long-request-handler-") for name in threads)


def offsets(client: Client, number: int = 0) -> int:
    (found,) = fetch(client, (number, 0))
    return int(found.high_watermark)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_large_batch_is_appended_on_a_thread_for_long_work(client: Client, threads: list[str], acks: int) -> None:
    request = produce_request(bomb(LARGE_BYTES), acks=acks)
    if acks:
        (answer,) = client.ask(request, 13).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, 0)
    else:
        client.send(request, 13)
    assert produce(client, batch()).base_offset == 1
    assert len(threads) == 1 and are_long(threads), threads


def test_a_connection_that_repeats_its_produces_may_send_a_large_one(client: Client, threads: list[str]) -> None:
    sent = [batch(), batch(), batch(codec=ZSTD), bomb(LARGE_BYTES), batch(), bomb(LARGE_BYTES), batch(codec=ZSTD)]
    assert [produce(client, data).base_offset for data in sent] == list(range(len(sent)))
    assert len(threads) == 2 and are_long(threads), threads


def test_each_batch_of_a_request_is_appended_once_and_in_order(client: Client, threads: list[str]) -> None:
    request = produce_request(batch(), number=0)
    item = m.ProduceRequest.PartitionProduceData
    others = [(1, bomb(LARGE_BYTES)), (9, batch()), (2, batch(codec=ZSTD)), (2, bomb(LARGE_BYTES)), (3, batch())]
    request.topic_data[0].partition_data += [item(index=number, records=records) for number, records in others]
    (topic,) = client.ask(request, 13).responses
    found = [(each.index, each.error_code, each.base_offset) for each in topic.partition_responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [(0, 0, 0), (1, 0, 0), (9, unknown, -1), (2, 0, 0), (2, 0, 1), (3, 0, 0)]
    assert [offsets(client, number) for number in range(4)] == [1, 1, 2, 1]
    assert len(threads) == 4 and are_long(threads), threads  # what follows a large batch is appended with it


def test_without_acks_a_refused_large_batch_closes_the_connection(node: LiveServer) -> None:
    for topic, is_closed in (("t", False), ("compacted", True)):
        data = large_batch(encoded(None) * 400_000, 400_000)
        with node.connect() as client:
            client.send(produce_request(data, topic=topic, acks=0), 13)
            assert client.is_closed(1 if not is_closed else 60) == is_closed


@pytest.mark.parametrize(("version", "named"), [(7, 0), (8, MAX_RECORD_ERRORS), (13, MAX_RECORD_ERRORS)])
def test_a_response_names_bad_records_if_its_version_can_and_only_the_first_ones(
    client: Client, version: int, named: int
) -> None:
    request = produce_request(KEYLESS, topic="compacted", version=version)
    item = m.ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data += [item(index=number, records=KEYLESS) for number in (1, 2)]
    (topic,) = client.ask(request, version).responses
    assert [each.error_code for each in topic.partition_responses] == 3 * [ErrorCode.INVALID_RECORD]
    assert [len(each.record_errors) for each in topic.partition_responses] == [named, 0, 0]
    if named:
        assert "(2000 such)" in topic.partition_responses[2].error_message


def test_a_request_for_offsets_waits_for_no_large_batch_of_another_request(
    node: LiveServer, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = m.ListOffsetsRequest

    def of(*partitions: tuple[int, int]) -> Any:
        asked = [request.ListOffsetsPartition(partition_index=number, timestamp=at) for number, at in partitions]
        return request(replica_id=-1, topics=[request.ListOffsetsTopic(name="t", partitions=asked)])

    is_open = threading.Event()
    with node.connect() as client, node.connect() as other:
        produce(client, batch(ts=NOW_MS - 7))
        produce(client, bomb(LARGE_BYTES))
        produce(client, batch(ts=NOW_MS - 3), number=1)
        threads.clear()
        find = timestamp_search.find_record

        def find_record(*arguments: Any, only_quick: bool) -> Any:
            if not only_quick:
                assert is_open.wait(60)
            return find(*arguments, only_quick=only_quick)

        monkeypatch.setattr(timestamp_search, "find_record", find_record)
        client.send(of((1, 1), (0, NOW_MS)), 8)
        for _ in range(3):
            (answer,) = other.ask(of((0, 1)), 8).topics[0].partitions
            assert (answer.offset, answer.timestamp) == (0, NOW_MS - 7)
        is_open.set()
        (topic,) = client.receive(m.ListOffsetsRequest.API_KEY, 8)[1].topics
        assert [(each.error_code, each.offset) for each in topic.partitions] == [(0, 0), (0, 1)]
    assert len(threads) == 2 and are_long(threads), threads
