"""Data source `kafka-log`: segment files as DataFrames without a broker, in batches and as a stream.

    load     options -> request, paths -> partitions, indexes -> tasks of about `task_bytes`
    tasks    slices of segments -> Arrow batches; a task loads pyarrow and kernels itself, after the fork

Only options exclude partitions, segments and ranges of segments; filters of a query are not pushed down.  Spark 4.2
keeps one read plan for all queries of a frame (`PythonDataSourceV2`), so a filter pushed down by one query would also
apply to the next query.

Invariants
* All queries of a frame read the tasks that `load` planned, or fail.
* A stream's progress is only the next offset of each partition, keyed by the name of its directory.  So it stays valid
  after rolls, retention and compaction.
* The end of a stream is never above the offsets that a task can read.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sediment.jobs.spark.quiet_worker import silence_closed_sockets
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.slices import ALL, SLICE_BYTES, Bounds, Slice
from sediment.segment_io.partition.sources import Source, find_sources
from sediment.segment_io.tables.planning import (
    ScanTask,
    TableTask,
    UnreadableRange,
    pack_scan_tasks,
    parse_range,
    plan_scan_tasks,
    plan_table,
)
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import (
    FAIL,
    ISOLATIONS,
    ON_CORRUPTION,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Column,
    TableRequest,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT = "kafka-log"

EARLIEST = "earliest"
LATEST = "latest"

_OPTIONS = {
    "path": "a path to read",
    "paths": "paths to read, as a JSON list",
    "what": "name of the table",
    "columns": "names, separated by commas",
    "topics": "names, separated by commas",
    "partitions": "numbers, separated by commas",
    "isolation": "read_uncommitted or read_committed",
    "on_corruption": "fail, skip or rows",
    "offsets": "A:B, from A to below B",
    "timestamps_ms": "A:B, from A to below B",
    "task_bytes": "bytes of segments that one task reads",
    "starting": "start of a new stream: earliest or latest",
    "max_offsets_per_trigger": "most offsets that a stream reads in one batch",
}

_SHOWN_NAMES = 8

_log = logging.getLogger("sediment")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def register(spark: SparkSession) -> None:
    """Register `kafka-log` with a session; the session's settings stay unchanged.

    Raises:
        AnalysisException: another data source has the name.
    """
    try:
        spark.dataSource.register(KafkaLogSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark looks up the name in the active session; creating a frame makes this session active.
        spark.createDataFrame([], "nothing int")
        spark.dataSource.register(KafkaLogSource)


# ------------------------------------------------------------------------------------------------------------- options
@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one `load`."""

    paths: tuple[str, ...]
    request: TableRequest
    task_bytes: int | None
    starting: str
    max_offsets_per_trigger: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check and parse every option.

        Raises:
            UsageError: an unknown option, or an invalid value.
        """
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _OPTIONS:
                near = difflib.get_close_matches(name, _OPTIONS, n=1)
                hint = f"did you mean {near[0]!r}" if near else f"it is one of {', '.join(_OPTIONS)}"
                raise UsageError(f"{FORMAT} has no option {name!r}", advice=hint)
        columns, topics = _names(given, "columns"), _names(given, "topics")
        offsets, times = (
            parse_range(given.get("offsets"), "offsets"),
            parse_range(given.get("timestamps_ms"), "timestamps_ms"),
        )
        request = TableRequest(
            what=given.get("what", "records"),
            columns=columns,
            bounds=Bounds(
                first_offset=offsets[0], end_offset=offsets[1], first_timestamp_ms=times[0], end_timestamp_ms=times[1]
            ),
            isolation=_one_of(given, "isolation", ISOLATIONS, READ_UNCOMMITTED),
            on_corruption=_one_of(given, "on_corruption", ON_CORRUPTION, FAIL),
            topics=None if topics is None else frozenset(topics),
            partitions=_numbers(given, "partitions"),
        )
        request.selected()
        return cls(
            paths=_paths(given),
            request=request,
            task_bytes=_positive(given, "task_bytes"),
            starting=_one_of(given, "starting", (EARLIEST, LATEST), EARLIEST),
            max_offsets_per_trigger=_positive(given, "max_offsets_per_trigger"),
        )


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in given:
        return tuple(json.loads(given["paths"]))
    if "path" in given:
        return (given["path"],)
    raise UsageError("no path is given", advice=f'spark.read.format("{FORMAT}").load(PATH)')


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = given.get(name)
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _numbers(given: Mapping[str, str], name: str) -> frozenset[int] | None:
    names = _names(given, name)
    try:
        return None if names is None else frozenset(map(int, names))
    except ValueError as error:
        raise UsageError(f"{name} cannot be {given[name]!r}", advice="write numbers, separated by commas") from error


def _one_of(given: Mapping[str, str], name: str, values: Sequence[str], default: str) -> str:
    value = given.get(name, default)
    if value not in values:
        raise UsageError(f"{name} cannot be {value!r}", advice=f"it is one of {', '.join(values)}")
    return value


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise UsageError(f"{name} cannot be {text!r}", advice="it is a number above 0")
    return int(text)


# -------------------------------------------------------------------------------------------------------------- schema
_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_SPARK_TYPES: Mapping[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "bool": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "timestamp": TimestampType(),
    "headers": _HEADERS,
}


def spark_schema(columns: Sequence[Column]) -> StructType:
    """Return the Spark schema of `columns`, every field nullable."""
    return StructType([StructField(column.name, _SPARK_TYPES[column.kind]) for column in columns])


def _with_schema(request: TableRequest, schema: StructType) -> TableRequest:
    """Return `request` with the columns of `schema`, if the user gave one.

    Raises:
        UsageError: a column is unknown or has another type.
    """
    narrowed = replace(request, columns=tuple(schema.fieldNames()))
    for given, own in zip(schema.fields, spark_schema(narrowed.selected()).fields, strict=True):
        if given.dataType != own.dataType:
            raise UsageError(
                f"column {own.name!r} is {own.dataType.simpleString()}, not {given.dataType.simpleString()}",
                advice="leave out .schema(...), or cast after the load",
            )
    return narrowed


# --------------------------------------------------------------------------------------------------------------- errors
def _in_one_sentence(function: _Function) -> _Function:
    """Wrap a function to show a SedimentError without a Python traceback; the error ends the process."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except SedimentError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    result: Any = wrapped
    return result  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------- sources
def selected_sources(options: SourceOptions, fs: Fs) -> list[Source]:
    """Return the sources in the paths that the options `topics` and `partitions` select.

    Raises:
        UsageError: a path does not exist or does not belong to a log, or no path has a selected topic or partition.
    """
    found, request = find_sources(options.paths, fs), options.request
    _check_selected("topic", request.topics, {source.partition.topic for source in found})
    of_topics = replace(request, partitions=None)
    numbers = {source.partition.partition for source in found if of_topics.selects(source)}
    _check_selected("partition", request.partitions, numbers)
    return [source for source in found if request.selects(source)]


def _check_selected(kind: str, selected: Collection[Any] | None, existing: Collection[Any]) -> None:
    for name in sorted(set(selected or ()) - set(existing)):
        near = difflib.get_close_matches(str(name), map(str, existing), n=1)
        shown = ", ".join(map(str, sorted(existing)[:_SHOWN_NAMES])) + (" …" if len(existing) > _SHOWN_NAMES else "")
        hint = f"did you mean {near[0]!r}" if near and kind == "topic" else f"there are {shown or 'none'}"
        raise UsageError(f"the paths hold no {kind} {name!r}", advice=hint)


# --------------------------------------------------------------------------------------------------------------- source
class KafkaLogSource(DataSource):
    """Data source `kafka-log`; docs/query/tables.md describes its options and tables.

    Spark makes one instance at `load` and gives every query of the frame a copy.  The tasks are planned in that
    instance, so all queries use one plan even if the directory changes between them.
    """

    @_in_one_sentence
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        silence_closed_sockets()
        self._options = SourceOptions.parse(options)
        fs = Fs()
        sources = selected_sources(self._options, fs)
        self._tasks = plan_table(self._options.request, sources, fs, task_bytes=self._options.task_bytes)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the requested table and columns."""
        return spark_schema(self._options.request.selected())

    @_in_one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        silence_closed_sockets()
        return KafkaLogReader(_with_schema(self._options.request, schema), self._take_tasks())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query; only `records` can be streamed."""
        silence_closed_sockets()
        self._take_tasks()
        try:
            if self._options.request.what != "records":
                raise UsageError(
                    f"table {self._options.request.what!r} cannot be streamed",
                    advice="stream 'records', or read it as a batch",
                )
            return KafkaLogStreamReader(replace(self._options, request=_with_schema(self._options.request, schema)))
        except SedimentError as error:
            return _RefusedStreamReader(error)

    def _take_tasks(self) -> list[TableTask]:
        """Return the tasks and forget them, because Spark sends this instance to every task."""
        tasks, self._tasks = self._tasks, []
        return tasks


class _TaskPartition(InputPartition):
    """The work of one task, sent to an executor."""

    def __init__(self, task: TableTask) -> None:
        super().__init__(task)


@_in_one_sentence
def _read(
    request: TableRequest, partition: InputPartition, on_lost: Callable[[Slice, int], None] | None
) -> Iterator[pa.RecordBatch]:
    silence_closed_sockets()
    return _one_sentence_iterator(_batches(request, partition, on_lost))


def _one_sentence_iterator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    following = _in_one_sentence(functools.partial(next, batches, None))
    while (batch := following()) is not None:
        yield batch


def _batches(
    request: TableRequest, partition: InputPartition, on_lost: Callable[[Slice, int], None] | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _TaskPartition):
        return  # Spark's placeholder for a plan without partitions
    skipped: list[UnreadableRange] = []
    # A stream follows its offsets into new files.  A frame must not, because it would mix planned and new files.
    yield from read_table(
        request, partition.value, Fs(), on_unreadable=skipped.append, on_lost=on_lost, follow=on_lost is not None
    )
    if skipped:
        size_bytes = sum(each.end_position - each.position for each in skipped)
        _log.warning(
            "%d unreadable batches, %d bytes, were left out; the first: %s", len(skipped), size_bytes, skipped[0].error
        )


class KafkaLogReader(DataSourceReader):
    """Reader of a batch query; it reads the files that existed at `load`.

    It has no `pushFilters`, because Spark 4.2 would reuse a plan with the filters of one query for later queries.
    """

    def __init__(self, request: TableRequest, tasks: Sequence[TableTask]) -> None:
        self._request = request
        self._tasks = tasks

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaLogReader, (self._request, ())  # without the tasks, because it is sent to every task

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task."""
        return [_TaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._request, partition, None)


# ----------------------------------------------------------------------------------------------------------- streaming
class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream that follows the partitions of a directory.

    A new partition is read from its beginning.  If retention removes records before the stream reads them, the reader
    logs a warning and skips them.  Records that compaction removed were superseded.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._request = options.request
        self._ends = _LogEnds(options)
        self._target: dict[str, int] | None = None

    @_in_one_sentence
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the first offsets of a new query, by partition."""
        if self._options.starting == LATEST:
            return self._ends.now()
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`max_offsets_per_trigger`."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @_in_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of a query that stops at the current end of the log."""
        self._target = self._ends.now()

    @_in_one_sentence
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the next offset of each partition, at most `limit` offsets further, and never below `start`."""
        ends = self._target if self._target is not None else self._ends.now()
        ends = {**start, **{name: max(end, start.get(name, end)) for name, end in ends.items()}}
        if not isinstance(limit, ReadMaxRows):
            return ends
        sources = self._ends.sources()
        starts = {name: start[name] if name in start else self._ends.first(sources.get(name)) for name in ends}
        waiting = {name: max(ends[name] - starts[name], 0) for name in ends}
        share = min(1.0, limit.max_rows / max(sum(waiting.values()), 1))
        return {
            name: ends[name] if share == 1.0 else min(ends[name], starts[name] + max(1, int(waiting[name] * share)))
            for name in ends
        }

    @_in_one_sentence
    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the next offset of each partition."""
        return self._ends.now()

    @_in_one_sentence
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the tasks for offsets from `start` to below `end`."""
        fs = Fs()
        task_bytes = self._options.task_bytes or SLICE_BYTES
        scan_tasks: list[ScanTask] = []
        for name, source in self._ends.sources().items():
            first = start.get(name, ALL.first_offset)
            if name not in end or first >= end[name]:
                continue
            if name in start and first < min(begins := self._ends.first(source), end[name]):
                _log_loss(source, first, begins)
            request = replace(
                self._request, bounds=self._request.bounds & Bounds(first_offset=first, end_offset=end[name])
            )
            scan_tasks += plan_scan_tasks(request, source, fs, slice_bytes=task_bytes)
        return [_TaskPartition(task) for task in pack_scan_tasks(scan_tasks, task_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._request, partition, _warn_of_loss)


class _RefusedStreamReader(DataSourceStreamReader):
    """Reader that raises its error at the first call; Spark 4.2 loses an error that is raised earlier."""

    def __init__(self, error: SedimentError) -> None:
        self._error = error

    @_in_one_sentence
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    @_in_one_sentence
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


def _warn_of_loss(lost: Slice, first_offset: int) -> None:
    _log_loss(lost.source, lost.start_offset, first_offset)


def _log_loss(source: Source, first_offset: int, next_offset: int) -> None:
    _log.warning(
        "%s: offsets %d to %d were removed by retention before the stream read them",
        source.partition,
        first_offset,
        next_offset - 1,
    )


class _LogEnds:
    """The next offsets of all partitions; an offset is read again only after the partition's files have changed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._known: dict[str, tuple[Any, int]] = {}

    def sources(self) -> dict[str, Source]:
        """Return the selected sources by topic-partition.

        Raises:
            UsageError: a partition is in two log directories, or a path names a single segment.
        """
        found: dict[str, Source] = {}
        for source in filter(self._options.request.selects, find_sources(self._options.paths, Fs())):
            other = found.setdefault(str(source.partition), source)
            if other.directory != source.directory:
                raise UsageError(
                    f"partition {source.partition} is in two directories, {other.directory.parent} and "
                    f"{source.directory.parent}",
                    advice="stream each log directory on its own",
                )
            if source.base_offset is not None:
                raise UsageError(
                    "a single segment cannot be streamed", path=str(source.directory), advice="name its directory"
                )
        return found

    def now(self) -> dict[str, int]:
        """Return the next offset of each partition, except partitions that disappear meanwhile."""
        ends = {}
        for name, source in self.sources().items():
            with contextlib.suppress(NotALogDirectoryError):
                ends[name] = self._end(name, source)
        return ends

    def first(self, source: Source | None) -> int:
        """Return the base offset of the first segment, or 0 if no segment exists."""
        segments = live_segments(source, Fs()) if source else ()
        return segments[0].base_offset if segments else 0

    def _end(self, name: str, source: Source) -> int:
        # Imported late, because these modules load compiled code, which a process that only plans does not need.
        from sediment.segment_io.partition.log_dir_checkpoints import read_checkpoints
        from sediment.segment_io.partition.read_committed import committed_range, log_end_offset

        fs = Fs()
        is_committed = self._options.request.isolation == READ_COMMITTED
        checkpoints = read_checkpoints(source.directory.parent, fs).of(source.partition) if is_committed else None
        seen = (live_segments(source, fs)[-1:], checkpoints)
        known, end = self._known.get(name, (None, 0))
        if known != seen:
            end = committed_range(source, checkpoints, fs).end_offset if checkpoints else log_end_offset(source, fs)
            self._known[name] = (seen, end)
        return end
