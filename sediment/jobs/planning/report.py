"""Plan of a partition, and report of a run of `plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, PartitionOutcome, RunReport

CLEANABLE = "cleanable"
BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class RetentionOutlook:
    """Base offsets of the segments that retention would delete now, and their total bytes.

    `log_start_offset` is the log start after the deletion.  `next_at_ms` is the time at which retention.ms expires the
    next segment.  `reason_code` and `reason` are set if retention cannot decide, because a setting or a checkpoint
    entry is missing.
    """

    segments: tuple[int, ...] = ()
    bytes: int = 0
    log_start_offset: int | None = None
    next_at_ms: int | None = None
    reason_code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlan(PartitionOutcome):
    """Plan of one partition.  Offsets are log offsets, bytes are `.log` bytes, and None means "not known".

    `status` is cleanable, blocked (by the rule `reason_code`), failed or quarantined.  `unblocks_at_ms` is the time at
    which the partition becomes cleanable even without further appends.  `clean_bytes`, `cleanable_bytes` and
    `dirty_ratio` are computed as in Kafka.  `bytes_after`, `messages_written`, `records_without_key` and the tombstones
    are estimated from a sample unless `is_exact`.  `segments`, `groups_rewritten` and `messages_read` are known only if
    `is_exact`.  `records_without_key` counts the records that cleaning would drop because they have no key; in a
    blocked log, it counts all such records.  `tombstones_waiting` counts the tombstones that remain; their delete
    horizons are from `first_delete_horizon_ms` to `last_delete_horizon_ms`.  In a blocked log, `tombstones_expired`
    counts the tombstones in the clean part that have expired, and `tombstones_not_cleaned` those above the clean part.
    `reencoded_bytes` estimates the size of the log after a re-encoding without compaction, from a sample of
    `reencode_sampled_bytes`.  `warnings` are sentences about anything else that endangers the partition's
    records.
    """

    cleanup_policy: tuple[str, ...] = ()
    unblocks_at_ms: int | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_end_offset: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    next_dirty_offset: int | None = None
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    dirty_ratio: float | None = None
    must_compact: bool | None = None
    strategy: str | None = None
    strategy_reason: str | None = None
    is_exact: bool = False
    sampled_bytes: int = 0
    keys: int | None = None
    messages_read: int | None = None
    messages_written: int | None = None
    bytes_before: int = 0
    bytes_after: int | None = None
    bytes_back: int | None = None
    segments_before: int = 0
    segments: tuple[int, ...] | None = None
    groups: int | None = None
    groups_rewritten: int | None = None
    groups_skipped: int | None = None
    records_without_key: int | None = None
    tombstones_waiting: int | None = None
    tombstones_expired: int | None = None
    tombstones_not_cleaned: int | None = None
    first_delete_horizon_ms: int | None = None
    last_delete_horizon_ms: int | None = None
    reencoded_bytes: int | None = None
    reencode_sampled_bytes: int | None = None
    retention: RetentionOutlook | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanReport(RunReport[PartitionPlan]):
    """Report of a run of `plan`.

    `codec`, `level` and `batch_bytes` describe the encoding for which sizes are estimated.  `originals_bytes` is the
    size of the files that exist only in the directory `originals`; None without --originals.
    """

    row_type: ClassVar[type] = PartitionPlan

    codec: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    level: int | None = field(default=None, metadata=AFTER_PARTITIONS)
    batch_bytes: int | None = field(default=None, metadata=AFTER_PARTITIONS)
    originals: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    originals_bytes: int | None = field(default=None, metadata=AFTER_PARTITIONS)
