"""Data source `kafka-log`: segment files as DataFrames without a broker, in batches and as a stream.

1. `load` checks the options, finds the partitions in the paths, and reads their indexes.  Then it plans tasks of about
   `task_bytes`.
2. Each task reads slices of segments, and returns Arrow batches.  A task loads pyarrow and the kernels itself, after
   the fork.

Only options limit the partitions, segments and offsets to read; filters of a query are not pushed down.  Spark 4.2
keeps one read plan for all queries of a frame (`PythonDataSourceV2`), so a filter pushed down by one query would also
apply to the next query.

Invariants
* All queries of a frame read the tasks that `load` planned, or fail.
* A stream's progress is only the next offset of each partition, keyed by the name of its directory, and a mark of its
  log.  Therefore, this progress stays valid after rolls, retention, compaction and a restore of the directory, and a
  partition that was created again is noticed.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
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

from sediment.jobs.data_source.kafka_options import LATEST
from sediment.jobs.data_source.offset_bounds import batch_bounds, stream_starts
from sediment.jobs.data_source.one_sentence import in_one_sentence, iterator_in_one_sentence
from sediment.jobs.data_source.options import FORMAT, SourceOptions
from sediment.jobs.data_source.read_limits import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from sediment.jobs.data_source.stream_offsets import offsets_json, parse_offsets
from sediment.jobs.data_source.stream_progress import FoundEnd, StreamProgress
from sediment.jobs.data_source.table_options import given_options, is_new_table, options_in, table_schema
from sediment.jobs.spark.quiet_worker import silence_closed_sockets
from sediment.jobs.spark.release import is_before, no_data_source, spark_version
from sediment.jobs.spark.worker_python import check_worker_python
from sediment.jobs.table_readers.read_rows import read_rows
from sediment.jobs.table_readers.select_replicas import selected_replicas
from sediment.segment_io.errors import SedimentError, SourceChangedError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import SLICE_BYTES, Slice
from sediment.segment_io.partition.sources import Source, find_log_dirs, find_sources
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.planning import (
    ScanTask,
    TableTask,
    UnreadableRange,
    pack_scan_tasks,
    plan_scan_tasks,
    plan_table,
)
from sediment.segment_io.tables.schema import CLUSTER_TABLES, Column, TableRequest

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
    )
except ImportError as error:
    raise no_data_source() from error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_FOUND_BY_SPARK = "pyspark_kafkalog"
_SHOWN_NAMES = 8

_log = logging.getLogger("sediment")


def register(spark: SparkSession) -> None:
    """Register `kafka-log` with a session; the session's settings stay unchanged.

    Spark finds the data source without this call if its Python has this package (`pyspark_kafkalog`).

    Raises:
        AnalysisException: another data source already has this name.
        UsageError: Spark runs another Python, and that Python lacks this package.
    """
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkSession):  # a session of Spark Connect has no SparkContext
        check_worker_python(spark.sparkContext)
    try:
        spark.dataSource.register(KafkaLogSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark looks up the name in the active session; creating a frame makes this session active.
        spark.createDataFrame([], "nothing int")
        try:
            spark.dataSource.register(KafkaLogSource)
        except AnalysisException:
            # Spark 4.0 lets no session replace a source that it has found by itself, and then it has found this one.
            if not is_before(spark.version, "4.1") or importlib.util.find_spec(_FOUND_BY_SPARK) is None:
                raise


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
    """Return `request` with the columns of `schema`, if the user gave one."""
    narrowed = replace(request, columns=tuple(schema.fieldNames()))
    for given, own in zip(schema.fields, spark_schema(narrowed.selected()).fields, strict=True):
        if given.dataType != own.dataType:
            raise UsageError(
                f"column {own.name!r} is {own.dataType.simpleString()}, not {given.dataType.simpleString()}",
                advice="leave out .schema(...), or cast after the load",
            )
    return narrowed


# ------------------------------------------------------------------------------------------------------------- sources
def selected_sources(options: SourceOptions, fs: Fs) -> list[Source]:
    """Return the sources in the paths, limited to those that the options `topics` and `partitions` select.

    Raises:
        UsageError: a path does not exist or does not belong to a log, or no path contains a selected topic or
            partition.
    """
    found, request = find_sources(options.paths, fs), options.request
    _check_selected("topic", request.topics, {source.partition.topic for source in found})
    of_topics = replace(request, partitions=None)
    numbers = {source.partition.partition for source in found if of_topics.selects(source)}
    _check_selected("partition", request.partitions, numbers)
    assigned = options.kafka.subscription.assigned
    _check_selected("partition", assigned, {source.partition for source in found})
    return [source for source in found if options.selects(source)]


def planned_tasks(options: SourceOptions, sources: Sequence[Source], fs: Fs) -> list[TableTask]:
    """Return the tasks of a batch query.

    Raises:
        UsageError: `subscribePattern` matches no topic, or as in `selected_replicas`.
        SedimentError: as `batch_bounds` and `plan_table`.
    """
    pattern = options.kafka.subscription.pattern
    if pattern is not None and not sources:
        raise UsageError(f"subscribePattern {pattern.pattern!r} matches no topic of the paths", advice="correct it")
    request = options.request
    read = selected_replicas(request, sources, fs, _log.warning, option="the option replicas=all")
    bounds = batch_bounds(options, read, fs)
    log_dirs = find_log_dirs(options.paths, fs) if request.what in CLUSTER_TABLES else ()
    return plan_table(request, read, fs, task_bytes=options.task_bytes, bounds=bounds, log_dirs=log_dirs)


def _check_selected(kind: str, selected: Collection[Any] | None, existing: Collection[Any]) -> None:
    for name in sorted(set(selected or ()) - set(existing)):
        near = difflib.get_close_matches(str(name), map(str, existing), n=1)
        shown = ", ".join(map(str, sorted(existing)[:_SHOWN_NAMES])) + (" …" if len(existing) > _SHOWN_NAMES else "")
        hint = f"did you mean {near[0]!r}" if near and kind == "topic" else f"there are {shown or 'none'}"
        quoted = repr(name) if isinstance(name, str) else str(name)
        raise UsageError(f"the paths contain no {kind} {quoted}", advice=hint)


# --------------------------------------------------------------------------------------------------------------- source
class KafkaLogSource(DataSource):
    """Data source `kafka-log`; docs/query/tables.md describes its options and tables.

    Spark makes one instance at `load` and gives every query of the frame a copy.  The tasks are planned in that
    instance, so all queries use one plan even if the directory changes between them.  A planning error is raised only
    by `reader`: a stream does not use the plan, and its restart from a checkpoint ignores the starting offsets.  For a
    query on a catalog table, Spark makes an instance without options, and the reader plans the tasks.

    Spark also makes an instance to write, and gives it the path of the output.  Therefore, an error in the options or
    paths is raised by `schema`, which Spark calls at `load`, or by a reader; `writer` refuses any path.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        silence_closed_sockets()
        self._given = given_options(options)
        self._is_new_table = is_new_table(options)
        self._options: SourceOptions | None = None
        self._tasks: list[TableTask] | None = None
        self._load_error: SedimentError | OSError | None = None
        self._plan_error: SedimentError | None = None
        if "path" in self._given or "paths" in self._given:
            try:
                self._load()
            except (SedimentError, OSError) as error:
                self._load_error = error

    def _load(self) -> None:
        self._options = SourceOptions.parse(self._given)
        sources = selected_sources(self._options, Fs())
        if not self._is_new_table and self._options.kafka.can_be_batch:
            try:
                self._tasks = planned_tasks(self._options, sources, Fs())
            except SedimentError as error:
                self._plan_error = error

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    @in_one_sentence
    def schema(self) -> StructType:
        """Return the schema of the requested table and columns."""
        self._check_loaded()
        options = self._options or SourceOptions.parse(self._given)
        columns = options.request.selected()
        schema = spark_schema(columns)
        if not self._is_new_table:
            return schema
        return table_schema(schema, [column.meaning for column in columns], self._given)

    @in_one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        silence_closed_sockets()
        self._check_loaded()
        options, tasks = self._options_for(schema), self._take_tasks()
        options.kafka.check_batch()
        if self._plan_error is not None:
            raise self._plan_error
        if tasks is None:
            tasks = planned_tasks(options, selected_sources(options, Fs()), Fs())
        return KafkaLogReader(_with_schema(options.request, schema), tasks)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query; only `records` can be streamed."""
        silence_closed_sockets()
        self._take_tasks()
        try:
            self._check_loaded()
            options = self._options_for(schema)
            options.kafka.check_stream()
            if options.request.what != "records":
                raise UsageError(
                    f"table {options.request.what!r} cannot be streamed",
                    advice="stream 'records', or read it as a batch",
                )
            if options.max_offsets_per_trigger is not None and not HAS_READ_LIMITS:
                raise UsageError(
                    f"max_offsets_per_trigger needs Spark 4.2 or newer, but this is Spark {spark_version()}",
                    advice="leave it out",
                )
            return KafkaLogStreamReader(replace(options, request=_with_schema(options.request, schema)))
        except SedimentError as error:
            return _RefusedStreamReader(error)

    @in_one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse to write."""
        raise _read_only()

    @in_one_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Refuse to write."""
        raise _read_only()

    def _check_loaded(self) -> None:
        if self._load_error is not None:
            raise self._load_error

    def _options_for(self, schema: StructType) -> SourceOptions:
        return self._options or SourceOptions.parse(options_in(schema) | self._given)

    def _take_tasks(self) -> list[TableTask] | None:
        """Return the tasks, and delete them from this instance, because Spark sends the instance to every task."""
        tasks, self._tasks = self._tasks, None
        return tasks


def _read_only() -> UsageError:
    return UsageError(
        f"{FORMAT} only reads",
        advice='write to a table format such as "parquet", or with the format "kafka" to a broker or `sediment serve`',
    )


class _TaskPartition(InputPartition):
    def __init__(self, task: TableTask) -> None:
        super().__init__(task)


@in_one_sentence
def _read(
    request: TableRequest, partition: InputPartition, on_lost: Callable[[Slice, int], None] | None
) -> Iterator[pa.RecordBatch]:
    silence_closed_sockets()
    return iterator_in_one_sentence(_batches(request, partition, on_lost))


def _batches(
    request: TableRequest, partition: InputPartition, on_lost: Callable[[Slice, int], None] | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _TaskPartition):
        return  # Spark's placeholder for a plan without partitions
    skipped: list[UnreadableRange] = []
    # A stream continues at its next offsets in the new files. A frame must not continue in new files, because some of
    # its rows would come from the planned files and some from new files.
    yield from read_rows(
        request, partition.value, Fs(), on_unreadable=skipped.append, on_lost=on_lost, follow=on_lost is not None
    )
    if skipped:
        size_bytes = sum(each.end_position - each.position for each in skipped)
        _log.warning(
            "%d unreadable batches, %d bytes, were left out; the first: %s", len(skipped), size_bytes, skipped[0].error
        )


class KafkaLogReader(DataSourceReader):
    """Reader of a batch query; it reads the files that existed at `load`.

    The reader has no `pushFilters`, because Spark 4.2 would reuse a plan with the filters of one query for later
    queries.
    """

    def __init__(self, request: TableRequest, tasks: Sequence[TableTask]) -> None:
        self._request = request
        self._tasks = tasks

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaLogReader, (self._request, ())  # without the tasks, because the reader is sent to every task

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task."""
        return [_TaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._request, partition, None)


# ----------------------------------------------------------------------------------------------------------- streaming
class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream that follows the partitions of a directory.

    A new partition is read from its beginning.  If records are lost before the stream reads them, the reader fails or
    logs a warning and skips them.  Records that compaction removed are not reported, because newer records superseded
    them.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._request = options.request
        self._ends = LogEnds(options.paths, options.request.isolation, options.selects)
        self._progress = StreamProgress(self._ends, self._on_data_loss)
        self._target: dict[str, FoundEnd] | None = None
        self._last_end: dict[str, Any] | None = None  # of the batches that this instance planned

    @in_one_sentence
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the first offsets of a new query, by partition."""
        if self._options.starting == LATEST:
            found = self._progress.found()
            starts = {name: end.offset for name, end in found.items()}
        else:
            starts = stream_starts(self._options, self._ends.sources(), Fs())
            found = self._progress.found() if starts else {}
        return offsets_json(self._progress.started(starts, found))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return `max_offsets_per_trigger` as a limit."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @in_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record the current log end, at which a query with the trigger `availableNow` stops."""
        self._target = self._progress.found()

    @in_one_sentence
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the next offset of each partition, which is not below its entry in `start` without data loss.

        The batch from `start` to these offsets has about `limit` offsets, but at least one of each partition with data.
        Spark 4.0 and 4.1 give no arguments.  Then the batch begins where the last one ended; at the beginning of a
        query, which may go on from a checkpoint, only `partitions` learns where that is.
        """
        found = self._progress.found() if self._target is None else self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin = (self._last_end or {}) if start is None else start
        return offsets_json(self._progress.next_offsets(parse_offsets(begin), found, most))

    @in_one_sentence
    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the next offset of each partition."""
        return self._ends.now()

    @in_one_sentence
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks for the offsets from `start` up to but not including `end`."""
        task_bytes = self._options.task_bytes or SLICE_BYTES
        scan_tasks: list[ScanTask] = []
        begins, ends = parse_offsets(start), parse_offsets(end)
        if not HAS_READ_LIMITS and self._last_end is None:
            ends = self._progress.compared(begins, ends)
        self._last_end = end
        for source, bounds, topic_id in self._progress.ranges(begins, ends):
            request = replace(self._request, bounds=self._request.bounds & bounds)
            planned = plan_scan_tasks(request, source, Fs(), slice_bytes=task_bytes)
            scan_tasks += [replace(scan_task, topic_id=topic_id) for scan_task in planned]
        return [_TaskPartition(task) for task in pack_scan_tasks(scan_tasks, task_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._request, partition, self._on_lost_slice)

    def _on_lost_slice(self, lost: Slice, next_offset: int) -> None:
        what = f"offsets {lost.start_offset} to {next_offset - 1} were removed before the stream read them"
        advice = "set failOnDataLoss to false to continue after these offsets"
        self._on_data_loss(str(lost.source.partition), what, advice)

    def _on_data_loss(self, partition: str, what: str, advice: str) -> None:
        """Fail, or log a warning, as the option `failOnDataLoss` says.

        Raises:
            SourceChangedError: the query fails on data loss.
        """
        if self._options.kafka.fails_on_data_loss:
            raise SourceChangedError(what, partition=partition, advice=advice)
        _log.warning("%s: %s", partition, what)


class _RefusedStreamReader(DataSourceStreamReader):
    """Reader that raises its error in the first call, because Spark 4.2 loses an error that is raised earlier."""

    def __init__(self, error: SedimentError) -> None:
        self._error = error

    @in_one_sentence
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        raise self._error

    @in_one_sentence
    def latestOffset(self, *_given: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
