"""Report of a run of `clone`: partitions, topics, and the commands that restore changed configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sediment.jobs.reporting.columns import TableColumn, bytes_column, name_and_status, text_column
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import (
    AFTER_PARTITIONS,
    QUARANTINED,
    SKIPPED,
    PartitionOutcome,
    RunReport,
    json_fields,
)
from sediment.jobs.reporting.screen import Screen

CLONED, UNCHANGED = "cloned", "unchanged"

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PartitionCloneReport(PartitionOutcome):
    """Report of one partition, by its name in the clone.

    `source` is the partition directory that was copied; in the JSON this field is called `from`.  `log_dir` is the log
    directory that contains `source`.  With `--suppress`, `records_suppressed` counts the records that were left out.
    The number is 0 if the list has no key of the topic.  With `--compact`, `compacted` is False if the log was copied
    unchanged, and `reason` gives the cause.  `bytes_before` is the size of the log before its compaction.
    `records_without_key` counts the records that were dropped because they have no key, or because of which the log
    was copied unchanged.
    """

    source: str | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    bytes: int = 0
    linked_bytes: int = 0
    leader_epoch: int | None = None
    open_transactions: int = 0
    ended_transactions: int = 0
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    records_suppressed: int | None = None
    compacted: bool | None = None
    bytes_before: int | None = None
    messages_read: int | None = None
    messages_written: int | None = None
    records_without_key: int | None = None


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic of the clone; `empty_partitions` start without records."""

    name: str
    topic_id: str
    partitions: int
    source_name: str
    empty_partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedConfig:
    """A topic config that differs from the source; a value is None if the config is not set.

    `held` is True if the original value can be restored later, and False if a single node cannot have that value.
    """

    topic: str
    key: str
    original: str | None
    value: str | None
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CloneRunReport(RunReport[PartitionCloneReport]):
    """Report of a run of `clone`; if `is_complete` is False, the directory is unusable and the next run starts over."""

    row_type: ClassVar[type] = PartitionCloneReport

    to: str
    cluster_id: str
    node_id: int
    held: bool
    is_complete: bool
    server_properties: str
    topics: tuple[TopicReport, ...] = ()
    changed_configs: tuple[ChangedConfig, ...] = field(default=(), metadata=AFTER_PARTITIONS)
    restore: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)
    """Commands that restore the configs that the run changed."""

    notes: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)

    def json_of(self, partition: PartitionCloneReport) -> dict[str, Any]:
        values = json_fields(partition)
        values["from"] = values.pop("source")
        return values


def _offsets(partition: PartitionCloneReport) -> str:
    if partition.log_start_offset is None:
        return ""
    return f"{partition.log_start_offset:,} … {partition.log_end_offset:,}"


COLUMNS: tuple[TableColumn[PartitionCloneReport], ...] = (
    *name_and_status(),
    text_column("from", lambda row: row.source or "", rank=2),
    text_column("offsets", _offsets, rank=1),
    bytes_column("bytes", lambda row: row.bytes),
)


def _is_empty(partition: PartitionCloneReport) -> bool:
    has_ends = partition.status == CLONED and partition.log_start_offset is not None
    return has_ends and partition.log_start_offset == partition.log_end_offset


def print_report(report: CloneRunReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, is_empty=_is_empty)
    screen.warnings(report.partitions)
    screen.failed(report.partitions)
    screen.reasons(
        (each for each in report.partitions if each.status in (SKIPPED, CLONED, UNCHANGED) and each.reason),
        size_of=lambda row: row.bytes,
    )
    lines = list(report.notes)
    if report.held:
        lines.append(
            "The topics of the clone are on hold: nothing expires and nothing is cleaned.  To end the hold, remove "
            "the comment # Held and the lines after it from the clone's server.properties"
            + (", and run:" if report.restore else ".")
        )
        lines += [f"  {command}" for command in report.restore[:_SHOWN]]
        if len(report.restore) > _SHOWN:
            lines.append(f"  and {len(report.restore) - _SHOWN} more; --json has all of them")
    for line in [*lines, _summary(report)]:
        screen.say(line)


def _summary(report: CloneRunReport) -> str:
    cloned = sum(each.status in (CLONED, UNCHANGED, QUARANTINED) for each in report.partitions)
    unchanged = sum(each.status == UNCHANGED for each in report.partitions)
    empty = sum(map(_is_empty, report.partitions))
    of_them = f", {unchanged} of them unchanged" if unchanged else ""
    of_them += f", {empty} of them empty" if empty else ""
    if not report.is_complete:
        return f"{report.to} is not complete; run again to start over (run {report.run_id})"
    return (
        f"{counted(cloned, 'partition')} of {counted(len(report.topics), 'topic')} cloned to {report.to} in "
        f"{report.seconds:.1f} s{of_them}; start a broker with {report.server_properties} (run {report.run_id})"
    )
