"""Requests and results of reads of a live log: isolation, offset locations, slices of segments.

Invariant: a slice keeps its file open, so it can be read to its end even if the segment is deleted.

Source: kafka-log 04 §8, §9.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass
from enum import Enum

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.indexes import AbortedTransaction
from sediment.segment_io.fs import OpenFile

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6

NOT_KNOWN = -1
"""Stands for an unknown location, offset or time."""


class Isolation(Enum):
    """The upper bound of a read (kafka-log 04 §8)."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    TXN_COMMITTED = "txn-committed"


@dataclass(frozen=True, slots=True)
class LogOffsetMetadata:
    """An offset and its location; -1 for an unknown segment and position."""

    offset: int
    segment_base_offset: int = NOT_KNOWN
    position: int = NOT_KNOWN


@dataclass(frozen=True, slots=True, eq=False)
class FetchedData:
    """A slice of a segment that begins with a batch and may end inside one.

    It may hold records below the requested offset, which the caller skips.  `aborted` are the aborted transactions that
    overlap it; None if the read was not limited to committed data.
    """

    start: LogOffsetMetadata
    size_bytes: int
    first_entry_incomplete: bool
    aborted: tuple[AbortedTransaction, ...] | None
    _file: OpenFile | None

    def read(self) -> bytes:
        """Return the bytes of the slice.

        Raises:
            OSError: the disk failed.  As after an error in a broker's network thread, the log stays online until it
                uses the disk itself.
        """
        return b"" if self._file is None else self._file.read(self.start.position, self.size_bytes)

    @property
    def position(self) -> int:
        """Byte position of the slice in its file; -1 if it is unknown, and then the slice is empty."""
        return self.start.position

    def fileno(self) -> int:
        """Return the file descriptor for sendfile, starting at `position`; it stays open as long as this slice exists.

        Raises:
            UsageError: the slice is empty.
        """
        if self._file is None:
            raise UsageError("an empty slice has no file", advice="check size_bytes first")
        return self._file.descriptor

    def send_some(self, target: socket.socket, sent_bytes: int) -> int:
        """Send the slice from byte `sent_bytes` with sendfile, until the socket would block.

        Returns the number of bytes sent: 0 if the socket would block at once, or if everything was sent before.

        Raises:
            OSError: the socket failed, or the file was truncated below the slice.
        """
        if self._file is None or sent_bytes >= self.size_bytes:
            return 0
        try:
            count = self._file.send(target, self.start.position + sent_bytes, self.size_bytes - sent_bytes)
        except BlockingIOError:
            return 0
        if count == 0:
            raise OSError(f"{self._file.path} was truncated while it was sent")
        return count

    def send_to(self, target: socket.socket) -> int:
        """Send the whole slice with sendfile to a socket that blocks or has a timeout; return the number of bytes sent.

        Raises:
            UsageError: the socket is non-blocking.
            TimeoutError: the socket accepted no byte within its timeout.
            OSError: the socket failed, or the file was truncated below the slice.
        """
        timeout_seconds = target.gettimeout()
        if timeout_seconds == 0:
            raise UsageError("the socket is non-blocking", advice="use send_some and wait in between")
        sent = 0
        while sent < self.size_bytes and self._file is not None:
            count = self.send_some(target, sent)
            if count == 0:
                _wait_until_writable(target, timeout_seconds)
            sent += count
        return sent


def _wait_until_writable(target: socket.socket, timeout_seconds: float | None) -> None:
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    if not poll.poll(None if timeout_seconds is None else timeout_seconds * 1000):
        raise TimeoutError(f"the socket took nothing for {timeout_seconds:g} seconds")


@dataclass(frozen=True, slots=True)
class TimestampOffsetEpoch:
    """A record by its timestamp; -1 stands for no timestamp, offset or leader epoch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int
