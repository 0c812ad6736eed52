"""`spark.read.format("kafka-log")`: segment files as DataFrames, without a broker; a batch and a streaming source.

    driver's Python    options -> request, paths -> partitions, indexes -> tasks of about `task_bytes`
    tasks              slices of segments -> Arrow batches; pyarrow and kernels are loaded there, after the fork

Filters on topic, partition, offset and timestamp leave out partitions, segments and ranges of segments; Spark applies
them once more, so that what is left out need not be exact.

Invariants: a stream's progress is the next offset of each partition, by the name of its directory, and nothing else, so
that it outlives rolls, retention and compaction; its end is never above what a task can read.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
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

from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.locate import Source, locate
from sediment.segment_io.slices import ALL, SLICE_BYTES, Bounds, Slice, live_segments
from sediment.segment_io.tables import (
    FAIL,
    ISOLATIONS,
    ON_CORRUPTION,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Column,
    Damage,
    TableRequest,
    TableTask,
    parse_range,
    plan_pieces,
    plan_table,
    read_table,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT = "kafka-log"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"

EARLIEST = "earliest"
LATEST = "latest"

_OPTIONS = {
    "path": "what to read",
    "paths": "what to read, as a JSON list",
    "what": "the table",
    "columns": "names, separated by commas",
    "isolation": "read_uncommitted or read_committed",
    "on_corruption": "fail, skip or rows",
    "offsets": "A:B, from A to below B",
    "timestamps_ms": "A:B, from A to below B",
    "task_bytes": "how much of a segment one task reads",
    "starting": "where a new stream begins: earliest or latest",
    "max_offsets_per_trigger": "how much of a stream one batch takes",
}

_log = logging.getLogger("sediment")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("kafka-log")` known to a session, and let filters through to Python sources."""
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(KafkaLogSource)


# ------------------------------------------------------------------------------------------------------------- options
@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one `load`."""

    paths: tuple[str, ...]
    request: TableRequest
    task_bytes: int | None
    starting: str
    max_offsets_per_trigger: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check every option.

        Raises:
            UsageError: an unknown option or a value that it cannot have.
        """
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _OPTIONS:
                near = difflib.get_close_matches(name, _OPTIONS, n=1)
                hint = f"did you mean {near[0]!r}" if near else f"there are {', '.join(_OPTIONS)}"
                raise UsageError(f"{FORMAT} has no option {name!r}", advice=hint)
        columns = given.get("columns")
        offsets, times = (
            parse_range(given.get("offsets"), "offsets"),
            parse_range(given.get("timestamps_ms"), "timestamps_ms"),
        )
        request = TableRequest(
            what=given.get("what", "records"),
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
            bounds=Bounds(
                first_offset=offsets[0], end_offset=offsets[1], first_timestamp_ms=times[0], end_timestamp_ms=times[1]
            ),
            isolation=_one_of(given, "isolation", ISOLATIONS, READ_UNCOMMITTED),
            on_corruption=_one_of(given, "on_corruption", ON_CORRUPTION, FAIL),
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
    """The Spark schema of `columns`, everything nullable."""
    return StructType([StructField(column.name, _SPARK_TYPES[column.kind]) for column in columns])


def _with_schema(request: TableRequest, schema: StructType) -> TableRequest:
    """`request` for the columns of `schema`, which a user may have given."""
    narrowed = replace(request, columns=tuple(schema.fieldNames()))
    for given, own in zip(schema.fields, spark_schema(narrowed.selected()).fields, strict=True):
        if given.dataType != own.dataType:
            raise UsageError(
                f"column {own.name!r} is {own.dataType.simpleString()}, not {given.dataType.simpleString()}",
                advice="leave out .schema(...), or cast behind the load",
            )
    return narrowed


# --------------------------------------------------------------------------------------------------------------- errors
def _in_one_sentence(function: _Function) -> _Function:
    """Leave out the Python traceback of an error that is a sentence for the user; its process ends with it."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except SedimentError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    result: Any = wrapped
    return result  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------------------- source
class KafkaLogSource(DataSource):
    """`kafka-log`: see docs/tables.md for its options and tables."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return FORMAT

    @_in_one_sentence
    def schema(self) -> StructType:
        """Of the table and columns that the options ask for; the paths are looked at here too."""
        options = SourceOptions.parse(self.options)
        locate(options.paths, Fs())
        return spark_schema(options.request.selected())

    @_in_one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch query."""
        options = SourceOptions.parse(self.options)
        return KafkaLogReader(replace(options, request=_with_schema(options.request, schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For a streaming query, of `records` only."""
        try:
            options = SourceOptions.parse(self.options)
            if options.request.what != "records":
                raise UsageError(
                    f"table {options.request.what!r} cannot be streamed",
                    advice="stream 'records', or read it as a batch",
                )
            return KafkaLogStreamReader(replace(options, request=_with_schema(options.request, schema)))
        except SedimentError as error:
            return _RefusedStreamReader(error)


class _TaskPartition(InputPartition):
    """One task's work, as it goes to an executor."""

    def __init__(self, task: TableTask) -> None:
        super().__init__(task)


@_in_one_sentence
def _read(
    request: TableRequest, partition: InputPartition, on_lost: Callable[[Slice, int], None] | None
) -> Iterator[pa.RecordBatch]:
    return _one_sentence_iterator(_batches(request, partition, on_lost))


def _one_sentence_iterator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    following = _in_one_sentence(functools.partial(next, batches, None))
    while (batch := following()) is not None:
        yield batch


def _batches(
    request: TableRequest, partition: InputPartition, on_lost: Callable[[Slice, int], None] | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _TaskPartition):
        return  # Spark's stand-in where there is nothing to read
    skipped: list[Damage] = []
    yield from read_table(request, partition.value, Fs(), on_damage=skipped.append, on_lost=on_lost)
    if skipped:
        size_bytes = sum(damage.end_position - damage.position for damage in skipped)
        _log.warning(
            "%d unreadable batches, %d bytes, were left out; the first: %s", len(skipped), size_bytes, skipped[0].error
        )


class KafkaLogReader(DataSourceReader):
    """A batch query: the files as they are when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._request = options.request

    @_in_one_sentence
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Narrow the request; Spark is given every filter back."""
        self._request = narrowed_by(self._options.request, filters)
        return filters

    @_in_one_sentence
    def partitions(self) -> list[InputPartition]:
        """A partition a task."""
        fs = Fs()
        sources = locate(self._options.paths, fs)
        tasks = plan_table(self._request, sources, fs, task_bytes=self._options.task_bytes)
        return [_TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(self._request, partition, None)


# ------------------------------------------------------------------------------------------------------ pushed filters
# A batch may hold offsets above its base and timestamps below its largest; an upper bound of those tells nothing.
_OFFSETS = {"records": {"offset"}, "batches": {"baseOffset", "lastOffset"}}
_TIMESTAMPS_BELOW = {"records": {"timestamp"}, "batches": {"maxTimestamp"}}
_TIMESTAMPS_ABOVE = {"records": {"timestamp"}, "batches": set[str]()}


def narrowed_by(request: TableRequest, filters: Sequence[Filter]) -> TableRequest:
    """`request` without what none of the rows that pass `filters` comes from."""
    for pushed in filters:
        if len(getattr(pushed, "attribute", ())) == 1:
            request = _narrowed(request, pushed)
    return request


def _narrowed(request: TableRequest, pushed: Any) -> TableRequest:
    (column,) = pushed.attribute
    if isinstance(pushed, EqualTo | EqualNullSafe | In):
        values = pushed.value if isinstance(pushed, In) else (pushed.value,)
        if column == "topic":
            wanted = frozenset(values)
            return replace(request, topics=wanted if request.topics is None else wanted & request.topics)
        if column == "partition":
            numbers = frozenset(values)
            return replace(request, partitions=numbers if request.partitions is None else numbers & request.partitions)
        known = [value for value in values if value is not None]
        if not known:
            return request
        request = _bounded(request, column, GreaterThanOrEqual(pushed.attribute, min(known)))
        return _bounded(request, column, LessThanOrEqual(pushed.attribute, max(known)))
    return _bounded(request, column, pushed)


def _bounded(request: TableRequest, column: str, pushed: Any) -> TableRequest:
    is_lower = isinstance(pushed, GreaterThan | GreaterThanOrEqual)
    is_upper = isinstance(pushed, LessThan | LessThanOrEqual)
    if request.what not in _OFFSETS or not (is_lower or is_upper) or pushed.value is None:
        return request
    timestamps = (_TIMESTAMPS_BELOW if is_lower else _TIMESTAMPS_ABOVE)[request.what]
    strict = isinstance(pushed, GreaterThan | LessThan)
    if column in _OFFSETS[request.what]:
        bound = int(pushed.value) + (strict if is_lower else not strict)
        narrowed = Bounds(first_offset=bound) if is_lower else Bounds(end_offset=bound)
    elif column in timestamps:
        # Exact in microseconds; rounded to the millisecond that lets more through.
        value_us = _microseconds(pushed.value)
        bound = -(-value_us // 1000) if strict == is_upper else value_us // 1000 + 1
        narrowed = Bounds(first_timestamp_ms=bound) if is_lower else Bounds(end_timestamp_ms=bound)
    else:
        return request
    return replace(request, bounds=request.bounds & narrowed)


def _microseconds(value: datetime) -> int:
    return (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


# ----------------------------------------------------------------------------------------------------------- streaming
class KafkaLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tails the partitions of a directory.

    A new partition is read from its beginning.  Records that retention removes before they were read are passed over
    with a warning; those that compaction removes were superseded.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._request = options.request
        self._ends = _LogEnds(options)
        self._target: dict[str, int] | None = None

    @_in_one_sentence
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        if self._options.starting == LATEST:
            return self._ends.now()
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`max_offsets_per_trigger`."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @_in_one_sentence
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of a query that stops."""
        self._target = self._ends.now()

    @_in_one_sentence
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The next offset of each partition, or less of each where `limit` says so; never below `start`."""
        ends = self._target if self._target is not None else self._ends.now()
        ends = {**start, **{name: max(end, start.get(name, end)) for name, end in ends.items()}}
        if not isinstance(limit, ReadMaxRows):
            return ends
        starts = {name: start.get(name, self._ends.first(name)) for name in ends}
        waiting = {name: max(ends[name] - starts[name], 0) for name in ends}
        share = min(1.0, limit.max_rows / max(sum(waiting.values()), 1))
        return {
            name: ends[name] if share == 1.0 else min(ends[name], starts[name] + max(1, int(waiting[name] * share)))
            for name in ends
        }

    @_in_one_sentence
    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The next offset of each partition."""
        return self._ends.now()

    @_in_one_sentence
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The tasks for offsets from `start` to below `end`."""
        fs = Fs()
        pieces: list[InputPartition] = []
        for name, source in self._ends.sources().items():
            first = start.get(name, ALL.first_offset)
            if name not in end or first >= end[name]:
                continue
            begins = self._ends.first(name)
            if name in start and first < min(begins, end[name]):
                _tell_loss(source, first, begins)
            request = replace(
                self._request, bounds=self._request.bounds & Bounds(first_offset=first, end_offset=end[name])
            )
            found = plan_pieces(request, source, fs, slice_bytes=self._options.task_bytes or SLICE_BYTES)
            pieces += [_TaskPartition(TableTask(pieces=(piece,))) for piece in found]
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return _read(self._request, partition, _warn_of_loss)


class _RefusedStreamReader(DataSourceStreamReader):
    """Says what is wrong when it is first asked; Spark 4.2 loses an error that is raised any earlier."""

    def __init__(self, error: SedimentError) -> None:
        self._error = error

    @_in_one_sentence
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Raises the error."""
        raise self._error

    @_in_one_sentence
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Raises the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises the error."""
        raise self._error


def _warn_of_loss(piece: Slice, first_offset: int) -> None:
    _tell_loss(piece.source, piece.start_offset, first_offset)


def _tell_loss(source: Source, first_offset: int, next_offset: int) -> None:
    _log.warning(
        "%s: offsets %d to %d were removed by retention before the stream read them",
        source.partition,
        first_offset,
        next_offset - 1,
    )


class _LogEnds:
    """The next offset of each partition, looked up anew where the files have changed."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._known: dict[str, tuple[Any, int]] = {}

    def sources(self) -> dict[str, Source]:
        """By topic-partition; of one partition in two log directories only one can be followed."""
        found: dict[str, Source] = {}
        for source in locate(self._options.paths, Fs()):
            other = found.setdefault(str(source.partition), source)
            if other.directory != source.directory:
                raise UsageError(
                    f"partition {source.partition} is in two directories, {other.directory.parent} and "
                    f"{source.directory.parent}",
                    advice="stream them apart",
                )
            if source.base_offset is not None:
                raise UsageError(
                    "a single segment cannot be streamed", path=str(source.directory), advice="name its directory"
                )
        return found

    def now(self) -> dict[str, int]:
        """Of all partitions; one that goes away meanwhile is left out."""
        ends = {}
        for name, source in self.sources().items():
            with contextlib.suppress(NotALogDirectoryError):
                ends[name] = self._end(name, source)
        return ends

    def first(self, name: str) -> int:
        """The base offset of a partition's first segment."""
        source = self.sources().get(name)
        segments = live_segments(source, Fs()) if source else ()
        return segments[0].base_offset if segments else 0

    def _end(self, name: str, source: Source) -> int:
        # They decode, which a process that only plans need not.
        from sediment.segment_io.committed import committed_range, log_end_offset
        from sediment.segment_io.log_dir import read_checkpoints

        fs = Fs()
        is_committed = self._options.request.isolation == READ_COMMITTED
        checkpoints = read_checkpoints(source.directory.parent, fs).of(source.partition) if is_committed else None
        seen = (live_segments(source, fs)[-1:], checkpoints)
        known, end = self._known.get(name, (None, 0))
        if known != seen:
            end = committed_range(source, checkpoints, fs).end_offset if checkpoints else log_end_offset(source, fs)
            self._known[name] = (seen, end)
        return end
