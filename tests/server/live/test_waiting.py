"""Requests that wait on a live server: fetches at the log end, and produces until the disk has their records."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.live import LiveBackend
from sediment.server.live.partition import Partition
from tests.engine.large_batches import bomb
from tests.engine.live_logs import batch
from tests.engine.managed import FailingFs
from tests.server.live.nodes import (
    LiveServer,
    SlowDisk,
    commit,
    fetch,
    fetch_request,
    live,
    new_node,
    produce,
    produce_request,
)
from tests.server.network.listeners import Client, frame
from tests.waiting import wait_until

LONG_MS = 25_000
VERSION = 13


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveServer]:
    with live(new_node(tmp_path / "data", {"t": 4})) as server:
        yield server


def waiting(node: LiveServer) -> int:
    backend = node.server.backend
    assert isinstance(backend, LiveBackend)
    return 0 if backend._delayed is None else len(backend._delayed)


def values(records: object) -> int:
    return len(bytes(records or b""))  # type: ignore[call-overload]


# -------------------------------------------------------------------------------------------------------------- fetches
@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the partitions that are read; the list grows."""
    numbers: list[int] = []
    real = Partition.read

    def read(partition: Partition, *arguments: Any, **keys: Any) -> Any:
        numbers.append(partition.topic_partition.partition)
        return real(partition, *arguments, **keys)

    monkeypatch.setattr(Partition, "read", read)
    return numbers


def test_an_append_measures_only_its_own_partition_of_a_waiting_fetch(node: LiveServer, reads: list[int]) -> None:
    with node.connect() as consumer, node.connect() as producer:
        consumer.send(fetch_request((0, 0), (1, 0), (2, 0), (3, 0), min_bytes=200, max_wait_ms=LONG_MS), VERSION)
        wait_until(lambda: waiting(node) == 1)
        reads.clear()
        produce(producer, batch(), number=1)
        produce(producer, batch(), number=3)
        assert (reads, waiting(node)) == ([1, 3], 1)
        produce(producer, batch(), number=1)
        answers = consumer.receive(ApiKey.FETCH, VERSION)[1].responses[0].partitions
        assert [values(each.records) for each in answers] == [0, 142, 0, 71]
    assert reads == [1, 3, 1, 0, 1, 2, 3]


def test_a_fetch_whose_limits_leave_too_little_reads_everything_seldom(node: LiveServer, reads: list[int]) -> None:
    """Each partition alone has enough for the limit, but not all together: a second batch does not fit."""
    with node.connect() as consumer, node.connect() as producer:
        request = fetch_request((0, 0), (1, 0), min_bytes=100, max_wait_ms=2000)
        request.max_bytes = 100
        consumer.send(request, VERSION)
        wait_until(lambda: waiting(node) == 1)
        reads.clear()
        produce(producer, batch(), number=0)
        produce(producer, batch(), number=1)
        assert reads == [0, 1, 0, 1]
        for _ in range(10):
            produce(producer, batch(), number=1)
        assert reads == [0, 1, 0, 1, *[1] * 10]
        answers = consumer.receive(ApiKey.FETCH, VERSION)[1].responses[0].partitions
        assert [values(each.records) for each in answers] == [71, 0]


def test_a_fetch_that_names_a_partition_several_times_gets_it_once_from_the_last_offset(node: LiveServer) -> None:
    with node.connect() as client:
        for _ in range(3):
            produce(client, batch())
        pairs = [(0, 0), (1, 0), (0, 1), (0, 2)]
        answers = fetch(client, *pairs)
        assert [(each.partition_index, values(each.records)) for each in answers] == [(0, 71), (1, 0)]
        request = fetch_request(*pairs)
        request.topics = [*request.topics, *request.topics]
        assert [len(topic.partitions) for topic in client.ask(request, VERSION).responses] == [2]


def test_a_fetch_at_the_log_end_is_answered_by_the_next_append(node: LiveServer) -> None:
    with node.connect() as consumer, node.connect() as producer:
        consumer.send(fetch_request((0, 0), (1, 0), max_wait_ms=LONG_MS), VERSION)
        wait_until(lambda: waiting(node) == 1)
        produce(producer, batch(), number=2)
        assert waiting(node) == 1
        produce(producer, batch(), number=1)
        _, response = consumer.receive(ApiKey.FETCH, VERSION)
        first, second = response.responses[0].partitions
        assert (values(first.records), second.high_watermark, values(second.records)) == (0, 1, len(batch()))
        assert waiting(node) == 0


def test_a_fetch_waits_for_its_least_bytes_over_all_partitions(node: LiveServer) -> None:
    size = len(batch())
    with node.connect() as consumer, node.connect() as producer:
        consumer.send(fetch_request((0, 0), (1, 0), max_wait_ms=LONG_MS, min_bytes=3 * size), VERSION)
        for number in (0, 1):
            produce(producer, batch(), number=number)
            wait_until(lambda: waiting(node) == 1)
        produce(producer, batch(), number=0)
        _, response = consumer.receive(ApiKey.FETCH, VERSION)
        assert [values(each.records) for each in response.responses[0].partitions] == [2 * size, size]


def test_a_fetch_that_has_waited_long_enough_gets_what_there_is(node: LiveServer) -> None:
    with node.connect() as client:
        produce(client, batch())
        (found,) = fetch(client, (0, 0), max_wait_ms=50, min_bytes=1 << 20)
        assert values(found.records) == len(batch())
        (found,) = fetch(client, (0, 1), max_wait_ms=50)
        assert (values(found.records), found.high_watermark, found.error_code) == (0, 1, ErrorCode.NONE)


def test_a_waiting_fetch_hears_that_the_disk_has_failed(tmp_path: Path) -> None:
    fs = FailingFs()
    path = new_node(tmp_path / "data", {"t": 2})
    with live(path, fs=fs) as node, node.connect() as consumer, node.connect() as producer:
        consumer.send(fetch_request((0, 0), max_wait_ms=LONG_MS), VERSION)
        wait_until(lambda: waiting(node) == 1)
        fs.broken.add(path)
        assert produce(producer, batch(), number=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        _, response = consumer.receive(ApiKey.FETCH, VERSION)
        assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_stop_answers_the_waiting_fetches(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as node:
        consumer = node.connect()
        consumer.send(fetch_request((0, 0), max_wait_ms=LONG_MS), VERSION)
        wait_until(lambda: waiting(node) == 1)
    with consumer:
        _, response = consumer.receive(ApiKey.FETCH, VERSION)
        assert response.responses[0].partitions[0].error_code == ErrorCode.NONE


# ------------------------------------------------------------------------------------------------------------- produces
@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[LiveServer, SlowDisk]]:
    disk = SlowDisk()
    with live(new_node(tmp_path / "data", {"t": 2}), fs=disk, flush_acks=True) as server:
        disk.is_fast.clear()
        disk.syncs = 0
        yield server, disk
        disk.is_fast.set()


def test_records_count_as_replicated_once_they_are_on_disk(slow: tuple[LiveServer, SlowDisk]) -> None:
    node, disk = slow
    with node.connect() as producer, node.connect() as other:
        producer.send(produce_request(batch()), VERSION)
        wait_until(lambda: waiting(node) == 1)
        (found,) = fetch(other, (0, 0))
        assert (found.high_watermark, values(found.records)) == (0, 0)
        assert produce(other, batch(), acks=1).base_offset == 1
        disk.is_fast.set()
        _, response = producer.receive(ApiKey.PRODUCE, VERSION)
        assert response.responses[0].partition_responses[0].base_offset == 0
        wait_until(lambda: fetch(other, (0, 0))[0].high_watermark == 2)


def test_one_flush_serves_all_producers_that_wait(slow: tuple[LiveServer, SlowDisk]) -> None:
    node, disk = slow
    producers: list[Client] = [node.connect() for _ in range(12)]
    for number, producer in enumerate(producers):
        producer.send(produce_request(batch()), VERSION)
        wait_until(lambda least=number + 1: waiting(node) == least)
    disk.is_fast.set()
    for producer in producers:
        with producer:
            _, response = producer.receive(ApiKey.PRODUCE, VERSION)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    # The first flush began with the first append, and the second covers all the others.
    assert disk.syncs == 2


def test_a_produce_that_the_disk_does_not_take_in_time_times_out(slow: tuple[LiveServer, SlowDisk]) -> None:
    node, disk = slow
    with node.connect() as producer:
        answer = produce(producer, batch(pid=1), timeout_ms=50)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        disk.is_fast.set()
        assert produce(producer, batch(pid=1)).base_offset == 0


def test_a_produce_that_waits_for_a_disk_which_fails_gets_an_error(slow: tuple[LiveServer, SlowDisk]) -> None:
    node, disk = slow
    with node.connect() as producer:
        producer.send(produce_request(batch()), VERSION)
        wait_until(lambda: waiting(node) == 1)
        disk.error = OSError(errno.EIO, "a sync failed")
        disk.is_fast.set()
        _, response = producer.receive(ApiKey.PRODUCE, VERSION)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_an_unexpected_error_of_a_flush_stops_no_later_flush(slow: tuple[LiveServer, SlowDisk]) -> None:
    node, disk = slow
    disk.error = ZeroDivisionError()
    disk.is_fast.set()
    with node.connect() as producer:
        for _ in range(8):  # more than there are threads
            assert produce(producer, batch(), timeout_ms=20).error_code == ErrorCode.REQUEST_TIMED_OUT
        disk.error = None
        assert produce(producer, batch()).base_offset == 8


def padded(message: Any, version: int, size_bytes: int) -> bytes:
    """Return a request with an unknown tagged field of that size, which must be below 2 MiB, at its end."""
    sent = frame(message, version, 1)
    assert sent[-1] == 0  # the number of tagged fields
    size = bytes([size_bytes & 127 | 128, size_bytes >> 7 & 127 | 128, size_bytes >> 14])
    body = sent[4:-1] + b"\1\x63" + size + bytes(size_bytes)
    return struct.pack(">i", len(body)) + body


def joining(number: int) -> Any:
    request = m.JoinGroupRequest
    return request(
        group_id=f"g{number}",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=2**31 - 1,
        group_instance_id=str(number),
        protocol_type="consumer",
        protocols=[request.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


@pytest.mark.parametrize(
    "waiting",
    [(joining(0), 9), (fetch_request((0, 0), max_wait_ms=2**31 - 1), VERSION)],
    ids=["a member that waits for its group", "a fetch that waits for records"],
)
def test_requests_that_wait_keep_no_memory_that_others_need(tmp_path: Path, waiting: tuple[Any, int]) -> None:
    keys = {"queued_max_request_bytes": 2 << 20, "socket_request_max_bytes": 1 << 20}
    path = new_node(tmp_path / "data", {"t": 1, "__consumer_offsets": 1})
    with live(path, group_initial_rebalance_delay_ms=2**31 - 1, **keys) as server, server.connect() as client:
        assert commit(client, "g", 0) is ErrorCode.NONE  # the groups are loaded
        members = [server.connect() for _ in range(4)]
        for number, member in enumerate(members):
            message, version = waiting
            member.socket.sendall(padded(joining(number) if version == 9 else message, version, 1_000_000))
        for _ in range(3):
            started = time.monotonic()
            assert produce(client, bomb(900_000, codec=0), topic="t").error_code == ErrorCode.NONE
            assert time.monotonic() - started < 20
        for member in members:
            member.socket.close()
