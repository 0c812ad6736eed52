"""`sediment dump PATH …`: the contents of a log's files, as a table for people, lines, an Arrow stream, or Parquet.

Printed rows are read in this process, without Spark, so the output starts immediately.  Spark writes the Parquet files
if there is much data or --master is given.  In both cases the rows are the same as those of
`spark.read.format("kafka-log")`.

Invariants: rows go to stdout as they are read, and everything else goes to stderr; an unfinished output leaves no
directory.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import contextlib
import fnmatch
import html
import io
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import ALL_COMMANDS, ONE_COMMAND, File, Values, argument, option
from sediment.jobs.command_line.exit_status import EXIT_DONE, EXIT_FAILED
from sediment.jobs.command_line.key_formats import KEY_FORMATS, TEXT
from sediment.jobs.command_line.shared_options import (
    allow_empty_selection_option,
    json_option,
    master_option,
    partitions_option,
    quiet_option,
)
from sediment.jobs.dumping.follow import Follower
from sediment.jobs.dumping.line_outputs import CsvLines, FormattedLines, JsonLines, LineOutput
from sediment.jobs.dumping.message_format import MessageFormat
from sediment.jobs.dumping.people_table import PeopleTable
from sediment.jobs.dumping.plain_rows import COLUMNS_FOR_DECODING, rows_of
from sediment.jobs.dumping.record_selection import RecordSelection
from sediment.jobs.dumping.row_query import RowQuery
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import (
    check_stdout_has_reader,
    error_console,
    stdout_is_terminal,
    write_result,
)
from sediment.jobs.process.stderr_log import show_waiting_warnings
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import Result
from sediment.jobs.reporting.screen import screen_text
from sediment.jobs.table_readers.select_replicas import selected_replicas
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import COORDINATOR_TOPICS
from sediment.segment_io.internal_topics.metadata_records import METADATA_TOPICS
from sediment.segment_io.partition.partition_directories import check_patterns
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source, find_log_dirs, find_sources
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.planning import UnreadableRange, parse_range
from sediment.segment_io.tables.schema import (
    ALL_REPLICAS,
    CLUSTER_TABLES,
    FAIL,
    ISOLATIONS,
    ON_CORRUPTION,
    READ_UNCOMMITTED,
    REPLICAS,
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
_HEAD_ROWS = 20
_CHUNK_ROWS = 1000
_FOLLOW_FORMAT = r"%t-%p\t%o\t%k\t%s\n"
DIRECT_BYTES = 1 << 30  # up to this size, one process writes the Parquet files in less time than Spark needs to start

_NAMED_TABLES = {
    SegmentFileKind.LOG: "records",
    SegmentFileKind.OFFSET_INDEX: "offset_index",
    SegmentFileKind.TIME_INDEX: "time_index",
    SegmentFileKind.TRANSACTION_INDEX: "transactions",
    SegmentFileKind.SNAPSHOT: "producers",
}
_DIRECTORY_TABLE = "segments"

# Columns that the table for people shows without --columns.  Tables that are not listed here show all columns.
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
_INTERNAL_TOPICS = tuple(sorted(COORDINATOR_TOPICS | METADATA_TOPICS))


class Form(Enum):
    """Output formats of rows on stdout; FORMAT stands for the format string of --format."""

    TABLE = "a table"
    JSON = "--json"
    CSV = "--csv"
    ARROW = "--arrow"
    FORMAT = "--format"


@dataclass(frozen=True, slots=True)
class DumpOptions:
    form: Form
    to: Path | None
    limit: int | None
    quiet: bool
    master: str | None
    spark: SparkSession | None = None
    format: MessageFormat | None = None
    follow: LogEnds | None = None

    def messages(self) -> Console:
        return error_console(quiet=self.quiet, soft_wrap=True, highlight=False)


class TableDump(Result):
    """Rows of one table, read from a log's files; each use reads the files again.

    Any library that reads Arrow streams can read a dump: `polars.DataFrame(dump)`,
    `duckdb.from_arrow(dump.to_reader())`.  A row is a dict; its timestamps are ms since the epoch.
    """

    def __init__(self, query: RowQuery, limit: int | None) -> None:
        self._query = query
        self._limit = limit

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return arrow_schema(self._query.request.selected())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a `pyarrow.RecordBatchReader`, which keeps one batch at a time in memory."""
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
        for batch in self._batches():
            yield from rows_of(batch)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<TableDump of {self._query.request.what}: {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        head = TableDump(self._query, min(self._limit or _HEAD_ROWS, _HEAD_ROWS)).to_pandas()
        return f"<p>{html.escape(self._query.request.what)}: the first {len(head)} rows</p>{head.to_html()}"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        left = self._limit
        unreadable: list[UnreadableRange] = []
        for batch in self._query.batches(Fs(), unreadable.append):
            rows = batch if left is None else batch.slice(0, left)
            yield rows
            left = None if left is None else left - rows.num_rows
            if left == 0:
                break
        if unreadable:
            _LOGGER.warning("%s", _unreadable_text(unreadable))


def print_rows(query: RowQuery, options: DumpOptions) -> int:
    unreadable: list[UnreadableRange] = []
    status = EXIT_DONE
    if options.to is not None:
        _write(query, options, options.to, unreadable)
    elif options.follow is not None:
        status = _follow(query, options.follow, options, unreadable)
    else:
        reads = query.with_columns(_more_columns(query, options))
        status, _ = _print(reads.batches(Fs(), unreadable.append), query.request, options)
    if unreadable:
        options.messages().print(_unreadable_text(unreadable), markup=False)
    return status


def _follow(query: RowQuery, ends: LogEnds, options: DumpOptions, unreadable: list[UnreadableRange]) -> int:
    messages = options.messages()
    follower = Follower(
        query.with_columns(_more_columns(query, options)),
        ends,
        on_unreadable=unreadable.append,
        on_notice=lambda text: messages.print(text, markup=False),
        before_wait=check_stdout_has_reader,
    )
    with stop_on_signals() as stop:
        status, printed = _print(follower.batches(stop), query.request, options)
        if stop.is_set():
            messages.print(f"stopped after {counted(printed, 'record')}")
    return status


def _print(batches: Iterator[pa.RecordBatch], request: TableRequest, options: DumpOptions) -> tuple[int, int]:
    if options.form is Form.TABLE:
        return _print_table(batches, request, options)
    if options.form is Form.ARROW:
        return _print_arrow(batches, request, options)
    return _print_lines(batches, _line_output(request, options), request, options)


def _line_output(request: TableRequest, options: DumpOptions) -> LineOutput:
    names = [column.name for column in request.selected()]
    is_terminal = stdout_is_terminal()
    if options.format is not None:
        return FormattedLines(options.format, for_terminal=is_terminal)
    return CsvLines(names, for_terminal=is_terminal) if options.form is Form.CSV else JsonLines(names)


def _unreadable_text(unreadable: Sequence[UnreadableRange]) -> str:
    size_bytes = sum(each.end_position - each.position for each in unreadable)
    return f"{len(unreadable)} unreadable batches, {size_bytes} bytes; the first: {unreadable[0].error}"


def _write(query: RowQuery, options: DumpOptions, to: Path, unreadable: list[UnreadableRange]) -> None:
    if to.exists():
        raise UsageError("the output already exists", path=str(to), advice="name a directory that does not exist")
    is_asked = options.master is not None or options.spark is not None
    if query.is_whole and (is_asked or sum(task.size_bytes for task in query.tasks(Fs())) > DIRECT_BYTES):
        _write_with_spark(query, options, to)
    else:
        _write_parquet(query.batches(Fs(), unreadable.append), arrow_schema(query.request.selected()), to)


def _more_columns(query: RowQuery, options: DumpOptions) -> tuple[str, ...]:
    if options.format is not None:
        return options.format.columns()
    names = {column.name for column in query.request.selected()}
    is_decoded = query.request.what == "records" and {"key", "value"} & names and options.form is not Form.ARROW
    return COLUMNS_FOR_DECODING if is_decoded else ()


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
        with contextlib.suppress(OSError):
            to.rmdir()
        raise


def _write_with_spark(query: RowQuery, options: DumpOptions, to: Path) -> None:
    from sediment.jobs.command_line.progress import stages_of
    from sediment.jobs.spark.session import create_session, require_spark

    require_spark()  # the import of the data source needs PySpark
    from sediment.jobs.data_source.options import FORMAT
    from sediment.jobs.datasource import register

    messages = error_console(quiet=options.quiet)
    try:
        with (
            create_session(options.master, "sediment dump", options.spark) as spark,
            stages_of(spark.sparkContext, messages),
        ):
            register(spark)
            spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            reader = spark.read.format(FORMAT)
            for name, value in _as_options(query.request).items():
                reader = reader.option(name, value)
            reader.load([_path(source) for source in query.sources]).write.parquet(str(to))
    except BaseException:
        # Remove only the files of this run, because another process may have written to the directory at the same time.
        shutil.rmtree(to / "_temporary", ignore_errors=True)  # Spark may have removed it when it gave up the write
        with contextlib.suppress(OSError):
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
        **({} if request.config is None else {"config": request.config}),
        **({} if request.replicas is None else {"replicas": request.replicas}),
        "what": request.what,
        "columns": ",".join(column.name for column in request.selected()),
        "isolation": request.isolation,
        "on_corruption": request.on_corruption,
        "offsets": f"{side(bounds.first_offset, everything.first_offset)}:"
        f"{side(bounds.end_offset, everything.end_offset)}",
        "timestamps_ms": f"{side(bounds.first_timestamp_ms, everything.first_timestamp_ms)}:"
        f"{side(bounds.end_timestamp_ms, everything.end_timestamp_ms)}",
    }


# ------------------------------------------------------------------------------------------------------- rows to stdout
class _Checked:
    def __init__(self, request: TableRequest) -> None:
        self.reads_all = request.what == "indexes"
        self.count = 0
        self.problems = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.count += len(rows)
        self.problems += sum(row.get("problems") or 0 for row in rows)

    def finish(self, options: DumpOptions) -> int:
        if not self.reads_all:
            return EXIT_DONE
        options.messages().print(f"{counted(self.count, 'file')} checked, {counted(self.problems, 'problem')}")
        return EXIT_FAILED if self.problems else EXIT_DONE


def _print_lines(
    batches: Iterator[pa.RecordBatch], output: LineOutput, request: TableRequest, options: DumpOptions
) -> tuple[int, int]:
    checked, printed = _Checked(request), 0
    write_result(output.head)
    for rows in _chunks(batches):
        checked.add(rows)
        shown = rows if options.limit is None else rows[: options.limit - printed]
        if shown:
            write_result(b"".join(map(output.line, shown)))
        printed += len(shown)
        if printed == options.limit and not checked.reads_all:
            break
    return checked.finish(options), printed


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in lists, so that the text of a large batch is never in memory as a whole."""
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            yield list(rows_of(batch.slice(start, _CHUNK_ROWS)))


class _Stdout(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        write_result(bytes(content))
        return len(content)


def _print_arrow(batches: Iterator[pa.RecordBatch], request: TableRequest, options: DumpOptions) -> tuple[int, int]:
    import pyarrow as pa

    checked, printed = _Checked(request), 0
    writer = pa.ipc.new_stream(_Stdout(), arrow_schema(request.selected()))
    for batch in batches:
        if checked.reads_all:
            checked.add(list(rows_of(batch)))
        rows = batch if options.limit is None else batch.slice(0, options.limit - printed)
        if rows.num_rows:
            writer.write_batch(rows)
        printed += rows.num_rows
        if printed == options.limit and not checked.reads_all:
            break
    writer.close()  # after an error, the end marker is missing, so a reader sees that the stream is incomplete
    return checked.finish(options), printed


# ---------------------------------------------------------------------------------------------------- table for people
def _print_table(batches: Iterator[pa.RecordBatch], request: TableRequest, options: DumpOptions) -> tuple[int, int]:
    checked = _Checked(request)
    table = PeopleTable(request, options.limit, is_chosen=_is_chosen(request))
    for rows in _chunks(batches):
        checked.add(rows)
        table.add(rows)
        if table.is_done and not checked.reads_all:
            break
    write_result(screen_text(table.show))
    if table.is_more:
        options.messages().print(
            f"these are the first {options.limit} rows; --limit 0 shows all rows, --json prints one row per line"
        )
    return checked.finish(options), table.count


# -------------------------------------------------------------------------------------------------------- command line
_Natural = Annotated[int, Values(least=0)]


@dataclass(frozen=True, slots=True)
class DumpArguments:
    """Options of `dump`; `offsets`, `timestamps_ms` and `columns` are still text."""

    paths: tuple[str, ...] = argument("PATH...", required=True, completes="paths")
    what: str | None = option(
        None,
        f"Print this table: {', '.join(TABLES)} (default: depends on PATH).",
        metavar="TABLE",
        from_settings=ONE_COMMAND,
    )
    offsets: str | None = option(
        None,
        "Print only rows with an offset from A up to but not including B; A or B may be left out.",
        metavar="A:B",
    )
    timestamps_ms: str | None = option(
        None,
        "Print only rows with a timestamp from A up to but not including B, in ms; A or B may be left out.",
        metavar="A:B",
    )
    partitions: tuple[str, ...] = partitions_option(
        "Select partitions by name or glob.  A pattern that matches nothing is an error."
    )
    allow_empty_selection: bool = allow_empty_selection_option(
        "Do not fail if a --partition matches nothing; meant for scheduled jobs."
    )
    last: _Natural | None = option(
        None, "Print only the last N records of each partition.", metavar="N", from_settings=ONE_COMMAND
    )
    key: tuple[str, ...] = option((), "Print only records with this key; repeatable.", metavar="KEY")
    key_format: Annotated[str, Values(choices=KEY_FORMATS)] = option(
        TEXT, "Read the value of --key in this format.", shows_default=True, from_settings=ONE_COMMAND
    )
    header: tuple[str, ...] = option(
        (),
        "Print only records with this header; if you repeat the option, a record must have all of these headers.",
        metavar="NAME[=VALUE]",
    )
    columns: str | None = option(
        None, "Print only these columns, in this order.", metavar="NAME,...", joined=True, from_settings=ONE_COMMAND
    )
    config: File | None = option(
        None,
        "With --what topics: also show the settings in the broker's server.properties.",
        from_settings=ALL_COMMANDS,
    )
    replicas: Annotated[str, Values(choices=REPLICAS)] | None = option(
        None, "Read the best replica of each partition, or all replicas (default: best; with --what indexes: all)."
    )
    as_topic: Annotated[str, Values(choices=_INTERNAL_TOPICS)] | None = option(
        None, "Decode the records of PATH as those of this topic, whatever the name of their directory."
    )
    keys: bool = option(False, "Print the keys of records, not their values.", from_settings=ONE_COMMAND)
    isolation: Annotated[str, Values(choices=ISOLATIONS)] = option(
        READ_UNCOMMITTED,
        "Print the records that a consumer with this isolation level reads.",
        from_settings=ONE_COMMAND,
    )
    on_corruption: Annotated[str, Values(choices=ON_CORRUPTION)] = option(
        FAIL, "At a corrupt batch, fail, skip the batch, or print it as a row."
    )
    limit: _Natural | None = option(
        None,
        f"Print at most N rows; 0 prints all rows (default if a table is printed: {SHOWN_ROWS}).",
        metavar="N",
        from_settings=ONE_COMMAND,
    )
    as_json: bool = json_option("Print one JSON object per row instead of a table.")
    as_csv: bool = option(False, "Print CSV with a header line.", name="csv", of_terminal=True)
    as_arrow: bool = option(False, "Write an Arrow IPC stream to stdout.", name="arrow", of_terminal=True)
    message_format: str | None = option(
        None,
        r"Print records in FORMAT, with kcat's tokens: %s %S %R %k %K %T %h %t %p %o %%, and \n \r \t \xHH.",
        name="format",
        short="f",
        metavar="FORMAT",
        of_terminal=True,
    )
    follow: bool = option(
        False,
        "After the existing records, print new ones as they are appended, until Ctrl-C or until --limit is reached.",
        of_terminal=True,
    )
    to: Path | None = option(
        None, "Instead of printing rows, write them as Parquet into this new directory.", from_settings=ONE_COMMAND
    )
    master: str | None = master_option("With --to: write with Spark on this master.")
    quiet: bool = quiet_option("Print no messages on stderr.")

    def select(self, sources: Sequence[Source]) -> list[Source]:
        if not self.allow_empty_selection:
            names = [str(source.partition) for source in sources]
            check_patterns(self.partitions, names, where=", ".join(self.paths))
        return [source for source in sources if self.selects(source)]

    def selects(self, source: Source) -> bool:
        name = str(source.partition)
        return not self.partitions or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.partitions)

    def query(
        self,
        found: Sequence[Source],
        form: Form | None,
        *,
        follow: bool = False,
        on_left_out: Callable[[str], None],
    ) -> RowQuery:
        """Return the query for the rows of `found`; `form` is the output format, or None for the Python function.

        If replicas are left out, `on_left_out` is called with a sentence.
        """
        options = {
            "--format": form is Form.FORMAT and not follow,
            "--follow": follow,
            "--last": self.last is not None,
            "--key": self.key,
            "--header": self.header,
        }
        for_records = [name for name, given in options.items() if given]
        if for_records and self.what not in (None, "records"):
            raise UsageError(f"{for_records[0]} is for records only", advice="add --what records")
        request = self.request("records" if for_records else _default_table(found))
        sources = self.select(found)
        if not follow:  # LogEnds refuses replicas
            sources = selected_replicas(request, sources, Fs(), on_left_out, option="--replicas all")
        if form is Form.TABLE and request.columns is None:
            request = replace(request, columns=_columns_for_people(request, sources))
        if self.as_topic is not None:
            sources = [_as_topic(source, self.as_topic) for source in sources]
        log_dirs = find_log_dirs(self.paths, Fs()) if request.what in CLUSTER_TABLES else ()
        selection = RecordSelection.parse(
            self.key, self.key_format, self.header, messages_only=form is Form.FORMAT and request.what == "records"
        )
        return RowQuery(request, tuple(sources), selection, self.last, log_dirs)

    def request(self, default_table: str) -> TableRequest:
        request = TableRequest(
            what=self.what or default_table,
            bounds=Bounds(*parse_range(self.offsets, "--offsets"), *parse_range(self.timestamps_ms, "--timestamps-ms")),
            isolation=self.isolation,
            on_corruption=self.on_corruption,
            config=None if self.config is None else str(self.config),
            replicas=self.replicas,
        )
        request.selected()
        if self.keys and request.what != "records":
            raise UsageError("--keys is for records only", advice="add --what records")
        if self.columns is not None:
            return replace(request, columns=tuple(name.strip() for name in self.columns.split(",")))
        if self.keys:
            return replace(request, columns=_KEYS_ONLY)
        return request


@plain_command("dump", DumpArguments)
def command(own: DumpArguments) -> None:
    """Print the contents of segments and of their indexes and checkpoints.

    PATH is a log directory, a partition directory, a file of a segment, or a glob that matches any of these.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    if not own.quiet:
        show_waiting_warnings()
    status = _run(own)
    if not own.quiet:
        show_waiting_warnings()  # kernels are loaded when they are needed
    sys.exit(status)


def _run(given: DumpArguments) -> int:
    if given.master is not None and given.to is None:
        raise UsageError("--master needs --to", advice="leave out --master, because rows are printed without Spark")
    form, follow = _form(given), given.follow
    limit = SHOWN_ROWS if form is Form.TABLE and given.limit is None and given.last is None else given.limit
    if given.as_topic is not None and (follow or given.to is not None):
        raise UsageError(
            f"--as-topic does not apply to {'--follow' if follow else '--to'}", advice="leave out one of them"
        )
    query = given.query(
        find_sources(given.paths, Fs()),
        form if given.to is None else None,
        follow=follow,
        on_left_out=lambda text: error_console(quiet=given.quiet, soft_wrap=True, highlight=False).print(
            text, markup=False
        ),
    )
    bounds = query.request.bounds
    if follow and (bounds.end_offset, bounds.end_timestamp_ms) != (ALL.end_offset, ALL.end_timestamp_ms):
        raise UsageError(
            "--follow reads without an end, but --offsets or --timestamps-ms sets one", advice="leave out the end"
        )
    if given.to is not None and given.master is not None and not query.is_whole:
        raise UsageError("--master does not apply to --last, --key and --header", advice="leave out --master")
    ends = LogEnds(given.paths, given.isolation, given.selects) if follow else None
    is_format = form is Form.FORMAT
    text = _FOLLOW_FORMAT if given.message_format is None else given.message_format
    parsed = MessageFormat.parse(text) if is_format else None
    return print_rows(
        query, DumpOptions(form, given.to, limit or None, given.quiet, given.master, format=parsed, follow=ends)
    )


def _form(given: DumpArguments) -> Form:
    follow = given.follow
    flags = {
        Form.JSON: given.as_json,
        Form.CSV: given.as_csv,
        Form.ARROW: given.as_arrow,
        Form.FORMAT: given.message_format is not None,
    }
    forms = [form for form, is_given in flags.items() if is_given]
    outputs = [form.value for form in forms] + ([] if given.to is None else ["--to"])
    if len(outputs) > 1:
        raise UsageError(f"{outputs[0]} and {outputs[1]} exclude each other", advice="choose one output")
    if follow and given.to is not None:
        raise UsageError("--follow and --to exclude each other", advice="leave out --to")
    form = forms[0] if forms else Form.FORMAT if follow else Form.TABLE
    chosen = "--columns" if given.columns is not None else "--keys" if given.keys else None
    if form is Form.FORMAT and chosen is not None:
        option = "--format" if forms else "--follow"
        raise UsageError(f"{chosen} does not apply to {option}", advice=f"leave out {chosen}, or print --json or --csv")
    if form is Form.ARROW and stdout_is_terminal():
        raise UsageError("--arrow is binary, and stdout is a terminal", advice="redirect stdout to a file or a pipe")
    return form


def dump(given: DumpArguments, spark: SparkSession | None = None) -> TableDump:
    query = given.query(find_sources(given.paths, Fs()), None, on_left_out=_LOGGER.warning)
    if given.to is not None:
        unreadable: list[UnreadableRange] = []
        output = DumpOptions(Form.TABLE, given.to, limit=None, quiet=True, master=given.master, spark=spark)
        _write(query, output, given.to, unreadable)
        if unreadable:
            _LOGGER.warning("%s", _unreadable_text(unreadable))
    return TableDump(query, given.limit or None)


def _default_table(sources: Sequence[Source]) -> str:
    kinds = {source.named for source in sources}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return _NAMED_TABLES[kind] if kind else _DIRECTORY_TABLE


def _shown(request: TableRequest) -> tuple[str, ...]:
    own = [column.name for column in replace(request, columns=None, replicas=None).selected()]
    shown = _SHOWN.get(request.what)
    if shown is None:
        return tuple(own)
    return (*shown, *(name for name in own if name == "corruption" and request.what in SLICED_TABLES))


def _columns_for_people(request: TableRequest, sources: Sequence[Source]) -> tuple[str, ...]:
    shown = _shown(request)
    is_named = request.what not in CLUSTER_TABLES or request.replicas == ALL_REPLICAS
    return _with_log_dir(shown) if is_named and len({source.directory.parent for source in sources}) > 1 else shown


def _with_log_dir(shown: tuple[str, ...]) -> tuple[str, ...]:
    after = shown.index("partition") + 1 if "partition" in shown else len(shown)
    return (*shown[:after], "log_dir", *shown[after:])


def _is_chosen(request: TableRequest) -> bool:
    shown = _shown(request)
    return request.columns not in (None, shown, _with_log_dir(shown))


def _as_topic(source: Source, topic: str) -> Source:
    return replace(source, partition=TopicPartition(topic, source.partition.partition))


if __name__ == "__main__":
    command()
