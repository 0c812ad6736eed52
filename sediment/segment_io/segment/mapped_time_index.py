"""The time index of an open segment: entries are appended to its file, and searched in a memory mapping.

    lookup          the entry with the largest timestamp at or below the target, else (-1, base offset)
    maybe_append    adds an entry only for a larger timestamp; a smaller timestamp or offset is an error
    truncate_to     keeps the entries with offsets below an offset
    full            only one slot is free; a roll or a close may use it for the largest timestamp (skipFullCheck)

`index_appends` has the rule for ordinary appends.

Source: kafka-log 01 §7.2.
"""

from __future__ import annotations

from sediment.segment_io.errors import IndexFullError, IndexOrderError
from sediment.segment_io.format.index_appends import relative_offset
from sediment.segment_io.format.layout import (
    NO_TIMESTAMP,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.time_index import TimestampOffset
from sediment.segment_io.segment.mapped_index import MappedIndex, last_at_most_i32, last_at_most_i64


class MappedTimeIndex(MappedIndex):
    """The `.timeindex` of an open segment (kafka-log 01 §7.2)."""

    entry_bytes = TIME_ENTRY_BYTES
    reserved_entries = 1  # for the entry of the largest timestamp, when the segment is rolled

    @property
    def last_entry(self) -> TimestampOffset:
        """The entry with the largest timestamp; (−1, base offset) if the index is empty."""
        return self[len(self) - 1] if len(self) else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def __getitem__(self, slot: int) -> TimestampOffset:
        mapping = self.mapped()
        timestamp_ms, relative = TIME_ENTRY_STRUCT.unpack_from(mapping.memory, slot * TIME_ENTRY_BYTES)
        return TimestampOffset(timestamp_ms, self.base_offset + relative)

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp_ms` is above the timestamp of the last entry.

        Raises:
            IndexFullError: the index is full; with `skip_full_check`, the entry may use the reserved slot.
            IndexOrderError: `offset` or `timestamp_ms` is below the value in the last entry.
            IndexOffsetOverflowError: `offset` is outside the segment's range.
        """
        if len(self) >= self.max_entries or (self.is_full and not skip_full_check):
            raise IndexFullError(f"index is full with {len(self)} entries", advice="raise segment.index.bytes")
        last = self.last_entry
        if len(self) and offset < last.offset:
            raise IndexOrderError(f"offset is below the last indexed offset, {last.offset}", offset=offset)
        if len(self) and timestamp_ms < last.timestamp_ms:
            raise IndexOrderError(
                f"timestamp {timestamp_ms} is below the last indexed timestamp, {last.timestamp_ms}", offset=offset
            )
        if timestamp_ms > last.timestamp_ms:
            self.extend(TIME_ENTRY_STRUCT.pack(timestamp_ms, relative_offset(offset, self.base_offset)))

    def lookup(self, target_ms: int) -> TimestampOffset:
        """Return the entry with the largest timestamp ≤ `target_ms`; (−1, base offset) if there is none."""
        entries = len(self)
        if not entries:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        mapping = self.mapped()
        slot = last_at_most_i64(mapping.address, TIME_ENTRY_BYTES, 0, entries, self.warm_entries, target_ms)
        return self[slot] if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries with offsets below `offset`."""
        entries = len(self)
        if entries:
            mapping, target = self.mapped(), offset - self.base_offset - 1
            self.cut(last_at_most_i32(mapping.address, TIME_ENTRY_BYTES, 8, entries, self.warm_entries, target) + 1)
