"""DataFrames with the rows of two logs that `verify` compares, read by tasks of the `kafka-log` tables.

    pairs --slices--> tasks --read_table--> pyarrow batches --one number for the pair, one for the side--> rows

The task that reads values and headers also hashes them, so no value is shuffled; keys are shuffled complete.  Two
records are compared only at the same offset, so 64 bits are enough.

Invariant: an unreadable batch is a row too, with its error text and a hash of its bytes; other rows do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.packing import pack_in_order
from sediment.segment_io.partition.slices import SLICE_BYTES
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import (
    BATCHES_TASK_BYTES,
    OPEN_SEGMENT_BYTES,
    SOURCES_PER_TASK,
    TableTask,
    plan_scan_tasks,
    read_cost,
)
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import ROWS, TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

BEFORE, AFTER = 0, 1

DATA, CONTROL, CORRUPT = 0, 1, 2
NO_TIMESTAMP_US = -1000


_RECORDS = TableRequest(
    what="records",
    columns=(
        "key",
        "value",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
        "batchBaseOffset",
        "producerId",
        "producerEpoch",
        "sequence",
        "transactional",
        "control",
        "leaderEpoch",
        "corruption",
    ),
    on_corruption=ROWS,
)
_BATCHES = TableRequest(
    what="batches",
    columns=(
        "segment",
        "position",
        "size",
        "baseOffset",
        "lastOffset",
        "recordCount",
        "magic",
        "codec",
        "timestampType",
        "maxTimestamp",
        "deleteHorizon",
        "producerId",
        "producerEpoch",
        "baseSequence",
        "transactional",
        "control",
        "controlType",
        "leaderEpoch",
        "crc",
        "valid",
        "corruption",
    ),
    on_corruption=ROWS,
)


_TRANSACTIONS = TableRequest(what="transactions", columns=("producerId", "firstOffset", "lastOffset"))

_CONTENTS = {
    "attributes": "integer",
    "firstRecord": "long",
    "lastRecord": "long",
    "largestRecord": "long",
    "descending": "boolean",
    "nullValue": "boolean",
}
"""Columns of `BatchContents` for batches of AFTER; null if they have no meaning."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that one task reads: one side of one pair."""

    pair: int
    side: int
    task: TableTask


class _ReadParts:
    """Function of `mapInArrow`: turns rows of task numbers into the rows of `tasks` with these numbers."""

    def __init__(self, request: TableRequest, tasks: Sequence[Sequence[_Part]]) -> None:
        self._request = request
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn a column of task numbers into rows of the request, after the columns `pair` and `side`."""
        fs = Fs()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in self._tasks[number]:
                    yield from self._read(part, fs)

    def _read(self, part: _Part, fs: Fs) -> Iterator[pa.RecordBatch]:
        try:
            for rows in read_table(self._request, part.task, fs):
                yield self._completed(rows, part)
        except (SedimentError, OSError) as error:
            yield self._completed(self._unreadable(error), part)

    def _completed(self, rows: pa.RecordBatch, part: _Part) -> pa.RecordBatch:
        numbered = _numbered(rows, part)
        return _with_contents(numbered, part) if self._request == _BATCHES else numbered

    def _unreadable(self, error: Exception) -> pa.RecordBatch:
        import pyarrow as pa

        schema = arrow_schema(self._request.selected())
        row = {name: value for name, value in (("corruption", str(error)), ("valid", False)) if name in schema.names}
        return pa.RecordBatch.from_pylist([row] if row else [], schema=schema)


def _numbered(rows: pa.RecordBatch, part: _Part) -> pa.RecordBatch:
    import pyarrow as pa

    numbers = [pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows) for number in (part.pair, part.side)]
    return pa.RecordBatch.from_arrays([*numbers, *rows.columns], names=["pair", "side", *rows.schema.names])


def _with_contents(rows: pa.RecordBatch, part: _Part) -> pa.RecordBatch:
    """Return `rows` of batches with the columns of _CONTENTS."""
    import pyarrow as pa

    from sediment.jobs.verification.contents import BatchContents, read_contents

    contents = BatchContents.unknown(rows.num_rows)
    if part.side == AFTER:
        readable = rows.column("valid").fill_null(False).to_numpy(zero_copy_only=False)
        positions, sizes = (
            rows.column(name).fill_null(0).to_numpy(zero_copy_only=False) for name in ("position", "size")
        )
        (piece,) = part.task.scan_tasks
        contents = read_contents(piece.slice.path, positions, sizes, readable)
    empty = ~contents.known | (rows.column("recordCount").fill_null(0).to_numpy(zero_copy_only=False) == 0)
    columns = [
        pa.array(contents.attributes, pa.int32(), mask=~contents.known),
        *(
            pa.array(values, mask=empty)
            for values in (
                contents.first_record,
                contents.last_record,
                contents.largest_ms,
                contents.descending,
                contents.null_value,
            )
        ),
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *columns], names=[*rows.schema.names, *_CONTENTS])


def _load(
    request: TableRequest, pairs: Sequence[tuple[Source, Source]], spark: SparkSession, task_bytes: int
) -> DataFrame:
    fs = Fs()
    parts = [
        (_Part(pair, side, TableTask(scan_tasks=(scan_task,))), read_cost(scan_task))
        for pair, sources in enumerate(pairs)
        for side, source in enumerate(sources)
        for scan_task in plan_scan_tasks(request, source, fs, slice_bytes=task_bytes)
    ]
    total = sum(cost for _, cost in parts)
    wanted = min(task_bytes + OPEN_SEGMENT_BYTES, total // max(1, int(spark.sparkContext.defaultParallelism)) + 1)
    packed = pack_in_order(parts, lambda part: part[1], wanted, overfill=True)
    tasks = [[part for part, _ in each] for each in packed]
    return _rows_of(request, tasks, spark)


def _rows_of(request: TableRequest, tasks: Sequence[Sequence[_Part]], spark: SparkSession) -> DataFrame:
    from pyspark.sql.types import IntegerType, StructField, StructType

    from sediment.jobs.datasource import spark_schema

    numbers = [StructField(name, IntegerType()) for name in ("pair", "side")]
    schema = StructType([*numbers, *spark_schema(request.selected()).fields])
    if request == _BATCHES:
        for name, kind in _CONTENTS.items():
            schema = schema.add(name, kind)
    count = max(1, len(tasks))
    return spark.range(0, len(tasks), 1, count).mapInArrow(_ReadParts(request, tasks), schema)


def load_batches(pairs: Sequence[tuple[Source, Source]], spark: SparkSession) -> DataFrame:
    """Return a row for each batch of either log: `pair`, `side` and the columns of `batches`, timestamps as long in ms.

    Batches of AFTER also have the columns of `BatchContents`.  `corruption` is null in a readable row; `valid` is True
    if its checksum is right.
    """
    from pyspark.sql import functions as f

    rows = _load(_BATCHES, pairs, spark, BATCHES_TASK_BYTES)
    return rows.withColumns(
        {
            "maxTimestamp": f.coalesce(f.unix_millis("maxTimestamp"), f.lit(-1)),
            "deleteHorizon": f.unix_millis("deleteHorizon"),
            "timestampType": f.greatest("timestampType", f.lit(0)),
        }
    )


def load_records(pairs: Sequence[tuple[Source, Source]], spark: SparkSession) -> DataFrame:
    """Return a row for each record of either log, and a row for each unreadable batch.

    pair, side int; kind DATA, CONTROL or CORRUPT; key binary, only in DATA; spot long: replaces a missing key; offset,
    base (of the batch) long; tombstone bool; value_hash, headers_hash, producer_hash long; timestamp_us long.
    """
    from pyspark.sql import functions as f

    rows = _load(_RECORDS, pairs, spark, SLICE_BYTES)
    kind = f.when(f.col("corruption").isNotNull(), CORRUPT).when(f.col("control"), CONTROL).otherwise(DATA)
    value_hash = f.xxhash64(f.when(kind != DATA, f.col("key")), "value")
    key = f.when(kind == DATA, f.col("key"))
    return rows.select(
        "pair",
        "side",
        kind.alias("kind"),
        key.alias("key"),
        f.when(kind == CORRUPT, value_hash).when(key.isNull(), f.col("offset")).otherwise(0).alias("spot"),
        f.when(kind == CORRUPT, -1).otherwise(f.col("offset")).alias("offset"),
        f.col("batchBaseOffset").alias("base"),
        ((kind == DATA) & f.col("value").isNull()).alias("tombstone"),
        value_hash.alias("value_hash"),
        _headers_hash("headers").alias("headers_hash"),
        f.coalesce(f.unix_micros("timestamp"), f.lit(NO_TIMESTAMP_US)).alias("timestamp_us"),
        f.xxhash64(
            "producerId",
            "producerEpoch",
            "sequence",
            "transactional",
            "leaderEpoch",
            f.greatest("timestampType", f.lit(0)),
        ).alias("producer_hash"),
    )


def _headers_hash(name: str) -> Column:
    """Return a hash of keys and values in order; null values are hashed separately, because Spark's hash skips them."""
    from pyspark.sql import functions as f

    return f.xxhash64(name, f.transform(name, lambda header: header["value"].isNull()))


def load_aborted(sources: Sequence[Source], spark: SparkSession) -> DataFrame:
    """Return a row for each entry of the transaction indexes of `sources`: pair, producerId, firstOffset, lastOffset.

    An unreadable index has no rows; the check of indexes reports it.
    """
    parts = [_Part(pair, AFTER, TableTask(sources=(source,))) for pair, source in enumerate(sources)]
    tasks = [parts[start : start + SOURCES_PER_TASK] for start in range(0, len(parts), SOURCES_PER_TASK)]
    return _rows_of(_TRANSACTIONS, tasks, spark).drop("side")
