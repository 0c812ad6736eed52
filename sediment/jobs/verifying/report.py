"""Report of `verify`, the source of both the table for people and the JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sediment.jobs.reporting.columns import (
    TableColumn,
    change_column,
    name_and_status,
    offset_column,
    status_text,
)
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import FAILED, SKIPPED, RunReport
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.reporting.statuses import BAD_STATUSES
from sediment.segment_io.errors import PartitionFailure
from sediment.verification.report import CORRECT, WRONG, Difference, PairReport

NOT_CHANGED = "not-changed"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VerificationReport(RunReport[PairReport]):
    """Report of a run of `verify`."""

    row_type: ClassVar[type] = PairReport

    def failures(self) -> tuple[PartitionFailure, ...]:
        """Return the partitions that failed or are wrong; the reason of a wrong partition is its first difference."""
        return tuple(
            PartitionFailure(partition.partition, partition.after, *_why(partition))
            for partition in self.partitions
            if partition.status in BAD_STATUSES
        )


def _why(partition: PairReport) -> tuple[str | None, str | None]:
    if partition.status != WRONG or not partition.differences:
        return partition.reason_code, partition.reason
    first = partition.differences[0]
    return first.check, f"{first.check}{_place(first)}: {first.what}"


def _place(difference: Difference) -> str:
    return "" if difference.offset is None else f" at offset {difference.offset}"


def _is_empty(partition: PairReport) -> bool:
    return partition.status == CORRECT and not partition.records_before and not partition.records_after


def print_report(report: VerificationReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, is_empty=_is_empty)
    screen.failures((p.partition, p.reason) for p in report.partitions if p.status == FAILED)
    screen.failures(
        (
            (partition.partition, f"{difference.check}{_place(difference)}: {difference.what}")
            for partition in report.partitions
            for difference in partition.differences
        ),
        noun="difference",
    )
    # The files of a skipped partition are not compared, so the report has no size of them.
    screen.reasons((p for p in report.partitions if p.status == SKIPPED), size_of=lambda _: None)
    for partition in report.partitions:
        if partition.batches_reencoded:
            screen.say(f"{partition.partition}: {_reencoded(partition)}")
    if any((partition.checks or {}).get("tombstones") for partition in report.partitions):
        screen.say("if several compactions lie between BEFORE and AFTER, --since-ms must be the time of the first")
    unchanged = sum(partition.status == SKIPPED for partition in report.partitions)
    right = sum(partition.status == CORRECT for partition in report.partitions)
    empty = sum(map(_is_empty, report.partitions))
    others = f", {empty} of them without records" if empty else ""
    others += f", {unchanged} did not change" if unchanged else ""
    compared = counted(len(report.partitions) - unchanged, "partition")
    screen.say(
        f"{right} of {compared} {'is' if compared.startswith('1 ') else 'are'} a correct compaction{others}; "
        f"{report.seconds:.1f} s (run {report.run_id})"
    )


def _reencoded(partition: PairReport) -> str:
    named = ", ".join(
        f"{batch.base_offset}–{batch.last_offset}" + (f" (from {batch.originals})" if batch.originals > 1 else "")
        for batch in partition.reencoded
    )
    more = partition.batches_reencoded - len(partition.reencoded)
    counted = "1 batch is" if partition.batches_reencoded == 1 else f"{partition.batches_reencoded} batches are"
    return f"{counted} re-encoded: {named}" + (f" and {more} more" if more else "")


def _status(partition: PairReport) -> str:
    wrong = [name for name, count in (partition.checks or {}).items() if count]
    return f"{partition.status}: {', '.join(wrong)}" if wrong else status_text(partition)


COLUMNS: tuple[TableColumn[PairReport], ...] = (
    *name_and_status(_status),
    change_column(
        "records",
        lambda row: None if row.status == SKIPPED else row.records_before,
        lambda row: row.records_after,
        shown="{:,}".format,
    ),
    offset_column("cleaned to", lambda row: row.next_dirty_offset, rank=1),
    change_column("bytes", lambda row: row.bytes_before, lambda row: row.bytes_after, shown=human_bytes, rank=2),
)
