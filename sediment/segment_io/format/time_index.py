"""The time index: parsing, searching, checking and encoding (kafka-log 01 §7.2).

An entry has 12 bytes: timestamp i64 | relative offset i32.

The offset is the last offset of the first batch with the entry's timestamp.

Invariants: a parsed index never changes.  Its timestamps ascend, so a look-up is a binary search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.index_sanity import Int64s, ascending_entries, whole_entries
from sediment.segment_io.format.layout import NO_TIMESTAMP, TIME_ENTRY_BYTES

_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
assert _TIME_ENTRY.itemsize == TIME_ENTRY_BYTES


@dataclass(frozen=True, slots=True, order=True)
class TimestampOffset:
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """The entries of one `.timeindex`: timestamps int64[n] in ms, strictly ascending, and relative_offsets int64[n]."""

    base_offset: int
    timestamps: Int64s
    relative_offsets: Int64s

    def __len__(self) -> int:
        return len(self.timestamps)

    def __getitem__(self, slot: int) -> TimestampOffset:
        return TimestampOffset(int(self.timestamps[slot]), self.base_offset + int(self.relative_offsets[slot]))

    @property
    def last_entry(self) -> TimestampOffset:
        return self[-1] if len(self) else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def lookup(self, target_ms: int) -> TimestampOffset:
        slot = int(np.searchsorted(self.timestamps, target_ms, side="right")) - 1
        return self[slot] if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def to_bytes(self) -> bytes:
        entries = np.empty(len(self), dtype=_TIME_ENTRY)
        entries["timestamp"] = self.timestamps
        entries["relative_offset"] = self.relative_offsets
        return entries.tobytes()


def parse_time_index(
    data: Buffer, base_offset: int, *, path: str | None = None, preallocated: bool = False
) -> TimeIndex:
    """Parse a time index; `preallocated` has the same meaning as in `parse_offset_index`.

    Raises:
        CorruptIndexError: the length is not a multiple of 12, an entry is negative, timestamps do not strictly ascend,
            or offsets descend.  With `preallocated`, this error is never raised.

    Source: kafka-log 01 §7, §7.2.
    """
    entries = whole_entries(data, _TIME_ENTRY, path=path, preallocated=preallocated)
    timestamps = entries["timestamp"].astype(np.int64)
    relative_offsets = entries["relative_offset"].astype(np.int64)
    good = (timestamps >= 0) & (relative_offsets >= 0)
    good[1:] &= (timestamps[1:] > timestamps[:-1]) & (np.diff(relative_offsets) >= 0)
    count = ascending_entries(good, TIME_ENTRY_BYTES, base_offset, path=path, preallocated=preallocated)
    return TimeIndex(base_offset, timestamps[:count], relative_offsets[:count])
