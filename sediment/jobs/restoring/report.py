"""Report of `restore`: the table for people and the JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sediment.engine.directory.originals.history import RESTORED
from sediment.jobs.reporting.columns import TableColumn, change_column, name_and_status, number_column, status_counts
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen, kept_folders

ALREADY_RESTORED = "already-restored"


@dataclass(frozen=True, slots=True)
class RestoreReport(PartitionOutcome):
    """Report of one partition.  `runs` are the undone runs, newest first; `segments` are base offsets after the run."""

    runs: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments: tuple[int, ...] = ()
    files_restored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RestoreRunReport(RunReport[RestoreReport]):
    """Report of a run of `restore`; `catalogues` contains one catalogue of removed files for each undone run."""

    row_type: ClassVar[type] = RestoreReport

    dry_run: bool
    originals: str = field(metadata=AFTER_PARTITIONS)
    catalogues: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)


def _after(partition: RestoreReport, number: int) -> int | None:
    return number if partition.status == RESTORED else None


COLUMNS: tuple[TableColumn[RestoreReport], ...] = (
    *name_and_status(),
    change_column(
        "segments", lambda row: row.segments_before, lambda row: _after(row, len(row.segments)), shown=str, rank=1
    ),
    change_column("bytes", lambda row: row.bytes_before, lambda row: _after(row, row.bytes_after), shown=human_bytes),
    number_column("runs", lambda row: len(row.runs), rank=2),
)


def print_report(report: RestoreRunReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, dry_run=report.dry_run)
    screen.failed(report.partitions)
    screen.say(_summary(report))


def _summary(report: RestoreRunReport) -> str:
    changed = [row for row in report.partitions if row.reason_code != ALREADY_RESTORED]
    unchanged = len(report.partitions) - len(changed)
    counts = [status_counts(changed, dry_run=report.dry_run), f"{unchanged} already restored" if unchanged else ""]
    done = ", ".join(filter(None, counts))
    kept = ""
    if report.originals and report.catalogues:
        kept = f"; the removed files are in {kept_folders(report.originals, report.partitions)}"
    return f"{done or 'no partitions'}{kept}; {report.seconds:.1f} s (run {report.run_id})"
