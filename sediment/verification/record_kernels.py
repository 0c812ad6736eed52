r"""Compiled loops that decode the records of two logs and compare the logs in offset order.

The records of BEFORE and AFTER are merged by offset and key.  The merge counts the differences of single records, and
keeps their first offsets.  For each key it also keeps a word, which is described below.

Because offsets ascend, one 64-bit integer for each key (its word) is enough:

* for each view, whether both logs have the same latest record;
* whether the latest missing record still needs a later record of the same key as its reason;
* the number of kept records that a later record of the dirty section would supersede.

A word contains no offsets.  If the words of some keys show a difference, a second pass follows these keys and produces
events.

Invariants: offsets ascend in both inputs.  A kernel allocates nothing and returns a status.  Keys are compared by 128
bits of a hash with the run's seed; values, headers and keys at the same offset are compared byte by byte.

Source: kafka-log 02 §6, §7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import equal_bytes, load_u32, prefetch
from sediment.segment_io.compiled.status import (
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
IS_TOMBSTONE = 16
IS_MAPPED = 32
IS_LEFT = 64
IS_LOST = 128


# ------------------------------------------------------------------------------------------------------------- decoding
@kernel
def decode_batches(
    base: int,
    shift: int,
    rows: Rows,
    first: int,
    skip: npt.NDArray[np.bool_],
    records: Int64s,
    filled: int,
    counts: Int64s,
    contents: Int64s,
) -> tuple[int, int, int]:
    """Decode rows[first:] into `records`, starting at index `filled`.

    A file position plus `shift` is a position in the buffer.  The function also fills `counts`, int64[rows], and
    `contents`, int64[rows, CONTENT_FIELDS].

    Returns:
        (status, batch, records filled): OK with the number of batches, or else a request or error status with the index
        of the batch that caused it.
    """
    for index in range(first, rows.size):
        counts[index] = 0
        if skip[index]:
            continue
        row = rows[index]
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
    return OK, rows.size, filled


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
    """Set the key hashes of the first `count` records."""
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
def _note(difference: int, offset: int, horizon_ms: int, found: Int64s, first: Int64s) -> None:
    """Count a difference; `first` is int64[DIFFERENCES, shown, 2] with offset and delete horizon."""
    if found[difference] < first.shape[1]:
        first[difference, found[difference], 0] = offset
        first[difference, found[difference], 1] = horizon_ms
    found[difference] += 1


@kernel
def _compare(
    before: Int64s,
    i: int,
    b: np.void,
    after: Int64s,
    j: int,
    a: np.void,
    is_control: bool,
    found: Int64s,
    first: Int64s,
) -> bool:
    """Record every field in which two records with equal offset and key differ; return True for equal values."""
    offset = before[i, OFFSET]
    same_value = _equal_fields(before, i, after, j, VALUE_START, VALUE_BYTES)
    if not same_value or (is_control and not _equal_fields(before, i, after, j, KEY_START, KEY_BYTES)):
        _note(OTHER_VALUE, offset, 0, found, first)
    if not equal_headers(before[i, HEADERS_START], after[j, HEADERS_START]):
        _note(OTHER_HEADERS, offset, 0, found, first)
    if before[i, TIMESTAMP] != after[j, TIMESTAMP]:
        _note(OTHER_TIMESTAMP, offset, 0, found, first)
    if not _equal_producers(b, a, offset):
        _note(OTHER_PRODUCER, offset, 0, found, first)
    return same_value


@kernel
def _same_identity(before: Int64s, i: int, after: Int64s, j: int, b_flags: int, a_flags: int) -> bool:
    """Return True if two records at the same offset are the same: both control records, or data with the same key."""
    if (b_flags & CONTROL) != (a_flags & CONTROL):
        return False
    return b_flags & CONTROL != 0 or _equal_fields(before, i, after, j, KEY_START, KEY_BYTES)


@kernel
def _is_other_copy(before: Int64s, i: int) -> bool:
    """Return True if an earlier record of BEFORE has the same offset and the same key.

    A leader may have written offsets twice (KAFKA-19407).  A record does not supersede another one at its own offset.
    """
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
    """Copy all keys to an empty, larger table."""
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
def _with_view(word: int, shift: int, in_before: bool, in_after: bool, same_value: bool, is_tombstone: bool) -> int:
    """Return a key's word after a record; `in_before` means that BEFORE's view has it, `in_after` that AFTER's does."""
    view = word >> shift
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
    before: Int64s,
    b_batches: Rows,
    b_flags: Flags,
    after: Int64s,
    a_batches: Rows,
    a_flags: Flags,
    table: Int64s,
    secrets: Flags,
    parameters: Int64s,
    found: Int64s,
    first: Int64s,
    events: Int64s,
    state: Int64s,
) -> int:
    """Compare both blocks, starting at the indexes AT_BEFORE and AT_AFTER; the batches are rows of `rules.BATCH`.

    Returns NEEDS_BEFORE or NEEDS_AFTER at the end of a block.  Returns NEEDS_MAP_ROOM or NEEDS_EVENT_ROOM before a
    record that does not fit.  Returns OK at the end of both logs.
    """
    limit, end, dirty = parameters[LIMIT], parameters[END], parameters[DIRTY]
    stable_before, stable_after = parameters[STABLE_BEFORE], parameters[STABLE_AFTER]
    is_claimed, is_checked = parameters[IS_CLAIMED] != 0, parameters[IS_CHECKED] != 0
    first_part, end_part = parameters[FIRST_PART], parameters[END_PART]
    is_tracing = parameters[IS_TRACING] != 0
    is_first_walk = first_part == 0 and not is_tracing
    removable_end = min(parameters[REMOVABLE_END], limit)
    most_keys = len(table) // 4 * 3
    mask = len(table) - 1
    i, j = state[AT_BEFORE], state[AT_AFTER]
    count_before, count_after = state[COUNT_BEFORE], state[COUNT_AFTER]
    status = OK
    while True:
        has_before = i < count_before
        has_after = j < count_after
        if not has_before and state[BEFORE_ENDED] == 0:
            status = NEEDS_BEFORE
            break
        if not has_after and state[AFTER_ENDED] == 0:
            status = NEEDS_AFTER
            break
        if not has_before and not has_after:
            break
        if state[USED] >= most_keys:
            status = NEEDS_MAP_ROOM
            break
        if is_tracing and state[EVENTS] >= len(events):
            status = NEEDS_EVENT_ROOM
            break
        b_flag = np.int64(b_flags[before[i, BATCH_INDEX]]) if has_before else 0
        a_flag = np.int64(a_flags[after[j, BATCH_INDEX]]) if has_after else 0
        in_before = has_before and (not has_after or before[i, OFFSET] <= after[j, OFFSET])
        in_after = has_after and (not has_before or after[j, OFFSET] <= before[i, OFFSET])
        if in_before and in_after and not _same_identity(before, i, after, j, b_flag, a_flag):
            in_after = False
        if in_before:
            offset = before[i, OFFSET]
            is_control = b_flag & CONTROL != 0
            is_keyed = not is_control and before[i, KEY_BYTES] >= 0
            low, high = before[i, HASH_LOW], before[i, HASH_HIGH]
            if i + 8 < count_before:
                prefetch(table.ctypes.data + (before[i + 8, HASH_LOW] & mask) * 24)
        else:
            offset = after[j, OFFSET]
            is_control = a_flag & CONTROL != 0
            is_keyed = not is_control and after[j, KEY_BYTES] >= 0
            low, high = np.int64(0), np.int64(0)
            if is_keyed:
                hash_low, hash_high = hash_key(
                    after[j, KEY_START], after[j, KEY_BYTES], np.uint64(parameters[SEED]), secrets.ctypes.data
                )
                low, high = np.int64(hash_low), np.int64(hash_high)
        b_aborted = in_before and b_flag & ABORTED != 0
        is_mapped = in_before and not b_aborted and offset < limit

        if not is_keyed:
            if is_first_walk:
                if not in_before:
                    difference = REPEATED if state[MET_OFFSET] == offset and state[MET_HASH] == low else NEW_KEYLESS
                    _note(difference, offset, 0, found, first)
                elif in_after:
                    _compare(
                        before,
                        i,
                        b_batches[before[i, BATCH_INDEX]],
                        after,
                        j,
                        a_batches[after[j, BATCH_INDEX]],
                        is_control,
                        found,
                        first,
                    )
                    if is_mapped and is_checked and not is_control:
                        _note(LEFT_KEYLESS, offset, 0, found, first)
                elif not is_control and offset >= limit and not (b_aborted and offset < end):
                    difference = LOST_TOMBSTONE if before[i, VALUE_BYTES] < 0 else LOST_KEYLESS
                    horizon = b_batches[before[i, BATCH_INDEX]]["horizon_ms"]
                    _note(difference, offset, horizon, found, first)
                if in_before and in_after:
                    state[MET_OFFSET] = offset
                    state[MET_HASH] = 0
        elif first_part <= _part_of(high) < end_part:
            slot = find_key(table, low, high)
            word = table[slot, WORD]
            is_tombstone = in_before and before[i, VALUE_BYTES] < 0
            may_go = is_tombstone and offset < removable_end and b_flag & TOMBSTONES_MAY_GO != 0
            is_live = not (b_aborted and offset < end)
            is_missing = in_before and not in_after and is_live and not may_go
            is_left = is_mapped and in_after and is_checked
            committed_before = in_before and not b_aborted and offset < stable_before
            committed_after = in_after and a_flag & ABORTED == 0 and offset < stable_after
            all_before = in_before and not b_aborted
            all_after = in_after and not (b_aborted and (offset >= end or not is_claimed))
            if is_tracing:
                is_wrong = (
                    is_view_wrong(word)
                    or is_view_wrong(word >> UNCOMMITTED_SHIFT)
                    or word & (LOST | WAS_SUPERSEDED) != 0
                )
                if is_wrong:
                    at = state[EVENTS]
                    events[at, EVENT_SLOT] = slot
                    events[at, EVENT_OFFSET] = offset
                    events[at, EVENT_FACTS] = (
                        (IN_COMMITTED_BEFORE if committed_before else 0)
                        | (IN_COMMITTED_AFTER if committed_after else 0)
                        | (IN_ALL_BEFORE if all_before else 0)
                        | (IN_ALL_AFTER if all_after else 0)
                        | (IS_TOMBSTONE if is_tombstone else 0)
                        | (IS_MAPPED if is_mapped else 0)
                        | (IS_LEFT if is_left else 0)
                        | (IS_LOST if is_missing and is_mapped else 0)
                    )
                    events[at, EVENT_HORIZON] = b_batches[before[i, BATCH_INDEX]]["horizon_ms"] if in_before else -1
                    state[EVENTS] = at + 1
            else:
                if word == 0:
                    table[slot, LOW] = low
                    table[slot, HIGH] = high
                    word = PRESENT
                    state[USED] += 1
                if is_mapped and not _is_other_copy(before, i):
                    word = (word & ~(LOST | LOST_IS_TOMBSTONE)) | HAS_MAPPED
                    if offset >= dirty:
                        word |= HAS_SUPERSEDER
                        if word >= LEFT_ONE:
                            state[SUPERSEDED] += word // LEFT_ONE
                            word = (word & (LEFT_ONE - 1)) | WAS_SUPERSEDED
                same_value = False
                if in_before and in_after:
                    same_value = _compare(
                        before,
                        i,
                        b_batches[before[i, BATCH_INDEX]],
                        after,
                        j,
                        a_batches[after[j, BATCH_INDEX]],
                        False,
                        found,
                        first,
                    )
                    if is_left:
                        word += LEFT_ONE
                    state[MET_OFFSET] = offset
                    state[MET_HASH] = low
                elif is_missing:
                    if is_mapped:
                        word |= LOST | (LOST_IS_TOMBSTONE if is_tombstone else 0)
                    else:
                        horizon = b_batches[before[i, BATCH_INDEX]]["horizon_ms"]
                        _note(LOST_TOMBSTONE if is_tombstone else LOST_ABOVE, offset, horizon, found, first)
                elif not in_before:
                    difference = REPEATED if state[MET_OFFSET] == offset and state[MET_HASH] == low else NEW_KEYED
                    _note(difference, offset, 0, found, first)
                word = _with_view(word, 0, committed_before, committed_after, same_value, is_tombstone)
                word = _with_view(word, UNCOMMITTED_SHIFT, all_before, all_after, same_value, is_tombstone)
                table[slot, WORD] = word
        if in_before:
            i += 1
        if in_after:
            j += 1
    state[AT_BEFORE], state[AT_AFTER] = i, j
    return status
