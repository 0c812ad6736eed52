"""Slices of files in responses, over plain and encrypted sockets: content, truncated files, clients that go."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.fs import Fs, ReadableFile
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.network import processor
from sediment.server.requests import Request
from sediment.server.security.tls import server_context
from tests.server.network.listeners import Client, api_versions, frame, listener
from tests.server.security.certificates import write_certificates
from tests.waiting import LIMIT_SECONDS, wait_until

SIZE = 9_000_000


class BadSectors(ReadableFile):
    """A file that can be read up to the middle."""

    __slots__ = ()

    def read(self, position: int, count: int) -> bytes:
        _check(position, self.path)
        return super().read(position, count)

    def send(self, target: socket.socket, position: int, count: int) -> int:
        _check(position, self.path)
        return super().send(target, position, min(count, SIZE // 2))


def _check(position: int, path: Path) -> None:
    if position >= SIZE // 2:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


class FailingDisk(Fs):
    def open_readable(self, path: Path) -> ReadableFile:
        return BadSectors(path, self.open_to_read(path))


class File:
    """A handler of Fetch that answers each requested partition with a slice of a file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "00000000000000000000.log"
        self.content = random.Random(1).randbytes(SIZE)
        self.path.write_bytes(self.content)
        self.promised_bytes = SIZE
        self.open = Fs().open_readable

    def __call__(self, request: Request) -> Any:
        response = m.FetchResponse
        partitions = [
            response.PartitionData(
                partition_index=each.partition,
                records=FileSlice(self.open(self.path), each.fetch_offset, self.promised_bytes - each.fetch_offset),
            )
            for each in request.message.topics[0].partitions
        ]
        return response(responses=[response.FetchableTopicResponse(topic="t", partitions=partitions)])

    def descriptors(self) -> int:
        """Return how often this process has the file open."""
        open_files = (Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(each) == str(self.path) for each in open_files)


def fetch(*offsets: int) -> Any:
    request = m.FetchRequest
    partitions = [
        request.FetchPartition(partition=number, fetch_offset=offset) for number, offset in enumerate(offsets)
    ]
    return request(topics=[request.FetchTopic(topic="t", partitions=partitions)])


def hashes_of(client: Client, *offsets: int) -> list[str]:
    client.send(fetch(*offsets), 12)
    response = client.receive(ApiKey.FETCH, 12)[1]
    return [hashlib.sha1(each.records).hexdigest() for each in response.responses[0].partitions]


@pytest.fixture(params=["plain", "tls"])
def encryption(request, tmp_path):
    """Return the contexts of server and client, both None without TLS."""
    if request.param == "plain":
        return None, None
    files = write_certificates(tmp_path)
    return server_context(files.certificate, files.key), files.client_context()


def test_slices_arrive_as_they_are_in_the_file(encryption, tmp_path):
    file, offsets = File(tmp_path), (0, SIZE - 1, 4_000_000, SIZE)
    with listener({ApiKey.FETCH: file}, tls=encryption[0]) as running, running.connect(encryption[1]) as client:
        for _ in range(2):
            expected = [hashlib.sha1(file.content[offset:]).hexdigest() for offset in offsets]
            assert hashes_of(client, *offsets) == expected
            assert client.ask(api_versions(), 3).error_code == 0
        wait_until(lambda: file.descriptors() == 0)


def test_a_file_that_is_shorter_than_promised_closes_the_connection(encryption, tmp_path, caplog):
    file = File(tmp_path)
    with listener({ApiKey.FETCH: file}, tls=encryption[0]) as running:
        file.promised_bytes = SIZE + 1
        with running.connect(encryption[1]) as client, pytest.raises(OSError):
            hashes_of(client, 0)
        assert "truncated while it was read" in caplog.text
        wait_until(lambda: file.descriptors() == 0)
        file.promised_bytes = SIZE
        with running.connect(encryption[1]) as client:
            assert hashes_of(client, 0) == [hashlib.sha1(file.content).hexdigest()]


def test_a_disk_that_fails_in_the_middle_of_a_response_closes_the_connection(encryption, tmp_path, caplog):
    file = File(tmp_path)
    file.open = FailingDisk().open_readable
    with listener({ApiKey.FETCH: file}, tls=encryption[0]) as running:
        with running.connect(encryption[1]) as client, pytest.raises(OSError):
            hashes_of(client, 0)
        assert "Input/output error" in caplog.text and "the connection was closed" in caplog.text
        wait_until(lambda: file.descriptors() == 0 and running.server.quotas.total == 0)
        file.open = Fs().open_readable
        with running.connect(encryption[1]) as client:
            assert hashes_of(client, 0) == [hashlib.sha1(file.content).hexdigest()]


def test_clients_that_are_killed_in_the_middle_of_a_transfer_leave_no_open_file(encryption, tmp_path):
    file = File(tmp_path)
    with listener({ApiKey.FETCH: file}, tls=encryption[0]) as running:
        for number in range(10):
            client = running.connect(encryption[1])
            client.send(fetch(0, 0, 0), 12)
            client._receive(1 + number * 100_000)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()
        wait_until(lambda: running.server.quotas.total == 0 and file.descriptors() == 0)
        with running.connect(encryption[1]) as client:
            assert hashes_of(client, 0) == [hashlib.sha1(file.content).hexdigest()]


def test_a_peer_that_stops_reading_holds_up_no_other_connection(tmp_path):
    file = File(tmp_path)
    with listener({ApiKey.FETCH: file}, num_network_threads=1) as running, running.connect() as other:
        with running.connect() as stopped:
            for _ in range(3):  # quick, so that the server waits for it
                hashes_of(stopped, 0)
            for _ in range(3):
                stopped.send(fetch(0, 0), 12)
                before = time.perf_counter()
                for _ in range(50):
                    assert other.ask(api_versions(), 3).error_code == 0
                assert time.perf_counter() - before < LIMIT_SECONDS / 2
                stopped.receive(ApiKey.FETCH, 12)
        wait_until(lambda: running.server.quotas.total == 1)


def wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a send wait for its socket until something else happens."""
    monkeypatch.setattr(processor, "_LONGEST_WAIT_MS", 10_000_000)
    monkeypatch.setattr(processor, "_LONGEST_SCAN_NS", 10_000_000 * 1_000_000)


def test_a_wait_for_a_full_socket_ends_when_anything_else_happens(encryption, tmp_path, monkeypatch):
    wait_for_ever(monkeypatch)
    file = File(tmp_path)
    with listener(
        {ApiKey.FETCH: file}, tls=encryption[0], num_network_threads=1, request_receive_timeout_ms=10_000_000
    ) as running:
        with running.connect(encryption[1]) as other, running.connect(encryption[1]) as stopped:
            stopped.send(fetch(0), 12)
            stopped._receive(100_000)
            assert other.ask(api_versions(), 3).error_code == 0  # by the processor
            assert hashes_of(other, SIZE - 10) == [hashlib.sha1(file.content[-10:]).hexdigest()]  # by a handler
            with running.connect(encryption[1]) as late:
                assert late.ask(api_versions(), 3).error_code == 0
            stopped.send(api_versions(), 3)  # before it has its response
            assert other.ask(api_versions(), 3).error_code == 0
        wait_until(lambda: running.server.quotas.total == 0)
        with running.connect(encryption[1]) as stopped:
            stopped.send(fetch(0), 12)
            stopped._receive(100_000)
            running.server.stop_accepting()
            running.server.stop_reading()
            before = time.monotonic()
            running.server.stop(1)
            assert time.monotonic() - before < LIMIT_SECONDS / 2
            running.is_stopped = True


def test_a_peer_that_stops_reading_does_not_hold_up_requests_that_the_server_has_already_received(
    tmp_path, monkeypatch
):
    wait_for_ever(monkeypatch)
    monkeypatch.setattr(processor, "_SLOW_NS", LIMIT_SECONDS * 1e9)  # the processor handles all requests itself
    file, release = File(tmp_path), threading.Event()

    def hold(_request: Request) -> Any:
        release.wait(LIMIT_SECONDS)
        return m.HeartbeatResponse()

    at_once = frozenset({int(ApiKey.API_VERSIONS), int(ApiKey.FETCH), int(ApiKey.HEARTBEAT)})
    with (
        listener(
            {ApiKey.FETCH: file, ApiKey.HEARTBEAT: hold},
            at_once=at_once,
            num_network_threads=1,
            request_receive_timeout_ms=10_000_000,
        ) as running,
        running.connect() as holding,
        running.connect(timeout_seconds=LIMIT_SECONDS) as other,
        running.connect() as stopped,
    ):
        for client in (holding, stopped, other):
            client.ask(api_versions(), 3)
        holding.send(m.HeartbeatRequest(group_id="g", member_id="m"), 4)
        asked = [frame(api_versions(), 3, number) for number in range(100)]
        # More requests than a connection gets in a row, so that both connections have another turn.
        stopped.socket.sendall(b"".join(asked[:20]) + frame(fetch(0, 0), 12, 20))
        other.socket.sendall(b"".join(asked))
        release.set()
        for number in range(100):
            assert other.receive(ApiKey.API_VERSIONS, 3)[0] == number


def test_deadlines_expire_while_a_peer_does_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_LONGEST_WAIT_MS", 10_000_000)
    file = File(tmp_path)
    with (
        listener({ApiKey.FETCH: file}, num_network_threads=1, request_receive_timeout_ms=200) as running,
        running.connect() as half,
        running.connect() as stopped,
    ):
        half.socket.sendall(b"\0")
        stopped.send(fetch(0, 0), 12)
        assert half.is_closed(within_seconds=LIMIT_SECONDS)


class SlowSends(ReadableFile):
    """A file whose bytes are sent slowly."""

    __slots__ = ()

    def send(self, target: socket.socket, position: int, count: int) -> int:
        time.sleep(0.02)
        return super().send(target, position, count)


class SlowDisk(Fs):
    def open_readable(self, path: Path) -> ReadableFile:
        return SlowSends(path, self.open_to_read(path))


def test_requests_with_responses_that_take_long_to_send_are_not_slow_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_BACK_TO_CHANNEL_NS", 3_600_000_000_000)
    file, names = File(tmp_path), []
    file.open = SlowDisk().open_readable

    def handle(request: Request) -> Any:
        names.append(threading.current_thread().name)
        return file(request)

    at_once = frozenset({int(ApiKey.FETCH)})
    with (
        listener({ApiKey.FETCH: handle}, at_once=at_once, num_network_threads=1) as running,
        running.connect() as client,
    ):
        for _ in range(12):
            hashes_of(client, SIZE - 10)
    assert {name.partition("-thread-")[0] for name in names} == {"data-plane-kafka-network"}


def test_many_slow_readers_are_served_side_by_side(tmp_path):
    file = File(tmp_path)
    expected = hashlib.sha1(file.content).hexdigest()
    with listener({ApiKey.FETCH: file}, num_network_threads=1) as running:
        clients = [running.connect() for _ in range(8)]
        for client in clients:
            client.send(fetch(0), 12)
        received = [bytearray() for _ in clients]
        wanted = SIZE + 4
        while any(len(each) < wanted for each in received):
            for client, each in zip(clients, received, strict=True):
                if len(each) < wanted:
                    each += client.socket.recv(200_000)
                    wanted = 4 + struct.unpack_from(">i", each)[0]
        for client, each in zip(clients, received, strict=True):
            body = m.FetchResponse.decode(bytes(each[9:]), 12)
            assert hashlib.sha1(body.responses[0].partitions[0].records).hexdigest() == expected
            client.socket.close()
