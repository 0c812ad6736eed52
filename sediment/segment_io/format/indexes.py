"""Offset, time and transaction index: parsing, searching, checking and encoding (kafka-log 01 §7).

    offset index, 8 bytes an entry     relative offset i32 | position i32
    time index, 12 bytes               timestamp i64 | relative offset i32
    transaction index, 34 bytes        version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | lso i64

Invariants: a parsed index is a value; its offsets and timestamps ascend, so every search is a binary search.  Relative
offsets count from the segment's base offset and fit 0 … 2^31 − 1.  A look-up returns a position from which to scan
forward, so an index with fewer entries than possible is still correct.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    CorruptIndexError,
    UnsupportedDataError,
)
from sediment.segment_io.format.layout import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TRANSACTION_ENTRY_BYTES,
    TRANSACTION_ENTRY_STRUCT,
)

Int64s = npt.NDArray[np.int64]

_OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
_TRANSACTION_ENTRY = np.dtype(
    [("version", "i1"), ("version_low", "i1"), *((name, ">i8") for name in ("producer", "first", "last", "lso"))]
)
assert _OFFSET_ENTRY.itemsize == OFFSET_ENTRY_BYTES
assert _TIME_ENTRY.itemsize == TIME_ENTRY_BYTES
assert _TRANSACTION_ENTRY.itemsize == TRANSACTION_ENTRY_BYTES

_REBUILD = "delete the index; it is rebuilt from the log"


@dataclass(frozen=True, slots=True, order=True)
class OffsetPosition:
    """A log offset and the byte position in the segment file to scan forward from."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True, order=True)
class TimestampOffset:
    """A timestamp in ms and the last offset of the first batch with that timestamp."""

    timestamp_ms: int
    offset: int


# ------------------------------------------------------------------------------------------------------ offset index


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """Entries of one `.index`: relative_offsets int64[n], strictly ascending, and positions int64[n] in bytes."""

    base_offset: int
    relative_offsets: Int64s
    positions: Int64s

    def __len__(self) -> int:
        return len(self.relative_offsets)

    def __getitem__(self, slot: int) -> OffsetPosition:
        return OffsetPosition(self.base_offset + int(self.relative_offsets[slot]), int(self.positions[slot]))

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if the index is empty."""
        return self[-1].offset if len(self) else self.base_offset

    def lookup(self, target_offset: int) -> OffsetPosition:
        """Return the entry with the largest offset ≤ `target_offset`; (base offset, 0) if there is none.

        Source: kafka-log 01 §7.1.
        """
        slot = int(np.searchsorted(self.relative_offsets, target_offset - self.base_offset, side="right")) - 1
        return self[slot] if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def fetch_upper_bound(self, start: OffsetPosition, size_bytes: int) -> OffsetPosition | None:
        """Return the first entry at or above `start.position + size_bytes`: every offset of that fetch is below it.

        Source: kafka-log 01 §7.1 (fetchUpperBoundOffset).
        """
        slot = int(np.searchsorted(self.positions, start.position + size_bytes, side="left"))
        return self[slot] if slot < len(self) else None

    def to_bytes(self) -> bytes:
        """Return the trimmed file."""
        entries = np.empty(len(self), dtype=_OFFSET_ENTRY)
        entries["relative_offset"] = self.relative_offsets
        entries["position"] = self.positions
        return entries.tobytes()


def parse_offset_index(
    data: Buffer, base_offset: int, *, path: str | None = None, preallocated: bool = False
) -> OffsetIndex:
    """Parse an offset index.

    With `preallocated`, the file may be longer than its entries, like that of an active segment after a crash.  Entries
    then end before the zero tail, or before an offset or position that does not ascend.

    Raises:
        CorruptIndexError: the length is not a multiple of 8, an entry is negative, offsets do not strictly ascend or
            positions descend; with `preallocated` never.

    Source: kafka-log 01 §7, §7.1.
    """
    entries = _entries(data, _OFFSET_ENTRY, path=path, preallocated=preallocated)
    relative_offsets = entries["relative_offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    good = (relative_offsets >= 0) & (positions >= 0)
    good[1:] &= (np.diff(relative_offsets) > 0) & (np.diff(positions) >= 0)
    count = _checked_count(good, OFFSET_ENTRY_BYTES, base_offset, path=path, preallocated=preallocated)
    return OffsetIndex(base_offset, relative_offsets[:count], positions[:count])


def _entries(data: Buffer, dtype: np.dtype[np.void], *, path: str | None, preallocated: bool) -> npt.NDArray[np.void]:
    """Return the complete entries of an index file, without the zero tail of a preallocated file."""
    view = memoryview(data).cast("B")
    count, trailing = divmod(len(view), dtype.itemsize)
    if trailing and not preallocated:
        raise CorruptIndexError(
            f"index of {len(view)} bytes is not a multiple of {dtype.itemsize} bytes",
            path=path,
            position=count * dtype.itemsize,
            advice=_REBUILD,
        )
    entries = np.frombuffer(view, dtype=dtype, count=count)
    if preallocated:
        written = np.frombuffer(view, dtype=np.uint8, count=count * dtype.itemsize).nonzero()[0]
        entries = entries[: int(written[-1]) // dtype.itemsize + 1 if len(written) else 0]
    return entries


def _checked_count(
    good: npt.NDArray[np.bool_], entry_bytes: int, base_offset: int, *, path: str | None, preallocated: bool
) -> int:
    """Return the number of entries before the first that is not `good`."""
    if good.all():
        return len(good)
    first_bad = int(good.argmin())
    if preallocated:
        return first_bad
    raise CorruptIndexError(
        f"index entry {first_bad} is negative or does not follow the entry before it",
        path=path,
        position=first_bad * entry_bytes,
        offset=base_offset,
        advice=_REBUILD,
    )


# -------------------------------------------------------------------------------------------------------- time index


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """Entries of one `.timeindex`: timestamps int64[n] in ms, strictly ascending, and relative_offsets int64[n]."""

    base_offset: int
    timestamps: Int64s
    relative_offsets: Int64s

    def __len__(self) -> int:
        return len(self.timestamps)

    def __getitem__(self, slot: int) -> TimestampOffset:
        return TimestampOffset(int(self.timestamps[slot]), self.base_offset + int(self.relative_offsets[slot]))

    @property
    def last_entry(self) -> TimestampOffset:
        """The entry with the largest timestamp; (−1, base offset) if the index is empty."""
        return self[-1] if len(self) else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def lookup(self, target_ms: int) -> TimestampOffset:
        """Return the entry with the largest timestamp ≤ `target_ms`; (−1, base offset) if there is none.

        Source: kafka-log 01 §7.2.
        """
        slot = int(np.searchsorted(self.timestamps, target_ms, side="right")) - 1
        return self[slot] if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def to_bytes(self) -> bytes:
        """Return the trimmed file."""
        entries = np.empty(len(self), dtype=_TIME_ENTRY)
        entries["timestamp"] = self.timestamps
        entries["relative_offset"] = self.relative_offsets
        return entries.tobytes()


def parse_time_index(
    data: Buffer, base_offset: int, *, path: str | None = None, preallocated: bool = False
) -> TimeIndex:
    """Parse a time index; `preallocated` as for `parse_offset_index`.

    Raises:
        CorruptIndexError: the length is not a multiple of 12, an entry is negative, timestamps do not strictly ascend
            or offsets descend; with `preallocated` never.

    Source: kafka-log 01 §7, §7.2.
    """
    entries = _entries(data, _TIME_ENTRY, path=path, preallocated=preallocated)
    timestamps = entries["timestamp"].astype(np.int64)
    relative_offsets = entries["relative_offset"].astype(np.int64)
    good = (timestamps >= 0) & (relative_offsets >= 0)
    good[1:] &= (timestamps[1:] > timestamps[:-1]) & (np.diff(relative_offsets) >= 0)
    count = _checked_count(good, TIME_ENTRY_BYTES, base_offset, path=path, preallocated=preallocated)
    return TimeIndex(base_offset, timestamps[:count], relative_offsets[:count])


# ------------------------------------------------------------------------------------------------- transaction index


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One aborted transaction; offsets are absolute.

    `last_offset` is the offset of its ABORT marker; `last_stable_offset` is the log's last stable offset when the
    marker was appended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class CollectedAborted:
    """Aborted transactions of a range; `is_complete` is True if later segments cannot list another one."""

    transactions: tuple[AbortedTransaction, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class TransactionIndex:
    """Entries of one `.txnindex` in file order, each column int64[n]."""

    producer_ids: Int64s
    first_offsets: Int64s
    last_offsets: Int64s
    last_stable_offsets: Int64s

    def __len__(self) -> int:
        return len(self.producer_ids)

    def transactions(self) -> tuple[AbortedTransaction, ...]:
        """Return all entries as values."""
        return self._take(np.ones(len(self), dtype=np.bool_))

    def collect(self, fetch_offset: int, upper_bound: int) -> CollectedAborted:
        """Return the aborted transactions that overlap [fetch_offset, upper_bound), by Kafka's rule.

        The search ends after the first entry whose last stable offset reaches `upper_bound`: every later marker belongs
        to a transaction that began at or above `upper_bound`.

        Source: kafka-log 01 §7.4 (collectAbortedTxns).
        """
        stops = self.last_stable_offsets >= upper_bound
        is_complete = bool(stops.any())
        wanted = (self.last_offsets >= fetch_offset) & (self.first_offsets < upper_bound)
        if is_complete:
            wanted[int(stops.argmax()) + 1 :] = False
        return CollectedAborted(self._take(wanted), is_complete)

    def check(self, base_offset: int, *, path: str | None = None) -> None:
        """Run the check of Kafka's loader for a segment.

        Raises:
            CorruptIndexError: an entry ends below the segment's base offset.
        """
        below = self.last_offsets < base_offset
        if below.any():
            slot = int(below.argmax())
            raise CorruptIndexError(
                f"aborted transaction ends at offset {int(self.last_offsets[slot])}, below base offset {base_offset}",
                path=path,
                position=slot * TRANSACTION_ENTRY_BYTES,
                advice=_REBUILD,
            )

    def _take(self, wanted: npt.NDArray[np.bool_]) -> tuple[AbortedTransaction, ...]:
        columns = (self.producer_ids, self.first_offsets, self.last_offsets, self.last_stable_offsets)
        return tuple(
            AbortedTransaction(*row) for row in zip(*(column[wanted].tolist() for column in columns), strict=True)
        )


def parse_transaction_index(data: Buffer, *, path: str | None = None) -> TransactionIndex:
    """Parse a transaction index; trailing bytes of an incomplete entry are ignored.

    Raises:
        UnsupportedDataError: an entry has a newer version.  As in Kafka, only the first byte of the version counts.

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


def encode_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of the entries of `transactions`: a whole `.txnindex`, or bytes to append to one."""
    return b"".join(
        TRANSACTION_ENTRY_STRUCT.pack(
            0, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
        )
        for entry in transactions
    )


def collect_aborted(
    indexes: Iterable[TransactionIndex], fetch_offset: int, upper_bound: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that overlap [fetch_offset, upper_bound).

    `indexes` are those of all segments from the one with `fetch_offset` to the active one, because the marker of a
    transaction can be far above the range.  No more of them are read than necessary.

    Source: kafka-log 01 §7.4, 04 §8 step 7.
    """
    found: list[AbortedTransaction] = []
    for index in indexes:
        collected = index.collect(fetch_offset, upper_bound)
        found += collected.transactions
        if collected.is_complete:
            break
    return tuple(found)
