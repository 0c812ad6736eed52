"""The proof that different keys of a partition have different hashes: if two hashes are equal, whole keys are compared.

    slot      | hash of a key | address |          24 bytes: an offset map with addresses instead of offsets
                                   |
    block         ... | length | key bytes | ...   4 bytes and the key

The rest of the cleaner identifies a key by its 128-bit hash.  This module looks up each key of a chunk before the chunk
is swept or put into a map.  If another key has the same hash, the pass ends with HashCollisionError, and the cleaner
starts a new pass with a new seed.

Invariants
* Every key that a sweep looks up is checked, in the order of the sweep.  Every key that the sweep adds to its map is
  stored.
* A key in a block never moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import CheckedBatches, KeyMap, flags_of
from sediment.compaction.kernels.cleaned_transaction_metadata import DISCARD, UNMAPPED, UNREADABLE
from sediment.compaction.kernels.offset_map import OFFSET_SLOT_BYTES, OffsetMap, fill_slot, find_slot, headroom, normal
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import (
    copy_bytes,
    equal_bytes,
    load_i16,
    load_i32,
    load_i64,
    store_i32,
    store_i64,
)
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_buffer
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    KEYS_COLLIDE,
    NEEDS_BLOCK,
    NEEDS_PAYLOAD,
    NEEDS_RECORD_ROOM,
    NEEDS_SLOTS,
    OK,
    PROVED,
)
from sediment.segment_io.errors import HashCollisionError
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED
from sediment.segment_io.format.hashing import hash_key
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    INT64_MAX,
    LOG_OVERHEAD_BYTES,
    MIN_RECORD_BYTES,
    RECORD_COUNT,
)
from sediment.segment_io.format.record_decoder import KEY_BYTES, KEY_START, OFFSET_DELTA, RECORD_FIELDS, decode_records

if TYPE_CHECKING:
    from sediment.compaction.chunk_reader import Chunk, ChunkReader


# Registers, int64[_REGISTERS].
CURSOR = 0  # number of batches of the chunk that are not yet checked
NEEDED = 1
NEXT_ADDRESS = 2  # address for the next key
END_ADDRESS = 3
COLLIDING_OFFSET = 4
_REGISTERS = 5

_LENGTH_BYTES = 4
_FIRST_BLOCK_BYTES = 64 << 10
_BLOCK_BYTES = 16 << 20
_FIRST_RECORDS = 4096


@kernel
def _is_key(stored: int, address: int, length: int) -> bool:
    return load_i32(stored) == length and equal_bytes(stored + _LENGTH_BYTES, address, length)


@kernel
def prove_chunk(
    batches: CheckedBatches,
    first_mapped_offset: int,
    keys: KeyMap,
    records: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Check the keys of the batches below CURSOR, last batch first; store keys at or above `first_mapped_offset`.

    If more memory is needed, the caller provides it and repeats the call.
    """
    base, tables = batches.buffer.ctypes.data, keys.tables
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        flags = flags_of(batches, ordinal)
        header = base + batches.positions[ordinal]
        is_filtered = (flags & (UNREADABLE | DISCARD)) == 0
        if is_filtered:
            attributes = load_i16(header + ATTRIBUTES)
            count = load_i32(header + RECORD_COUNT)
            is_filtered = count > 0 and (attributes & CONTROL_BIT) == 0
        if is_filtered:
            codec = attributes & CODEC_MASK
            if codec == 0:
                records_base = header + BATCH_HEADER_BYTES
                end = load_i32(header + BATCH_LENGTH) + LOG_OVERHEAD_BYTES - BATCH_HEADER_BYTES
            else:
                records_base, end = batches.payloads[ordinal, 0], batches.payloads[ordinal, 1]
                if end == NOT_DECOMPRESSED:
                    return NEEDS_PAYLOAD
            if count * MIN_RECORD_BYTES > end:
                return BAD_RECORD_COUNT
            state[NEEDED] = count
            if count > records.shape[0]:
                return NEEDS_RECORD_ROOM
            if headroom(tables) < count:
                return NEEDS_SLOTS
            status = decode_records(records_base, 0, end, count, records)
            if status != OK:
                return status
            needed = 0
            for index in range(count):
                needed += _LENGTH_BYTES + max(records[index, KEY_BYTES], 0)
            state[NEEDED] = needed
            # No key is stored twice, because the keys of a batch are stored only when the memory for the whole batch is
            # available.
            if state[END_ADDRESS] - state[NEXT_ADDRESS] < needed:
                return NEEDS_BLOCK
            base_offset = load_i64(header + BASE_OFFSET)
            first_mapped = INT64_MAX if flags & UNMAPPED else first_mapped_offset
            for index in range(count - 1, -1, -1):
                length = records[index, KEY_BYTES]
                if length < 0:
                    continue
                address = records_base + records[index, KEY_START]
                offset = base_offset + records[index, OFFSET_DELTA]
                low, high = hash_key(address, length, keys.seed, keys.secrets.ctypes.data)
                low = normal(low, high)
                found, slot = find_slot(tables, OFFSET_SLOT_BYTES, low, high)
                if found:
                    if not _is_key(load_i64(slot + 16), address, length):
                        state[COLLIDING_OFFSET] = offset
                        return KEYS_COLLIDE
                elif offset >= first_mapped:
                    stored = state[NEXT_ADDRESS]
                    fill_slot(tables, slot, low, high)
                    store_i64(slot + 16, stored)
                    store_i32(stored, length)
                    copy_bytes(stored + _LENGTH_BYTES, address, length)
                    state[NEXT_ADDRESS] = stored + _LENGTH_BYTES + length
        state[CURSOR] = ordinal
    return PROVED


class ExactKeys:
    def __init__(self, seed: int, secrets: npt.NDArray[np.uint8], reader: ChunkReader) -> None:
        self._seed = np.uint64(seed)
        self._secrets = secrets
        self._reader = reader
        self._slots = OffsetMap(with_offsets=True)
        self._blocks: list[npt.NDArray[np.uint8]] = []
        self._block_bytes = 0
        self._payload = padded_buffer(0)
        self._records = np.zeros((_FIRST_RECORDS, RECORD_FIELDS), dtype=np.int64)
        self._state = np.zeros(_REGISTERS, dtype=np.int64)

    def size_bytes(self) -> int:
        return self._slots.size_bytes() + self._block_bytes + self._payload.nbytes + self._records.nbytes

    def check(self, chunk: Chunk, first_mapped_offset: int, check_memory: Callable[[int], None]) -> None:
        """Compare the keys of a chunk with earlier keys that have the same hash, then store the keys of the chunk.

        Before each allocation, `check_memory` is called with the total size after the allocation.
        """
        state = self._state
        state[CURSOR] = chunk.positions.size
        # Only a copy of the table is changed, because records that are decompressed here are overwritten before the
        # sweep.
        payloads = chunk.payloads.copy()
        while True:
            status = prove_chunk(
                CheckedBatches(chunk.buffer, chunk.positions, chunk.batch_flags, payloads),
                first_mapped_offset,
                KeyMap(self._slots.tables, self._seed, self._secrets),
                self._records,
                state,
            )
            if status == PROVED:
                return
            ordinal = int(state[CURSOR]) - 1
            if status == KEYS_COLLIDE:
                raise HashCollisionError("two different keys have the same hash", offset=int(state[COLLIDING_OFFSET]))
            if status not in (NEEDS_PAYLOAD, NEEDS_RECORD_ROOM, NEEDS_SLOTS, NEEDS_BLOCK):
                raise self._reader.error(status, chunk, int(chunk.positions[ordinal]))
            if status == NEEDS_PAYLOAD:
                content = chunk.decompressed.get(ordinal)
                payloads[ordinal] = self._hold_payload(
                    self._reader.decompress(chunk, ordinal) if content is None else content
                )
            else:
                self._reserve(status, int(state[NEEDED]), check_memory)

    def _reserve(self, status: int, needed: int, check_memory: Callable[[int], None]) -> None:
        held = self.size_bytes()
        if status == NEEDS_RECORD_ROOM:
            rows = 1 << (needed - 1).bit_length()
            self._records = np.zeros((rows, RECORD_FIELDS), dtype=np.int64)
        elif status == NEEDS_SLOTS:
            check_memory(held - self._slots.size_bytes() + self._slots.size_bytes_with(needed))
            self._slots.reserve(needed)
        else:
            size_bytes = max(needed, min(_BLOCK_BYTES, max(_FIRST_BLOCK_BYTES, self._block_bytes)))
            check_memory(held + size_bytes)
            block = np.empty(size_bytes, dtype=np.uint8)
            self._blocks.append(block)
            self._block_bytes += size_bytes
            self._state[NEXT_ADDRESS] = block.ctypes.data
            self._state[END_ADDRESS] = block.ctypes.data + size_bytes

    def _hold_payload(self, content: Buffer) -> tuple[int, int]:
        size_bytes = memoryview(content).nbytes
        if self._payload.size < size_bytes + PADDING_BYTES:
            self._payload = padded_buffer(2 * size_bytes)
        self._payload[:size_bytes] = np.frombuffer(content, dtype=np.uint8)
        return self._payload.ctypes.data, size_bytes
