"""Building record batches of magic 2 from values, for appends of a few records and for rewritten batches.

Invariant: the offset deltas of a batch built here are 0, 1, 2 …; its base timestamp is that of its first record.

Source: kafka-log 01 §3, §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    CODEC_NONE,
    CONTROL_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written; a null key or value is None, and headers are (key, value or None)."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class BatchHead:
    """The header fields of a batch that do not follow from its records."""

    base_offset: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    codec: int = CODEC_NONE
    level: int | None = None
    append_time_ms: int | None = None
    """The time of a LogAppendTime batch; None: CreateTime."""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False


def build_batch(records: Sequence[NewRecord], head: BatchHead | None = None) -> bytes:
    """Return one batch of `records`, which is not empty."""
    base_timestamp_ms = records[0].timestamp_ms
    payload = b"".join(_record(record, delta, base_timestamp_ms) for delta, record in enumerate(records))
    largest_ms = max(record.timestamp_ms for record in records)
    return batch_of(payload, len(records), base_timestamp_ms, largest_ms, head or BatchHead())


def batch_of(payload: Buffer, count: int, base_timestamp_ms: int, largest_ms: int, head: BatchHead) -> bytes:
    """Return a batch of `count` encoded records."""
    content = compress(head.codec, payload, level=head.level)
    attributes = (
        head.codec
        | (0 if head.append_time_ms is None else TIMESTAMP_TYPE_BIT)
        | (TRANSACTIONAL_BIT if head.is_transactional else 0)
        | (CONTROL_BIT if head.is_control else 0)
    )
    header = BATCH_STRUCT.pack(
        head.base_offset,
        BATCH_HEADER_BYTES + len(content) - LOG_OVERHEAD_BYTES,
        head.leader_epoch,
        MAGIC_V2,
        0,
        attributes,
        count - 1,
        base_timestamp_ms,
        largest_ms if head.append_time_ms is None else head.append_time_ms,
        head.producer_id,
        head.producer_epoch,
        head.base_sequence,
        count,
    )
    crc = crc32c.crc32c(content, crc32c.crc32c(header[ATTRIBUTES:]))
    return b"".join((header[: ATTRIBUTES - 4], crc.to_bytes(4, "big"), header[ATTRIBUTES:], content))


def _record(record: NewRecord, delta: int, base_timestamp_ms: int) -> bytes:
    headers = b"".join(_sized(key) + _sized(value) for key, value in record.headers)
    body = b"".join(
        (
            b"\0",
            _varint(record.timestamp_ms - base_timestamp_ms),
            _varint(delta),
            _sized(record.key),
            _sized(record.value),
            _varint(len(record.headers)),
            headers,
        )
    )
    return _varint(len(body)) + body


def _sized(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encode a zig-zag varint or varlong."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while raw >= 128:
        encoded.append(raw & 127 | 128)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)
