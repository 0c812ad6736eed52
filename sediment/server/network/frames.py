"""Frames of the protocol: an int32 size, followed by that many bytes.

The size limits are checked before memory is reserved for a frame:

* The limit before authentication is 64 KiB.
* The limit of a Produce request is `socket.request.max.bytes`.
* The limit of all other requests is 8 MiB, because a small array of structures can become many times larger when it is
  decoded.

Invariants: a frame gets memory only after its size and API key were checked. At most one `receive_into` reads past the
end of a frame.

Source: Kafka's NetworkReceive, NetworkSend and SimpleMemoryPool.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.server.network.transport_layer import SentChunk, TransportLayer

UNAUTHENTICATED_MAX_BYTES = 64 * 1024
OTHER_REQUEST_MAX_BYTES = 8 * 1024 * 1024
SMALL_FRAME_BYTES = 64 * 1024
"""The largest frame that uses no memory of `FrameMemory`; `max.connections` bounds the number of such frames."""

LARGE_FRAME_BYTES = 4 * 1024 * 1024
"""The largest frame that may use all memory of `FrameMemory`; a producer's default is 1 MiB."""


_PRODUCE = 0
_NOTHING = memoryview(b"")
_Holder = TypeVar("_Holder", bound=Hashable)
_MOST_MOVED_BYTES = 32 * 1024
_SIZE = struct.Struct(">i")
FRAME_SIZE_BYTES = _SIZE.size
"""The bytes before each frame, which contain its size."""

_SIZE_AND_API_KEY = struct.Struct(">ih")
_MIN_BYTES_WITH_API_KEY = 2
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP_METHODS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN"})


class InvalidReceiveError(SedimentError):
    """A peer sent bytes that are not a frame, or a frame above the limit (Kafka's InvalidReceiveException)."""

    pass


class PeerClosedError(SedimentError):
    """The peer closed the connection; `in_frame` is True if part of a frame had arrived."""

    def __init__(self, *, in_frame: bool) -> None:
        super().__init__("the peer closed the connection" + (" within a request" if in_frame else ""))
        self.in_frame = in_frame


@dataclass(frozen=True, slots=True)
class FrameLimits:
    request_max_bytes: int
    other_max_bytes: int = OTHER_REQUEST_MAX_BYTES
    unauthenticated_max_bytes: int = UNAUTHENTICATED_MAX_BYTES

    @property
    def any_max_bytes(self) -> int:
        """The smallest of the limits; a frame up to this size is always allowed."""
        return min(self.unauthenticated_max_bytes, self.other_max_bytes, self.request_max_bytes)

    def of(self, api_key: int, *, is_authenticated: bool) -> int:
        if not is_authenticated:
            return min(self.unauthenticated_max_bytes, self.request_max_bytes)
        return self.request_max_bytes if api_key == _PRODUCE else min(self.other_max_bytes, self.request_max_bytes)


class FrameMemory:
    """The memory that all frames above SMALL_FRAME_BYTES share: `queued.max.request.bytes`.

    A quarter of it is left to frames of at most LARGE_FRAME_BYTES, unless a frame of `largest_bytes` would then never
    fit.  So neither clients that announce a large frame and do not send it, nor large frames that wait for a thread,
    keep ordinary requests out.
    """

    def __init__(self, max_bytes: int, largest_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._left_bytes = max(min(max_bytes // 4, max_bytes - largest_bytes), 0)
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._guard = threading.Lock()

    @property
    def free_bytes(self) -> int:
        return self._free_bytes

    def take(self, size_bytes: int, waiter: Hashable, when_freed: Callable[[], None]) -> bool:
        """If too few bytes are free, return False.

        Then call `when_freed` each time bytes are freed, once for all waiters with the same callback, until `take`
        succeeds or `stop_waiting` is called for `waiter`.
        """
        left_bytes = self._left_bytes if size_bytes > LARGE_FRAME_BYTES else 0
        with self._guard:
            if size_bytes <= self._free_bytes - left_bytes:
                self._free_bytes -= size_bytes
                self._waiting.pop(waiter, None)
                return True
            self._waiting[waiter] = when_freed
            return False

    def stop_waiting(self, waiter: Hashable) -> None:
        with self._guard:
            self._waiting.pop(waiter, None)

    @property
    def is_short(self) -> bool:
        return bool(self._waiting)

    def give_back(self, size_bytes: int) -> None:
        with self._guard:
            self._free_bytes += size_bytes
            callbacks = tuple(dict.fromkeys(self._waiting.values()))
        for when_freed in callbacks:
            when_freed()


def _too_large(first_bytes: bytes, size: int, limit: int, api_key: int) -> InvalidReceiveError:
    if first_bytes.startswith(_TLS_HANDSHAKE):
        return InvalidReceiveError(
            "the peer speaks TLS, but this listener does not",
            advice="give the client security.protocol=PLAINTEXT, or start the server with --tls-cert and --tls-key",
        )
    if first_bytes in _HTTP_METHODS:
        return InvalidReceiveError("the peer speaks HTTP, but this listener speaks Kafka's protocol")
    return InvalidReceiveError(f"a request of {size} bytes is above the limit of {limit} for API {api_key}")


class FrameReader:
    __slots__ = (
        "_ahead",
        "_any_max_bytes",
        "_body",
        "_filled",
        "_is_authenticated",
        "_limits",
        "_memory",
        "is_starved",
        "taken_bytes",
    )

    def __init__(self, limits: FrameLimits, is_authenticated: Callable[[], bool], memory: FrameMemory) -> None:
        self._limits = limits
        self._any_max_bytes = limits.any_max_bytes
        self._is_authenticated = is_authenticated
        self._memory = memory
        self._ahead = memoryview(b"")
        self._body: memoryview | None = None
        self._filled = 0
        self.is_starved = False
        """True if the next frame waits for memory; `read` tries again."""

        self.taken_bytes = 0
        """The bytes of `FrameMemory` that this connection uses; `free` releases them."""

    @property
    def is_in_frame(self) -> bool:
        return self._body is not None or (len(self._ahead) > 0 and not self.is_starved)

    def take_ahead(self, target: memoryview) -> int | None:
        """Return None if the bytes belong to a frame that waits for memory or for its remaining bytes.

        Also return None if there are many bytes, because many bytes might be moved again and again.
        """
        ahead = self._ahead
        if self._body is not None or self.is_starved or len(ahead) > _MOST_MOVED_BYTES:
            return None
        target[: len(ahead)] = ahead
        self._ahead = _NOTHING
        return len(ahead)

    def keep_ahead(self, received: memoryview) -> None:
        """Store a copy of `received` in place of the bytes that `take_ahead` moved; `received` begins with a frame."""
        self._ahead = memoryview(bytes(received))

    @property
    def frame_bytes(self) -> int:
        return 0 if self._body is None else len(self._body)

    @property
    def missing_bytes(self) -> int:
        return 0 if self._body is None else len(self._body) - self._filled

    @property
    def has_ahead(self) -> bool:
        return len(self._ahead) > 0

    def has_frame_ahead(self, largest_bytes: int) -> bool:
        """Return True if the next frame is complete, is larger than `largest_bytes`, or has an invalid size.

        If not, `read` must first receive the rest of the frame, which has at most `largest_bytes`.
        """
        ahead = self._ahead
        if len(ahead) < _SIZE.size:
            return False
        (size,) = _SIZE.unpack_from(ahead)
        return bool(size <= len(ahead) - _SIZE.size or size > largest_bytes)

    def read(self, transport: TransportLayer, scratch: memoryview, when_freed: Callable[[], None]) -> memoryview | None:
        while True:
            if self._body is None and self._ahead:
                frame = self._begin(when_freed)
                if frame is not None or self.is_starved:
                    return frame
            target = scratch if self._body is None else self._body[self._filled :]
            count = transport.receive_into(target)
            if count is None:
                return None
            if count == 0:
                raise PeerClosedError(in_frame=self.is_in_frame)
            if self._body is None:
                self._ahead = memoryview(b"".join((self._ahead, scratch[:count])))
                continue
            self._filled += count
            if self._filled == len(self._body):
                frame, self._body = self._body, None
                return frame

    def close(self) -> None:
        if self.is_starved:
            self._memory.stop_waiting(self)
        self.free()

    def free(self) -> None:
        taken, self.taken_bytes = self.taken_bytes, 0
        if taken:
            self._memory.give_back(taken)

    def _begin(self, when_freed: Callable[[], None]) -> memoryview | None:
        ahead = self._ahead
        if len(ahead) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(ahead)
        if size <= 0:
            raise InvalidReceiveError(f"a request has the size {size}")
        api_key = -1
        if size >= _MIN_BYTES_WITH_API_KEY:
            if len(ahead) < _SIZE_AND_API_KEY.size:
                return None
            (_, api_key) = _SIZE_AND_API_KEY.unpack_from(ahead)
        if size > self._any_max_bytes:
            limit = self._limits.of(api_key, is_authenticated=self._is_authenticated())
            if size > limit:
                raise _too_large(bytes(ahead[: _SIZE.size]), size, limit, api_key)
        if size > SMALL_FRAME_BYTES:
            self.is_starved = not self._memory.take(size, self, when_freed)
            if self.is_starved:
                return None
            self.taken_bytes += size
        end = _SIZE.size + size
        if len(ahead) >= end:
            self._ahead = ahead[end:]
            return ahead[_SIZE.size : end]
        self._body = memoryview(bytearray(size))
        self._filled = len(ahead) - _SIZE.size
        self._body[: self._filled] = ahead[_SIZE.size :]
        self._ahead = memoryview(b"")
        return None


class ResponseMemory(Generic[_Holder]):
    """The memory of the responses that peers do not read: as much as `queued.max.request.bytes`.

    If it is used up, the peers that have not read for the longest time lose their connections.
    """

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._held: dict[_Holder, int] = {}
        self._guard = threading.Lock()

    def hold(self, holder: _Holder, size_bytes: int) -> Sequence[_Holder]:
        """Return the holders that must give up their responses; they are not counted any more."""
        overdue: list[_Holder] = []
        with self._guard:
            self._free_bytes += self._held.pop(holder, 0) - size_bytes
            self._held[holder] = size_bytes
            while self._free_bytes < 0 and len(self._held) > 1:
                longest = next(iter(self._held))
                self._free_bytes += self._held.pop(longest)
                overdue.append(longest)
        return overdue

    def release(self, holder: _Holder) -> None:
        with self._guard:
            self._free_bytes += self._held.pop(holder, 0)


class ResponseSend:
    __slots__ = ("_done", "_next", "_pieces", "memory_bytes", "sent_bytes", "size_bytes")

    def __init__(self, chunks: Sequence[SentChunk]) -> None:
        self.size_bytes = _SIZE.size + sum(
            [chunk.size_bytes if isinstance(chunk, FileSlice) else len(chunk) for chunk in chunks]
        )
        self.sent_bytes = 0
        self._pieces: list[memoryview | FileSlice] = []
        self._next = 0
        self._done = 0
        run: list[bytes | bytearray | memoryview] = [_SIZE.pack(self.size_bytes - _SIZE.size)]
        for chunk in chunks:
            if not isinstance(chunk, FileSlice):
                run.append(chunk)
                continue
            if run:
                self._pieces.append(memoryview(b"".join(run)))
                run = []
            self._pieces.append(chunk)
        if run:
            self._pieces.append(memoryview(b"".join(run)))
        self.memory_bytes = sum([len(piece) for piece in self._pieces if isinstance(piece, memoryview)])
        """The bytes of the response that are in memory, and not in a file."""

    @classmethod
    def rest_of(cls, responses: memoryview) -> ResponseSend:
        send = cls(())
        send.size_bytes = send.memory_bytes = len(responses)
        send._pieces = [responses]
        return send

    def write_to(self, transport: TransportLayer, budget_bytes: int, wait: Callable[[], bool]) -> bool:
        """If the socket becomes full within a slice, call `wait`; if `wait` returns True, continue the slice."""
        while self._next < len(self._pieces):
            piece = self._pieces[self._next]
            if isinstance(piece, memoryview):
                size_bytes = len(piece)
                more = self._next + 1 < len(self._pieces)
                sent = transport.send(piece[self._done :] if self._done else piece, more=more)
                is_full = sent == 0
            else:
                size_bytes = piece.size_bytes
                sent = transport.send_slice(piece, self._done, wait) if size_bytes else 0
                is_full = True
            self._done += sent
            self.sent_bytes += sent
            if self._done == size_bytes:
                self._close_piece()
            elif is_full or budget_bytes <= sent:
                return False
            budget_bytes -= sent
        return True

    def close(self) -> None:
        while self._next < len(self._pieces):
            self._close_piece()

    def _close_piece(self) -> None:
        piece = self._pieces[self._next]
        self._next += 1
        self._done = 0
        if not isinstance(piece, memoryview):
            piece.close()
