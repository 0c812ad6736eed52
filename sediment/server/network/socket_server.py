"""Socket server: one listener with its acceptor, processors, request channel and handlers.

* `bind` binds the address; clients cannot connect yet, and another process can still bind the address.

Source: Kafka's SocketServer.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from sediment.segment_io.errors import UsageError
from sediment.server.limited_log import LimitedLog
from sediment.server.network.acceptor import Acceptor
from sediment.server.network.connection_quotas import ConnectionQuotas
from sediment.server.network.endpoints import Endpoint
from sediment.server.network.frames import FrameMemory, ResponseMemory
from sediment.server.network.long_work import LongWork
from sediment.server.network.processor import Listener, Processor, Shared
from sediment.server.network.request_channel import ReceivedFrame, RequestChannel, RequestHandlerPool
from sediment.server.open_files_limit import ReservedDescriptors
from sediment.server.request_metrics import RequestMetrics
from sediment.server.server_config import SYSTEM_DEFAULT, ServerConfig

_LOGGER = logging.getLogger(__name__)
_UNDO_SECONDS = 1.0
"""Time limit within which the threads of a failed start must end; they have no requests, so they end at once."""


class CannotListenError(UsageError):
    """The address is in use, does not belong to this machine, or is not allowed."""


def bind(endpoint: Endpoint, config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.socket_receive_buffer_bytes != SYSTEM_DEFAULT:
            # The buffer size must be set before a connection announces its window.  Accepted sockets inherit the size.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
        listening.bind((endpoint.host, endpoint.port))
    except OSError as error:
        listening.close()
        raise _cannot_listen(endpoint, error) from error
    return listening


def _cannot_listen(endpoint: Endpoint, error: OSError) -> CannotListenError:
    return CannotListenError(
        f"cannot listen on {endpoint}: {error.strerror or error}", advice="choose another address with --listen"
    )


def _no_more_threads() -> UsageError:
    return UsageError(
        "this process may start no more threads",
        advice="lower num.io.threads and num.network.threads, or raise the limit: ulimit -u",
    )


class SocketServer:
    def __init__(
        self,
        listening: socket.socket,
        listener: Listener,
        config: ServerConfig,
        handle: Callable[[ReceivedFrame], None],
        metrics: RequestMetrics,
        handled_at_once: frozenset[int],
    ) -> None:
        log = LimitedLog(_LOGGER)
        self._listening = listening
        self._backlog_size = config.socket_listen_backlog_size
        self.request_channel = RequestChannel(config.queued_max_requests)
        self.memory = FrameMemory(config.queued_max_request_bytes, config.socket_request_max_bytes)
        self.quotas = ConnectionQuotas(config.max_connections, config.max_connections_per_ip)
        self._long_work = LongWork(config.num_io_threads)
        self._reserved = ReservedDescriptors(config.max_connections)
        shared = Shared(
            config=config,
            listener=listener,
            request_channel=self.request_channel,
            long_work=self._long_work,
            memory=self.memory,
            response_memory=ResponseMemory(config.queued_max_request_bytes),
            quotas=self.quotas,
            reserved=self._reserved,
            log=log,
            handle=handle,
            handled_at_once=handled_at_once,
            metrics=metrics,
        )
        self._handlers = RequestHandlerPool(self.request_channel, handle, config.num_io_threads)
        self._processors = [Processor(number, shared) for number in range(config.num_network_threads)]
        port = listening.getsockname()[1]
        self._acceptor = Acceptor(
            listening,
            f"data-plane-kafka-socket-acceptor-ListenerName({listener.protocol})-{listener.protocol}-{port}",
            self._processors,
            self.quotas,
            config,
            log,
            metrics.connection_refused,
            self._reserved,
        )

    def start(self) -> None:
        self._reserved.refill()
        try:
            self._handlers.start()
            self._long_work.start()
            for processor in self._processors:
                processor.start()
        except RuntimeError as error:
            self.stop(_UNDO_SECONDS)
            raise _no_more_threads() from error

    def open(self) -> None:
        try:
            self._listening.listen(self._backlog_size)
        except OSError as error:
            raise _cannot_listen(Endpoint(*self._listening.getsockname()[:2]), error) from error
        try:
            self._acceptor.start()
        except RuntimeError as error:
            raise _no_more_threads() from error

    def stop_accepting(self) -> None:
        self._acceptor.stop()
        self._listening.close()

    def stop_reading(self) -> None:
        for processor in self._processors:
            processor.stop_reading()

    def stop(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        self._handlers.stop(timeout_seconds)  # a handler may still pass on the rest of its request
        self._long_work.stop(max(deadline - time.monotonic(), 0))
        for processor in self._processors:
            processor.stop(max(deadline - time.monotonic(), 0))
        self._reserved.close()
