"""The readers of all tables: they return the rows of a task as pyarrow batches.

    records, batches          the modules `records` and `batches` read them; several tasks can read one large segment
    all other tables          this module reads indexes, snapshots and checkpoints; one task reads many partitions

Invariants: every batch that `read_table` yields has the schema of `arrow_schema`.  pyarrow is imported when the first
batch is requested, and compiled code is loaded only to read records or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sediment.segment_io.format.index_sanity import Int64s
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, SegmentFileKind, segment_file_name
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.format.time_index import parse_time_index
from sediment.segment_io.format.transaction_index import parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.live_segments import LiveSegment, live_segments
from sediment.segment_io.partition.producer_snapshots import parse_snapshot
from sediment.segment_io.partition.slices import SLICE_BYTES, Bounds, Slice
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.printable import encodable
from sediment.segment_io.tables.places import source_values
from sediment.segment_io.tables.planning import TableTask, UnreadableRange, plan_scan_tasks
from sediment.segment_io.tables.schema import (
    ROWS,
    SKIP,
    SLICED_TABLES,
    Column,
    TableRequest,
    arrow_schema,
    timestamps_from_ms,
)

if TYPE_CHECKING:
    import pyarrow as pa


# ------------------------------------------------------------------------------------------------------------- reading
def read_table(
    request: TableRequest,
    task: TableTask,
    fs: Fs,
    *,
    on_unreadable: Callable[[UnreadableRange], None] = lambda _unreadable: None,
    on_lost: Callable[[Slice, int], None] | None = None,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task as pyarrow.RecordBatch of `arrow_schema(request.selected())`; no batch is empty.

    With SKIP and ROWS, `on_unreadable` is called with each range that was not read.  If records were removed after
    planning, by retention or with their partition, `on_lost` is called with the slice and the first offset that still
    has data, or the end of the slice.  Without `on_lost`, removed records are an error.  Without `follow`, a segment
    that was replaced or removed after planning is also an error.  With `follow`, records may be missing because newer
    records outside the plan have superseded them.

    Raises:
        CorruptBatchError, UnsupportedDataError: with FAIL, a batch cannot be read.
    """
    if request.what in SLICED_TABLES:
        from sediment.segment_io.tables.batches import read_batch_rows
        from sediment.segment_io.tables.records import read_record_rows

        read = read_record_rows if request.what == "records" else read_batch_rows
        yield from read(request, task.scan_tasks, fs, on_unreadable, on_lost, follow=follow)
        return
    columns = request.selected()
    names = {column.name for column in columns}
    for source in task.sources:
        rows = _SMALL_TABLES[request.what](source, fs)
        if rows.count:
            yield rows.batch(source_values(source, names, fs), columns)


def first_offset_since(request: TableRequest, source: Source, timestamp_ms: int, fs: Fs) -> int | None:
    """Return the offset of the first record whose timestamp is `timestamp_ms` or later; None if there is none.

    Ignore records that are excluded by the isolation level or the corruption mode of `request`.
    """
    records = TableRequest(
        columns=("offset",),
        bounds=Bounds(first_timestamp_ms=timestamp_ms),
        isolation=request.isolation,
        on_corruption=SKIP if request.on_corruption == ROWS else request.on_corruption,
    )
    tasks = plan_scan_tasks(records, source, fs, slice_bytes=SLICE_BYTES)
    for batch in read_table(records, TableTask(scan_tasks=tuple(tasks)), fs):
        found: int = batch.column(0)[0].as_py()
        return found
    return None


@dataclass(frozen=True, slots=True)
class _Rows:
    """`count` rows as columns by name: each is a sequence or a numpy or pyarrow array; timestamps are int64 in ms."""

    count: int
    columns: Mapping[str, Any]

    def batch(self, common: Mapping[str, Any], columns: Sequence[Column]) -> pa.RecordBatch:
        import pyarrow as pa

        schema = arrow_schema(columns)
        arrays = []
        for column, field in zip(columns, schema, strict=True):
            if column.name in common:
                arrays.append(pa.repeat(pa.scalar(common[column.name], field.type), self.count))
            elif column.kind == "timestamp":
                arrays.append(timestamps_from_ms(self.columns[column.name]))
            else:
                arrays.append(pa.array(self.columns[column.name], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


def _open_transactions_table(source: Source, fs: Fs) -> _Rows:
    from sediment.segment_io.partition.checkpoint_files import read_checkpoints
    from sediment.segment_io.partition.read_committed import open_transactions

    checkpoints = read_checkpoints(source.directory.parent, fs).of(source.partition)
    return _from_dicts(
        [
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "coordinatorEpoch": _not_negative(entry.coordinator_epoch),
                "firstOffset": entry.current_txn_first_offset,
                "lastOffset": _not_negative(entry.last_offset),
                "lastTimestamp": entry.timestamp_ms,
            }
            for entry in open_transactions(source, checkpoints, fs)
        ]
    )


def _not_negative(value: int) -> int | None:
    return None if value < 0 else value


def _snapshots(source: Source, fs: Fs) -> list[tuple[int, Path]]:
    offsets = list_log(source.partition, source.directory, fs).snapshots
    return [
        (offset, source.directory / segment_file_name(offset, SegmentFileKind.SNAPSHOT))
        for offset in offsets
        if source.base_offset in (None, offset)
    ]


def _producers_table(source: Source, fs: Fs) -> _Rows:
    return _from_dicts(
        [
            {
                "snapshot": offset,
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "lastSequence": _not_negative(entry.last_sequence),
                "firstOffset": None if entry.last_offset < 0 else entry.last_offset - entry.offset_delta,
                "lastOffset": _not_negative(entry.last_offset),
                "timestamp": entry.timestamp_ms,
                "coordinatorEpoch": _not_negative(entry.coordinator_epoch),
                "currentTxnFirstOffset": _not_negative(entry.current_txn_first_offset),
            }
            for offset, path in _snapshots(source, fs)
            for entry in parse_snapshot(fs.read_bytes(path), path=str(path))
        ]
    )


def _epochs_table(source: Source, fs: Fs) -> _Rows:
    entries = read_leader_epochs(fs, source.directory / LEADER_EPOCH_FILE) or ()
    return _from_dicts([{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in entries])


def _indexes_table(source: Source, fs: Fs) -> _Rows:
    from sediment.segment_io.partition.index_mismatches import check_indexes

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
    "open_transactions": _open_transactions_table,
    "producers": _producers_table,
    "epochs": _epochs_table,
    "indexes": _indexes_table,
}
