"""Reports of partitions, from the results of their tasks and from the commits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap, UnreadableBatch
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import (
    ACTIVE_SEGMENT,
    CLEAN_SEGMENT,
    COMPACTED,
    DIRTY_SEGMENT,
    FAILED,
    KEPT_SEGMENT,
    QUARANTINED,
    REWRITTEN_SEGMENT,
    SKIPPED,
    TOMBSTONES_KEPT,
    PartitionReport,
    StripSegment,
)
from sediment.jobs.rewriting.report import unchanged_fields
from sediment.jobs.rewriting.result import CleaningResult
from sediment.segment_io.dates import date_text
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.partition.listing import LogListing

UNREADABLE_KEPT = "unreadable-kept"
_MOST_NAMED = 20


def untouched(listing: LogListing, status: str, code: str | None, reason: str | None) -> PartitionReport:
    return PartitionReport(**unchanged_fields(listing), status=status, reason_code=code, reason=reason)


def is_rewritten(partition: PartitionReport) -> bool:
    return partition.status == COMPACTED or partition.groups_rewritten > 0


def quarantined(listing: LogListing, mark: Uncleanable) -> PartitionReport:
    since = f"left alone since {date_text(mark.since_ms)}: {mark.reason}"
    again = "use --retry-quarantined to try it again"
    return untouched(listing, QUARANTINED, mark.reason_code, f"{since}; {again}")


def settled(task: CleaningTask, result: CleaningResult) -> tuple[PartitionReport, int | None]:
    """Return the report of `result`, whose swap (if any) is already committed, and also the new first dirty offset.

    The offset is None if the entry in the cleaner checkpoint stays unchanged.
    """
    report = uncommitted(task, result)
    if result.swap is None:
        return report, None if result.failed else result.reset_checkpoint
    return _with_swap(report, task.listing, result.swap), result.swap.next_dirty_offset


def partly_committed(
    task: CleaningTask, result: CleaningResult, swap: PreparedSwap, done: Sequence[CleanedGroup], code: str, reason: str
) -> PartitionReport:
    report = uncommitted(task, result)
    if not done:
        return replace(report, status=FAILED, reason_code=code, reason=reason)
    total = sum(bool(group.parts) for group in swap.groups)
    verb = "is" if len(done) == 1 else "are"
    replaced = f"{len(done)} of {counted(total, 'group')} of segments {verb} replaced"
    report = _with_swap(report, task.listing, replace(swap, groups=tuple(done)))
    reasons = "; ".join(filter(None, (replaced, reason, report.reason)))
    return replace(report, status=FAILED, reason_code=code, reason=reasons, next_dirty_offset=None)


def uncommitted(task: CleaningTask, result: CleaningResult) -> PartitionReport:
    status = QUARANTINED if result.uncleanable is not None else FAILED if result.failed else SKIPPED
    return replace(
        untouched(task.listing, status, result.reason_code, result.reason),
        strategy=result.strategy,
        key_equality=task.options.key_equality.value if result.strategy else None,
        first_dirty_offset=result.first_dirty_offset,
        first_uncleanable_offset=result.first_uncleanable_offset,
        dirty_ratio=result.dirty_ratio,
        strip_before=_strip(task.listing, result.first_dirty_offset),
        seconds_by_stage=result.seconds_by_stage,
        records_without_key=result.records_without_key,
    )


def _strip(listing: LogListing, first_dirty_offset: int | None) -> tuple[StripSegment, ...]:
    bases = [segment.base_offset for segment in listing.segments]
    dirty_from = 0 if first_dirty_offset is None else max(bisect_right(bases, first_dirty_offset) - 1, 0)
    states = [CLEAN_SEGMENT] * dirty_from + [DIRTY_SEGMENT] * (len(bases) - dirty_from)
    states[-1:] = [ACTIVE_SEGMENT]
    return tuple(
        StripSegment(segment.base_offset, segment.log_bytes, state)
        for segment, state in zip(listing.segments, states, strict=False)
    )


def _with_swap(report: PartitionReport, listing: LogListing, swap: PreparedSwap) -> PartitionReport:
    replaced = {segment.base_offset for group in swap.groups if group.parts for segment in group.sources}
    kept = [segment for segment in listing.segments if segment.base_offset not in replaced]
    made = [(part.base_offset, part.files[0].size_bytes) for group in swap.groups for part in group.parts]
    read = {segment.base_offset for group in swap.groups if not group.parts for segment in group.sources}
    strip = [
        StripSegment(base, size_bytes, KEPT_SEGMENT if base in read else state)
        for base, size_bytes, state in report.strip_before
        if base not in replaced
    ]
    stats = swap.stats()
    unreadable = [batch for group in swap.groups for batch in group.unreadable]
    if unreadable:
        report = _with_reason(report, UNREADABLE_KEPT, _unreadable(unreadable))
    if stats.batches_without_horizon:
        without = kept_tombstones(listing.partition.topic, stats.batches_without_horizon)
        report = replace(_with_reason(report, TOMBSTONES_KEPT, without), keeps_tombstones=True)
    has_horizon = stats.first_horizon_ms <= stats.last_horizon_ms
    return replace(
        report,
        status=COMPACTED,
        next_dirty_offset=swap.next_dirty_offset,
        messages_read=stats.messages_read,
        messages_written=stats.messages_written,
        records_without_key=stats.records_without_key,
        bytes_after=sum(segment.log_bytes for segment in kept) + sum(size for _, size in made),
        segments=tuple(sorted([segment.base_offset for segment in kept] + [base for base, _ in made])),
        groups_rewritten=sum(bool(group.parts) for group in swap.groups),
        groups_skipped=sum(not group.parts for group in swap.groups),
        corrupt_batches=stats.corrupt_batches,
        batches_encoded=stats.batches_encoded,
        tombstones_waiting=stats.tombstones_waiting,
        first_delete_horizon_ms=stats.first_horizon_ms if has_horizon else None,
        last_delete_horizon_ms=stats.last_horizon_ms if has_horizon else None,
        strip_after=tuple(sorted([*strip, *(StripSegment(base, size, REWRITTEN_SEGMENT) for base, size in made)])),
    )


def _with_reason(report: PartitionReport, code: str, sentence: str) -> PartitionReport:
    reason = "; ".join(each for each in (report.reason, sentence) if each)
    return replace(report, reason_code=report.reason_code or code, reason=reason)


def kept_tombstones(topic: str, batches: int) -> str:
    count, verb = ("1 batch", "keeps its") if batches == 1 else (f"{batches} batches", "keep their")
    return (
        f"delete.retention.ms is not stated, so {count} got no delete horizon and {verb} tombstones and markers; "
        f"{how_to_state_delete_retention(topic)}"
    )


def how_to_state_delete_retention(topic: str) -> str:
    return (
        "give --config FILE, for a broker of ZooKeeper with --topic-configs FILE and --broker-configs FILE, or --set "
        f"{topic}:delete.retention.ms=MS"
    )


def _unreadable(batches: Sequence[UnreadableBatch]) -> str:
    named = [
        f"offset {batch.offset} at position {batch.position} of "
        f"{segment_file_name(batch.segment, SegmentFileKind.LOG)}, {batch.size_bytes} bytes: {batch.what}"
        for batch in batches[:_MOST_NAMED]
    ]
    if len(batches) > _MOST_NAMED:
        named.append(f"and {len(batches) - _MOST_NAMED} more")
    if len(batches) == 1:
        return f"1 batch could not be read and stayed unchanged ({named[0]}); restore it and run again"
    where = "; ".join(named)
    return f"{len(batches)} batches could not be read and stayed unchanged ({where}); restore them and run again"
