r"""The scan of slices of segments: it yields spans of complete batches, and the unreadable ranges between them.

    slice --chunks--> spans of whole batches --headers--> without batches that have no wanted record
                        \--> unreadable range: an error, a report or a row; reading continues at the next batch

While a process writes to a segment, bytes after the last complete batch are not an error.  They belong to a batch that
is being appended, or are the zeros of a preallocated file.

Invariants: memory use is one chunk and the largest batch.  A file is read through one descriptor, so the file may be
renamed or deleted during the scan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError, SedimentError, SourceChangedError
from sediment.segment_io.format.layout import (
    BATCH_LENGTH,
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_BIT,
    INT64_MAX,
    LOG_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.fs import Fs, only_zeros
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.slices import Bounds, Slice, current_slices, opened, verified_batch
from sediment.segment_io.segment.columns import BadBatchError
from sediment.segment_io.segment.reader import CHUNK_BYTES, BatchSpan, HeaderScan, Rows
from sediment.segment_io.tables.places import source_values
from sediment.segment_io.tables.planning import ScanTask, UnreadableRange
from sediment.segment_io.tables.schema import FAIL, ROWS, Column, TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

OnUnreadable: TypeAlias = Callable[[UnreadableRange], None]
OnLost: TypeAlias = Callable[[Slice, int], None]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1
SHOWN_UNREADABLE_BYTES = 1 << 20

_FILES_CHANGED_ATTEMPTS = 10
_CODECS = (*CODEC_NAMES, "5", "6", "7")


# ------------------------------------------------------------------------------------------------------ header columns
def _timestamp_types(rows: Rows) -> npt.NDArray[np.int32]:
    types = np.where(rows["attributes"] & TIMESTAMP_TYPE_BIT, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32)
    types[rows["magic"] == 0] = NO_TIMESTAMP_TYPE
    return types


def _first_offsets(rows: Rows) -> npt.NDArray[np.int64]:
    return rows["base_offset"]


def has_bit(bit: int) -> Callable[[Rows], Mask]:
    return lambda rows: (rows["attributes"] & bit != 0) & (rows["magic"] >= 2)


def _codecs(rows: Rows) -> Any:
    import pyarrow as pa

    return pa.array(_CODECS).take(pa.array(rows["attributes"] & CODEC_MASK))


HEADER_COLUMNS: dict[str, Callable[[Rows], Any]] = {
    "timestampType": _timestamp_types,
    "batchBaseOffset": _first_offsets,
    "codec": _codecs,
    "producerId": lambda rows: rows["producer_id"],
    "producerEpoch": lambda rows: rows["producer_epoch"],
    "transactional": has_bit(TRANSACTIONAL_BIT),
    "control": has_bit(CONTROL_BIT),
    "leaderEpoch": lambda rows: rows["leader_epoch"],
}


# ------------------------------------------------------------------------------------------------------- hidden batches
def hidden_batches(rows: Rows, scan_task: ScanTask) -> Mask:
    """Return bool[batches]: True if the header shows that no record of the batch is wanted."""
    bounds = scan_task.bounds
    # For a compressed message of magic 0 or 1, only the last offset is compared, because the header does not contain
    # the first offset.
    conclusive = (rows["magic"] >= 2) | (rows["attributes"] & CODEC_MASK == 0)
    appended = (rows["magic"] >= 1) & (rows["attributes"] & TIMESTAMP_TYPE_BIT != 0)
    largest_ms = rows["max_timestamp"]
    hidden: Mask = (rows["last_offset"] < bounds.first_offset) | conclusive & (
        ((rows["base_offset"] >= bounds.end_offset) & (bounds.end_offset != INT64_MAX))
        | (largest_ms < bounds.first_timestamp_ms)
        | (appended & (largest_ms >= bounds.end_timestamp_ms) & (bounds.end_timestamp_ms != INT64_MAX))
    )
    if scan_task.committed:
        hidden |= has_bit(CONTROL_BIT)(rows) | _aborted(rows, scan_task)
    return hidden


def _aborted(rows: Rows, scan_task: ScanTask) -> Mask:
    aborted = np.zeros(len(rows), dtype=np.bool_)
    if not scan_task.aborted:
        return aborted
    transactional = has_bit(TRANSACTIONAL_BIT)(rows)
    entries = np.array(
        sorted((entry.producer_id, entry.first_offset, entry.last_offset) for entry in scan_task.aborted),
        dtype=np.int64,
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
def read_spans(
    scan_task: ScanTask,
    fs: Fs,
    on_lost: OnLost | None,
    follow: bool,
    *,
    reuses_buffer: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[tuple[ScanTask, BatchSpan] | UnreadableRange]:
    """With `follow`, read the current segments that contain the task's offsets; otherwise read only the planned file.

    Raises:
        SourceChangedError: without `follow`, the planned file no longer exists.  With `follow`, files change too often
            while they are read; or `on_lost` is None, and records are lost.
    """
    attempts = 0
    waiting = [scan_task]
    while waiting:
        current = waiting.pop(0)
        if follow and on_lost is not None and _is_other_topic(current, fs):
            on_lost(current.slice, _end_offset(current))
            continue
        with opened(current.slice, or_deleted=not follow) as descriptor:
            if descriptor is not None:
                yield from _spans(current, descriptor, reuses_buffer, chunk_bytes)
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


def _replaced(planned: Slice) -> SourceChangedError:
    return SourceChangedError(
        "the segment was replaced or removed after it was listed",
        partition=str(planned.source.partition),
        path=str(planned.path),
        offset=planned.start_offset,
        advice="load the directory again",
    )


def _moved(scan_task: ScanTask, fs: Fs, on_lost: OnLost | None) -> list[ScanTask]:
    stale = scan_task.slice
    try:
        slices = current_slices(stale, fs)
    except SourceChangedError:  # the partition was removed
        if on_lost is None:
            raise
        on_lost(stale, _end_offset(scan_task))
        return []
    segments = live_segments(stale.source, fs)
    first_offset = segments[0].base_offset if segments else stale.end_offset
    if first_offset > max(stale.start_offset, scan_task.bounds.first_offset):
        if on_lost is None:
            raise SourceChangedError(
                f"the log now begins at offset {first_offset}, because its first segments were removed while they were "
                "read",
                partition=str(stale.source.partition),
                path=str(stale.path),
                offset=stale.start_offset,
                advice="run again",
            )
        on_lost(stale, first_offset)
    bounds = scan_task.bounds & Bounds(first_offset=stale.start_offset, end_offset=stale.end_offset)
    return [replace(scan_task, slice=found, bounds=bounds) for found in slices]


def _is_other_topic(scan_task: ScanTask, fs: Fs) -> bool:
    if scan_task.topic_id is None:
        return False
    try:
        now = PartitionIdentity.of(scan_task.slice.source, fs).topic_id
    except FileNotFoundError:
        return False
    return now not in (None, scan_task.topic_id)


def _end_offset(scan_task: ScanTask) -> int:
    return min(scan_task.slice.end_offset, scan_task.bounds.end_offset)


def _spans(
    scan_task: ScanTask, descriptor: int, reuses_buffer: bool, chunk_bytes: int
) -> Iterator[tuple[ScanTask, BatchSpan] | UnreadableRange]:
    position, end = scan_task.slice.start_position, scan_task.slice.end_position
    is_last = scan_task.slice.segment.is_active and end == scan_task.slice.segment.ref.log_bytes
    while position < end:
        scan = HeaderScan(
            scan_task.slice.path, position, size_bytes=end, reuses_buffer=reuses_buffer, chunk_bytes=chunk_bytes
        )
        error: SedimentError | None = None
        try:
            for span in scan.spans(descriptor):
                yield scan_task, span
        except CorruptBatchError as found:
            error = found
        if scan.end_position == end or only_zeros(descriptor, scan.end_position, end):
            return
        position = _next_good(scan_task, descriptor, scan.end_position)
        if error is None and is_last and position == end:
            return
        error = error or CorruptBatchError(
            "the segment ends inside a batch",
            path=str(scan_task.slice.path),
            position=scan.end_position,
            advice=RESTORE_OR_LEAVE_OUT,
        )
        yield UnreadableRange(scan_task, scan.end_position, position, error)


def _next_good(scan_task: ScanTask, descriptor: int, position: int) -> int:
    """Return the position of the next batch with a valid CRC after the bad batch at `position`, or the slice's end."""
    segment, end = scan_task.slice.segment, scan_task.slice.end_position
    base_offset, size_bytes = segment.base_offset, segment.ref.log_bytes
    length = int.from_bytes(os.pread(descriptor, 4, position + BATCH_LENGTH), "big", signed=True)
    # The candidates are the end of the bad batch according to its length, and the positions in the offset index.
    following = position + LOG_OVERHEAD_BYTES + max(length, 0)
    if following == end or (
        following < end and verified_batch(descriptor, following, size_bytes, base_offset, INT64_MAX) is not None
    ):
        return following
    try:
        content = Fs().read_bytes(segment.path(scan_task.slice.source.directory, SegmentFileKind.OFFSET_INDEX))
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


# --------------------------------------------------------------------------------------------------- unreadable ranges
def unreadable_batch(bad: BadBatchError, span: BatchSpan, scan_task: ScanTask) -> UnreadableRange:
    row = span.rows[bad.index]
    position, size_bytes = int(row["position"]), int(row["size_bytes"])
    bad.error.path = str(scan_task.slice.path)
    bad.error.position = position
    bad.error.offset = int(row["base_offset"])
    bad.error.advice = bad.error.advice or RESTORE_OR_LEAVE_OUT
    return UnreadableRange(scan_task, position, position + size_bytes, bad.error)


def report_unreadable(
    unreadable: UnreadableRange, request: TableRequest, selected: Sequence[Column], fs: Fs, on_unreadable: OnUnreadable
) -> Iterator[pa.RecordBatch]:
    error = unreadable.error
    error.partition = str(unreadable.scan_task.slice.source.partition)
    if request.on_corruption == FAIL:
        raise error
    on_unreadable(unreadable)
    if request.on_corruption == ROWS:
        yield _unreadable_row(unreadable, selected, fs)


def _unreadable_row(unreadable: UnreadableRange, selected: Sequence[Column], fs: Fs) -> pa.RecordBatch:
    import pyarrow as pa

    scan_task = unreadable.scan_task
    size_bytes = unreadable.end_position - unreadable.position
    with opened(scan_task.slice, or_deleted=True) as descriptor:
        if descriptor is None:
            raise _replaced(scan_task.slice)
        shown = os.pread(descriptor, min(size_bytes, SHOWN_UNREADABLE_BYTES), unreadable.position)
    values = {
        **source_values(scan_task.slice.source, {column.name for column in selected}, fs),
        "segment": scan_task.slice.segment.base_offset,
        "position": unreadable.position,
        "size": size_bytes,
        "offset": unreadable.error.offset,
        "valid": False,
        "value": shown,
        "corruption": str(unreadable.error),
    }
    schema = arrow_schema(selected)
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(column.name)], field.type) for column, field in zip(selected, schema, strict=True)],
        schema=schema,
    )
