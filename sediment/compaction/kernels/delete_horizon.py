"""The delete horizon of a batch: the time after which its tombstones, or the marker in it, may be dropped.

If a batch needs a horizon and has none, a cleaning writes one into it (kafka-log 02 §6.4).  If bit 6 of the attributes
is set, the batch's base timestamp is its horizon.
"""

from __future__ import annotations

from sediment.compaction.kernels.transactions import MARKS_NOTHING, TOMBSTONES_GO, TOMBSTONES_STAY
from sediment.segment_io.compiled.jit import kernel


@kernel
def horizon_has_passed(has_horizon: bool, base_timestamp: int, now_ms: int) -> bool:
    """Return True if a batch has a delete horizon (bit 6) that has been reached."""
    return has_horizon and base_timestamp <= now_ms


@kernel
def tombstones_expire(flags: int, horizon_passed: bool) -> bool:
    """Return True if the tombstones of a batch are dropped, because of the batch's horizon or the segment's age."""
    return (horizon_passed or (flags & TOMBSTONES_GO) != 0) and (flags & TOMBSTONES_STAY) == 0


@kernel
def needs_horizon(flags: int, is_control: bool, has_horizon: bool, tombstones: int) -> bool:
    """Return True if a batch that keeps `tombstones` tombstones needs a new delete horizon.

    A marker gets a horizon if no batch of its transaction is left; any other batch gets one if it keeps a tombstone.
    """
    return not has_horizon and ((is_control and (flags & MARKS_NOTHING) != 0) or tombstones > 0)
