"""The transaction index: parsing, collecting and encoding (kafka-log 01 §7.4).

An entry has 34 bytes: version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64.

    sanityCheck                  `index_sanity.check_last_offsets`
    collectAbortedTxns           `TransactionIndex.collect`; over several segments `collect_aborted`
    append, truncateTo           `segment.open_transaction_index`
    incomplete last entry        ignored
    later version                refused
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import UnsupportedDataError
from sediment.segment_io.format.index_sanity import Int64s
from sediment.segment_io.format.layout import TRANSACTION_ENTRY_BYTES, TRANSACTION_ENTRY_STRUCT

_TRANSACTION_ENTRY = np.dtype(
    [("version", "i1"), ("version_low", "i1"), *((name, ">i8") for name in ("producer", "first", "last", "lso"))]
)
assert _TRANSACTION_ENTRY.itemsize == TRANSACTION_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """`last_offset` is the offset of its ABORT marker.

    `last_stable_offset` was the log's last stable offset when the marker was appended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class CollectedAborted:
    """The aborted transactions of a range; `is_complete` is True if later segments cannot list more of these."""

    transactions: tuple[AbortedTxn, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class TransactionIndex:
    """The entries of one `.txnindex`, in file order; each column is int64[n]."""

    producer_ids: Int64s
    first_offsets: Int64s
    last_offsets: Int64s
    last_stable_offsets: Int64s

    def __len__(self) -> int:
        return len(self.producer_ids)

    def transactions(self) -> tuple[AbortedTxn, ...]:
        return self._take(np.ones(len(self), dtype=np.bool_))

    def collect(self, fetch_offset: int, upper_bound: int) -> CollectedAborted:
        """Return the aborted transactions that overlap [fetch_offset, upper_bound), by Kafka's rule.

        The search ends after the first entry whose last stable offset is at least `upper_bound`.  All later markers
        belong to transactions that began at or above `upper_bound`.

        Source: kafka-log 01 §7.4 (collectAbortedTxns).
        """
        stops = self.last_stable_offsets >= upper_bound
        is_complete = bool(stops.any())
        wanted = (self.last_offsets >= fetch_offset) & (self.first_offsets < upper_bound)
        if is_complete:
            wanted[int(stops.argmax()) + 1 :] = False
        return CollectedAborted(self._take(wanted), is_complete)

    def _take(self, wanted: npt.NDArray[np.bool_]) -> tuple[AbortedTxn, ...]:
        columns = (self.producer_ids, self.first_offsets, self.last_offsets, self.last_stable_offsets)
        return tuple(AbortedTxn(*row) for row in zip(*(column[wanted].tolist() for column in columns), strict=True))


def parse_transaction_index(data: Buffer, *, path: str | None = None) -> TransactionIndex:
    """Parse a transaction index; ignore the bytes of an incomplete last entry.

    Raises:
        UnsupportedDataError: an entry has a newer version.  As in Kafka, only the first byte of the version is checked.

    Source: kafka-log 01 §7.4.
    """
    view = memoryview(data).cast("B")
    entries = np.frombuffer(view, dtype=_TRANSACTION_ENTRY, count=len(view) // TRANSACTION_ENTRY_BYTES)
    newer = entries["version"] > 0
    if newer.any():
        slot = int(newer.argmax())
        raise UnsupportedDataError(
            "transaction index entry has a version newer than 0", path=path, position=slot * TRANSACTION_ENTRY_BYTES
        )
    return TransactionIndex(*(entries[name].astype(np.int64) for name in ("producer", "first", "last", "lso")))


def encode_transaction_index(transactions: Iterable[AbortedTxn]) -> bytes:
    return b"".join(
        TRANSACTION_ENTRY_STRUCT.pack(
            0, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
        )
        for entry in transactions
    )


def collect_aborted(indexes: Iterable[TransactionIndex], fetch_offset: int, upper_bound: int) -> tuple[AbortedTxn, ...]:
    """Return the aborted transactions that overlap [fetch_offset, upper_bound).

    `indexes` are the indexes of the segment that contains `fetch_offset` and of all later segments, because a marker
    can be far above the range.  When the result is complete, no further index is read.

    Source: kafka-log 01 §7.4, 04 §8 step 7.
    """
    found: list[AbortedTxn] = []
    for index in indexes:
        collected = index.collect(fetch_offset, upper_bound)
        found += collected.transactions
        if collected.is_complete:
            break
    return tuple(found)
