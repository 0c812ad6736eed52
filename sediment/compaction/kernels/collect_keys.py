"""The first sweep of a split: collect the latest occurrence of each key, in runs that the tasks of all splits exchange.

The caller compares the digests (`digest_of`) of both sweeps of a split, to check that both read the same batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import (
    BatchMemory,
    CheckedBatches,
    Header,
    KeyMap,
    decode_keys,
    flags_of,
    offsets_increase,
    read_header,
)
from sediment.compaction.kernels.cleaned_transaction_metadata import DISCARD, UNMAPPED, UNREADABLE
from sediment.compaction.kernels.offset_map import SET_SLOT_BYTES, is_held
from sediment.compaction.kernels.registers import (
    CURSOR,
    FIRST_MAPPED_OFFSET,
    HEADROOM,
    LAST_BASE_OFFSET,
    NEEDED,
    RECORDS,
    RUN_KEYS,
    RUN_LIMIT,
    WITHOUT_KEY,
)
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64, load_u32
from sediment.segment_io.compiled.status import DONE, NEEDS_SIGHT_ROOM, OFFSETS_NOT_INCREASING, OK, RUN_FULL
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    FIRST_MAGIC_WITH_PRODUCERS,
    INT64_MAX,
    LEGACY_CRC,
    MAGIC,
)
from sediment.segment_io.format.record_decoder import KEY_BYTES, OFFSET_DELTA

_DIGEST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_DIGEST_SHIFT = np.uint64(29)


class RunKeys(NamedTuple):
    """The keys of one run, with the number of each key's latest record.

    `hashes` is uint64[n, 2]; `mapped`, uint8[n], is 1 if the key enters the map; `numbers` is int64[n].
    """

    hashes: npt.NDArray[np.uint64]
    mapped: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.int64]


@kernel
def collect_keys(
    batches: CheckedBatches,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: BatchMemory,
    run: RunKeys,
    state: npt.NDArray[np.int64],
) -> int:
    """Collect the latest occurrence of every key in the batches below CURSOR, last batch first.

    The second sweep, which filters BY_BITMAP, can keep only the occurrences collected here.  The keys are written to
    `run`, from index RUN_KEYS on.  RECORDS is the number of records read so far, and therefore also the number (from 0)
    of the next record.  WITHOUT_KEY counts the records without a key, because the second sweep does not decode them.
    """
    base = np.int64(batches.buffer.ctypes.data)
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        flags = flags_of(batches, ordinal)
        if flags & UNREADABLE:
            state[CURSOR] = ordinal
            continue
        header = read_header(base + batches.positions[ordinal])
        if header.last_offset >= state[LAST_BASE_OFFSET]:
            return OFFSETS_NOT_INCREASING
        if header.record_count > 0 and not header.is_control and not flags & DISCARD:
            all_keys = state[RUN_KEYS] + header.record_count
            if state[RUN_KEYS] > 0 and all_keys > rules[RUN_LIMIT]:
                return RUN_FULL
            status = decode_keys(batches, header, ordinal, SET_SLOT_BYTES, keys, rows, state)
            if status != OK:
                return status
            if not offsets_increase(rows.records, header.record_count, header.last_delta):
                return OFFSETS_NOT_INCREASING
            if run.hashes.shape[0] < all_keys:
                state[NEEDED] = all_keys
                return NEEDS_SIGHT_ROOM
            first_mapped = INT64_MAX if flags & UNMAPPED else rules[FIRST_MAPPED_OFFSET]
            _collect_latest(header, first_mapped, keys, rows, run, state)
            state[HEADROOM] -= header.record_count
        state[RECORDS] += header.record_count
        state[LAST_BASE_OFFSET] = header.base_offset
        state[CURSOR] = ordinal
    return DONE


@inlined_kernel
def _collect_latest(
    header: Header,
    first_mapped_offset: int,
    keys: KeyMap,
    rows: BatchMemory,
    run: RunKeys,
    state: npt.NDArray[np.int64],
) -> None:
    """Collect the records of a batch that `keep_latest` would keep, in the same order.

    `run` already contains RUN_KEYS keys, and has room for a key of each record.  Number RECORDS belongs to the last
    record of the batch.
    """
    collected = state[RUN_KEYS]
    without_key = 0
    for index in range(header.record_count - 1, -1, -1):
        if rows.records[index, KEY_BYTES] < 0:
            without_key += 1
            continue
        low = rows.hashes[index, 0]
        high = rows.hashes[index, 1]
        is_mapped = header.base_offset + rows.records[index, OFFSET_DELTA] >= first_mapped_offset
        if is_held(keys.tables, low, high, is_mapped):
            continue
        run.hashes[collected, 0] = low
        run.hashes[collected, 1] = high
        run.mapped[collected] = is_mapped
        run.numbers[collected] = state[RECORDS] + header.record_count - 1 - index
        collected += 1
    state[RUN_KEYS] = collected
    state[WITHOUT_KEY] += without_key


@kernel
def digest_of(source: npt.NDArray[np.uint8], origins: npt.NDArray[np.int64], digest: np.uint64) -> np.uint64:
    """Return `digest` updated with the offsets, lengths and CRCs of the batches at `origins`, last batch first."""
    base = source.ctypes.data
    for ordinal in range(origins.size - 1, -1, -1):
        address = base + origins[ordinal]
        crc = load_u32(address + (CRC if load_i8(address + MAGIC) >= FIRST_MAGIC_WITH_PRODUCERS else LEGACY_CRC))
        for word in (load_i64(address + BASE_OFFSET), (load_i32(address + BATCH_LENGTH) << 32) ^ crc):
            digest = (digest ^ np.uint64(word)) * _DIGEST_FACTOR
            digest ^= digest >> _DIGEST_SHIFT
    return digest
