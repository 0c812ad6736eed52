"""The table `batches`: the headers of the batches in slices of segments, and the results of their CRC checks.

Invariant: memory use is one chunk, the header rows of one table and the largest batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.control_records import control_type_name
from sediment.segment_io.format.layout import (
    CODEC_MASK,
    NO_CONTROL_RECORD,
)
from sediment.segment_io.format.legacy import unwrap
from sediment.segment_io.format.record_decoder import OFFSET_DELTA
from sediment.segment_io.format.timestamps import have_delete_horizon
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_state import last_sequence
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment import columns as c
from sediment.segment_io.segment.columns import check_batches
from sediment.segment_io.segment.reader import BatchSpan, Rows
from sediment.segment_io.tables.places import source_values
from sediment.segment_io.tables.planning import ScanTask, UnreadableRange
from sediment.segment_io.tables.scan import (
    HEADER_COLUMNS,
    Mask,
    OnLost,
    OnUnreadable,
    hidden_batches,
    read_spans,
    report_unreadable,
)
from sediment.segment_io.tables.schema import Column, TableRequest, arrow_schema, timestamps_from_ms

if TYPE_CHECKING:
    import pyarrow as pa

_BATCHES_PER_TABLE = 1 << 14


@dataclass(slots=True)
class _Batches:
    rows: list[Rows]
    valid: list[Mask]
    crcs: list[npt.NDArray[np.int64]]
    segments: list[npt.NDArray[np.int64]]
    count: int = 0


def read_batch_rows(
    request: TableRequest,
    scan_tasks: Sequence[ScanTask],
    fs: Fs,
    on_unreadable: OnUnreadable,
    on_lost: OnLost | None,
    *,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches`; arguments and errors are the same as for `readers.read_table`.

    A batch with a wrong CRC is not reported as unreadable; it has a row in which `valid` is False.
    """
    selected = request.selected()
    names = {column.name for column in selected}
    gathered = _Batches([], [], [], [])
    source: Source | None = None

    def flush() -> Iterator[pa.RecordBatch]:
        nonlocal gathered
        if gathered.count and source is not None:
            yield _batches_batch(gathered, source_values(source, names, fs), selected)
        gathered = _Batches([], [], [], [])

    for scan_task in scan_tasks:
        if scan_task.slice.source != source:
            yield from flush()
            source = scan_task.slice.source
        for found in read_spans(scan_task, fs, on_lost, follow):
            if isinstance(found, UnreadableRange):
                yield from flush()
                yield from report_unreadable(found, request, selected, fs, on_unreadable)
                continue
            current, span = found
            _gather(gathered, span, current)
            if gathered.count >= _BATCHES_PER_TABLE:
                yield from flush()
    yield from flush()


def _gather(gathered: _Batches, span: BatchSpan, scan_task: ScanTask) -> None:
    rows = span.rows[~hidden_batches(span.rows, scan_task)]
    valid = np.zeros(len(rows), dtype=np.bool_)
    crcs = np.zeros(len(rows), dtype=np.int64)
    check_batches(span.buffer.ctypes.data, span.start - span.position, rows, valid, crcs)
    for index in np.flatnonzero(rows["magic"] < 2):
        _look_inside(rows[index], valid[index], span)
    gathered.rows.append(rows)
    gathered.valid.append(valid)
    gathered.crcs.append(crcs)
    gathered.segments.append(np.full(len(rows), scan_task.slice.segment.base_offset))
    gathered.count += len(rows)


def _look_inside(row: np.void, valid: bool, span: BatchSpan) -> None:
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


def _batches_batch(gathered: _Batches, common: Mapping[str, Any], selected: Sequence[Column]) -> pa.RecordBatch:
    import pyarrow as pa

    rows = np.concatenate(gathered.rows)
    count = len(rows)
    horizons = have_delete_horizon(rows)
    unknown = rows["record_count"] < 0
    schema = arrow_schema(selected)

    def null_where(mask: Mask, values: Any, kind: Any) -> pa.Array:
        return pa.array(values, kind, mask=mask)

    def last_sequences() -> list[int]:
        spans = (rows["last_offset"] - rows["base_offset"]).tolist()
        return [last_sequence(base, span) for base, span in zip(rows["base_sequence"].tolist(), spans, strict=True)]

    def column(name: str, kind: Any) -> pa.Array:
        if name in common:
            return pa.repeat(pa.scalar(common[name], kind), count)
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
        if name in HEADER_COLUMNS:
            return _as_array(HEADER_COLUMNS[name](rows)).cast(kind)
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
    return control_type_name(number)
