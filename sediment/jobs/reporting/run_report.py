"""RunReport: what a run did, from which the table for people and the JSON for programs both derive."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.table import Table

from sediment.jobs.command_line.standard_output import SafeConsole
from sediment.segment_io.printable import encodable

SCHEMA = 1

COMPACTED = "compacted"
SKIPPED = "skipped"
FAILED = "failed"
QUARANTINED = "quarantined"

TOMBSTONES_KEPT = "tombstones-kept"

_NO_FOLDING_COLUMNS = 1 << 14
_LEAST_COLUMNS = 20
_LIMITS = ("max-bytes", "max-seconds")
_MOST_SENTENCES = 30
_MOST_NAMED = 10

StripSegment = tuple[int, int, str]
"""One segment of a strip: base offset, `.log` bytes, state."""

CLEAN_SEGMENT = "clean"
DIRTY_SEGMENT = "dirty"
ACTIVE_SEGMENT = "active"
REWRITTEN_SEGMENT = "rewritten"
KEPT_SEGMENT = "kept"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition.  Offsets are log offsets, bytes are `.log` bytes of the whole partition, None where not known.

    `key_equality` says by what two keys were one: `hash` or `exact`.  `dirty_ratio` is the log's before the run.
    `tombstones_waiting` are those in the cleaned part; the batches they are in lose them from `first_delete_horizon_ms`
    to `last_delete_horizon_ms` on.  The strips are the segments before and after, ascending.  `seconds_by_stage` are
    those of the partition's task and of its commit.

    `keeps_tombstones` is True if batches got no delete horizon because `delete.retention.ms` is not stated. The reason
    code can name only one of several findings, and programs know that code, so this field is not in the JSON.
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
    keeps_tombstones: bool = False


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of a command.  `now_ms` is the clock of every rule, `seconds` the wall time.

    `seconds_by_stage` holds the driver's wall time, and for stages that tasks do the sum over tasks that ran side by
    side.
    """

    run_id: str
    command: str
    now_ms: int
    seconds: float
    dry_run: bool
    partitions: tuple[PartitionReport, ...]
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)

    def failed(self) -> bool:
        """Whether the exit status is to be 1."""
        return any(partition.status in (FAILED, QUARANTINED) for partition in self.partitions)


def report_json(report: RunReport) -> str:
    """The one JSON object of `--json`."""
    fields = asdict(report)
    for partition in fields["partitions"]:
        del partition["keeps_tombstones"]
    return json.dumps({"schema": SCHEMA, **fields, "seconds": round(report.seconds, 3)})


def read_report(text: str) -> Any:
    """Return the JSON document `text` with every string encodable, for what stores or shows it.

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


def utc_time(ms: int) -> str:
    """A moment for people, to the second; the number itself where no calendar has it."""
    try:
        return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def human_bytes(size_bytes: int) -> str:
    """A size for people, with a unit of 1000."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def result_console() -> Console:
    """stdout; where it is no terminal and $COLUMNS is silent, as wide as any row: a folded name cannot be searched.

    A width that shows nothing, such as COLUMNS=0, counts as not given.
    """
    console = SafeConsole()
    is_given = console.is_terminal or "COLUMNS" in os.environ
    return console if is_given and console.width >= _LEAST_COLUMNS else SafeConsole(width=_NO_FOLDING_COLUMNS)


def print_report(report: RunReport, console: Console) -> None:
    """The table for people."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column, justify in (
        ("partition", "left"),
        ("status", "left"),
        ("segments", "right"),
        ("records", "right"),
        ("bytes", "right"),
        ("saved", "right"),
    ):
        table.add_column(
            column, justify="right" if justify == "right" else "left", no_wrap=column != "partition", overflow="fold"
        )
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
    """Return True if no line of the partition's own says so: its whole reason is printed where batches are damaged."""
    return partition.keeps_tombstones and not partition.corrupt_batches


def print_failures(failures: Iterable[tuple[str, str | None]], console: Console) -> None:
    """Print why partitions, (name, reason), failed; those of one reason share a line."""
    names: dict[str | None, list[str]] = {}
    for name, reason in failures:
        names.setdefault(reason, []).append(name)
    for reason, found in names.items():
        console.print(f"{_named(found)}: {reason}", style="red", soft_wrap=True, markup=False)


def _why_skipped(report: RunReport) -> list[str]:
    """Why partitions were skipped, those of one reason in one sentence; many would hide what failed."""
    names: dict[str, list[str]] = {}
    for partition in report.partitions:
        if partition.status == SKIPPED and partition.reason and partition.reason_code not in _LIMITS:
            names.setdefault(partition.reason, []).append(partition.partition)
    sentences = [f"{_named(found)}: {reason}" for reason, found in names.items()]
    left = sum(len(found) for found in list(names.values())[_MOST_SENTENCES:])
    more = [f"{left} more partitions were skipped; --json has the reason of each"] if left else []
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


def _summary(report: RunReport) -> str:
    counts = {
        status: sum(partition.status == status for partition in report.partitions)
        for status in (COMPACTED, SKIPPED, FAILED, QUARANTINED)
    }
    done = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no partitions"
    before = sum(p.bytes_before for p in report.partitions if p.status == COMPACTED)
    after = sum(p.bytes_after for p in report.partitions if p.status == COMPACTED)
    verb = "would go" if report.dry_run else "went"
    size = f"; {human_bytes(before)} {verb} to {human_bytes(after)}" if counts[COMPACTED] else ""
    return f"{done}{size} in {report.seconds:.1f} s (run {report.run_id})"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Skippable(Protocol):
    """A report of one partition."""

    @property
    def partition(self) -> str:
        """The name of the partition."""
        ...

    @property
    def status(self) -> str:
        """The outcome."""
        ...

    @property
    def reason_code(self) -> str | None:
        """The reason for programs."""
        ...

    @property
    def reason(self) -> str | None:
        """The reason for people."""
        ...

    @property
    def bytes_before(self) -> int:
        """Bytes of its segments before the run."""
        ...


def skipped_lines(partitions: Iterable[Skippable], *, short: Collection[str] = ()) -> list[str]:
    """Return one line for each reason that partitions were skipped for, that with most bytes first.

    It holds the reason code, the number of partitions, their bytes, and the sentence of the largest of them; codes in
    `short` go without the sentence.
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
