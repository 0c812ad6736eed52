"""Compiled loops for a run: several requests of one connection, each with one plain batch for the same partition.

    repeated_requests    find the requests in the received bytes, and compare them with the kept request
    check_plain_run      check the batches, and copy them one after the other
    place_plain_run      set the offsets of the copied batches, and append their index entries

Each request has a row in int64[n, RUN_FIELDS].

Invariants: as in `append_check_kernels`.  Every size is checked before it is used, and the received bytes do not
change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import brief_kernel, kernel
from sediment.segment_io.compiled.memory import copy_bytes, load_i32, load_u8, store_i32, store_i64
from sediment.segment_io.format.index_appends import IndexEntries, Int64s, add_batch, start_entry_arrays
from sediment.segment_io.format.layout import BASE_OFFSET, BATCH_HEADER_BYTES, LEADER_EPOCH
from sediment.segment_io.segment.append_check_kernels import PlainRules, RecordErrors, check_plain_batch

RUN_CORRELATION = 0  # correlation id
RUN_END = 1  # position after the request in the received bytes
RUN_BATCH = 2  # position of the batch in the received bytes
RUN_BATCH_BYTES = 3
RUN_RECORDS = 4
RUN_TIMESTAMP = 5  # the largest timestamp of the batch
RUN_PRODUCER_ID = 6
RUN_PRODUCER_EPOCH = 7
RUN_SEQUENCE = 8
RUN_FIELDS = 9

MOST_IN_RUN = 256
"""The largest number of requests that are answered together; other connections wait until these are answered."""

RunRows = npt.NDArray[np.int64]

_SIZE_BYTES = 4
_CORRELATION_START = 4
_CORRELATION_END = 8
_MAX_VARINT_BYTES = 4  # for fewer than 2^28 bytes


@brief_kernel
def repeated_requests(
    base: int,
    end: int,
    largest_bytes: int,
    kept: npt.NDArray[np.uint8],
    is_flexible: bool,
    end_bytes: int,
    rows: RunRows,
) -> int:
    """Find the complete requests that repeat the kept request, at the start of the received bytes [0, end).

    `kept`, uint8[n], is the start of the kept request, up to the size of its records; correlation ids are not compared.
    A request ends with `end_bytes` zeros.  A request of more than `largest_bytes` ends the search.

    Returns:
        The number of requests found; `rows` receives their correlation ids, ends and batches.
    """
    found = 0
    position = 0
    while found < rows.shape[0] and end - position >= _SIZE_BYTES:
        size_bytes = load_i32(base + position)
        start = position + _SIZE_BYTES
        if size_bytes > largest_bytes or size_bytes > end - start:
            return found
        if size_bytes < kept.size + _MAX_VARINT_BYTES + end_bytes:
            return found
        for index in range(kept.size):
            is_correlation = _CORRELATION_START <= index < _CORRELATION_END
            if not is_correlation and load_u8(base + start + index) != kept[index]:
                return found
        request_end = start + size_bytes
        batch = start + kept.size
        batch_bytes = 0
        if is_flexible:
            shift = 0
            byte = 128
            while byte >= 128 and shift < 7 * _MAX_VARINT_BYTES:
                byte = load_u8(base + batch)
                batch_bytes |= (byte & 127) << shift
                shift += 7
                batch += 1
            if byte >= 128:
                return found
            batch_bytes -= 1
        else:
            batch_bytes = load_i32(base + batch)
            batch += 4
        if batch_bytes < 0 or batch + batch_bytes + end_bytes != request_end:
            return found
        for index in range(request_end - end_bytes, request_end):
            if load_u8(base + index) != 0:
                return found
        rows[found, RUN_CORRELATION] = load_i32(base + start + _CORRELATION_START)
        rows[found, RUN_END] = request_end
        rows[found, RUN_BATCH] = batch
        rows[found, RUN_BATCH_BYTES] = batch_bytes
        found += 1
        position = request_end
    return found


@kernel
def check_plain_run(
    base: int,
    count: int,
    max_batch_bytes: int,
    now_ms: int,
    rules: PlainRules,
    target: int,
    target_bytes: int,
    rows: RunRows,
    records: npt.NDArray[np.int64],
    errors: RecordErrors,
) -> tuple[int, int, int, int, bool]:
    """Check the batches of the first `count` rows as `check_plain_batch` does, and copy them to address `target`.

    The run ends before the first batch that is not plain, is larger than `max_batch_bytes`, or does not fit.

    Returns:
        (number of batches, their bytes, their records, largest timestamp, True if a batch has a producer).
    """
    filled = 0
    total = 0
    newest = -1
    has_producer = False
    for index in range(count):
        size_bytes = rows[index, RUN_BATCH_BYTES]
        if size_bytes < BATCH_HEADER_BYTES or size_bytes > max_batch_bytes or size_bytes > target_bytes - filled:
            return index, filled, total, newest, has_producer
        source = base + rows[index, RUN_BATCH]
        number, largest, producer_id, epoch, sequence = check_plain_batch(
            source, size_bytes, now_ms, rules, records, errors
        )
        if number == 0:
            return index, filled, total, newest, has_producer
        copy_bytes(target + filled, source, size_bytes)
        rows[index, RUN_RECORDS] = number
        rows[index, RUN_TIMESTAMP] = largest
        rows[index, RUN_PRODUCER_ID] = producer_id
        rows[index, RUN_PRODUCER_EPOCH] = epoch
        rows[index, RUN_SEQUENCE] = sequence
        filled += size_bytes
        total += number
        newest = max(newest, largest)
        has_producer = has_producer or producer_id >= 0
    return count, filled, total, newest, has_producer


@brief_kernel
def check_short_plain_run(
    base: int,
    count: int,
    max_batch_bytes: int,
    now_ms: int,
    rules: PlainRules,
    target: int,
    target_bytes: int,
    rows: RunRows,
    records: npt.NDArray[np.int64],
    errors: RecordErrors,
) -> tuple[int, int, int, int, bool]:
    return check_plain_run(base, count, max_batch_bytes, now_ms, rules, target, target_bytes, rows, records, errors)


@brief_kernel
def place_plain_run(
    target: int,
    count: int,
    base_offset: int,
    leader_epoch: int,
    position: int,
    segment_base_offset: int,
    interval_bytes: int,
    rows: RunRows,
    progress: Int64s,
    offset_entries: npt.NDArray[np.uint8],
    time_entries: npt.NDArray[np.uint8],
) -> None:
    """Set offset and leader epoch of the batches at address `target`, and append their index entries.

    The first batch gets `base_offset`, and begins at byte `position` of a segment.
    """
    # Python takes a microsecond longer to pass these as one value.
    indexes = IndexEntries(segment_base_offset, interval_bytes, progress, offset_entries, time_entries)
    start_entry_arrays(progress)
    for index in range(count):
        size_bytes = rows[index, RUN_BATCH_BYTES]
        store_i64(target + BASE_OFFSET, base_offset)
        store_i32(target + LEADER_EPOCH, leader_epoch)
        base_offset += rows[index, RUN_RECORDS]
        add_batch(base_offset - 1, rows[index, RUN_TIMESTAMP], position, size_bytes, indexes)
        target += size_bytes
        position += size_bytes
