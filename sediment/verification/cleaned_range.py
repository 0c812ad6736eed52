"""The cleanable range of a log, derived from its own files, and the differences between the segments of two logs.

    log start    first dirty              cleaner checkpoint     end          active segment
        |------------|---------------------------|----------------|----------------|-------->
         clean       ^ keys are mapped from here ^ up to here      ^ segments at or above are unchanged

Without a cleaner checkpoint in AFTER, it is unknown up to which offset the log was cleaned.  In this case, every
missing record still needs a reason, but no record has to be missing.

Source: kafka-log 02 §2.1, §2.2, §3, §6.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.verification.report import Difference


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment; if it has no batches, its offsets are None and `largest_ms` is -1.

    `disorder` counts the batches whose offsets are not above those of the previous batch.  `has_legacy` is True if some
    batches have magic 0 or 1.
    """

    base_offset: int
    size_bytes: int
    modified_ms: int
    first_offset: int | None = None
    last_offset: int | None = None
    largest_ms: int = -1
    disorder: int = 0
    has_legacy: bool = False


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log: its ascending segments, the first offset of an open transaction or None, and its checkpoints.

    `first_corrupt` is the base offset of the first segment with unreadable batches, or None if every batch is readable.
    """

    segments: tuple[SegmentFacts, ...]
    first_open_offset: int | None
    checkpoints: PartitionCheckpoints
    first_corrupt: int | None = None

    @property
    def log_start_offset(self) -> int:
        return max(self.checkpoints.log_start or 0, self.segments[0].base_offset if self.segments else 0)

    @property
    def log_end_offset(self) -> int:
        ends = [segment.last_offset + 1 for segment in self.segments if segment.last_offset is not None]
        return max([*ends, *(segment.base_offset for segment in self.segments)], default=0)

    @property
    def last_stable_offset(self) -> int:
        """If a replication checkpoint exists but does not list the partition, this is the log start offset."""
        end = self.log_end_offset
        if self.checkpoints.high_watermark is not None:
            end = min(end, max(self.checkpoints.high_watermark, self.log_start_offset))
        elif self.checkpoints.high_watermark_file:
            return self.log_start_offset
        return end if self.first_open_offset is None else min(end, self.first_open_offset)


@dataclass(frozen=True, slots=True)
class CleanedRange:
    """The offsets that may have been cleaned, and those that must have been cleaned.

    Records in [`first_dirty`, `limit`) supersede older records of their keys.  Records at or above `limit` survive;
    aborted records survive only at or above `end`, the base offset of the first segment that no cleaning changed.  If
    `is_claimed`, a cleaner checkpoint proves a cleaning up to `limit`.
    """

    first_dirty: int
    limit: int
    end: int
    first_uncleanable: int
    is_claimed: bool
    legacy_expired: tuple[int, ...]


def cleaned_range(
    before: LogFacts, after: LogFacts, *, now_ms: int, min_lag_ms: int, delete_retention_ms: int | None
) -> CleanedRange:
    """Return the range that was or could be cleaned between BEFORE and AFTER, at or before the time `now_ms`.

    `legacy_expired` are the base offsets of segments whose tombstones of magic 0 and 1 have expired; empty if
    `delete.retention.ms` is not stated.
    """
    start, end = before.log_start_offset, before.log_end_offset
    checkpoint = before.checkpoints.first_dirty
    first_dirty = checkpoint if checkpoint is not None and start <= checkpoint <= end else start
    bases = [segment.base_offset for segment in before.segments]
    if _is_rolled(before, after):
        bases.append(end)
    bound = min([before.last_stable_offset, *bases[-1:], *_young(before, first_dirty, now_ms, min_lag_ms)])
    first_uncleanable = max((base for base in bases if base <= bound), default=start)
    # The checkpoint of a corrupt log proves no cleaning, because it always stays below the corruption.
    claimed = after.checkpoints.first_dirty if before.first_corrupt is None else None
    limit = first_uncleanable if claimed is None else min(claimed, first_uncleanable)
    touched_end = min((base for base in bases if base >= limit), default=first_uncleanable)
    return CleanedRange(
        first_dirty,
        limit,
        min(touched_end, first_uncleanable),
        first_uncleanable,
        claimed is not None,
        _legacy_expired(before, first_dirty, delete_retention_ms),
    )


def _is_rolled(before: LogFacts, after: LogFacts) -> bool:
    if not before.segments or not after.segments:
        return False
    return after.segments[-1].base_offset == before.log_end_offset > before.segments[-1].base_offset


def _young(before: LogFacts, first_dirty: int, now_ms: int, min_lag_ms: int) -> Iterator[int]:
    if min_lag_ms <= 0:
        return
    for segment, following in pairwise(before.segments):
        largest_ms = segment.largest_ms if segment.largest_ms >= 0 else segment.modified_ms
        if following.base_offset > first_dirty and largest_ms > now_ms - min_lag_ms:
            yield segment.base_offset


def _legacy_expired(before: LogFacts, first_dirty: int, delete_retention_ms: int | None) -> tuple[int, ...]:
    clean = [segment for segment in before.segments if segment.base_offset < first_dirty]
    if not clean or delete_retention_ms is None:
        return ()
    horizon_ms = clean[-1].modified_ms - delete_retention_ms
    return tuple(segment.base_offset for segment in before.segments if segment.modified_ms <= horizon_ms)


def segment_differences(
    before: LogFacts, after: LogFacts, cleaned: CleanedRange, *, may_be_reencoded: bool = False
) -> list[Difference]:
    """Return the differences in the log start, the log end, the segments, their offsets, and the checkpoints.

    With `may_be_reencoded`, a cleaned segment may have become several segments, because its batches may have grown.
    """
    return [
        *_ends(before, after),
        *_names(before, after, cleaned, may_be_reencoded),
        *_order(before, after.segments),
        *_modified(before, after),
        *_checkpoint(before, after, cleaned),
        *_high_watermark(before.checkpoints, after.checkpoints),
    ]


def _ends(before: LogFacts, after: LogFacts) -> Iterator[Difference]:
    if after.log_start_offset != before.log_start_offset:
        yield Difference(
            "log_start",
            after.log_start_offset,
            f"the log starts at offset {after.log_start_offset}, but in BEFORE at {before.log_start_offset}",
        )
    if after.log_end_offset != before.log_end_offset:
        yield Difference(
            "log_end",
            after.log_end_offset,
            f"the log ends at offset {after.log_end_offset}, but in BEFORE at {before.log_end_offset}",
        )


def _names(before: LogFacts, after: LogFacts, cleaned: CleanedRange, may_be_reencoded: bool) -> Iterator[Difference]:
    ours = [segment.base_offset for segment in after.segments]
    grown = {
        segment.base_offset
        for segment in after.segments
        if may_be_reencoded and segment.first_offset == segment.base_offset < cleaned.end
    }
    theirs = [segment.base_offset for segment in before.segments]
    if theirs and ours[:1] != theirs[:1]:
        yield Difference("segments", theirs[0], f"the first segment, {theirs[0]}, is gone")
    for base in ours:
        if base not in theirs and base not in grown and not _may_be_new(base, before, after):
            yield Difference("segments", base, f"segment {base} does not exist in BEFORE")
    for base in theirs:
        if base >= cleaned.end and base not in ours:
            yield Difference("untouched", base, f"segment {base} above the cleaned range is gone")


def _may_be_new(base: int, before: LogFacts, after: LogFacts) -> bool:
    if base == before.log_end_offset:
        return _is_rolled(before, after)
    return any(
        segment.base_offset < base <= (segment.last_offset or 0)
        and (segment.last_offset or 0) - segment.base_offset > INT32_MAX
        for segment in before.segments
    )


def _order(before: LogFacts, segments: Sequence[SegmentFacts]) -> Iterator[Difference]:
    if any(segment.disorder for segment in before.segments):
        return  # batches that are out of order in BEFORE keep their positions
    # A segment may begin below the end of the one before it, because a leader wrote offsets twice (KAFKA-19407).
    repeated = {after.base_offset for one, after in pairwise(before.segments) if _overlap(one, after)}
    for segment in segments:
        inside = sum(segment.base_offset < base <= (segment.last_offset or 0) for base in repeated)
        if segment.disorder > inside:
            batches = "1 batch" if segment.disorder == 1 else f"{segment.disorder} batches"
            yield Difference(
                "order",
                segment.base_offset,
                f"segment {segment.base_offset} has {batches} whose offsets are not above the previous batch",
            )
        if (segment.last_offset or 0) - segment.base_offset > INT32_MAX and segment not in before.segments:
            yield Difference(
                "order",
                segment.base_offset,
                f"segment {segment.base_offset} ends at offset {segment.last_offset}, beyond the range of its indexes",
            )
        if segment.first_offset is not None and segment.first_offset < segment.base_offset:
            yield Difference(
                "order",
                segment.first_offset,
                f"segment {segment.base_offset} contains offset {segment.first_offset}, which is below its base offset",
            )
    for segment, following in pairwise(segments):
        if _overlap(segment, following) and following.base_offset not in repeated:
            yield Difference(
                "order",
                segment.last_offset,
                f"segment {segment.base_offset} ends at offset {segment.last_offset}, but segment "
                f"{following.base_offset} begins at or below this offset",
            )


def _overlap(segment: SegmentFacts, following: SegmentFacts) -> bool:
    return segment.last_offset is not None and segment.last_offset >= following.base_offset


def _modified(before: LogFacts, after: LogFacts) -> Iterator[Difference]:
    """Yield cleaned segments that do not have the modification time of their last source segment."""
    if not after.segments:
        return
    has_legacy = any(segment.has_legacy for segment in after.segments)
    ends = [*(segment.base_offset for segment in after.segments[1:]), INT64_MAX]
    for segment, end in zip(after.segments, ends, strict=True):
        sources = [one for one in before.segments if segment.base_offset <= one.base_offset < end]
        has_no_timestamp = segment.first_offset is not None and segment.largest_ms < 0
        # Only modification times with an effect are checked.  They affect the retention of segments without timestamps,
        # and the expiry of tombstones of magic 0 and 1.
        if sources and (has_legacy or has_no_timestamp) and segment.modified_ms != sources[-1].modified_ms:
            yield Difference(
                "modified",
                segment.base_offset,
                f"segment {segment.base_offset} was modified at {segment.modified_ms}, but in BEFORE at "
                f"{sources[-1].modified_ms}",
            )


def _checkpoint(before: LogFacts, after: LogFacts, cleaned: CleanedRange) -> Iterator[Difference]:
    old, new = before.checkpoints.first_dirty, after.checkpoints.first_dirty
    if new is None:
        if old is not None:
            yield Difference("checkpoint", old, f"the cleaner checkpoint, {old} in BEFORE, is missing")
        return
    if new > max(cleaned.first_uncleanable, old if old == cleaned.first_dirty and old is not None else 0):
        yield Difference(
            "checkpoint",
            new,
            f"the cleaner checkpoint is {new}, but BEFORE could be cleaned only up to {cleaned.first_uncleanable}",
        )
    if old is not None and new < old and old == cleaned.first_dirty and before.first_corrupt is None:
        yield Difference("checkpoint", new, f"the cleaner checkpoint has decreased from {old} to {new}")


def _high_watermark(before: PartitionCheckpoints, after: PartitionCheckpoints) -> Iterator[Difference]:
    old, new = before.high_watermark, after.high_watermark
    if old is not None and after.high_watermark_file and (new is None or new < old):
        yield Difference("checkpoint", new, f"the high watermark has decreased from {old} to {new or 0}")
