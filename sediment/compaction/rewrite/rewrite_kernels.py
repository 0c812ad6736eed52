"""The compiled loop over the batches of a chunk, in log order: it applies verdicts, and copies all other batches.

    chunk     | batch | batch | batch | batch | batch |       `wanted`: the batches with verdicts
                      ^ COPIED          ^ CURSOR
    output    | copied... | rewritten |       free    |
                                      ^ OUT_END

`rewrite_batches` processes each batch with verdicts in four steps:

1. Decode the records, if the array has room for a row of each record.
2. Find the verdicts on the records, move the rows of the surviving records together, and note the edits.
3. If the batch changes, first copy the unchanged batches before it.
4. Compress the surviving records with the codec of the batch, and write them.  If no record survives, write only the
   header, or nothing.

    field                                               value after a rewrite
    offsets, leader epoch, producer, sequence, flags    unchanged
    base timestamp, max timestamp                       computed from the surviving records, as after compaction
    delete horizon                                      unchanged; removed if the batch got a new tombstone
    record count, length, CRC                           recomputed

The loop is resumable.  At the next call, the loop continues.  If this call processes a batch a second time, the only
effect is that marks of verdicts are set again.

Invariant: a batch without changed records is copied byte for byte.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import Header, read_header
from sediment.compaction.rewrite.open_batches import ChunkBatches
from sediment.compaction.rewrite.verdicts import Action, ByteArray, Int64s
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import copy_bytes, equal_bytes
from sediment.segment_io.compiled.native import Tools
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    BATCH_TOO_LARGE,
    DONE,
    NEEDS_COMPRESSION,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
    OK,
)
from sediment.segment_io.format.batch_rebuild import (
    NEW_KEY_BYTES,
    NEW_KEY_START,
    NEW_VALUE_BYTES,
    NEW_VALUE_START,
    UNCHANGED,
    edited_bound,
    kept_timestamps,
    write_compressed,
    write_edited_records,
    write_empty_batch,
    write_header,
    write_records,
)
from sediment.segment_io.format.compression.compress_fast_path import (
    NOT_COMPRESSED,
    compress_records,
    compressed_bound,
)
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_NONE,
    INT64_MIN,
    MAX_SEGMENT_BYTES,
    MIN_RECORD_BYTES,
)
from sediment.segment_io.format.record_decoder import (
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_FIELDS,
    VALUE_BYTES,
    VALUE_START,
    decode_records,
)

# ---------------------------------------------------------------------------------------- registers, int64[REGISTERS]
CURSOR = 0  # number of batches of the chunk that are already processed
COPIED = 1  # address in the chunk; the bytes before this address are in the output
OUT_END = 2  # number of used bytes of the output
NEEDED = 3  # the amount that a status requests
RAW_BYTES = 4  # number of bytes of `raw` that are to be compressed
PENDING_KEPT = 5  # PENDING_...: properties of the batch that waits for compression
PENDING_BASE_TIMESTAMP = 6
PENDING_MAX_TIMESTAMP = 7
PENDING_HAS_HORIZON = 8
DROPPED = 9  # this and the next two: numbers of records
TOMBSTONED = 10
REPLACED = 11
REGISTERS = 12

_NULL = -1
# The values are copied from `Action`, because a change in the file of `Action` does not recompile this file.
_DROP, _TOMBSTONE, _REPLACE_KEY = 0, 1, 3
assert (_DROP, _TOMBSTONE, _REPLACE_KEY) == (Action.DROP, Action.TOMBSTONE, Action.REPLACE_KEY)
_ROW_BYTES = 8 * RECORD_FIELDS


class VerdictColumns(NamedTuple):
    """The columns of `Verdicts`, with two marks for each verdict.

    `seen` is True if the verdict's record was found.  `without_key` is True if the record should become a tombstone but
    has no key.  `replacements` is the address of the replacement bytes.
    """

    offsets: Int64s
    actions: ByteArray
    edges: Int64s
    replacements: int
    seen: npt.NDArray[np.bool_]
    without_key: npt.NDArray[np.bool_]


class RewriteMemory(NamedTuple):
    """Working memory for the records of one batch: int64[n, RECORD_FIELDS] and int64[n, EDIT_FIELDS]."""

    records: Int64s
    edits: Int64s


class Changes(NamedTuple):
    kept: int
    dropped: int
    tombstoned: int
    replaced: int
    replacement_bytes: int


@kernel
def rewrite_batches(
    batches: ChunkBatches,
    keeps_header: npt.NDArray[np.bool_],
    verdicts: VerdictColumns,
    rows: RewriteMemory,
    raw: ByteArray,
    output: ByteArray,
    compressors: Tools,
    state: Int64s,
) -> int:
    """Write the batches at and after CURSOR to the output; return DONE, a request, or the status of a bad batch.

    If a batch loses all its records, its header is kept if `keeps_header` is True for the batch; otherwise the batch is
    dropped.  `raw` is working memory for records to be compressed; `compressors` comes from `find_compressors`, or is
    all zeros.
    """
    out = np.int64(output.ctypes.data)
    while state[CURSOR] < batches.headers.size:
        ordinal = state[CURSOR]
        if not batches.wanted[ordinal]:
            state[CURSOR] = ordinal + 1
            continue

        # 1. Decode its records.
        payload, payload_bytes = batches.payloads[ordinal, 0], batches.payloads[ordinal, 1]
        if payload_bytes == NOT_DECOMPRESSED:
            return NEEDS_PAYLOAD
        header = read_header(batches.headers[ordinal])
        count = header.record_count
        if count * MIN_RECORD_BYTES > payload_bytes:
            return BAD_RECORD_COUNT
        if count > rows.records.shape[0]:
            state[NEEDED] = count
            return NEEDS_RECORD_ROOM
        status = decode_records(payload, 0, payload_bytes, count, rows.records)
        if status != OK:
            return status

        # 2. Find their verdicts.
        changes = _apply_verdicts(payload, count, header.base_offset, verdicts, rows.records, rows.edits)
        if changes.dropped + changes.tombstoned + changes.replaced == 0:
            state[CURSOR] = ordinal + 1
            continue

        # 3. Copy the batches before this one.
        bound = edited_bound(payload_bytes, changes.kept, changes.replacement_bytes)
        if bound + BATCH_HEADER_BYTES > MAX_SEGMENT_BYTES:
            return BATCH_TOO_LARGE
        raw_bytes = 0 if header.codec == CODEC_NONE else bound + compressed_bound(bound)
        if raw.size < raw_bytes:
            state[NEEDED] = raw_bytes
            return NEEDS_RAW_ROOM
        before_bytes = batches.edges[ordinal] - state[COPIED]
        state[NEEDED] = state[OUT_END] + before_bytes + BATCH_HEADER_BYTES + compressed_bound(bound)
        if output.size < state[NEEDED]:
            return NEEDS_OUTPUT_ROOM
        copy_bytes(out + state[OUT_END], state[COPIED], before_bytes)
        state[OUT_END] += before_bytes
        state[COPIED] = batches.edges[ordinal + 1]
        state[DROPPED] += changes.dropped
        state[TOMBSTONED] += changes.tombstoned
        state[REPLACED] += changes.replaced

        # 4. Write the surviving records.
        if changes.kept > 0:
            if _write_changed(header, payload, changes, verdicts, rows, raw, out, compressors, state) != OK:
                return NEEDS_COMPRESSION
        elif keeps_header[ordinal]:
            write_empty_batch(out + state[OUT_END], header.address)
            state[OUT_END] += BATCH_HEADER_BYTES
        state[CURSOR] = ordinal + 1
    rest_bytes = batches.edges[batches.headers.size] - state[COPIED]
    state[NEEDED] = state[OUT_END] + rest_bytes
    if output.size < state[NEEDED]:
        return NEEDS_OUTPUT_ROOM
    copy_bytes(out + state[OUT_END], state[COPIED], rest_bytes)
    state[COPIED] += rest_bytes
    state[OUT_END] += rest_bytes
    return DONE


@kernel
def _apply_verdicts(
    payload: int, count: int, base_offset: int, verdicts: VerdictColumns, records: Int64s, edits: Int64s
) -> Changes:
    kept, dropped, tombstoned, replaced, replacement_bytes = 0, 0, 0, 0, 0
    at, previous = 0, INT64_MIN
    for index in range(count):
        offset = base_offset + records[index, OFFSET_DELTA]
        if index == 0 or offset < previous:
            at = _first_from(verdicts.offsets, offset)
        previous = offset
        while at < verdicts.offsets.size and verdicts.offsets[at] < offset:
            at += 1
        new_key_bytes, new_value_bytes, new_start = UNCHANGED, UNCHANGED, 0
        if at < verdicts.offsets.size and verdicts.offsets[at] == offset:
            verdicts.seen[at] = True
            action = np.int64(verdicts.actions[at])
            if action == _DROP:
                dropped += 1
                continue
            new_start = verdicts.edges[at]
            size_bytes = verdicts.edges[at + 1] - new_start
            new = verdicts.replacements + new_start
            if action == _TOMBSTONE:
                if records[index, KEY_BYTES] < 0:
                    verdicts.without_key[at] = True
                elif records[index, VALUE_BYTES] >= 0:
                    new_value_bytes = _NULL
                    tombstoned += 1
            elif action == _REPLACE_KEY:
                if not _is_same(new, size_bytes, payload + records[index, KEY_START], records[index, KEY_BYTES]):
                    new_key_bytes = size_bytes
                    replaced += 1
            elif not _is_same(new, size_bytes, payload + records[index, VALUE_START], records[index, VALUE_BYTES]):
                new_value_bytes = size_bytes
                replaced += 1
        if kept != index:
            first = np.int64(records.ctypes.data)
            copy_bytes(first + kept * _ROW_BYTES, first + index * _ROW_BYTES, _ROW_BYTES)
        edits[kept, NEW_KEY_START] = new_start
        edits[kept, NEW_KEY_BYTES] = new_key_bytes
        edits[kept, NEW_VALUE_START] = new_start
        edits[kept, NEW_VALUE_BYTES] = new_value_bytes
        replacement_bytes += max(new_key_bytes, 0) + max(new_value_bytes, 0)
        kept += 1
    return Changes(kept, dropped, tombstoned, replaced, replacement_bytes)


@kernel
def _first_from(offsets: Int64s, offset: int) -> int:
    """Return the index of the first element at or above `offset` in `offsets`, which is int64[n] and ascending.

    Return n if there is none.
    """
    low, high = 0, offsets.size
    while low < high:
        middle = (low + high) // 2
        if offsets[middle] < offset:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _is_same(new: int, new_bytes: int, old: int, old_bytes: int) -> bool:
    return new_bytes == old_bytes and equal_bytes(new, old, new_bytes)


@inlined_kernel
def _write_changed(
    header: Header,
    payload: int,
    changes: Changes,
    verdicts: VerdictColumns,
    rows: RewriteMemory,
    raw: ByteArray,
    out: int,
    compressors: Tools,
    state: Int64s,
) -> int:
    """Do step 4 for a batch with surviving records; return OK or NEEDS_COMPRESSION.

    The output must have room for the batch.
    """
    count = changes.kept
    # A batch with a new tombstone loses its delete horizon, so that the cleaner writes a new horizon.  With the old
    # horizon, the tombstone could be dropped before consumers have read it.
    has_horizon = header.has_horizon and changes.tombstoned == 0
    base_timestamp, max_timestamp = kept_timestamps(header.address, rows.records, count)
    if has_horizon:
        base_timestamp = header.base_timestamp
    start = out + state[OUT_END]
    target = start + BATCH_HEADER_BYTES if header.codec == CODEC_NONE else np.int64(raw.ctypes.data)
    if changes.tombstoned + changes.replaced > 0:
        end = write_edited_records(
            target, header.address, payload, rows.records, count, rows.edits, verdicts.replacements, base_timestamp
        )
    else:
        end = write_records(target, header.address, payload, rows.records, count, base_timestamp)
    if header.codec == CODEC_NONE:
        write_header(start, header.address, end - start, count, base_timestamp, max_timestamp, has_horizon)
        state[OUT_END] += end - start
        return OK
    packed_bytes = compress_records(header.codec, target, end - target, end, raw.size - (end - target), compressors)
    if packed_bytes == NOT_COMPRESSED:
        state[RAW_BYTES] = end - target
        state[PENDING_KEPT] = count
        state[PENDING_BASE_TIMESTAMP] = base_timestamp
        state[PENDING_MAX_TIMESTAMP] = max_timestamp
        state[PENDING_HAS_HORIZON] = 1 if has_horizon else 0
        return NEEDS_COMPRESSION
    size_bytes = BATCH_HEADER_BYTES + packed_bytes
    write_compressed(
        start + size_bytes, header.address, end, packed_bytes, count, base_timestamp, max_timestamp, has_horizon
    )
    state[OUT_END] += size_bytes
    return OK


@kernel
def emit_rewritten(batches: ChunkBatches, compressed: ByteArray, output: ByteArray, state: Int64s) -> int:
    """Write the batch that requested NEEDS_COMPRESSION, with `compressed` as its payload, and move past the batch."""
    size_bytes = BATCH_HEADER_BYTES + compressed.size
    state[NEEDED] = state[OUT_END] + size_bytes
    if output.size < state[NEEDED]:
        return NEEDS_OUTPUT_ROOM
    write_compressed(
        np.int64(output.ctypes.data) + state[OUT_END] + size_bytes,
        batches.headers[state[CURSOR]],
        np.int64(compressed.ctypes.data),
        compressed.size,
        state[PENDING_KEPT],
        state[PENDING_BASE_TIMESTAMP],
        state[PENDING_MAX_TIMESTAMP],
        state[PENDING_HAS_HORIZON] != 0,
    )
    state[OUT_END] += size_bytes
    state[CURSOR] += 1
    return DONE
