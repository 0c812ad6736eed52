"""The report of one log, from what its load and the aborts in it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.loading.log_loader import LoadedLog
from sediment.engine.directory.missing_records import LogLosses
from sediment.engine.directory.repair import Repair
from sediment.jobs.recovering.aborts import AbortedLog
from sediment.jobs.recovering.report import RECORDS_MISSING, MissingReport, RecoveryReport, SegmentReport
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.reporting.statuses import RECOVERED
from sediment.jobs.settings.future_replicas import FUTURE_REPLICA, FutureReplica


def with_repairs(report: RecoveryReport, repairs: Sequence[Repair]) -> RecoveryReport:
    return replace(
        report,
        repairs=tuple(str(repair) for repair in repairs if not repair.is_routine),
        housekeeping=tuple(str(repair) for repair in repairs if repair.is_routine),
    )


def report_of_load(name: str, log_dir: Path, log: LoadedLog) -> RecoveryReport:
    report = RecoveryReport(
        partition=name,
        log_dir=str(log_dir),
        status=FAILED if log.damage else RECOVERED,
        reason_code="corrupt-batch" if log.damage else None,
        reason=_damage_reason(log) if log.damage else None,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        first_unstable_offset=log.first_unstable_offset,
        recovery_point=log.recovery_point,
        segments=tuple(
            SegmentReport(
                segment.base_offset,
                segment.log_bytes,
                segment.offset_index_entries,
                segment.time_index_entries,
                segment.next_offset,
                segment.largest_timestamp_ms,
            )
            for segment in log.segments
        ),
        producers=tuple((key, entry.last_sequence) for key, entry in sorted(log.producers.entries.items())),
        aborted=tuple(
            (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
            for entry in log.aborted
        ),
        damage=tuple(map(str, log.damage)),
        verified_from_offset=log.verified_from_offset,
    )
    return with_repairs(report, log.repairs)


def report_of_aborts(report: RecoveryReport, aborted: AbortedLog) -> RecoveryReport:
    name, log_dir = report.partition, Path(report.log_dir)
    again = report_of_load(name, log_dir, aborted.log)
    repairs = (*again.repairs, *map(str, aborted.repairs))
    report = replace(again, repairs=repairs, warnings=report.warnings, undo=aborted.undo)
    if not aborted.left_open:
        return report
    first = next((left for left in aborted.left_open if left.is_refused), aborted.left_open[0])
    return replace(
        report,
        status=FAILED if first.is_refused else report.status,
        reason_code=first.reason_code,
        reason="; ".join(left.reason for left in aborted.left_open),
    )


def _damage_reason(log: LoadedLog) -> str:
    found = "; ".join(map(str, log.damage))
    return (
        f"{found}. Brokers do not notice this damage. Truncating the log at the damage would lose the records after "
        "it, so nothing was changed; restore the segment from a replica or a backup"
    )


def with_future(report: RecoveryReport, future: FutureReplica) -> RecoveryReport:
    """Return the report of a future replica, which counts as failed if a broker's start loses records by it."""
    sentence = f"it {future.what}; {future.advice}"
    if future.is_dangerous and report.status != FAILED:
        return replace(report, status=FAILED, reason_code=FUTURE_REPLICA, reason=sentence)
    return replace(report, warnings=(*report.warnings, sentence))


def with_losses(report: RecoveryReport, losses: LogLosses) -> RecoveryReport:
    """Return the report with the missing records, for which the partition counts as failed."""
    report = replace(report, warnings=(*report.warnings, *losses.warnings))
    if not losses.missing:
        return report
    found = "; ".join(map(str, losses.missing))
    return replace(
        report,
        status=FAILED,
        reason_code=report.reason_code or RECORDS_MISSING,
        reason=f"{report.reason}; {found}" if report.reason else found,
        missing_records=tuple(
            MissingReport(each.kind, each.first_offset, each.last_offset, str(each)) for each in losses.missing
        ),
    )
