"""The check of a chunk before it is used: lengths, checksums and offsets of its batches.

Kafka's cleaner checks only sizes and magics (kafka-log 02 §6.1).  If a batch fails a check, the cleaning ends with
CorruptBatchError, and the partition is uncleanable.  A bad length or magic can also come from a wrong index entry, so
`clean_log` first repeats the pass with a forward scan.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i16, load_i32, load_i64
from sediment.segment_io.compiled.status import (
    CUT_MISSED,
    DONE,
    LEGACY_MAGIC,
    LEGACY_MET,
    NEEDS_RECORD_ROOM,
    OFFSET_OUTSIDE_SEGMENT,
    OK,
    TRANSACTIONS_MET,
)
from sediment.segment_io.format.batch_headers import batch_at, check_header
from sediment.segment_io.format.checksum import check_crc
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_BIT,
    LAST_OFFSET_DELTA,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import check_legacy_crc


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
    """Check the lengths and checksums of the batches in [start, end); write their starts to `positions`, int64[n].

    The batches must fill the range exactly.

    Returns:
        (status, batches, position of the batch to which the status refers).  DONE and LEGACY_MET mean that every batch
        is good.  NEEDS_RECORD_ROOM means that `positions` is too short.
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
        # No checksum covers the offsets of a batch.  So the offsets are checked against the range of the segment,
        # [first_offset, end_offset).
        # The delta is subtracted, because a flipped bit can make an offset very large, and then an addition would
        # overflow.
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
