"""Report of a run, the source of both the screen for people and the JSON for programs."""

from __future__ import annotations

import html
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from rich.console import Console

from sediment.jobs.process.standard_output import SafeConsole, stdout_is_terminal
from sediment.jobs.reporting.arrow_rows import INTERNAL, arrow_table, pandas_frame
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.statuses import BAD_STATUSES
from sediment.jobs.settings.unstated_settings import POLICY_UNKNOWN, RETENTION_UNKNOWN
from sediment.segment_io.errors import PartitionFailure, RunFailedError
from sediment.segment_io.format.names import by_number
from sediment.segment_io.printable import encodable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


_HEIGHT = "36rem"


class Result(ABC):
    """Result of a command with rows."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a `pandas.DataFrame`; integers stay exact, even in columns with missing values."""
        return pandas_frame(self.to_arrow())

    def _repr_html_(self) -> str:
        return str(self.to_pandas().to_html(max_rows=20))


def page_in_notebook(page: str, title: str) -> str:
    """Return an HTML frame that shows the document `page`, whose styles and script do not affect the notebook."""
    return (
        f'<iframe title="{html.escape(title)}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {_HEIGHT}; border: 0" srcdoc="{html.escape(encodable(page))}"></iframe>'
    )


SCHEMA = 1

COMPACTED = "compacted"
SKIPPED = "skipped"
FAILED = "failed"
QUARANTINED = "quarantined"
REFUSED = "refused"

TOMBSTONES_KEPT = "tombstones-kept"
UNSTATED_CODES = frozenset({POLICY_UNKNOWN, RETENTION_UNKNOWN, TOMBSTONES_KEPT})
"""Reason codes of partitions whose result depends on a setting that is not stated."""

AFTER_PARTITIONS = {"after_partitions": True}
"""Metadata of a report's field that comes after `partitions` in the JSON."""

ENDLESS_WIDTH = 1 << 14
"""Width of a console for a pipe or a file; every table fits it."""

_LEAST_COLUMNS = 20

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


class NamedReport(Protocol):
    @property
    def partition(self) -> str: ...


class LocatedReport(NamedReport, Protocol):
    @property
    def log_dir(self) -> str: ...


class OutcomeReport(NamedReport, Protocol):
    """Outcome of one partition: its report, or a value from which its report is made."""

    @property
    def status(self) -> str: ...
    @property
    def reason_code(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """What every command reports about a partition of a log directory: its outcome, and the reason if there is one."""

    partition: str
    log_dir: str
    node_id: int | None = field(default=None, kw_only=True)
    status: str
    reason_code: str | None = None
    reason: str | None = None


Partition = TypeVar("Partition", bound=OutcomeReport)
Located = TypeVar("Located", bound=LocatedReport)


@dataclass(frozen=True, slots=True)
class PartitionReport(PartitionOutcome):
    """Report of one partition.  Offsets are log offsets, bytes are `.log` bytes of the whole partition; None: unknown.

    `key_equality` is the method by which keys were compared: `hash` or `exact`.  `dirty_ratio` is the ratio before the
    run.  `batches_encoded` counts the batches that got another codec or size.  `records_without_key` counts the records
    that were dropped because they have no key, or because of which the partition was left alone (`keyless-records`).
    `tombstones_waiting` counts the tombstones in the cleaned part; the delete horizons of their batches are from
    `first_delete_horizon_ms` to `last_delete_horizon_ms`.  `strip_before` and `strip_after` are the segments before and
    after the run, ascending.  `seconds_by_stage` covers the partition's task and its commit.

    `keeps_tombstones` is True if batches got no delete horizon because `delete.retention.ms` is not stated.
    `keeps_tombstones` is a separate field because a report has only one reason code, and another reason may need that
    code.  The JSON omits it.
    """

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
    batches_encoded: int = 0
    records_without_key: int = 0
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
    """Report of one run of a command; `now_ms` is the current time in every rule, and `seconds` is the wall time.

    A command adds fields in a subclass.  In the JSON, the added fields come before `partitions`; fields with the
    metadata `AFTER_PARTITIONS` come after it.
    """

    row_type: ClassVar[type]

    run_id: str
    command: str
    now_ms: int
    seconds: float
    partitions: tuple[Partition, ...]
    fails_on_unknown: bool = field(default=False, metadata=INTERNAL)
    """True: the run counts as failed if the result for a partition depends on a setting that is not stated."""

    @property
    def failed(self) -> bool:
        """True if a partition failed; the others are done."""
        return bool(self.failures())

    def failures(self) -> tuple[PartitionFailure, ...]:
        """Return the failed partitions with their reasons."""
        return tuple(
            PartitionFailure(
                partition.partition, getattr(partition, "log_dir", None), partition.reason_code, partition.reason
            )
            for partition in self.partitions
            if counts_as_failed(partition, fails_on_unknown=self.fails_on_unknown)
        )

    def raise_for_status(self) -> Self:
        """Return this report if no partition failed.

        Raises:
            RunFailedError: partitions failed; the error names them with their reasons.
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
        return "".join(self.json_parts())

    def json_parts(self) -> Iterator[str]:
        """Yield the text of `to_json`, with each partition in a part of its own."""
        before, after = self._json_header()
        yield f'{_json(before)[:-1]}, "partitions": ['
        for number, partition in enumerate(self.partitions):
            yield f"{', ' if number else ''}{_json(self.json_of(partition))}"
        yield f"], {_json(after)[1:]}" if after else "]}"

    def json_lines(self) -> Iterator[str]:
        """Yield the JSON objects of `--json-lines`: the report without its partitions, then each partition."""
        before, after = self._json_header()
        yield _json(before | after)
        yield from map(_json, map(self.json_of, self.partitions))

    def json_of(self, partition: Partition) -> dict[str, Any]:
        """Return the JSON fields of a partition."""
        return json_fields(partition)

    def _json_header(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the JSON fields before `partitions`, and those after it."""
        values = json_fields(self)
        del values["partitions"]
        after = {each.name: values.pop(each.name) for each in fields(self) if each.metadata == AFTER_PARTITIONS}
        return {"schema": SCHEMA, **values, "seconds": round(self.seconds, 3)}, after

    def to_arrow(self) -> pa.Table:
        """Return the partitions as a `pyarrow.Table`, with a column for each field."""
        return arrow_table(self.row_type, self.partitions)

    def __repr__(self) -> str:
        counts = Counter(partition.status for partition in self.partitions)
        outcome = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no partitions"
        return f"<{type(self).__name__} of run {self.run_id}: {outcome}>"

    def _repr_html_(self) -> str:
        from sediment.jobs.reporting.html_page import render_html

        return page_in_notebook(render_html(read_report(self.to_json())), f"sediment {self.command} {self.run_id}")


def json_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a report, or of a value inside a report, without internal fields."""
    # Unlike `asdict`, this function does not copy the values, because reports of 100,000 partitions are large.
    return {each.name: getattr(value, each.name) for each in fields(value) if each.metadata != INTERNAL}


_json: Callable[[Any], str] = json.JSONEncoder(default=json_fields).encode


def counts_as_failed(partition: OutcomeReport, *, fails_on_unknown: bool) -> bool:
    return partition.status in BAD_STATUSES or (fails_on_unknown and _has_unstated(partition))


def _has_unstated(partition: object) -> bool:
    return any(
        getattr(report, "reason_code", None) in UNSTATED_CODES or getattr(report, "keeps_tombstones", False)
        for report in (partition, getattr(partition, "retention", None))
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompactionRunReport(RunReport[PartitionReport]):
    """Report of a run of `compact`.

    For the driver's own stages, `seconds_by_stage` contains their wall time.  For the stages of tasks, it contains the
    sum over all tasks, which may run in parallel.  `originals` and `before` are the directories of --keep-originals and
    --keep-before, with `{log_dir}` in them if each log directory has its own.  `catalogue` lists the originals.
    """

    row_type: ClassVar[type] = PartitionReport

    dry_run: bool
    originals: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    catalogue: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    before: str | None = field(default=None, metadata=AFTER_PARTITIONS)
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict, metadata=AFTER_PARTITIONS)


def in_order(reports: Iterable[Located]) -> tuple[Located, ...]:
    return tuple(sorted(reports, key=lambda report: (by_number(report.partition), report.log_dir)))


def read_report(text: str) -> Any:
    """Return the JSON document `text` with every string encodable in UTF-8, so that it can be stored and shown."""
    return _encodable(json.loads(text))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(name): _encodable(each) for name, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def result_console() -> Console:
    """Return a console on stdout, wide enough for any row if stdout is not a terminal and $COLUMNS is not set."""
    console = SafeConsole()
    is_given = stdout_is_terminal() or "COLUMNS" in os.environ
    # If $COLUMNS is too small for a table, for example 0, it is ignored.
    if is_given and console.width >= _LEAST_COLUMNS:
        return console
    # If no height is given, rich ignores the width when $FORCE_COLOR is set and $TERM is dumb.
    return SafeConsole(width=ENDLESS_WIDTH, height=console.height)
