"""Timestamps of records of magic 2 (kafka-log 01 §3.2).

bit 3 clear    CreateTime: a record's timestamp is the base timestamp plus its delta
bit 3 set      LogAppendTime: every record has the largest timestamp of the header; the deltas are ignored
"""

from __future__ import annotations

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i16, load_i64
from sediment.segment_io.format.layout import ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, TIMESTAMP_TYPE_BIT


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
