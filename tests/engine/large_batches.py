"""Batches that expand to many bytes or records."""

from __future__ import annotations

from tests.engine.live_logs import NOW_MS
from tests.twin import framing
from tests.twin.batches import Record, assemble_batch, encode_record

ZSTD = 4


def large_batch(payload: bytes, count: int, codec: int = ZSTD) -> bytes:
    """Return a batch of `count` encoded records."""
    return signed_batch(framing.compress(codec, payload) if codec else payload, count, codec)


def signed_batch(content: bytes, count: int, codec: int) -> bytes:
    """Return a batch with `content` after its header."""
    return assemble_batch(
        content,
        base_offset=0,
        last_offset=count - 1,
        leader_epoch=0,
        attributes=codec,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )


def encoded(key: bytes | None = b"k", *, delta: int = 0, timestamp_ms: int = NOW_MS, value: bytes = b"") -> bytes:
    """Return an encoded record."""
    return encode_record(Record(delta, timestamp_ms, key, value), 0, NOW_MS)


def bomb(size_bytes: int, codec: int = ZSTD) -> bytes:
    """Return a batch of one record that expands to a little more than `size_bytes`."""
    return large_batch(encoded(value=bytes(size_bytes)), 1, codec)
