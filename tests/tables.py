"""Tables for tests, read without Spark, and their expected content from the dumps of the corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute  # noqa: F401 - `pa.compute` exists only after this import

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest
from tests.corpus import DumpedBatch, DumpedSegment
from tests.twin.batches import Batch
from tests.twin.errors import TwinError
from tests.twin.framing import NAMES as CODEC_NAMES
from tests.twin.segments import LOG, Segment, file_batches, list_segments

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def read_rows(
    path: Path | str | Sequence[Path], request: TableRequest | None = None, *, task_bytes: int = 1 << 26, **options: Any
) -> list[dict[str, Any]]:
    """Rows of a table as dictionaries; timestamps as ms."""
    return list(iterate_rows(path, request or TableRequest(**options), task_bytes=task_bytes))


def iterate_rows(path: Path | str | Sequence[Path], request: TableRequest, *, task_bytes: int) -> Iterator[Any]:
    paths = [path] if isinstance(path, Path | str) else list(path)
    for task in plan_table(request, find_sources(paths, Fs()), Fs(), task_bytes=task_bytes):
        for batch in read_table(request, task, Fs()):
            batch.validate(full=True)
            assert batch.num_rows
            yield from in_ms(batch).to_pylist()


def in_ms(batch: Any) -> Any:
    """Return a record batch with its timestamps as int64 in ms."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        is_time = pa.types.is_timestamp(column.type)
        columns.append(pa.compute.divide(column.cast(pa.int64()), 1000) if is_time else column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def twin_dump(directory: Path) -> tuple[DumpedSegment, ...]:
    """Return the good batches of magic 2 by the plain Python twin, shaped as a dump, up to the first wrong size."""
    return tuple(
        DumpedSegment(segment.base_offset, segment.log_bytes(), tuple(_twin_batches(segment)))
        for segment in list_segments(directory)
    )


def _twin_batches(segment: Segment) -> Iterator[DumpedBatch]:
    batches = file_batches(segment.read(LOG))
    with contextlib.suppress(TwinError):
        for position, batch in batches:
            assert isinstance(batch, Batch)
            if batch.is_valid():
                records = batch.records()
                yield DumpedBatch(
                    base_offset=batch.base_offset,
                    last_offset=batch.last_offset,
                    position=position,
                    size_bytes=len(batch.data),
                    magic=batch.magic,
                    codec=CODEC_NAMES[batch.codec],
                    timestamp_type=batch.timestamp_type,
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    base_sequence=batch.base_sequence,
                    leader_epoch=batch.leader_epoch,
                    is_transactional=batch.is_transactional,
                    is_control=batch.is_control,
                    delete_horizon_ms=batch.delete_horizon_ms,
                    max_timestamp=batch.max_timestamp,
                    is_valid=True,
                    records=records,
                    sequences=tuple(map(batch.sequence_of, records)),
                )


def dumped_segments(dump: Sequence[DumpedSegment], topic: str, partition: int) -> list[dict[str, Any]]:
    """Return the columns of `segments` that Kafka's dump of a partition has."""
    return [
        {"topic": topic, "partition": partition, "baseOffset": segment.base_offset, "size": segment.log_bytes}
        for segment in dump
    ]


def dumped_records(dump: Sequence[DumpedSegment], topic: str, partition: int) -> list[dict[str, Any]]:
    """Return the rows of `records` that Kafka's dump of a partition implies, without `size`."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": TIMESTAMP_TYPES[batch.timestamp_type],
            "headers": [{"key": h.key.decode(), "value": h.value} for h in record.headers] or None,
            "batchBaseOffset": batch.base_offset,
            "codec": batch.codec,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "sequence": sequence,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "leaderEpoch": batch.leader_epoch,
        }
        for segment in dump
        for batch in segment.batches
        for record, sequence in zip(batch.records, batch.sequences, strict=True)
    ]


def dumped_batches(dump: Sequence[DumpedSegment], topic: str, partition: int) -> list[dict[str, Any]]:
    """Return the columns of `batches` that Kafka's dump of a partition has."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "segment": segment.base_offset,
            "position": batch.position,
            "size": batch.size_bytes,
            "baseOffset": batch.base_offset,
            "lastOffset": batch.last_offset,
            "recordCount": len(batch.records),
            "magic": batch.magic,
            "codec": batch.codec,
            "timestampType": TIMESTAMP_TYPES[batch.timestamp_type],
            "maxTimestamp": None if batch.max_timestamp == -1 else batch.max_timestamp,
            "deleteHorizon": batch.delete_horizon_ms,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "baseSequence": batch.base_sequence,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "leaderEpoch": batch.leader_epoch,
            "valid": batch.is_valid,
        }
        for segment in dump
        for batch in segment.batches
    ]
