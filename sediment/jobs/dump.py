"""`sediment dump PATH …`: the contents of a log's files, as a table for people, JSON lines, or Parquet.

`dump` shows everything that kafka-dump-log shows, and more.  Printed rows are read in this process, without Spark, so
the output starts immediately.  Spark writes the Parquet files if there is much data or --master is given.  In both
cases the rows are the same as those of `spark.read.format("kafka-log")`.

Invariants: rows go to stdout as they are read, everything else to stderr; an unfinished output leaves no directory.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import contextlib
import fnmatch
import html
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.exit_status import EXIT_DONE, EXIT_FAILED, errors_as_exit_status
from sediment.jobs.command_line.standard_output import error_console, write_result
from sediment.jobs.completion import complete_partition, complete_path
from sediment.jobs.reporting.columns import TableColumn
from sediment.jobs.reporting.result import Result
from sediment.jobs.reporting.screen import screen_text
from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError, UsageError
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    COORDINATOR_TOPICS,
    decode_control_record,
    decode_coordinator_record,
)
from sediment.segment_io.internal_topics.metadata_records import METADATA_TOPICS, metadata_record_json
from sediment.segment_io.partition.partition_directories import check_patterns
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source, find_sources
from sediment.segment_io.tables import schema
from sediment.segment_io.tables.planning import TableTask, UnreadableRange, parse_range, plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import (
    FAIL,
    ISOLATIONS,
    ON_CORRUPTION,
    READ_UNCOMMITTED,
    SLICED_TABLES,
    TABLES,
    TableRequest,
    arrow_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LOGGER = logging.getLogger(__name__)

SHOWN_ROWS = 1000
SHOWN_CHARACTERS = 60
_HEAD_ROWS = 20
DIRECT_BYTES = 1 << 30  # up to this size, one process writes Parquet files faster than Spark starts

_NAMED_TABLES = {
    SegmentFileKind.LOG: "records",
    SegmentFileKind.OFFSET_INDEX: "offset_index",
    SegmentFileKind.TIME_INDEX: "time_index",
    SegmentFileKind.TRANSACTION_INDEX: "transactions",
    SegmentFileKind.SNAPSHOT: "producers",
}
_DIRECTORY_TABLE = "segments"

_MAIN_COLUMNS = frozenset(
    {
        *("partition", "offset", "key", "value", "baseOffset", "lastOffset", "producerId", "firstOffset"),
        *("epoch", "startOffset", "problem"),
    }
)
"""Columns that people see on a terminal of any width."""

# Columns that people see without --columns; tables that are not listed show all columns.
_SHOWN = {
    "records": ("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    "batches": (
        "topic",
        "partition",
        "position",
        "baseOffset",
        "lastOffset",
        "recordCount",
        "magic",
        "codec",
        "maxTimestamp",
        "producerId",
        "producerEpoch",
        "baseSequence",
        "transactional",
        "controlType",
        "deleteHorizon",
        "leaderEpoch",
        "size",
        "valid",
    ),
    "segments": (
        "topic",
        "partition",
        "baseOffset",
        "active",
        "size",
        "offsetIndexEntries",
        "timeIndexEntries",
        "abortedTransactions",
        "largestTimestamp",
    ),
}
_KEYS_ONLY = ("topic", "partition", "offset", "timestamp", "key", "size")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Options of the output; if `limit` is None, every row is printed.

    With `master`, or with `spark`, which is a session of the caller, Spark writes the output to `to`.
    """

    as_json: bool
    to: Path | None
    limit: int | None
    quiet: bool
    master: str | None
    spark: SparkSession | None = None

    def messages(self) -> Console:
        """Return the console for messages: stderr, silent with --quiet."""
        return error_console(quiet=self.quiet, soft_wrap=True, highlight=False)


class TableDump(Result):
    """Rows of a table of a log's files; each use reads the files again.

    Any library that reads Arrow streams can read it: `polars.DataFrame(dump)`, `duckdb.from_arrow(dump.to_reader())`.
    A row is a dict; its timestamps are ms since the epoch.
    """

    def __init__(self, request: TableRequest, tasks: Sequence[TableTask], limit: int | None) -> None:
        self._request = request
        self._tasks = tasks
        self._limit = limit

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return arrow_schema(self._request.selected())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a `pyarrow.RecordBatchReader`, which holds one batch at a time in memory."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`.

        Raises:
            SedimentError: a file cannot be read.
        """
        import pyarrow as pa

        return pa.Table.from_batches(self._batches(), self.schema)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return _rows(self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<TableDump of {self._request.what}: {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        head = TableDump(self._request, self._tasks, min(self._limit or _HEAD_ROWS, _HEAD_ROWS)).to_pandas()
        return f"<p>{html.escape(self._request.what)}: the first {len(head)} rows</p>{head.to_html()}"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        left = self._limit
        unreadable: list[UnreadableRange] = []
        for batch in _batches(self._request, self._tasks, Fs(), unreadable):
            rows = batch if left is None else batch.slice(0, left)
            yield rows
            left = None if left is None else left - rows.num_rows
            if left == 0:
                break
        if unreadable:
            _LOGGER.warning("%s", _unreadable_text(unreadable))


def dump(request: TableRequest, sources: Sequence[Source], options: DumpOptions) -> int:
    """Print or write the rows of `request` and return the exit status.

    Raises:
        UsageError: `options.to` exists, or a master is given without it.
        SedimentError: a file cannot be read.
    """
    fs = Fs()
    tasks = plan_table(request, sources, fs)
    unreadable: list[UnreadableRange] = []
    status = EXIT_DONE
    if options.to is not None:
        _write(request, sources, tasks, options, options.to, unreadable)
    elif options.master is not None:
        raise UsageError("--master needs --to", advice="leave out --master; rows are printed without Spark")
    else:
        batches = _batches(_with_columns_for_decoding(request), tasks, fs, unreadable)
        status = (_print_json if options.as_json else _print_table)(batches, request, options)
    if unreadable:
        options.messages().print(_unreadable_text(unreadable), markup=False)
    return status


def _unreadable_text(unreadable: Sequence[UnreadableRange]) -> str:
    size_bytes = sum(each.end_position - each.position for each in unreadable)
    return f"{len(unreadable)} unreadable batches, {size_bytes} bytes; the first: {unreadable[0].error}"


def _write(
    request: TableRequest,
    sources: Sequence[Source],
    tasks: Sequence[TableTask],
    options: DumpOptions,
    to: Path,
    unreadable: list[UnreadableRange],
) -> None:
    """Write the rows as Parquet into the new directory `to`; use Spark for many rows or if the caller asks for it."""
    if to.exists():
        raise UsageError("the output exists", path=str(to), advice="name a directory that does not")
    is_asked = options.master is not None or options.spark is not None
    if is_asked or sum(task.size_bytes for task in tasks) > DIRECT_BYTES:
        _write_with_spark(request, sources, options, to)
    else:
        _write_parquet(_batches(request, tasks, Fs(), unreadable), arrow_schema(request.selected()), to)


def _with_columns_for_decoding(request: TableRequest) -> TableRequest:
    """Return `request` with the hidden columns that decoding of keys and values needs."""
    names = tuple(column.name for column in request.selected())
    if request.what != "records" or not {"key", "value"} & set(names):
        return request
    return replace(request, columns=(*names, *(name for name in ("key", "topic", "control") if name not in names)))


def _batches(
    request: TableRequest, tasks: Sequence[TableTask], fs: Fs, unreadable: list[UnreadableRange]
) -> Iterator[pa.RecordBatch]:
    for task in tasks:
        yield from read_table(request, task, fs, on_unreadable=unreadable.append)


# ------------------------------------------------------------------------------------------------------------- Parquet
def _write_parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema, to: Path) -> None:
    import pyarrow.parquet as pq

    to.mkdir(parents=True)
    part = to / "part-00000.parquet"
    try:
        with pq.ParquetWriter(part, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except BaseException:
        Fs().unlink(part, missing_ok=True)
        to.rmdir()
        raise


def _write_with_spark(request: TableRequest, sources: Sequence[Source], options: DumpOptions, to: Path) -> None:
    from sediment.jobs.command_line.progress import stages_of
    from sediment.jobs.spark.session import create_session, require_spark

    require_spark()
    from sediment.jobs.data_source.options import FORMAT

    messages = error_console(quiet=options.quiet)
    try:
        with (
            create_session(options.master, "sediment dump", options.spark) as spark,
            stages_of(spark.sparkContext, messages),
        ):
            spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            reader = spark.read.format(FORMAT)
            for name, value in _as_options(request).items():
                reader = reader.option(name, value)
            reader.load([_path(source) for source in sources]).write.parquet(str(to))
    except BaseException:
        # Remove only our own files, because another process may have written to the directory at the same time.
        with contextlib.suppress(OSError):
            shutil.rmtree(to / "_temporary")
            to.rmdir()
        raise


def _path(source: Source) -> str:
    if source.base_offset is None:
        return str(source.directory)
    return str(source.directory / (source.log_name or segment_file_name(source.base_offset, SegmentFileKind.LOG)))


def _as_options(request: TableRequest) -> dict[str, str]:
    bounds, everything = request.bounds, Bounds()

    def side(value: int, unbounded: int) -> str:
        return "" if value == unbounded else str(value)

    return {
        "what": request.what,
        "columns": ",".join(column.name for column in request.selected()),
        "isolation": request.isolation,
        "on_corruption": request.on_corruption,
        "offsets": f"{side(bounds.first_offset, everything.first_offset)}:"
        f"{side(bounds.end_offset, everything.end_offset)}",
        "timestamps_ms": f"{side(bounds.first_timestamp_ms, everything.first_timestamp_ms)}:"
        f"{side(bounds.end_timestamp_ms, everything.end_timestamp_ms)}",
    }


# ---------------------------------------------------------------------------------------------------------- JSON lines
def _print_json(batches: Iterator[pa.RecordBatch], request: TableRequest, options: DumpOptions) -> int:
    names = [column.name for column in request.selected()]
    rows = _Checked(_rows(batches))
    for row in islice(rows, options.limit):
        write_result(json.dumps(_plain(row, names), ensure_ascii=False, separators=(",", ":")) + "\n")
    return rows.finish(request, options)


class _Checked:
    """Iterator that counts rows; `problems` counts the problems that the table `indexes` finds."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self._rows = rows
        self.count = 0
        self.problems = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            self.count += 1
            self.problems += row.get("problems") or 0
            yield row

    def finish(self, request: TableRequest, options: DumpOptions) -> int:
        """Return the exit status; problems in `indexes` count even if their rows are not shown."""
        if request.what != "indexes":
            return EXIT_DONE
        for _ in self:
            pass
        options.messages().print(f"{self.count} files checked, {self.problems} problems")
        return EXIT_FAILED if self.problems else EXIT_DONE


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries, timestamps as ms since the epoch."""
    import pyarrow as pa

    for batch in batches:
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
        ]
        times = [field.name for field in batch.schema if pa.types.is_timestamp(field.type)]
        for row in pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist():
            for name in times:
                row[name] = None if row[name] is None else row[name] // 1000
            yield row


def _plain(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a row for JSON: printable bytes as text, other bytes as `{"hex": …}`, and known records decoded."""
    decoded = _decoded(row)
    return {name: decoded[name] if name in decoded else _plain_value(row[name]) for name in names}


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        text = _text(value)
        return {"hex": value.hex()} if text is None else text
    if isinstance(value, list):
        return [{name: _plain_value(part) for name, part in pair.items()} for pair in value]
    return value


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoded key and value of a coordinator's or metadata record; empty for other records."""
    if "key" not in row:
        return {}
    key, value = row["key"], row.get("value")
    if row["control"]:
        marker = decode_control_record(key, value)
        return {} if marker is None else {"key": marker, "value": None}
    if row["topic"] in COORDINATOR_TOPICS:
        record = decode_coordinator_record(row["topic"], key, value)
        return {} if record is None else {"key": record.key_json(), "value": record.value_json()}
    if row["topic"] in METADATA_TOPICS and value is not None:
        with contextlib.suppress(UnsupportedDataError, CorruptBatchError):
            return {"value": metadata_record_json(value, row["topic"])}
    return {}


def _text(value: bytes) -> str | None:
    """Return `value` as text if it is UTF-8 without characters that a terminal interprets, else None."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() or character in "\t\n\r" for character in text) else None


# ---------------------------------------------------------------------------------------------------- table for people
def _print_table(batches: Iterator[pa.RecordBatch], request: TableRequest, options: DumpOptions) -> int:
    rows = _Checked(_rows(batches))
    limit = options.limit
    shown = list(islice(rows, limit))
    is_more = limit is not None and any(True for _ in rows)
    is_chosen = request.columns not in (None, _shown(request))
    cells = tuple(_column(column, number, is_chosen=is_chosen) for number, column in enumerate(request.selected()))
    decoded = [[{**row, **_decoded(row)}] for row in shown]
    write_result(screen_text(lambda screen: screen.table(decoded, cells)))
    if is_more:
        options.messages().print(f"these are the first {limit} rows; --limit 0 shows all, --json one a line")
    return rows.finish(request, options)


def _column(column: schema.Column, number: int, *, is_chosen: bool) -> TableColumn[dict[str, Any]]:
    """Return a column for people; unless the user chose the columns, a narrow terminal omits the last ones first."""
    name, kind = column.name, column.kind
    is_number = kind in ("int", "long", "timestamp")
    return TableColumn(
        f"{name} (UTC)" if kind == "timestamp" else name,
        lambda rows: _cell(kind, rows[0][name]),
        (lambda row: row[name]) if is_number else None,
        rank=0 if is_chosen or name in _MAIN_COLUMNS else 1 + number,
    )


def _cell(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "timestamp":
        return "" if value < 0 else _time(value)
    if kind == "bool":
        return "yes" if value else "no"
    if kind == "headers":
        return _short(", ".join(f"{pair['key']}={_bytes_cell(pair['value'])}" for pair in value))
    if isinstance(value, bytes):
        return _short(_bytes_cell(value))
    if isinstance(value, dict):
        return _short(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return str(value)


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError):
        return str(timestamp_ms)


def _bytes_cell(value: bytes | None) -> str:
    if value is None:
        return ""
    text = _text(value)
    return f"0x{value.hex()}" if text is None else text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


# -------------------------------------------------------------------------------------------------------- command line
@click.command("dump", cls=ConfiguredCommand)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, shell_complete=complete_path)
@click.option("--what", metavar="TABLE", help=f"One of {', '.join(TABLES)} (default: by the kind of PATH).")
@click.option(
    "--offsets", metavar="A:B", help="Print only offsets from A up to but not including B; either may be left out."
)
@click.option("--timestamps-ms", metavar="A:B", help="Print only timestamps in ms from A up to but not including B.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="TOPIC-N",
    shell_complete=complete_partition,
    help="Select partitions by name or glob.  A pattern that matches nothing is an error.",
)
@click.option(
    "--allow-empty-selection", is_flag=True, help="Accept a --partition that matches nothing; meant for scheduled jobs."
)
@click.option("--columns", metavar="NAME,...", help="Print these columns, in this order.")
@click.option("--keys", is_flag=True, help="Print the keys of records, not their values.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default=READ_UNCOMMITTED,
    help="Read with the isolation level of a consumer.",
)
@click.option(
    "--on-corruption",
    type=click.Choice(ON_CORRUPTION),
    default=FAIL,
    help="Fail at a corrupt batch, skip it, or print it as a row.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    help=f"Print at most N rows (default for a table: {SHOWN_ROWS}; 0: all).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row instead of a table.")
@click.option("--to", type=click.Path(path_type=Path), help="Write Parquet into this new directory instead.")
@click.option("--master", metavar="URL", help="Write with Spark on this master; only with --to.")
@click.option("--quiet", is_flag=True, help="Print no messages on stderr.")
def command(as_json: bool, quiet: bool, **given: Any) -> None:
    """Print the contents of segments and of their indexes and checkpoints.

    PATH is a log directory, a partition directory, a file of a segment, or a glob of these.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    with errors_as_exit_status():
        sys.exit(_run(_Arguments(**given), as_json=as_json, quiet=quiet))


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of the command; --offsets, --timestamps-ms and --columns are still text."""

    paths: tuple[str, ...]
    what: str | None
    offsets: str | None
    timestamps_ms: str | None
    partitions: tuple[str, ...]
    allow_empty_selection: bool
    columns: str | None
    keys: bool
    isolation: str
    on_corruption: str
    limit: int | None
    to: Path | None
    master: str | None

    def select(self, sources: Sequence[Source]) -> list[Source]:
        """Return the sources whose partition matches a --partition; all if none was given.

        Raises:
            UsageError: a pattern matches nothing.
        """
        if not self.allow_empty_selection:
            names = [str(source.partition) for source in sources]
            check_patterns(self.partitions, names, where=", ".join(self.paths))
        return [source for source in sources if not self.partitions or self._is_selected(source)]

    def _is_selected(self, source: Source) -> bool:
        return any(fnmatch.fnmatchcase(str(source.partition), pattern) for pattern in self.partitions)

    def request(self, default_table: str, *, for_people: bool) -> TableRequest:
        """Return the request for the rows; `for_people` leaves out columns that would make a table too wide.

        Raises:
            UsageError: a table or column is unknown, a range is malformed, or --keys is given for a table other than
                `records`.
        """
        request = TableRequest(
            what=self.what or default_table,
            bounds=Bounds(*parse_range(self.offsets, "--offsets"), *parse_range(self.timestamps_ms, "--timestamps-ms")),
            isolation=self.isolation,
            on_corruption=self.on_corruption,
        )
        request.selected()
        if self.keys and request.what != "records":
            raise UsageError("--keys is for records only", advice="add --what records")
        if self.columns is not None:
            return replace(request, columns=tuple(name.strip() for name in self.columns.split(",")))
        if self.keys:
            return replace(request, columns=_KEYS_ONLY)
        return replace(request, columns=_shown(request)) if for_people else request


def _run(given: _Arguments, *, as_json: bool, quiet: bool) -> int:
    if as_json and given.to is not None:
        raise UsageError("--json and --to exclude each other", advice="choose JSON lines or Parquet")
    for_people = not as_json and given.to is None
    limit = SHOWN_ROWS if for_people and given.limit is None else given.limit
    options = DumpOptions(as_json, given.to, limit or None, quiet, given.master)
    found = find_sources(given.paths, Fs())
    sources = given.select(found)
    return dump(given.request(_default_table(found), for_people=for_people), sources, options)


def perform(*, spark: SparkSession | None = None, **options: Any) -> TableDump:
    """Return the rows that the options of the command select; with `to`, also write them there.

    Raises:
        UsageError: an option is wrong, or `to` exists.
        SedimentError: a file cannot be read.
    """
    given = _Arguments(**options)
    found = find_sources(given.paths, Fs())
    sources = given.select(found)
    request = given.request(_default_table(found), for_people=False)
    tasks = plan_table(request, sources, Fs())
    if given.to is not None:
        unreadable: list[UnreadableRange] = []
        output = DumpOptions(as_json=True, to=given.to, limit=None, quiet=True, master=given.master, spark=spark)
        _write(request, sources, tasks, output, given.to, unreadable)
        if unreadable:
            _LOGGER.warning("%s", _unreadable_text(unreadable))
    return TableDump(request, tasks, given.limit or None)


def _default_table(sources: Sequence[Source]) -> str:
    kinds = {source.named for source in sources}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return _NAMED_TABLES[kind] if kind else _DIRECTORY_TABLE


def _shown(request: TableRequest) -> tuple[str, ...] | None:
    shown = _SHOWN.get(request.what)
    if shown is None:
        return None
    extra = [column.name for column in request.selected() if column.name == "corruption"]
    return (*shown, *extra) if request.what in SLICED_TABLES else shown


if __name__ == "__main__":
    command()
