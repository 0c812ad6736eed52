"""What a read of a live log is asked for and gives back: how far it goes, where an offset lies, a slice of a segment.

Invariant: a slice keeps the file it lies in open, so that it can be read to its end whatever becomes of the segment.

Source: kafka-log 04 §8, §9.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import Enum

from sediment.segment_io.fs import OpenFile
from sediment.segment_io.indexes import AbortedTransaction

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

    def send_to(self, target: socket.socket) -> int:
        """Send all to a blocking socket by sendfile; returns the bytes sent.

        Raises:
            OSError: the socket fails, or the file was cut below the slice.
        """
        sent = 0
        while self._file is not None and sent < self.size_bytes:
            count = self._file.send(target, self.start.position + sent, self.size_bytes - sent)
            if count == 0:
                raise OSError(f"{self._file.path} was cut while it was sent")
            sent += count
        return sent


@dataclass(frozen=True, slots=True)
class TimestampOffsetEpoch:
    """A record by its timestamp; -1 stands for no timestamp, offset or leader epoch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int
