"""The table `records`: the records of slices of segments, decoded into pyarrow batches.

    spans --without hidden batches--> columns --when full--> pyarrow.RecordBatch

Invariant: memory use is one chunk, one table and the largest batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment import columns as c
from sediment.segment_io.segment.columns import BadBatchError, RecordColumns, RecordTable
from sediment.segment_io.segment.reader import Rows
from sediment.segment_io.tables.places import source_values
from sediment.segment_io.tables.planning import ScanTask, UnreadableRange
from sediment.segment_io.tables.scan import (
    HEADER_COLUMNS,
    OnLost,
    OnUnreadable,
    hidden_batches,
    read_spans,
    report_unreadable,
    unreadable_batch,
)
from sediment.segment_io.tables.schema import Column, TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_COLUMNS: Mapping[str, Callable[[Rows], Any]] = {**HEADER_COLUMNS, "position": lambda rows: rows["position"]}
_WANT = {"key": c.WANT_KEY, "value": c.WANT_VALUE, "headers": c.WANT_HEADERS}


def read_record_rows(
    request: TableRequest,
    scan_tasks: Sequence[ScanTask],
    fs: Fs,
    on_unreadable: OnUnreadable,
    on_lost: OnLost | None,
    *,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    selected = request.selected()
    names = {column.name for column in selected}
    want = sum(_WANT.get(column.name, 0) for column in selected)
    gathered = RecordColumns(want)
    place: tuple[Source, int | None] | None = None

    def flush() -> Iterator[pa.RecordBatch]:
        if len(gathered) and place is not None:
            source, segment = place
            common = {**source_values(source, names, fs), "segment": segment}
            yield _records_batch(gathered.take(), common, selected)

    for scan_task in scan_tasks:
        for found in read_spans(scan_task, fs, on_lost, follow):
            if isinstance(found, UnreadableRange):
                yield from flush()
                yield from report_unreadable(found, request, selected, fs, on_unreadable)
                continue
            current, span = found
            # With the column `segment`, a record batch has only records of one segment.
            segment = current.slice.segment.base_offset if "segment" in names else None
            if place != (current.slice.source, segment):
                yield from flush()
                place = current.slice.source, segment
            skip = hidden_batches(span.rows, current)
            bounds = _bounds_array(current.bounds)
            done = 0
            while done < len(span.rows):
                try:
                    done = gathered.add(span, done, skip, bounds)
                except BadBatchError as bad:
                    yield from flush()
                    bad_batch = unreadable_batch(bad, span, current)
                    yield from report_unreadable(bad_batch, request, selected, fs, on_unreadable)
                    done = bad.index + 1
                    continue
                if done < len(span.rows):
                    yield from flush()
    yield from flush()


def _bounds_array(bounds: Bounds) -> npt.NDArray[np.int64]:
    return np.array(
        [bounds.first_offset, bounds.end_offset, bounds.first_timestamp_ms, bounds.end_timestamp_ms], dtype=np.int64
    )


def _records_batch(table: RecordTable, common: Mapping[str, Any], selected: Sequence[Column]) -> pa.RecordBatch:
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
        if name in common:
            return pa.repeat(pa.scalar(common[name], kind), count)
        if name == "corruption":
            return pa.nulls(count, kind)
        return pa.array(_BATCH_COLUMNS[name](table.headers)).take(per_record).cast(kind)

    if any(column.name in _BATCH_COLUMNS for column in selected):
        per_record = pa.array(np.repeat(np.arange(len(table.headers), dtype=np.int32), table.counts))
    return pa.RecordBatch.from_arrays(
        [column(selected_column.name, field.type) for selected_column, field in zip(selected, schema, strict=True)],
        schema=schema,
    )
