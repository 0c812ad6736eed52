"""Timestamps of records and batches of magic 2 (kafka-log 01 §3.2).

bit 3 clear    CreateTime: a record's timestamp is the base timestamp plus its delta
bit 3 set      LogAppendTime: every record has the largest timestamp of the header; the deltas are ignored
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i16, load_i64
from sediment.segment_io.format.layout import ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, TIMESTAMP_TYPE_BIT
from sediment.segment_io.format.record_decoder import TIMESTAMP_DELTA


@kernel
def record_timestamp(attributes: int, base_timestamp: int, max_timestamp: int, delta: int) -> int:
    """Return the timestamp of a record from the header fields of its batch and the record's delta."""
    return max_timestamp if attributes & TIMESTAMP_TYPE_BIT else base_timestamp + delta


@kernel
def timestamp_in(header: int, delta: int) -> int:
    """Return the timestamp of a record of the batch at address `header`."""
    return record_timestamp(
        load_i16(header + ATTRIBUTES), load_i64(header + BASE_TIMESTAMP), load_i64(header + MAX_TIMESTAMP), delta
    )


@kernel
def kept_timestamps(header: int, records: npt.NDArray[np.int64], count: int) -> tuple[int, int]:
    """Return (timestamp of the first of `count` > 0 kept records, maxTimestamp of their batch).

    If the timestamp type is LogAppendTime, both are the batch's append time.
    """
    if load_i16(header + ATTRIBUTES) & TIMESTAMP_TYPE_BIT:
        append_time = load_i64(header + MAX_TIMESTAMP)
        return append_time, append_time
    base = load_i64(header + BASE_TIMESTAMP)
    first = base + records[0, TIMESTAMP_DELTA]
    largest = first
    for index in range(1, count):
        largest = max(largest, base + records[index, TIMESTAMP_DELTA])
    return first, largest
