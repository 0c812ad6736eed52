"""Report of `recover`: the table for people and the JSON for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from sediment.jobs.reporting.columns import (
    TableColumn,
    bytes_column,
    is_stopped,
    name_and_status,
    number_column,
    status_word,
    text_column,
)
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, FAILED, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen, named, namer
from sediment.jobs.reporting.statuses import UNCHANGED
from sediment.jobs.settings.damaged_files import DamagedFile
from sediment.segment_io.errors import RunFailedError
from sediment.segment_io.format.names import by_number

RECORDS_MISSING = "records-missing"

_BASE_OFFSET = re.compile(r"\b\d{20}\b")


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """Segment of a loaded log; `largest_timestamp` is in ms."""

    base_offset: int
    bytes: int
    offset_index_entries: int
    time_index_entries: int
    next_offset: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class MissingReport:
    """Offsets whose records are gone, both ends inclusive; `kind` is `hole` or `log-end`, and `what` is a sentence."""

    kind: str
    first_offset: int
    last_offset: int
    what: str


@dataclass(frozen=True, slots=True)
class RecoveryReport(PartitionOutcome):
    """Report of one partition after a load like that of a starting broker; offsets are None if the load failed.

    Each of `producers` is (id, last sequence).  Each of `aborted` is an aborted transaction: producer id, first offset,
    last offset, last stable offset.  `damage` lists corruption in segments that a broker does not check at its start;
    this corruption stays unchanged.  `housekeeping` lists changes that a broker makes silently when it loads a healthy
    log.  Every batch at or after `verified_from_offset` was verified.  `missing_records` lists what the log has lost,
    with or without this run.  `warnings` lists dangers that the run left as they were, because only a person can decide
    about them.  `undo` says how to undo aborts of transactions.

    Source: docs/reference/commands.md, JSON.
    """

    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    first_unstable_offset: int | None = None
    recovery_point: int | None = None
    segments: tuple[SegmentReport, ...] = ()
    producers: tuple[tuple[int, int], ...] = ()
    aborted: tuple[tuple[int, int, int, int], ...] = ()
    repairs: tuple[str, ...] = ()
    housekeeping: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    verified_from_offset: int | None = None
    missing_records: tuple[MissingReport, ...] = ()
    warnings: tuple[str, ...] = ()
    undo: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecoveryRunReport(RunReport[RecoveryReport]):
    """Report of a run of `recover`; a broker treats `clean_directories` as stopped cleanly.

    `damaged_files` are small files of the directories that a person must mend; if a broker does not start on one of
    them, the run counts as failed.  `originals` is the directory of --keep-originals, or the neighbour of the log
    directories that keeps the files of a log from which records were cut off; otherwise None.  `catalogue` is a file in
    this directory; it lists the kept files.
    """

    row_type: ClassVar[type] = RecoveryReport

    dry_run: bool
    clean_directories: tuple[str, ...]
    damaged_files: tuple[DamagedFile, ...] = ()
    originals: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    catalogue: str | None = field(default=None, metadata=AFTER_PARTITIONS)

    @property
    def failed(self) -> bool:
        """True if a partition failed, or if a broker does not start on a directory."""
        return bool(self.failures()) or any(damaged.prevents_start for damaged in self.damaged_files)

    def raise_for_status(self) -> Self:
        """Return this report if no partition failed and a broker starts on the directories.

        Raises:
            RunFailedError: partitions failed, or a file must be mended; the text names the files.
        """
        RunReport.raise_for_status(self)
        fatal = [str(damaged) for damaged in self.damaged_files if damaged.prevents_start]
        if fatal:
            raise RunFailedError("; ".join(fatal))
        return self


def _is_loaded(partition: RecoveryReport) -> bool:
    return partition.log_start_offset is not None


def _offsets(partition: RecoveryReport) -> str:
    return f"{partition.log_start_offset:,} … {partition.log_end_offset:,}" if _is_loaded(partition) else ""


def _bytes(partition: RecoveryReport) -> int | None:
    return sum(segment.bytes for segment in partition.segments) if _is_loaded(partition) else None


def _is_idle(partition: RecoveryReport) -> bool:
    return partition.status != FAILED and not partition.repairs


def _shown_status(partition: RecoveryReport) -> str:
    return UNCHANGED if _is_idle(partition) else status_word(partition)


COLUMNS: tuple[TableColumn[RecoveryReport], ...] = (
    *name_and_status(_shown_status, _shown_status),
    text_column("offsets", _offsets, rank=1),
    number_column("segments", lambda row: len(row.segments) if _is_loaded(row) else None, rank=2),
    bytes_column("bytes", _bytes),
    number_column("repairs", lambda row: len(row.repairs)),
)


def print_report(report: RecoveryRunReport, screen: Screen) -> None:
    has_plans = report.dry_run and not all(map(_is_idle, report.partitions))
    screen.partitions(report.partitions, COLUMNS, is_idle=_is_idle, dry_run=has_plans)
    would = "would be: " if report.dry_run else ""
    name_of = namer(report.partitions)
    for repair, partitions in _repairs(report, is_for_terminal=screen.is_terminal):
        screen.say(f"{named(partitions)}: {would}{repair}")
    screen.warnings(report.partitions)
    for damaged in report.damaged_files:
        screen.say(str(damaged), style="red" if damaged.prevents_start else "yellow")
    screen.failed(report.partitions)
    for partition in report.partitions:
        if partition.status != FAILED and partition.reason is not None:
            screen.say(f"{name_of(partition)}: {partition.reason}")
    for undo, partitions in _undos(report.partitions).items():
        screen.say(f"{named(partitions)}: to undo the abort before anything else writes to the log, {undo}")
    screen.say(_summary(report))


def _repairs(report: RecoveryRunReport, *, is_for_terminal: bool) -> Iterator[tuple[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    name_of = namer(report.partitions)
    for partition in report.partitions:
        for repair in partition.repairs:
            kind = _BASE_OFFSET.sub("N", repair) if is_for_terminal else repair
            found.setdefault(kind, {}).setdefault(repair, []).append(name_of(partition))
    for kind, repairs in found.items():
        partitions = sorted({name for names in repairs.values() for name in names}, key=by_number)
        only, *others = repairs
        yield f"{kind}; a pipe, or --json, names each file" if others else only, partitions


def _undos(partitions: Sequence[RecoveryReport]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name_of = namer(partitions)
    for partition in partitions:
        if partition.undo is not None:
            found.setdefault(partition.undo, []).append(name_of(partition))
    return found


def _summary(report: RecoveryRunReport) -> str:
    stopped = sum(map(is_stopped, report.partitions))
    failed = sum(partition.status == FAILED for partition in report.partitions) - stopped
    repairs = sum(len(partition.repairs) for partition in report.partitions)
    if repairs or failed or stopped:
        verb = "would be recovered" if report.dry_run else "recovered"
        unchanged = sum(map(_is_idle, report.partitions))
        repaired = len(report.partitions) - unchanged - failed - stopped
        counts = f"{repaired} {verb} with {counted(repairs, 'repair')}, {unchanged} unchanged, {failed} failed"
        counts += f", {stopped} stopped" if stopped else ""
    else:
        where = "" if all(map(_is_verified, report.partitions)) else " from their recovery points on"
        counts = f"{len(report.partitions)} checked{where}, nothing to repair"
    return f"{counts}; {report.seconds:.1f} s (run {report.run_id})"


def _is_verified(partition: RecoveryReport) -> bool:
    verified_from = partition.verified_from_offset
    return verified_from is not None and verified_from <= partition.segments[0].base_offset
