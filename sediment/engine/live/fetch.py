"""What a read of a live log is asked for and gives back: how far it goes, where an offset lies, a slice of a segment.

Invariant: a slice keeps the file it lies in open, so that it can be read to its end whatever becomes of the segment.

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
"""Stands for a place, an offset or a time that is not known."""


class Isolation(Enum):
    """How far a read goes (kafka-log 04 §8)."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    TXN_COMMITTED = "txn-committed"


@dataclass(frozen=True, slots=True)
class LogOffsetMetadata:
    """An offset and where it lies; -1 for segment and position where that is not known."""

    offset: int
    segment_base_offset: int = NOT_KNOWN
    position: int = NOT_KNOWN


@dataclass(frozen=True, slots=True, eq=False)
class FetchedData:
    """A slice of a segment that begins with a batch and may end inside of one.

    It can hold records below the offset that was asked for, which the reader skips.  `aborted` are the aborted
    transactions that touch it, None unless the read was of committed data.
    """

    start: LogOffsetMetadata
    size_bytes: int
    first_entry_incomplete: bool
    aborted: tuple[AbortedTransaction, ...] | None
    _file: OpenFile | None

    def read(self) -> bytes:
        """The bytes.

        Raises:
            OSError: the disk failed; as in a broker, whose network thread it would be, the log stays online until
                it needs the disk itself.
        """
        return b"" if self._file is None else self._file.read(self.start.position, self.size_bytes)

    @property
    def position(self) -> int:
        """Byte position of the slice in its file; -1 where it is not known, and then the slice is empty."""
        return self.start.position

    def fileno(self) -> int:
        """Return the descriptor of the file, for sendfile from `position` on; it stays open as long as this slice.

        Raises:
            UsageError: the slice is empty.
        """
        if self._file is None:
            raise UsageError("an empty slice has no file", advice="look at size_bytes first")
        return self._file.descriptor

    def send_some(self, target: socket.socket, sent_bytes: int) -> int:
        """Send by sendfile what the socket takes now, from byte `sent_bytes` of the slice on.

        Returns the bytes sent: 0 if a non-blocking socket takes nothing now, or the slice is sent already.

        Raises:
            OSError: the socket failed, or the file was cut below the slice.
        """
        if self._file is None or sent_bytes >= self.size_bytes:
            return 0
        try:
            count = self._file.send(target, self.start.position + sent_bytes, self.size_bytes - sent_bytes)
        except BlockingIOError:
            return 0
        if count == 0:
            raise OSError(f"{self._file.path} was cut while it was sent")
        return count

    def send_to(self, target: socket.socket) -> int:
        """Send all by sendfile to a socket that blocks or has a timeout; returns the bytes sent.

        Raises:
            UsageError: the socket is non-blocking.
            TimeoutError: the socket took nothing for as long as its timeout.
            OSError: the socket failed, or the file was cut below the slice.
        """
        timeout_seconds = target.gettimeout()
        if timeout_seconds == 0:
            raise UsageError("the socket is non-blocking", advice="send with send_some and wait in between")
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
