"""Compiled loops that validate an append: they verify batches, check records, and set broker fields in batches.

`stamp_batch` sets offset and leader epoch, which no checksum covers.

Invariants: as in `batch_headers`, untrusted lengths are checked before they are used, and the result is a status.  The
caller owns the buffer, and PADDING_BYTES follow it.  Only `stamp_batch` changes the buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import brief_kernel, kernel
from sediment.segment_io.compiled.memory import load_i8, load_i16, load_i32, load_i64, store_i16, store_i32, store_i64
from sediment.segment_io.compiled.status import INCOMPLETE, LEGACY_MAGIC, OK, RECORDS_REMAIN, ROWS_FULL
from sediment.segment_io.format.batch_headers import read_headers
from sediment.segment_io.format.checksum import check_crc, crc32c
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    CRC,
    INT64_MAX,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_TIMESTAMP,
    MIN_RECORD_BYTES,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.record_decoder import (
    KEY_BYTES,
    OFFSET_DELTA,
    TIMESTAMP_DELTA,
    decode_next_records,
    decode_records,
)
from sediment.segment_io.segment.recovery_scan import verified_batch_at

NO_EPOCH_LIMIT = -2

# ---------------------------------------------------------------- the result for one record, and the reasons of errors
RECORD_IS_GOOD = 0
KEY_IS_MISSING = 1
TIMESTAMP_IS_OUT_OF_RANGE = 2
TIMESTAMP_TYPE_IS_WRONG = 3
MAGIC_IS_MIXED = 4

# --------------------------------------------------------------------------- bad records, int64[n, RECORD_ERROR_FIELDS]
ERROR_INDEX = 0  # of the record in its batch
ERROR_REASON = 1
RECORD_ERROR_FIELDS = 2

RecordErrors = npt.NDArray[np.int64]

# ------------------------------------------------------- rules of a topic for plain batches, int64[PLAIN_RULE_FIELDS]
NEEDS_KEY = 0  # 1 if each record needs a key
BEFORE_MAX_MS = 1  # message.timestamp.before.max.ms
AFTER_MAX_MS = 2  # message.timestamp.after.max.ms
PLAIN_RULE_FIELDS = 3

PlainRules = npt.NDArray[np.int64]


class RecordRules(NamedTuple):
    """The rules of a topic for the records of one batch.

    A timestamp is valid if it is -1 or within [earliest_ms, latest_ms].  `is_append_time` is True for a batch of type
    LogAppendTime.
    """

    needs_key: bool
    checks_create_time: bool
    is_append_time: bool
    earliest_ms: int
    latest_ms: int


NOT_PLAIN_BITS = CODEC_MASK | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


@kernel
def read_verified(base: int, end: int, epoch_limit: int, rows: npt.NDArray[np.void]) -> tuple[int, int, int, int]:
    """Fill `rows`, BATCH_ROW[n], with the headers of the complete batches in [0, end), and verify their checksums.

    With an `epoch_limit`, stop before the first batch with a higher leader epoch.

    Returns:
        (status, number of rows, position after the last row's batch, size of the batch at that position or 0).  The
        status is INCOMPLETE at the end, and ROWS_FULL if `rows` is full.  Any other status is the fault of the batch
        at that position.
    """
    filled = 0
    position = 0
    while True:
        if filled == rows.size:
            return ROWS_FULL, filled, position, 0
        status, size_bytes = verified_batch_at(base, position, end)
        if status not in (OK, LEGACY_MAGIC):
            return status, filled, position, size_bytes
        if epoch_limit != NO_EPOCH_LIMIT and status == OK and load_i32(base + position + LEADER_EPOCH) > epoch_limit:
            return INCOMPLETE, filled, position, 0
        status, count, _, _ = read_headers(base, position, position + size_bytes, 0, rows[filled : filled + 1])
        if count == 0:
            return status, filled, position, size_bytes
        filled += 1
        position += size_bytes


@kernel
def time_range(now_ms: int, before_max_ms: int, after_max_ms: int) -> tuple[int, int]:
    """Return the earliest and the latest CreateTime that a topic accepts at `now_ms`, which is not negative."""
    return now_ms - before_max_ms, now_ms + after_max_ms if after_max_ms < INT64_MAX - now_ms else INT64_MAX


@kernel
def check_records(
    records: npt.NDArray[np.int64],
    count: int,
    first: int,
    base_timestamp: int,
    rules: RecordRules,
    errors: RecordErrors,
) -> tuple[int, int, int, bool]:
    """Check decoded records, of which the first has the index `first` in its batch, against the rules of a topic.

    `errors` receives the first bad records, as many as it has rows.

    Returns:
        (number of bad records, number of those with a bad timestamp, largest timestamp or -1, True if the offset deltas
        are `first`, `first` + 1 …).
    """
    bad = 0
    bad_timestamps = 0
    largest = -1
    consecutive = True
    for index in range(count):
        result = RECORD_IS_GOOD
        timestamp = base_timestamp + records[index, TIMESTAMP_DELTA]
        if rules.needs_key and records[index, KEY_BYTES] < 0:
            result = KEY_IS_MISSING
        elif rules.checks_create_time and timestamp != -1:
            if timestamp < rules.earliest_ms or timestamp > rules.latest_ms:
                result = TIMESTAMP_IS_OUT_OF_RANGE
        elif rules.is_append_time:
            result = TIMESTAMP_TYPE_IS_WRONG
        if result != RECORD_IS_GOOD:
            if bad < errors.shape[0]:
                errors[bad, ERROR_INDEX] = first + index
                errors[bad, ERROR_REASON] = result
            bad += 1
            bad_timestamps += result != KEY_IS_MISSING
        largest = max(largest, timestamp)
        consecutive = consecutive and records[index, OFFSET_DELTA] == first + index
    return bad, bad_timestamps, largest, consecutive


@kernel
def check_payload(
    base: int,
    size_bytes: int,
    count: int,
    base_timestamp: int,
    rules: RecordRules,
    records: npt.NDArray[np.int64],
    errors: RecordErrors,
) -> tuple[int, int, int, int, bool]:
    """Decode the `count` uncompressed records of [0, size_bytes), and check them as `check_records` does.

    Decode as many records at a time as `records` has rows, so that the memory does not depend on the count.  For a
    batch of type LogAppendTime, `base_timestamp` is the timestamp of every record.

    Returns:
        (status, and the results of `check_records` for all records).
    """
    position = 0
    done = 0
    bad = 0
    bad_timestamps = 0
    largest = -1
    consecutive = True
    while done < count:
        rows = min(records.shape[0], count - done)
        status, position = decode_next_records(base, position, size_bytes, rows, records)
        if status != OK:
            return status, 0, 0, 0, False
        if rules.is_append_time:
            for index in range(rows):
                records[index, TIMESTAMP_DELTA] = 0
        more, more_timestamps, newest, follow = check_records(
            records,
            rows,
            done,
            base_timestamp,
            rules,
            errors[min(bad, errors.shape[0]) :],
        )
        bad += more
        bad_timestamps += more_timestamps
        largest = max(largest, newest)
        consecutive = consecutive and follow
        done += rows
    if position != size_bytes:
        return RECORDS_REMAIN, 0, 0, 0, False
    return OK, bad, bad_timestamps, largest, consecutive


@kernel
def stamp_batch(
    address: int, size_bytes: int, base_offset: int, leader_epoch: int, is_append_time: bool, max_timestamp: int
) -> None:
    store_i64(address + BASE_OFFSET, base_offset)
    store_i32(address + LEADER_EPOCH, leader_epoch)
    before = load_i16(address + ATTRIBUTES)
    attributes = before | TIMESTAMP_TYPE_BIT if is_append_time else before & ~TIMESTAMP_TYPE_BIT
    if attributes != before or load_i64(address + MAX_TIMESTAMP) != max_timestamp:
        store_i16(address + ATTRIBUTES, attributes)
        store_i64(address + MAX_TIMESTAMP, max_timestamp)
        store_i32(address + CRC, crc32c(address + ATTRIBUTES, size_bytes - ATTRIBUTES))


@kernel
def check_plain_batch(
    base: int,
    size_bytes: int,
    now_ms: int,
    rules: PlainRules,
    records: npt.NDArray[np.int64],
    errors: RecordErrors,
) -> tuple[int, int, int, int, int]:
    """Run all checks of a client's append, if it is one plain batch that needs no new checksum.

    A plain batch has magic 2, CreateTime and the correct checksum.  It is neither compressed nor in a transaction.  Its
    records pass `check_records` at `now_ms`, for the topic that `rules` describes.  The offsets of the records are
    consecutive, and their largest timestamp equals that of the header.

    Returns:
        (number of records, largest timestamp, producer id, producer epoch, base sequence).  The number is 0 if the
        append is not one plain batch, or if `records` has fewer rows than the batch has records.
    """
    if size_bytes < BATCH_HEADER_BYTES or load_i32(base + BATCH_LENGTH) != size_bytes - LOG_OVERHEAD_BYTES:
        return 0, 0, 0, 0, 0
    attributes = load_i16(base + ATTRIBUTES)
    if load_i8(base + MAGIC) != 2 or load_i64(base + BASE_OFFSET) != 0 or attributes & NOT_PLAIN_BITS:
        return 0, 0, 0, 0, 0
    count = load_i32(base + RECORD_COUNT)
    if count <= 0 or count > records.shape[0] or load_i32(base + LAST_OFFSET_DELTA) != count - 1:
        return 0, 0, 0, 0, 0
    producer_id = load_i64(base + PRODUCER_ID)
    sequence = load_i32(base + BASE_SEQUENCE)
    if (
        producer_id < -1
        or (producer_id >= 0 and sequence < 0)
        or count * MIN_RECORD_BYTES > size_bytes - BATCH_HEADER_BYTES
    ):
        return 0, 0, 0, 0, 0
    if check_crc(base, size_bytes) != OK:
        return 0, 0, 0, 0, 0
    if decode_records(base, BATCH_HEADER_BYTES, size_bytes, count, records) != OK:
        return 0, 0, 0, 0, 0
    earliest_ms, latest_ms = time_range(now_ms, rules[BEFORE_MAX_MS], rules[AFTER_MAX_MS])
    record_rules = RecordRules(rules[NEEDS_KEY] != 0, True, False, earliest_ms, latest_ms)
    bad, _, largest, consecutive = check_records(
        records, count, 0, load_i64(base + BASE_TIMESTAMP), record_rules, errors
    )
    if bad or not consecutive or largest != load_i64(base + MAX_TIMESTAMP):
        return 0, 0, 0, 0, 0
    return count, largest, producer_id, load_i16(base + PRODUCER_EPOCH), sequence


@brief_kernel
def check_short_plain_batch(
    base: int,
    size_bytes: int,
    now_ms: int,
    rules: PlainRules,
    records: npt.NDArray[np.int64],
    errors: RecordErrors,
) -> tuple[int, int, int, int, int]:
    return check_plain_batch(base, size_bytes, now_ms, rules, records, errors)
