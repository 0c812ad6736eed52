"""Which records of a batch live: Kafka's shouldRetainRecord as compiled loops over decoded records.

The loops mark `kept`, uint8[records], and count; neither looks at anything but the decoded rows, the key hashes and
the map.  Order of the rules (kafka-log 02 §6.3): above the map's latest offset everything lives; a record without a key
goes; a record superseded by a later one with its key goes; a tombstone goes once its delete horizon has passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.offset_map import SET_SLOT_BYTES, fill_slot, find_slot, get_offset, range_of
from sediment.segment_io.decode import KEY_BYTES, OFFSET_DELTA, VALUE_BYTES
from sediment.segment_io.jit import kernel


@kernel
def keep_first_sight(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    first_mapped_offset: int,
    tombstones_expired: bool,
    directory: npt.NDArray[np.int64],
    kept: npt.NDArray[np.uint8],
) -> int:
    """Judge records from last to first: a key seen before, nearer to the log's end, is superseded.

    Keys at or above `first_mapped_offset` are remembered, those below only looked up.  Returns the number kept.
    """
    total = 0
    for index in range(count - 1, -1, -1):
        kept[index] = 0
        if records[index, KEY_BYTES] < 0:
            continue
        low = hashes[index, 0]
        high = hashes[index, 1]
        found, address = find_slot(directory, SET_SLOT_BYTES, low, high)
        if found:
            continue
        if base_offset + records[index, OFFSET_DELTA] >= first_mapped_offset:
            fill_slot(directory, address, low, high)
        if records[index, VALUE_BYTES] < 0 and tombstones_expired:
            continue
        kept[index] = 1
        total += 1
    return total


@kernel
def keep_in_split(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    first_mapped_offset: int,
    tombstones_expired: bool,
    directory: npt.NDArray[np.int64],
    superseded: npt.NDArray[np.uint8],
    next_sight: npt.NDArray[np.int64],
    kept: npt.NDArray[np.uint8],
) -> tuple[int, int]:
    """As `keep_first_sight`, for a run of a split: a key's first sight in it is superseded if a newer run says so.

    `next_sight`, int64[ranges], is for each range of hashes the index of the bit in `superseded` that tells of its next
    first sight; ranges are as in `range_of`.  Returns (number kept, first sights).
    """
    total = 0
    sights = 0
    for index in range(count - 1, -1, -1):
        kept[index] = 0
        if records[index, KEY_BYTES] < 0:
            continue
        low = hashes[index, 0]
        high = hashes[index, 1]
        found, address = find_slot(directory, SET_SLOT_BYTES, low, high)
        if found:
            continue
        if base_offset + records[index, OFFSET_DELTA] >= first_mapped_offset:
            fill_slot(directory, address, low, high)
        sights += 1
        bit = next_sight[range_of(high, next_sight.size)]
        next_sight[range_of(high, next_sight.size)] = bit + 1
        if (superseded[bit >> 3] >> (bit & 7)) & 1:
            continue
        if records[index, VALUE_BYTES] < 0 and tombstones_expired:
            continue
        kept[index] = 1
        total += 1
    return total, sights


@kernel
def note_sights(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    first_mapped_offset: int,
    directory: npt.NDArray[np.int64],
    sights: int,
    sighted: npt.NDArray[np.uint64],
    mapped: npt.NDArray[np.uint8],
) -> int:
    """Note the keys of a batch that `keep_in_split` will see for the first time in a run, in its order.

    `sighted`, uint64[n, 2], and `mapped`, uint8[n], receive the hash and whether the key enters the map, from `sights`
    on.  Returns the number noted so far.
    """
    for index in range(count - 1, -1, -1):
        if records[index, KEY_BYTES] < 0:
            continue
        low = hashes[index, 0]
        high = hashes[index, 1]
        found, address = find_slot(directory, SET_SLOT_BYTES, low, high)
        if found:
            continue
        enters = base_offset + records[index, OFFSET_DELTA] >= first_mapped_offset
        if enters:
            fill_slot(directory, address, low, high)
        sighted[sights, 0] = low
        sighted[sights, 1] = high
        mapped[sights] = enters
        sights += 1
    return sights


@kernel
def keep_by_offset(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    latest_offset: int,
    tombstones_expired: bool,
    directory: npt.NDArray[np.int64],
    kept: npt.NDArray[np.uint8],
) -> int:
    """Judge records against the offsets of a filled map.  Returns the number kept."""
    total = 0
    for index in range(count):
        kept[index] = 0
        offset = base_offset + records[index, OFFSET_DELTA]
        if offset <= latest_offset:
            if records[index, KEY_BYTES] < 0:
                continue
            if offset < get_offset(directory, hashes[index, 0], hashes[index, 1]):
                continue
            if records[index, VALUE_BYTES] < 0 and tombstones_expired:
                continue
        kept[index] = 1
        total += 1
    return total


@kernel
def keep_all(count: int, kept: npt.NDArray[np.uint8]) -> int:
    """Control records are not judged one by one."""
    for index in range(count):
        kept[index] = 1
    return count
