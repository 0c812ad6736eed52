"""The rules for batches and records that survive: Kafka's checkBatchRetention and shouldRetainRecord as kernels.

Rules for a record, in order (kafka-log 02 §6.3):
1. A record above the map's latest offset survives.
2. A record without a key is dropped.
3. A record superseded by a later record with its key is dropped.
4. A tombstone is dropped once it has expired (`tombstones_expire`).
5. Every other record survives.

Rules for delete horizons (kafka-log 02 §6.4): a cleaning writes a horizon into a batch that needs one and has none
(`needs_horizon`).  Bit 6 of the attributes says that the batch's base timestamp is its horizon.  Tombstones, and
markers with nothing left to mark, go once the clock has reached it (`horizon_has_passed`).

Invariant: a rule sees only header fields, batch flags, decoded rows, key hashes and the map.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.offset_map import SET_SLOT_BYTES, fill_slot, find_slot, get_offset
from sediment.compaction.kernels.transactions import DISCARD, MARKS_NOTHING, TOMBSTONES_GO, TOMBSTONES_STAY
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.decode import KEY_BYTES, OFFSET_DELTA, VALUE_BYTES


# ---------------------------------------------------------------------------------------------------- rules for a batch
@kernel
def horizon_has_passed(has_horizon: bool, base_timestamp: int, now_ms: int) -> bool:
    """Return True if a batch has a delete horizon (bit 6), and the clock has reached it."""
    return has_horizon and base_timestamp <= now_ms


@kernel
def tombstones_expire(flags: int, horizon_passed: bool) -> bool:
    """Return True if the tombstones of a batch are dropped: by its horizon, or by the age of its segment."""
    return (horizon_passed or (flags & TOMBSTONES_GO) != 0) and (flags & TOMBSTONES_STAY) == 0


@kernel
def is_discarded(flags: int, is_control: bool, horizon_passed: bool) -> bool:
    """Return True if a batch is dropped as a whole: aborted data, or a marker whose horizon has passed."""
    return (flags & DISCARD) != 0 and (not is_control or horizon_passed)


@kernel
def needs_horizon(flags: int, is_control: bool, has_horizon: bool, tombstones: int) -> bool:
    """Return True if a batch that keeps `tombstones` tombstones is to get a delete horizon.

    A marker gets one if its transaction has no batch left, any other batch if it keeps a tombstone.
    """
    return not has_horizon and ((is_control and (flags & MARKS_NOTHING) != 0) or tombstones > 0)


# --------------------------------------------------------------------------------------------------- rules for a record
@kernel
def keep_latest(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    first_mapped_offset: int,
    tombstones_expired: bool,
    tables: npt.NDArray[np.int64],
    kept: npt.NDArray[np.uint8],
) -> int:
    """Mark the latest occurrences of keys in `kept`, from the last record to the first.

    A key that the map holds occurred nearer to the log's end.  Keys at or above `first_mapped_offset` enter the map,
    those below are only looked up.  Return the number of records kept.
    """
    total = 0
    for index in range(count - 1, -1, -1):
        kept[index] = 0
        if records[index, KEY_BYTES] < 0:
            continue
        low = hashes[index, 0]
        high = hashes[index, 1]
        found, address = find_slot(tables, SET_SLOT_BYTES, low, high)
        if found:
            continue
        if base_offset + records[index, OFFSET_DELTA] >= first_mapped_offset:
            fill_slot(tables, address, low, high)
        if records[index, VALUE_BYTES] < 0 and tombstones_expired:
            continue
        kept[index] = 1
        total += 1
    return total


@kernel
def survives(survivors: npt.NDArray[np.uint8], number: int) -> bool:
    """Return bit `number` of the bitmap `survivors`."""
    return bool((survivors[number >> 3] >> (number & 7)) & 1)


@kernel
def count_survivors(survivors: npt.NDArray[np.uint8], first: int, count: int) -> int:
    """Return the number of bits set among `count` bits of `survivors`, from bit `first` on."""
    total = 0
    number = first
    while number < first + count:
        if number & 7 == 0 and survivors[number >> 3] == 0:
            number += 8
        else:
            total += survives(survivors, number)
            number += 1
    return total


@kernel
def keep_survivors(
    records: npt.NDArray[np.int64],
    rows: int,
    count: int,
    tombstones_expired: bool,
    survivors: npt.NDArray[np.uint8],
    first: int,
    kept: npt.NDArray[np.uint8],
) -> int:
    """Mark the records of a batch of `count` that the bitmap `survivors` names; bit `first` is the last record's.

    `rows` of the records are decoded: all of them, or the survivors only.  Return the number of records kept.
    """
    total = 0
    for index in range(rows):
        is_survivor = rows < count or survives(survivors, first + count - 1 - index)
        kept[index] = is_survivor and not (tombstones_expired and records[index, VALUE_BYTES] < 0)
        total += kept[index]
    return total


@kernel
def keep_by_offset(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    latest_offset: int,
    tombstones_expired: bool,
    tables: npt.NDArray[np.int64],
    kept: npt.NDArray[np.uint8],
) -> int:
    """Mark the records that a filled map with offsets does not supersede.  Return the number of records kept."""
    total = 0
    for index in range(count):
        kept[index] = 0
        offset = base_offset + records[index, OFFSET_DELTA]
        if offset <= latest_offset:
            if records[index, KEY_BYTES] < 0:
                continue
            if offset < get_offset(tables, hashes[index, 0], hashes[index, 1]):
                continue
            if records[index, VALUE_BYTES] < 0 and tombstones_expired:
                continue
        kept[index] = 1
        total += 1
    return total


@kernel
def keep_all(count: int, kept: npt.NDArray[np.uint8]) -> int:
    """Mark every record: those of a control batch are not filtered one by one.  Return `count`."""
    for index in range(count):
        kept[index] = 1
    return count


@kernel
def collect_latest(
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    count: int,
    base_offset: int,
    first_mapped_offset: int,
    tables: npt.NDArray[np.int64],
    first: int,
    keys: int,
    run_hashes: npt.NDArray[np.uint64],
    run_mapped: npt.NDArray[np.uint8],
    run_numbers: npt.NDArray[np.int64],
) -> int:
    """Collect the records that `keep_latest` would find to be the latest of their keys, in its order.

    `run_hashes`, uint64[n, 2], `run_mapped`, uint8[n], and `run_numbers`, int64[n], hold `keys` keys already.  They
    receive the hash, 1 if the key enters the map, and the record's number; the last record's number is `first`.
    Return the number of keys that they hold then.
    """
    for index in range(count - 1, -1, -1):
        if records[index, KEY_BYTES] < 0:
            continue
        low = hashes[index, 0]
        high = hashes[index, 1]
        found, address = find_slot(tables, SET_SLOT_BYTES, low, high)
        if found:
            continue
        is_mapped = base_offset + records[index, OFFSET_DELTA] >= first_mapped_offset
        if is_mapped:
            fill_slot(tables, address, low, high)
        run_hashes[keys, 0] = low
        run_hashes[keys, 1] = high
        run_mapped[keys] = is_mapped
        run_numbers[keys] = first + count - 1 - index
        keys += 1
    return keys
