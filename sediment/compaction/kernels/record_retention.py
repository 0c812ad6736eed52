"""The rules for the records of a batch: Kafka's shouldRetainRecord as kernels.

In order (kafka-log 02 §6.3):
1. A record above the map's latest offset survives.
2. A record without a key is dropped.
3. A record is dropped if a later record with the same key supersedes it.
4. A tombstone is dropped after it has expired (`delete_horizon`).
5. All other records survive.

All records of a control batch are kept; `batch_retention` decides on the batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import BatchMemory, Header, KeyMap
from sediment.compaction.kernels.cleaned_transaction_metadata import UNMAPPED, UNREADABLE
from sediment.compaction.kernels.offset_map import get_offset, is_held
from sediment.compaction.kernels.registers import (
    BY_BITMAP,
    BY_OFFSET,
    FILTER,
    FIRST_MAPPED_OFFSET,
    HEADROOM,
    LATEST_OFFSET,
    RECORDS,
    WITHOUT_KEY,
)
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import load_i16, load_i32
from sediment.segment_io.compiled.status import BAD_VARINT, OK, RECORD_ENDS_EARLY, RECORD_TOO_LONG, RECORDS_REMAIN
from sediment.segment_io.format.layout import ATTRIBUTES, CONTROL_BIT, INT64_MAX, RECORD_COUNT
from sediment.segment_io.format.record_decoder import KEY_BYTES, OFFSET_DELTA, VALUE_BYTES, decode_records, read_varint


@inlined_kernel
def filter_records(
    header: Header,
    flags: int,
    decoded: int,
    expired: bool,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: BatchMemory,
    survivors: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
) -> int:
    """Mark the surviving records in `kept`; return their number.

    WITHOUT_KEY counts the records that rule 2 drops, except BY_BITMAP: the first sweep of the split has counted these
    records.
    """
    records, hashes, kept = rows.records, rows.hashes, rows.kept
    if header.is_control:
        return keep_all(header.record_count, kept)
    if rules[FILTER] == BY_BITMAP:
        return keep_survivors(records, decoded, header.record_count, expired, survivors, state[RECORDS], kept)
    if rules[FILTER] == BY_OFFSET:
        latest = state[LATEST_OFFSET]
        retained, without_key = keep_by_offset(
            records, hashes, header.record_count, header.base_offset, latest, expired, keys.tables, kept
        )
        state[WITHOUT_KEY] += without_key
        return retained
    first_mapped = INT64_MAX if flags & UNMAPPED else rules[FIRST_MAPPED_OFFSET]
    state[HEADROOM] -= header.record_count
    retained, without_key = keep_latest(
        records, hashes, header.record_count, header.base_offset, first_mapped, expired, keys.tables, kept
    )
    state[WITHOUT_KEY] += without_key
    return retained


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
) -> tuple[int, int]:
    """Mark in `kept` the latest occurrence of each key, from the last record to the first.

    Keys at or above `first_mapped_offset` enter the map; keys below it are only looked up.  Return the number of
    records kept, and of records without a key.
    """
    total = 0
    without_key = 0
    for index in range(count - 1, -1, -1):
        kept[index] = 0
        if records[index, KEY_BYTES] < 0:
            without_key += 1
            continue
        low = hashes[index, 0]
        high = hashes[index, 1]
        if is_held(tables, low, high, base_offset + records[index, OFFSET_DELTA] >= first_mapped_offset):
            continue
        if records[index, VALUE_BYTES] < 0 and tombstones_expired:
            continue
        kept[index] = 1
        total += 1
    return total, without_key


@kernel
def count_without_key(records: npt.NDArray[np.int64], count: int) -> int:
    total = 0
    for index in range(count):
        total += records[index, KEY_BYTES] < 0
    return total


@kernel
def survives(survivors: npt.NDArray[np.uint8], number: int) -> bool:
    return bool((survivors[number >> 3] >> (number & 7)) & 1)


@kernel
def count_survivors(survivors: npt.NDArray[np.uint8], first: int, count: int) -> int:
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
def find_survivors(
    base: int,
    positions: npt.NDArray[np.int64],
    batch_flags: npt.NDArray[np.uint8],
    survivors: npt.NDArray[np.uint8],
    first: int,
    surviving: npt.NDArray[np.bool_],
) -> int:
    """Set `surviving`, bool[batches], to True for each batch that a sweep BY_BITMAP must read, otherwise to False.

    `first` is the value of RECORDS before the chunk.  Return the value of RECORDS after the chunk.
    """
    number = first
    for ordinal in range(positions.size - 1, -1, -1):
        surviving[ordinal] = True
        if batch_flags.size and batch_flags[ordinal] & UNREADABLE:
            continue
        header = base + positions[ordinal]
        count = load_i32(header + RECORD_COUNT)
        if number + count <= survivors.size * 8 and not load_i16(header + ATTRIBUTES) & CONTROL_BIT:
            surviving[ordinal] = count_survivors(survivors, number, count) > 0
        number += count
    return number


@kernel
def decode_survivors(
    base: int, size_bytes: int, count: int, survivors: npt.NDArray[np.uint8], first: int, records: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Decode only the survivors among `count` records; return (status, number of rows)."""
    address = base
    limit = base + size_bytes
    rows = 0
    for index in range(count):
        if address >= limit:
            return RECORD_ENDS_EARLY, 0
        length, body = read_varint(address)
        if body == 0:
            return BAD_VARINT, 0
        if length < 0 or length > limit - body:
            return RECORD_TOO_LONG, 0
        if survives(survivors, first + count - 1 - index):
            status = decode_records(base, address - base, body + length - base, 1, records[rows:])
            if status != OK:
                return status, 0
            rows += 1
        address = body + length
    return (OK if address == limit else RECORDS_REMAIN), rows


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
    """Mark each record of a batch whose bit in `survivors` is set; bit `first` belongs to the last record.

    `rows` is the number of decoded records: either all `count` records, or only the survivors.  Return the number of
    records kept.
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
) -> tuple[int, int]:
    total = 0
    without_key = 0
    for index in range(count):
        kept[index] = 0
        offset = base_offset + records[index, OFFSET_DELTA]
        if offset <= latest_offset:
            if records[index, KEY_BYTES] < 0:
                without_key += 1
                continue
            if offset < get_offset(tables, hashes[index, 0], hashes[index, 1]):
                continue
            if records[index, VALUE_BYTES] < 0 and tombstones_expired:
                continue
        kept[index] = 1
        total += 1
    return total, without_key


@kernel
def keep_all(count: int, kept: npt.NDArray[np.uint8]) -> int:
    for index in range(count):
        kept[index] = 1
    return count
