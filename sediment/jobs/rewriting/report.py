"""Report of a partition that a command rewrote, and the table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sediment.compaction.prepared_swap import CleanedGroup
from sediment.jobs.reporting.columns import TableColumn, change_column, name_and_status
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, SKIPPED, Partition, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen
from sediment.segment_io.partition.listing import LogListing

UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class RewriteReport(PartitionOutcome):
    """Report of one partition.

    Bytes are `.log` bytes of the whole partition; `segments` are the segments after the run.  A dry run reports the
    expected result; `bytes_after` is None if it was not computed.
    """

    bytes_before: int = 0
    bytes_after: int | None = None
    segments_before: int = 0
    segments: tuple[int, ...] = ()
    segments_rewritten: int = 0


Rewritten = TypeVar("Rewritten", bound=RewriteReport)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RewriteRunReport(RunReport[Partition]):
    """Report of a run of a rewriting command.

    `originals` is the directory of --keep-originals.  `catalogue` is a file in this directory; it lists the files that
    this run kept.  `output` is the directory or URI of --output.  A field is None if the run did not use its option.
    `seconds_by_stage` contains the driver's wall time.
    """

    dry_run: bool
    output: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    originals: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    catalogue: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict, metadata=AFTER_PARTITIONS)


def unchanged_fields(listing: LogListing) -> dict[str, Any]:
    size_bytes = listing.log_bytes()
    return {
        "partition": str(listing.partition),
        "log_dir": str(listing.path.parent),
        "bytes_before": size_bytes,
        "bytes_after": size_bytes,
        "segments_before": len(listing.segments),
        "segments": tuple(segment.base_offset for segment in listing.segments),
    }


def listed(listing: LogListing, status: str, code: str | None = None, reason: str | None = None) -> RewriteReport:
    return RewriteReport(**unchanged_fields(listing), status=status, reason_code=code, reason=reason)


def fields_of(report: RewriteReport, rewritten: str) -> dict[str, Any]:
    fields = {name: getattr(report, name) for name in RewriteReport.__dataclass_fields__}
    return fields | {"status": report.status or rewritten}


def segments_after(listing: LogListing, groups: Iterable[CleanedGroup]) -> list[tuple[int, int]]:
    after = {segment.base_offset: segment.log_bytes for segment in listing.segments}
    for group in groups:
        if group.parts:
            for segment in group.sources:
                del after[segment.base_offset]
            after.update((part.base_offset, part.files[0].size_bytes) for part in group.parts)
    return sorted(after.items())


def columns_with(own: Sequence[TableColumn[Any]]) -> tuple[TableColumn[Any], ...]:
    return (
        *name_and_status(),
        TableColumn("segments", _segments, lambda row: row.segments_rewritten, rank=1),
        *own,
        change_column("bytes", lambda row: row.bytes_before, lambda row: row.bytes_after, shown=human_bytes),
    )


def _segments(rows: Sequence[RewriteReport]) -> str:
    return f"{sum(row.segments_rewritten for row in rows)} of {sum(row.segments_before for row in rows)}"


def print_table(report: RewriteRunReport[Any], columns: Sequence[TableColumn[Any]], screen: Screen) -> None:
    screen.partitions(report.partitions, columns, dry_run=report.dry_run)
    screen.failed(report.partitions)
    screen.reasons(row for row in report.partitions if row.status in (SKIPPED, UNCHANGED))
