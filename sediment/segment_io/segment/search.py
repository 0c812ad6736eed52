"""Compiled search over batch headers for the first batch that reaches an offset or a timestamp.

Invariants: as in `batch_headers`, lengths are checked before they are used, and the result is a status.
"""

from __future__ import annotations

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64
from sediment.segment_io.compiled.status import INCOMPLETE, LEGACY_MAGIC, OK
from sediment.segment_io.format.batch_headers import batch_at
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LEGACY_TIMESTAMP,
    MAGIC,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
)

# --------------------------------------------------------------------------------------------- kinds of a search
BY_LAST_OFFSET = 0
BY_TIMESTAMP = 1
BY_EXACT_TIMESTAMP = 2


@kernel
def find_batch(base: int, end: int, what: int, target: int) -> tuple[int, int, int]:
    """Find the first batch in [0, end) of a buffer whose last offset or largest timestamp is at least `target`.

    `what` is a kind of search; BY_EXACT_TIMESTAMP requires equality.  The last batch may be incomplete after its
    header.

    Returns:
        (status, position, size of the batch there or 0).  OK: the batch was found; INCOMPLETE: no such batch is in the
        buffer.
    """
    position = 0
    while True:
        status, size_bytes = batch_at(base, position, end)
        header_is_there = end - position >= BATCH_HEADER_BYTES
        if status not in (OK, LEGACY_MAGIC) and not (status == INCOMPLETE and header_is_there):
            return status, position, 0
        if not header_is_there and status != LEGACY_MAGIC:
            return INCOMPLETE, position, 0
        address = base + position
        is_legacy = load_i8(address + MAGIC) < 2
        if what == BY_LAST_OFFSET:
            value = load_i64(address + BASE_OFFSET)
            if not is_legacy:
                value += load_i32(address + LAST_OFFSET_DELTA)
        elif not is_legacy:
            value = load_i64(address + MAX_TIMESTAMP)
        else:
            value = load_i64(address + LEGACY_TIMESTAMP) if load_i8(address + MAGIC) == 1 else NO_TIMESTAMP
        if value == target or (value > target and what != BY_EXACT_TIMESTAMP):
            return OK, position, size_bytes
        position += size_bytes
