"""Requests, and how their responses are sent.

A handler takes a `Request` and returns the response message. If the request must wait, the handler returns None, and
any thread calls `Request.respond` later.

Invariants: a request is answered or failed at most once. Until then, the connection reads no further request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.repeated import RepeatedRequest

ANONYMOUS = "User:ANONYMOUS"
"""Principal of a connection without authentication (Kafka's KafkaPrincipal.ANONYMOUS)."""


_NO_FRAME = memoryview(b"")


class TokenChannel(Protocol):
    connection: Connection

    def send_token(self, token: bytes) -> None: ...

    def close(self, request: None, error: BaseException) -> None: ...


class Authenticator(Protocol):
    @property
    def is_complete(self) -> bool: ...

    @property
    def expects_token(self) -> bool:
        """True if the next frame is a SASL token without a header (SaslHandshake version 0)."""
        ...

    def accept_token(self, token: bytes, channel: TokenChannel) -> None: ...

    @property
    def has_failed(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Connection:
    id: str
    """Local and remote address, processor and number in Kafka's format: `127.0.0.1:9092-127.0.0.1:4711-0-1`."""

    peer: str
    """Remote address and port."""

    listener: str
    """Kafka's name of the security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    authenticator: Authenticator | None = field(default=None, repr=False)
    """The SASL state of the connection; None if the listener does not require authentication."""

    principal: str = ANONYMOUS
    client_software: str = "unknown"
    """Name and version of the client's software, from its ApiVersions request."""

    repeated: RepeatedRequest | None = field(default=None, repr=False)
    """An earlier request that the client will probably repeat."""

    @property
    def is_authenticated(self) -> bool:
        return self.authenticator is None or self.authenticator.is_complete

    @property
    def client_host(self) -> str:
        """Remote address in Kafka's format, with a slash: `/127.0.0.1`."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")


class ResponseChannel(Protocol):
    def send(self, request: Request, response: Any, version: int) -> None: ...

    def send_encoded(self, request: Request, chunks: Sequence[Any]) -> None: ...

    def run_long(self, task: Callable[[], None]) -> None: ...

    def free_frame(self, size_bytes: int) -> None: ...

    def close(self, request: Request, error: BaseException) -> None: ...


@dataclass(slots=True)
class RequestTimes:
    """The times of a request's stages, in nanoseconds of the monotonic clock; 0 for a stage that is not reached yet."""

    received_ns: int
    dequeued_ns: int = 0
    handled_ns: int = 0
    """The time at which the handler returned; set only if the request then waited for an event."""

    responded_ns: int = 0
    """Time at which the response was encoded."""

    sending_ns: int = 0
    sent_ns: int = 0


@dataclass(slots=True, eq=False)
class Request:
    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    message: Any
    """The decoded message, an instance of the API's class; its `records` fields point into the received frame.

    None during a wait, and after the response.
    """

    connection: Connection
    size_bytes: int
    times: RequestTimes
    channel: ResponseChannel = field(repr=False)
    frame: memoryview = field(default=_NO_FRAME, repr=False)
    """The received frame; empty during a wait, and after the response."""

    _is_done: bool = field(default=False, init=False, repr=False)

    @property
    def received_ns(self) -> int:
        return self.times.received_ns

    def respond(self, response: Any, *, version: int | None = None) -> None:
        self._finish()
        self.channel.send(self, response, self.api_version if version is None else version)

    def respond_encoded(self, chunks: Sequence[Any]) -> None:
        self._finish()
        self.channel.send_encoded(self, chunks)

    def respond_later(self, rest: Callable[[], Any]) -> None:
        """Call `rest` on a thread on which no other request waits, and send the response that it returns.

        Send nothing if it returns None. If it raises an error, close the connection.
        """

        def run() -> None:
            try:
                response = rest()
                if response is not None:
                    self.respond(response)
            except Exception as error:
                self.fail(error)

        self.channel.run_long(run)

    def fail(self, error: BaseException) -> None:
        self._finish()
        self.channel.close(self, error)

    def _finish(self) -> None:
        with _finishing:
            is_done, self._is_done = self._is_done, True
        if is_done:
            raise RuntimeError(f"request {self.correlation_id} of {self.connection.id} was already answered")
        self.release()

    def begin_wait(self) -> None:
        """Give back the memory of the frame before a wait whose length the client decides.

        The handler must have copied what it still needs, except of the decoded message.
        """
        self.release()
        self.channel.free_frame(self.size_bytes)

    def release(self) -> None:
        """Free the message and the frame, because a wait or a slow reader may take long."""
        self.message, self.frame = None, _NO_FRAME


_finishing = threading.Lock()

Handler = Callable[[Request], Any]
"""A function that returns the response message, or None if it calls `Request.respond` later."""
