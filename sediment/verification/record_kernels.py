r"""Compiled loops that decode the records of two logs and compare the logs in offset order.

The records of BEFORE and AFTER are merged by offset and key.

Because offsets ascend, one 64-bit integer for each key (its word) is enough:

* for each view, whether both logs have the same latest record;
* whether the latest missing record still needs a later record of the same key as its reason;
* the number of kept records that a later record of the dirty section would supersede.

A word contains no offsets.

Invariants: offsets ascend in both inputs.  A kernel allocates nothing and returns a status.  Keys are compared by 128
bits of a hash with the run's seed; values, headers and keys at the same offset are compared byte by byte.

Source: kafka-log 02 §6, §7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import equal_bytes, load_u32, prefetch
from sediment.segment_io.compiled.status import (
    DONE,
    NEEDS_AFTER,
    NEEDS_BEFORE,
    NEEDS_EVENT_ROOM,
    NEEDS_MAP_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RECORD_ROOM,
    OK,
)
from sediment.segment_io.format.hashing import hash_key
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    CRC,
    DELETE_HORIZON_BIT,
    INT32_MAX,
    LEGACY_CRC,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import decode_entry
from sediment.segment_io.format.record_decoder import (
    HEADERS_START,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_END,
    RECORD_FIELDS,
    RECORD_START,
    RECORD_TAIL,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
    decode_records,
    read_varint,
)
from sediment.segment_io.format.timestamps import record_timestamp
from sediment.segment_io.segment.columns import SpanBatches

Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]
Flags = npt.NDArray[np.uint8]

# ----------------------------------------------------------------- a record, int64[WALKED_FIELDS]; starts are addresses
BATCH_INDEX = RECORD_START  # index among the batches of the block
HASH_LOW = RECORD_TAIL
TIMESTAMP = TIMESTAMP_DELTA
OFFSET = OFFSET_DELTA
HASH_HIGH = RECORD_FIELDS
WALKED_FIELDS = RECORD_FIELDS + 1

# ---------------------------------------------------------------------------- records of a batch, int64[CONTENT_FIELDS]
FIRST_RECORD = 0
LAST_RECORD = 1
LARGEST_TIMESTAMP = 2
DESCENDING = 3
NULL_VALUE = 4
STORED_CRC = 5
CONTENT_FIELDS = 6

# ---------------------------------------------------------------------------------------------- flags of a batch, uint8
ABORTED = 1
CONTROL = 2
TOMBSTONES_MAY_GO = 4  # only of BEFORE

_RECORDS_AHEAD = 8  # whose slots are fetched early
_MOST_COPIES = 8  # of an offset; beyond that, a record counts as superseded by one at its own offset
NO_HORIZON = -1
NO_MARKER, NO_OUTCOME = -1, -1

# ------------------------------------------------------------------------------ parameters of a pass, int64[PARAMETERS]
LIMIT = 0
END = 1
DIRTY = 2
STABLE_BEFORE = 3
STABLE_AFTER = 4
IS_CLAIMED = 5
IS_CHECKED = 6  # records below the limit that are superseded but still exist are differences
REMOVABLE_END = 7
FIRST_PART = 8  # the pass handles the keys whose hash is in [FIRST_PART, END_PART)
END_PART = 9
IS_TRACING = 10
SEED = 11
PARAMETERS = 12
PARTS = 1 << 31

# -------------------------------------------------------------------------------- registers of a pass, int64[REGISTERS]
AT_BEFORE = 0
AT_AFTER = 1
COUNT_BEFORE = 2
COUNT_AFTER = 3
BEFORE_ENDED = 4
AFTER_ENDED = 5
USED = 6  # keys in the table
SUPERSEDED = 7
EVENTS = 8
MET_OFFSET = 9  # offset of the last record that both logs have
MET_HASH = 10
REGISTERS = 11

# -------------------------------------------------------------------- differences of single records, int64[DIFFERENCES]
NEW_KEYED = 0
NEW_KEYLESS = 1
REPEATED = 2
LOST_KEYLESS = 3
LOST_ABOVE = 4
LOST_TOMBSTONE = 5
LEFT_KEYLESS = 6
OTHER_VALUE = 7
OTHER_HEADERS = 8
OTHER_TIMESTAMP = 9
OTHER_PRODUCER = 10
DIFFERENCES = 11

# ------------------------------------------------------------------------------------------- table of keys, int64[n, 3]
LOW = 0
HIGH = 1
WORD = 2
SLOT_FIELDS = 3
PRESENT = 1
COMMITTED_BEFORE = 2  # BEFORE has a record in this view
COMMITTED_AFTER = 4
COMMITTED_SAME = 8  # the latest records of both logs are the same
COMMITTED_TOMBSTONE = 16  # the latest record of BEFORE is a tombstone
VIEW_BITS = 30
UNCOMMITTED_SHIFT = 4  # the same four bits for the view of all records
LOST = 512
LOST_IS_TOMBSTONE = 1024
WAS_SUPERSEDED = 2048
HAS_MAPPED = 4096  # some record is mapped
HAS_SUPERSEDER = 8192  # some mapped record is in the dirty section
LEFT_ONE = 1 << 16  # the bits from this bit upwards count kept records

# ---------------------------------------------------------------------------------------- an event, int64[EVENT_FIELDS]
EVENT_SLOT = 0
EVENT_OFFSET = 1
EVENT_FACTS = 2
EVENT_HORIZON = 3
EVENT_FIELDS = 4
IN_COMMITTED_BEFORE = 1
IN_COMMITTED_AFTER = 2
IN_ALL_BEFORE = 4
IN_ALL_AFTER = 8
_ALL_SHIFT = 2
IS_TOMBSTONE = 16
IS_MAPPED = 32
IS_LEFT = 64
IS_LOST = 128
IS_LOST_ABOVE = 256  # missing although it is above the limit; events do not need it


class RecordBlock(NamedTuple):
    """Records of one log, int64[n, WALKED_FIELDS], and their batches, rows of `rules.BATCH`, with flags."""

    records: Int64s
    batches: Rows
    flags: Flags


class Differences(NamedTuple):
    """Differences of single records: int64[DIFFERENCES], and int64[DIFFERENCES, shown, 2] of offset and horizon."""

    counts: Int64s
    first: Int64s


class Step(NamedTuple):
    """The next record in offset order, which is in BEFORE, in AFTER or in both.

    `i` and `j` are the indexes in the blocks.  Only a keyed record has a hash.
    """

    i: int
    j: int
    offset: int
    in_before: bool
    in_after: bool
    before_flags: int
    after_flags: int
    is_control: bool
    is_keyed: bool
    is_aborted: bool  # in BEFORE
    is_mapped: bool
    low: int
    high: int


# ------------------------------------------------------------------------------------------------------------- decoding
@kernel
def decode_batches(
    batches: SpanBatches,
    first: int,
    records: Int64s,
    filled: int,
    counts: Int64s,
    contents: Int64s,
) -> tuple[int, int, int]:
    """Decode the batches from index `first` on into `records`, starting at index `filled`.

    The function also fills `counts`, int64[batches], and `contents`, int64[batches, CONTENT_FIELDS].

    Returns:
        (status, batch, records filled): OK with the number of batches, or else a request or error status with the index
        of the batch that caused it.
    """
    base, shift = batches.base, batches.shift
    for index in range(first, batches.rows.size):
        counts[index] = 0
        if batches.skip[index]:
            continue
        row = batches.rows[index]
        is_legacy = row["magic"] < 2
        contents[index, STORED_CRC] = load_u32(base + row["position"] + shift + (LEGACY_CRC if is_legacy else CRC))
        count = 1 if is_legacy else row["record_count"]
        if count == 0:
            continue
        if row["attributes"] & CODEC_MASK:
            return NEEDS_PAYLOAD, index, filled
        if count > len(records) - filled:
            return NEEDS_RECORD_ROOM, index, filled
        at = row["position"] + shift
        if is_legacy:
            status = decode_entry(base, at, row["size_bytes"], records[filled])
        else:
            status = decode_records(base, at + BATCH_HEADER_BYTES, at + row["size_bytes"], count, records[filled:])
        if status != OK:
            return status, index, filled
        complete_records(base, row, index, records, filled, count, contents)
        counts[index] = count
        filled += count
    return OK, batches.rows.size, filled


@kernel
def complete_records(
    base: int, row: np.void, index: int, records: Int64s, first: int, count: int, contents: Int64s
) -> None:
    """Convert the decoded rows of batch `index` to rows of WALKED_FIELDS, and describe the batch in `contents`."""
    absolute = row["magic"] < 2
    base_offset = np.int64(0) if absolute else row["base_offset"]
    base_timestamp = np.int64(0) if absolute else row["base_timestamp"]
    attributes = np.int64(0) if absolute else row["attributes"]
    max_timestamp = row["max_timestamp"]
    descending = 0
    null_value = 0
    for at in range(first, first + count):
        offset = base_offset + records[at, OFFSET_DELTA]
        timestamp = record_timestamp(attributes, base_timestamp, max_timestamp, records[at, TIMESTAMP_DELTA])
        if at == first:
            contents[index, FIRST_RECORD] = offset
            contents[index, LAST_RECORD] = offset
            contents[index, LARGEST_TIMESTAMP] = timestamp
        elif offset <= records[at - 1, OFFSET]:
            descending = 1
        contents[index, FIRST_RECORD] = min(contents[index, FIRST_RECORD], offset)
        contents[index, LAST_RECORD] = max(contents[index, LAST_RECORD], offset)
        contents[index, LARGEST_TIMESTAMP] = max(contents[index, LARGEST_TIMESTAMP], timestamp)
        if records[at, VALUE_BYTES] < 0:
            null_value = 1
        records[at, OFFSET] = offset
        records[at, TIMESTAMP] = timestamp
        records[at, BATCH_INDEX] = index
        records[at, KEY_START] += base
        records[at, VALUE_START] += base
        records[at, RECORD_END] += base
        if records[at, HEADERS_START] > 0:
            records[at, HEADERS_START] += base
    contents[index, DESCENDING] = descending
    contents[index, NULL_VALUE] = null_value


@kernel
def describe_batches(
    rows: Rows,
    first: int,
    end: int,
    skip: npt.NDArray[np.bool_],
    contents: Int64s,
    unreadable: npt.NDArray[np.bool_],
    segment: int,
    batches: Rows,
) -> int:
    """Fill `batches`, rows of `rules.BATCH`, from rows[first:end] except the rows to `skip`; return the batch count.

    Every batch gets NO_MARKER and NO_OUTCOME, as if no marker had decided its transaction.
    """
    count = 0
    for index in range(first, end):
        if skip[index]:
            continue
        row, batch = rows[index], batches[count]
        attributes = np.int64(row["attributes"])
        modern = row["magic"] >= 2
        batch["segment"] = segment
        batch["size"] = row["size_bytes"]
        batch["crc"] = contents[index, STORED_CRC]
        batch["base"] = row["base_offset"]
        batch["last"] = row["last_offset"]
        batch["leader_epoch"] = row["leader_epoch"]
        batch["magic"] = row["magic"]
        batch["attributes"] = row["attributes"]
        batch["max_ms"] = max(row["max_timestamp"], -1)
        batch["base_ms"] = row["base_timestamp"]
        has_horizon = modern and attributes & DELETE_HORIZON_BIT != 0
        batch["horizon_ms"] = max(row["base_timestamp"], NO_HORIZON) if has_horizon else NO_HORIZON
        batch["producer_id"] = row["producer_id"]
        batch["producer_epoch"] = row["producer_epoch"]
        batch["base_sequence"] = row["base_sequence"]
        batch["records"] = row["record_count"]
        batch["control_type"] = row["control_type"]
        batch["codec"] = attributes & CODEC_MASK
        batch["timestamp_type"] = 1 if attributes & TIMESTAMP_TYPE_BIT != 0 and row["magic"] > 0 else 0
        is_transactional = modern and attributes & TRANSACTIONAL_BIT != 0
        is_control = modern and attributes & CONTROL_BIT != 0
        batch["transactional"] = is_transactional
        batch["control"] = is_control
        batch["in_transaction"] = is_transactional and not is_control
        batch["marker"] = NO_MARKER
        batch["outcome"] = NO_OUTCOME
        batch["known"] = not unreadable[index]
        batch["first_record"] = contents[index, FIRST_RECORD]
        batch["last_record"] = contents[index, LAST_RECORD]
        batch["largest_ms"] = max(contents[index, LARGEST_TIMESTAMP], -1)
        batch["descending"] = contents[index, DESCENDING] != 0
        batch["null_value"] = contents[index, NULL_VALUE] != 0
        count += 1
    return count


@kernel
def hash_keys(records: Int64s, count: int, seed: int, secrets: Flags) -> None:
    for at in range(count):
        if records[at, KEY_BYTES] >= 0:
            low, high = hash_key(records[at, KEY_START], records[at, KEY_BYTES], np.uint64(seed), secrets.ctypes.data)
            records[at, HASH_LOW] = np.int64(low)
            records[at, HASH_HIGH] = np.int64(high)


# ----------------------------------------------------------------------------------------------------------- comparison
@kernel
def _equal_fields(one: Int64s, i: int, other: Int64s, j: int, start: int, count: int) -> bool:
    """Return True if two fields are both null or have the same bytes; `start` and `count` are their columns."""
    size_bytes = one[i, count]
    if size_bytes != other[j, count]:
        return False
    return size_bytes <= 0 or equal_bytes(one[i, start], other[j, start], size_bytes)


@kernel
def equal_headers(one: int, other: int) -> bool:
    """Return True if the headers at two addresses are equal; 0 means no headers, and the bounds are already checked."""
    count = 0
    other_count = 0
    if one > 0:
        count, one = read_varint(one)
    if other > 0:
        other_count, other = read_varint(other)
    if count != other_count:
        return False
    for _ in range(2 * count):
        size_bytes, one = read_varint(one)
        other_bytes, other = read_varint(other)
        if max(size_bytes, -1) != max(other_bytes, -1):
            return False
        if size_bytes > 0:
            if not equal_bytes(one, other, size_bytes):
                return False
            one += size_bytes
            other += size_bytes
    return True


@kernel
def _sequence(batch: np.void, offset: int) -> int:
    base_sequence = np.int64(batch["base_sequence"])
    if base_sequence < 0:
        return NO_SEQUENCE
    return (base_sequence + offset - batch["base"]) & INT32_MAX


@kernel
def _equal_producers(one: np.void, other: np.void, offset: int) -> bool:
    return (
        one["producer_id"] == other["producer_id"]
        and one["producer_epoch"] == other["producer_epoch"]
        and one["leader_epoch"] == other["leader_epoch"]
        and one["transactional"] == other["transactional"]
        and one["timestamp_type"] == other["timestamp_type"]
        and _sequence(one, offset) == _sequence(other, offset)
    )


@kernel
def _note(difference: int, offset: int, horizon_ms: int, differences: Differences) -> None:
    number = differences.counts[difference]
    if number < differences.first.shape[1]:
        differences.first[difference, number, 0] = offset
        differences.first[difference, number, 1] = horizon_ms
    differences.counts[difference] = number + 1


@kernel
def _compare(before: RecordBlock, after: RecordBlock, step: Step, differences: Differences) -> bool:
    """Record every field in which a record differs that both logs have; return True for equal values."""
    one, i, other, j = before.records, step.i, after.records, step.j
    same_value = _equal_fields(one, i, other, j, VALUE_START, VALUE_BYTES)
    if not same_value or (step.is_control and not _equal_fields(one, i, other, j, KEY_START, KEY_BYTES)):
        _note(OTHER_VALUE, step.offset, 0, differences)
    if not equal_headers(one[i, HEADERS_START], other[j, HEADERS_START]):
        _note(OTHER_HEADERS, step.offset, 0, differences)
    if one[i, TIMESTAMP] != other[j, TIMESTAMP]:
        _note(OTHER_TIMESTAMP, step.offset, 0, differences)
    b, a = before.batches[one[i, BATCH_INDEX]], after.batches[other[j, BATCH_INDEX]]
    if not _equal_producers(b, a, step.offset):
        _note(OTHER_PRODUCER, step.offset, 0, differences)
    return same_value


@kernel
def _same_identity(before: Int64s, i: int, after: Int64s, j: int, b_flags: int, a_flags: int) -> bool:
    """Return True if two records at the same offset are the same: both control records, or data with the same key."""
    if (b_flags & CONTROL) != (a_flags & CONTROL):
        return False
    return b_flags & CONTROL != 0 or _equal_fields(before, i, after, j, KEY_START, KEY_BYTES)


@kernel
def _is_other_copy(before: Int64s, i: int) -> bool:
    """Return True if an earlier record of BEFORE has the same offset and the same key."""
    # A leader may have written offsets twice (KAFKA-19407).  A record does not supersede another one at its own offset.
    for at in range(i - 1, max(i - 1 - _MOST_COPIES, -1), -1):
        if before[at, OFFSET] != before[i, OFFSET]:
            return False
        if before[at, HASH_LOW] == before[i, HASH_LOW] and before[at, HASH_HIGH] == before[i, HASH_HIGH]:
            return True
    return False


# ---------------------------------------------------------------------------------------------------------------- table
@kernel
def find_key(table: Int64s, low: int, high: int) -> int:
    """Return the slot of a key, or the empty slot for a missing key; the number of slots must be a power of two."""
    mask = len(table) - 1
    slot = low & mask
    while table[slot, WORD] != 0:
        if table[slot, LOW] == low and table[slot, HIGH] == high:
            return slot
        slot = (slot + 1) & mask
    return slot


@kernel
def move_keys(table: Int64s, target: Int64s) -> None:
    for at in range(len(table)):
        if table[at, WORD] != 0:
            slot = find_key(target, table[at, LOW], table[at, HIGH])
            target[slot, LOW] = table[at, LOW]
            target[slot, HIGH] = table[at, HIGH]
            target[slot, WORD] = table[at, WORD]


@kernel
def _part_of(high: int) -> int:
    return (high >> 32) & (PARTS - 1)


@kernel
def is_view_wrong(word: int) -> bool:
    """Return True if the latest records in the committed view differ; for the other view, the caller shifts `word`."""
    has_before = word & COMMITTED_BEFORE
    if word & COMMITTED_AFTER:
        return has_before == 0 or word & COMMITTED_SAME == 0
    return has_before != 0 and word & COMMITTED_TOMBSTONE == 0


@inlined_kernel
def _is_key_wrong(word: int) -> bool:
    return is_view_wrong(word) or is_view_wrong(word >> UNCOMMITTED_SHIFT) or word & (LOST | WAS_SUPERSEDED) != 0


@kernel
def count_wrong_keys(table: Int64s, counts: Int64s) -> None:
    """Count separately the keys with a wrong committed view, a wrong full view, a lost record, and a lost tombstone."""
    for at in range(len(table)):
        word = table[at, WORD]
        if is_view_wrong(word):
            counts[0] += 1
        if is_view_wrong(word >> UNCOMMITTED_SHIFT):
            counts[1] += 1
        if word & LOST:
            counts[3 if word & LOST_IS_TOMBSTONE else 2] += 1


@kernel
def _with_view(word: int, shift: int, facts: int, same_value: bool, is_tombstone: bool) -> int:
    """Return a key's word after a record; the two lowest bits of `facts` say whether the logs have it in this view."""
    view = word >> shift
    in_before, in_after = facts & IN_COMMITTED_BEFORE != 0, facts & IN_COMMITTED_AFTER != 0
    if in_before:
        view |= COMMITTED_BEFORE
        view = view | COMMITTED_TOMBSTONE if is_tombstone else view & ~COMMITTED_TOMBSTONE
    if in_after:
        view |= COMMITTED_AFTER
    if in_before or in_after:
        view = view | COMMITTED_SAME if in_before and in_after and same_value else view & ~COMMITTED_SAME
    return (word & ~(VIEW_BITS << shift)) | ((view & VIEW_BITS) << shift)


@kernel
def _joined_views(earlier: int, later: int, shift: int) -> int:
    """Return the bits of one view in the joined word of a key, at their place in the word."""
    one, other = earlier >> shift, later >> shift
    view = (one | other) & (COMMITTED_BEFORE | COMMITTED_AFTER)
    view |= (other if other & COMMITTED_BEFORE else one) & COMMITTED_TOMBSTONE
    view |= (other if other & (COMMITTED_BEFORE | COMMITTED_AFTER) else one) & COMMITTED_SAME
    return view << shift


@kernel
def join_keys(earlier: Int64s, later: Int64s, first: int, state: Int64s) -> tuple[int, int]:
    """Add the keys in later[first:] to `earlier`.

    `later` is the table of a range of offsets, and `earlier` is the table of the offsets below this range.

    USED and SUPERSEDED in `state` belong to `earlier`, and change as in a single pass over both ranges.

    Returns:
        (status, slot): OK at the end of `later`, or NEEDS_MAP_ROOM with the first slot that was not added.
    """
    most_keys = len(earlier) // 4 * 3
    for at in range(first, len(later)):
        new = later[at, WORD]
        if new == 0:
            continue
        if state[USED] >= most_keys:
            return NEEDS_MAP_ROOM, at
        slot = find_key(earlier, later[at, LOW], later[at, HIGH])
        old = earlier[slot, WORD]
        if old == 0:
            earlier[slot, LOW] = later[at, LOW]
            earlier[slot, HIGH] = later[at, HIGH]
            earlier[slot, WORD] = new
            state[USED] += 1
            continue
        if new & HAS_MAPPED:
            old &= ~(LOST | LOST_IS_TOMBSTONE)
        if new & HAS_SUPERSEDER and old >= LEFT_ONE:
            state[SUPERSEDED] += old // LEFT_ONE
            old = (old & (LEFT_ONE - 1)) | WAS_SUPERSEDED
        views = VIEW_BITS | VIEW_BITS << UNCOMMITTED_SHIFT
        word = _joined_views(old, new, 0) | _joined_views(old, new, UNCOMMITTED_SHIFT)
        word |= (old | (new & (LEFT_ONE - 1))) & ~views
        earlier[slot, WORD] = word + new // LEFT_ONE * LEFT_ONE
    return OK, len(later)


# ----------------------------------------------------------------------------------------------------------------- pass
@kernel
def merge_records(
    before: RecordBlock,
    after: RecordBlock,
    table: Int64s,
    secrets: Flags,
    parameters: Int64s,
    differences: Differences,
    events: Int64s,
    state: Int64s,
) -> int:
    """Compare both blocks, starting at the indexes AT_BEFORE and AT_AFTER.

    Returns NEEDS_BEFORE or NEEDS_AFTER at the end of a block.  Returns NEEDS_MAP_ROOM or NEEDS_EVENT_ROOM before a
    record that does not fit.  Returns DONE at the end of both logs.
    """
    is_tracing = parameters[IS_TRACING] != 0
    compares_keyless = parameters[FIRST_PART] == 0 and not is_tracing
    while True:
        status = _request(table, events, is_tracing, state)
        if status != OK:
            return status
        step = _next_step(before, after, secrets, parameters, state)
        if step.in_before:
            _prefetch_ahead(before, table, state)
        if not step.is_keyed:
            if compares_keyless:
                _merge_keyless(before, after, step, parameters, differences, state)
        elif parameters[FIRST_PART] <= _part_of(step.high) < parameters[END_PART]:
            slot = find_key(table, step.low, step.high)
            word = table[slot, WORD]
            facts = _facts_of(before, step, parameters)
            if is_tracing:
                if _is_key_wrong(word):
                    _add_event(before, step, slot, facts, events, state)
            else:
                if word == 0:
                    word = _add_key(table, slot, step, state)
                if step.is_mapped and not _is_other_copy(before.records, step.i):
                    word = _supersede(word, step.offset >= parameters[DIRTY], state)
                table[slot, WORD] = _merge_keyed(before, after, step, word, facts, differences, state)
        state[AT_BEFORE] += step.in_before
        state[AT_AFTER] += step.in_after


@inlined_kernel
def _request(table: Int64s, events: Int64s, is_tracing: bool, state: Int64s) -> int:
    """Return OK if the next step can be made, or else what it needs, or DONE."""
    has_before, has_after = state[AT_BEFORE] < state[COUNT_BEFORE], state[AT_AFTER] < state[COUNT_AFTER]
    if not has_before and state[BEFORE_ENDED] == 0:
        return NEEDS_BEFORE
    if not has_after and state[AFTER_ENDED] == 0:
        return NEEDS_AFTER
    if not has_before and not has_after:
        return DONE
    if state[USED] >= len(table) // 4 * 3:
        return NEEDS_MAP_ROOM
    if is_tracing and state[EVENTS] >= len(events):
        return NEEDS_EVENT_ROOM
    return OK


@inlined_kernel
def _next_step(before: RecordBlock, after: RecordBlock, secrets: Flags, parameters: Int64s, state: Int64s) -> Step:
    """Return the next step; at least one of the blocks has a record left."""
    i, j = state[AT_BEFORE], state[AT_AFTER]
    has_before, has_after = i < state[COUNT_BEFORE], j < state[COUNT_AFTER]
    one, other = before.records, after.records
    before_flags = np.int64(before.flags[one[i, BATCH_INDEX]]) if has_before else 0
    after_flags = np.int64(after.flags[other[j, BATCH_INDEX]]) if has_after else 0
    in_before = has_before and (not has_after or one[i, OFFSET] <= other[j, OFFSET])
    in_after = has_after and (not has_before or other[j, OFFSET] <= one[i, OFFSET])
    if in_before and in_after and not _same_identity(one, i, other, j, before_flags, after_flags):
        in_after = False
    low, high = np.int64(0), np.int64(0)
    if in_before:
        offset = one[i, OFFSET]
        is_control = before_flags & CONTROL != 0
        is_keyed = not is_control and one[i, KEY_BYTES] >= 0
        if is_keyed:
            low, high = one[i, HASH_LOW], one[i, HASH_HIGH]
    else:
        offset = other[j, OFFSET]
        is_control = after_flags & CONTROL != 0
        is_keyed = not is_control and other[j, KEY_BYTES] >= 0
        if is_keyed:
            hash_low, hash_high = hash_key(
                other[j, KEY_START], other[j, KEY_BYTES], np.uint64(parameters[SEED]), secrets.ctypes.data
            )
            low, high = np.int64(hash_low), np.int64(hash_high)
    is_aborted = in_before and before_flags & ABORTED != 0
    is_mapped = in_before and not is_aborted and offset < parameters[LIMIT]
    return Step(
        i,
        j,
        offset,
        in_before,
        in_after,
        before_flags,
        after_flags,
        is_control,
        is_keyed,
        is_aborted,
        is_mapped,
        low,
        high,
    )


@inlined_kernel
def _prefetch_ahead(before: RecordBlock, table: Int64s, state: Int64s) -> None:
    ahead = state[AT_BEFORE] + _RECORDS_AHEAD
    if ahead < state[COUNT_BEFORE]:
        slot = before.records[ahead, HASH_LOW] & (len(table) - 1)
        prefetch(table.ctypes.data + slot * (8 * SLOT_FIELDS))


@inlined_kernel
def _merge_keyless(
    before: RecordBlock,
    after: RecordBlock,
    step: Step,
    parameters: Int64s,
    differences: Differences,
    state: Int64s,
) -> None:
    """Record the differences of a control record or a record without a key."""
    if not step.in_before:
        _note(REPEATED if _is_repeated(step, state) else NEW_KEYLESS, step.offset, 0, differences)
    elif step.in_after:
        _compare(before, after, step, differences)
        if step.is_mapped and parameters[IS_CHECKED] != 0 and not step.is_control:
            _note(LEFT_KEYLESS, step.offset, 0, differences)
        state[MET_OFFSET] = step.offset
        state[MET_HASH] = step.low
    elif not step.is_control and step.offset >= parameters[LIMIT] and _is_live(step, parameters):
        is_tombstone = before.records[step.i, VALUE_BYTES] < 0
        horizon_ms = _horizon_ms(before, step)
        _note(LOST_TOMBSTONE if is_tombstone else LOST_KEYLESS, step.offset, horizon_ms, differences)


@inlined_kernel
def _is_repeated(step: Step, state: Int64s) -> bool:
    """Return True if the last record that both logs have is the same as this record, which is only in AFTER."""
    return state[MET_OFFSET] == step.offset and state[MET_HASH] == step.low


@inlined_kernel
def _is_live(step: Step, parameters: Int64s) -> bool:
    """Return False for a record that the cleaning may have removed because its transaction was aborted."""
    return not (step.is_aborted and step.offset < parameters[END])


@inlined_kernel
def _horizon_ms(before: RecordBlock, step: Step) -> int:
    return before.batches[before.records[step.i, BATCH_INDEX]]["horizon_ms"]


@inlined_kernel
def _facts_of(before: RecordBlock, step: Step, parameters: Int64s) -> int:
    """Return which logs and views have a keyed record, and what its presence means, in the bits of EVENT_FACTS."""
    facts = 0
    if step.in_before and not step.is_aborted:
        facts |= IN_ALL_BEFORE
        if step.offset < parameters[STABLE_BEFORE]:
            facts |= IN_COMMITTED_BEFORE
    if step.in_after:
        if step.after_flags & ABORTED == 0 and step.offset < parameters[STABLE_AFTER]:
            facts |= IN_COMMITTED_AFTER
        if not step.is_aborted or (step.offset < parameters[END] and parameters[IS_CLAIMED] != 0):
            facts |= IN_ALL_AFTER
    if step.in_before and before.records[step.i, VALUE_BYTES] < 0:
        facts |= IS_TOMBSTONE
    if step.is_mapped:
        facts |= IS_MAPPED
        if step.in_after and parameters[IS_CHECKED] != 0:
            facts |= IS_LEFT
    if step.in_before and not step.in_after and _is_live(step, parameters):
        removable_end = min(parameters[REMOVABLE_END], parameters[LIMIT])
        may_go = step.before_flags & TOMBSTONES_MAY_GO != 0 and step.offset < removable_end
        if not (facts & IS_TOMBSTONE and may_go):
            facts |= IS_LOST if step.is_mapped else IS_LOST_ABOVE
    return facts


@inlined_kernel
def _add_event(before: RecordBlock, step: Step, slot: int, facts: int, events: Int64s, state: Int64s) -> None:
    at = state[EVENTS]
    events[at, EVENT_SLOT] = slot
    events[at, EVENT_OFFSET] = step.offset
    events[at, EVENT_FACTS] = facts
    events[at, EVENT_HORIZON] = _horizon_ms(before, step) if step.in_before else NO_HORIZON
    state[EVENTS] = at + 1


@inlined_kernel
def _add_key(table: Int64s, slot: int, step: Step, state: Int64s) -> int:
    """Fill an empty slot; return the word of a key without a record."""
    table[slot, LOW] = step.low
    table[slot, HIGH] = step.high
    state[USED] += 1
    return PRESENT


@inlined_kernel
def _supersede(word: int, is_dirty: bool, state: Int64s) -> int:
    """Return a key's word after a mapped record, which is the reason for all that is missing before it."""
    word = (word & ~(LOST | LOST_IS_TOMBSTONE)) | HAS_MAPPED
    if is_dirty:
        word |= HAS_SUPERSEDER
        if word >= LEFT_ONE:
            state[SUPERSEDED] += word // LEFT_ONE
            word = (word & (LEFT_ONE - 1)) | WAS_SUPERSEDED
    return word


@inlined_kernel
def _merge_keyed(
    before: RecordBlock,
    after: RecordBlock,
    step: Step,
    word: int,
    facts: int,
    differences: Differences,
    state: Int64s,
) -> int:
    """Record the differences of a keyed record, and return its key's word after the record."""
    is_tombstone = facts & IS_TOMBSTONE != 0
    same_value = False
    if step.in_before and step.in_after:
        same_value = _compare(before, after, step, differences)
        if facts & IS_LEFT:
            word += LEFT_ONE
        state[MET_OFFSET] = step.offset
        state[MET_HASH] = step.low
    elif facts & IS_LOST:
        word |= LOST | (LOST_IS_TOMBSTONE if is_tombstone else 0)
    elif facts & IS_LOST_ABOVE:
        _note(LOST_TOMBSTONE if is_tombstone else LOST_ABOVE, step.offset, _horizon_ms(before, step), differences)
    elif not step.in_before:
        _note(REPEATED if _is_repeated(step, state) else NEW_KEYED, step.offset, 0, differences)
    word = _with_view(word, 0, facts, same_value, is_tombstone)
    return _with_view(word, UNCOMMITTED_SHIFT, facts >> _ALL_SHIFT, same_value, is_tombstone)
