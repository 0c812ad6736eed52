"""The delete horizon of a batch: the time after which its tombstones, or the marker in it, may be dropped.

If a batch needs a horizon and has none, the cleaner writes one into the batch (kafka-log 02 §6.4).  If bit 6 of the
attributes is set, the batch's base timestamp is its horizon.

    new horizon        now + delete.retention.ms; none if the sum overflows         `next_horizon_ms`
    gets a horizon     a batch that keeps a tombstone; a marker without data        `needs_horizon`
    rebuilt batch      it keeps its horizon, even without a tombstone               `keeps_horizon`
    emptied batch      it loses its horizon                                         `batch_rebuild.write_empty_batch`

Batches of magic 0 and 1 have no horizon.  They share one legacy horizon: the modification time of the last clean
segment, minus delete.retention.ms.  The tombstones of such a batch have expired if its segment was last modified at or
before this horizon.  Kafka calls these values legacyDeleteHorizonMs and retainLegacyDeletes (kafka-log 02 §3 step 1,
§6, §10).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import Header
from sediment.compaction.kernels.cleaned_transaction_metadata import MARKS_NOTHING, TOMBSTONES_GO, TOMBSTONES_STAY
from sediment.compaction.kernels.registers import (
    FIRST_HORIZON_MS,
    LAST_HORIZON_MS,
    NEXT_HORIZON_MS,
    TOMBSTONES_WAITING,
    WITHOUT_HORIZON,
)
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.format.batch_rebuild import NO_HORIZON
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.record_decoder import VALUE_BYTES
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.units import NS_PER_MS


def next_horizon_ms(delete_retention_ms: int | None, now_ms: int) -> int | None:
    """Return the delete horizon that the cleaner writes at `now_ms`, or None if the cleaner writes none.

    The cleaner writes none if `delete_retention_ms` is None, or if `now_ms` + `delete_retention_ms` exceeds INT64_MAX.
    """
    if delete_retention_ms is None:
        return None
    horizon_ms = now_ms + delete_retention_ms
    # In a broker, this sum overflows and becomes negative, and brokers ignore a negative horizon.
    return horizon_ms if 0 <= horizon_ms <= INT64_MAX else None


def legacy_horizon_ms(segments: Sequence[SegmentRef], first_dirty_offset: int, delete_retention_ms: int | None) -> int:
    """Return the legacy horizon: if a segment was last modified at or before it, its legacy tombstones have expired.

    The result is 0 if no segment of `segments` begins below `first_dirty_offset`.  If `delete_retention_ms` is None,
    the result is below every modification time, so no tombstone has expired.
    """
    if delete_retention_ms is None:
        return -INT64_MAX
    clean = [segment for segment in segments if segment.base_offset < first_dirty_offset]
    return clean[-1].mtime_ns // NS_PER_MS - delete_retention_ms if clean else 0


def legacy_tombstones_have_expired(segment: SegmentRef, horizon_ms: int) -> bool:
    return segment.mtime_ns // NS_PER_MS <= horizon_ms


@kernel
def horizon_has_passed(has_horizon: bool, base_timestamp: int, now_ms: int) -> bool:
    return has_horizon and base_timestamp <= now_ms


@kernel
def tombstones_expire(flags: int, horizon_passed: bool) -> bool:
    return (horizon_passed or (flags & TOMBSTONES_GO) != 0) and (flags & TOMBSTONES_STAY) == 0


@kernel
def needs_horizon(flags: int, is_control: bool, has_horizon: bool, tombstones: int) -> bool:
    return not has_horizon and ((is_control and (flags & MARKS_NOTHING) != 0) or tombstones > 0)


@inlined_kernel
def keeps_horizon(header: Header, gets_horizon: bool) -> bool:
    return gets_horizon or header.has_horizon


@inlined_kernel
def horizon_of(header: Header, rules: npt.NDArray[np.int64]) -> int:
    """Return the old or new delete horizon of a batch; the horizon becomes the batch's base timestamp."""
    return header.base_timestamp if header.has_horizon else rules[NEXT_HORIZON_MS]


@kernel
def count_tombstones(records: npt.NDArray[np.int64], count: int) -> int:
    total = 0
    for index in range(count):
        total += records[index, VALUE_BYTES] < 0
    return total


@inlined_kernel
def note_tombstones(
    header: Header,
    flags: int,
    records: npt.NDArray[np.int64],
    retained: int,
    rules: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
) -> bool:
    tombstones = count_tombstones(records, retained)
    gets_horizon = needs_horizon(flags, header.is_control, header.has_horizon, tombstones)
    if gets_horizon and rules[NEXT_HORIZON_MS] == NO_HORIZON:
        gets_horizon = False
        state[WITHOUT_HORIZON] += 1
    if tombstones > 0 and not header.is_control:
        state[TOMBSTONES_WAITING] += tombstones
        if header.has_horizon or gets_horizon:
            horizon_ms = horizon_of(header, rules)
            state[FIRST_HORIZON_MS] = min(state[FIRST_HORIZON_MS], horizon_ms)
            state[LAST_HORIZON_MS] = max(state[LAST_HORIZON_MS], horizon_ms)
    return gets_horizon
