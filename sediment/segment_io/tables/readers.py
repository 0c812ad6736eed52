"""What a log's files hold, as tables: named columns, the tasks that read them, and pyarrow batches.

    records, batches          read from slices of segments, so that one large segment is read by several tasks
    the others                read from the small files beside them, a task for many partitions

Column names are Spark's Kafka source's where it has them, else Kafka's own words.  A value that a file does not have is
null, but `timestamp`, `producerId`, `sequence` and such of a record are -1 where Kafka's clients give -1.

Invariants: every batch that `read_table` yields has the schema of `arrow_schema`; pyarrow is imported when a schema or
a batch is asked for, compiled code when records or batches are read, neither before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.indexes import (
    AbortedTransaction,
    Int64s,
    parse_offset_index,
    parse_time_index,
    parse_transaction_index,
)
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.producer_state import parse_snapshot
from sediment.segment_io.partition.slices import (
    ALL,
    SLICE_BYTES,
    Bounds,
    LiveSegment,
    Slice,
    live_segments,
    plan_slices,
)
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.printable import encodable

if TYPE_CHECKING:
    import pyarrow as pa

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
ISOLATIONS = (READ_UNCOMMITTED, READ_COMMITTED)

FAIL = "fail"
SKIP = "skip"
ROWS = "rows"
ON_CORRUPTION = (FAIL, SKIP, ROWS)

_BATCHES_TASK_BYTES = 512 << 20  # headers cost a fraction of what records do
_OPEN_SEGMENT_BYTES = 1 << 20  # what opening a segment costs a task, in bytes read
_SOURCES_PER_TASK = 64


# ------------------------------------------------------------------------------------------------------------- columns
@dataclass(frozen=True, slots=True)
class Column:
    """A column: `kind` is binary, string, bool, int, long, timestamp or headers; `meaning` is one line for a person."""

    name: str
    kind: str
    meaning: str


_TOPIC = Column("topic", "string", "of the directory's name")
_PARTITION = Column("partition", "int", "of the directory's name; -1 where it has none")
_SEGMENT = Column("segment", "long", "base offset of the segment")

_RECORDS = (
    Column("key", "binary", "null where the record has none"),
    Column("value", "binary", "null in a tombstone"),
    _TOPIC,
    _PARTITION,
    Column("offset", "long", "of the record"),
    Column("timestamp", "timestamp", "of the record, or of its append"),
    Column("timestampType", "int", "0 CreateTime, 1 LogAppendTime, -1 none (magic 0)"),
    Column("headers", "headers", "null where the record has none"),
    Column("batchBaseOffset", "long", "first offset of the batch as it was written"),
    Column("codec", "string", "none, gzip, snappy, lz4 or zstd"),
    Column("producerId", "long", "-1 without"),
    Column("producerEpoch", "int", "-1 without"),
    Column("sequence", "int", "of the record; -1 without"),
    Column("transactional", "bool", "part of a transaction"),
    Column("control", "bool", "a marker of the cluster's own, never given to applications"),
    Column("leaderEpoch", "int", "of the leader that appended the batch; -1 in magic 0 and 1"),
    Column("size", "int", "bytes of the record as encoded, uncompressed"),
)
_BATCHES = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("position", "long", "of the batch in the segment's .log"),
    Column("size", "long", "bytes of the batch, header included"),
    Column("baseOffset", "long", "first offset of the batch as it was written"),
    Column("lastOffset", "long", "last offset of the batch as it was written"),
    Column("recordCount", "int", "records that are there now"),
    Column("magic", "int", "message format: 0, 1 or 2"),
    Column("codec", "string", "none, gzip, snappy, lz4 or zstd"),
    Column("timestampType", "int", "0 CreateTime, 1 LogAppendTime, -1 none (magic 0)"),
    Column("baseTimestamp", "timestamp", "what the records' deltas count from; null where it is a delete horizon"),
    Column("maxTimestamp", "timestamp", "largest of the records"),
    Column("deleteHorizon", "timestamp", "when tombstones and markers in the batch may go"),
    Column("producerId", "long", "-1 without"),
    Column("producerEpoch", "int", "-1 without"),
    Column("baseSequence", "int", "-1 without"),
    Column("lastSequence", "int", "-1 without"),
    Column("transactional", "bool", "part of a transaction"),
    Column("control", "bool", "holds a control record"),
    Column("controlType", "string", "ABORT, COMMIT, LEADER_CHANGE …; null in data"),
    Column("coordinatorEpoch", "int", "of a transaction marker, else null"),
    Column("leaderEpoch", "int", "of the leader that appended the batch; -1 in magic 0 and 1"),
    Column("crc", "long", "as stored"),
    Column("valid", "bool", "whether the CRC is right"),
)
_SEGMENTS = (
    _TOPIC,
    _PARTITION,
    Column("baseOffset", "long", "of the segment's name"),
    Column("active", "bool", "the last one, that is written to"),
    Column("size", "long", "bytes of the .log"),
    Column("offsetIndexEntries", "long", "null where there is no .index"),
    Column("timeIndexEntries", "long", "null where there is no .timeindex"),
    Column("abortedTransactions", "long", "entries of the .txnindex; null where there is none"),
    Column("largestTimestamp", "timestamp", "the last one in the .timeindex"),
    Column("modified", "timestamp", "modification time of the .log"),
    Column("path", "string", "of the .log"),
)
_OFFSET_INDEX = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("offset", "long", "last offset of the batch at the position"),
    Column("position", "long", "in the segment's .log"),
)
_TIME_INDEX = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("timestamp", "timestamp", "largest of the segment so far"),
    Column("offset", "long", "last offset of the first batch that has it"),
)
_TRANSACTIONS = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("producerId", "long", "whose transaction was aborted"),
    Column("firstOffset", "long", "of the transaction"),
    Column("lastOffset", "long", "of its ABORT marker"),
    Column("lastStableOffset", "long", "of the log when the marker was appended"),
)
_PRODUCERS = (
    _TOPIC,
    _PARTITION,
    Column("snapshot", "long", "the snapshot holds what was known below this offset"),
    Column("producerId", "long", ""),
    Column("producerEpoch", "int", ""),
    Column("lastSequence", "int", "of its last data batch; null without one"),
    Column("firstOffset", "long", "of its last data batch; null without one"),
    Column("lastOffset", "long", "of its last data batch; null without one"),
    Column("timestamp", "timestamp", "of its last batch or marker"),
    Column("coordinatorEpoch", "int", "of its last marker; null without one"),
    Column("currentTxnFirstOffset", "long", "of its open transaction; null without one"),
)
_EPOCHS = (
    _TOPIC,
    _PARTITION,
    Column("epoch", "int", "leader epoch"),
    Column("startOffset", "long", "first offset written under it"),
)
_INDEXES = (
    _TOPIC,
    _PARTITION,
    Column("segment", "long", "base offset of the segment, or the snapshot's offset"),
    Column("file", "string", "name of the index or snapshot"),
    Column("entries", "long", "null where the file is missing or cannot be read"),
    Column("problems", "long", "entries that the log contradicts"),
    Column("problem", "string", "the first of them; null where all is well"),
)
_CORRUPTION = Column("corruption", "string", "what is wrong with these bytes, which `value` holds; null in a good row")

TABLES: Mapping[str, tuple[Column, ...]] = {
    "records": _RECORDS,
    "batches": _BATCHES,
    "segments": _SEGMENTS,
    "offset_index": _OFFSET_INDEX,
    "time_index": _TIME_INDEX,
    "transactions": _TRANSACTIONS,
    "producers": _PRODUCERS,
    "epochs": _EPOCHS,
    "indexes": _INDEXES,
}
SLICED_TABLES = frozenset({"records", "batches"})


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Which rows and columns of which table.

    `columns` None: all.  `topics` and `partitions` None: all; they and `bounds` may let other rows through, which only
    `records` and `batches` promise not to.  `on_corruption` adds a column `corruption` where it is ROWS.
    """

    what: str = "records"
    columns: tuple[str, ...] | None = None
    bounds: Bounds = ALL
    isolation: str = READ_UNCOMMITTED
    on_corruption: str = FAIL
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def selected(self) -> tuple[Column, ...]:
        """The columns asked for, in the order asked for.

        Raises:
            UsageError: an unknown table or column.
        """
        if self.what not in TABLES:
            raise UsageError(f"there is no table {self.what!r}", advice=f"it is one of {', '.join(TABLES)}")
        known = {column.name: column for column in TABLES[self.what]}
        if self.on_corruption == ROWS and self.what in SLICED_TABLES:
            known[_CORRUPTION.name] = _CORRUPTION
            if "value" not in known:
                known["value"] = Column("value", "binary", "the bytes that are no batch; null in a good row")
        if self.columns is None:
            return tuple(known.values())
        for name in self.columns:
            if name not in known:
                raise UsageError(f"table {self.what!r} has no column {name!r}", advice=f"it has {', '.join(known)}")
        return tuple(known[name] for name in self.columns)

    def wants(self, source: Source) -> bool:
        """Whether the partition of `source` is asked for."""
        partition = source.partition
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )


def parse_range(text: str | None, name: str) -> tuple[int, int]:
    """`A:B` as (A, B); an empty side is open, and so is None.

    Raises:
        UsageError: `text` is no range of numbers.
    """
    first, end = ALL.first_offset, ALL.end_offset
    if text is None:
        return first, end
    try:
        left, colon, right = text.partition(":")
        if not colon:
            raise ValueError(text)
        return int(left) if left.strip() else first, int(right) if right.strip() else end
    except ValueError as error:
        raise UsageError(
            f"{name} {text!r} is no range", advice="write A:B, from A to below B; either side may be empty"
        ) from error


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The pyarrow schema of `columns`: timestamps in UTC microseconds, everything nullable."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, _arrow_types()[column.kind]) for column in columns])


@cache
def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "binary": pa.binary(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.list_(pa.field("element", header)),
    }


# --------------------------------------------------------------------------------------------------------------- tasks
@dataclass(frozen=True, slots=True)
class ScanTask:
    """A slice to read: the records within `bounds`; if `committed`, no control records and none of `aborted`."""

    slice: Slice
    bounds: Bounds
    committed: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class TableTask:
    """What one task reads: `pieces` of records or batches, or the small files of `sources`."""

    sources: tuple[Source, ...] = ()
    pieces: tuple[ScanTask, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the segments, as far as they are to be read."""
        return sum(piece.slice.size_bytes for piece in self.pieces)


def plan_table(
    request: TableRequest, sources: Sequence[Source], fs: Fs, *, task_bytes: int | None = None
) -> list[TableTask]:
    """The tasks whose rows together are the table, in the order of `sources` and offsets.

    `task_bytes` is about how much of segments one of them reads; None: what suits the table.

    Raises:
        SedimentError: a directory went away, or READ_COMMITTED cannot be told because a log is corrupt.
    """
    wanted = [source for source in sources if request.wants(source)]
    if task_bytes is None:
        task_bytes = _BATCHES_TASK_BYTES if request.what == "batches" else SLICE_BYTES
    if request.what not in SLICED_TABLES:
        groups = range(0, len(wanted), _SOURCES_PER_TASK)
        return [TableTask(sources=tuple(wanted[start : start + _SOURCES_PER_TASK])) for start in groups]
    return pack_scan_tasks(
        [piece for source in wanted for piece in plan_scan_tasks(request, source, fs, slice_bytes=task_bytes)],
        task_bytes,
    )


def plan_scan_tasks(request: TableRequest, source: Source, fs: Fs, *, slice_bytes: int) -> list[ScanTask]:
    """What to read of one partition or segment."""
    committed = None
    bounds = request.bounds
    if request.isolation == READ_COMMITTED:
        # It decodes, which planning otherwise does not.
        from sediment.segment_io.partition.log_dir import read_checkpoints
        from sediment.segment_io.partition.read_committed import committed_range

        checkpoints = read_checkpoints(source.directory.parent, fs).of(source.partition)
        committed = committed_range(source, checkpoints, fs)
        bounds &= committed.bounds()
    return [
        ScanTask(piece, bounds)
        if committed is None
        else ScanTask(piece, bounds, True, committed.aborted_within(piece.start_offset, piece.end_offset))
        for piece in plan_slices(source, bounds, fs, slice_bytes=slice_bytes)
    ]


def pack_scan_tasks(pieces: Sequence[ScanTask], task_bytes: int) -> list[TableTask]:
    """Return tasks of about `task_bytes` each that read all of `pieces`, in their order."""
    tasks: list[TableTask] = []
    packed: list[ScanTask] = []
    size_bytes = 0
    for piece in pieces:
        cost = piece.slice.size_bytes + _OPEN_SEGMENT_BYTES
        if packed and size_bytes + cost > task_bytes + _OPEN_SEGMENT_BYTES:
            tasks.append(TableTask(pieces=tuple(packed)))
            packed, size_bytes = [], 0
        packed.append(piece)
        size_bytes += cost
    return [*tasks, TableTask(pieces=tuple(packed))] if packed else tasks


# ------------------------------------------------------------------------------------------------------------- reading
@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Bytes [position, end_position) of a segment that are no readable batch, and why."""

    piece: ScanTask
    position: int
    end_position: int
    error: SedimentError


def read_table(
    request: TableRequest,
    task: TableTask,
    fs: Fs,
    *,
    on_damage: Callable[[UnreadableRange], None] = lambda _damage: None,
    on_lost: Callable[[Slice, int], None] | None = None,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of one task as pyarrow.RecordBatch of `arrow_schema(request.selected())`; none is empty.

    With SKIP, and with ROWS, `on_damage` is told of what was not read.  `on_lost` is told, by the slice and the offset
    from which on there is data, of records that retention removed since planning; without it that is an error.  Without
    `follow` any segment that was replaced or removed since planning is one, because the segments that are there now may
    lack records that newer ones, which were not planned, supersede.

    Raises:
        CorruptBatchError, UnsupportedDataError: with FAIL, at the first batch that cannot be read.
        CorruptDataError: a small file is malformed.
        SourceChangedError: what was planned is gone.
    """
    if request.what in SLICED_TABLES:
        from sediment.segment_io.tables.records import read_batches, read_records

        read = read_records if request.what == "records" else read_batches
        yield from read(request, task.pieces, fs, on_damage, on_lost, follow=follow)
        return
    columns = request.selected()
    for source in task.sources:
        rows = _SMALL_TABLES[request.what](source, fs)
        if rows.count:
            yield rows.batch(source, columns)


@dataclass(frozen=True, slots=True)
class _Rows:
    """`count` rows as columns: sequences, numpy arrays or pyarrow arrays by name; int64 for timestamps in ms."""

    count: int
    columns: Mapping[str, Any]

    def batch(self, source: Source, columns: Sequence[Column]) -> pa.RecordBatch:
        import pyarrow as pa

        schema = arrow_schema(columns)
        common = {"topic": source.partition.topic, "partition": source.partition.partition}
        arrays = []
        for column, field in zip(columns, schema, strict=True):
            if column.name in common:
                arrays.append(pa.repeat(pa.scalar(common[column.name], field.type), self.count))
            elif column.kind == "timestamp":
                arrays.append(timestamps_from_ms(self.columns[column.name]))
            else:
                arrays.append(pa.array(self.columns[column.name], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def timestamps_from_ms(values_ms: Any) -> pa.Array:
    """Timestamps of ms since the epoch; None and -1 are null, what does not fit microseconds is the nearest."""
    import pyarrow as pa

    if isinstance(values_ms, list):
        values_ms = [-1 if value is None else value for value in values_ms]
    values = np.array(values_ms, dtype=np.int64)
    largest = np.iinfo(np.int64).max // 1000
    return pa.array(np.clip(values, -largest, largest) * 1000, _arrow_types()["timestamp"], mask=values == -1)


def _from_dicts(rows: Sequence[Mapping[str, Any]]) -> _Rows:
    names = rows[0] if rows else ()
    return _Rows(len(rows), {name: [row[name] for row in rows] for name in names})


def _segments_table(source: Source, fs: Fs) -> _Rows:
    rows = []
    for segment in live_segments(source, fs):
        offsets = _index_content(source, segment, SegmentFileKind.OFFSET_INDEX, fs)
        times = _index_content(source, segment, SegmentFileKind.TIME_INDEX, fs)
        aborted = _index_content(source, segment, SegmentFileKind.TRANSACTION_INDEX, fs)
        base = segment.base_offset
        time_index = None if times is None else parse_time_index(times, base, preallocated=True)
        rows.append(
            {
                "baseOffset": base,
                "active": segment.is_active,
                "size": segment.ref.log_bytes,
                "offsetIndexEntries": None
                if offsets is None
                else len(parse_offset_index(offsets, base, preallocated=True)),
                "timeIndexEntries": None if time_index is None else len(time_index),
                "abortedTransactions": None if aborted is None else len(parse_transaction_index(aborted)),
                "largestTimestamp": time_index.last_entry.timestamp_ms if time_index else None,
                "modified": segment.ref.mtime_ns // 1_000_000,
                "path": encodable(str(segment.path(source.directory, SegmentFileKind.LOG))),
            }
        )
    return _from_dicts(rows)


def _index_content(source: Source, segment: LiveSegment, kind: SegmentFileKind, fs: Fs) -> bytes | None:
    try:
        return fs.read_bytes(segment.path(source.directory, kind))
    except FileNotFoundError:
        return None


_IndexColumns: TypeAlias = Callable[[bytes, LiveSegment, str], tuple[Int64s, ...]]


def _index_table(source: Source, fs: Fs, kind: SegmentFileKind, columns: _IndexColumns, names: Sequence[str]) -> _Rows:
    """One table of the index of `kind` of each segment, whose columns `columns` makes of content, segment and path."""
    bases: list[Int64s] = []
    parts: list[tuple[Int64s, ...]] = []
    for segment in live_segments(source, fs):
        content = _index_content(source, segment, kind, fs) or b""
        part = columns(content, segment, str(segment.path(source.directory, kind)))
        bases.append(np.full(len(part[0]), segment.base_offset, dtype=np.int64))
        parts.append(part)
    if not parts:
        return _Rows(0, {})
    stacked = {name: np.concatenate(column) for name, column in zip(names, zip(*parts, strict=True), strict=True)}
    segments = np.concatenate(bases)
    return _Rows(len(segments), {"segment": segments, **stacked})


def _offset_index_table(source: Source, fs: Fs) -> _Rows:
    def columns(content: bytes, segment: LiveSegment, path: str) -> tuple[Int64s, ...]:
        index = parse_offset_index(content, segment.base_offset, path=path, preallocated=segment.is_active)
        return index.base_offset + index.relative_offsets, index.positions

    return _index_table(source, fs, SegmentFileKind.OFFSET_INDEX, columns, ("offset", "position"))


def _time_index_table(source: Source, fs: Fs) -> _Rows:
    def columns(content: bytes, segment: LiveSegment, path: str) -> tuple[Int64s, ...]:
        index = parse_time_index(content, segment.base_offset, path=path, preallocated=segment.is_active)
        return index.timestamps, index.base_offset + index.relative_offsets

    return _index_table(source, fs, SegmentFileKind.TIME_INDEX, columns, ("timestamp", "offset"))


def _transactions_table(source: Source, fs: Fs) -> _Rows:
    def columns(content: bytes, _segment: LiveSegment, path: str) -> tuple[Int64s, ...]:
        index = parse_transaction_index(content, path=path)
        return index.producer_ids, index.first_offsets, index.last_offsets, index.last_stable_offsets

    names = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
    return _index_table(source, fs, SegmentFileKind.TRANSACTION_INDEX, columns, names)


def _snapshots(source: Source, fs: Fs) -> list[tuple[int, Path]]:
    offsets = list_log(source.partition, source.directory, fs).snapshots
    return [
        (offset, source.directory / segment_file_name(offset, SegmentFileKind.SNAPSHOT))
        for offset in offsets
        if source.base_offset in (None, offset)
    ]


def _producers_table(source: Source, fs: Fs) -> _Rows:
    def given(value: int) -> int | None:
        return None if value < 0 else value

    return _from_dicts(
        [
            {
                "snapshot": offset,
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "lastSequence": given(entry.last_sequence),
                "firstOffset": None if entry.last_offset < 0 else entry.last_offset - entry.offset_delta,
                "lastOffset": given(entry.last_offset),
                "timestamp": entry.timestamp_ms,
                "coordinatorEpoch": given(entry.coordinator_epoch),
                "currentTxnFirstOffset": given(entry.current_txn_first_offset),
            }
            for offset, path in _snapshots(source, fs)
            for entry in parse_snapshot(fs.read_bytes(path), path=str(path))
        ]
    )


def _epochs_table(source: Source, fs: Fs) -> _Rows:
    entries = read_leader_epochs(fs, source.directory / LEADER_EPOCH_FILE) or ()
    return _from_dicts([{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in entries])


def _indexes_table(source: Source, fs: Fs) -> _Rows:
    from sediment.segment_io.partition.index_check import check_indexes

    return _from_dicts(
        [
            {
                "segment": checked.segment,
                "file": checked.file,
                "entries": checked.entries,
                "problems": checked.problems,
                "problem": checked.problem,
            }
            for checked in check_indexes(source, fs)
        ]
    )


_SMALL_TABLES: Mapping[str, Callable[[Source, Fs], _Rows]] = {
    "segments": _segments_table,
    "offset_index": _offset_index_table,
    "time_index": _time_index_table,
    "transactions": _transactions_table,
    "producers": _producers_table,
    "epochs": _epochs_table,
    "indexes": _indexes_table,
}
