"""MemoryRecords.filterTo: what is written of a batch when some of its records are dropped (kafka-log 02 §6.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tests.twin.batches import INT64_MAX, LOG_APPEND_TIME, Batch, Record, encode_batch, encode_empty_batch
from tests.twin.errors import IllegalStateError
from tests.twin.segments import AnyBatch, parse_any


class Retention(Enum):
    """Decision about a whole batch (BatchRetention)."""

    DELETE = auto()  # dropped, its records are not even looked at
    RETAIN_EMPTY = auto()  # its header stays when no record does
    DELETE_EMPTY = auto()  # dropped when no record stays


@dataclass(frozen=True, slots=True)
class FilteredBatch:
    """Written bytes (b"" for none), and the numbers of records read and kept."""

    data: bytes
    messages_read: int = 0
    messages_written: int = 0


def filter_batch(
    data: bytes,
    keep: Callable[[Record], bool],
    *,
    now_ms: int,
    delete_retention_ms: int | None,
    retention: Retention = Retention.DELETE_EMPTY,
    marker_for_empty_transaction: bool = False,
) -> bytes:
    """What filterTo writes for the one batch in `data`, b"" for nothing.

    A retained tombstone, or `marker_for_empty_transaction`, gives a batch without a delete horizon the horizon
    `now_ms` + `delete_retention_ms`; none where that is None, or the sum beyond INT64_MAX.

    Raises:
        IllegalStateError: a batch of magic 0 or 1 should stay empty.
    """
    return apply_filter(
        parse_any(data),
        keep,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        retention=retention,
        marker_for_empty_transaction=marker_for_empty_transaction,
    ).data


def apply_filter(
    batch: AnyBatch,
    keep: Callable[[Record], bool],
    *,
    now_ms: int,
    delete_retention_ms: int | None,
    retention: Retention,
    marker_for_empty_transaction: bool,
) -> FilteredBatch:
    """As `filter_batch`, with the counts of Kafka's cleaner: records of a DELETE batch count as not read."""
    if retention is Retention.DELETE:
        return FilteredBatch(b"")
    records = batch.records()
    kept = [record for record in records if keep(record)]
    if not kept:
        if retention is Retention.DELETE_EMPTY:
            return FilteredBatch(b"", len(records))
        if not isinstance(batch, Batch):
            raise IllegalStateError(f"a batch of magic {batch.magic} cannot stay empty (offset {batch.offset})")
        return FilteredBatch(encode_empty_batch(batch), len(records))
    next_horizon_ms = None if delete_retention_ms is None else now_ms + delete_retention_ms
    needs_horizon = (
        next_horizon_ms is not None
        and next_horizon_ms <= INT64_MAX
        and batch.delete_horizon_ms is None
        and (marker_for_empty_transaction or any(record.value is None for record in kept))
    )
    if batch.magic == 2 and len(kept) == len(records) and not needs_horizon:
        return FilteredBatch(batch.data, len(records), len(kept))
    horizon_ms = next_horizon_ms if needs_horizon else batch.delete_horizon_ms
    return FilteredBatch(rebuild_batch(batch, kept, horizon_ms), len(records), len(kept))


def rebuild_batch(batch: AnyBatch, kept: Sequence[Record], horizon_ms: int | None) -> bytes:
    """Return a batch of magic 2 of the `kept` records.

    Of magic 2 the offsets of the original batch stay; of magic 0 and 1 the first and last kept record's are taken.
    """
    original = isinstance(batch, Batch)
    return encode_batch(
        kept,
        base_offset=batch.base_offset if original else kept[0].offset,
        last_offset=batch.last_offset if original else kept[-1].offset,
        leader_epoch=batch.leader_epoch,
        codec=batch.codec,
        append_time=batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None,
        delete_horizon_ms=horizon_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
        control=batch.is_control,
    )
