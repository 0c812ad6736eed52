"""The compiled sweep: batches of one chunk, newest first, judged and emitted downward into an output buffer.

    chunk     | batch | batch | batch |        read from the log's end towards its start
                                  <- CURSOR
    output    |     free      | kept… |        filled from its end towards its start
                              ^ OUT_START

It composes decode, record_filter and emit and defines no layout and no rule of its own but the order of Kafka's
checkBatchRetention (kafka-log 02 §6.2, §6.4).  It is resumable: whatever it cannot do itself (decompress, compress,
grow a map or a buffer) it asks for by its status, with nothing half done, and goes on at the next call.

Invariants
* Nothing is dropped before the CRC of its batch was checked (`scan_chunk` precedes `sweep_chunk` on every chunk).
* Every batch is judged exactly once: a batch that needs something is not touched before it has everything.
* What comes of messages of magic 0 and 1 are batches without a checksum; each of them is rebuilt.
* A split is swept twice.  `collect_keys` decodes every record that can go, and so finds whatever is wrong with it;
  `sweep_chunk` then looks at no more than lives, and the caller sees by `digest_of` that it met the same batches.
* Offsets fall strictly as the sweep goes; where they do not, it stops with OFFSETS_NOT_INCREASING and the caller
  takes the careful path (a filled map with offsets), for which the order of records does not matter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.offset_map import (
    OFFSET_SLOT_BYTES,
    SET_SLOT_BYTES,
    headroom,
    normal,
    prefetch_slot,
    put_offset,
)
from sediment.compaction.kernels.record_filter import (
    count_survivors,
    keep_all,
    keep_by_offset,
    keep_latest,
    keep_survivors,
    note_keys,
    survives,
)
from sediment.compaction.kernels.transactions import (
    DISCARD,
    LEAVES_HEADER,
    LEGACY,
    MARKS_NOTHING,
    TOMBSTONES_GO,
    TOMBSTONES_STAY,
    UNMAPPED,
    UNREADABLE,
    is_last_of_producer,
)
from sediment.segment_io.compiled.jit import kernel
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
HEADROOM = 3  # keys that surely fit into the map
NEEDED = 4
RAW_BYTES = 5
PENDING_KEPT = 6  # of the batch to be compressed: records kept, timestamps, horizon
PENDING_BASE_TIMESTAMP = 7
PENDING_MAX_TIMESTAMP = 8
PENDING_HAS_HORIZON = 9
MESSAGES_READ = 10
MESSAGES_WRITTEN = 11
CHANGED = 12  # 1: the output differs from the input
LATEST_OFFSET = 13  # of a map being filled
MAPPED = 14  # keys put into a map being filled
TOMBSTONES_WAITING = 15  # kept, and the first and the last delete horizon of the batches that they are in
FIRST_HORIZON_MS = 16
LAST_HORIZON_MS = 17
WITHOUT_HORIZON = 18  # batches kept without a delete horizon that they needed
SIGHTS = 19  # keys met for the first time in the run that is going on
RECORDS = 20  # met in the split, from its end on
STATE_REGISTERS = 21

# ------------------------------------------------------------------------------------ settings, int64[RULE_REGISTERS]
FIRST_MAPPED_OFFSET = 0  # keys below are only looked up
MAP_LATEST_OFFSET = 1  # of a filled map; records above it live
UPPER_BOUND_OFFSET = 2  # first uncleanable offset: the batch before it leaves a header behind
NOW_MS = 3
NEXT_HORIZON_MS = 4  # now + delete.retention.ms, or NO_HORIZON
JUDGE = 5  # BY_SIGHT, BY_OFFSET or IN_SPLIT
MAP_LIMIT = 6  # keys that a map being filled may hold
RUN_LIMIT = 7  # first sights that a run may hold, one batch's keys aside
RULE_REGISTERS = 8

_SMALL_BATCH_RECORDS = 4
_BATCHES_AHEAD = 8
_FEW_LIVE = 4  # records in each living one, from which on it is quicker to step over the others
_DIGEST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_DIGEST_SHIFT = np.uint64(29)

# What a record is judged by
BY_SIGHT = 0  # a map of the keys seen nearer to the log's end
BY_OFFSET = 1  # a filled map with offsets
IN_SPLIT = 2  # by a bit for each record of the split, set from what all splits sighted


@kernel
def scan_chunk(
    base: int,
    start: int,
    end: int,
    first_offset: int,
    end_offset: int,
    with_verdicts: bool,
    positions: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Bound and checksum the batches that fill [start, end) exactly; `positions`, int64[n], receives where they start.

    Their offsets, which no checksum covers, have to lie in [first_offset, end_offset): those of their segment.

    Returns:
        (status, batches, position); with NEEDS_RECORD_ROOM `positions` is too short.  DONE, or LEGACY_MET which is as
        good, where all are well.
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
        # The sum would overflow for what a flipped bit can make of an offset.
        if status == OK and not first_offset <= base_offset < end_offset - load_i32(address + LAST_OFFSET_DELTA):
            status = OFFSET_OUTSIDE_SEGMENT
        if status != OK:
            return status, count, position
        if not with_verdicts and load_i16(address + ATTRIBUTES) & (CONTROL_BIT | TRANSACTIONAL_BIT):
            return TRANSACTIONS_MET, count, position
        positions[count] = position
        count += 1
        position += size_bytes
    return done, count, position


@kernel
def _records_of(
    header: int, size_bytes: int, codec: int, count: int, ordinal: int, payloads: npt.NDArray[np.int64]
) -> tuple[int, int, int]:
    """(status, address of the records, their bytes) of the batch at `header`.

    OK, NEEDS_PAYLOAD, or BAD_RECORD_COUNT: with OK only is `count` a number to make room for.
    """
    if codec == 0:
        address, payload_bytes = header + BATCH_HEADER_BYTES, size_bytes - BATCH_HEADER_BYTES
    else:
        address, payload_bytes = payloads[ordinal, 0], payloads[ordinal, 1]
        if payload_bytes == NOT_DECOMPRESSED:
            return NEEDS_PAYLOAD, 0, 0
    return (BAD_RECORD_COUNT if count * MIN_RECORD_BYTES > payload_bytes else OK), address, payload_bytes


@kernel
def _decode_batch(
    records_base: int,
    payload_bytes: int,
    count: int,
    mapped: int,
    directory: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Decode the records at `records_base`, once their rows and `mapped` keys of them have room.

    The payload was checked.  Returns OK, what is needed, or what is wrong with the batch.
    """
    if count > records.shape[0]:
        state[NEEDED] = count
        return NEEDS_RECORD_ROOM
    if state[HEADROOM] < mapped:
        state[HEADROOM] = headroom(directory)
        if state[HEADROOM] < mapped:
            state[NEEDED] = mapped
            return NEEDS_MAP_ROOM
    return decode_records(records_base, 0, payload_bytes, count, records)


@kernel
def _hash_keys(
    payload: int,
    records: npt.NDArray[np.int64],
    count: int,
    seed: np.uint64,
    secrets: int,
    directory: npt.NDArray[np.int64],
    slot_bytes: int,
    hashes: npt.NDArray[np.uint64],
) -> None:
    for index in range(count):
        length = records[index, KEY_BYTES]
        if length >= 0:
            low, high = hash_key(payload + records[index, KEY_START], length, seed, secrets)
            low = normal(low, high)
            hashes[index, 0] = low
            hashes[index, 1] = high
            prefetch_slot(directory, slot_bytes, low)


@kernel
def _prefetch_first_key(
    header: int, seed: np.uint64, secrets: int, directory: npt.NDArray[np.int64], slot_bytes: int
) -> None:
    """Ask for the slot of the first record of the batch at `header`, if it is an uncompressed one that has a key.

    What `_hash_keys` does for the records of one batch, for small batches that are not decoded together.
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
        prefetch_slot(directory, slot_bytes, normal(low, high))


@kernel
def _offsets_increase(records: npt.NDArray[np.int64], count: int, last_delta: int) -> bool:
    previous = -1
    for index in range(count):
        delta = records[index, OFFSET_DELTA]
        if delta <= previous or delta > last_delta:
            return False
        previous = delta
    return True


@kernel
def _run_is_full(count: int, rules: npt.NDArray[np.int64], state: npt.NDArray[np.int64]) -> bool:
    """Whether a batch of `count` records begins a new run."""
    return bool(state[SIGHTS] > 0 and state[SIGHTS] + count > rules[RUN_LIMIT])


@kernel
def _begin_at_first_kept(header: int, records: npt.NDArray[np.int64], count: int) -> None:
    """Let the batch at `header` hold the offsets from the first to the last of its kept records; at least one is."""
    first_delta = records[0, OFFSET_DELTA]
    for index in range(count):
        records[index, OFFSET_DELTA] -= first_delta
    store_i64(header + BASE_OFFSET, load_i64(header + BASE_OFFSET) + first_delta)
    store_i32(header + LAST_OFFSET_DELTA, records[count - 1, OFFSET_DELTA])


@kernel
def _decode_living(
    base: int, size_bytes: int, count: int, living: npt.NDArray[np.uint8], first: int, records: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """(status, rows): decode those of `count` records that live, as `survives` says, and step over the others."""
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
        if survives(living, first + count - 1 - index):
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
    verdicts: npt.NDArray[np.uint8],
    living: npt.NDArray[np.uint8],
    first: int,
    alive: npt.NDArray[np.bool_],
) -> int:
    """Set `alive`, bool[batches], to whether `sweep_chunk` will look at records of each batch, IN_SPLIT.

    `first` is RECORDS before the chunk; returns what it is behind it.
    """
    number = first
    for ordinal in range(positions.size - 1, -1, -1):
        alive[ordinal] = True
        if verdicts.size and verdicts[ordinal] & UNREADABLE:
            continue
        header = base + positions[ordinal]
        count = load_i32(header + RECORD_COUNT)
        if number + count <= living.size * 8 and not load_i16(header + ATTRIBUTES) & CONTROL_BIT:
            alive[ordinal] = count_survivors(living, number, count) > 0
        number += count
    return number


@kernel
def digest_of(source: npt.NDArray[np.uint8], origins: npt.NDArray[np.int64], digest: np.uint64) -> np.uint64:
    """`digest` and the batches or messages that begin at `origins`, last first: their offsets, lengths and CRCs."""
    base = source.ctypes.data
    for ordinal in range(origins.size - 1, -1, -1):
        address = base + origins[ordinal]
        crc = load_u32(address + (CRC if load_i8(address + MAGIC) >= FIRST_MAGIC_WITH_PRODUCERS else LEGACY_CRC))
        for word in (load_i64(address + BASE_OFFSET), (load_i32(address + BATCH_LENGTH) << 32) ^ crc):
            digest = (digest ^ np.uint64(word)) * _DIGEST_FACTOR
            digest ^= digest >> _DIGEST_SHIFT
    return digest


@kernel
def _tombstones(records: npt.NDArray[np.int64], count: int) -> int:
    total = 0
    for index in range(count):
        total += records[index, VALUE_BYTES] < 0
    return total


@kernel
def _place_compressed(header: int, payload: int, size_bytes: int, out: int, state: npt.NDArray[np.int64]) -> None:
    """Place what became of the batch at `header`, which the PENDING registers describe; it has room."""
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
def sweep_chunk(
    chunk: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.int64],
    verdicts: npt.NDArray[np.uint8],
    payloads: npt.NDArray[np.int64],
    producer_ids: npt.NDArray[np.int64],
    producer_offsets: npt.NDArray[np.int64],
    producer_epochs: npt.NDArray[np.int64],
    rules: npt.NDArray[np.int64],
    seed: np.uint64,
    secrets: npt.NDArray[np.uint8],
    directory: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    kept: npt.NDArray[np.uint8],
    raw: npt.NDArray[np.uint8],
    living: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    compressors: Tools,
    state: npt.NDArray[np.int64],
) -> int:
    """Judge and emit the batches below CURSOR, last first; returns DONE, what it needs, or a decoder's status.

    `verdicts` is uint8[batches] or empty (all zero); `payloads`, int64[batches, 2], says where the decompressed records
    of compressed batches are, address and bytes, or NOT_DECOMPRESSED; `compressors` is what `find_compressors` gives,
    or zeros;
    `producer_*` are ActiveProducers' columns.  `living`
    is of use IN_SPLIT only: a bit for each record of the split, numbered as RECORDS counts them, 1 where its key lives.
    """
    base = chunk.ctypes.data
    out = output.ctypes.data
    secrets_address = secrets.ctypes.data
    by_offset = rules[JUDGE] == BY_OFFSET
    in_split = rules[JUDGE] == IN_SPLIT
    slot_bytes = OFFSET_SLOT_BYTES if by_offset else SET_SLOT_BYTES
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        verdict = np.int64(verdicts[ordinal]) if verdicts.size else 0
        if verdict & UNREADABLE:
            return NEEDS_ORIGINAL
        is_legacy = (verdict & LEGACY) != 0
        position = positions[ordinal]
        header = base + position
        size_bytes = load_i32(header + BATCH_LENGTH) + LOG_OVERHEAD_BYTES
        base_offset = load_i64(header + BASE_OFFSET)
        last_delta = load_i32(header + LAST_OFFSET_DELTA)
        last_offset = base_offset + last_delta
        attributes = load_i16(header + ATTRIBUTES)
        count = load_i32(header + RECORD_COUNT)
        codec = attributes & CODEC_MASK
        is_control = (attributes & CONTROL_BIT) != 0
        has_horizon = (attributes & DELETE_HORIZON_BIT) != 0
        horizon_passed = has_horizon and load_i64(header + BASE_TIMESTAMP) <= rules[NOW_MS]
        tombstones_go = (horizon_passed or (verdict & TOMBSTONES_GO) != 0) and (verdict & TOMBSTONES_STAY) == 0

        if not by_offset and last_offset >= state[LAST_BASE_OFFSET]:
            return OFFSETS_NOT_INCREASING
        discard = (verdict & DISCARD) != 0 and (not is_control or horizon_passed)
        retain_empty = last_offset + 1 == rules[UPPER_BOUND_OFFSET] or (verdict & LEAVES_HEADER) != 0
        if count <= _SMALL_BATCH_RECORDS and ordinal >= _BATCHES_AHEAD and not in_split:
            ahead = ordinal - _BATCHES_AHEAD
            if verdicts.size == 0 or verdicts[ahead] & UNREADABLE == 0:
                _prefetch_first_key(base + positions[ahead], seed, secrets_address, directory, slot_bytes)
        producer_id = load_i64(header + PRODUCER_ID)
        if producer_id >= 0 and not retain_empty:
            retain_empty = is_last_of_producer(
                producer_ids,
                producer_offsets,
                producer_epochs,
                producer_id,
                load_i16(header + PRODUCER_EPOCH),
                last_offset,
                is_control,
            )
        alive = count
        if in_split:
            if state[RECORDS] + count > living.size * 8:
                return BEYOND_SIGHTED
            if not is_control:
                alive = count_survivors(living, state[RECORDS], count)
        if discard or count == 0 or (alive == 0 and not is_legacy):
            if state[OUT_START] < BATCH_HEADER_BYTES:
                state[NEEDED] = BATCH_HEADER_BYTES
                return NEEDS_OUTPUT_ROOM
            if not discard or retain_empty:
                state[MESSAGES_READ] += count
            state[RECORDS] += count
            state[LAST_BASE_OFFSET] = base_offset
            state[CURSOR] = ordinal
            if retain_empty:
                state[OUT_START] -= BATCH_HEADER_BYTES
                write_empty_batch(out + state[OUT_START], header)
                if count > 0 or load_u32(out + state[OUT_START] + CRC) != load_u32(header + CRC):
                    state[CHANGED] = 1
            else:
                state[CHANGED] = 1
            continue

        # everything the batch needs, before it is judged
        status, records_base, payload_bytes = _records_of(header, size_bytes, codec, count, ordinal, payloads)
        if status != OK:
            return status
        bound = max(size_bytes, rebuilt_bound(payload_bytes, count))
        if codec != 0:
            packed_bound = compressed_bound(bound)
            if raw.size < bound + packed_bound:
                state[NEEDED] = bound + packed_bound
                return NEEDS_RAW_ROOM
            bound = BATCH_HEADER_BYTES + packed_bound
        if state[OUT_START] < bound:
            state[NEEDED] = bound
            return NEEDS_OUTPUT_ROOM
        few_live = alive * _FEW_LIVE <= count
        if few_live and alive <= records.shape[0]:
            status, rows = _decode_living(records_base, payload_bytes, count, living, state[RECORDS], records)
        else:
            mapped = count if not by_offset and not in_split else 0
            status = _decode_batch(records_base, payload_bytes, count, mapped, directory, records, state)
            rows = count
        if status != OK:
            return status
        if not by_offset and not _offsets_increase(records, rows, last_delta):
            return OFFSETS_NOT_INCREASING

        # judge it
        if is_control:
            retained = keep_all(count, kept)
        elif in_split:
            retained = keep_survivors(records, rows, count, tombstones_go, living, state[RECORDS], kept)
        else:
            _hash_keys(records_base, records, count, seed, secrets_address, directory, slot_bytes, hashes)
            if by_offset:
                retained = keep_by_offset(
                    records, hashes, count, base_offset, rules[MAP_LATEST_OFFSET], tombstones_go, directory, kept
                )
            else:
                first_mapped = INT64_MAX if verdict & UNMAPPED else rules[FIRST_MAPPED_OFFSET]
                retained = keep_latest(
                    records, hashes, count, base_offset, first_mapped, tombstones_go, directory, kept
                )
                state[HEADROOM] -= count
        state[MESSAGES_READ] += count
        state[MESSAGES_WRITTEN] += retained
        state[RECORDS] += count
        state[LAST_BASE_OFFSET] = base_offset

        # emit it
        if retained == 0:
            if retain_empty and is_legacy:
                # Such a message cannot stay empty, and without it the log would end before its last offset.
                state[MESSAGES_WRITTEN] += count
                return NEEDS_ORIGINAL
            state[CHANGED] = 1
            if retain_empty:
                state[OUT_START] -= BATCH_HEADER_BYTES
                write_empty_batch(out + state[OUT_START], header)
        else:
            if retained < rows:
                pack_kept(records, rows, kept)
            tombstones = _tombstones(records, retained)
            needs_horizon = not has_horizon and ((is_control and (verdict & MARKS_NOTHING) != 0) or tombstones > 0)
            if needs_horizon and rules[NEXT_HORIZON_MS] == NO_HORIZON:
                needs_horizon = False
                state[WITHOUT_HORIZON] += 1
            if tombstones > 0 and not is_control:
                state[TOMBSTONES_WAITING] += tombstones
                if has_horizon or needs_horizon:
                    horizon_ms = load_i64(header + BASE_TIMESTAMP) if has_horizon else rules[NEXT_HORIZON_MS]
                    state[FIRST_HORIZON_MS] = min(state[FIRST_HORIZON_MS], horizon_ms)
                    state[LAST_HORIZON_MS] = max(state[LAST_HORIZON_MS], horizon_ms)
            if retained == count and not needs_horizon and not is_legacy:
                state[OUT_START] -= size_bytes
                copy_bytes(out + state[OUT_START], header, size_bytes)
            else:
                state[CHANGED] = 1
                first_timestamp, max_timestamp = kept_timestamps(header, records, retained)
                if is_legacy:
                    _begin_at_first_kept(header, records, retained)
                if needs_horizon:
                    first_timestamp = rules[NEXT_HORIZON_MS]
                elif has_horizon:
                    first_timestamp = load_i64(header + BASE_TIMESTAMP)
                if codec != 0:
                    target = raw.ctypes.data
                    packed = write_records(target, header, records_base, records, retained, first_timestamp)
                    state[RAW_BYTES] = packed - target
                    state[PENDING_KEPT] = retained
                    state[PENDING_BASE_TIMESTAMP] = first_timestamp
                    state[PENDING_MAX_TIMESTAMP] = max_timestamp
                    state[PENDING_HAS_HORIZON] = 1 if needs_horizon or has_horizon else 0
                    room_bytes = raw.size - state[RAW_BYTES]
                    new_bytes = compress_records(codec, target, state[RAW_BYTES], packed, room_bytes, compressors)
                    if new_bytes == NOT_COMPRESSED:
                        return NEEDS_COMPRESSION
                    _place_compressed(header, packed, new_bytes, out, state)
                    state[CURSOR] = ordinal
                    continue
                new_bytes = BATCH_HEADER_BYTES + records_size(header, records, retained, first_timestamp)
                state[OUT_START] -= new_bytes
                target = out + state[OUT_START]
                write_records(target + BATCH_HEADER_BYTES, header, records_base, records, retained, first_timestamp)
                write_header(
                    target, header, new_bytes, retained, first_timestamp, max_timestamp, needs_horizon or has_horizon
                )
        state[CURSOR] = ordinal
    return DONE


@kernel
def emit_compressed(
    chunk: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.int64],
    compressed: npt.NDArray[np.uint8],
    output: npt.NDArray[np.uint8],
    state: npt.NDArray[np.int64],
) -> int:
    """Place the batch that NEEDS_COMPRESSION was about, with `compressed` as its payload, and step past it."""
    if state[OUT_START] < BATCH_HEADER_BYTES + compressed.size:
        state[NEEDED] = BATCH_HEADER_BYTES + compressed.size
        return NEEDS_OUTPUT_ROOM
    ordinal = state[CURSOR] - 1
    header = chunk.ctypes.data + positions[ordinal]
    _place_compressed(header, compressed.ctypes.data, compressed.size, output.ctypes.data, state)
    state[CURSOR] = ordinal
    return DONE


@kernel
def fill_map(
    chunk: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.int64],
    verdicts: npt.NDArray[np.uint8],
    payloads: npt.NDArray[np.int64],
    rules: npt.NDArray[np.int64],
    seed: np.uint64,
    secrets: npt.NDArray[np.uint8],
    directory: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    state: npt.NDArray[np.int64],
) -> int:
    """Put the keys of a chunk's batches into a map with offsets, first batch first; CURSOR counts upwards here.

    MAP_FULL as Kafka's buildOffsetMapForSegment: tested before the look-up, so that a known key stops it too
    (kafka-log 02 §4.2).  LATEST_OFFSET is the map's latest offset.
    """
    base = chunk.ctypes.data
    while state[CURSOR] < positions.size:
        ordinal = state[CURSOR]
        if verdicts.size > 0 and verdicts[ordinal] & UNREADABLE:
            state[CURSOR] = ordinal + 1
            continue
        position = positions[ordinal]
        header = base + position
        size_bytes = load_i32(header + BATCH_LENGTH) + LOG_OVERHEAD_BYTES
        base_offset = load_i64(header + BASE_OFFSET)
        last_offset = base_offset + load_i32(header + LAST_OFFSET_DELTA)
        attributes = load_i16(header + ATTRIBUTES)
        count = load_i32(header + RECORD_COUNT)
        codec = attributes & CODEC_MASK
        skipped = attributes & CONTROL_BIT or (verdicts.size > 0 and verdicts[ordinal] & UNMAPPED)
        if count > 0 and not skipped and last_offset >= rules[FIRST_MAPPED_OFFSET]:
            status, records_base, payload_bytes = _records_of(header, size_bytes, codec, count, ordinal, payloads)
            if status == OK:
                status = _decode_batch(records_base, payload_bytes, count, count, directory, records, state)
            if status != OK:
                return status
            _hash_keys(records_base, records, count, seed, secrets.ctypes.data, directory, OFFSET_SLOT_BYTES, hashes)
            state[HEADROOM] -= count
            for index in range(count):
                offset = base_offset + records[index, OFFSET_DELTA]
                if records[index, KEY_BYTES] >= 0 and offset >= rules[FIRST_MAPPED_OFFSET]:
                    if state[MAPPED] >= rules[MAP_LIMIT]:
                        return MAP_FULL
                    state[MAPPED] += put_offset(directory, hashes[index, 0], hashes[index, 1], offset)
                    state[LATEST_OFFSET] = offset
        if last_offset >= rules[FIRST_MAPPED_OFFSET]:
            state[LATEST_OFFSET] = last_offset
        state[CURSOR] = ordinal + 1
    return DONE


@kernel
def collect_keys(
    chunk: npt.NDArray[np.uint8],
    positions: npt.NDArray[np.int64],
    verdicts: npt.NDArray[np.uint8],
    payloads: npt.NDArray[np.int64],
    rules: npt.NDArray[np.int64],
    seed: np.uint64,
    secrets: npt.NDArray[np.uint8],
    directory: npt.NDArray[np.int64],
    records: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
    sighted: npt.NDArray[np.uint64],
    mapped: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> int:
    """Note the first sight of every key below CURSOR, last batch first: records that may live IN_SPLIT.

    `sighted`, uint64[n, 2], `mapped`, uint8[n], and `places`, int64[n], receive hash, whether the key enters the map,
    and the record's number as RECORDS counts, from SIGHTS on.
    """
    base = chunk.ctypes.data
    while state[CURSOR] > 0:
        ordinal = state[CURSOR] - 1
        verdict = np.int64(verdicts[ordinal]) if verdicts.size else 0
        if verdict & UNREADABLE:
            state[CURSOR] = ordinal
            continue
        position = positions[ordinal]
        header = base + position
        size_bytes = load_i32(header + BATCH_LENGTH) + LOG_OVERHEAD_BYTES
        base_offset = load_i64(header + BASE_OFFSET)
        last_delta = load_i32(header + LAST_OFFSET_DELTA)
        attributes = load_i16(header + ATTRIBUTES)
        count = load_i32(header + RECORD_COUNT)
        codec = attributes & CODEC_MASK
        if base_offset + last_delta >= state[LAST_BASE_OFFSET]:
            return OFFSETS_NOT_INCREASING
        if count > 0 and not attributes & CONTROL_BIT and not verdict & DISCARD:
            if _run_is_full(count, rules, state):
                return RUN_FULL
            status, records_base, payload_bytes = _records_of(header, size_bytes, codec, count, ordinal, payloads)
            if status == OK and sighted.shape[0] < state[SIGHTS] + count:
                state[NEEDED] = state[SIGHTS] + count
                return NEEDS_SIGHT_ROOM
            if status == OK:
                status = _decode_batch(records_base, payload_bytes, count, count, directory, records, state)
            if status != OK:
                return status
            if not _offsets_increase(records, count, last_delta):
                return OFFSETS_NOT_INCREASING
            _hash_keys(records_base, records, count, seed, secrets.ctypes.data, directory, SET_SLOT_BYTES, hashes)
            first_mapped = INT64_MAX if verdict & UNMAPPED else rules[FIRST_MAPPED_OFFSET]
            state[SIGHTS] = note_keys(
                records,
                hashes,
                count,
                base_offset,
                first_mapped,
                directory,
                state[RECORDS],
                state[SIGHTS],
                sighted,
                mapped,
                places,
            )
            state[HEADROOM] -= count
        state[RECORDS] += count
        state[LAST_BASE_OFFSET] = base_offset
        state[CURSOR] = ordinal
    return DONE
