"""Report of `expire`: the table for people and the JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sediment.jobs.reporting.columns import TableColumn, change_column, name_and_status, offset_column, status_counts
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, SKIPPED, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen, kept_folders

EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that was or would be deleted: its `.log` bytes, and the rule that expired it."""

    base_offset: int
    bytes: int
    rule: str


@dataclass(frozen=True, slots=True)
class ExpiryReport(PartitionOutcome):
    """Report of one partition.  Offsets and `segments` (base offsets) describe the log after the run, if known.

    `messages_archived` counts the records of the deleted segments that were found in the archive; None without an
    archive.  `warnings` are sentences about dates and policies by which records may be deleted, or kept, by mistake.
    """

    log_start_offset: int | None = None
    high_watermark: int | None = None
    log_end_offset: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments: tuple[int, ...] = ()
    deleted_segments: tuple[DeletedSegment, ...] = ()
    messages_archived: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExpiryRunReport(RunReport[ExpiryReport]):
    """Report of a run of `expire`.

    `archive` is the Delta table that contains the records of deleted segments.  `originals` is the directory of
    --keep-originals.  `catalogue` is a file in this directory; it lists the files that this run kept.  A field is None
    if the run did not use its option.
    """

    row_type: ClassVar[type] = ExpiryReport

    dry_run: bool
    archive: str | None
    originals: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    catalogue: str | None = field(default=None, metadata=AFTER_PARTITIONS)


COLUMNS: tuple[TableColumn[ExpiryReport], ...] = (
    *name_and_status(),
    offset_column("log start", lambda row: row.log_start_offset, rank=1),
    change_column("segments", lambda row: row.segments_before, lambda row: len(row.segments), shown=str, rank=2),
    change_column("bytes", lambda row: row.bytes_before, lambda row: row.bytes_after, shown=human_bytes),
)


def print_report(report: ExpiryRunReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, dry_run=report.dry_run)
    screen.failed(report.partitions)
    screen.reasons(p for p in report.partitions if p.status == SKIPPED)
    screen.warnings(report.partitions)
    screen.say(_summary(report))


def _summary(report: ExpiryRunReport) -> str:
    done = status_counts(report.partitions, dry_run=report.dry_run) or "no partitions"
    expired = [partition for partition in report.partitions if partition.status == EXPIRED]
    freed = sum(partition.bytes_before - partition.bytes_after for partition in expired)
    segments = sum(len(partition.deleted_segments) for partition in expired)
    verb = "would be deleted" if report.dry_run else "deleted"
    size = f"; {counted(segments, 'segment')} with {human_bytes(freed)} {verb}" if expired else ""
    archived = sum(partition.messages_archived or 0 for partition in report.partitions)
    kept = (
        f", {archived:,} records are in {report.archive}" if report.archive and not report.dry_run and archived else ""
    )
    if report.originals and expired:
        where = kept_folders(report.originals, report.partitions)
        kept += f", the files would be kept in {where}" if report.dry_run else ""
        kept += f", the files are in {where}" if report.catalogue else ""
    return f"{done}{size}{kept}; {report.seconds:.1f} s (run {report.run_id})"
