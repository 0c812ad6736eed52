"""The compiled sweep: the batches of one chunk, newest first, filtered and written downward into an output buffer.

    chunk     | batch | batch | batch |        read from the log's end towards its start
                                  <- CURSOR
    output    |     free      | kept... |      filled from its end towards its start
                              ^ OUT_START

`sweep_chunk` takes each batch below CURSOR through six steps (kafka-log 02 §6.2, §6.4):

1. Read the header, and check that offsets fall as the sweep goes on.  `read_header`
2. Decide about the batch as a whole: is it discarded, and does its header stay if no record does?  `_keeps_header`
3. Settle a batch without a record to look at: write its header or nothing.  `_settle_whole`
4. Decode its records, once the buffers and the map have room for all of them.  `_decode_for_sweep`
5. Filter the records; the rules are those of `record_filter`.  `_filter_records`
6. Emit the batch: its header, a verbatim copy, or the survivors in a rebuilt batch.  `_emit_survivors`

Two other kernels read the same batches: `fill_map` puts keys into a map with offsets, first batch first, and
`collect_keys` collects the latest occurrences of keys in a split.

The sweep is resumable.  If it cannot go on by itself (decompress, compress, enlarge the map or a buffer), it returns
the status that asks for it, with nothing half done, and continues at the next call.

Invariants
* The CRC of a batch is checked before anything of it is dropped: `scan_chunk` precedes `sweep_chunk` on every chunk.
* A batch is filtered exactly once: nothing of it enters the map before steps 1 to 4 have everything they need.
* Batches converted from messages of magic 0 and 1 have no checksum; each of them is rebuilt.
* A split is swept twice.  `collect_keys` decodes every record that can be dropped, and so finds every fault in it.
  `sweep_chunk` then decodes survivors only; by `digest_of` the caller sees that both sweeps met the same batches.
* Offsets fall strictly.  If they do not, the sweep stops with OFFSETS_NOT_INCREASING.  The caller then fills a map
  with offsets, for which the order of records does not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.offset_map import (
    FULL,
    OFFSET_SLOT_BYTES,
    SET_SLOT_BYTES,
    headroom,
    normal,
    prefetch_slot,
    put_bounded,
)
from sediment.compaction.kernels.record_filter import (
    collect_latest,
    count_survivors,
    horizon_has_passed,
    is_discarded,
    keep_all,
    keep_by_offset,
    keep_latest,
    keep_survivors,
    needs_horizon,
    survives,
    tombstones_expire,
)
from sediment.compaction.kernels.transactions import (
    DISCARD,
    LEAVES_HEADER,
    LEGACY,
    UNMAPPED,
    UNREADABLE,
    ActiveProducers,
    is_last_of_producer,
)
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import (
    copy_bytes,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    store_i32,
    store_i64,
)
from sediment.segment_io.compiled.native import Tools
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    BAD_VARINT,
    BEYOND_SIGHTED,
    CUT_MISSED,
    DONE,
    LEGACY_MAGIC,
    LEGACY_MET,
    MAP_FULL,
    NEEDS_COMPRESSION,
    NEEDS_MAP_ROOM,
    NEEDS_ORIGINAL,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
    NEEDS_SIGHT_ROOM,
    OFFSET_OUTSIDE_SEGMENT,
    OFFSETS_NOT_INCREASING,
    OK,
    RECORD_ENDS_EARLY,
    RECORD_TOO_LONG,
    RECORDS_REMAIN,
    RUN_FULL,
    TRANSACTIONS_MET,
)
from sediment.segment_io.format.compress import NOT_COMPRESSED, compress_records, compressed_bound
from sediment.segment_io.format.decode import (
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    VALUE_BYTES,
    batch_at,
    check_crc,
    check_header,
    decode_records,
    read_varint,
    read_varlong,
)
from sediment.segment_io.format.decompress import NOT_DECOMPRESSED
from sediment.segment_io.format.hashing import hash_key
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    CRC,
    DELETE_HORIZON_BIT,
    FIRST_MAGIC_WITH_PRODUCERS,
    INT64_MAX,
    LAST_OFFSET_DELTA,
    LEGACY_CRC,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MIN_RECORD_BYTES,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import check_legacy_crc
from sediment.segment_io.format.rebuild import (
    NO_HORIZON,
    kept_timestamps,
    pack_kept,
    rebuilt_bound,
    records_size,
    write_empty_batch,
    write_header,
    write_records,
)

# ---------------------------------------------------------------------------------- registers, int64[STATE_REGISTERS]
CURSOR = 0  # batches of the chunk still to do
OUT_START = 1  # first used byte of the output
LAST_BASE_OFFSET = 2  # base offset of the batch done last
HEADROOM = 3  # keys that the map can take wherever they hash to
NEEDED = 4  # the amount that a status asks for
RAW_BYTES = 5  # bytes of `raw` that are to be compressed
PENDING_KEPT = 6  # of the batch to be compressed: records kept, timestamps, horizon
PENDING_BASE_TIMESTAMP = 7
PENDING_MAX_TIMESTAMP = 8
PENDING_HAS_HORIZON = 9
MESSAGES_READ = 10
MESSAGES_WRITTEN = 11
CHANGED = 12  # 1: the output differs from the input
LATEST_OFFSET = 13  # of a map being filled
MAPPED = 14  # keys put into a map being filled
TOMBSTONES_WAITING = 15  # tombstones kept; the next two are the first and last delete horizon of their batches
FIRST_HORIZON_MS = 16
LAST_HORIZON_MS = 17
WITHOUT_HORIZON = 18  # batches that needed a delete horizon and got none
RUN_KEYS = 19  # keys collected in the current run
RECORDS = 20  # records met in the split, from its end on
STATE_REGISTERS = 21

# ------------------------------------------------------------------------------------ settings, int64[RULE_REGISTERS]
FIRST_MAPPED_OFFSET = 0  # keys below are only looked up
MAP_LATEST_OFFSET = 1  # of a filled map; records above it survive
UPPER_BOUND_OFFSET = 2  # first uncleanable offset; the batch before it keeps its header
NOW_MS = 3
NEXT_HORIZON_MS = 4  # now + delete.retention.ms, or NO_HORIZON
FILTER = 5  # BY_OCCURRENCE, BY_OFFSET or BY_BITMAP
MAP_LIMIT = 6  # keys that a map being filled may hold
RUN_LIMIT = 7  # keys that a run may hold; a single batch may exceed it
RULE_REGISTERS = 8

# How records are filtered
BY_OCCURRENCE = 0  # by a set of the keys that occurred nearer to the log's end
BY_OFFSET = 1  # by a filled map with offsets
BY_BITMAP = 2  # by a bit for each record of the split, from the keys of all splits

_SMALL_BATCH_RECORDS = 4
_BATCHES_AHEAD = 8
_SPARSE_FACTOR = 4  # records to each survivor, from which on it is faster to step over the others
_DIGEST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_DIGEST_SHIFT = np.uint64(29)


class Batches(NamedTuple):
    """The checked batches of one chunk.

    `flags` is uint8[batches], or empty for all zero.  `payloads`, int64[batches, 2], holds the address and bytes of the
    decompressed records of compressed batches, or NOT_DECOMPRESSED; it is empty if no batch is compressed.
    """

    buffer: npt.NDArray[np.uint8]
    positions: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    payloads: npt.NDArray[np.int64]


class KeyMap(NamedTuple):
    """The tables of an OffsetMap, and the seed and secrets with which its keys are hashed."""

    tables: npt.NDArray[np.int64]
    seed: np.uint64
    secrets: npt.NDArray[np.uint8]


class Rows(NamedTuple):
    """Working memory for the records of one batch: decoded rows, hashes of their keys, and 1 for each record kept.

    int64[n, RECORD_FIELDS], uint64[n, 2] and uint8[n].
    """

    records: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    kept: npt.NDArray[np.uint8]


class RunKeys(NamedTuple):
    """The keys of one run: hash, uint64[n, 2]; 1 if it enters the map, uint8[n]; number of its record, int64[n]."""

    hashes: npt.NDArray[np.uint64]
    mapped: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.int64]


class Header(NamedTuple):
    """The header fields of one batch that the kernels use."""

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
    """Read the header of the batch of magic 2 at `address`."""
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
        (attributes & DELETE_HORIZON_BIT) != 0,
        load_i64(address + BASE_TIMESTAMP),
        load_i32(address + RECORD_COUNT),
    )


@inlined_kernel
def _flags_of(batches: Batches, ordinal: int) -> int:
    return np.int64(batches.flags[ordinal]) if batches.flags.size else 0


@kernel
def scan_chunk(
    base: int,
    start: int,
    end: int,
    first_offset: int,
    end_offset: int,
    with_flags: bool,
    positions: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Check the lengths and checksums of the batches in [start, end); `positions`, int64[n], receives their starts.

    The batches have to fill the range exactly.  No checksum covers their offsets, which have to lie in
    [first_offset, end_offset), the offsets of their segment.

    Returns:
        (status, batches, position of the batch that the status is about).  DONE and LEGACY_MET mean that every batch
        is sound; NEEDS_RECORD_ROOM means that `positions` is too short.
    """
    position = start
    count = 0
    done = DONE
    while position < end:
        status, size_bytes = batch_at(base, position, end)
        if status not in (OK, LEGACY_MAGIC):
            return (CUT_MISSED if status < LEGACY_MAGIC else status), count, position
        if count == positions.size:
            return NEEDS_RECORD_ROOM, count, position
        address = base + position
        base_offset = load_i64(address + BASE_OFFSET)
        if status == LEGACY_MAGIC:
            status = check_legacy_crc(address, size_bytes)
            if status == OK and not first_offset <= base_offset < end_offset:
                status = OFFSET_OUTSIDE_SEGMENT
            if status != OK:
                return status, count, position
            done = LEGACY_MET
            positions[count] = position
            count += 1
            position += size_bytes
            continue
        status = check_header(address, size_bytes)
        if status == OK:
            status = check_crc(address, size_bytes)
        # A flipped bit can make an offset so large that adding the delta would overflow.
        if status == OK and not first_offset <= base_offset < end_offset - load_i32(address + LAST_OFFSET_DELTA):
            status = OFFSET_OUTSIDE_SEGMENT
        if status != OK:
            return status, count, position
        if not with_flags and load_i16(address + ATTRIBUTES) & (CONTROL_BIT | TRANSACTIONAL_BIT):
            return TRANSACTIONS_MET, count, position
        positions[count] = position
        count += 1
        position += size_bytes
    return done, count, position


@inlined_kernel
def _locate_records(header: Header, payloads: npt.NDArray[np.int64], ordinal: int) -> tuple[int, int, int]:
    """Return (status, address of the batch's records, their bytes).

    The status is OK, NEEDS_PAYLOAD or BAD_RECORD_COUNT.  Only OK makes the header's count one to reserve room for.
    """
    if header.codec == 0:
        address, payload_bytes = header.address + BATCH_HEADER_BYTES, header.size_bytes - BATCH_HEADER_BYTES
    else:
        address, payload_bytes = payloads[ordinal, 0], payloads[ordinal, 1]
        if payload_bytes == NOT_DECOMPRESSED:
            return NEEDS_PAYLOAD, 0, 0
    return (BAD_RECORD_COUNT if header.record_count * MIN_RECORD_BYTES > payload_bytes else OK), address, payload_bytes


@kernel
def _decode_batch(
    records_base: int,
    payload_bytes: int,
    count: int,
    mapped: int,
    tables: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Decode the records at `records_base` if there is room for their rows and for `mapped` keys of them.

    The payload was checked.  Return OK, a status that asks for room, or a decoder's status.
    """
    if count > records.shape[0]:
        state[NEEDED] = count
        return NEEDS_RECORD_ROOM
    if state[HEADROOM] < mapped:
        state[HEADROOM] = headroom(tables)
        if state[HEADROOM] < mapped:
            state[NEEDED] = mapped
            return NEEDS_MAP_ROOM
    return decode_records(records_base, 0, payload_bytes, count, records)


@kernel
def _hash_keys(
    records_base: int,
    records: npt.NDArray[np.int64],
    count: int,
    seed: np.uint64,
    secrets: int,
    tables: npt.NDArray[np.int64],
    slot_bytes: int,
    hashes: npt.NDArray[np.uint64],
) -> None:
    """Hash the keys of `count` records, and prefetch their slots."""
    for index in range(count):
        length = records[index, KEY_BYTES]
        if length >= 0:
            low, high = hash_key(records_base + records[index, KEY_START], length, seed, secrets)
            low = normal(low, high)
            hashes[index, 0] = low
            hashes[index, 1] = high
            prefetch_slot(tables, slot_bytes, low)


@kernel
def _prefetch_first_key(
    header: int, seed: np.uint64, secrets: int, tables: npt.NDArray[np.int64], slot_bytes: int
) -> None:
    """Prefetch the slot of the first record's key of the batch at `header`, if it is uncompressed and has a key.

    `_hash_keys` prefetches the keys of one batch; for small batches that comes too late.
    """
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


@kernel
def _offsets_increase(records: npt.NDArray[np.int64], count: int, last_delta: int) -> bool:
    """Return True if the offsets of a batch increase and end at or below its last one."""
    previous = -1
    for index in range(count):
        delta = records[index, OFFSET_DELTA]
        if delta <= previous or delta > last_delta:
            return False
        previous = delta
    return True


@kernel
def _begin_at_first_kept(header: int, records: npt.NDArray[np.int64], count: int) -> None:
    """Let the batch at `header` hold the offsets from the first to the last of its `count` kept records, at least 1."""
    first_delta = records[0, OFFSET_DELTA]
    for index in range(count):
        records[index, OFFSET_DELTA] -= first_delta
    store_i64(header + BASE_OFFSET, load_i64(header + BASE_OFFSET) + first_delta)
    store_i32(header + LAST_OFFSET_DELTA, records[count - 1, OFFSET_DELTA])


@kernel
def _decode_survivors(
    base: int, size_bytes: int, count: int, survivors: npt.NDArray[np.uint8], first: int, records: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Decode the survivors among `count` records and step over the others; return (status, rows)."""
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
def find_survivors(
    base: int,
    positions: npt.NDArray[np.int64],
    batch_flags: npt.NDArray[np.uint8],
    survivors: npt.NDArray[np.uint8],
    first: int,
    surviving: npt.NDArray[np.bool_],
) -> int:
    """Set `surviving`, bool[batches], for each batch of which `sweep_chunk` reads records BY_BITMAP.

    `first` is RECORDS before the chunk; return RECORDS after it.
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
def digest_of(source: npt.NDArray[np.uint8], origins: npt.NDArray[np.int64], digest: np.uint64) -> np.uint64:
    """Return `digest` extended by the batches or messages at `origins`, last first: their offsets, lengths and CRCs."""
    base = source.ctypes.data
    for ordinal in range(origins.size - 1, -1, -1):
        address = base + origins[ordinal]
        crc = load_u32(address + (CRC if load_i8(address + MAGIC) >= FIRST_MAGIC_WITH_PRODUCERS else LEGACY_CRC))
        for word in (load_i64(address + BASE_OFFSET), (load_i32(address + BATCH_LENGTH) << 32) ^ crc):
            digest = (digest ^ np.uint64(word)) * _DIGEST_FACTOR
            digest ^= digest >> _DIGEST_SHIFT
    return digest


@kernel
def _count_tombstones(records: npt.NDArray[np.int64], count: int) -> int:
    total = 0
    for index in range(count):
        total += records[index, VALUE_BYTES] < 0
    return total


# ------------------------------------------------------------------------------------------------------------ the sweep
@kernel
def sweep_chunk(
    batches: Batches,
    producers: ActiveProducers,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    raw: npt.NDArray[np.uint8],
    survivors: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    compressors: Tools,
    state: npt.NDArray[np.int64],
) -> int:
    """Filter and emit the batches below CURSOR, last first; return DONE, a status that asks, or a decoder's status.

    `raw` is working memory for records to be compressed; `compressors` comes from `find_compressors`, or is zeros.
    `survivors` is read BY_BITMAP only: a bit for each record of the split, numbered as RECORDS counts them, 1 if no
    later record of any split supersedes it.
    """
    base = batches.buffer.ctypes.data
    out = output.ctypes.data
    by_offset = rules[FILTER] == BY_OFFSET
    by_bitmap = rules[FILTER] == BY_BITMAP
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        flags = _flags_of(batches, ordinal)
        if flags & UNREADABLE:
            return NEEDS_ORIGINAL

        # 1. Read the header.
        header = read_header(base + batches.positions[ordinal])
        if not by_offset and header.last_offset >= state[LAST_BASE_OFFSET]:
            return OFFSETS_NOT_INCREASING

        # 2. Decide about the batch as a whole.
        horizon_passed = horizon_has_passed(header.has_horizon, header.base_timestamp, rules[NOW_MS])
        discarded = is_discarded(flags, header.is_control, horizon_passed)
        if header.record_count <= _SMALL_BATCH_RECORDS and ordinal >= _BATCHES_AHEAD and not by_bitmap:
            _prefetch_ahead(batches, base, ordinal - _BATCHES_AHEAD, keys, by_offset)
        keeps_header = _keeps_header(header, flags, rules, producers)

        # 3. Settle a batch without a record to look at.
        surviving = header.record_count
        if by_bitmap:
            if state[RECORDS] + header.record_count > survivors.size * 8:
                return BEYOND_SIGHTED
            if not header.is_control:
                surviving = count_survivors(survivors, state[RECORDS], header.record_count)
        if discarded or header.record_count == 0 or (surviving == 0 and flags & LEGACY == 0):
            if state[OUT_START] < BATCH_HEADER_BYTES:
                state[NEEDED] = BATCH_HEADER_BYTES
                return NEEDS_OUTPUT_ROOM
            _settle_whole(header, discarded, keeps_header, out, state)
            state[CURSOR] = ordinal
            continue

        # 4. Decode its records.
        status, records_base, decoded = _decode_for_sweep(
            batches, header, ordinal, surviving, rules, keys, rows, raw, survivors, state
        )
        if status != OK:
            return status

        # 5. Filter them.
        expired = tombstones_expire(flags, horizon_passed)
        retained = _filter_records(header, flags, records_base, decoded, expired, rules, keys, rows, survivors, state)
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
        elif keeps_header and flags & LEGACY:
            # A message of magic 0 or 1 cannot be empty, and without it the log would end before its last offset.
            state[MESSAGES_WRITTEN] += header.record_count
            return NEEDS_ORIGINAL
        else:
            state[CHANGED] = 1
            if keeps_header:
                _emit_header(header, out, state)
        state[CURSOR] = ordinal
    return DONE


@inlined_kernel
def _prefetch_ahead(batches: Batches, base: int, ahead: int, keys: KeyMap, by_offset: bool) -> None:
    """Prefetch the slot that batch `ahead` will need first."""
    if batches.flags.size == 0 or batches.flags[ahead] & UNREADABLE == 0:
        slot_bytes = OFFSET_SLOT_BYTES if by_offset else SET_SLOT_BYTES
        secrets = keys.secrets.ctypes.data
        _prefetch_first_key(base + batches.positions[ahead], keys.seed, secrets, keys.tables, slot_bytes)


@inlined_kernel
def _keeps_header(header: Header, flags: int, rules: npt.NDArray[np.int64], producers: ActiveProducers) -> bool:
    """Step 2: return True if the header of a batch stays even if none of its records does.

    The header of the last batch before the bound keeps the log's last offset, that of an active producer's last batch
    its sequence numbers.
    """
    if header.last_offset + 1 == rules[UPPER_BOUND_OFFSET] or (flags & LEAVES_HEADER) != 0:
        return True
    producer_id = load_i64(header.address + PRODUCER_ID)
    if producer_id < 0:
        return False
    epoch = load_i16(header.address + PRODUCER_EPOCH)
    return is_last_of_producer(producers, producer_id, epoch, header.last_offset, header.is_control)


@inlined_kernel
def _settle_whole(header: Header, discarded: bool, keeps_header: bool, out: int, state: npt.NDArray[np.int64]) -> None:
    """Step 3: write the header of a batch or nothing; the output has room for a header."""
    if not discarded or keeps_header:
        state[MESSAGES_READ] += header.record_count
    state[RECORDS] += header.record_count
    state[LAST_BASE_OFFSET] = header.base_offset
    if keeps_header:
        _emit_header(header, out, state)
        if header.record_count > 0 or load_u32(out + state[OUT_START] + CRC) != load_u32(header.address + CRC):
            state[CHANGED] = 1
    else:
        state[CHANGED] = 1


@inlined_kernel
def _decode_for_sweep(
    batches: Batches,
    header: Header,
    ordinal: int,
    surviving: int,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    raw: npt.NDArray[np.uint8],
    survivors: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Step 4: decode the records once everything that steps 5 and 6 need has room.

    Return (status, address of the records, rows decoded): all rows, or the survivors if these are few.
    """
    status, records_base, payload_bytes = _locate_records(header, batches.payloads, ordinal)
    if status != OK:
        return status, 0, 0
    bound = max(header.size_bytes, rebuilt_bound(payload_bytes, header.record_count))
    if header.codec != 0:
        packed_bound = compressed_bound(bound)
        if raw.size < bound + packed_bound:
            state[NEEDED] = bound + packed_bound
            return NEEDS_RAW_ROOM, 0, 0
        bound = BATCH_HEADER_BYTES + packed_bound
    if state[OUT_START] < bound:
        state[NEEDED] = bound
        return NEEDS_OUTPUT_ROOM, 0, 0
    decoded = header.record_count
    if surviving * _SPARSE_FACTOR <= header.record_count and surviving <= rows.records.shape[0]:
        status, decoded = _decode_survivors(
            records_base, payload_bytes, header.record_count, survivors, state[RECORDS], rows.records
        )
    else:
        mapped = header.record_count if rules[FILTER] == BY_OCCURRENCE else 0
        status = _decode_batch(
            records_base, payload_bytes, header.record_count, mapped, keys.tables, rows.records, state
        )
    if status != OK:
        return status, 0, 0
    if rules[FILTER] != BY_OFFSET and not _offsets_increase(rows.records, decoded, header.last_delta):
        return OFFSETS_NOT_INCREASING, 0, 0
    return OK, records_base, decoded


@inlined_kernel
def _filter_records(
    header: Header,
    flags: int,
    records_base: int,
    decoded: int,
    expired: bool,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    survivors: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
) -> int:
    """Step 5: mark in `kept` the records that survive; return their number.  `expired` is that of tombstones."""
    records, hashes, kept = rows.records, rows.hashes, rows.kept
    if header.is_control:
        return keep_all(header.record_count, kept)
    if rules[FILTER] == BY_BITMAP:
        return keep_survivors(records, decoded, header.record_count, expired, survivors, state[RECORDS], kept)
    by_offset = rules[FILTER] == BY_OFFSET
    slot_bytes = OFFSET_SLOT_BYTES if by_offset else SET_SLOT_BYTES
    _hash_keys(
        records_base, records, header.record_count, keys.seed, keys.secrets.ctypes.data, keys.tables, slot_bytes, hashes
    )
    if by_offset:
        latest = rules[MAP_LATEST_OFFSET]
        return keep_by_offset(
            records, hashes, header.record_count, header.base_offset, latest, expired, keys.tables, kept
        )
    first_mapped = INT64_MAX if flags & UNMAPPED else rules[FIRST_MAPPED_OFFSET]
    state[HEADROOM] -= header.record_count
    return keep_latest(
        records, hashes, header.record_count, header.base_offset, first_mapped, expired, keys.tables, kept
    )


@inlined_kernel
def _emit_survivors(
    header: Header,
    flags: int,
    records_base: int,
    decoded: int,
    retained: int,
    rules: npt.NDArray[np.int64],
    rows: Rows,
    raw: npt.NDArray[np.uint8],
    out: int,
    compressors: Tools,
    state: npt.NDArray[np.int64],
) -> int:
    """Step 6 for a batch that keeps `retained` records: copy it, or rebuild it; return OK or NEEDS_COMPRESSION."""
    records = rows.records
    if retained < decoded:
        pack_kept(records, decoded, rows.kept)
    gets_horizon = _note_tombstones(header, flags, _count_tombstones(records, retained), rules, state)
    if retained == header.record_count and not gets_horizon and flags & LEGACY == 0:
        state[OUT_START] -= header.size_bytes
        copy_bytes(out + state[OUT_START], header.address, header.size_bytes)
        return OK
    state[CHANGED] = 1
    first_timestamp, max_timestamp = kept_timestamps(header.address, records, retained)
    if flags & LEGACY:
        _begin_at_first_kept(header.address, records, retained)
    if gets_horizon:
        first_timestamp = rules[NEXT_HORIZON_MS]
    elif header.has_horizon:
        first_timestamp = header.base_timestamp
    has_horizon = gets_horizon or header.has_horizon
    if header.codec != 0:
        target = raw.ctypes.data
        packed = write_records(target, header.address, records_base, records, retained, first_timestamp)
        state[RAW_BYTES] = packed - target
        state[PENDING_KEPT] = retained
        state[PENDING_BASE_TIMESTAMP] = first_timestamp
        state[PENDING_MAX_TIMESTAMP] = max_timestamp
        state[PENDING_HAS_HORIZON] = 1 if has_horizon else 0
        room_bytes = raw.size - state[RAW_BYTES]
        new_bytes = compress_records(header.codec, target, state[RAW_BYTES], packed, room_bytes, compressors)
        if new_bytes == NOT_COMPRESSED:
            return NEEDS_COMPRESSION
        _place_compressed(header.address, packed, new_bytes, out, state)
        return OK
    new_bytes = BATCH_HEADER_BYTES + records_size(header.address, records, retained, first_timestamp)
    state[OUT_START] -= new_bytes
    target = out + state[OUT_START]
    write_records(target + BATCH_HEADER_BYTES, header.address, records_base, records, retained, first_timestamp)
    write_header(target, header.address, new_bytes, retained, first_timestamp, max_timestamp, has_horizon)
    return OK


@inlined_kernel
def _note_tombstones(
    header: Header, flags: int, tombstones: int, rules: npt.NDArray[np.int64], state: npt.NDArray[np.int64]
) -> bool:
    """Count the tombstones that a batch keeps; return True if the batch gets a delete horizon."""
    gets_horizon = needs_horizon(flags, header.is_control, header.has_horizon, tombstones)
    if gets_horizon and rules[NEXT_HORIZON_MS] == NO_HORIZON:
        gets_horizon = False
        state[WITHOUT_HORIZON] += 1
    if tombstones > 0 and not header.is_control:
        state[TOMBSTONES_WAITING] += tombstones
        if header.has_horizon or gets_horizon:
            horizon_ms = header.base_timestamp if header.has_horizon else rules[NEXT_HORIZON_MS]
            state[FIRST_HORIZON_MS] = min(state[FIRST_HORIZON_MS], horizon_ms)
            state[LAST_HORIZON_MS] = max(state[LAST_HORIZON_MS], horizon_ms)
    return gets_horizon


@inlined_kernel
def _emit_header(header: Header, out: int, state: npt.NDArray[np.int64]) -> None:
    """Emit the header of a batch as a batch without records; the output has room."""
    state[OUT_START] -= BATCH_HEADER_BYTES
    write_empty_batch(out + state[OUT_START], header.address)


@kernel
def _place_compressed(header: int, payload: int, size_bytes: int, out: int, state: npt.NDArray[np.int64]) -> None:
    """Emit the batch at `header`, which the PENDING registers describe, with a compressed payload; it has room."""
    new_bytes = BATCH_HEADER_BYTES + size_bytes
    state[OUT_START] -= new_bytes
    target = out + state[OUT_START]
    copy_bytes(target + BATCH_HEADER_BYTES, payload, size_bytes)
    write_header(
        target,
        header,
        new_bytes,
        state[PENDING_KEPT],
        state[PENDING_BASE_TIMESTAMP],
        state[PENDING_MAX_TIMESTAMP],
        state[PENDING_HAS_HORIZON] != 0,
    )


@kernel
def emit_compressed(
    batches: Batches,
    compressed: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
) -> int:
    """Emit the batch that NEEDS_COMPRESSION was about, with `compressed` as its payload, and step past it."""
    if state[OUT_START] < BATCH_HEADER_BYTES + compressed.size:
        state[NEEDED] = BATCH_HEADER_BYTES + compressed.size
        return NEEDS_OUTPUT_ROOM
    ordinal = state[CURSOR] - 1
    header = batches.buffer.ctypes.data + batches.positions[ordinal]
    _place_compressed(header, compressed.ctypes.data, compressed.size, output.ctypes.data, state)
    state[CURSOR] = ordinal
    return DONE


# --------------------------------------------------------------------------------------------- a map filled beforehand
@kernel
def fill_map(
    batches: Batches,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    state: npt.NDArray[np.int64],
) -> int:
    """Put the keys of a chunk's batches into a map with offsets, first batch first; CURSOR counts upwards here.

    LATEST_OFFSET is the map's latest offset.  MAP_FULL is returned as Kafka's buildOffsetMapForSegment stops.
    """
    base = batches.buffer.ctypes.data
    while state[CURSOR] < batches.positions.size:
        ordinal = state[CURSOR]
        flags = _flags_of(batches, ordinal)
        if flags & UNREADABLE:
            state[CURSOR] = ordinal + 1
            continue
        header = read_header(base + batches.positions[ordinal])
        is_mapped = header.last_offset >= rules[FIRST_MAPPED_OFFSET]
        if header.record_count > 0 and is_mapped and not header.is_control and not flags & UNMAPPED:
            status = _put_batch(batches, header, ordinal, rules, keys, rows, state)
            if status != OK:
                return status
        if is_mapped:
            state[LATEST_OFFSET] = header.last_offset
        state[CURSOR] = ordinal + 1
    return DONE


@inlined_kernel
def _put_batch(
    batches: Batches,
    header: Header,
    ordinal: int,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    state: npt.NDArray[np.int64],
) -> int:
    """Put the keys of one batch; return OK, MAP_FULL, a status that asks for room, or a decoder's status."""
    records, hashes = rows.records, rows.hashes
    status, records_base, payload_bytes = _locate_records(header, batches.payloads, ordinal)
    if status == OK:
        status = _decode_batch(
            records_base, payload_bytes, header.record_count, header.record_count, keys.tables, records, state
        )
    if status != OK:
        return status
    secrets = keys.secrets.ctypes.data
    _hash_keys(records_base, records, header.record_count, keys.seed, secrets, keys.tables, OFFSET_SLOT_BYTES, hashes)
    state[HEADROOM] -= header.record_count
    for index in range(header.record_count):
        offset = header.base_offset + records[index, OFFSET_DELTA]
        if records[index, KEY_BYTES] >= 0 and offset >= rules[FIRST_MAPPED_OFFSET]:
            low, high = hashes[index, 0], hashes[index, 1]
            added = put_bounded(keys.tables, low, high, offset, state[MAPPED], rules[MAP_LIMIT])
            if added == FULL:
                return MAP_FULL
            state[MAPPED] += added
            state[LATEST_OFFSET] = offset
    return OK


# ------------------------------------------------------------------------------------------------- the keys of a split
@kernel
def collect_keys(
    batches: Batches,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    run: RunKeys,
    state: npt.NDArray[np.int64],
) -> int:
    """Collect the latest occurrence of every key below CURSOR, last batch first: records that may survive BY_BITMAP.

    `run` receives the keys from RUN_KEYS on; a record's number is RECORDS at that record.
    """
    base = batches.buffer.ctypes.data
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        flags = _flags_of(batches, ordinal)
        if flags & UNREADABLE:
            state[CURSOR] = ordinal
            continue
        header = read_header(base + batches.positions[ordinal])
        if header.last_offset >= state[LAST_BASE_OFFSET]:
            return OFFSETS_NOT_INCREASING
        if header.record_count > 0 and not header.is_control and not flags & DISCARD:
            if state[RUN_KEYS] > 0 and state[RUN_KEYS] + header.record_count > rules[RUN_LIMIT]:
                return RUN_FULL
            status = _collect_batch(batches, header, flags, ordinal, rules, keys, rows, run, state)
            if status != OK:
                return status
        state[RECORDS] += header.record_count
        state[LAST_BASE_OFFSET] = header.base_offset
        state[CURSOR] = ordinal
    return DONE


@inlined_kernel
def _collect_batch(
    batches: Batches,
    header: Header,
    flags: int,
    ordinal: int,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: Rows,
    run: RunKeys,
    state: npt.NDArray[np.int64],
) -> int:
    """Collect the keys of one batch; return OK, a status that asks for room, or a decoder's status."""
    records, hashes = rows.records, rows.hashes
    status, records_base, payload_bytes = _locate_records(header, batches.payloads, ordinal)
    if status == OK and run.hashes.shape[0] < state[RUN_KEYS] + header.record_count:
        state[NEEDED] = state[RUN_KEYS] + header.record_count
        return NEEDS_SIGHT_ROOM
    if status == OK:
        status = _decode_batch(
            records_base, payload_bytes, header.record_count, header.record_count, keys.tables, records, state
        )
    if status != OK:
        return status
    if not _offsets_increase(records, header.record_count, header.last_delta):
        return OFFSETS_NOT_INCREASING
    secrets = keys.secrets.ctypes.data
    _hash_keys(records_base, records, header.record_count, keys.seed, secrets, keys.tables, SET_SLOT_BYTES, hashes)
    state[RUN_KEYS] = collect_latest(
        records,
        hashes,
        header.record_count,
        header.base_offset,
        INT64_MAX if flags & UNMAPPED else rules[FIRST_MAPPED_OFFSET],
        keys.tables,
        state[RECORDS],
        state[RUN_KEYS],
        run.hashes,
        run.mapped,
        run.numbers,
    )
    state[HEADROOM] -= header.record_count
    return OK
