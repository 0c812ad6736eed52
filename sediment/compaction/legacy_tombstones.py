"""Tombstones of magic 0 and 1, which have no delete horizon; the modification time of a segment decides their expiry.

    horizon     the modification time of the last clean segment, minus delete.retention.ms
    expired     tombstones in a segment that was last modified at or before the horizon

Source: kafka-log 02 §3 step 1, §6, §10 (legacyDeleteHorizonMs, retainLegacyDeletes).
"""

from __future__ import annotations

from collections.abc import Sequence

from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.units import NS_PER_MS


def legacy_horizon_ms(segments: Sequence[SegmentRef], first_dirty_offset: int, delete_retention_ms: int | None) -> int:
    """Return the horizon: tombstones of magic 0 and 1 have expired in segments last modified at or before it.

    The result is 0 if no segment of `segments` begins below `first_dirty_offset`.  If `delete_retention_ms` is None,
    the result is below every modification time, so no tombstone has expired.
    """
    if delete_retention_ms is None:
        return -INT64_MAX
    clean = [segment for segment in segments if segment.base_offset < first_dirty_offset]
    return clean[-1].mtime_ns // NS_PER_MS - delete_retention_ms if clean else 0


def legacy_tombstones_have_expired(segment: SegmentRef, horizon_ms: int) -> bool:
    """Return True if the cleaning drops the tombstones of magic 0 and 1 in `segment`."""
    return segment.mtime_ns // NS_PER_MS <= horizon_ms
