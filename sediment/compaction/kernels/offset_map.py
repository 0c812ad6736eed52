"""The offset map: 128-bit hashes of keys, with or without an offset each, in open addressing.

A map is 64 tables chosen by the hash's top bits, each growing by itself, so that growth never holds more than one
64th of the map twice; tables smaller than a large page share one, which goes when the last of them has grown.
A slot is (low, high) or (low, high, offset), 8 bytes each; low = high = 0 is an empty slot, and a key that hashes to
zero is stored as low = 1.  Linear probing; the load stays at or below 3/4.

Two uses (architecture rule 4):
* first sight: a backward sweep asks only "was this key seen nearer to the log's end?"; no offsets are stored.
* bounded or careful: offsets are put forward, the last put wins, and the log is filtered against them.

Invariant: every table has an empty slot, so that probing ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.huge_pages import LARGE_PAGE_BYTES, PageReserve
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i64, load_word64, prefetch, store_i64, swap_word64

TABLES = 64
_TABLE_SHIFT = np.uint64(58)
_FIRST_SLOTS = 512
SET_SLOT_BYTES = 16
OFFSET_SLOT_BYTES = 24

# Columns of the directory, int64[TABLES, 4], which is all that a kernel sees of a map.
ADDRESS = 0
MASK = 1
USED = 2
LIMIT = 3

NOT_FOUND = -1

TABLE_PAGES = PageReserve(in_large_pages=True)  # of all maps of this process


@kernel
def _store_word(address: int, word: np.uint64) -> None:
    store_i64(address, np.int64(swap_word64(word)))


@kernel
def home_of(directory: npt.NDArray[np.int64], slot_bytes: int, low: np.uint64) -> int:
    """Address of the slot where probing for `low` starts."""
    table = np.int64(low >> _TABLE_SHIFT)
    return directory[table, ADDRESS] + (np.int64(low) & directory[table, MASK]) * slot_bytes


@kernel
def prefetch_slot(directory: npt.NDArray[np.int64], slot_bytes: int, low: np.uint64) -> None:
    """Ask for the cache line that a look-up of `low` will touch first."""
    prefetch(home_of(directory, slot_bytes, low))


@kernel
def find_slot(directory: npt.NDArray[np.int64], slot_bytes: int, low: np.uint64, high: np.uint64) -> tuple[bool, int]:
    """(found, address of the key's slot or of the empty slot where it belongs)."""
    table = np.int64(low >> _TABLE_SHIFT)
    first = directory[table, ADDRESS]
    mask = directory[table, MASK]
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
    """`low`, moved off the pair that marks an empty slot."""
    return np.uint64(1) if low == np.uint64(0) and high == np.uint64(0) else low


@kernel
def range_of(high: np.uint64, ranges: int) -> int:
    """Which of `ranges` (a power of two up to 2^31) equal ranges of hashes a key belongs to, whatever its table."""
    return np.int64(((high >> np.uint64(32)) * np.uint64(ranges)) >> np.uint64(32))


@kernel
def fill_slot(directory: npt.NDArray[np.int64], address: int, low: np.uint64, high: np.uint64) -> None:
    """Put a key into the empty slot that `find_slot` answered."""
    _store_word(address, low)
    _store_word(address + 8, high)
    directory[np.int64(low >> _TABLE_SHIFT), USED] += 1


@kernel
def put_offset(directory: npt.NDArray[np.int64], low: np.uint64, high: np.uint64, offset: int) -> int:
    """Set the offset of a key; the last put wins.  Returns the number of keys added, 0 or 1."""
    found, address = find_slot(directory, OFFSET_SLOT_BYTES, low, high)
    if not found:
        fill_slot(directory, address, low, high)
    store_i64(address + 16, offset)
    return 0 if found else 1


@kernel
def get_offset(directory: npt.NDArray[np.int64], low: np.uint64, high: np.uint64) -> int:
    """The offset of a key, or NOT_FOUND."""
    found, address = find_slot(directory, OFFSET_SLOT_BYTES, low, high)
    return load_i64(address + 16) if found else NOT_FOUND


@kernel
def headroom(directory: npt.NDArray[np.int64]) -> int:
    """How many keys surely fit, wherever they hash to."""
    least = directory[0, LIMIT] - directory[0, USED]
    for table in range(1, TABLES):
        least = min(least, directory[table, LIMIT] - directory[table, USED])
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
        _store_word(target + slot * slot_bytes, low)
        _store_word(target + slot * slot_bytes + 8, high)
        if slot_bytes == OFFSET_SLOT_BYTES:
            store_i64(target + slot * slot_bytes + 16, load_i64(address + 16))


class OffsetMap:
    """Owns the tables; kernels work on `directory`, int64[TABLES, 4] of (address, mask, used, limit)."""

    def __init__(self, *, with_offsets: bool) -> None:
        self.slot_bytes = OFFSET_SLOT_BYTES if with_offsets else SET_SLOT_BYTES
        self.directory = np.zeros((TABLES, 4), dtype=np.int64)
        # One allocation for all first tables: a small partition must not pay for 64.
        block = np.zeros(TABLES * _FIRST_SLOTS * self.slot_bytes, dtype=np.uint8)
        self._tables = list(block.reshape(TABLES, -1))
        self._blocks = [block] * TABLES
        self._newest_block, self._newest_used_bytes = block, block.size
        for table in range(TABLES):
            self._describe(table)

    def _describe(self, table: int) -> None:
        memory = self._tables[table]
        slots = memory.size // self.slot_bytes
        self.directory[table, ADDRESS] = memory.ctypes.data
        self.directory[table, MASK] = slots - 1
        self.directory[table, LIMIT] = slots * 3 // 4

    def __len__(self) -> int:
        return int(self.directory[:, USED].sum())

    def size_bytes(self) -> int:
        """Memory of the tables, and of what they share pages with."""
        return sum({id(block): block.size for block in self._blocks}.values())

    def size_bytes_with(self, keys: int) -> int:
        """Memory of the tables after `reserve(keys)`."""
        return int(self._sizes_with(keys).sum())

    def reserve(self, keys: int) -> None:
        """Grow each table that could not take `keys` more."""
        sizes = self._sizes_with(keys)
        for table in map(int, np.flatnonzero(sizes > self._sizes_with(0))):
            self._grow(table, int(sizes[table]))

    def _sizes_with(self, keys: int) -> npt.NDArray[np.int64]:
        """int64[TABLES]: bytes of each table once it can take `keys` more."""
        sizes = (self.directory[:, MASK] + 1) * self.slot_bytes
        limits, wanted = self.directory[:, LIMIT].copy(), self.directory[:, USED] + keys
        while (short := limits < wanted).any():
            sizes[short] *= 2
            limits[short] *= 2
        return sizes

    def _room_for(self, table: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed room from the block that was begun last, or from a new one."""
        if self._newest_block.size - self._newest_used_bytes < size_bytes:
            self._newest_block = TABLE_PAGES.take_zeroed(max(size_bytes, LARGE_PAGE_BYTES))
            self._newest_used_bytes = 0
        start = self._newest_used_bytes
        self._newest_used_bytes += size_bytes
        self._blocks[table] = self._newest_block
        return self._newest_block[start : start + size_bytes]

    def _grow(self, table: int, size_bytes: int) -> None:
        old = self._tables[table]
        new = self._room_for(table, size_bytes)
        mask = size_bytes // self.slot_bytes - 1
        _move(old.ctypes.data, old.size // self.slot_bytes, self.slot_bytes, new.ctypes.data, mask)
        self._tables[table] = new
        self._describe(table)
