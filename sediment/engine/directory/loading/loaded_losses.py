"""Records that are missing in a loaded log, and offsets that it has twice; see `missing_records` for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sediment.engine.directory.loading.load_state import RepeatedBatches
from sediment.engine.directory.loading.log_loader import LoadedLog
from sediment.engine.directory.missing_records import (
    KnownOfLog,
    LogLosses,
    SegmentEnd,
    doubtful_cut,
    missing_at_end,
    missing_between,
    records_were_removed,
    repeated_between,
    repeated_in_segment,
)
from sediment.segment_io.fs import Fs


def losses_of(log: LoadedLog, known: KnownOfLog, orphans: Mapping[int, str], fs: Fs) -> LogLosses:
    """`orphans` are the indexes without a log that were there before the load (`orphans_of`).

    A log with a hole that may be a loss is read again, because its batches show whether it was ever compacted.
    """
    ends = [SegmentEnd(segment.base_offset, segment.next_offset) for segment in log.segments]
    was_cleaned = partial(records_were_removed, log.path, fs=fs)
    holes, warnings = missing_between(ends, known, orphans, was_cleaned, log.cuts)
    end = missing_at_end(ends, known, orphans, log.cuts)
    repeated = (*map(_said, log.repeated), *repeated_between(ends))
    doubts = (doubtful_cut(cut, known) for cut in log.cuts)
    return LogLosses((*holes, *(() if end is None else (end,))), (*warnings, *filter(None, doubts), *repeated))


def _said(found: RepeatedBatches) -> str:
    repeated = found.repeated
    return repeated_in_segment(
        found.name, repeated.position, repeated.first_offset, repeated.next_offset, repeated.batches
    )
