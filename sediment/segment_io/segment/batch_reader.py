"""Decoding the record batches of a fetch to values: the counterpart of `record_batch.build_batch`.

    bytes of a slice -> ReadBatch, ReadBatch, …        complete batches only; a torn last batch is left out

Batches may have any magic.  Checksums are verified.

Source: Kafka's MemoryRecords.batches, DefaultRecordBatch and AbstractLegacyRecordBatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.status import BAD_RECORD_COUNT, INCOMPLETE, OK, ROWS_FULL
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format import legacy
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.decode import (
    BATCH_ROW,
    HEADERS_START,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    PADDING_BYTES,
    RECORD_FIELDS,
    STATUS_TEXT,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
    decode_records,
    read_varint,
)
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    CODEC_MASK,
    CONTROL_BIT,
    INT32_MAX,
    LEGACY_ATTRIBUTES,
    MAGIC,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.padding import padded_copy
from sediment.segment_io.segment.append import NO_EPOCH_LIMIT, read_verified

_ROWS = 256

ByteArray = npt.NDArray[np.uint8]
Header = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record; a null key or value is None, `timestamp_ms` is -1 for magic 0, and headers are (key, value or None)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch of any magic.  Cleaning can leave a batch without records, which still covers its offsets."""

    base_offset: int
    last_offset: int
    records: tuple[ReadRecord, ...]
    leader_epoch: int = NO_LEADER_EPOCH
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False


def parse_batches(data: Buffer, *, limit_bytes: int = INT32_MAX) -> Iterator[ReadBatch]:
    """Yield the complete batches of `data`, which begins with a batch; decompress at most `limit_bytes` per batch.

    Raises:
        CorruptBatchError: a batch is malformed or fails its checksum; the batches before it were yielded.
    """
    buffer = padded_copy(data)
    end = buffer.size - PADDING_BYTES
    rows = np.zeros(_ROWS, dtype=BATCH_ROW)
    start, status = 0, ROWS_FULL
    while status == ROWS_FULL and start < end:
        status, count, used, _ = read_verified(buffer.ctypes.data + start, end - start, NO_EPOCH_LIMIT, rows)
        for position, size_bytes in rows[["position", "size_bytes"]][:count].tolist():
            at = start + position
            yield _batch(buffer[at : at + size_bytes].tobytes(), at, limit_bytes)
        start += used
    if status not in (OK, INCOMPLETE, ROWS_FULL):
        raise _corrupt(STATUS_TEXT[status], start)


def _batch(entry: bytes, position: int, limit_bytes: int) -> ReadBatch:
    if entry[MAGIC] < MAGIC_V2:
        records = _legacy_records(entry, position, limit_bytes)
        return ReadBatch(records[0].offset, records[-1].offset, records)
    head = BATCH_STRUCT.unpack_from(entry)
    base_offset, _, leader_epoch, _, _, attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms = head[:9]
    producer_id, producer_epoch, base_sequence, count = head[9:]
    payload: Buffer = memoryview(entry)[BATCH_HEADER_BYTES:]
    if attributes & CODEC_MASK:
        payload = decompress(attributes & CODEC_MASK, payload, limit_bytes=limit_bytes)
    if not 0 <= count <= len(payload):
        raise _corrupt(STATUS_TEXT[BAD_RECORD_COUNT], position)
    fields = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
    buffer = padded_copy(payload)
    status = decode_records(buffer.ctypes.data, 0, len(payload), count, fields)
    if status != OK:
        raise _corrupt(STATUS_TEXT[status], position)
    append_time_ms = max_timestamp_ms if attributes & TIMESTAMP_TYPE_BIT else None
    records = tuple(
        ReadRecord(
            base_offset + row[OFFSET_DELTA],
            base_timestamp_ms + row[TIMESTAMP_DELTA] if append_time_ms is None else append_time_ms,
            _content(buffer, row[KEY_START], row[KEY_BYTES]),
            _content(buffer, row[VALUE_START], row[VALUE_BYTES]),
            _headers(buffer, row[HEADERS_START]),
        )
        for row in fields.tolist()
    )
    return ReadBatch(
        base_offset,
        base_offset + last_offset_delta,
        records,
        leader_epoch,
        producer_id,
        producer_epoch,
        base_sequence,
        bool(attributes & TRANSACTIONAL_BIT),
        bool(attributes & CONTROL_BIT),
    )


def _legacy_records(entry: bytes, position: int, limit_bytes: int) -> tuple[ReadRecord, ...]:
    if entry[LEGACY_ATTRIBUTES] & CODEC_MASK:
        unwrapped = legacy.unwrap(entry, limit_bytes=limit_bytes)
        buffer, fields = unwrapped.buffer, unwrapped.records
    else:
        buffer = padded_copy(entry)
        fields = np.zeros((1, RECORD_FIELDS), dtype=np.int64)
        status = legacy.decode_entry(buffer.ctypes.data, 0, len(entry), fields[0])
        if status != OK:
            raise _corrupt(STATUS_TEXT[status], position)
    return tuple(
        ReadRecord(
            row[OFFSET_DELTA],
            row[TIMESTAMP_DELTA],
            _content(buffer, row[KEY_START], row[KEY_BYTES]),
            _content(buffer, row[VALUE_START], row[VALUE_BYTES]),
        )
        for row in fields.tolist()
    )


def _headers(buffer: ByteArray, start: int) -> tuple[Header, ...]:
    """Decode the headers, which begin with their count at `start` (0: there are none); the decoder has checked them."""
    if start == 0:
        return ()
    base = buffer.ctypes.data
    count, address = read_varint(base + start)
    found: list[Header] = []
    for _ in range(count):
        size_bytes, address = read_varint(address)
        key = _content(buffer, address - base, size_bytes) or b""
        size_bytes, address = read_varint(address + max(size_bytes, 0))
        found.append((key, _content(buffer, address - base, size_bytes)))
        address += max(size_bytes, 0)
    return tuple(found)


def _content(buffer: ByteArray, start: int, size_bytes: int) -> bytes | None:
    return None if size_bytes < 0 else buffer[start : start + size_bytes].tobytes()


def _corrupt(what: str, position: int) -> CorruptBatchError:
    return CorruptBatchError(what, position=position, advice="fetch it again, or restore the segment from a replica")
