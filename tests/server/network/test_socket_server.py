"""Roles of the socket server over real sockets: order, muting, the queue, deadlines, quotas and the end."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.network import processor, socket_server
from sediment.server.network.endpoints import Endpoint
from sediment.server.network.processor import Listener
from sediment.server.network.socket_server import SocketServer
from sediment.server.request_metrics import RequestMetrics
from sediment.server.requests import Request
from sediment.server.server_config import ServerConfig
from tests.server.network.listeners import Client, api_versions, frame, listener
from tests.waiting import LIMIT_SECONDS, wait_until


class Gate:
    """A handler of Heartbeat that answers once the gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = 0
        self._guard = threading.Lock()

    def __call__(self, request: Request) -> Any:
        with self._guard:
            self.entered += 1
        self.open.wait(LIMIT_SECONDS)
        return m.HeartbeatResponse()


def heartbeat() -> Any:
    return m.HeartbeatRequest(group_id="g", member_id="m")


def fetch() -> Any:
    return m.FetchRequest()


def large_response(size_bytes: int) -> Any:
    """Return a handler of Fetch with a response of at least that size."""
    response = m.FetchResponse
    records = bytes(size_bytes)
    partition = response.PartitionData(partition_index=0, records=records)
    return lambda _: response(responses=[response.FetchableTopicResponse(topic="t", partitions=[partition])])


def test_a_client_gets_the_versions_of_every_api_that_has_a_handler():
    with listener() as running, running.connect() as client:
        response = client.ask(api_versions(), 4)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert response.error_code == 0
    assert ranges == {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.API_VERSIONS: (0, 4), ApiKey.SASL_AUTHENTICATE: (0, 2)}


def test_produce_is_offered_from_version_0():
    with listener({ApiKey.PRODUCE: lambda _: None}) as running, running.connect() as client:
        response = client.ask(api_versions(), 3)
    assert [(each.min_version, each.max_version) for each in response.api_keys if each.api_key == 0] == [(0, 13)]


def test_pipelined_requests_are_answered_in_their_order():
    """Some are answered at once by the processor, others by a handler, others later by another thread."""

    def later(request: Request) -> None:
        delay = random.Random(request.correlation_id).uniform(0, 0.004)
        threading.Timer(delay, lambda: request.respond(m.SyncGroupResponse())).start()

    handlers = {ApiKey.SYNC_GROUP: later, ApiKey.HEARTBEAT: lambda _: m.HeartbeatResponse()}
    messages = [(api_versions(), 3), (heartbeat(), 4), (m.SyncGroupRequest(protocol_type="c"), 5)] * 40
    random.Random(1).shuffle(messages)
    with listener(handlers) as running, running.connect() as client:
        client.socket.sendall(b"".join(frame(each, version, n) for n, (each, version) in enumerate(messages)))
        numbers = [client.receive(ApiKey(each.API_KEY), version)[0] for each, version in messages]
    assert numbers == list(range(len(messages)))


def test_a_peer_that_does_not_read_holds_neither_a_handler_nor_a_processor():
    handlers = {ApiKey.FETCH: large_response(20_000_000)}
    with listener(handlers, num_io_threads=1, num_network_threads=1) as running:
        slow = [running.connect() for _ in range(3)]
        for each in slow:
            each.send(fetch(), 12)
        with running.connect() as quick:
            for _ in range(20):
                quick.ask(api_versions(), 3)
        for each in slow:
            assert len(each.receive_frame()) > 20_000_000
            assert each.ask(api_versions(), 3).error_code == 0
            each.socket.close()


def handler_threads(seconds: Sequence[float], monkeypatch) -> list[str]:
    """Return the kind of thread that handled each of some requests, the handlers of which take so long."""
    monkeypatch.setattr(processor, "_BACK_TO_CHANNEL_NS", 3_600_000_000_000)
    names: list[str] = []

    def handle(_request: Request) -> Any:
        names.append(threading.current_thread().name)
        time.sleep(seconds[len(names) - 1])
        return m.HeartbeatResponse()

    at_once = frozenset({int(ApiKey.HEARTBEAT)})
    with (
        listener({ApiKey.HEARTBEAT: handle}, at_once=at_once, num_network_threads=1) as running,
        running.connect() as client,
    ):
        for _ in seconds:
            client.ask(heartbeat(), 4)
    return ["network" if name.startswith("data-plane-kafka-network-thread-") else "handler" for name in names]


def test_requests_that_are_slow_when_a_processor_handles_them_itself_go_to_the_handlers(monkeypatch):
    kinds = handler_threads([0.02] * 12, monkeypatch)
    assert kinds[0] == "network" and kinds[-1] == "handler"
    assert kinds == sorted(kinds, reverse=True)


def test_one_slow_request_does_not_send_the_next_ones_to_the_handlers(monkeypatch):
    monkeypatch.setattr(processor, "_SLOW_NS", 100_000_000)
    assert handler_threads([0, 0, 0.2, 0, 0, 0], monkeypatch) == ["network"] * 6


def test_a_large_request_is_left_to_the_threads_for_long_work_and_a_large_produce_to_the_handlers():
    names: list[str] = []

    def note(request: Request) -> Any:
        names.append(threading.current_thread().name)
        return m.HeartbeatResponse() if request.api_key is ApiKey.HEARTBEAT else m.ProduceResponse()

    handlers = {ApiKey.HEARTBEAT: note, ApiKey.PRODUCE: note}
    at_once = frozenset(map(int, handlers))
    topic, partition = m.ProduceRequest.TopicProduceData, m.ProduceRequest.PartitionProduceData
    with listener(handlers, at_once=at_once) as running, running.connect() as client:
        for size_bytes in (10_000, 20_000, 70_000):
            client.ask(m.HeartbeatRequest(group_id="g" * (size_bytes // 3), member_id="m" * (size_bytes // 3)), 2)
            data = topic(name="t", partition_data=[partition(records=bytes(size_bytes))])
            client.ask(m.ProduceRequest(topic_data=[data]), 9)
    kinds = ["long" if "long" in each else "handler" if "handler" in each else "network" for each in names]
    assert kinds == ["network", "network", "network", "network", "long", "handler"], names


def test_long_work_delays_no_other_request():
    """Every thread for long work is busy, and more requests wait for it than the queue of the others may hold."""
    gate = Gate()
    handlers = {ApiKey.HEARTBEAT: gate, ApiKey.METADATA: lambda _: m.MetadataResponse()}
    with listener(handlers, num_io_threads=2, queued_max_requests=2) as running:
        clients = [running.connect() for _ in range(8)]
        for client in clients:
            client.send(m.HeartbeatRequest(group_id="g" * 20_000), 3)
        wait_until(lambda: gate.entered == 1)
        with running.connect() as other:
            for _ in range(3):
                assert other.ask(m.MetadataRequest(), 12).error_code == 0
        assert gate.entered == 1
        gate.open.set()
        for client in clients:
            assert client.receive(ApiKey.HEARTBEAT, 3)[1].error_code == 0
            client.socket.close()


def test_the_rest_of_a_request_is_done_on_a_thread_for_long_work():
    names: list[str] = []

    def note(request: Request) -> None:
        def rest() -> Any:
            names.append(threading.current_thread().name)
            if request.correlation_id == 1:
                raise ValueError("a failure")
            return m.HeartbeatResponse(error_code=7)

        request.respond_later(rest)

    with listener({ApiKey.HEARTBEAT: note}) as running:
        with running.connect() as client:
            assert client.ask(heartbeat(), 4).error_code == 7
            client.send(heartbeat(), 4)
            assert client.is_closed()
        with running.connect() as client:
            assert client.ask(heartbeat(), 4).error_code == 7
    assert len(names) == 3 and all(name.startswith("data-plane-long-request-handler-") for name in names), names


def test_a_stop_finishes_long_work_that_has_begun():
    gate = Gate()
    with listener({ApiKey.HEARTBEAT: gate}) as running, running.connect() as client:
        client.send(m.HeartbeatRequest(group_id="g" * 20_000), 3)
        wait_until(lambda: gate.entered == 1)
        running.server.stop_accepting()
        running.server.stop_reading()
        stopping = threading.Thread(target=running.server.stop, args=(20,))
        stopping.start()
        gate.open.set()
        assert client.receive(ApiKey.HEARTBEAT, 3)[1].error_code == 0
        stopping.join(20)
        running.is_stopped = True
        assert not stopping.is_alive()


def test_a_full_queue_stops_the_reading_and_loses_nothing():
    gate = Gate()
    config = {"num_io_threads": 1, "num_network_threads": 2, "queued_max_requests": 2}
    with listener({ApiKey.HEARTBEAT: gate}, **config) as running:
        clients = [running.connect() for _ in range(12)]
        for client in clients:
            client.send(heartbeat(), 4)
        wait_until(lambda: len(running.server.request_channel) == 2)
        time.sleep(0.1)
        assert len(running.server.request_channel) == 2 and gate.entered == 1
        gate.open.set()
        for client in clients:
            assert client.receive(ApiKey.HEARTBEAT, 4)[1].error_code == 0
            client.socket.close()


def test_requests_above_the_common_memory_wait_and_are_then_served():
    gate = Gate()
    config = {"queued_max_request_bytes": 100_000, "socket_request_max_bytes": 100_000}
    big = m.HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000, group_instance_id="i" * 9_000)
    with listener({ApiKey.HEARTBEAT: gate}, **config) as running:
        clients = [running.connect() for _ in range(4)]
        for client in clients:
            client.send(big, 4)
        wait_until(lambda: gate.entered == 1)
        time.sleep(0.1)
        assert gate.entered == 1
        gate.open.set()
        for client in clients:
            assert client.receive(ApiKey.HEARTBEAT, 4)[1].error_code == 0
        wait_until(lambda: running.server.memory.free_bytes == 100_000)
        for client in clients:
            client.socket.close()


def announced(running: Any, size: int, api_key: int = ApiKey.PRODUCE) -> Client:
    """Connect, and send the size of a request and its API key."""
    client = running.connect()
    client.socket.sendall(struct.pack(">ih", size, api_key))
    return client


def produce_of(size_bytes: int) -> Any:
    topic, partition = m.ProduceRequest.TopicProduceData, m.ProduceRequest.PartitionProduceData
    return m.ProduceRequest(topic_data=[topic(name="t", partition_data=[partition(records=bytes(size_bytes))])])


def test_large_requests_that_do_not_arrive_keep_no_other_request_out():
    handlers = {ApiKey.PRODUCE: lambda _: m.ProduceResponse(), ApiKey.HEARTBEAT: lambda _: m.HeartbeatResponse()}
    with listener(handlers, queued_max_request_bytes=40 << 20, socket_request_max_bytes=20 << 20) as running:
        slow = [announced(running, 20 << 20) for _ in range(6)]
        wait_until(lambda: running.server.memory.is_short)
        with running.connect() as client:
            assert client.ask(heartbeat(), 4).error_code == 0
            client.ask(produce_of(2 << 20), 9)
        for each in slow:
            each.socket.close()


def test_a_request_that_arrives_slowly_is_given_up_while_others_wait_for_its_memory(monkeypatch, caplog):
    monkeypatch.setattr(processor, "_SHORT_NS", 200_000_000)
    keys = {"queued_max_request_bytes": 1 << 20, "socket_request_max_bytes": 1 << 20}
    handlers = {ApiKey.PRODUCE: lambda _: m.ProduceResponse()}
    with listener(handlers, **keys) as running:
        slow = announced(running, 1 << 20)
        wait_until(lambda: running.server.memory.free_bytes == 0)  # another processor reads the next client's request
        with running.connect() as client:
            client.ask(produce_of(500_000), 9)
        assert slow.is_closed()
        slow.socket.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "arrives slowly" in line


def test_a_busy_server_gives_up_a_request_that_arrives_slowly(monkeypatch, caplog):
    """Each response frees memory for a moment, but the frame that waits needs more."""
    monkeypatch.setattr(processor, "_SHORT_NS", 200_000_000)
    keys = {"queued_max_request_bytes": 1 << 20, "socket_request_max_bytes": 1 << 20}
    with listener({ApiKey.PRODUCE: lambda _: m.ProduceResponse()}, num_network_threads=1, **keys) as running:
        slow = announced(running, 700_000)
        wait_until(lambda: running.server.memory.free_bytes < 1 << 19)
        with running.connect() as large, running.connect() as busy:
            large.send(produce_of(500_000), 9)
            wait_until(lambda: running.server.memory.is_short)
            seen = []
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                busy.ask(produce_of(70_000), 9)
                seen.append(running.server.memory.is_short)
            assert all(seen)
            large.receive(ApiKey.PRODUCE, 9)
        assert slow.is_closed()
        slow.socket.close()
    assert ["arrives slowly" in record.getMessage() for record in caplog.records] == [True]


def test_a_wait_for_memory_does_not_count_as_slow_sending():
    gate = Gate()
    keys = {"queued_max_request_bytes": 100_000, "socket_request_max_bytes": 100_000}
    handlers = {ApiKey.HEARTBEAT: gate, ApiKey.PRODUCE: lambda _: m.ProduceResponse()}
    listening = listener(handlers, request_receive_timeout_ms=400, **keys)
    big = m.HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000, group_instance_id="i" * 9_000)
    with listening as running, running.connect() as first, running.connect() as second:
        first.send(big, 4)
        wait_until(lambda: gate.entered == 1)
        sent = frame(produce_of(70_000), 9, 1)
        second.socket.sendall(sent[:3])
        time.sleep(0.05)
        second.socket.sendall(sent[3:])
        wait_until(lambda: running.server.memory.is_short)
        time.sleep(0.8)
        gate.open.set()
        first.receive(ApiKey.HEARTBEAT, 4)
        second.receive(ApiKey.PRODUCE, 9)


def test_a_request_that_waits_uses_no_memory_of_requests():
    waiting: list[Request] = []

    def wait(request: Request) -> None:
        request.begin_wait()
        waiting.append(request)

    keys = {"queued_max_request_bytes": 100_000, "socket_request_max_bytes": 100_000}
    with listener({ApiKey.PRODUCE: wait}, **keys) as running:
        clients = [running.connect() for _ in range(3)]
        for client in clients:
            client.send(produce_of(70_000), 9)
        wait_until(lambda: len(waiting) == 3 and running.server.memory.free_bytes == 100_000)
        for request in waiting:
            request.respond(m.ProduceResponse())
        for client in clients:
            client.receive(ApiKey.PRODUCE, 9)
            client.socket.close()
        assert running.server.memory.free_bytes == 100_000


def test_a_response_that_is_not_read_keeps_no_memory_of_its_request():
    requests: list[Request] = []
    answer = large_response(3 << 20)

    def note(request: Request) -> Any:
        requests.append(request)
        return answer(request)

    with listener({ApiKey.FETCH: note}) as running, running.connect() as client:
        client.send(fetch(), 12)
        wait_until(lambda: bool(requests) and requests[0].message is None)
        assert requests[0].frame.nbytes == 0
        assert len(client.receive_frame()) > 3 << 20


def test_peers_that_do_not_read_hold_limited_memory(caplog):
    keys = {"queued_max_request_bytes": 40 << 20, "socket_request_max_bytes": 1 << 20}
    with listener({ApiKey.FETCH: large_response(12 << 20)}, **keys) as running:
        slow = [running.connect() for _ in range(8)]
        for client in slow:
            client.send(fetch(), 12)
        wait_until(lambda: running.server.quotas.total == 3)
        with running.connect() as other:
            other.send(fetch(), 12)
            assert len(other.receive_frame()) > 12 << 20
        ends = []
        for client in slow:
            try:
                ends.append(len(client.receive_frame()) > 12 << 20)
            except ConnectionError:
                ends.append(False)
            client.socket.close()
        assert sum(ends) in (2, 3), ends  # the response of `other` may have needed the memory of one more
    lines = [record.getMessage() for record in caplog.records]
    assert all("the memory for responses is used up" in line for line in lines) and len(lines) == 8 - sum(ends)


def test_a_connection_that_is_reset_while_it_waits_for_memory_is_closed():
    gate = Gate()
    big = m.HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000, group_instance_id="i" * 9_000)
    config = {"queued_max_request_bytes": 100_000, "socket_request_max_bytes": 100_000}
    with listener({ApiKey.HEARTBEAT: gate}, **config) as running, running.connect() as first:
        first.send(big, 4)
        wait_until(lambda: gate.entered == 1)
        second = running.connect()
        second.send(big, 4)
        wait_until(lambda: running.server.quotas.total == 2)
        time.sleep(0.1)  # until the second request waits for memory
        second.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        second.socket.close()
        wait_until(lambda: running.server.quotas.total == 1)
        gate.open.set()
        assert first.receive(ApiKey.HEARTBEAT, 4)[1].error_code == 0


def test_an_idle_connection_is_closed_and_one_that_waits_for_a_response_is_not():
    gate = Gate()
    config = {"connections_max_idle_ms": 1000}
    with (
        listener({ApiKey.HEARTBEAT: gate}, **config) as running,
        running.connect() as waiting,
        running.connect() as idle,
    ):
        waiting.send(heartbeat(), 4)
        assert idle.is_closed()
        time.sleep(0.5)
        gate.open.set()
        assert waiting.receive(ApiKey.HEARTBEAT, 4)[1].error_code == 0
        assert waiting.is_closed()


def test_a_connection_whose_peer_goes_while_its_request_waits_is_closed():
    waiting: list[Request] = []
    with listener({ApiKey.SYNC_GROUP: waiting.append}) as running:
        client = running.connect()
        client.send(m.SyncGroupRequest(protocol_type="c"), 5)
        wait_until(lambda: bool(waiting))
        client.socket.close()
        wait_until(lambda: running.server.quotas.total == 0)
        waiting[0].respond(m.SyncGroupResponse())
        wait_until(lambda: running.server.memory.free_bytes == 268_435_456)


def test_requests_of_a_peer_that_goes_while_the_first_one_waits_are_still_handled():
    waiting: list[Request] = []
    gate = Gate()
    gate.open.set()
    with listener({ApiKey.SYNC_GROUP: waiting.append, ApiKey.HEARTBEAT: gate}) as running:
        client = running.connect()
        client.socket.sendall(
            frame(m.SyncGroupRequest(protocol_type="c"), 5, 1) + frame(heartbeat(), 4, 2) + frame(heartbeat(), 4, 3)
        )
        wait_until(lambda: bool(waiting))
        client.socket.close()
        time.sleep(0.1)
        waiting[0].respond(m.SyncGroupResponse())
        wait_until(lambda: gate.entered > 0)
        wait_until(lambda: running.server.quotas.total == 0)


@pytest.mark.parametrize("part", [b"\0", struct.pack(">i", 100), struct.pack(">ihh", 100, 18, 3)])
def test_a_request_that_does_not_end_is_given_up(part, caplog):
    with listener(request_receive_timeout_ms=150) as running, running.connect() as half, running.connect() as idle:
        half.socket.sendall(part)
        assert half.is_closed()
        assert idle.ask(api_versions(), 3).error_code == 0
    assert "a request did not end in time; the connection was closed" in caplog.text


def test_bytes_that_trickle_in_do_not_extend_the_time_of_a_request():
    with listener(request_receive_timeout_ms=300) as running, running.connect() as client:
        started = time.monotonic()
        client.socket.sendall(struct.pack(">ihh", 100, 18, 3))
        with pytest.raises(OSError):
            while time.monotonic() < started + LIMIT_SECONDS:
                client.socket.sendall(b"\0")
                time.sleep(0.05)
        assert time.monotonic() < started + LIMIT_SECONDS


def test_a_peer_that_takes_no_byte_of_its_response_is_closed(caplog):
    handlers = {ApiKey.FETCH: large_response(20_000_000)}
    with listener(handlers, connections_max_idle_ms=200) as running, running.connect() as client:
        client.send(fetch(), 12)
        wait_until(lambda: "the peer read no byte of a response" in caplog.text)
        wait_until(lambda: running.server.quotas.total == 0)


def test_clients_that_go_in_the_middle_of_a_response_leave_nothing_behind():
    handlers = {ApiKey.FETCH: large_response(20_000_000)}
    with listener(handlers) as running:
        for _ in range(10):
            client = running.connect()
            client.send(fetch(), 12)
            client._receive(1000)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()
        wait_until(lambda: running.server.quotas.total == 0)
        assert running.server.memory.free_bytes == 268_435_456
        with running.connect() as other:
            assert other.ask(api_versions(), 3).error_code == 0


def test_a_client_that_goes_while_its_request_waits_gives_its_memory_back():
    gate = Gate()
    with listener({ApiKey.HEARTBEAT: gate}) as running:
        client = running.connect()
        client.send(heartbeat(), 4)
        wait_until(lambda: gate.entered == 1)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        wait_until(lambda: running.server.quotas.total == 0)
        gate.open.set()
        wait_until(lambda: running.server.memory.free_bytes == 268_435_456)


def test_a_thousand_connections_are_served():
    # A backlog of 50, which Kafka has by default, would let some wait for a second SYN.
    with listener(socket_listen_backlog_size=1000) as running:
        clients = [running.connect() for _ in range(1000)]
        request = frame(api_versions(), 3, 7)
        for client in clients:
            client.socket.sendall(request)
        for client in clients:
            assert client.receive(ApiKey.API_VERSIONS, 3)[0] == 7
        assert running.server.quotas.total == 1000
        for client in clients:
            client.socket.close()
        wait_until(lambda: running.server.quotas.total == 0)


def test_connections_above_the_limits_are_refused_until_others_go(caplog):
    with listener(max_connections=3) as running:
        clients = [running.connect() for _ in range(3)]
        for client in clients:
            client.ask(api_versions(), 3)
        with running.connect() as refused:
            assert refused.is_closed()
        wait_until(lambda: "max.connections=3 is reached; the connection was refused" in caplog.text)
        assert running.metrics.connections_refused == 1
        clients.pop().socket.close()
        wait_until(lambda: running.server.quotas.total == 2)
        with running.connect() as accepted:
            assert accepted.ask(api_versions(), 3).error_code == 0
        for client in clients:
            client.socket.close()


def test_an_address_may_have_fewer_connections_than_all(caplog):
    with listener(max_connections_per_ip=1) as running, running.connect() as client:
        client.ask(api_versions(), 3)
        with running.connect() as refused:
            assert refused.is_closed()
    assert "127.0.0.1: max.connections.per.ip=1 is reached; the connection was refused" in caplog.messages


def test_a_flood_of_bad_connections_neither_stops_the_server_nor_fills_the_log(caplog):
    dice = random.Random(3)
    with listener(socket_listen_backlog_size=1000) as running, running.connect() as steady:
        for _ in range(400):
            with running.connect() as bad:
                bad.socket.sendall(dice.randbytes(dice.randrange(1, 60)))
        assert steady.ask(api_versions(), 3).error_code == 0
        wait_until(lambda: running.server.quotas.total == 1)
    assert len(caplog.records) < 100


def test_a_handler_that_fails_closes_only_its_connection(caplog):
    def fail(_request: Request) -> None:
        raise ValueError("a bug")

    with listener({ApiKey.HEARTBEAT: fail}) as running, running.connect() as other:
        with running.connect() as client:
            client.send(heartbeat(), 4)
            assert client.is_closed()
        assert other.ask(api_versions(), 3).error_code == 0
        wait_until(lambda: running.server.memory.free_bytes == 268_435_456)
    assert "Heartbeat version 4: failed" in caplog.text and "a bug" in caplog.text


def test_a_response_that_cannot_be_encoded_closes_its_connection(caplog):
    handlers = {ApiKey.HEARTBEAT: lambda _: m.HeartbeatResponse(error_code="none")}
    with listener(handlers) as running, running.connect() as client:
        client.send(heartbeat(), 4)
        assert client.is_closed()
    assert "Heartbeat version 4" in caplog.text


def test_a_request_has_one_outcome():
    errors: list[Exception] = []

    def twice(request: Request) -> None:
        request.respond(m.HeartbeatResponse())
        try:
            request.respond(m.HeartbeatResponse())
        except RuntimeError as error:
            errors.append(error)

    with listener({ApiKey.HEARTBEAT: twice}) as running, running.connect() as client:
        assert client.ask(heartbeat(), 4).error_code == 0
        assert client.ask(api_versions(), 3).error_code == 0
    assert len(errors) == 1


def test_a_request_may_have_no_response():
    """Such is a produce with acks=0; the connection goes on."""
    handlers = {ApiKey.HEARTBEAT: lambda request: request.respond(None)}
    with listener(handlers) as running, running.connect() as client:
        client.send(heartbeat(), 4)
        assert client.send(api_versions(), 3) == 1
        assert client.receive(ApiKey.API_VERSIONS, 3)[0] == 1


def test_a_stop_finishes_the_requests_in_progress_and_closes_idle_connections():
    gate = Gate()
    with listener({ApiKey.HEARTBEAT: gate}, num_io_threads=1) as running:
        idle, busy, queued = (running.connect() for _ in range(3))
        for client in (busy, queued):
            client.send(heartbeat(), 4)
        wait_until(lambda: gate.entered == 1 and len(running.server.request_channel) == 1)
        running.is_stopped = True
        running.server.stop_accepting()
        running.server.stop_reading()
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            running.connect()
        stop = threading.Thread(target=running.server.stop, args=(LIMIT_SECONDS,))
        stop.start()
        gate.open.set()
        for client in (busy, queued):
            assert client.receive(ApiKey.HEARTBEAT, 4)[1].error_code == 0
            assert client.is_closed()
        stop.join(LIMIT_SECONDS)
        assert not stop.is_alive()


def test_a_stop_does_not_wait_for_a_handler_that_hangs_or_for_a_peer_that_does_not_read():
    gate = Gate()
    with listener({ApiKey.HEARTBEAT: gate, ApiKey.FETCH: large_response(20_000_000)}) as running:
        hanging, unread = running.connect(), running.connect()
        hanging.send(heartbeat(), 4)
        unread.send(fetch(), 12)
        wait_until(lambda: gate.entered == 1)
        running.is_stopped = True
        started = time.monotonic()
        running.server.stop_accepting()
        running.server.stop_reading()
        running.server.stop(0.3)
        assert time.monotonic() - started < LIMIT_SECONDS / 2
        assert hanging.is_closed()
        gate.open.set()


def test_a_handler_that_ends_after_the_stop_writes_into_no_file_that_was_opened_since(tmp_path):
    """Its response wakes the processor through a descriptor, whose number must not be that of another file by then."""
    gate = Gate()
    with listener({ApiKey.HEARTBEAT: gate}) as running:
        clients = [running.connect() for _ in range(3)]
        for client in clients:
            client.send(heartbeat(), 4)
        wait_until(lambda: gate.entered == 3)
        running.is_stopped = True
        running.server.stop_accepting()
        running.server.stop_reading()
        running.server.stop(0.1)
        for client in clients:
            client.socket.close()
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context((tmp_path / str(number)).open("wb")) for number in range(200)]
            gate.open.set()
            wait_until(lambda: not any(map(threading.Thread.is_alive, _handlers())))
            assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == []
            assert len(files) == 200


def _handlers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("data-plane-kafka-request-handler")]


def test_a_server_that_cannot_listen_leaves_no_open_descriptor():
    config = ServerConfig()
    with socket_server.bind(Endpoint("127.0.0.1", 0), config) as first:
        port = first.getsockname()[1]
        with socket_server.bind(Endpoint("127.0.0.1", port), config) as second:
            first.listen()
            gc.collect()  # processors of earlier tests close their descriptors
            before = len(os.listdir("/proc/self/fd"))
            kept = [server_on(second, config) for _ in range(3)]
            for server in kept:
                server.start()
                with pytest.raises(UsageError, match="cannot listen on"):
                    server.open()
                server.stop(1)
            of_processors = len(kept) * config.num_network_threads  # closed with the processors, which `kept` refers to
            assert len(os.listdir("/proc/self/fd")) <= before + of_processors


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from tests.server.network.listeners import listener

resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
with listener(max_connections=20) as running:
    opened = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        print(running.port, flush=True)
    sys.stdin.readline()
"""


def test_connections_have_descriptors_of_their_own():
    """As many files are open as the process may open; two rounds show that closed connections give theirs back."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline())
            for _ in range(2):
                clients = [Client.to(port) for _ in range(20)]
                for client in clients:
                    assert client.ask(api_versions(), 3).error_code == 0
                for client in clients:
                    client.socket.close()
        finally:
            process.communicate("end")
    assert process.returncode == 0


def refuse_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> list[threading.Thread]:
    """Let no thread start whose name contains `name`; return a list to which each started thread is added."""
    started: list[threading.Thread] = []
    really_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if name in thread.name:
            raise RuntimeError("can't start new thread")
        really_start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return started


@pytest.mark.parametrize(("refused", "before"), [("request-handler-1", 1), ("ListenerName(PLAINTEXT)-PLAINTEXT-1", 4)])
def test_a_start_without_enough_threads_ends_those_that_it_started(refused, before, monkeypatch):
    config = ServerConfig(num_network_threads=2, num_io_threads=2)
    with socket_server.bind(Endpoint("127.0.0.1", 0), config) as listening:
        server = server_on(listening, config)
        started = refuse_thread(monkeypatch, refused)
        with pytest.raises(UsageError, match="may start no more threads"):
            server.start()
        assert len(started) == before
        wait_until(lambda: not any(map(threading.Thread.is_alive, started)))


def test_an_acceptor_without_a_thread_is_wrong_use_and_leaves_no_open_descriptor(monkeypatch):
    config = ServerConfig()
    with socket_server.bind(Endpoint("127.0.0.1", 0), config) as listening:
        server = server_on(listening, config)
        refuse_thread(monkeypatch, "socket-acceptor")
        gc.collect()  # processors of earlier tests close their descriptors
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(UsageError, match="may start no more threads"):
            server.open()
        assert len(os.listdir("/proc/self/fd")) == before


def server_on(listening: socket.socket, config: ServerConfig) -> SocketServer:
    metrics = RequestMetrics(config.num_network_threads)
    return SocketServer(listening, Listener("PLAINTEXT", "127.0.0.1"), config, lambda _: None, metrics, frozenset())


def test_threads_have_the_names_of_kafkas():
    with listener(num_network_threads=1, num_io_threads=2, node_id=5) as running:
        names = {thread.name for thread in threading.enumerate()}
        port = running.port
    assert {
        f"data-plane-kafka-socket-acceptor-ListenerName(PLAINTEXT)-PLAINTEXT-{port}",
        "data-plane-kafka-network-thread-5-ListenerName(PLAINTEXT)-PLAINTEXT-0",
        "data-plane-kafka-request-handler-0",
        "data-plane-kafka-request-handler-1",
    } <= names


def test_a_connection_knows_its_addresses_and_its_client():
    seen: list[Request] = []

    def remember(request: Request) -> Any:
        seen.append(request)
        return m.HeartbeatResponse()

    with listener({ApiKey.HEARTBEAT: remember}) as running, running.connect() as client:
        client.ask(api_versions(), 3)
        client.ask(heartbeat(), 4)
        peer = f"127.0.0.1:{client.socket.getsockname()[1]}"
    connection = seen[0].connection
    assert (connection.peer, connection.client_host) == (peer, "/127.0.0.1")
    assert connection.id.startswith(f"127.0.0.1:{running.port}-{peer}-")
    assert (connection.principal, connection.client_software) == ("User:ANONYMOUS", "test-1")
    assert (seen[0].client_id, seen[0].correlation_id, seen[0].api_version) == ("test", 1, 4)


def test_many_clients_connect_before_the_first_one_asks():
    with listener() as running:
        clients = [Client(socket.create_connection(("127.0.0.1", running.port))) for _ in range(30)]
        for client in clients:
            assert client.ask(api_versions(), 0).error_code == 0
            client.socket.close()
