"""Which records of a batch live: Kafka's shouldRetainRecord as compiled loops over decoded records.

The loops mark `kept`, uint8[records], and count; neither looks at anything but the decoded rows, the key hashes and
the map.  Order of the rules (kafka-log 02 §6.3): above the map's latest offset everything lives; a record without a key
goes; a record superseded by a later one with its key goes; a tombstone goes once its delete horizon has passed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.offset_map import SET_SLOT_BYTES, fill_slot, find_slot, get_offset
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.decode import KEY_BYTES, OFFSET_DELTA, VALUE_BYTES


@kernel
def keep_latest(
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
def survives(living: npt.NDArray[np.uint8], number: int) -> bool:
    """Bit `number` of `living`."""
    return bool((living[number >> 3] >> (number & 7)) & 1)


@kernel
def count_survivors(living: npt.NDArray[np.uint8], first: int, count: int) -> int:
    """How many of `count` bits of `living` are set, from bit `first` on."""
    total = 0
    number = first
    while number < first + count:
        if number & 7 == 0 and living[number >> 3] == 0:
            number += 8
        else:
            total += survives(living, number)
            number += 1
    return total


@kernel
def keep_survivors(
    records: npt.NDArray[np.int64],
    rows: int,
    count: int,
    tombstones_expired: bool,
    living: npt.NDArray[np.uint8],
    first: int,
    kept: npt.NDArray[np.uint8],
) -> int:
    """Judge a batch of `count` records by the bits of `living` from `first` on, which stand from its last record down.

    `rows` of them are decoded: all, or those that live.  Returns the number kept.
    """
    total = 0
    for index in range(rows):
        lives_on = rows < count or survives(living, first + count - 1 - index)
        kept[index] = lives_on and not (tombstones_expired and records[index, VALUE_BYTES] < 0)
        total += kept[index]
    return total


@kernel
def note_keys(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    first_mapped_offset: int,
    directory: npt.NDArray[np.int64],
    first: int,
    sights: int,
    sighted: npt.NDArray[np.uint64],
    mapped: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
) -> int:
    """Note the records of a batch that `keep_latest` would find to be the first of their key, in its order.

    `sighted`, uint64[n, 2], `mapped`, uint8[n], and `places`, int64[n], receive the hash, whether the key enters the
    map, and the record's number, from `sights` on; the last record's is `first`.  Returns the number noted so far.
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
        places[sights] = first + count - 1 - index
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
