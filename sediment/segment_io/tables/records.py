r"""Slices of segments -> the tables `records` and `batches`.

    slice --chunks--> spans of whole batches --hidden ones left out--> columns --when full--> pyarrow.RecordBatch
                        \--> damage: raised, counted, or a row of its own; reading goes on at the next indexed batch

What is no damage: bytes behind the last whole batch of a segment that is written to (a batch not written whole, or
zeros of a preallocated file).

Invariants: memory is one chunk, one table and the largest batch; a file is read through one descriptor, so that what
happens to its name meanwhile does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import CorruptBatchError, SedimentError, SourceChangedError
from sediment.segment_io.format.decode import NO_CONTROL_RECORD, OFFSET_DELTA
from sediment.segment_io.format.indexes import parse_offset_index
from sediment.segment_io.format.layout import (
    BATCH_LENGTH,
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    INT64_MAX,
    LOG_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import unwrap
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.fs import Fs, only_zeros
from sediment.segment_io.partition.producer_state import last_sequence
from sediment.segment_io.partition.slices import Bounds, Slice, current_slices, live_segments, opened, verified_batch
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment import columns as c
from sediment.segment_io.segment.columns import BadBatchError, RecordColumns, RecordTable, check_batches
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan, Rows
from sediment.segment_io.tables.readers import (
    FAIL,
    ROWS,
    Column,
    ScanTask,
    TableRequest,
    UnreadableRange,
    arrow_schema,
    timestamps_from_ms,
)

if TYPE_CHECKING:
    import pyarrow as pa

OnDamage: TypeAlias = Callable[[UnreadableRange], None]
OnLost: TypeAlias = Callable[[Slice, int], None]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1
SHOWN_DAMAGE_BYTES = 1 << 20

_BATCHES_PER_TABLE = 1 << 14
_FILES_CHANGED_ATTEMPTS = 10
_CODECS = (*CODEC_NAMES, "5", "6", "7")
_CONTROL_TYPES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)
_WANT = {"key": c.WANT_KEY, "value": c.WANT_VALUE, "headers": c.WANT_HEADERS}


# ------------------------------------------------------------------------------------------------------------- records
def read_records(
    request: TableRequest,
    pieces: Sequence[ScanTask],
    fs: Fs,
    on_damage: OnDamage,
    on_lost: OnLost | None,
    *,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of `records`; as `tables.read_table`."""
    selected = request.selected()
    want = sum(_WANT.get(column.name, 0) for column in selected)
    gathered = RecordColumns(want)
    source: Source | None = None

    def flush() -> Iterator[pa.RecordBatch]:
        if len(gathered) and source is not None:
            yield _records_batch(gathered.take(), source, selected)

    for piece in pieces:
        if piece.slice.source != source:
            yield from flush()
            source = piece.slice.source
        for found in _read(piece, fs, on_lost, follow):
            if isinstance(found, UnreadableRange):
                yield from flush()
                yield from _damaged(found, request, selected, on_damage)
                continue
            current, span = found
            skip = _hidden(span.rows, current)
            bounds = _bounds_array(current.bounds)
            done = 0
            while done < len(span.rows):
                try:
                    done = gathered.add(span, done, skip, bounds)
                except BadBatchError as bad:
                    yield from flush()
                    yield from _damaged(_damage_of(bad, span, current), request, selected, on_damage)
                    done = bad.index + 1
                    continue
                if done < len(span.rows):
                    yield from flush()
    yield from flush()


def _bounds_array(bounds: Bounds) -> npt.NDArray[np.int64]:
    return np.array(
        [bounds.first_offset, bounds.end_offset, bounds.first_timestamp_ms, bounds.end_timestamp_ms], dtype=np.int64
    )


def _records_batch(table: RecordTable, source: Source, selected: Sequence[Column]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(selected)
    count = len(table)

    def fixed(values: npt.NDArray[Any], kind: Any) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])

    def column(name: str, kind: Any) -> pa.Array:
        if name == "key":
            return table.keys()
        if name == "value":
            return table.values()
        if name == "headers":
            return table.headers_of_records()
        if name == "offset":
            return fixed(table.offsets(), kind)
        if name == "timestamp":
            return fixed(table.timestamps_us(), kind)
        if name == "size":
            return fixed(table.sizes(), kind)
        if name == "sequence":
            return fixed(table.sequences(), kind)
        if name == "topic":
            return pa.repeat(pa.scalar(source.partition.topic, kind), count)
        if name == "partition":
            return pa.repeat(pa.scalar(source.partition.partition, kind), count)
        if name == "corruption":
            return pa.nulls(count, kind)
        return pa.array(_HEADER_COLUMNS[name](table.headers)).take(per_record).cast(kind)

    if any(column.name in _HEADER_COLUMNS for column in selected):
        per_record = pa.array(np.repeat(np.arange(len(table.headers), dtype=np.int32), table.counts))
    return pa.RecordBatch.from_arrays(
        [column(selected_column.name, field.type) for selected_column, field in zip(selected, schema, strict=True)],
        schema=schema,
    )


# --------------------------------------------------------------------------------------------------- of header rows
def _timestamp_types(rows: Rows) -> npt.NDArray[np.int32]:
    types = np.where(rows["attributes"] & TIMESTAMP_TYPE_BIT, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32)
    types[rows["magic"] == 0] = NO_TIMESTAMP_TYPE
    return types


def _first_offsets(rows: Rows) -> npt.NDArray[np.int64]:
    return rows["base_offset"]


def _has_bit(bit: int) -> Callable[[Rows], Mask]:
    return lambda rows: (rows["attributes"] & bit != 0) & (rows["magic"] >= 2)


def _codecs(rows: Rows) -> Any:
    import pyarrow as pa

    return pa.array(_CODECS).take(pa.array(rows["attributes"] & CODEC_MASK))


_HEADER_COLUMNS: dict[str, Callable[[Rows], Any]] = {
    "timestampType": _timestamp_types,
    "batchBaseOffset": _first_offsets,
    "codec": _codecs,
    "producerId": lambda rows: rows["producer_id"],
    "producerEpoch": lambda rows: rows["producer_epoch"],
    "transactional": _has_bit(TRANSACTIONAL_BIT),
    "control": _has_bit(CONTROL_BIT),
    "leaderEpoch": lambda rows: rows["leader_epoch"],
}


# ------------------------------------------------------------------------------------------------------------- batches
@dataclass(slots=True)
class _Batches:
    """Header rows gathered for one table, with what they do not hold."""

    rows: list[Rows]
    valid: list[Mask]
    crcs: list[npt.NDArray[np.int64]]
    segments: list[npt.NDArray[np.int64]]
    count: int = 0


def read_batches(
    request: TableRequest,
    pieces: Sequence[ScanTask],
    fs: Fs,
    on_damage: OnDamage,
    on_lost: OnLost | None,
    *,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches`; as `tables.read_table`.  A wrong CRC is no damage here but a row that says so."""
    selected = request.selected()
    gathered = _Batches([], [], [], [])
    source: Source | None = None

    def flush() -> Iterator[pa.RecordBatch]:
        nonlocal gathered
        if gathered.count and source is not None:
            yield _batches_batch(gathered, source, selected)
        gathered = _Batches([], [], [], [])

    for piece in pieces:
        if piece.slice.source != source:
            yield from flush()
            source = piece.slice.source
        for found in _read(piece, fs, on_lost, follow):
            if isinstance(found, UnreadableRange):
                yield from flush()
                yield from _damaged(found, request, selected, on_damage)
                continue
            current, span = found
            _gather(gathered, span, current)
            if gathered.count >= _BATCHES_PER_TABLE:
                yield from flush()
    yield from flush()


def _gather(gathered: _Batches, span: BatchSpan, piece: ScanTask) -> None:
    rows = span.rows[~_hidden(span.rows, piece)]
    valid = np.zeros(len(rows), dtype=np.bool_)
    crcs = np.zeros(len(rows), dtype=np.int64)
    check_batches(span.buffer.ctypes.data, span.start - span.position, rows, valid, crcs)
    for index in np.flatnonzero(rows["magic"] < 2):
        _look_inside(rows[index], valid[index], span)
    gathered.rows.append(rows)
    gathered.valid.append(valid)
    gathered.crcs.append(crcs)
    gathered.segments.append(np.full(len(rows), piece.slice.segment.base_offset))
    gathered.count += len(rows)


def _look_inside(row: np.void, valid: bool, span: BatchSpan) -> None:
    """Fill in the base offset and record count of a message of magic 0 or 1; a wrapper has to be opened for them."""
    if not row["attributes"] & CODEC_MASK:
        row["record_count"] = 1
        return
    at = int(row["position"]) + span.start - span.position
    try:
        if valid:
            entry = span.buffer[at : at + int(row["size_bytes"])].tobytes()
            records: npt.NDArray[Any] = unwrap(entry, limit_bytes=c.MAX_RECORDS_BYTES).records
            row["base_offset"], row["record_count"] = records[0, OFFSET_DELTA], len(records)
    except SedimentError:
        return


def _batches_batch(gathered: _Batches, source: Source, selected: Sequence[Column]) -> pa.RecordBatch:
    import pyarrow as pa

    rows = np.concatenate(gathered.rows)
    count = len(rows)
    attributes = rows["attributes"]
    horizons = (attributes & DELETE_HORIZON_BIT != 0) & (rows["magic"] == 2)
    unknown = rows["record_count"] < 0
    schema = arrow_schema(selected)

    def null_where(mask: Mask, values: Any, kind: Any) -> pa.Array:
        return pa.array(values, kind, mask=mask)

    def last_sequences() -> list[int]:
        spans = (rows["last_offset"] - rows["base_offset"]).tolist()
        return [last_sequence(base, span) for base, span in zip(rows["base_sequence"].tolist(), spans, strict=True)]

    def column(name: str, kind: Any) -> pa.Array:
        if name in ("topic", "partition"):
            return pa.repeat(pa.scalar(getattr(source.partition, name), kind), count)
        if name in ("value", "corruption"):
            return pa.nulls(count, kind)
        if name == "segment":
            return pa.array(np.concatenate(gathered.segments), kind)
        if name == "valid":
            return pa.array(np.concatenate(gathered.valid))
        if name == "crc":
            return pa.array(np.concatenate(gathered.crcs), kind)
        if name == "baseOffset":
            return null_where(unknown, rows["base_offset"], kind)
        if name == "recordCount":
            return null_where(unknown, rows["record_count"], kind)
        if name == "baseTimestamp":
            return timestamps_from_ms(np.where(horizons, -1, rows["base_timestamp"]))
        if name == "deleteHorizon":
            return timestamps_from_ms(np.where(horizons, rows["base_timestamp"], -1))
        if name == "maxTimestamp":
            return timestamps_from_ms(rows["max_timestamp"])
        if name == "lastSequence":
            return pa.array(last_sequences(), kind)
        if name == "coordinatorEpoch":
            return null_where(rows["coordinator_epoch"] < 0, rows["coordinator_epoch"], kind)
        if name == "controlType":
            return pa.array([_control_type(number) for number in rows["control_type"].tolist()], kind)
        if name in _HEADER_COLUMNS:
            return _as_array(_HEADER_COLUMNS[name](rows)).cast(kind)
        return pa.array(rows[_ROW_FIELDS[name]]).cast(kind)

    return pa.RecordBatch.from_arrays(
        [column(selected_column.name, field.type) for selected_column, field in zip(selected, schema, strict=True)],
        schema=schema,
    )


_ROW_FIELDS = {
    "position": "position",
    "size": "size_bytes",
    "lastOffset": "last_offset",
    "magic": "magic",
    "baseSequence": "base_sequence",
}


def _as_array(values: Any) -> pa.Array:
    import pyarrow as pa

    return values if isinstance(values, pa.Array) else pa.array(values)


def _control_type(number: int) -> str | None:
    if number == NO_CONTROL_RECORD:
        return None
    return _CONTROL_TYPES[number] if 0 <= number < len(_CONTROL_TYPES) else "UNKNOWN"


# ------------------------------------------------------------------------------------------------------ what is hidden
def _hidden(rows: Rows, piece: ScanTask) -> Mask:
    """bool[batches]: those of which no record is to be shown, as far as headers tell.

    A compressed message of magic 0 or 1 tells nothing of what it holds but its last offset.
    """
    bounds = piece.bounds
    telling = (rows["magic"] >= 2) | (rows["attributes"] & CODEC_MASK == 0)
    appended = (rows["magic"] >= 1) & (rows["attributes"] & TIMESTAMP_TYPE_BIT != 0)
    largest_ms = rows["max_timestamp"]
    hidden: Mask = (rows["last_offset"] < bounds.first_offset) | telling & (
        ((rows["base_offset"] >= bounds.end_offset) & (bounds.end_offset != INT64_MAX))
        | (largest_ms < bounds.first_timestamp_ms)
        | (appended & (largest_ms >= bounds.end_timestamp_ms) & (bounds.end_timestamp_ms != INT64_MAX))
    )
    if piece.committed:
        hidden |= _has_bit(CONTROL_BIT)(rows) | _aborted(rows, piece)
    return hidden


def _aborted(rows: Rows, piece: ScanTask) -> Mask:
    aborted = np.zeros(len(rows), dtype=np.bool_)
    if not piece.aborted:
        return aborted
    transactional = _has_bit(TRANSACTIONAL_BIT)(rows)
    entries = np.array(
        sorted((entry.producer_id, entry.first_offset, entry.last_offset) for entry in piece.aborted), dtype=np.int64
    )
    for producer_id in np.unique(entries[:, 0]):
        mine = transactional & (rows["producer_id"] == producer_id)
        if not mine.any():
            continue
        _, firsts, lasts = entries[entries[:, 0] == producer_id].T
        offsets = rows["base_offset"][mine]
        slots = np.searchsorted(firsts, offsets, side="right") - 1
        aborted[mine] = (slots >= 0) & (lasts[slots] >= offsets)
    return aborted


# ------------------------------------------------------------------------------------------------------------- reading
def _read(
    piece: ScanTask, fs: Fs, on_lost: OnLost | None, follow: bool
) -> Iterator[tuple[ScanTask, BatchSpan] | UnreadableRange]:
    """The spans of a piece, wherever its offsets are by now; without `follow` of the file that was planned."""
    attempts = 0
    waiting = [piece]
    while waiting:
        current = waiting.pop(0)
        with opened(current.slice, or_deleted=not follow) as descriptor:
            if descriptor is not None:
                yield from _spans(current, descriptor)
                continue
        if not follow:
            raise _replaced(current.slice)
        attempts += 1
        if attempts > _FILES_CHANGED_ATTEMPTS:
            raise SourceChangedError(
                "the segments are replaced faster than they can be read",
                partition=str(current.slice.source.partition),
                path=str(current.slice.path),
                advice="run again; a broker or another tool is at work in this directory",
            )
        waiting = [*_moved(current, fs, on_lost), *waiting]


def _replaced(piece: Slice) -> SourceChangedError:
    return SourceChangedError(
        "the segment was replaced or removed after it was listed",
        partition=str(piece.source.partition),
        path=str(piece.path),
        offset=piece.start_offset,
        advice="load the directory again",
    )


def _moved(piece: ScanTask, fs: Fs, on_lost: OnLost | None) -> list[ScanTask]:
    """What answers now for the offsets of a piece whose file was replaced or removed."""
    stale = piece.slice
    slices = current_slices(stale, fs)
    segments = live_segments(stale.source, fs)
    first_offset = segments[0].base_offset if segments else stale.end_offset
    if first_offset > max(stale.start_offset, piece.bounds.first_offset):
        if on_lost is None:
            raise SourceChangedError(
                f"the log begins at offset {first_offset} since its first segments were removed while they were read",
                partition=str(stale.source.partition),
                path=str(stale.path),
                offset=stale.start_offset,
                advice="run again",
            )
        on_lost(stale, first_offset)
    bounds = piece.bounds & Bounds(first_offset=stale.start_offset, end_offset=stale.end_offset)
    return [replace(piece, slice=found, bounds=bounds) for found in slices]


def _spans(piece: ScanTask, descriptor: int) -> Iterator[tuple[ScanTask, BatchSpan] | UnreadableRange]:
    position, end = piece.slice.start_position, piece.slice.end_position
    is_last = piece.slice.segment.is_active and end == piece.slice.segment.ref.log_bytes
    while position < end:
        walk = HeaderScan(piece.slice.path, position, size_bytes=end)
        error: SedimentError | None = None
        try:
            for span in walk.spans(descriptor):
                yield piece, span
        except CorruptBatchError as found:
            error = found
        if walk.end_position == end or only_zeros(descriptor, walk.end_position, end):
            return
        position = _next_good(piece, descriptor, walk.end_position)
        if error is None and is_last and position == end:
            return
        error = error or CorruptBatchError(
            "the segment ends inside of a batch",
            path=str(piece.slice.path),
            position=walk.end_position,
            advice="restore the segment from a replica or a backup, or leave this partition out",
        )
        yield UnreadableRange(piece, walk.end_position, position, error)


def _next_good(piece: ScanTask, descriptor: int, position: int) -> int:
    """Where a batch with a right CRC begins behind the bad one at `position`, else the slice's end.

    Tried are where its length leads to, and the entries of the offset index.
    """
    segment, end = piece.slice.segment, piece.slice.end_position
    base_offset, size_bytes = segment.base_offset, segment.ref.log_bytes
    length = int.from_bytes(os.pread(descriptor, 4, position + BATCH_LENGTH), "big", signed=True)
    behind = position + LOG_OVERHEAD_BYTES + max(length, 0)
    if behind == end or (
        behind < end and verified_batch(descriptor, behind, size_bytes, base_offset, INT64_MAX) is not None
    ):
        return behind
    try:
        content = Fs().read_bytes(segment.path(piece.slice.source.directory, SegmentFileKind.OFFSET_INDEX))
    except FileNotFoundError:
        return end
    index = parse_offset_index(content, segment.base_offset, preallocated=True)
    for slot in range(int(np.searchsorted(index.positions, position, side="right")), len(index)):
        entry = index[slot]
        if entry.position >= end:
            break
        if verified_batch(descriptor, entry.position, size_bytes, base_offset, entry.offset) is not None:
            return entry.position
    return end


# -------------------------------------------------------------------------------------------------------------- damage
def _damage_of(bad: BadBatchError, span: BatchSpan, piece: ScanTask) -> UnreadableRange:
    row = span.rows[bad.index]
    position, size_bytes = int(row["position"]), int(row["size_bytes"])
    bad.error.path = str(piece.slice.path)
    bad.error.position = position
    bad.error.offset = int(row["base_offset"])
    bad.error.advice = bad.error.advice or (
        "restore the segment from a replica or a backup, or leave this partition out"
    )
    return UnreadableRange(piece, position, position + size_bytes, bad.error)


def _damaged(
    damage: UnreadableRange, request: TableRequest, selected: Sequence[Column], on_damage: OnDamage
) -> Iterator[pa.RecordBatch]:
    """Raise, tell, or show a damage, as the request wants it."""
    error = damage.error
    error.partition = str(damage.piece.slice.source.partition)
    if request.on_corruption == FAIL:
        raise error
    on_damage(damage)
    if request.on_corruption == ROWS:
        yield _damage_row(damage, selected)


def _damage_row(damage: UnreadableRange, selected: Sequence[Column]) -> pa.RecordBatch:
    import pyarrow as pa

    piece = damage.piece
    size_bytes = damage.end_position - damage.position
    with opened(piece.slice, or_deleted=True) as descriptor:
        if descriptor is None:
            raise _replaced(piece.slice)
        shown = os.pread(descriptor, min(size_bytes, SHOWN_DAMAGE_BYTES), damage.position)
    values = {
        "topic": piece.slice.source.partition.topic,
        "partition": piece.slice.source.partition.partition,
        "segment": piece.slice.segment.base_offset,
        "position": damage.position,
        "size": size_bytes,
        "offset": damage.error.offset,
        "valid": False,
        "value": shown,
        "corruption": str(damage.error),
    }
    schema = arrow_schema(selected)
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(column.name)], field.type) for column, field in zip(selected, schema, strict=True)],
        schema=schema,
    )
