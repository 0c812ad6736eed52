"""Batches of metadata records: they are uncompressed, and their records have no keys and share one timestamp.

A controller applies all records of a batch or none.  If an atomic change needs several batches, it needs a metadata
transaction:

    NoOpRecord, BeginTransactionRecord | records, in several batches | EndTransactionRecord

If a node finds an unfinished transaction, it aborts the transaction when it becomes the active controller.

Source: Kafka 4.2.0, RecordsIterator, MetadataBatchLoader and OffsetControlManager.replay(BeginTransactionRecord);
KIP-868, KAFKA-17713.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m

_MOST_RECORDS = 1000  # the largest number of records in one batch
_MOST_BYTES = 1 << 20
_VERSION = 0  # version of transaction records


def split_into_batches(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size_bytes = 0
    for index, value in enumerate(values):
        if index > start and (index - start == _MOST_RECORDS or size_bytes + len(value) > _MOST_BYTES):
            yield values[start:index]
            start, size_bytes = index, 0
        size_bytes += len(value)
    if values[start:]:
        yield values[start:]


def data_batches(values: Sequence[bytes], *, base_offset: int, leader_epoch: int, now_ms: int) -> Iterator[bytes]:
    for some in split_into_batches(values):
        yield _batch(some, base_offset, leader_epoch, now_ms)
        base_offset += len(some)


def needs_transaction(values: Sequence[bytes]) -> bool:
    return len(list(split_into_batches(values))) > 1


def transaction_batches(
    values: Sequence[bytes], *, base_offset: int, leader_epoch: int, now_ms: int, name: str
) -> Iterator[bytes]:
    begin = [
        # The NoOpRecord is needed because a node cannot start if a transaction begins directly at the end of its newest
        # snapshot.
        encode_metadata_record(m.NoOpRecord(), _VERSION),
        encode_metadata_record(m.BeginTransactionRecord(name=name), _VERSION),
    ]
    # The NoOpRecord and the BeginTransactionRecord are in one batch, so that no later snapshot ends between them.
    yield _batch(begin, base_offset, leader_epoch, now_ms)
    first = base_offset + len(begin)
    yield from data_batches(values, base_offset=first, leader_epoch=leader_epoch, now_ms=now_ms)
    end = encode_metadata_record(m.EndTransactionRecord(), _VERSION)
    yield _batch([end], first + len(values), leader_epoch, now_ms)


def abort_batch(*, base_offset: int, leader_epoch: int, now_ms: int, reason: str) -> bytes:
    abort = encode_metadata_record(m.AbortTransactionRecord(reason=reason), _VERSION)
    return _batch([abort], base_offset, leader_epoch, now_ms)


def _batch(values: Sequence[bytes], base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
    records = [NewRecord(now_ms, None, value) for value in values]
    return build_batch(records, BatchHead(base_offset=base_offset, leader_epoch=leader_epoch))
