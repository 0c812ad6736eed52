"""Offset, time and transaction index (kafka-log 01 §7): entries, bytes, look-ups, and the rule for entries.

Entries here hold absolute offsets; only their bytes are relative to the segment's base offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.twin.batches import INT32_MAX
from tests.twin.errors import CorruptIndexError, IndexFullError, InvalidIndexOffsetError
from tests.twin.segments import TRANSACTION_INDEX, AnyBatch, Segment

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size
TRANSACTION_ENTRY_BYTES = _TRANSACTION_ENTRY.size

DEFAULT_INTERVAL_BYTES = 4096
DEFAULT_INDEX_BYTES = 10485760


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """The batch at `position` has `offset` as its last offset."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeEntry:
    """`timestamp` is the largest so far; the first batch that has it ends at `offset`."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction: `last_offset` is its marker's, `last_stable_offset` was the log's just after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


# ---------------------------------------------------------------------------------------------------------------- bytes
def _relative(offset: int, base_offset: int) -> int:
    if not 0 <= offset - base_offset <= INT32_MAX:
        raise InvalidIndexOffsetError(f"offset {offset} is not within 2^31 of the base offset {base_offset}")
    return offset - base_offset


def parse_offset_index(data: bytes, base_offset: int) -> list[OffsetEntry]:
    """Entries of a `.index`; an incomplete last one is ignored."""
    whole = data[: len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES]
    return [OffsetEntry(base_offset + offset, position) for offset, position in _OFFSET_ENTRY.iter_unpack(whole)]


def parse_time_index(data: bytes, base_offset: int) -> list[TimeEntry]:
    """Entries of a `.timeindex`; an incomplete last one is ignored."""
    whole = data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES]
    return [TimeEntry(timestamp, base_offset + offset) for timestamp, offset in _TIME_ENTRY.iter_unpack(whole)]


def parse_transaction_index(data: bytes) -> list[AbortedTransaction]:
    """Entries of a `.txnindex`; an incomplete last one is ignored.

    Raises:
        CorruptIndexError: an entry of a version above 0 (of which Kafka reads the first byte only).
    """
    entries = []
    for start in range(0, len(data) - TRANSACTION_ENTRY_BYTES + 1, TRANSACTION_ENTRY_BYTES):
        _version, *fields = _TRANSACTION_ENTRY.unpack_from(data, start)
        if 0 < data[start] < 128:
            raise CorruptIndexError(f"transaction index entry of version {data[start]} at position {start}")
        entries.append(AbortedTransaction(*fields))
    return entries


def encode_offset_index(entries: Iterable[OffsetEntry], base_offset: int) -> bytes:
    """Bytes of a trimmed `.index`."""
    return b"".join(_OFFSET_ENTRY.pack(_relative(entry.offset, base_offset), entry.position) for entry in entries)


def encode_time_index(entries: Iterable[TimeEntry], base_offset: int) -> bytes:
    """Bytes of a trimmed `.timeindex`."""
    return b"".join(_TIME_ENTRY.pack(entry.timestamp, _relative(entry.offset, base_offset)) for entry in entries)


def encode_transaction_index(entries: Iterable[AbortedTransaction]) -> bytes:
    """Bytes of a `.txnindex`."""
    return b"".join(
        _TRANSACTION_ENTRY.pack(0, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
        for entry in entries
    )


# ------------------------------------------------------------------------------------------------------------- look-ups
def lookup_position(entries: Sequence[OffsetEntry], target: int) -> int:
    """Position from which a forward scan finds `target`: the entry with the largest offset not above it, else 0."""
    return max((entry for entry in entries if entry.offset <= target), key=lambda e: e.offset, default=_START).position


_START = OffsetEntry(-1, 0)


def lookup_upper_bound(entries: Sequence[OffsetEntry], position: int, size_bytes: int) -> int | None:
    """Offset of the first entry at or above `position` + `size_bytes`."""
    return next((entry.offset for entry in entries if entry.position >= position + size_bytes), None)


def lookup_timestamp(entries: Sequence[TimeEntry], target: int, base_offset: int) -> TimeEntry:
    """Return the entry with the largest timestamp not above `target`, else (-1, base offset)."""
    return max(
        (entry for entry in entries if entry.timestamp <= target),
        key=lambda entry: entry.timestamp,
        default=TimeEntry(-1, base_offset),
    )


def collect_aborted(
    segments: Sequence[Segment], start: int, upper_bound: int, *, log_start_offset: int
) -> list[AbortedTransaction]:
    """Aborted transactions for [start, upper_bound), as the cleaner asks for them (02 §4.2).

    From the segment that contains `start` to the log's last one; an entry counts when it ends at or above
    `log_start_offset` (not `start`) and begins below `upper_bound`; the first entry whose last stable offset reaches
    `upper_bound` ends the search.
    """
    floors = [segment.base_offset for segment in segments if segment.base_offset <= start]
    found = []
    for segment in segments:
        if not floors or segment.base_offset < floors[-1]:
            continue
        for entry in parse_transaction_index(segment.read(TRANSACTION_INDEX)):
            if entry.last_offset >= log_start_offset and entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found
    return found


# ------------------------------------------------------------------------------------------------------ the rule (§7.5)
class IndexBuilder:
    """Offset and time index of one segment, fed with its batches in order; live, cleaned and recovered alike.

    Raises:
        IndexFullError, InvalidIndexOffsetError: as Kafka's indexes refuse an entry.
    """

    def __init__(
        self,
        base_offset: int,
        *,
        interval_bytes: int = DEFAULT_INTERVAL_BYTES,
        max_index_bytes: int = DEFAULT_INDEX_BYTES,
    ) -> None:
        self.base_offset = base_offset
        self.offset_entries: list[OffsetEntry] = []
        self.time_entries: list[TimeEntry] = []
        self.size_bytes = 0
        self._interval_bytes = interval_bytes
        self._max_offset_entries = max_index_bytes // OFFSET_ENTRY_BYTES
        self._max_time_entries = max_index_bytes // TIME_ENTRY_BYTES
        self._since_last_entry_bytes = 0
        self._largest = TimeEntry(-1, base_offset)

    def append(self, batch: AnyBatch) -> None:
        """Account for the next batch."""
        _relative(batch.last_offset, self.base_offset)
        if batch.max_timestamp > self._largest.timestamp:
            self._largest = TimeEntry(batch.max_timestamp, batch.last_offset)
        if self._since_last_entry_bytes > self._interval_bytes:
            self._append_offset(OffsetEntry(batch.last_offset, self.size_bytes))
            self._append_time(self._largest, skip_full_check=False)
            self._since_last_entry_bytes = 0
        self.size_bytes += len(batch.data)
        self._since_last_entry_bytes += len(batch.data)

    def finish(self) -> tuple[bytes, bytes]:
        """Bytes of the trimmed `.index` and `.timeindex`, once the segment becomes inactive."""
        self._append_time(self._largest, skip_full_check=True)
        return (
            encode_offset_index(self.offset_entries, self.base_offset),
            encode_time_index(self.time_entries, self.base_offset),
        )

    def _append_offset(self, entry: OffsetEntry) -> None:
        if len(self.offset_entries) >= self._max_offset_entries:
            raise IndexFullError(f"offset index of {len(self.offset_entries)} entries is full")
        if self.offset_entries and entry.offset <= self.offset_entries[-1].offset:
            raise InvalidIndexOffsetError(f"offset {entry.offset} after {self.offset_entries[-1].offset}")
        self.offset_entries.append(entry)

    def _append_time(self, entry: TimeEntry, *, skip_full_check: bool) -> None:
        if not skip_full_check and len(self.time_entries) >= self._max_time_entries - 1:
            raise IndexFullError(f"time index of {len(self.time_entries)} entries is full")
        last = self.time_entries[-1] if self.time_entries else TimeEntry(-1, self.base_offset)
        if self.time_entries and entry.offset < last.offset:
            raise InvalidIndexOffsetError(f"time index offset {entry.offset} after {last.offset}")
        if entry.timestamp > last.timestamp:
            self.time_entries.append(entry)


def build_indexes(
    batches: Iterable[AnyBatch],
    base_offset: int,
    *,
    interval_bytes: int = DEFAULT_INTERVAL_BYTES,
    max_index_bytes: int = DEFAULT_INDEX_BYTES,
) -> tuple[bytes, bytes]:
    """Bytes of `.index` and `.timeindex` for a segment of these batches."""
    builder = IndexBuilder(base_offset, interval_bytes=interval_bytes, max_index_bytes=max_index_bytes)
    for batch in batches:
        builder.append(batch)
    return builder.finish()


class TransactionIndexBuilder:
    """The `.txnindex` of one segment, as Kafka appends to it and cuts it; a file found at the start is not checked.

    Raises:
        InvalidIndexOffsetError: an entry does not end after the last one appended here.
    """

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self.entries = list(entries)
        self._last_appended = -1

    def append(self, entry: AbortedTransaction) -> None:
        if entry.last_offset <= self._last_appended:
            raise InvalidIndexOffsetError(f"{entry.last_offset} does not follow {self._last_appended}")
        self._last_appended = entry.last_offset
        self.entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        """Cut at the first entry whose last offset is at or above `offset`."""
        kept = next((i for i, entry in enumerate(self.entries) if entry.last_offset >= offset), len(self.entries))
        if kept < len(self.entries):
            self._last_appended = self.entries[kept - 1].last_offset if kept else -1
            del self.entries[kept:]
