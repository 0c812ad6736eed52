"""Rows on stdout: a table for people, lines, or an Arrow stream."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sediment.jobs.command_line.exit_status import EXIT_DONE, EXIT_FAILED
from sediment.jobs.dumping.follow import Follower
from sediment.jobs.dumping.line_outputs import CsvLines, FormattedLines, JsonLines, LineOutput
from sediment.jobs.dumping.message_format import MessageFormat
from sediment.jobs.dumping.parquet_output import write_parquet
from sediment.jobs.dumping.people_table import PeopleTable, has_chosen_columns
from sediment.jobs.dumping.plain_rows import COLUMNS_FOR_DECODING, rows_of
from sediment.jobs.dumping.row_query import RowQuery, unreadable_text
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import (
    check_stdout_has_reader,
    error_console,
    stdout_is_terminal,
    write_result,
)
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.screen import screen_text
from sediment.segment_io.fs import Fs
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_ROWS = 1000


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
    format: MessageFormat | None = None
    follow: LogEnds | None = None

    def messages(self) -> Console:
        return error_console(quiet=self.quiet, soft_wrap=True, highlight=False)


def print_rows(query: RowQuery, options: DumpOptions) -> int:
    unreadable: list[UnreadableRange] = []
    status = EXIT_DONE
    if options.to is not None:
        write_parquet(query, options.to, unreadable, master=options.master, quiet=options.quiet)
    elif options.follow is not None:
        status = _follow(query, options.follow, options, unreadable)
    else:
        reads = query.with_columns(_more_columns(query, options))
        status, _ = _print(reads.batches(Fs(), unreadable.append), query.request, options)
    if unreadable:
        options.messages().print(unreadable_text(unreadable), markup=False)
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


def _more_columns(query: RowQuery, options: DumpOptions) -> tuple[str, ...]:
    if options.format is not None:
        return options.format.columns()
    names = {column.name for column in query.request.selected()}
    is_decoded = query.request.what == "records" and {"key", "value"} & names and options.form is not Form.ARROW
    return COLUMNS_FOR_DECODING if is_decoded else ()


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


def _print_table(batches: Iterator[pa.RecordBatch], request: TableRequest, options: DumpOptions) -> tuple[int, int]:
    checked = _Checked(request)
    table = PeopleTable(request, options.limit, is_chosen=has_chosen_columns(request))
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
