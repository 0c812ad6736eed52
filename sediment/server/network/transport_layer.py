"""Non-blocking connections, plain and encrypted (Kafka's TransportLayer).

Plain connections send file slices with `sendfile`; TLS connections must first read the slices.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.partition.file_slice import FileSlice

_TLS_PIECE_BYTES = 64 * 1024
_TLS_PIECES_IN_A_ROW = 16
_TLS_RECORD_BYTES = 16 * 1024


_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})
"""The reasons that OpenSSL gives if the first record is not TLS."""


class HandshakeFailedError(SedimentError):
    """The handshake of a TLS connection failed (Kafka's SslAuthenticationException)."""


def _handshake_failed(reason: str) -> HandshakeFailedError:
    if reason in _NOT_TLS:
        return HandshakeFailedError(
            "the peer does not speak TLS, but this listener requires it",
            advice="give the client security.protocol=SSL or SASL_SSL",
        )
    return HandshakeFailedError(f"the TLS handshake failed: {reason.replace('_', ' ').lower()}")


SentChunk = bytes | bytearray | memoryview | FileSlice


class TransportLayer(Protocol):
    """A non-blocking connection; call its other methods only after `handshake` has returned True."""

    descriptor: int
    wants_write: bool
    """True if `handshake` or `receive_into` can continue only after the socket accepts bytes."""

    @property
    def has_buffered(self) -> bool:
        """True if received bytes are buffered; the socket no longer reports these bytes."""
        ...

    def handshake(self) -> bool: ...

    def receive_into(self, buffer: memoryview) -> int | None:
        """Return the number of received bytes: 0 at the end of the stream, None if no bytes have arrived yet."""
        ...

    def is_at_end(self) -> bool: ...

    def send(self, data: memoryview, *, more: bool) -> int:
        """`more` is True if more bytes follow immediately."""
        ...

    def send_slice(self, file_slice: FileSlice, already_sent: int, wait: Callable[[], bool]) -> int:
        """If the socket is full, this method calls `wait`, and continues if `wait` returns True.

        A part of the slice may remain unsent, because `wait` returned False or because it is other connections' turn.
        """
        ...

    def close(self) -> None: ...


class PlaintextTransportLayer:
    wants_write = False
    has_buffered = False

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.descriptor = connected.fileno()

    def handshake(self) -> bool:
        return True

    def receive_into(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def is_at_end(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def send(self, data: memoryview, *, more: bool) -> int:
        """With `more`, the kernel holds back a partial packet until more bytes follow."""
        try:
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            return 0

    def send_slice(self, file_slice: FileSlice, already_sent: int, wait: Callable[[], bool]) -> int:
        return file_slice.send_waiting(self._socket, already_sent, wait)

    def close(self) -> None:
        self._socket.close()


class SslTransportLayer:
    def __init__(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
        self.descriptor = self._socket.fileno()
        self.wants_write = False
        self._received = memoryview(b"")
        self._piece: tuple[FileSlice, int, memoryview] | None = None
        """The unsent bytes of a slice, with their position; TLS must send the same bytes again."""

    @property
    def has_buffered(self) -> bool:
        return bool(self._received) or self._socket.pending() > 0

    def handshake(self) -> bool:
        """Raise HandshakeFailedError if the peer does not speak TLS, or accepts no version, cipher or certificate."""
        self.wants_write = False
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError, ssl.SSLSyscallError) as error:
            raise ConnectionResetError("the peer closed the connection during the handshake") from error
        except ssl.SSLError as error:
            raise _handshake_failed(error.reason or "") from error
        return True

    def receive_into(self, buffer: memoryview) -> int | None:
        if self._received:
            count = min(len(buffer), len(self._received))
            buffer[:count], self._received = self._received[:count], self._received[count:]
            return count
        self.wants_write = False
        try:
            return self._socket.recv_into(buffer)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return None

    def is_at_end(self) -> bool:
        # The end of a TLS stream is itself a TLS record. To reach this last record, the method decrypts the record
        # before it, and stores the decrypted bytes for `receive_into`.
        if not self._received:
            try:
                self._received = memoryview(self._socket.recv(_TLS_RECORD_BYTES))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
        return not self._received

    def send(self, data: memoryview, *, more: bool) -> int:
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def send_slice(self, file_slice: FileSlice, already_sent: int, wait: Callable[[], bool]) -> int:
        sent = 0
        for _ in range(_TLS_PIECES_IN_A_ROW):
            count = self._send_piece(file_slice, already_sent + sent)
            sent += count
            if already_sent + sent == file_slice.size_bytes or not (count or wait()):
                break
        return sent

    def _send_piece(self, file_slice: FileSlice, already_sent: int) -> int:
        if self._piece is not None and self._piece[:2] == (file_slice, already_sent):
            piece = self._piece[2]
        else:
            size_bytes = min(_TLS_PIECE_BYTES, file_slice.size_bytes - already_sent)
            piece = memoryview(file_slice.read(already_sent, size_bytes))
        sent = self.send(piece, more=False)
        self._piece = None if sent else (file_slice, already_sent, piece)
        return sent

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._socket.unwrap()
        self._socket.close()
