"""Produces that a connection repeats with other records: their responses have the bytes of first ones."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.handlers.produce import ProduceHandlers
from sediment.server.handlers.repeated_produce import RepeatedProduce
from sediment.server.network.frames import ResponseSend
from sediment.server.repeated import AnsweredRun
from sediment.server.requests import Request
from tests.engine.live_logs import NOW_MS, batch, config
from tests.server.live.nodes import LiveServer, fetch, live, new_node, produce, produce_request
from tests.server.network.listeners import Client, frame
from tests.waiting import wait_until

VERSIONS = list(supported_versions(ApiKey.PRODUCE))
NEWEST = VERSIONS[-1]
PARTITIONS = 15
SMALL = config(segment_bytes=2000, max_message_bytes=1000)

RECORDS: list[bytes | None] = [
    *[batch()] * 20,
    batch(("a", "1"), ("b", None), (None, "3")),
    batch(("a", "1" * 150)),
    batch(codec=3),
    batch(codec=4),
    batch(at=1),
    batch(tx=True, pid=9),
    batch(append_time=NOW_MS),
    batch(("k", "v" * 1000)),
    *[batch(pid=5, seq=sequence) for sequence in (0, 1, 2, 3)],
    batch()[:-1] + b"w",
    batch()[:-1],
    batch() + batch(),
    b"",
    None,
]

OTHERS: list[dict[str, Any]] = [{"acks": 0}, {"timeout_ms": 9999}, {"number": PARTITIONS - 1}, {"topic": "u"}]
"""Fields that make a produce another one."""


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Return the list of the produces that are decoded."""
    found: list[Request] = []
    handle = ProduceHandlers.produce

    def produce(self: ProduceHandlers, request: Request) -> Any:
        found.append(request)
        return handle(self, request)

    monkeypatch.setattr(ProduceHandlers, "produce", produce)
    return found


@pytest.fixture
def server(tmp_path: Path, decoded: list[Request]) -> Iterator[LiveServer]:
    path = new_node(tmp_path / "data", {"t": PARTITIONS, "u": 1})
    with live(path, topic_config=lambda _: SMALL) as found:
        yield found


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[AnsweredRun]:
    """Return the list of the runs that are answered."""
    found: list[AnsweredRun] = []
    answer_run = RepeatedProduce.answer_run

    def answer(self: RepeatedProduce, *arguments: Any) -> AnsweredRun | None:
        run = answer_run(self, *arguments)
        if run is not None:
            found.append(run)
        return run

    monkeypatch.setattr(RepeatedProduce, "answer_run", answer)
    return found


def produce_until_run(client: Client, runs: list[AnsweredRun], data: bytes) -> int:
    """Send a request again and again until it is answered as a run, and return the number of these requests.

    After a slow request, such as the first one of a server, no processor answers runs for a second.
    """
    sent = 0
    while not runs:
        client.socket.sendall(data)
        client.receive_frame()
        sent += 1
    return sent


@pytest.mark.parametrize("acks", [1, -1])
def test_a_repeated_produce_has_the_bytes_of_a_first_one(
    tmp_path: Path, server: LiveServer, decoded: list[Request], acks: int
) -> None:
    """One server gets all produces of a partition through one connection, the other one through new connections."""
    with live(new_node(tmp_path / "other", {"t": PARTITIONS, "u": 1}), topic_config=lambda _: SMALL) as other:
        for version in VERSIONS:
            rng = random.Random(version)
            first, again = len(decoded), rng.sample(RECORDS, len(RECORDS))
            with server.connect() as repeating:
                for records in [batch(), *again]:
                    asked = produce_request(records, number=version, acks=acks, version=version)
                    number = rng.randrange(-(1 << 31), 1 << 31)
                    repeating.send(asked, version, number)
                    answer = repeating.receive_frame()
                    with other.connect() as fresh:
                        fresh.send(asked, version, number)
                        assert answer == fresh.receive_frame()
            are_repeated = version >= 5
            assert (len(decoded) - first < 2 * len(again) - 20) == are_repeated
        with server.connect() as one, other.connect() as two:
            for version in VERSIONS:
                assert bytes(fetch(one, (version, 0))[0].records) == bytes(fetch(two, (version, 0))[0].records)


@pytest.mark.parametrize("version", [*VERSIONS[::3], NEWEST])
def test_produces_that_arrive_together_have_the_bytes_of_single_ones(
    tmp_path: Path, server: LiveServer, decoded: list[Request], runs: list[AnsweredRun], version: int
) -> None:
    """One server gets all produces of a partition in a few pieces, the other one each through a new connection."""
    rng = random.Random(version)
    asked = [batch(), *rng.sample(RECORDS, len(RECORDS)), *[batch()] * 30]
    numbers = [rng.randrange(-(1 << 31), 1 << 31) for _ in asked]
    requests = [produce_request(records, acks=1, version=version) for records in asked]
    frames = [frame(request, version, number) for request, number in zip(requests, numbers, strict=True)]
    with live(new_node(tmp_path / "other", {"t": PARTITIONS, "u": 1}), topic_config=lambda _: SMALL) as other:
        with server.connect() as together:
            again = frame(produce_request(batch(), topic="u", acks=1, version=version), version, 0)
            if version >= 5:
                produce_until_run(together, runs, again)
                del runs[:], decoded[:]
            together.socket.sendall(frames[0])
            answers = [together.receive_frame()]
            stream = b"".join(frames[1:])
            cuts = sorted(rng.sample(range(len(stream)), 6))
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                together.socket.sendall(stream[start:end])
            answers += [together.receive_frame() for _ in frames[1:]]
            (one,) = fetch(together, (0, 0))
        for request, number, answer in zip(requests, numbers, answers, strict=True):
            with other.connect() as fresh:
                fresh.send(request, version, number)
                assert answer == fresh.receive_frame()
        with other.connect() as client:
            (two,) = fetch(client, (0, 0))
            assert (bytes(one.records), one.high_watermark) == (bytes(two.records), two.high_watermark)
    assert bool(runs) == (version >= 5)
    assert max([run.requests for run in runs], default=2) > 1


def test_responses_that_the_socket_does_not_accept_at_once_follow_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[AnsweredRun]
) -> None:
    """Nobody reads the responses until their bytes fill the buffers of both sockets."""
    rests: list[memoryview] = []
    rest_of = ResponseSend.rest_of
    monkeypatch.setattr(ResponseSend, "rest_of", lambda responses: [rests.append(responses), rest_of(responses)][1])
    count = 6000
    small_buffers = {"socket_send_buffer_bytes": 16384}
    with live(new_node(tmp_path / "data", {"t": 1}), **small_buffers) as server, server.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        again = frame(produce_request(batch(), version=9), 9, 0)
        first = produce_until_run(client, runs, again)
        stream = b"".join(again[:8] + number.to_bytes(4, "big") + again[12:] for number in range(count))
        sender = threading.Thread(target=client.socket.sendall, args=(stream,))
        sender.start()
        wait_until(lambda: rests)
        for number in range(count):
            answered, response = client.receive(ApiKey.PRODUCE, 9)
            assert (answered, response.responses[0].partition_responses[0].base_offset) == (number, first + number)
        sender.join()


def test_produces_that_arrive_together_are_counted_one_by_one(server: LiveServer, runs: list[AnsweredRun]) -> None:
    data = frame(produce_request(batch()), NEWEST, 0)
    with server.connect() as client:
        count = produce_until_run(client, runs, data) + 20
        client.socket.sendall(data * 20)
        answers = [client.receive_frame() for _ in range(20)]
        wait_until(lambda: server.server.metrics.by_request()[ApiKey.PRODUCE, NEWEST].requests >= count)
        counted = server.server.metrics.by_request()[ApiKey.PRODUCE, NEWEST]
    assert sum(run.requests for run in runs) > 10
    assert (counted.requests, counted.request_bytes) == (count, count * (len(data) - 4))
    assert counted.response_bytes == count * (4 + len(answers[0]))
    assert sum(counted.total_by_bucket) == count


def test_only_records_and_correlation_ids_may_differ(server: LiveServer, decoded: list[Request]) -> None:
    with server.connect() as client:
        for offset in range(5):
            assert produce(client, batch()).base_offset == offset
        assert len(decoded) == 1
        for count, others in enumerate(OTHERS, 2):
            client.send(produce_request(batch(), **others), NEWEST)
            if others != {"acks": 0}:
                client.receive_frame()
            assert produce(client, batch(("a", "b"), ("c", "d"))).error_code == ErrorCode.NONE
            assert len(decoded) == count
        assert fetch(client, (0, 0))[0].high_watermark == 5 + 2 * len(OTHERS) + 2


def test_a_client_that_sends_other_produces_gets_its_new_produce_kept(
    server: LiveServer, decoded: list[Request]
) -> None:
    with server.connect() as client:
        produce(client, batch())
        for offset in range(40):
            assert produce(client, batch(), number=3).base_offset == offset
        assert len(decoded) < 20


@pytest.mark.parametrize("value", [0, 1, 2, 71, 73, 127])
def test_a_size_that_does_not_fit_the_frame_is_not_believed(server: LiveServer, value: int) -> None:
    """The size of the records is the byte before them; with another value, the request has no complete batch."""
    good = frame(produce_request(batch()), NEWEST, 0)[4:]
    position = good.index(batch())
    assert good[position - 1] == len(batch()) + 1
    with server.connect() as client:
        for _ in range(2):
            assert produce(client, batch()).error_code == ErrorCode.NONE
        client.send_frame(good[: position - 1] + bytes([value]) + good[position:])
        with suppress(ConnectionError):
            _, response = client.receive(ApiKey.PRODUCE, NEWEST)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    with server.connect() as client:
        assert fetch(client, (0, 0))[0].high_watermark == 2


def test_a_deleted_topic_takes_no_repeated_produce(server: LiveServer) -> None:
    state = m.DeleteTopicsRequest.DeleteTopicState
    with server.connect() as client:
        for _ in range(3):
            assert produce(client, batch(), topic="u", version=12).error_code == ErrorCode.NONE
        (answer,) = client.ask(m.DeleteTopicsRequest(topics=[state(name="u")], timeout_ms=30_000), 6).responses
        assert answer.error_code == ErrorCode.NONE
        assert produce(client, batch(), topic="u", version=12).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_produce_that_waits_for_the_disk_is_not_kept(tmp_path: Path, decoded: list[Request]) -> None:
    with live(new_node(tmp_path / "data", {"t": 1}), flush_acks=True) as server, server.connect() as client:
        for offset in range(3):
            assert produce(client, batch()).base_offset == offset
            assert fetch(client, (0, 0))[0].high_watermark == offset + 1
        assert len(decoded) == 3
