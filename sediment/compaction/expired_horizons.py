"""Expired tombstones in the clean part of a log that has no dirty records.

A cleaning drops a tombstone or a marker after its delete horizon, but a broker cleans a log only for its dirty records.
So it keeps the expired tombstones of an idle log for ever.  `compact --force` cleans such a log again.

Source: kafka-log 02 §2 (no step looks at delete horizons), §6.3, §6.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sediment.compaction.cleanable_range import BlockingRule, CleanableRange, cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.layout import CONTROL_BIT
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.timestamps import have_delete_horizon
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_view import LogView
from sediment.segment_io.segment.columns import WANT_KEY, WANT_VALUE, readable_tables
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan

WITHOUT_DIRTY_BYTES = frozenset(
    {
        BlockingRule.NOTHING_DIRTY,
        BlockingRule.ACTIVE_SEGMENT,
        BlockingRule.OPEN_TRANSACTION,
        BlockingRule.HIGH_WATERMARK,
        BlockingRule.MIN_COMPACTION_LAG,
    }
)
"""The rules that block a log whose clean part may be cleaned again."""


def clean_again(
    cleanable: CleanableRange,
    view: LogView,
    config: CompactionConfig,
    fs: Fs,
    *,
    now_ms: int,
    progress: Callable[[int], None] | None = None,
) -> CleanableRange:
    """Return the range from the log start if something in the clean part has expired, otherwise `cleanable`.

    Only a log that `cleanable` blocks because it has no cleanable dirty bytes is read; `progress` is called with the
    sizes of these reads.
    """
    if cleanable.blocked_by not in WITHOUT_DIRTY_BYTES:
        return cleanable
    again = cleanable_range(view, config, now_ms=now_ms, force=True, from_start=True)
    end_offset = min(cleanable.first_dirty_offset, again.first_uncleanable_offset)
    if again.blocked_by is not None or not _has_expired(view, end_offset, fs, now_ms, progress):
        return cleanable
    return replace(
        again,
        force_checkpoint=cleanable.force_checkpoint,
        reason=(
            f"tombstones or transaction markers below offset {end_offset} have expired, so offsets "
            f"{again.first_dirty_offset} to {again.first_uncleanable_offset} are cleaned again"
        ),
    )


def _has_expired(view: LogView, end_offset: int, fs: Fs, now_ms: int, progress: Callable[[int], None] | None) -> bool:
    for segment in view.listing.segments[:-1]:
        if segment.base_offset >= end_offset:
            break
        path = view.listing.path / segment_file_name(segment.base_offset, SegmentFileKind.LOG)
        try:
            for span in HeaderScan(path, size_bytes=segment.log_bytes, fs=fs).spans():
                if progress is not None:
                    progress(span.end - span.start)
                if _span_has_expired(span, now_ms):
                    return True
        # An unreadable batch ends the search, because a log with such a batch needs more than another cleaning.
        except CorruptDataError:
            return False
    return False


def _span_has_expired(span: BatchSpan, now_ms: int) -> bool:
    rows = span.rows
    is_expired = have_delete_horizon(rows) & (rows["base_timestamp"] <= now_ms) & (rows["record_count"] > 0)
    if not is_expired.any():
        return False
    if ((rows["attributes"][is_expired] & CONTROL_BIT) != 0).any():
        return True
    # A rebuilt batch keeps its horizon even after its last tombstone was dropped.
    expired = readable_tables([replace(span, rows=rows[is_expired])], WANT_KEY | WANT_VALUE)
    return any(bool(np.any(table.has_key() & ~table.has_value())) for table in expired)
