"""The offset index: parsing, searching, checking and encoding (kafka-log 01 §7.1).

An entry has 8 bytes: relative offset i32 | position i32.

Invariants: a parsed index never changes.  Its offsets ascend, so a look-up is a binary search.  Relative offsets count
from the segment's base offset and are in 0 … 2^31 − 1.  A look-up returns a position from which the caller scans
forward.  So the index stays correct if entries are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.index_sanity import Int64s, ascending_entries, whole_entries
from sediment.segment_io.format.layout import OFFSET_ENTRY_BYTES

_OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
assert _OFFSET_ENTRY.itemsize == OFFSET_ENTRY_BYTES


@dataclass(frozen=True, slots=True, order=True)
class OffsetPosition:
    offset: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of one `.index`: relative_offsets int64[n], strictly ascending, and positions int64[n] in bytes."""

    base_offset: int
    relative_offsets: Int64s
    positions: Int64s

    def __len__(self) -> int:
        return len(self.relative_offsets)

    def __getitem__(self, slot: int) -> OffsetPosition:
        return OffsetPosition(self.base_offset + int(self.relative_offsets[slot]), int(self.positions[slot]))

    @property
    def last_offset(self) -> int:
        return self[-1].offset if len(self) else self.base_offset

    def lookup(self, target_offset: int) -> OffsetPosition:
        slot = int(np.searchsorted(self.relative_offsets, target_offset - self.base_offset, side="right")) - 1
        return self[slot] if slot >= 0 else OffsetPosition(self.base_offset, 0)

    def to_bytes(self) -> bytes:
        entries = np.empty(len(self), dtype=_OFFSET_ENTRY)
        entries["relative_offset"] = self.relative_offsets
        entries["position"] = self.positions
        return entries.tobytes()


def parse_offset_index(
    data: Buffer, base_offset: int, *, path: str | None = None, preallocated: bool = False
) -> OffsetIndex:
    """Parse an offset index.

    With `preallocated`, the file may be longer than its entries, like the index file of an active segment after a
    crash.  The entries then end before the zero tail, or before an offset or position that does not ascend.

    Raises:
        CorruptIndexError: the length is not a multiple of 8, an entry is negative, offsets do not strictly ascend, or
            positions descend.  With `preallocated`, this error is never raised.

    Source: kafka-log 01 §7, §7.1.
    """
    entries = whole_entries(data, _OFFSET_ENTRY, path=path, preallocated=preallocated)
    relative_offsets = entries["relative_offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    good = (relative_offsets >= 0) & (positions >= 0)
    good[1:] &= (np.diff(relative_offsets) > 0) & (np.diff(positions) >= 0)
    count = ascending_entries(good, OFFSET_ENTRY_BYTES, base_offset, path=path, preallocated=preallocated)
    return OffsetIndex(base_offset, relative_offsets[:count], positions[:count])
