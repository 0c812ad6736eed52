"""Types of requests and results for reads of a live log: isolation, offset locations, slices of segments.

Source: kafka-log 04 §8, §9.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.partition.file_slice import FileSlice

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6

NOT_KNOWN = -1
"""An unknown location, offset or time."""


class Isolation(Enum):
    """The upper bound of a read (kafka-log 04 §8)."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    TXN_COMMITTED = "txn-committed"


@dataclass(frozen=True, slots=True)
class LogOffsetMetadata:
    """An offset and its location; segment and position are -1 if they are unknown."""

    offset: int
    segment_base_offset: int = NOT_KNOWN
    position: int = NOT_KNOWN


@dataclass(frozen=True, slots=True, eq=False)
class FetchedData:
    """The result of a read: `records` begins with a batch and may end inside a batch; None if no data was found.

    The slice may contain records below the requested offset; the caller skips such records.  `aborted` are the aborted
    transactions that overlap the slice; None if the isolation of the read is not TXN_COMMITTED.
    """

    start: LogOffsetMetadata
    records: FileSlice | None
    first_entry_incomplete: bool
    aborted: tuple[AbortedTxn, ...] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the slice."""
        return 0 if self.records is None else self.records.size_bytes

    def read(self) -> bytes:
        """Return the bytes of the slice.

        Raises:
            OSError: the disk failed, or the log was truncated after the fetch.  This error does not take the log
                offline.  In a broker, the network thread gets the same error.
        """
        return b"" if self.records is None else self.records.read()


@dataclass(frozen=True, slots=True)
class TimestampOffsetEpoch:
    """A record that was found by its timestamp; -1 means that the timestamp, offset or leader epoch is unknown."""

    timestamp_ms: int
    offset: int
    leader_epoch: int
