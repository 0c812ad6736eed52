"""Report of `adopt`: the table for people and the JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sediment.jobs.reporting.columns import TableColumn, name_and_status, status_word, text_column
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, SKIPPED, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen
from sediment.segment_io.format.names import METADATA_PARTITION

ADOPTED = "adopted"


@dataclass(frozen=True, slots=True)
class AdoptionReport(PartitionOutcome):
    """Report of one partition; offsets are None if the partition was not loaded."""

    topic_id: str | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    open_transactions: int = 0
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AdoptionRunReport(RunReport[AdoptionReport]):
    """Report of a run of `adopt`.

    `kept` names the copies of the files that the run replaced.  `records` are the metadata records, in the form in
    which kafka-dump-log.sh prints them.  A complete run writes these records; a dry run does not.  `server_properties`
    is None if the node's properties file is not in the directory.
    """

    row_type: ClassVar[type] = AdoptionReport

    dry_run: bool
    cluster_id: str
    node_id: int
    is_complete: bool
    server_properties: str | None
    kept: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)
    records: tuple[dict[str, Any], ...] = field(default=(), metadata=AFTER_PARTITIONS)


def _offsets(partition: AdoptionReport) -> str:
    if partition.log_start_offset is None:
        return ""
    return f"{partition.log_start_offset:,} … {partition.log_end_offset:,}"


COLUMNS: tuple[TableColumn[AdoptionReport], ...] = (
    *name_and_status(status_word),
    text_column("offsets", _offsets, rank=1),
)


def print_report(report: AdoptionRunReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, is_empty=_is_empty, dry_run=report.dry_run)
    screen.failed(report.partitions)
    screen.failures((p.partition, p.reason) for p in report.partitions if p.reason and p.status in (ADOPTED, SKIPPED))
    if report.dry_run:
        for line in _record_lines(report.records, is_for_terminal=screen.is_terminal):
            screen.say(line)
    for line in _summary(report):
        screen.say(line)


def _is_empty(partition: AdoptionReport) -> bool:
    has_ends = partition.status == ADOPTED and partition.log_start_offset is not None
    return has_ends and partition.log_start_offset == partition.log_end_offset


def _record_lines(records: Sequence[Mapping[str, Any]], *, is_for_terminal: bool) -> Iterator[str]:
    if not is_for_terminal:
        yield from map(json.dumps, records)
    elif records:
        types = Counter(record["type"] for record in records)
        numbers = ", ".join(f"{number} {name}" for name, number in types.items())
        yield f"metadata records to write: {numbers}; a pipe, or --json, shows each of them"


def _summary(report: AdoptionRunReport) -> Iterator[str]:
    adopted = sum(each.status == ADOPTED for each in report.partitions)
    found = counted(adopted, "partition")
    if report.dry_run:
        empty = sum(map(_is_empty, report.partitions))
        without = f", {empty} of them empty" if empty else ""
        yield f"{found} would be adopted by node {report.node_id}{without}"
    elif not report.is_complete:
        yield f"the directory was not adopted; run again to continue (run {report.run_id})"
    elif not adopted:
        yield f"node {report.node_id} knows every partition here; nothing changed"
    else:
        start = "" if report.server_properties is None else f", and {report.server_properties} starts a broker on them"
        yield (
            f"{found} adopted by node {report.node_id} of cluster {report.cluster_id}; the topics are on hold{start} "
            f"(run {report.run_id})"
        )
        yield from _how_to_go_back(report)


def _how_to_go_back(report: AdoptionRunReport) -> Iterator[str]:
    logs = [name for name in report.kept if name.startswith(str(METADATA_PARTITION))]
    if logs:
        yield (
            f"to go back before the node starts: remove {METADATA_PARTITION}, and unpack {logs[0]} in the log directory"
        )
