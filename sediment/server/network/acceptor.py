"""Acceptor: one thread that accepts connections, checks the quotas, and gives each connection to a processor.

Source: Kafka's Acceptor.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol

from sediment.server.limited_log import LimitedLog
from sediment.server.network.connection_quotas import ConnectionQuotas, TooManyConnectionsError
from sediment.server.open_files_limit import ReservedDescriptors
from sediment.server.server_config import SYSTEM_DEFAULT, ServerConfig

_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SECONDS_AFTER_NO_DESCRIPTOR = 0.1
_NO_WAKE = -1


class ConnectionTaker(Protocol):
    def accept(self, connected: socket.socket, address: str) -> None: ...


class Acceptor:
    def __init__(
        self,
        listening: socket.socket,
        name: str,
        processors: Sequence[ConnectionTaker],
        quotas: ConnectionQuotas,
        config: ServerConfig,
        log: LimitedLog,
        refused: Callable[[], None],
        reserved: ReservedDescriptors,
    ) -> None:
        self._listening = listening
        self._processors = cycle(processors)
        self._quotas = quotas
        self._send_buffer_bytes = config.socket_send_buffer_bytes
        self._log = log
        self._refused = refused
        self._reserved = reserved
        self._stop = threading.Event()
        self._wake = _NO_WAKE
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        # `start` opens a descriptor, which `stop` closes.
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._wake)
            self._wake = _NO_WAKE
            raise

    def stop(self) -> None:
        self._stop.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        self._listening.setblocking(False)
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._stop.is_set():
            poll.poll()
            self._accept_all()

    def _accept_all(self) -> None:
        while not self._stop.is_set():
            try:
                connected, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EMFILE and self._reserved.give_up_one():
                    continue
                if error.errno in _NO_DESCRIPTOR:
                    # The connection remains in the backlog, and the socket remains readable.  So wait instead of
                    # spinning.
                    self._log.warning(f"a connection cannot be accepted: {error.strerror}; raise the limit: ulimit -n")
                    self._stop.wait(_SECONDS_AFTER_NO_DESCRIPTOR)
                continue
            self._hand_over(connected, address[0])

    def _hand_over(self, connected: socket.socket, address: str) -> None:
        try:
            self._quotas.take(address)
        except TooManyConnectionsError as error:
            connected.close()
            self._refused()
            self._log.warning(f"{address}: {error}; the connection was refused")
            return
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._send_buffer_bytes != SYSTEM_DEFAULT:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        except OSError:  # the peer has already closed the connection
            connected.close()
            self._quotas.give_back(address)
            return
        next(self._processors).accept(connected, address)
