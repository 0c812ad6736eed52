"""A partition with the same records in another codec, or in larger batches.

Data batches of magic 2 below a bound may change.  Neighbours become one batch if their headers agree, if both may
change, if neither is among the last five data batches of its producer in the segment, and if the result stays within a
limit before compression.  A result that takes no fewer bytes than the originals is given up, unless it is uncompressed
on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.twin import framing
from tests.twin.batches import (
    CODEC_MASK,
    HEADER_BYTES,
    INT32_MAX,
    LOG_APPEND_TIME,
    Batch,
    Record,
    assemble_batch,
    decode_record,
    encode_record,
    increment_sequence,
    parse_batch,
)
from tests.twin.rewrite import REMEMBERED, replace_segment
from tests.twin.segments import AnyBatch, list_segments


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding that batches get; `compress` is (codec, records) to bytes, whose sizes decide."""

    codec: int | None
    encodes_same_codec: bool
    joined_bytes: int | None
    max_batch_bytes: int
    compress: Callable[[int, bytes], bytes]


def may_change(batch: AnyBatch, bound: int) -> bool:
    """Return True for data below the bound."""
    return isinstance(batch, Batch) and not batch.is_control and batch.count > 0 and batch.last_offset < bound


def agree(first: Batch, second: Batch, *, keeps_codec: bool) -> bool:
    """Return True if the headers of two neighbours allow one batch."""
    if keeps_codec and first.codec != second.codec:
        return False
    if second.timestamp_type == LOG_APPEND_TIME and first.max_timestamp != second.max_timestamp:
        return False
    if first.producer_id >= 0 and second.base_sequence != increment_sequence(first.last_sequence, 1):
        return False
    same = ("producer_id", "producer_epoch", "leader_epoch", "timestamp_type", "is_transactional", "delete_horizon_ms")
    return first.next_offset == second.base_offset and all(getattr(first, n) == getattr(second, n) for n in same)


def reencoded_batches(batches: Sequence[AnyBatch], encoding: Encoding, bound: int) -> list[AnyBatch]:
    """Return the batches of one segment after the re-encoding."""
    groups: list[list[AnyBatch]] = []
    remembered = {id(batch) for batch in _remembered(batches, bound)}
    for index, batch in enumerate(batches):
        before = batches[index - 1] if index else None
        if (
            encoding.joined_bytes is not None
            and isinstance(before, Batch)
            and isinstance(batch, Batch)
            and may_change(before, bound)
            and may_change(batch, bound)
            and not {id(before), id(batch)} & remembered
            and agree(before, batch, keeps_codec=encoding.codec is None)
            and HEADER_BYTES + len(_payload([*groups[-1], batch])) <= encoding.joined_bytes
            and batch.last_offset - groups[-1][0].base_offset <= INT32_MAX
        ):
            groups[-1].append(batch)
        else:
            groups.append([batch])
    return [after for group in groups for after in _encoded(group, encoding, bound)]


def _remembered(batches: Sequence[AnyBatch], bound: int) -> list[Batch]:
    data = [batch for batch in batches if _is_of_producer(batch, bound)]
    return [
        batch
        for index, batch in enumerate(data)
        if sum(later.producer_id == batch.producer_id for later in data[index + 1 :]) < REMEMBERED
    ]


def _is_of_producer(batch: AnyBatch, bound: int) -> bool:
    return isinstance(batch, Batch) and not batch.is_control and batch.last_offset < bound and batch.producer_id >= 0


def _payload(group: Sequence[Batch]) -> bytes:
    """Return the records of a group, relative to its first batch."""
    first = group[0]
    parts = [framing.decompress(first.codec, first.data[HEADER_BYTES:])]
    for batch in group[1:]:
        parts += [encode_record(record, first.base_offset, first.base_timestamp) for record in _stored_records(batch)]
    return b"".join(parts)


def _stored_records(batch: Batch) -> list[Record]:
    """Return the records with their own timestamps, which LogAppendTime hides."""
    payload = framing.decompress(batch.codec, batch.data[HEADER_BYTES:])
    records, position = [], 0
    for _ in range(batch.count):
        record, position = decode_record(payload, position, batch.base_offset, batch.base_timestamp, None)
        records.append(record)
    return records


def _encoded(group: Sequence[AnyBatch], encoding: Encoding, bound: int) -> Sequence[AnyBatch]:
    first, last = group[0], group[-1]
    if not may_change(first, bound):
        return group
    codec = first.codec if encoding.codec is None else encoding.codec
    if len(group) == 1 and codec == first.codec and not encoding.encodes_same_codec:
        return group
    result = assemble_batch(
        encoding.compress(codec, _payload(group)),
        base_offset=first.base_offset,
        last_offset=last.last_offset,
        leader_epoch=first.leader_epoch,
        attributes=first.attributes & ~CODEC_MASK | codec,
        base_timestamp=first.base_timestamp,
        max_timestamp=max(batch.max_timestamp for batch in group),
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        base_sequence=first.base_sequence,
        count=sum(batch.count for batch in group),
    )
    may_grow = encoding.codec == framing.NONE and len(result) <= encoding.max_batch_bytes
    return [parse_batch(result)] if may_grow or len(result) < sum(len(batch.data) for batch in group) else group


def reencode_directory(directory: Path, encoding: Encoding, *, bound: int, interval_bytes: int) -> None:
    """Re-encode a partition directory in place; segments without a change keep their files."""
    for segment in list_segments(directory):
        before = [batch for _, batch in segment.batches()]
        after = reencoded_batches(before, encoding, bound)
        if [batch.data for batch in after] != [batch.data for batch in before]:
            replace_segment(segment, after, interval_bytes)
