"""Report of `snapshot`: the table for people and the JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sediment.jobs.reporting.columns import TableColumn, name_and_status, number_column, offset_column
from sediment.jobs.reporting.run_report import FAILED, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen

REFRESHED = "refreshed"
REBUILT = "rebuilt"


@dataclass(frozen=True, slots=True)
class PartitionSnapshot(PartitionOutcome):
    """Result of one partition: `messages_read` records were read from the offsets [`first_offset`, `next_offset`)."""

    first_offset: int | None = None
    next_offset: int | None = None
    messages_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SnapshotReport(RunReport[PartitionSnapshot]):
    """Report of a run of `snapshot`.

    `version` is the version of the table after the run.  The numbers of rows come from Delta; they are None if Delta
    reported none.
    """

    row_type: ClassVar[type] = PartitionSnapshot

    to: str
    version: int | None
    rows_inserted: int | None
    rows_updated: int | None
    rows_deleted: int | None


COLUMNS: tuple[TableColumn[PartitionSnapshot], ...] = (
    *name_and_status(),
    offset_column("from", lambda row: row.first_offset, rank=1),
    offset_column("to", lambda row: row.next_offset, rank=1),
    number_column("records", lambda row: row.messages_read),
)


def _rows_changed(report: SnapshotReport) -> str:
    changes = (
        (report.rows_inserted, "inserted"),
        (report.rows_updated, "updated"),
        (report.rows_deleted, "deleted"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in changes if count) or "no change"


def print_report(report: SnapshotReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS)
    screen.failed(report.partitions)
    screen.reasons(p for p in report.partitions if p.reason and p.status != FAILED)
    version = "" if report.version is None else f", version {report.version}"
    screen.say(f"rows: {_rows_changed(report)}{version} in {report.seconds:.1f} s (run {report.run_id})")
