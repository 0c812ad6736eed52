"""One connection of a processor: its transport layer, the frame being received and the response being sent.

Invariants: only the processor's thread uses the socket and the fields of this class.  Any thread may call `send`,
`send_token` and `close`, because they pass their work to the processor.

Source: Kafka's KafkaChannel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.headers import encode_response_header
from sediment.server.limited_log import LimitedLog
from sediment.server.network.frames import SMALL_FRAME_BYTES, FrameReader, ResponseSend
from sediment.server.network.transport_layer import SentChunk, TransportLayer
from sediment.server.request_metrics import request_name
from sediment.server.requests import Connection, Request

_LOGGER = logging.getLogger(__name__)


class ChannelOwner(Protocol):
    """The methods of a connection's processor that other threads call."""

    log: LimitedLog

    def count_errors(self, api_key: ApiKey, response: Any) -> None: ...

    def deliver(self, channel: KafkaChannel, response: ResponseSend | None, request: Request | None) -> None:
        """Send a response, if there is a response, and let the connection continue."""
        ...

    def run_long(self, task: Callable[[], None]) -> None: ...

    def free_frame(self, channel: KafkaChannel) -> None: ...

    def give_up(self, channel: KafkaChannel) -> None: ...

    def disconnect(self, channel: KafkaChannel) -> None: ...


class KafkaChannel:
    __slots__ = (
        "address",
        "connection",
        "descriptor",
        "frame_started_ns",
        "interest",
        "is_closed",
        "is_ready",
        "is_request_out",
        "last_active_ns",
        "opened_ns",
        "processor",
        "reader",
        "request",
        "response",
        "transport",
        "wait_until_writable",
    )

    def __init__(
        self,
        processor: ChannelOwner,
        transport: TransportLayer,
        address: str,
        reader: FrameReader,
        connection: Connection,
        wait_until_writable: Callable[[], bool],
        now_ns: int,
    ) -> None:
        self.processor = processor
        self.descriptor = transport.descriptor
        self.address = address
        self.transport = transport
        self.reader = reader
        self.connection = connection
        self.wait_until_writable = wait_until_writable
        self.opened_ns = now_ns
        self.last_active_ns = now_ns
        self.frame_started_ns = 0
        """Time at which the first part of an incomplete frame arrived; 0 if no frame is incomplete."""

        self.is_ready = False
        """True after the handshake of the transport layer."""

        self.is_request_out = False
        """True from the arrival of a request to its response."""

        self.response: ResponseSend | None = None
        self.request: Request | None = None
        """The request that `response` answers; None if it answers a token without a header."""

        self.interest = 0
        self.is_closed = False

    @property
    def is_muted(self) -> bool:
        return self.is_request_out or self.response is not None or self.is_closed

    # ------------------------------------------------------------------------------------------------- from any thread
    def send(self, request: Request, response: Any, version: int) -> None:
        if response is None:
            self.processor.deliver(self, None, request)
            return
        try:
            header = encode_response_header(request.api_key, version, request.correlation_id)
            chunks = [header, *response.encode(version)]
            self.processor.count_errors(request.api_key, response)
        except Exception as error:
            self.close(request, error)
            return
        self.send_encoded(request, chunks)

    def send_encoded(self, request: Request, chunks: Sequence[SentChunk]) -> None:
        send = ResponseSend(chunks)
        request.times.responded_ns = time.monotonic_ns()
        self.processor.deliver(self, send, request)

    def send_token(self, token: bytes) -> None:
        self.processor.deliver(self, ResponseSend([token]), None)

    def run_long(self, task: Callable[[], None]) -> None:
        self.processor.run_long(task)

    def free_frame(self, size_bytes: int) -> None:
        """Give back the memory of the frame before the response; a small frame uses none."""
        if size_bytes > SMALL_FRAME_BYTES:
            self.processor.free_frame(self)

    def close(self, request: Request | None, error: BaseException) -> None:
        who = self.connection.peer
        if request is not None:
            who += f": {request_name(request.api_key)} version {request.api_version}"
        if isinstance(error, SedimentError | OSError):
            self.processor.log.warning(f"{who}: {error}; the connection was closed")
        else:
            _LOGGER.error("%s: failed, and the connection was closed", who, exc_info=error)
        self.processor.disconnect(self)
