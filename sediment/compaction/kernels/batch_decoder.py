"""The batches of one chunk in the form that kernels read: header fields, addresses of records, and hashes of keys.

Invariants: `scan_chunk` has checked every batch; this module adds nothing to the map.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.cleaned_transaction_metadata import UNREADABLE
from sediment.compaction.kernels.offset_map import headroom, normal, prefetch_slot
from sediment.compaction.kernels.registers import HEADROOM, NEEDED
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import load_i16, load_i32, load_i64
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    NEEDS_MAP_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RECORD_ROOM,
    OK,
)
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED
from sediment.segment_io.format.hashing import hash_key
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD_BYTES,
    MIN_RECORD_BYTES,
    RECORD_COUNT,
)
from sediment.segment_io.format.record_decoder import (
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    decode_records,
    read_varint,
    read_varlong,
)
from sediment.segment_io.format.timestamps import has_delete_horizon


class CheckedBatches(NamedTuple):
    """`flags` is uint8[batches], or empty if all flags are zero.

    `payloads`, int64[batches, 2], contains the address and size of each compressed batch's decompressed records, or
    NOT_DECOMPRESSED.  `payloads` is empty if no batch is compressed.
    """

    buffer: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    payloads: npt.NDArray[np.int64]


class KeyMap(NamedTuple):
    tables: npt.NDArray[np.int64]
    seed: np.uint64
    secrets: npt.NDArray[np.uint8]


class BatchMemory(NamedTuple):
    """`records`, int64[n, RECORD_FIELDS], are the decoded rows; `hashes`, uint64[n, 2], are the hashes of their keys.

    `kept`, uint8[n], is 1 for each kept record.
    """

    records: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    kept: npt.NDArray[np.uint8]


class Header(NamedTuple):
    address: int
    size_bytes: int
    base_offset: int
    last_delta: int
    last_offset: int
    codec: int
    is_control: bool
    has_horizon: bool
    base_timestamp: int
    record_count: int


@inlined_kernel
def read_header(address: int) -> Header:
    base_offset = load_i64(address + BASE_OFFSET)
    last_delta = load_i32(address + LAST_OFFSET_DELTA)
    attributes = load_i16(address + ATTRIBUTES)
    return Header(
        address,
        load_i32(address + BATCH_LENGTH) + LOG_OVERHEAD_BYTES,
        base_offset,
        last_delta,
        base_offset + last_delta,
        attributes & CODEC_MASK,
        (attributes & CONTROL_BIT) != 0,
        has_delete_horizon(attributes),
        load_i64(address + BASE_TIMESTAMP),
        load_i32(address + RECORD_COUNT),
    )


@inlined_kernel
def flags_of(batches: CheckedBatches, ordinal: int) -> int:
    return np.int64(batches.flags[ordinal]) if batches.flags.size else 0


@inlined_kernel
def locate_records(header: Header, payloads: npt.NDArray[np.int64], ordinal: int) -> tuple[int, int, int]:
    """Return (status, address of the batch's records, their size in bytes).

    The status is OK, NEEDS_PAYLOAD or BAD_RECORD_COUNT.  If the status is OK, the header's record count fits the
    payload, so the caller may reserve room for that many rows.
    """
    if header.codec == 0:
        address, payload_bytes = header.address + BATCH_HEADER_BYTES, header.size_bytes - BATCH_HEADER_BYTES
    else:
        address, payload_bytes = payloads[ordinal, 0], payloads[ordinal, 1]
        if payload_bytes == NOT_DECOMPRESSED:
            return NEEDS_PAYLOAD, 0, 0
    return (BAD_RECORD_COUNT if header.record_count * MIN_RECORD_BYTES > payload_bytes else OK), address, payload_bytes


@kernel
def decode_and_hash(
    records_base: int,
    payload_bytes: int,
    count: int,
    mapped: int,
    hashed: int,
    slot_bytes: int,
    seed: np.uint64,
    secrets: int,
    tables: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    state: npt.NDArray[np.int64],
) -> int:
    """Decode the records at `records_base`, hash the first `hashed` keys, and prefetch the slots of these keys.

    The caller has checked the payload.  The buffers must have room for a row of each record, and the map must have room
    for `mapped` keys.  Return OK, a status that requests room, or a decoder's status.
    """
    if count > records.shape[0]:
        state[NEEDED] = count
        return NEEDS_RECORD_ROOM
    if state[HEADROOM] < mapped:
        state[HEADROOM] = headroom(tables)
        if state[HEADROOM] < mapped:
            state[NEEDED] = mapped
            return NEEDS_MAP_ROOM
    status = decode_records(records_base, 0, payload_bytes, count, records)
    if status != OK:
        return status
    for index in range(hashed):
        length = records[index, KEY_BYTES]
        if length >= 0:
            low, high = hash_key(records_base + records[index, KEY_START], length, seed, secrets)
            low = normal(low, high)
            hashes[index, 0] = low
            hashes[index, 1] = high
            prefetch_slot(tables, slot_bytes, low)
    return OK


@inlined_kernel
def decode_keys(
    batches: CheckedBatches,
    header: Header,
    ordinal: int,
    slot_bytes: int,
    keys: KeyMap,
    rows: BatchMemory,
    state: npt.NDArray[np.int64],
) -> int:
    """Decode the records of a batch and hash their keys, if the map has room for all these keys.

    Return OK, a status that requests room or the payload, or a decoder's status.
    """
    status, records_base, payload_bytes = locate_records(header, batches.payloads, ordinal)
    if status != OK:
        return status
    count, secrets = header.record_count, keys.secrets.ctypes.data
    return decode_and_hash(
        records_base,
        payload_bytes,
        count,
        count,
        count,
        slot_bytes,
        keys.seed,
        secrets,
        keys.tables,
        rows.records,
        rows.hashes,
        state,
    )


@kernel
def offsets_increase(records: npt.NDArray[np.int64], count: int, last_delta: int) -> bool:
    previous = -1
    for index in range(count):
        delta = records[index, OFFSET_DELTA]
        if delta <= previous or delta > last_delta:
            return False
        previous = delta
    return True


@inlined_kernel
def prefetch_ahead(batches: CheckedBatches, base: int, ahead: int, keys: KeyMap, slot_bytes: int) -> None:
    if batches.flags.size == 0 or batches.flags[ahead] & UNREADABLE == 0:
        secrets = keys.secrets.ctypes.data
        _prefetch_first_key(base + batches.positions[ahead], keys.seed, secrets, keys.tables, slot_bytes)


@kernel
def _prefetch_first_key(
    header: int, seed: np.uint64, secrets: int, tables: npt.NDArray[np.int64], slot_bytes: int
) -> None:
    if load_i16(header + ATTRIBUTES) & (CODEC_MASK | CONTROL_BIT):
        return
    end = header + LOG_OVERHEAD_BYTES + load_i32(header + BATCH_LENGTH)
    _, address = read_varint(header + BATCH_HEADER_BYTES)
    if address == 0:
        return
    _, address = read_varlong(address + 1)
    if address == 0:
        return
    _, address = read_varint(address)
    if address == 0:
        return
    length, address = read_varint(address)
    if address != 0 and 0 <= length <= end - address:
        low, high = hash_key(address, length, seed, secrets)
        prefetch_slot(tables, slot_bytes, normal(low, high))
