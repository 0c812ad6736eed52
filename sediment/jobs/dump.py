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

import fnmatch
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import ALL_COMMANDS, ONE_COMMAND, File, Values, argument, option
from sediment.jobs.command_line.key_formats import KEY_FORMATS, TEXT
from sediment.jobs.command_line.shared_options import (
    allow_empty_selection_option,
    json_option,
    master_option,
    partitions_option,
    quiet_option,
)
from sediment.jobs.dumping.message_format import MessageFormat
from sediment.jobs.dumping.parquet_output import write_parquet
from sediment.jobs.dumping.people_table import columns_for_people
from sediment.jobs.dumping.printing import DumpOptions, Form, print_rows
from sediment.jobs.dumping.record_selection import RecordSelection
from sediment.jobs.dumping.row_query import RowQuery, unreadable_text
from sediment.jobs.dumping.table_dump import TableDump
from sediment.jobs.process.standard_output import error_console, stdout_is_terminal
from sediment.jobs.process.stderr_log import show_waiting_warnings
from sediment.jobs.table_readers.select_replicas import selected_replicas
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import COORDINATOR_TOPICS
from sediment.segment_io.internal_topics.metadata_records import METADATA_TOPICS
from sediment.segment_io.partition.partition_directories import check_patterns
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source, find_log_dirs, find_sources
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.planning import UnreadableRange, parse_range
from sediment.segment_io.tables.schema import (
    CLUSTER_TABLES,
    FAIL,
    ISOLATIONS,
    ON_CORRUPTION,
    READ_UNCOMMITTED,
    REPLICAS,
    TABLES,
    TableRequest,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGER = logging.getLogger(__name__)

SHOWN_ROWS = 1000
_FOLLOW_FORMAT = r"%t-%p\t%o\t%k\t%s\n"

_NAMED_TABLES = {
    SegmentFileKind.LOG: "records",
    SegmentFileKind.OFFSET_INDEX: "offset_index",
    SegmentFileKind.TIME_INDEX: "time_index",
    SegmentFileKind.TRANSACTION_INDEX: "transactions",
    SegmentFileKind.SNAPSHOT: "producers",
}
_DIRECTORY_TABLE = "segments"
_KEYS_ONLY = ("topic", "partition", "offset", "timestamp", "key", "size")
_INTERNAL_TOPICS = tuple(sorted(COORDINATOR_TOPICS | METADATA_TOPICS))

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
            request = replace(request, columns=columns_for_people(request, sources))
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
        write_parquet(query, given.to, unreadable, master=given.master, quiet=True, spark=spark)
        if unreadable:
            _LOGGER.warning("%s", unreadable_text(unreadable))
    return TableDump(query, given.limit or None)


def _default_table(sources: Sequence[Source]) -> str:
    kinds = {source.named for source in sources}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return _NAMED_TABLES[kind] if kind else _DIRECTORY_TABLE


def _as_topic(source: Source, topic: str) -> Source:
    return replace(source, partition=TopicPartition(topic, source.partition.partition))


if __name__ == "__main__":
    command()
