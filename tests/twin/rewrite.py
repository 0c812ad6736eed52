"""A partition without, or with other, records: what a table of verdicts leaves of its batches (kafka-log 02 §6.4).

A batch of which a record changes is rebuilt as filterTo rebuilds it, with these differences: a batch of magic 0 or 1
keeps its first and last offset, and a batch that gets a tombstone loses its delete horizon.  A batch that loses all
records goes, unless it is the last of its segment or among the last five data batches of its producer there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from tests.twin.batches import INT64_MAX, LOG_APPEND_TIME, Batch, Record, encode_batch, encode_empty_batch, parse_batch
from tests.twin.errors import IndexFullError
from tests.twin.indexes import IndexBuilder, build_indexes, encode_transaction_index, parse_transaction_index
from tests.twin.segments import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, AnyBatch, Segment, list_segments

REMEMBERED = 5


class Change(Enum):
    """The verdict on a record."""

    DROP = auto()
    TOMBSTONE = auto()
    VALUE = auto()
    KEY = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A change, and the new key or value."""

    change: Change
    content: bytes = b""


Table = Mapping[int, Verdict]


def changed_record(record: Record, verdict: Verdict | None) -> Record | None:
    """Return the record after its verdict, None if it goes; a tombstone needs a key."""
    if verdict is None:
        return record
    match verdict.change:
        case Change.DROP:
            return None
        case Change.TOMBSTONE:
            return record if record.key is None else replace(record, value=None)
        case Change.VALUE:
            return replace(record, value=verdict.content)
        case Change.KEY:
            return replace(record, key=verdict.content)


def changed_records(batch: AnyBatch, table: Table, bound: int) -> tuple[Record, ...]:
    """Return the records of a batch after their verdicts; control batches and those that reach `bound` stay."""
    records = batch.records()
    if batch.is_control or batch.last_offset >= bound:
        return records
    after = (changed_record(record, table.get(record.offset)) for record in records)
    return tuple(record for record in after if record is not None)


def rewritten_batches(batches: Sequence[AnyBatch], table: Table, bound: int) -> list[AnyBatch]:
    """Return what is left of the batches of one segment."""
    result: list[AnyBatch] = []
    for index, batch in enumerate(batches):
        before, after = batch.records(), changed_records(batch, table, bound)
        if after == before:
            result.append(batch)
        elif after:
            result.append(parse_batch(_rebuilt(batch, before, after)))
        elif index == len(batches) - 1 or _is_remembered(batch, batches[index + 1 :], bound):
            result.append(parse_batch(encode_empty_batch(_in_magic_2(batch, before))))
    return result


def _is_remembered(batch: AnyBatch, later: Sequence[AnyBatch], bound: int) -> bool:
    if batch.producer_id < 0:
        return False
    same = [b for b in later if b.producer_id == batch.producer_id and not b.is_control and b.last_offset < bound]
    return len(same) < REMEMBERED


def _rebuilt(batch: AnyBatch, before: Sequence[Record], after: Sequence[Record]) -> bytes:
    old = {record.offset: record for record in before}
    gets_tombstone = any(record.value is None and old[record.offset].value is not None for record in after)
    return encode_batch(
        after,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        codec=batch.codec,
        append_time=batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None,
        delete_horizon_ms=None if gets_tombstone else batch.delete_horizon_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
        control=batch.is_control,
    )


def _in_magic_2(batch: AnyBatch, records: Sequence[Record]) -> Batch:
    return batch if isinstance(batch, Batch) else parse_batch(_rebuilt(batch, records, records))


def rewrite_directory(
    directory: Path, table: Table, *, bound: int, interval_bytes: int, max_index_bytes: int = 10 << 20
) -> None:
    """Rewrite a partition directory in place; segments without a change keep their files."""
    for segment in list_segments(directory):
        before = [batch for _, batch in segment.batches()]
        after = rewritten_batches(before, table, bound)
        if [batch.data for batch in after] != [batch.data for batch in before]:
            replace_segment(segment, after, interval_bytes, max_index_bytes)


def replace_segment(
    segment: Segment, batches: Sequence[AnyBatch], interval_bytes: int, max_index_bytes: int = 10 << 20
) -> None:
    """Replace the files of a segment by those of other batches; its transaction index and modification time stay."""
    modified_ns = segment.path(LOG).stat().st_mtime_ns
    aborted = parse_transaction_index(segment.read(TRANSACTION_INDEX))
    segment.path(TRANSACTION_INDEX).unlink(missing_ok=True)
    parts = _split(segment.base_offset, batches, interval_bytes, max_index_bytes)
    for (base, own), end in zip(parts, [*(base for base, _ in parts[1:]), INT64_MAX], strict=True):
        part = Segment(segment.directory, base)
        offset_index, time_index = build_indexes(
            own, base, interval_bytes=interval_bytes, max_index_bytes=max_index_bytes
        )
        part.path(LOG).write_bytes(b"".join(batch.data for batch in own))
        part.path(OFFSET_INDEX).write_bytes(offset_index)
        part.path(TIME_INDEX).write_bytes(time_index)
        entries = [entry for entry in aborted if base <= entry.last_offset < end]
        if entries:
            part.path(TRANSACTION_INDEX).write_bytes(encode_transaction_index(entries))
        os.utime(part.path(LOG), ns=(modified_ns, modified_ns))


def _split(
    base_offset: int, batches: Sequence[AnyBatch], interval_bytes: int, max_index_bytes: int
) -> list[tuple[int, list[AnyBatch]]]:
    """Return (base offset, batches) of the segments; one ends where Kafka would find an index full."""
    parts: list[tuple[int, list[AnyBatch]]] = [(base_offset, [])]
    builder = IndexBuilder(base_offset, interval_bytes=interval_bytes, max_index_bytes=max_index_bytes)
    for batch in batches:
        try:
            builder.append(batch)
        except IndexFullError:
            parts.append((batch.base_offset, []))
            builder = IndexBuilder(batch.base_offset, interval_bytes=interval_bytes, max_index_bytes=max_index_bytes)
            builder.append(batch)
        parts[-1][1].append(batch)
    return parts
