"""The compiled sweep: it filters the batches of one chunk, newest first, and writes them downward into a buffer.

    chunk     | batch | batch | batch |        read from the log's end towards its start
                                  <- CURSOR
    output    |     free      | kept... |      filled from its end towards its start
                              ^ OUT_START

`sweep_chunk` processes each batch below CURSOR in six steps (MemoryRecords.filterTo; kafka-log 02 §6.2, §6.4):

1. Read the header, and check that offsets descend during the sweep (`batch_decoder.read_header`).
2. Decide whether the whole batch is dropped.  If it is not, decide whether its header is kept even without records
   (`batch_retention`).
3. If no record of the batch has to be decoded, finish the batch: write its header or nothing (`_settle_whole`).
4. Decode the records and hash their keys, if the buffers and the map have room for all records (`batch_decoder`).
5. Filter the records (`record_retention.filter_records`).
6. Emit the batch: its header, an exact copy (`batch_retention.is_copied`), or a rebuilt batch with the survivors
   (`_emit_survivors`).

The sweep is resumable.  Only the caller can decompress, compress, or enlarge the map or a buffer.  If the sweep needs
such work, it returns a status that requests the work, and continues at the next call.  It never returns while it
filters the records of a batch.

Invariants
* The CRC of a batch is checked before any of its records is dropped: `scan_chunk` runs before `sweep_chunk` on every
  chunk.
* A batch is filtered exactly once: its keys enter the map only after all requests of steps 1 to 4 were served.
* A batch that was converted from messages of magic 0 or 1 has no checksum, so it is always rebuilt.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import (
    BatchMemory,
    CheckedBatches,
    Header,
    KeyMap,
    decode_and_hash,
    flags_of,
    locate_records,
    offsets_increase,
    prefetch_ahead,
    read_header,
)
from sediment.compaction.kernels.batch_retention import ActiveProducers, is_copied, is_discarded, keeps_header
from sediment.compaction.kernels.cleaned_transaction_metadata import LEGACY, UNREADABLE
from sediment.compaction.kernels.delete_horizon import (
    horizon_has_passed,
    horizon_of,
    keeps_horizon,
    note_tombstones,
    tombstones_expire,
)
from sediment.compaction.kernels.offset_map import OFFSET_SLOT_BYTES, SET_SLOT_BYTES
from sediment.compaction.kernels.record_retention import (
    count_survivors,
    count_without_key,
    decode_survivors,
    filter_records,
)
from sediment.compaction.kernels.registers import (
    BY_BITMAP,
    BY_OCCURRENCE,
    BY_OFFSET,
    CHANGED,
    CURSOR,
    FILTER,
    LAST_BASE_OFFSET,
    MESSAGES_READ,
    MESSAGES_WRITTEN,
    NEEDED,
    NOW_MS,
    OUT_START,
    PENDING_BASE_TIMESTAMP,
    PENDING_CODEC,
    PENDING_HAS_HORIZON,
    PENDING_KEPT,
    PENDING_MAX_TIMESTAMP,
    RAW_BYTES,
    RECORDS,
    UPPER_BOUND_OFFSET,
    WITHOUT_KEY,
)
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import load_u32
from sediment.segment_io.compiled.native import Tools
from sediment.segment_io.compiled.status import (
    BEYOND_SIGHTED,
    DONE,
    NEEDS_COMPRESSION,
    NEEDS_ORIGINAL,
    NEEDS_OUTPUT_ROOM,
    NEEDS_RAW_ROOM,
    OFFSETS_NOT_INCREASING,
    OK,
)
from sediment.segment_io.format.batch_rebuild import (
    begin_at_first_kept,
    copy_batch,
    kept_timestamps,
    pack_kept,
    rebuild_room,
    write_compressed,
    write_empty_batch,
    write_plain,
    write_records,
)
from sediment.segment_io.format.compression.compress_fast_path import NOT_COMPRESSED, compress_records
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CRC

_SMALL_BATCH_RECORDS = 4
_BATCHES_AHEAD = 8
_SPARSE_FACTOR = 4  # with at least this many records per survivor, skipping the others is faster than decoding them


@kernel
def sweep_chunk(
    batches: CheckedBatches,
    producers: ActiveProducers,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: BatchMemory,
    raw: npt.NDArray[np.uint8],
    survivors: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    compressors: Tools,
    state: npt.NDArray[np.int64],
) -> int:
    """Filter and emit the batches below CURSOR, last first; return DONE, a request, or a decoder's status.

    `raw` is working memory for records to be compressed; `compressors` comes from `find_compressors`, or is all zeros.
    `survivors` is read only if the filter is BY_BITMAP.  `survivors` has one bit for each record of the split; RECORDS
    counts the records.  A record's bit is 1 if no later record of any split supersedes the record.
    """
    base = np.int64(batches.buffer.ctypes.data)
    out = np.int64(output.ctypes.data)
    by_offset = rules[FILTER] == BY_OFFSET
    by_bitmap = rules[FILTER] == BY_BITMAP
    slot_bytes = OFFSET_SLOT_BYTES if by_offset else SET_SLOT_BYTES
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        flags = flags_of(batches, ordinal)
        if flags & UNREADABLE:
            return NEEDS_ORIGINAL

        # 1. Read the header.
        header = read_header(base + batches.positions[ordinal])
        if not by_offset and header.last_offset >= state[LAST_BASE_OFFSET]:
            # Offsets descend strictly. Otherwise the sweep stops with OFFSETS_NOT_INCREASING. The caller then fills a
            # map with offsets, for which the order of records does not matter.
            return OFFSETS_NOT_INCREASING
        if header.record_count <= _SMALL_BATCH_RECORDS and ordinal >= _BATCHES_AHEAD and not by_bitmap:
            prefetch_ahead(batches, base, ordinal - _BATCHES_AHEAD, keys, slot_bytes)

        # 2. Decide on the whole batch.
        horizon_passed = horizon_has_passed(header.has_horizon, header.base_timestamp, rules[NOW_MS])
        discarded = is_discarded(flags, header.is_control, horizon_passed)
        keeps_it = keeps_header(header, flags, rules[UPPER_BOUND_OFFSET], producers)
        surviving = header.record_count
        if by_bitmap:
            if state[RECORDS] + header.record_count > survivors.size * 8:
                return BEYOND_SIGHTED
            if not header.is_control:
                surviving = count_survivors(survivors, state[RECORDS], header.record_count)

        # 3. If no record of the batch has to be decoded, finish the batch.
        if discarded or header.record_count == 0 or (surviving == 0 and flags & LEGACY == 0):
            if state[OUT_START] < BATCH_HEADER_BYTES:
                state[NEEDED] = BATCH_HEADER_BYTES
                return NEEDS_OUTPUT_ROOM
            _settle_whole(header, discarded, keeps_it, out, state)
            state[CURSOR] = ordinal
            continue

        # 4. Decode all records of the batch, or only the survivors if there are few.  If there are none, the batch may
        # be kept as a whole below, and its records without a key are counted there.
        status, records_base, payload_bytes = locate_records(header, batches.payloads, ordinal)
        if status != OK:
            return status
        raw_bytes, out_bytes = rebuild_room(header.size_bytes, payload_bytes, header.record_count, header.codec)
        if raw.size < raw_bytes:
            state[NEEDED] = raw_bytes
            return NEEDS_RAW_ROOM
        if state[OUT_START] < out_bytes:
            state[NEEDED] = out_bytes
            return NEEDS_OUTPUT_ROOM
        decoded = header.record_count
        # A split is swept twice. `collect_keys` decodes every record that can be dropped, and so finds every error in
        # the split. Later, `sweep_chunk` decodes only survivors. The caller compares the digests (`digest_of`) of both
        # sweeps, to check that both read the same batches.
        is_sparse = 0 < surviving * _SPARSE_FACTOR <= header.record_count and surviving <= rows.records.shape[0]
        if not is_sparse:
            status = decode_and_hash(
                records_base,
                payload_bytes,
                decoded,
                decoded if rules[FILTER] == BY_OCCURRENCE else 0,
                0 if by_bitmap or header.is_control else decoded,
                slot_bytes,
                keys.seed,
                keys.secrets.ctypes.data,
                keys.tables,
                rows.records,
                rows.hashes,
                state,
            )
        else:
            status, decoded = decode_survivors(
                records_base, payload_bytes, header.record_count, survivors, state[RECORDS], rows.records
            )
        if status != OK:
            return status
        if not by_offset and not offsets_increase(rows.records, decoded, header.last_delta):
            return OFFSETS_NOT_INCREASING

        # 5. Filter them.
        expired = tombstones_expire(flags, horizon_passed)
        retained = filter_records(header, flags, decoded, expired, rules, keys, rows, survivors, state)
        state[MESSAGES_READ] += header.record_count
        state[MESSAGES_WRITTEN] += retained
        state[RECORDS] += header.record_count
        state[LAST_BASE_OFFSET] = header.base_offset

        # 6. Emit the batch.
        if retained > 0:
            status = _emit_survivors(
                header, flags, records_base, decoded, retained, rules, rows, raw, out, compressors, state
            )
            if status != OK:
                return status
        elif keeps_it and flags & LEGACY:
            # A message of magic 0 or 1 cannot become an empty batch. If it were dropped, the log end offset would fall,
            # so the original is kept.
            state[MESSAGES_WRITTEN] += header.record_count
            state[WITHOUT_KEY] -= count_without_key(rows.records, decoded)
            return NEEDS_ORIGINAL
        else:
            state[CHANGED] = 1
            if keeps_it:
                _emit_header(header, out, state)
        state[CURSOR] = ordinal
    return DONE


@inlined_kernel
def _settle_whole(header: Header, discarded: bool, keeps_it: bool, out: int, state: npt.NDArray[np.int64]) -> None:
    """Do step 3: write the header of a batch, or nothing; the output has room for a header."""
    if not discarded or keeps_it:
        state[MESSAGES_READ] += header.record_count
    state[RECORDS] += header.record_count
    state[LAST_BASE_OFFSET] = header.base_offset
    if keeps_it:
        _emit_header(header, out, state)
        if header.record_count > 0 or load_u32(out + state[OUT_START] + CRC) != load_u32(header.address + CRC):
            state[CHANGED] = 1
    else:
        state[CHANGED] = 1


@inlined_kernel
def _emit_header(header: Header, out: int, state: npt.NDArray[np.int64]) -> None:
    """Write the header of a batch, as a batch without records; the output has room for the header."""
    state[OUT_START] -= BATCH_HEADER_BYTES
    write_empty_batch(out + state[OUT_START], header.address)


@inlined_kernel
def _emit_survivors(
    header: Header,
    flags: int,
    records_base: int,
    decoded: int,
    retained: int,
    rules: npt.NDArray[np.int64],
    rows: BatchMemory,
    raw: npt.NDArray[np.uint8],
    out: int,
    compressors: Tools,
    state: npt.NDArray[np.int64],
) -> int:
    """Do step 6 for a batch that keeps `retained` records: copy or rebuild it; return OK or NEEDS_COMPRESSION."""
    records = rows.records
    if retained < decoded:
        pack_kept(records, decoded, rows.kept)
    gets_horizon = note_tombstones(header, flags, records, retained, rules, state)
    if is_copied(header, flags, retained, gets_horizon):
        state[OUT_START] -= header.size_bytes
        copy_batch(out + state[OUT_START], header.address, header.size_bytes)
        return OK
    state[CHANGED] = 1
    first_timestamp, max_timestamp = kept_timestamps(header.address, records, retained)
    if flags & LEGACY:
        begin_at_first_kept(header.address, records, retained)
    has_horizon = keeps_horizon(header, gets_horizon)
    if has_horizon:
        first_timestamp = horizon_of(header, rules)
    end = out + state[OUT_START]
    if header.codec == 0:
        state[OUT_START] -= write_plain(
            end, header.address, records_base, records, retained, first_timestamp, max_timestamp, has_horizon
        )
        return OK
    target = np.int64(raw.ctypes.data)
    packed = write_records(target, header.address, records_base, records, retained, first_timestamp)
    raw_bytes = packed - target
    packed_bytes = compress_records(header.codec, target, raw_bytes, packed, raw.size - raw_bytes, compressors)
    if packed_bytes == NOT_COMPRESSED:
        state[RAW_BYTES] = raw_bytes
        state[PENDING_KEPT] = retained
        state[PENDING_BASE_TIMESTAMP] = first_timestamp
        state[PENDING_MAX_TIMESTAMP] = max_timestamp
        state[PENDING_HAS_HORIZON] = 1 if has_horizon else 0
        state[PENDING_CODEC] = header.codec
        return NEEDS_COMPRESSION
    state[OUT_START] -= write_compressed(
        end, header.address, packed, packed_bytes, retained, first_timestamp, max_timestamp, has_horizon
    )
    return OK


@kernel
def emit_compressed(
    batches: CheckedBatches,
    compressed: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
) -> int:
    """Write the batch that requested NEEDS_COMPRESSION, with `compressed` as its payload, and move past the batch."""
    if state[OUT_START] < BATCH_HEADER_BYTES + compressed.size:
        state[NEEDED] = BATCH_HEADER_BYTES + compressed.size
        return NEEDS_OUTPUT_ROOM
    ordinal = state[CURSOR] - 1
    state[OUT_START] -= write_compressed(
        np.int64(output.ctypes.data) + state[OUT_START],
        np.int64(batches.buffer.ctypes.data) + batches.positions[ordinal],
        compressed.ctypes.data,
        compressed.size,
        state[PENDING_KEPT],
        state[PENDING_BASE_TIMESTAMP],
        state[PENDING_MAX_TIMESTAMP],
        state[PENDING_HAS_HORIZON] != 0,
    )
    state[CURSOR] = ordinal
    return DONE
