"""The compiled loop over the batches of one chunk, in log order: it re-encodes wanted batches, and copies all others.

    chunk      | batch | batch | batch | batch |        `wanted`: to be opened; `joins`: may join the previous batch
                                       ^ CURSOR
    originals  | header records… | header records… |    the batches of the group as they are on disk
    raw        | records of the group, uncompressed |   with offsets and timestamps relative to the first batch
    output     | copied or encoded… |      free    |
                                    ^ OUT_END

A group consists of batches that become one batch.  A group may extend from one chunk into the next.  For each batch:
1. If the batch may join the open group and the result stays within the limit, add the batch and continue with the next
   batch.
2. Otherwise end the open group: compress `raw` and write one batch.  If the new batch is not smaller, copy `originals`
   instead.
3. If the batch is not wanted, copy it.  If the batch is wanted but no other batch may join it, encode the batch alone.
   Otherwise begin a new group with the batch.

    field                                     value in a new batch
    base offset, base timestamp, sequence     the value of the first batch
    last offset                               the value of the last batch
    max timestamp                             the largest value of the batches
    leader epoch, producer, flags             the value that all batches have
    codec                                     the new codec
    record count, length, CRC                 a new value

The records of the first batch do not change.  The records of the other batches get new offset and timestamp deltas;
their bytes after the offset delta are copied.

The loop is resumable.

Invariants
* The records of a batch are decoded before another batch joins it.
* Compressed or merged batches have fewer bytes than the originals.  If the requested codec is none, uncompressed
  batches may have more bytes, up to the size limit of a batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import read_header
from sediment.compaction.rewrite.open_batches import ChunkBatches
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import copy_bytes, load_i16, load_i64
from sediment.segment_io.compiled.native import Tools
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    DONE,
    NEEDS_COMPRESSION,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
    OK,
)
from sediment.segment_io.format.batch_rebuild import rebased_bound, write_joined_header, write_rebased_records
from sediment.segment_io.format.compression.compress_fast_path import (
    NOT_COMPRESSED,
    compress_records,
    compressed_bound,
)
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CODEC_NONE,
    INT32_MAX,
    MAX_TIMESTAMP,
    MIN_RECORD_BYTES,
)
from sediment.segment_io.format.record_decoder import decode_records

# ---------------------------------------------------------------------------------------- registers, int64[REGISTERS]
CURSOR = 0  # number of batches of the chunk that are already processed
OUT_END = 1  # number of used bytes of the output
NEEDED = 2  # the amount that a status requests
GROUP_BATCHES = 3  # 0 if no group is open
GROUP_RECORDS = 4
GROUP_LAST_OFFSET = 5
GROUP_MAX_TIMESTAMP = 6
RAW_BYTES = 7  # number of used bytes of `raw`
ORIGINAL_BYTES = 8  # number of used bytes of `originals`
BATCHES_AFTER = 9
BATCHES_ENCODED = 10
REGISTERS = 11

# -------------------------------------------------------------------------------------- settings, int64[RULE_REGISTERS]
CODEC = 0  # the new codec, or KEEP_CODEC
ENCODES_SAME_CODEC = 1  # 1 if a level is given, so that batches that already have the codec are also encoded
JOINED_BYTES = 2  # size limit of a merged batch, before compression
BATCH_BYTES = 3  # size limit of a batch that has more bytes than its originals
RULE_REGISTERS = 4
KEEP_CODEC = -1


class MergeMemory(NamedTuple):
    """Memory for a group's records and batches (uint8[n]), and for the rows of one batch (int64[n, RECORD_FIELDS])."""

    raw: ByteArray
    originals: ByteArray
    records: Int64s


class Group(NamedTuple):
    records: int
    records_bytes: int
    originals: int
    originals_bytes: int
    batches: int
    record_count: int
    last_offset: int
    max_timestamp: int


@kernel
def reencode_batches(
    batches: ChunkBatches,
    joins: npt.NDArray[np.bool_],
    rules: Int64s,
    memory: MergeMemory,
    output: ByteArray,
    compressors: Tools,
    state: Int64s,
) -> int:
    """Write to the output the batches that begin at or after CURSOR, except the batches of the last group.

    Return DONE, a request, or the status of a bad batch.  `joins` is bool[batches].
    """
    raw = np.int64(memory.raw.ctypes.data)
    originals = np.int64(memory.originals.ctypes.data)
    out = np.int64(output.ctypes.data)
    last = batches.headers.size - 1
    while state[CURSOR] <= last:
        ordinal = state[CURSOR]
        address = batches.edges[ordinal]
        size_bytes = batches.edges[ordinal + 1] - address
        payload, payload_bytes = batches.payloads[ordinal, 0], batches.payloads[ordinal, 1]
        header = read_header(address)
        count = header.record_count
        if batches.wanted[ordinal]:
            if payload_bytes == NOT_DECOMPRESSED:
                return NEEDS_PAYLOAD
            if count * MIN_RECORD_BYTES > payload_bytes:
                return BAD_RECORD_COUNT

            # 1. Join the group.
            if joins[ordinal] and state[GROUP_BATCHES] > 0:
                bound = state[RAW_BYTES] + rebased_bound(payload_bytes, count)
                state[NEEDED] = max(bound, state[ORIGINAL_BYTES] + size_bytes)
                if memory.raw.size < bound or memory.originals.size < state[ORIGINAL_BYTES] + size_bytes:
                    return NEEDS_RAW_ROOM
                if memory.records.shape[0] < count:
                    state[NEEDED] = count
                    return NEEDS_RECORD_ROOM
                status = decode_records(payload, 0, payload_bytes, count, memory.records)
                if status != OK:
                    return status
                base_offset = load_i64(originals + BASE_OFFSET)
                raw_end = write_rebased_records(
                    raw + state[RAW_BYTES],
                    payload,
                    memory.records,
                    count,
                    header.base_offset - base_offset,
                    header.base_timestamp - load_i64(originals + BASE_TIMESTAMP),
                )
                if (
                    BATCH_HEADER_BYTES + raw_end - raw <= rules[JOINED_BYTES]
                    and header.last_offset - base_offset <= INT32_MAX
                    and state[GROUP_RECORDS] + count <= INT32_MAX
                ):
                    copy_bytes(originals + state[ORIGINAL_BYTES], address, size_bytes)
                    state[RAW_BYTES] = raw_end - raw
                    _note_batch(address, size_bytes, header.last_offset, count, state)
                    state[CURSOR] = ordinal + 1
                    continue

        # 2. End the group.
        status = end_group(rules, memory, output, compressors, state)
        if status != OK:
            return status

        # 3. Encode the batch alone, begin the next group with the batch, or copy the batch.
        if batches.wanted[ordinal]:
            is_alone = not joins[ordinal + 1] if ordinal < last else rules[JOINED_BYTES] == 0
            if is_alone:
                timestamp = load_i64(address + MAX_TIMESTAMP)
                group = Group(payload, payload_bytes, address, size_bytes, 1, count, header.last_offset, timestamp)
                status = _write_group(group, rules, output, compressors, state)
                if status == NEEDS_OUTPUT_ROOM:
                    return status
                if status == OK:
                    state[CURSOR] = ordinal + 1
                    continue
            state[NEEDED] = max(payload_bytes, size_bytes)
            if memory.raw.size < state[NEEDED] or memory.originals.size < state[NEEDED]:
                return NEEDS_RAW_ROOM
            if not is_alone:
                if memory.records.shape[0] < count:
                    state[NEEDED] = count
                    return NEEDS_RECORD_ROOM
                status = decode_records(payload, 0, payload_bytes, count, memory.records)
                if status != OK:
                    return status
            copy_bytes(raw, payload, payload_bytes)
            copy_bytes(originals, address, size_bytes)
            state[RAW_BYTES] = payload_bytes
            state[GROUP_MAX_TIMESTAMP] = load_i64(address + MAX_TIMESTAMP)
            _note_batch(address, size_bytes, header.last_offset, count, state)
        else:
            state[NEEDED] = state[OUT_END] + size_bytes
            if output.size < state[NEEDED]:
                return NEEDS_OUTPUT_ROOM
            copy_bytes(out + state[OUT_END], address, size_bytes)
            state[OUT_END] += size_bytes
            state[BATCHES_AFTER] += 1
        state[CURSOR] = ordinal + 1
    return DONE


@kernel
def _note_batch(address: int, size_bytes: int, last_offset: int, count: int, state: Int64s) -> None:
    state[GROUP_BATCHES] += 1
    state[GROUP_RECORDS] += count
    state[GROUP_LAST_OFFSET] = last_offset
    state[GROUP_MAX_TIMESTAMP] = max(state[GROUP_MAX_TIMESTAMP], load_i64(address + MAX_TIMESTAMP))
    state[ORIGINAL_BYTES] += size_bytes


@kernel
def _group_in(memory: MergeMemory, state: Int64s) -> Group:
    return Group(
        np.int64(memory.raw.ctypes.data),
        state[RAW_BYTES],
        np.int64(memory.originals.ctypes.data),
        state[ORIGINAL_BYTES],
        state[GROUP_BATCHES],
        state[GROUP_RECORDS],
        state[GROUP_LAST_OFFSET],
        state[GROUP_MAX_TIMESTAMP],
    )


@kernel
def end_group(rules: Int64s, memory: MergeMemory, output: ByteArray, compressors: Tools, state: Int64s) -> int:
    """Write the group, if one is open; return OK, NEEDS_OUTPUT_ROOM or NEEDS_COMPRESSION."""
    if state[GROUP_BATCHES] == 0:
        return OK
    status = _write_group(_group_in(memory, state), rules, output, compressors, state)
    if status == OK:
        _forget_group(state)
    return status


@kernel
def place_compressed(
    rules: Int64s, compressed: ByteArray, memory: MergeMemory, output: ByteArray, state: Int64s
) -> int:
    """Write the group that last requested NEEDS_COMPRESSION, with `compressed` as its records.

    Return OK or NEEDS_OUTPUT_ROOM.
    """
    group = _group_in(memory, state)
    state[NEEDED] = state[OUT_END] + BATCH_HEADER_BYTES + max(compressed.size, group.originals_bytes)
    if output.size < state[NEEDED]:
        return NEEDS_OUTPUT_ROOM
    target = np.int64(output.ctypes.data) + state[OUT_END] + BATCH_HEADER_BYTES
    copy_bytes(target, np.int64(compressed.ctypes.data), compressed.size)
    _finish_group(group, _codec_of(group, rules), compressed.size, rules, output, state)
    _forget_group(state)
    return OK


@kernel
def _codec_of(group: Group, rules: Int64s) -> int:
    return rules[CODEC] if rules[CODEC] != KEEP_CODEC else load_i16(group.originals + ATTRIBUTES) & CODEC_MASK


@kernel
def _write_group(group: Group, rules: Int64s, output: ByteArray, compressors: Tools, state: Int64s) -> int:
    """Write a group; return OK, NEEDS_OUTPUT_ROOM, or NEEDS_COMPRESSION if the kernel cannot compress."""
    bound = compressed_bound(group.records_bytes)
    state[NEEDED] = state[OUT_END] + BATCH_HEADER_BYTES + max(bound, group.originals_bytes)
    if output.size < state[NEEDED]:
        return NEEDS_OUTPUT_ROOM
    codec = _codec_of(group, rules)
    before = load_i16(group.originals + ATTRIBUTES) & CODEC_MASK
    if group.batches == 1 and codec == before and not rules[ENCODES_SAME_CODEC]:
        _write_originals(group, output, state)
        return OK
    target = np.int64(output.ctypes.data) + state[OUT_END] + BATCH_HEADER_BYTES
    packed_bytes = group.records_bytes
    if codec == CODEC_NONE:
        copy_bytes(target, group.records, group.records_bytes)
    else:
        packed_bytes = compress_records(codec, group.records, group.records_bytes, target, bound, compressors)
        if packed_bytes == NOT_COMPRESSED:
            return NEEDS_COMPRESSION
    _finish_group(group, codec, packed_bytes, rules, output, state)
    return OK


@kernel
def _finish_group(group: Group, codec: int, packed_bytes: int, rules: Int64s, output: ByteArray, state: Int64s) -> None:
    """Write the header in front of the encoded records; if the result is not smaller, write the originals instead."""
    size_bytes = BATCH_HEADER_BYTES + packed_bytes
    may_grow = rules[CODEC] == CODEC_NONE and size_bytes <= rules[BATCH_BYTES]
    if size_bytes >= group.originals_bytes and not may_grow:
        _write_originals(group, output, state)
        return
    write_joined_header(
        np.int64(output.ctypes.data) + state[OUT_END],
        group.originals,
        size_bytes,
        codec,
        group.last_offset - load_i64(group.originals + BASE_OFFSET),
        group.record_count,
        group.max_timestamp,
    )
    state[OUT_END] += size_bytes
    state[BATCHES_AFTER] += 1
    state[BATCHES_ENCODED] += 1


@kernel
def _write_originals(group: Group, output: ByteArray, state: Int64s) -> None:
    copy_bytes(np.int64(output.ctypes.data) + state[OUT_END], group.originals, group.originals_bytes)
    state[OUT_END] += group.originals_bytes
    state[BATCHES_AFTER] += group.batches


@kernel
def _forget_group(state: Int64s) -> None:
    state[GROUP_BATCHES] = 0
    state[GROUP_RECORDS] = 0
    state[RAW_BYTES] = 0
    state[ORIGINAL_BYTES] = 0
