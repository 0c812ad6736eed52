"""Task of `snapshot`: find the latest record of each key in a part of a partition, and return Spark rows.

The task reads the committed records of its slices as pyarrow batches, and keeps the latest record of each key so far.
It yields rows at the end, or earlier if memory is full.  Last, it yields a summary: the number of records, or an error.

Each part may yield rows several times, and each yield may contain a row of the same key.  The row with the highest
offset wins.  A tombstone is also a row.

Spark reads a part again if the executor that kept its rows is lost.  The driver does not look at the summaries again.
Therefore, an error fails the task, unless the driver has allowed it (`allow_errors`).

Invariants: a part has exactly one summary, after its records.  A part that is read again yields the same rows, or its
task fails.  Memory use is at most a few times HELD_BYTES, plus the largest batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sediment.jobs.data_source.one_sentence import iterator_in_one_sentence
from sediment.jobs.reporting.error_text import describe
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.tables.planning import ScanTask, TableTask
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import READ_COMMITTED, TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

REQUEST = TableRequest(
    what="records",
    columns=("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    isolation=READ_COMMITTED,
)
SPARK_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)

# Topic name of summary rows; no real topic can have it.  In these rows, `partition` is the number of the part, and
# `value` is JSON.
SUMMARY_TOPIC = ""

_PARTS_WITH_ERRORS = "sediment.snapshot.partsWithErrors"  # a local property of Spark, of which each task gets a copy
_EVERY_PART = "all"

HELD_BYTES = 128 << 20
_LOOK_ROWS = 1 << 18
_EMITTED_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class PartitionPart:
    """Consecutive slices of one partition, ascending; `number` identifies the summary of this part."""

    number: int
    scan_tasks: tuple[ScanTask, ...]

    def size_bytes(self) -> int:
        return sum(scan_task.slice.size_bytes for scan_task in self.scan_tasks)


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """Summary of a part: its error, or how many records were read and how many `emissions` were made.

    An emission is a yield of rows; these rows have different keys.
    """

    messages_read: int = 0
    emissions: int = 0
    reason_code: str | None = None
    reason: str | None = None


def parse_read_summary(value: bytes) -> ReadSummary:
    return ReadSummary(**json.loads(value))


class LatestPerKey:
    """Function for `mapInArrow`: each input row is an index into `tasks`; the function yields the rows of that task."""

    def __init__(self, tasks: Sequence[Sequence[PartitionPart]]) -> None:
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fs = Fs()
        may_fail = _parts_that_may_fail()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for part in self._tasks[task]:
                    again = may_fail is not None and part.number not in may_fail
                    yield from iterator_in_one_sentence(read_latest(part, fs, again=again))


def allow_errors(spark: SparkContext, parts: Collection[int] | None) -> None:
    """Let later jobs of this thread report errors of `parts`, or of every part if None, only in the summaries."""
    spark.setLocalProperty(_PARTS_WITH_ERRORS, _EVERY_PART if parts is None else ",".join(map(str, parts)))


def _parts_that_may_fail() -> frozenset[int] | None:
    from pyspark import TaskContext

    task = TaskContext.get()
    found = (None if task is None else task.getLocalProperty(_PARTS_WITH_ERRORS)) or ""
    return None if found == _EVERY_PART else frozenset(map(int, filter(None, found.split(","))))


def read_latest(part: PartitionPart, fs: Fs, *, again: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the part and its summary.

    If the part is read `again`, only the planned files are read, because others may lack rows that the first reading
    found; and an error is raised.
    """
    messages_read = 0
    reason: tuple[str | None, str | None] = None, None
    held = _Held()
    try:
        for batch in read_table(REQUEST, TableTask(scan_tasks=part.scan_tasks), fs, follow=not again):
            messages_read += batch.num_rows
            yield from held.add(batch)
        yield from held.take()
    except (SedimentError, OSError) as error:
        if again:
            raise
        reason = describe(error)
    yield _summary_row(part.number, ReadSummary(messages_read, held.emissions, *reason))


def _summary_row(number: int, summary: ReadSummary) -> pa.RecordBatch:
    import pyarrow as pa

    row = {"value": json.dumps(asdict(summary)).encode(), "topic": SUMMARY_TOPIC, "partition": number}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(REQUEST.selected()))


class _Held:
    """Records in log order; whenever their number has doubled, all but the latest record of each key are removed."""

    def __init__(self) -> None:
        self.emissions = 0
        self._latest: list[pa.RecordBatch] = []
        self._new: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Store `batch`; if the stored records exceed HELD_BYTES, yield and forget them."""
        self._new.append(batch.filter(batch.column("key").is_valid()))
        if _rows(self._new) >= max(_LOOK_ROWS, _rows(self._latest)) or _bytes(self._new) >= HELD_BYTES:
            self._deduplicate()
            if _bytes(self._latest) >= HELD_BYTES:
                yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        if self._new:
            self._deduplicate()
        latest, self._latest = self._latest, []
        self.emissions += bool(latest)
        yield from latest

    def _deduplicate(self) -> None:
        import pyarrow as pa

        table = latest_of(pa.Table.from_batches([*self._latest, *self._new]))
        self._latest = [batch for batch in table.to_batches(max_chunksize=_EMITTED_ROWS) if batch.num_rows]
        self._new = []


def _rows(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _bytes(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)


def latest_of(table: pa.Table) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    numbered = pa.table({"key": table.column("key"), "row": np.arange(table.num_rows)})
    last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")]).column("row_max")
    return table.take(np.sort(last.to_numpy()))
