"""Report of a run; the table for people and the JSON for programs are both made from it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from sediment.jobs.command_line.standard_output import SafeConsole
from sediment.jobs.reporting.arrow_rows import INTERNAL, arrow_table
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.result import Result, page_in_notebook
from sediment.segment_io.errors import PartitionFailure, RunFailedError
from sediment.segment_io.format.names import by_number
from sediment.segment_io.printable import encodable

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 1

COMPACTED = "compacted"
SKIPPED = "skipped"
FAILED = "failed"
QUARANTINED = "quarantined"
WRONG = "wrong"
REFUSED = "refused"
BAD_STATUSES = frozenset({FAILED, QUARANTINED, WRONG, REFUSED})
"""Statuses of a partition that make the exit status 1."""

POLICY_UNKNOWN = "policy-unknown"
RETENTION_UNKNOWN = "retention-unknown"
TOMBSTONES_KEPT = "tombstones-kept"
UNSTATED_CODES = frozenset({POLICY_UNKNOWN, RETENTION_UNKNOWN, TOMBSTONES_KEPT})
"""Reason codes of partitions whose result depends on a setting that no source states."""

AFTER_PARTITIONS = {"after_partitions": True}
"""Metadata of a field that follows `partitions` in the JSON of its report."""

_NO_FOLDING_COLUMNS = 1 << 14
_LEAST_COLUMNS = 20
_LIMITS = ("max-bytes", "max-seconds")
_MOST_SENTENCES = 30
_MOST_NAMED = 10

CLEAN_SEGMENT = "clean"
DIRTY_SEGMENT = "dirty"
ACTIVE_SEGMENT = "active"
REWRITTEN_SEGMENT = "rewritten"
KEPT_SEGMENT = "kept"


class StripSegment(NamedTuple):
    """Segment of a strip: base offset, `.log` bytes, state."""

    base_offset: int
    bytes: int
    state: str


class OutcomeReport(Protocol):
    """Report of one partition, possibly as a part of another report."""

    @property
    def status(self) -> str:
        """Outcome."""
        ...

    @property
    def partition(self) -> str:
        """Name of the partition."""
        ...

    @property
    def reason_code(self) -> str | None:
        """Reason for programs."""
        ...

    @property
    def reason(self) -> str | None:
        """Reason for people."""
        ...


class LocatedReport(Protocol):
    """Report of one partition of a log directory."""

    @property
    def partition(self) -> str:
        """Name of the partition."""
        ...

    @property
    def log_dir(self) -> str:
        """Log directory."""
        ...


Partition = TypeVar("Partition", bound=OutcomeReport)
Located = TypeVar("Located", bound=LocatedReport)


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Report of one partition.  Offsets are log offsets, bytes are `.log` bytes of the whole partition; None: unknown.

    `key_equality` is the method of comparing keys: `hash` or `exact`.  `dirty_ratio` is the ratio before the run.
    `tombstones_waiting` counts the tombstones in the cleaned part; the delete horizons of their batches lie between
    `first_delete_horizon_ms` and `last_delete_horizon_ms`.  The strips are the segments before and after, ascending.
    `seconds_by_stage` covers the partition's task and its commit.

    `keeps_tombstones` is True if batches got no delete horizon because `delete.retention.ms` is not stated.  It is a
    separate field because a report has only one reason code, which may be another.  The JSON omits it.
    """

    partition: str
    log_dir: str
    status: str
    reason_code: str | None
    reason: str | None
    strategy: str | None = None
    key_equality: str | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    next_dirty_offset: int | None = None
    messages_read: int = 0
    messages_written: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments: tuple[int, ...] = ()
    groups_rewritten: int = 0
    groups_skipped: int = 0
    corrupt_batches: int = 0
    dirty_ratio: float | None = None
    tombstones_waiting: int | None = None
    first_delete_horizon_ms: int | None = None
    last_delete_horizon_ms: int | None = None
    strip_before: tuple[StripSegment, ...] = ()
    strip_after: tuple[StripSegment, ...] = ()
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)
    keeps_tombstones: bool = field(default=False, metadata=INTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunReport(Result, Generic[Partition]):
    """Report of one run of a command.  `now_ms` is the clock of every rule, `seconds` the wall time.

    Commands add fields in a subclass.  In the JSON, these come before `partitions`, or after it if their metadata are
    `AFTER_PARTITIONS`.
    """

    row_type: ClassVar[type]
    """Class of `partitions`."""

    run_id: str
    command: str
    now_ms: int
    seconds: float
    partitions: tuple[Partition, ...]
    fails_on_unknown: bool = field(default=False, metadata=INTERNAL)
    """True if the run counts as failed when the result for a partition depends on a setting that no source states."""

    @property
    def failed(self) -> bool:
        """True if a partition failed; the others are done."""
        return bool(self.failures())

    def failures(self) -> tuple[PartitionFailure, ...]:
        """Return the partitions that failed, with the reasons."""
        return tuple(
            PartitionFailure(
                partition.partition, getattr(partition, "log_dir", None), partition.reason_code, partition.reason
            )
            for partition in self.partitions
            if partition.status in BAD_STATUSES or (self.fails_on_unknown and _has_unstated(partition))
        )

    def raise_for_status(self) -> Self:
        """Return this report if no partition failed.

        Raises:
            RunFailedError: partitions failed; it names them with their reasons.
        """
        failures = self.failures()
        if failures:
            raise RunFailedError(
                f"{len(failures)} of {counted(len(self.partitions), 'partition')} failed in {self.command}",
                failures=failures,
            )
        return self

    def to_json(self) -> str:
        """Return the one JSON object of `--json`: schema, header, fields of the command and partitions."""
        values = asdict(self)
        internal = {each.name for each in fields(self) if each.metadata == INTERNAL}
        later = {each.name for each in fields(self) if each.metadata == AFTER_PARTITIONS}
        first = values.keys() - internal - later - {"partitions"}
        ordered = {name: value for name, value in values.items() if name in first}
        hidden = {each.name for each in fields(self.row_type) if each.metadata == INTERNAL}
        ordered["partitions"] = [
            {name: value for name, value in partition.items() if name not in hidden}
            for partition in values["partitions"]
        ]
        ordered |= {name: value for name, value in values.items() if name in later}
        return json.dumps({"schema": SCHEMA, **ordered, "seconds": round(self.seconds, 3)})

    def to_arrow(self) -> pa.Table:
        """Return the partitions as a `pyarrow.Table`, with a column for each field."""
        return arrow_table(self.row_type, self.partitions)

    def __repr__(self) -> str:
        counts = Counter(partition.status for partition in self.partitions)
        outcome = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no partitions"
        return f"<{type(self).__name__} of run {self.run_id}: {outcome}>"

    def _repr_html_(self) -> str:
        """Return the HTML report of the run, in a separate frame."""
        from sediment.jobs.reporting.html_page import render_html

        return page_in_notebook(render_html(read_report(self.to_json())), f"sediment {self.command} {self.run_id}")


def _has_unstated(partition: object) -> bool:
    """Return True if the result for a partition depends on a setting that no source states."""
    return any(
        getattr(report, "reason_code", None) in UNSTATED_CODES or getattr(report, "keeps_tombstones", False)
        for report in (partition, getattr(partition, "retention", None))
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompactionRunReport(RunReport[PartitionReport]):
    """Report of a run of `compact`.

    `seconds_by_stage` has the driver's wall time; for stages in tasks it has the sum over all tasks, which may run in
    parallel.
    """

    row_type: ClassVar[type] = PartitionReport

    dry_run: bool
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict, metadata=AFTER_PARTITIONS)


def in_order(reports: Iterable[Located]) -> tuple[Located, ...]:
    """Return the partition reports by log directory, topic and number."""
    return tuple(sorted(reports, key=lambda report: (report.log_dir, by_number(report.partition))))


def read_report(text: str) -> Any:
    """Return the JSON document `text` with every string encodable, so it can be stored and shown.

    Raises:
        ValueError: `text` is not JSON.
    """
    return _encodable(json.loads(text))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(name): _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def result_console() -> Console:
    """Return a console on stdout, wide enough for any row if stdout is not a terminal and $COLUMNS is not set.

    In a narrow console, names are folded and cannot be searched.  A width that is too small for a table, such as
    COLUMNS=0, is ignored.
    """
    console = SafeConsole()
    is_given = console.is_terminal or "COLUMNS" in os.environ
    return console if is_given and console.width >= _LEAST_COLUMNS else SafeConsole(width=_NO_FOLDING_COLUMNS)


def report_table(text: Sequence[str], numbers: Sequence[str], **style: Any) -> Table:
    """Return a table with left-aligned columns `text` and right-aligned columns `numbers`.

    Only the first column folds, because the name of a partition may be long.
    """
    table = Table(**{"box": box.SIMPLE_HEAD, "pad_edge": False, **style})
    justified: list[tuple[str, JustifyMethod]] = [(name, "left") for name in text]
    justified += [(name, "right") for name in numbers]
    for name, justify in justified:
        table.add_column(name, justify=justify, no_wrap=name != text[0], overflow="fold")
    return table


def print_report(report: CompactionRunReport, console: Console) -> None:
    """Print the table for people."""
    table = report_table(("partition", "status"), ("segments", "records", "bytes", "saved"), padding=(0, 1, 0, 0))
    for partition in report.partitions:
        table.add_row(*_cells(partition))
    console.print(table)
    console.print(_summary(report))
    for limit in _LIMITS:
        left = [partition.partition for partition in report.partitions if partition.reason_code == limit]
        if left:
            console.print(f"not done because of --{limit}: {', '.join(left)}", soft_wrap=True, markup=False)
    kept = [partition.partition for partition in report.partitions if _only_keeps_tombstones(partition)]
    if kept:
        console.print(
            f"{_named(kept)}: tombstones and markers without a delete horizon stay, because delete.retention.ms is not "
            "stated; give --config FILE or --set TOPIC:delete.retention.ms=MS",
            style="yellow",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    for sentence in _why_skipped(report):
        console.print(sentence, soft_wrap=True, markup=False, highlight=False)
    print_failures(((p.partition, p.reason) for p in report.partitions if p.status in (FAILED, QUARANTINED)), console)
    for partition in report.partitions:
        if partition.status not in (FAILED, QUARANTINED) and partition.corrupt_batches:
            console.print(f"{partition.partition}: {partition.reason}", style="yellow", soft_wrap=True, markup=False)


def _only_keeps_tombstones(partition: PartitionReport) -> bool:
    """Return True if only tombstones were kept; a partition with corrupt batches gets a separate line."""
    return partition.keeps_tombstones and not partition.corrupt_batches


def print_failures(failures: Iterable[tuple[str, str | None]], console: Console) -> None:
    """Print the reasons of failed partitions, (name, reason); partitions with the same reason share a line."""
    names: dict[str | None, list[str]] = {}
    for name, reason in failures:
        names.setdefault(reason, []).append(name)
    for reason, found in names.items():
        console.print(f"{_named(found)}: {reason}", style="red", soft_wrap=True, markup=False)


def _why_skipped(report: CompactionRunReport) -> list[str]:
    """Return one line for each reason why partitions were skipped; a line for each partition would hide failures."""
    names: dict[str, list[str]] = {}
    for partition in report.partitions:
        if partition.status == SKIPPED and partition.reason and partition.reason_code not in _LIMITS:
            names.setdefault(partition.reason, []).append(partition.partition)
    sentences = [f"{_named(found)}: {reason}" for reason, found in names.items()]
    left = sum(len(found) for found in list(names.values())[_MOST_SENTENCES:])
    more = [f"{left} more partitions were skipped; --json gives their reasons"] if left else []
    return sentences[:_MOST_SENTENCES] + more


def _named(partitions: Sequence[str]) -> str:
    left = len(partitions) - _MOST_NAMED
    more = f" and {left} more ({len(partitions)} partitions)" if left > 0 else ""
    return ", ".join(partitions[:_MOST_NAMED]) + more


def _cells(partition: PartitionReport) -> tuple[str, ...]:
    if partition.status != COMPACTED:
        why = f"{partition.status}: {partition.reason_code}" if partition.reason_code else partition.status
        return partition.partition, why, str(partition.segments_before), "", human_bytes(partition.bytes_before), ""
    saved = partition.bytes_before - partition.bytes_after
    share = f"{saved / partition.bytes_before:.0%}" if partition.bytes_before else "0%"
    return (
        partition.partition,
        partition.status,
        f"{partition.segments_before} → {len(partition.segments)}",
        f"{partition.messages_read:,} → {partition.messages_written:,}",
        f"{human_bytes(partition.bytes_before)} → {human_bytes(partition.bytes_after)}",
        share,
    )


def _summary(report: CompactionRunReport) -> str:
    counts = {
        status: sum(partition.status == status for partition in report.partitions)
        for status in (COMPACTED, SKIPPED, FAILED, QUARANTINED)
    }
    done = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no partitions"
    before = sum(p.bytes_before for p in report.partitions if p.status == COMPACTED)
    after = sum(p.bytes_after for p in report.partitions if p.status == COMPACTED)
    verb = "would shrink" if report.dry_run else "shrank"
    size = f"; {human_bytes(before)} {verb} to {human_bytes(after)}" if counts[COMPACTED] else ""
    return f"{done}{size} in {report.seconds:.1f} s (run {report.run_id})"


class Skippable(Protocol):
    """Report of one partition."""

    @property
    def partition(self) -> str:
        """Name of the partition."""
        ...

    @property
    def status(self) -> str:
        """Outcome."""
        ...

    @property
    def reason_code(self) -> str | None:
        """Reason for programs."""
        ...

    @property
    def reason(self) -> str | None:
        """Reason for people."""
        ...

    @property
    def bytes_before(self) -> int:
        """Bytes of its segments before the run."""
        ...


def skipped_lines(partitions: Iterable[Skippable], *, short: Collection[str] = ()) -> list[str]:
    """Return one line for each reason why partitions were skipped; the reason with the most bytes comes first.

    A line has the reason code, the number of partitions, their bytes, and the reason of the largest one; for codes in
    `short` the reason is left out.
    """
    groups: dict[str, list[Skippable]] = {}
    for partition in partitions:
        if partition.status == SKIPPED:
            groups.setdefault(partition.reason_code or SKIPPED, []).append(partition)
    sizes = {code: sum(partition.bytes_before for partition in found) for code, found in groups.items()}
    lines = []
    for code in sorted(groups, key=lambda code: (-sizes[code], code)):
        largest = max(groups[code], key=lambda partition: partition.bytes_before)
        sentence = "" if code in short or not largest.reason else f"; {largest.partition}: {largest.reason}"
        lines.append(f"{code}: {counted(len(groups[code]), 'partition')} with {human_bytes(sizes[code])}{sentence}")
    return lines
