"""Record batches as Python objects: read the records of a fetch response, and build a batch from records.

    bytes of a fetch  --read_records-->  Record, Record, …      --batches-->  Batch, Batch, …
    NewRecord, NewRecord, …  --build_batch-->  bytes of a batch

`read_records` reads every message format (magic 0 to 2) and codec; `build_batch` writes the current format, magic 2.
`read_records` verifies checksums, and `build_batch` computes the checksum.

Errors are classes of `sediment.segment_io.errors`: `CorruptBatchError` for bytes that contradict their format, and
`UsageError` for arguments that do not fit into a batch.  The functions may be called from any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sediment.segment_io.errors import CorruptBatchError, SedimentError, UsageError
from sediment.segment_io.format import batch_builder
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, RecordContent
from sediment.segment_io.format.control_records import marker_key_value
from sediment.segment_io.format.layout import (
    CODEC_NAMES,
    GZIP_LEVELS,
    INT32_MAX,
    INT64_MAX,
    LZ4_LEVELS,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    ZSTD_LEVELS,
)
from sediment.segment_io.segment.fetched_batches import (
    AbortedTransaction,
    Batch,
    ControlType,
    Record,
    batches,
    next_offset,
    read_records,
)

__all__ = [
    "AbortedTransaction",
    "Batch",
    "ControlType",
    "CorruptBatchError",
    "NewRecord",
    "Producer",
    "Record",
    "RecordContent",
    "SedimentError",
    "UsageError",
    "batches",
    "build_batch",
    "next_offset",
    "read_records",
    "transaction_marker",
]

_INT16_MAX = 32767
_LEVELS = {"gzip": (-1, *GZIP_LEVELS), "lz4": LZ4_LEVELS, "zstd": ZSTD_LEVELS}


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of a batch; it is idempotent, or it has an open transaction."""

    producer_id: int
    epoch: int
    base_sequence: int
    """The sequence number of the first record: how many records the producer has sent before it in this epoch."""
    is_transactional: bool = False


def build_batch(
    records: Iterable[RecordContent],
    *,
    base_offset: int = 0,
    codec: str = "none",
    level: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    append_time_ms: int | None = None,
    producer: Producer | None = None,
) -> bytes:
    """Return one batch with `records` at consecutive offsets, starting at `base_offset`.

    If a leader appends the batch, it assigns offsets and leader epoch itself.

    Args:
        records: at least one, each a `NewRecord` or a `Record` that was read.
        base_offset: the offset of the first record.
        codec: none, gzip, snappy, lz4 or zstd.
        level: compression level, as in Kafka's `compression.<codec>.level`; None means Kafka's default.
        leader_epoch: the epoch of the partition's leader.
        append_time_ms: the append time of a batch of type LogAppendTime; None means CreateTime.
        producer: the producer of an idempotent or transactional batch.

    Raises:
        UsageError: `records` is empty, an argument is out of its range, or a record contains something other than
            bytes.

    Source: kafka-log 01 §3.
    """
    given = records if isinstance(records, list | tuple) else list(records)
    if not given:
        raise UsageError("a batch needs a record", advice="leave out empty batches")
    if codec not in CODEC_NAMES:
        raise UsageError(f"codec {codec!r} does not exist", advice=f"use one of {', '.join(CODEC_NAMES)}")
    if level is not None and level not in _LEVELS.get(codec, ()):
        raise UsageError(f"codec {codec} has no level {level!r}", advice="use a level that Kafka allows, or None")
    _check("base_offset", base_offset, range(INT64_MAX - len(given) + 2))
    _check("leader_epoch", leader_epoch, range(-1, INT32_MAX + 1))
    if append_time_ms is not None:
        _check("append_time_ms", append_time_ms, range(INT64_MAX + 1))
    batch_builder.check_timestamps(given)
    head = BatchHead(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        codec=CODEC_NAMES.index(codec),
        level=level,
        append_time_ms=append_time_ms,
    )
    return batch_builder.build_batch(given, head if producer is None else _of_producer(head, producer))


def transaction_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Return the control batch that ends a transaction: ABORT or COMMIT.

    Args:
        control_type: ABORT or COMMIT.
        producer_id: the producer of the transaction.
        producer_epoch: the producer's epoch.
        coordinator_epoch: the epoch of the transaction coordinator's leader.
        timestamp_ms: the time of the marker.
        base_offset: the offset of the marker.
        leader_epoch: the epoch of the partition's leader.

    Raises:
        UsageError: `control_type` is another type, or an argument is out of its range.

    Source: kafka-log 01 §4.
    """
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise UsageError(f"a transaction cannot end with {control_type.name}", advice="give ABORT or COMMIT")
    _check("coordinator_epoch", coordinator_epoch, range(-1, INT32_MAX + 1))
    _check("base_offset", base_offset, range(INT64_MAX + 1))
    _check("leader_epoch", leader_epoch, range(-1, INT32_MAX + 1))
    marker = NewRecord(
        timestamp_ms,
        *marker_key_value(coordinator_epoch, is_commit=control_type is ControlType.COMMIT),
    )
    head = BatchHead(base_offset=base_offset, leader_epoch=leader_epoch, is_control=True)
    producer = Producer(producer_id, producer_epoch, NO_SEQUENCE, is_transactional=True)
    batch_builder.check_timestamps([marker])
    return batch_builder.build_batch([marker], _of_producer(head, producer))


def _of_producer(head: BatchHead, producer: Producer) -> BatchHead:
    _check("producer_id", producer.producer_id, range(INT64_MAX + 1))
    _check("producer epoch", producer.epoch, range(_INT16_MAX + 1))
    _check("base_sequence", producer.base_sequence, range(-1 if head.is_control else 0, INT32_MAX + 1))
    return replace(
        head,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.base_sequence,
        is_transactional=producer.is_transactional,
    )


def _check(name: str, value: int, allowed: range) -> None:
    if not isinstance(value, int) or value not in allowed:
        raise UsageError(f"{name} is {value!r}", advice=f"give a number from {allowed[0]} to {allowed[-1]}")
