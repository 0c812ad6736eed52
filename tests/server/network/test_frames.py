"""Frames over real socket pairs: every way to cut a stream, every limit, and memory."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.fs import Fs, ReadableFile
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.server.network.frames import (
    LARGE_FRAME_BYTES,
    SMALL_FRAME_BYTES,
    FrameLimits,
    FrameMemory,
    FrameReader,
    InvalidReceiveError,
    PeerClosedError,
    ResponseMemory,
    ResponseSend,
)
from sediment.server.network.transport_layer import PlaintextTransportLayer

PRODUCE, FETCH = 0, 1


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, PlaintextTransportLayer]]:
    """Yield the client's socket and the server's transport layer."""
    client, server = socket.socketpair()
    server.setblocking(False)
    with client, server:
        yield client, PlaintextTransportLayer(server)


def reader(memory: FrameMemory | None = None, *, is_authenticated: bool = True, max_bytes: int = 1 << 20):
    limits = FrameLimits(max_bytes, other_max_bytes=100_000, unauthenticated_max_bytes=50_000)
    return FrameReader(limits, lambda: is_authenticated, memory or FrameMemory(1 << 30, 1 << 20))


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def nothing() -> None:
    pass


def no_wait() -> bool:
    return False


@given(
    bodies=st.lists(st.integers(1, 300), max_size=6).map(lambda sizes: [bytes([n % 7]) * n for n in sizes]),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    scratch_bytes=st.integers(1, 400),
)
def test_frames_are_the_same_however_the_stream_is_cut(bodies, cuts, scratch_bytes):
    stream = b"".join(map(framed, bodies))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    found = []
    frames = reader()
    scratch = memoryview(bytearray(scratch_bytes))
    with pair() as (client, transport):
        for start, end in itertools.pairwise(edges):
            client.sendall(stream[start:end])
            while (frame := frames.read(transport, scratch, nothing)) is not None:
                found.append(bytes(frame))
        assert not frames.is_in_frame
        client.close()
        with pytest.raises(PeerClosedError):
            frames.read(transport, scratch, nothing)
    assert found == bodies


@pytest.mark.parametrize("size", [0, -1, -(2**31)])
def test_a_size_that_is_not_positive_is_refused(size):
    with pair() as (client, transport):
        client.sendall(struct.pack(">i", size))
        with pytest.raises(InvalidReceiveError, match=f"has the size {size}"):
            reader().read(transport, memoryview(bytearray(100)), nothing)


@pytest.mark.parametrize(
    ("api_key", "is_authenticated", "limit"),
    [(PRODUCE, True, 1 << 20), (FETCH, True, 100_000), (PRODUCE, False, 50_000), (FETCH, False, 50_000)],
)
def test_a_frame_above_its_limit_is_refused_before_it_takes_memory(api_key, is_authenticated, limit):
    for size, is_refused in ((limit, False), (limit + 1, True)):
        memory = FrameMemory(1 << 30, 1 << 20)
        frames = reader(memory, is_authenticated=is_authenticated)
        with pair() as (client, transport):
            client.sendall(struct.pack(">ih", size, api_key))
            if is_refused:
                with pytest.raises(InvalidReceiveError, match=f"{size} bytes is above the limit of {limit}"):
                    frames.read(transport, memoryview(bytearray(100)), nothing)
                assert memory.free_bytes == 1 << 30
            else:
                assert frames.read(transport, memoryview(bytearray(100)), nothing) is None
                assert memory.free_bytes == (1 << 30) - (size if size > SMALL_FRAME_BYTES else 0)
                assert frames.is_in_frame


def test_a_stream_that_ends_within_a_frame_is_told_from_one_that_ends_between_frames():
    for sent, in_frame in ((b"", False), (b"\0\0", True), (framed(b"whole"), False), (framed(b"half")[:-1], True)):
        frames = reader()
        with pair() as (client, transport):
            client.sendall(sent)
            client.close()
            with pytest.raises(PeerClosedError) as error:
                while True:
                    frames.read(transport, memoryview(bytearray(100)), nothing)
        assert error.value.in_frame is in_frame


def test_memory_that_is_given_back_is_announced_once_for_all_waiters_of_a_callback_until_they_have_it():
    memory, freed = FrameMemory(1000, 1000), []

    def when_freed() -> None:
        freed.append(memory.free_bytes)

    assert memory.take(1000, "holder", nothing)
    for waiter in ("a", "b", "c"):
        assert not memory.take(500, waiter, when_freed)
    memory.give_back(400)
    assert freed == [400] and memory.is_short
    memory.give_back(600)
    assert freed == [400, 1000]
    assert memory.take(500, "a", when_freed) and memory.is_short
    assert memory.take(500, "b", when_freed) and memory.is_short
    memory.stop_waiting("c")
    assert not memory.is_short


def test_a_frame_whose_peer_is_gone_waits_for_no_memory():
    memory = FrameMemory(100_000, 100_000)
    assert memory.take(100_000, "holder", nothing)
    frames = reader(memory)
    with pair() as (client, transport):
        client.sendall(framed(b"a" * 70_000))
        assert frames.read(transport, memoryview(bytearray(100_000)), nothing) is None
    assert memory.is_short
    frames.close()
    assert not memory.is_short and memory.free_bytes == 0


def test_a_frame_waits_until_the_memory_of_others_is_given_back():
    memory = FrameMemory(100_000, 100_000)
    freed = []
    first, second, small = reader(memory), reader(memory), reader(memory)
    scratch = memoryview(bytearray(100_000))
    with pair() as (client_a, transport_a), pair() as (client_b, transport_b):
        client_a.sendall(framed(b"a" * 70_000))
        client_b.sendall(framed(b"b" * 70_000))
        assert bytes(first.read(transport_a, scratch, nothing)) == b"a" * 70_000
        assert second.read(transport_b, scratch, lambda: freed.append("second")) is None
        assert second.is_starved and not second.is_in_frame
        assert memory.is_short and freed == []
        with pair() as (client, transport):
            client.sendall(framed(b"c" * 50_000))
            assert bytes(small.read(transport, scratch, nothing)) == b"c" * 50_000
        first.free()
        assert freed == ["second"]
        assert bytes(second.read(transport_b, scratch, nothing)) == b"b" * 70_000
        assert not second.is_starved
        second.free()
        second.free()
    assert memory.free_bytes == 100_000 and not memory.is_short


def test_a_quarter_of_the_memory_is_left_to_ordinary_frames_unless_the_largest_would_not_fit():
    memory = FrameMemory(400 << 20, 100 << 20)
    for _ in range(3):
        assert memory.take(100 << 20, "a", nothing)
    assert not memory.take(LARGE_FRAME_BYTES + 1, "b", nothing)
    assert memory.take(LARGE_FRAME_BYTES, "c", nothing)
    assert FrameMemory(100 << 20, 100 << 20).take(100 << 20, "a", nothing)
    assert FrameMemory(110 << 20, 100 << 20).take(100 << 20, "a", nothing)
    assert not FrameMemory(110 << 20, 100 << 20).take((100 << 20) + 1, "a", nothing)


def test_the_responses_that_were_not_read_for_the_longest_time_are_given_up():
    memory: ResponseMemory[str] = ResponseMemory(100)
    assert list(memory.hold("only", 500)) == []
    assert list(memory.hold("a", 40)) == ["only"]
    assert list(memory.hold("b", 40)) == []
    assert list(memory.hold("a", 40)) == []  # its peer has read a part
    assert list(memory.hold("c", 30)) == ["b"]
    memory.release("a")
    memory.release("a")
    assert list(memory.hold("d", 70)) == []
    assert list(memory.hold("e", 100)) == ["c", "d"]


@pytest.mark.parametrize("chunks", [[b"x" * 100], [b"x" * 60, b"y" * 40], []])
def test_a_response_knows_how_much_of_it_is_in_memory(chunks):
    send = ResponseSend(chunks)
    assert send.memory_bytes == send.size_bytes
    assert ResponseSend.rest_of(memoryview(b"rest")).memory_bytes == 4


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_a_response_begins_with_its_size_and_holds_its_chunks_in_order(chunks):
    send = ResponseSend([memoryview(each) if len(each) % 2 else each for each in chunks])
    with pair() as (client, transport):
        assert send.write_to(transport, 1 << 20, no_wait)
        received = client.recv(1 << 16)
    assert received == framed(b"".join(chunks))
    assert send.size_bytes == send.sent_bytes == len(received)


def test_a_response_goes_on_where_the_socket_was_full():
    body = bytes(range(256)) * 20_000
    send = ResponseSend([body])
    received = bytearray()
    with pair() as (client, transport):
        assert not send.write_to(transport, 1 << 30, no_wait)
        assert 0 < send.sent_bytes < send.size_bytes
        client.settimeout(5)
        while not send.write_to(transport, 1 << 30, no_wait):
            received += client.recv(1 << 20)
        while len(received) < send.size_bytes:
            received += client.recv(1 << 20)
    assert received == framed(body)


class CountedFile(ReadableFile):
    """A file that counts the calls of sendfile."""

    __slots__ = ("calls",)

    def send(self, target: socket.socket, position: int, count: int) -> int:
        self.calls += 1
        return super().send(target, position, count)


class SlowSocketFile(ReadableFile):
    """A file of which a socket takes only `taken` bytes at a time, as if it were full after them."""

    __slots__ = ("taken",)

    def send(self, target: socket.socket, position: int, count: int) -> int:
        at_once = self.taken.pop(0) if self.taken else count
        if at_once == 0:
            raise BlockingIOError
        return super().send(target, position, min(count, at_once))


CONTENT = bytes(range(256)) * 2


@given(
    chunks=st.lists(st.one_of(st.binary(max_size=20), st.tuples(st.integers(0, 300), st.integers(1, 200))), max_size=5),
    taken=st.lists(st.integers(0, 120), max_size=20),
    waits=st.lists(st.booleans(), max_size=20),
)
def test_a_response_is_the_same_wherever_its_sends_are_cut(chunks, taken, waits, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "cut.log"
    path.write_bytes(CONTENT)
    file = SlowSocketFile(path, Fs().open_to_read(path))
    file.taken = list(taken)
    body = b"".join(each if isinstance(each, bytes) else CONTENT[each[0] : sum(each)] for each in chunks)
    send = ResponseSend([each if isinstance(each, bytes) else FileSlice(file, *each) for each in chunks])
    answers = list(waits)
    with pair() as (client, transport):
        for _ in range(len(taken) + len(waits) + len(chunks) + 2):
            if send.write_to(transport, 1 << 30, lambda: bool(answers and answers.pop())):
                break
        assert send.sent_bytes == send.size_bytes
        assert client.recv(1 << 16) == framed(body)


@pytest.mark.parametrize("first", range(10))
def test_a_response_goes_on_after_every_byte(first, tmp_path: Path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(CONTENT)
    file = SlowSocketFile(path, Fs().open_to_read(path))
    for waits in (True, False):
        file.taken = [first, 0, 1]
        send = ResponseSend([b"head", FileSlice(file, 5, 10), b"middle", FileSlice(file, 100, 1), b"end"])
        with pair() as (client, transport):
            calls = 1
            while not send.write_to(transport, 1 << 30, lambda answer=waits: answer):
                calls += 1
            assert client.recv(1 << 16) == framed(b"head" + CONTENT[5:15] + b"middle" + CONTENT[100:101] + b"end")
        assert (calls == 1) is waits


def test_a_slice_that_fills_the_socket_is_not_tried_again(tmp_path: Path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(10_000_000))
    file = CountedFile(path, Fs().open_to_read(path))
    file.calls = 0
    send = ResponseSend([b"header", FileSlice(file, 0, 10_000_000)])
    with pair() as (_, transport):
        assert not send.write_to(transport, 1 << 30, no_wait)
    assert file.calls == 1
    send.close()
