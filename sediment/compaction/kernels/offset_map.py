"""The offset map: an open-addressing table of 128-bit key hashes, with or without offsets.

    slot      | low | high |              16 bytes, a set of keys
              | low | high | offset |     24 bytes, a map with offsets

A map is 64 tables, selected by the top bits of the hash.  Each table grows separately, so at most one 64th of the map
exists twice at any time.  Small tables share a large page, which is freed when all of them have grown.  An empty slot
has low = high = 0; a key whose hash is zero is stored with low = 1.  Probing is linear, and the load is at most 3/4.

Invariant: every table has an empty slot, so probing ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.huge_pages import LARGE_PAGE_BYTES, TABLE_PAGES
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i64, load_word64, prefetch, store_i64, store_word64

TABLES = 64
_TABLE_SHIFT = np.uint64(58)
_FIRST_SLOTS = 512
SET_SLOT_BYTES = 16
OFFSET_SLOT_BYTES = 24

# Columns of `tables`, int64[TABLES, 4], the only part of a map that a kernel sees.
ADDRESS = 0
MASK = 1
USED = 2
LIMIT = 3

NOT_FOUND = -1
FULL = -1


@kernel
def home_of(tables: npt.NDArray[np.int64], slot_bytes: int, low: np.uint64) -> int:
    table = np.int64(low >> _TABLE_SHIFT)
    return tables[table, ADDRESS] + (np.int64(low) & tables[table, MASK]) * slot_bytes


@kernel
def prefetch_slot(tables: npt.NDArray[np.int64], slot_bytes: int, low: np.uint64) -> None:
    prefetch(home_of(tables, slot_bytes, low))


@kernel
def find_slot(tables: npt.NDArray[np.int64], slot_bytes: int, low: np.uint64, high: np.uint64) -> tuple[bool, int]:
    """Return (found, address of the key's slot, or of the empty slot where it belongs)."""
    table = np.int64(low >> _TABLE_SHIFT)
    first = tables[table, ADDRESS]
    mask = tables[table, MASK]
    slot = np.int64(low) & mask
    while True:
        address = first + slot * slot_bytes
        stored_low = load_word64(address)
        stored_high = load_word64(address + 8)
        if stored_low == low and stored_high == high:
            return True, address
        if stored_low == np.uint64(0) and stored_high == np.uint64(0):
            return False, address
        slot = (slot + 1) & mask


@kernel
def normal(low: np.uint64, high: np.uint64) -> np.uint64:
    """Return `low`, or 1 if both halves are zero, because (0, 0) marks an empty slot."""
    return np.uint64(1) if low == np.uint64(0) and high == np.uint64(0) else low


@kernel
def range_of(high: np.uint64, ranges: int) -> int:
    """Return the index of the hash range that contains a key.

    `ranges`, a power of two up to 2^31, is the number of ranges.
    """
    return np.int64(((high >> np.uint64(32)) * np.uint64(ranges)) >> np.uint64(32))


@kernel
def fill_slot(tables: npt.NDArray[np.int64], address: int, low: np.uint64, high: np.uint64) -> None:
    store_word64(address, low)
    store_word64(address + 8, high)
    tables[np.int64(low >> _TABLE_SHIFT), USED] += 1


@kernel
def is_held(tables: npt.NDArray[np.int64], low: np.uint64, high: np.uint64, is_mapped: bool) -> bool:
    """Return True if a set already contains a key; otherwise add the key, but only if `is_mapped` is True."""
    found, address = find_slot(tables, SET_SLOT_BYTES, low, high)
    if not found and is_mapped:
        fill_slot(tables, address, low, high)
    return found


@kernel
def put_offset(tables: npt.NDArray[np.int64], low: np.uint64, high: np.uint64, offset: int) -> int:
    """Set the offset of a key; the last put wins.  Return the number of keys added, 0 or 1."""
    found, address = find_slot(tables, OFFSET_SLOT_BYTES, low, high)
    if not found:
        fill_slot(tables, address, low, high)
    store_i64(address + 16, offset)
    return 0 if found else 1


@kernel
def put_bounded(
    tables: npt.NDArray[np.int64], low: np.uint64, high: np.uint64, offset: int, keys: int, limit: int
) -> int:
    """Put a key as `put_offset` does, or return FULL if the map already contains `limit` keys.

    As in Kafka's buildOffsetMapForSegment, the limit is tested before the look-up (kafka-log 02 §4.2).  So a full map
    also rejects a key that it already contains.
    """
    if keys >= limit:
        return FULL
    return put_offset(tables, low, high, offset)


@kernel
def get_offset(tables: npt.NDArray[np.int64], low: np.uint64, high: np.uint64) -> int:
    found, address = find_slot(tables, OFFSET_SLOT_BYTES, low, high)
    return load_i64(address + 16) if found else NOT_FOUND


@kernel
def headroom(tables: npt.NDArray[np.int64]) -> int:
    """Return the number of keys that are certain to fit, regardless of their hashes."""
    least = tables[0, LIMIT] - tables[0, USED]
    for table in range(1, TABLES):
        least = min(least, tables[table, LIMIT] - tables[table, USED])
    return least


@kernel
def _move(source: int, slots: int, slot_bytes: int, target: int, mask: int) -> None:
    for index in range(slots):
        address = source + index * slot_bytes
        low = load_word64(address)
        high = load_word64(address + 8)
        if low == np.uint64(0) and high == np.uint64(0):
            continue
        slot = np.int64(low) & mask
        while load_word64(target + slot * slot_bytes) != 0 or load_word64(target + slot * slot_bytes + 8) != 0:
            slot = (slot + 1) & mask
        store_word64(target + slot * slot_bytes, low)
        store_word64(target + slot * slot_bytes + 8, high)
        if slot_bytes == OFFSET_SLOT_BYTES:
            store_i64(target + slot * slot_bytes + 16, load_i64(address + 16))


class OffsetMap:
    """The owner of the tables' memory; kernels take `tables`, int64[TABLES, 4] of (address, mask, used, limit)."""

    def __init__(self, *, with_offsets: bool) -> None:
        self.slot_bytes = OFFSET_SLOT_BYTES if with_offsets else SET_SLOT_BYTES
        self.tables = np.zeros((TABLES, 4), dtype=np.int64)
        # The first tables share one allocation, because 64 allocations would slow down small partitions.
        block = np.zeros(TABLES * _FIRST_SLOTS * self.slot_bytes, dtype=np.uint8)
        self._memories = list(block.reshape(TABLES, -1))
        self._blocks = [block] * TABLES
        self._newest_block, self._newest_used_bytes = block, block.size
        first_bytes = block.size // TABLES
        self.tables[:, ADDRESS] = np.arange(TABLES) * first_bytes + block.ctypes.data
        self.tables[:, [MASK, LIMIT]] = _mask_and_limit(_FIRST_SLOTS)

    def __len__(self) -> int:
        return int(self.tables[:, USED].sum())

    def size_bytes(self) -> int:
        return sum({id(block): block.size for block in self._blocks}.values())

    def size_bytes_with(self, keys: int) -> int:
        return int(self._sizes_with(keys).sum())

    def reserve(self, keys: int) -> None:
        sizes = self._sizes_with(keys)
        for table in map(int, np.flatnonzero(sizes > self._sizes_with(0))):
            self._grow(table, int(sizes[table]))

    def _sizes_with(self, keys: int) -> npt.NDArray[np.int64]:
        sizes = (self.tables[:, MASK] + 1) * self.slot_bytes
        limits, wanted = self.tables[:, LIMIT].copy(), self.tables[:, USED] + keys
        while (short := limits < wanted).any():
            sizes[short] *= 2
            limits[short] *= 2
        return sizes

    def _allocate(self, table: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        if self._newest_block.size - self._newest_used_bytes < size_bytes:
            self._newest_block = TABLE_PAGES.take_zeroed(max(size_bytes, LARGE_PAGE_BYTES))
            self._newest_used_bytes = 0
        start = self._newest_used_bytes
        self._newest_used_bytes += size_bytes
        self._blocks[table] = self._newest_block
        return self._newest_block[start : start + size_bytes]

    def _grow(self, table: int, size_bytes: int) -> None:
        old = self._memories[table]
        new = self._allocate(table, size_bytes)
        mask = size_bytes // self.slot_bytes - 1
        _move(old.ctypes.data, old.size // self.slot_bytes, self.slot_bytes, new.ctypes.data, mask)
        self._memories[table] = new
        self.tables[table, ADDRESS] = new.ctypes.data
        self.tables[table, [MASK, LIMIT]] = _mask_and_limit(mask + 1)


def _mask_and_limit(slots: int) -> tuple[int, int]:
    return slots - 1, slots * 3 // 4
