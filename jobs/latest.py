"""The latest record of each key in slices of partitions, as Spark rows: what a task of a snapshot does.

    slice --committed records--> pyarrow batches --latest of each key so far--> rows, at the end or when it is much
                                                                                and an account: records read, or why not

Of one key several rows may come, from several slices or because a slice had to emit early; the one with the highest
offset is the latest.  Tombstones are rows like others.  Records without a key have no latest value and are left out.

Invariants: a slice has exactly one account row, after its records; a slice that cannot be read fails alone, by its
account; memory is bounded by a few times HELD_BYTES and the largest batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.tables import READ_COMMITTED, Piece, TableRequest, TableTask, arrow_schema, read_table

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST = TableRequest(
    what="records",
    columns=("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    isolation=READ_COMMITTED,
)
SPARK_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)

# An account is a row of this topic, which no topic can have: its `partition` is the number of the slice, `offset` the
# records read, `value` the error or null.  Its key is unique, so that it survives where rows are merged by key.
ACCOUNT_TOPIC = ""

HELD_BYTES = 64 << 20
_LOOK_ROWS = 1 << 18
_EMITTED_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class NumberedPiece:
    """A slice to read; `number` is that of its account."""

    number: int
    piece: Piece

    def size_bytes(self) -> int:
        """Of the slice: what tasks are packed by."""
        return self.piece.slice.size_bytes


class LatestPerKey:
    """What `mapInArrow` runs on rows of task numbers: the rows of `tasks` with these numbers."""

    def __init__(self, tasks: Sequence[Sequence[NumberedPiece]]) -> None:
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of one column of numbers -> rows of SPARK_SCHEMA."""
        fs = Fs()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for piece in self._tasks[task]:
                    yield from read_latest(piece, fs)


def read_latest(piece: NumberedPiece, fs: Fs) -> Iterator[pa.RecordBatch]:
    """The rows of one slice, of `arrow_schema(REQUEST.selected())`: its records, then its account."""
    records = 0
    error: str | None = None
    held = _Held()
    try:
        for batch in read_table(REQUEST, TableTask(pieces=(piece.piece,)), fs):
            records += batch.num_rows
            yield from held.add(batch)
        yield from held.take()
    except SedimentError as failure:
        error = f"{type(failure).__name__}\n{failure}"
    except OSError as failure:
        error = f"OSError\n{failure.strerror} ({failure.filename})"
    yield _account(piece.number, records, error)


def _account(number: int, records: int, error: str | None) -> pa.RecordBatch:
    import pyarrow as pa

    row = {
        "key": str(number).encode(),
        "value": None if error is None else error.encode(),
        "topic": ACCOUNT_TOPIC,
        "partition": number,
        "offset": records,
    }
    schema = arrow_schema(REQUEST.selected())
    return pa.RecordBatch.from_pylist([row], schema=schema)


class _Held:
    """Records in log order, of which only the latest of each key are kept whenever their number has doubled."""

    def __init__(self) -> None:
        self._latest: list[pa.RecordBatch] = []
        self._new: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Hold `batch`; yields what becomes too much to hold."""
        self._new.append(batch.filter(batch.column("key").is_valid()))
        if _rows(self._new) >= max(_LOOK_ROWS, _rows(self._latest)) or _bytes(self._new) >= HELD_BYTES:
            self._look()
            if _bytes(self._latest) >= HELD_BYTES:
                yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all that is held."""
        if self._new:
            self._look()
        latest, self._latest = self._latest, []
        yield from latest

    def _look(self) -> None:
        import pyarrow as pa

        table = latest_of(pa.Table.from_batches([*self._latest, *self._new]))
        self._latest = [batch for batch in table.to_batches(max_chunksize=_EMITTED_ROWS) if batch.num_rows]
        self._new = []


def _rows(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _bytes(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)


def latest_of(table: pa.Table) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    import numpy as np
    import pyarrow as pa

    numbered = pa.table({"key": table.column("key"), "row": np.arange(table.num_rows)})
    last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")]).column("row_max")
    return table.take(np.sort(last.to_numpy()))
