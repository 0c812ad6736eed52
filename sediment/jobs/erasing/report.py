"""Reports of an erasure, one for each partition and one for the run, and the table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sediment.compaction.rewrite.verdicts import NotReached, Reason
from sediment.jobs.erasing.places import NOT_VISIBLE, Place
from sediment.jobs.reporting.columns import number_column, status_counts, text_column
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS
from sediment.jobs.reporting.screen import Screen, kept_folders
from sediment.jobs.rewriting.report import RewriteReport, RewriteRunReport, columns_with, print_table

ERASED = "erased"

_MOST_OFFSETS = 100


@dataclass(frozen=True, slots=True)
class RecordsNotReached:
    """Matching records that were not erased, for one reason: their number, and their lowest offsets, at most 100."""

    reason_code: str
    records: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EraseReport(RewriteReport):
    """Report of one partition; a dry run reports what would be erased.

    `action` is drop, tombstone or replace; None if the action is unknown, or if the table of verdicts gives an action
    for each record.  `records_scanned` counts the records read in the search; None for a table of verdicts, which needs
    no search.  `records_matched` counts the records found, and `records_erased` counts the records changed.  Records
    that an earlier run erased, and records in `not_reached`, do not count as erased.  `keys_with_older_records` counts
    keys that would lose their newest record but keep an older record.
    """

    action: str | None = None
    records_scanned: int | None = None
    records_matched: int = 0
    records_erased: int = 0
    keys_with_older_records: int = 0
    not_reached: tuple[RecordsNotReached, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EraseRunReport(RewriteRunReport[EraseReport]):
    """Report of a run of `erase`.

    `estimated_seconds` is the estimated time of the rewriting, in a dry run.  `evidence` is the file of the evidence;
    `complete` is True if the evidence covers every replica and no matching record remains.  Both are None without
    evidence.  `not_reached` are places outside the log that may contain erased records.
    """

    row_type: ClassVar[type] = EraseReport

    estimated_seconds: float | None = None
    evidence: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    complete: bool | None = field(default=None, metadata=AFTER_PARTITIONS)
    not_reached: tuple[Place, ...] = field(default=(), metadata=AFTER_PARTITIONS)


def records_not_reached(found: NotReached) -> tuple[RecordsNotReached, ...]:
    rows = []
    for reason in Reason:
        offsets = found.offsets[found.reasons == reason]
        if offsets.size and reason is not Reason.NO_RECORD:
            named = tuple(int(offset) for offset in np.sort(offsets)[:_MOST_OFFSETS])
            rows.append(RecordsNotReached(reason.code, int(offsets.size), named))
    return tuple(rows)


COLUMNS = columns_with(
    (
        text_column("action", lambda row: row.action or "", rank=3),
        number_column("scanned", lambda row: row.records_scanned, rank=4),
        number_column("matched", lambda row: row.records_matched, rank=2),
        number_column("erased", lambda row: row.records_erased),
    )
)


def print_report(report: EraseRunReport, screen: Screen) -> None:
    print_table(report, COLUMNS, screen)
    for row in report.partitions:
        for stays in row.not_reached:
            offsets = _shown(stays.offsets, stays.records)
            screen.say(
                f"{row.partition}: {counted(stays.records, 'record')} not reached, {stays.reason_code}: "
                f"offset {offsets}"
            )
    for line in _place_lines(place for place in report.not_reached if place not in NOT_VISIBLE):
        screen.say(line)
    if kinds := [place.kind for place in report.not_reached if place in NOT_VISIBLE]:
        screen.say(f"not reached, and not visible from here: {', '.join(kinds)}")
    if report.evidence is not None:
        screen.say(f"the evidence is in {report.evidence}" + ("" if report.complete else ", and is incomplete"))
    screen.say(_summary(report))


def _place_lines(places: Iterable[Place]) -> Iterator[str]:
    paths: dict[tuple[str, str], list[str]] = {}
    for place in places:
        paths.setdefault((place.kind, place.advice), []).extend([] if place.path is None else [place.path])
    for (kind, advice), found in paths.items():
        if len(found) > 1:
            yield f"not reached: {kind}, {len(found)} paths such as {found[0]}; {advice}; --json lists all"
        else:
            yield f"not reached: {' '.join([kind, *found])}; {advice}"


def _shown(offsets: Iterable[int], count: int) -> str:
    named = list(offsets)[:10]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return ", ".join(map(str, named)) + more


def _summary(report: EraseRunReport) -> str:
    done = status_counts(report.partitions, dry_run=report.dry_run) or "no partitions"
    erased = counted(sum(row.records_erased for row in report.partitions), "record")
    seconds = f"{report.seconds:.1f} s (run {report.run_id})"
    if report.dry_run:
        takes = "" if report.estimated_seconds is None else f", which takes about {report.estimated_seconds:.0f} s"
        return f"{done}; {erased} would be erased{takes}; counted in {seconds}"
    kept = ""
    if report.originals and report.catalogue:
        kept = f"; the replaced files are in {kept_folders(report.originals, report.partitions)}"
    return f"{done}; {erased} erased{kept}; {seconds}"
