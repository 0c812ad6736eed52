"""Non-blocking connections, plain and encrypted (Kafka's TransportLayer).

Plain connections send file slices with `sendfile`.  TLS has to read them first.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Protocol

from sediment.segment_io.partition.file_slice import FileSlice

_TLS_PIECE_BYTES = 64 * 1024


Chunk = bytes | bytearray | memoryview | FileSlice


class TransportLayer(Protocol):
    """A non-blocking connection; `handshake` must return True before anything else is used."""

    descriptor: int
    wants_write: bool
    """True if the last `handshake` or `receive_into` has to wait until the socket takes bytes."""

    @property
    def has_buffered(self) -> bool:
        """True if received bytes are here that the socket no longer reports."""
        ...

    def handshake(self) -> bool:
        """Go on with the handshake, and return True once it is complete."""
        ...

    def receive_into(self, buffer: memoryview) -> int | None:
        """Return the number of bytes received, 0 at the end of the stream, None if none are there yet."""
        ...

    def is_at_end(self) -> bool:
        """Return True if the peer sends nothing more and every byte was received; False if this cannot be seen.

        Raises:
            OSError: the connection failed.
        """
        ...

    def send(self, data: memoryview, *, more: bool) -> int:
        """Return the number of bytes taken, 0 if it would block; with `more`, other bytes follow at once."""
        ...

    def send_slice(self, file_slice: FileSlice, already_sent: int) -> int:
        """Return the number of bytes taken from `already_sent` on, 0 if it would block."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class PlaintextTransportLayer:
    """A TCP connection."""

    wants_write = False
    has_buffered = False

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.descriptor = connected.fileno()

    def handshake(self) -> bool:
        """Return True: there is nothing to do."""
        return True

    def receive_into(self, buffer: memoryview) -> int | None:
        """Return the number of bytes received, 0 at the end of the stream, None if none are there yet."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def is_at_end(self) -> bool:
        """Return True if the peer sends nothing more and every byte was received."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def send(self, data: memoryview, *, more: bool) -> int:
        """Return the number of bytes taken, 0 if it would block; with `more` the kernel waits for other bytes."""
        try:
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            return 0

    def send_slice(self, file_slice: FileSlice, already_sent: int) -> int:
        """Send without a copy; return the number of bytes taken, 0 if it would block."""
        return file_slice.send_some(self._socket, already_sent)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class SslTransportLayer:
    """A TLS connection."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = context.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
        self.descriptor = self._socket.fileno()
        self.wants_write = False
        self._piece: tuple[FileSlice, int, memoryview] | None = None
        """Bytes of a slice from a position on that could not be sent: TLS must be offered the same bytes again."""

    @property
    def has_buffered(self) -> bool:
        """True if decrypted bytes wait to be received."""
        return self._socket.pending() > 0

    def handshake(self) -> bool:
        """Go on with the handshake, and return True once it is complete.

        Raises:
            OSError: the handshake failed.
        """
        self.wants_write = False
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        return True

    def receive_into(self, buffer: memoryview) -> int | None:
        """Return the number of bytes received, 0 at the end of the stream, None if none are there yet."""
        self.wants_write = False
        try:
            return self._socket.recv_into(buffer)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return None

    def is_at_end(self) -> bool:
        """Return False: the end of a TLS stream is itself a record, and only `receive_into` can decrypt it."""
        return False

    def send(self, data: memoryview, *, more: bool) -> int:
        """Return the number of bytes taken, 0 if it would block."""
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def send_slice(self, file_slice: FileSlice, already_sent: int) -> int:
        """Read and send one piece; return the number of bytes taken, 0 if it would block."""
        if self._piece is not None and self._piece[:2] == (file_slice, already_sent):
            piece = self._piece[2]
        else:
            size_bytes = min(_TLS_PIECE_BYTES, file_slice.size_bytes - already_sent)
            piece = memoryview(file_slice.read(already_sent, size_bytes))
        sent = self.send(piece, more=False)
        self._piece = None if sent else (file_slice, already_sent, piece)
        return sent

    def close(self) -> None:
        """Send the end of the TLS stream if the socket takes it, and close the connection."""
        with contextlib.suppress(OSError, ValueError):
            self._socket.unwrap()
        self._socket.close()
