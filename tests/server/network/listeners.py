"""A listener with real handlers on a free port of the loopback, and a client that speaks frames."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, request_class
from sediment.segment_io.protocol.headers import encode_response_header
from sediment.server.apis import Features, KafkaApis
from sediment.server.delayed import Timer
from sediment.server.network.endpoints import Endpoint
from sediment.server.network.processor import Listener
from sediment.server.network.socket_server import SocketServer, bind
from sediment.server.request_log import RequestLog
from sediment.server.request_metrics import RequestMetrics
from sediment.server.requests import Handler
from sediment.server.security.credentials import Credentials
from sediment.server.security.sasl import SaslAuthenticator, SaslHandlers, SaslMechanisms
from sediment.server.server_config import ServerConfig
from tests.response_classes import response_class

AT_ONCE = frozenset({int(ApiKey.API_VERSIONS)})


@dataclass
class Running:
    server: SocketServer
    metrics: RequestMetrics
    timer: Timer
    port: int
    is_stopped: bool = False
    """True if a test stops the server itself."""

    def connect(self, tls: ssl.SSLContext | None = None, timeout_seconds: float = 60) -> Client:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_seconds)
        return Client(plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost"))


@contextlib.contextmanager
def listener(
    handlers: Mapping[ApiKey, Handler] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
    at_once: frozenset[int] = AT_ONCE,
    request_log: Path | None = None,
    make_handlers: Callable[[Timer], Mapping[ApiKey, Handler]] | None = None,
    **config: Any,
) -> Iterator[Running]:
    """Run a listener until the end of the block."""
    given = ServerConfig(**config)
    protocol = ("SASL_" if credentials else "") + ("SSL" if tls else "PLAINTEXT")
    listening = bind(Endpoint("127.0.0.1", 0), given)
    port = listening.getsockname()[1]
    timer = Timer()
    log = None if request_log is None else RequestLog(request_log)
    metrics = RequestMetrics(given.num_network_threads, log=None if log is None else log.log)
    mechanisms = None if credentials is None else SaslMechanisms(lambda: credentials, has_tls=tls is not None)
    apis = KafkaApis(
        {
            **SaslHandlers().handlers(),
            **(handlers or {}),
            **(make_handlers(timer) if make_handlers else {}),
        },
        Features({}, {}),
    )
    server = SocketServer(
        listening,
        Listener(
            protocol,
            f"127.0.0.1:{port}",
            tls,
            None
            if mechanisms is None
            else lambda: SaslAuthenticator(mechanisms, timer, given.connection_failed_authentication_delay_ms),
        ),
        given,
        apis.handle,
        metrics,
        at_once,
    )
    server.start()
    server.open()
    running = Running(server, metrics, timer, port)
    try:
        yield running
    finally:
        timer.close()
        if not running.is_stopped:
            server.stop_accepting()
            server.stop_reading()
            server.stop(2)
        if log is not None:
            log.close()


class Client:
    """A connection that sends requests and reads responses; nothing is checked."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._next = 0

    @classmethod
    def to(cls, port: int, timeout_seconds: float = 60) -> Client:
        """Connect to a port of the loopback."""
        return cls(socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: Any, version: int, correlation_id: int | None = None) -> int:
        """Send a request and return its correlation id."""
        number = self._next if correlation_id is None else correlation_id
        self._next = number + 1
        self.socket.sendall(frame(message, version, number))
        return number

    def send_frame(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def receive(self, api_key: ApiKey, version: int) -> tuple[int, Any]:
        """Return correlation id and response."""
        body = self.receive_frame()
        header = len(encode_response_header(api_key, version, 0))
        (number,) = struct.unpack_from(">i", body)
        return number, response_class(api_key).decode(body[header:], version)

    def ask(self, message: Any, version: int) -> Any:
        self.send(message, version)
        return self.receive(ApiKey(message.API_KEY), version)[1]

    def is_closed(self, within_seconds: float = 60) -> bool:
        """Return True if the server closes the connection without a byte more."""
        self.socket.settimeout(within_seconds)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            some = self.socket.recv(size - len(received))
            if not some:
                raise ConnectionError(f"closed after {len(received)} of {size} bytes")
            received += some
        return bytes(received)


def frame(message: Any, version: int, correlation_id: int, client_id: str = "test") -> bytes:
    """Return a request as it goes over the wire, with its size."""
    flexible = request_class(message.API_KEY).is_flexible(version)
    header = struct.pack(">hhih", message.API_KEY, version, correlation_id, len(client_id)) + client_id.encode()
    body = header + (b"\0" if flexible else b"") + message.to_bytes(version)
    return struct.pack(">i", len(body)) + body


def api_versions() -> Any:
    return m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
