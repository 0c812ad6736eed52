"""Search for records by their timestamps in an open segment file.

    time index -> position -> first batch with a timestamp at or above the target -> its records, one by one

Source: kafka-log 04 §9.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.compiled.status import BAD_RECORD_COUNT, OK
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format import legacy
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    CODEC_MASK,
    INT32_MAX,
    LEGACY_ATTRIBUTES,
    MAGIC,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.record_decoder import OFFSET_DELTA, RECORD_FIELDS, TIMESTAMP_DELTA, decode_records
from sediment.segment_io.fs import ReadableFile
from sediment.segment_io.segment.file_search import FoundBatch, find_in_file
from sediment.segment_io.segment.search import BY_EXACT_TIMESTAMP, BY_TIMESTAMP


class FoundRecord(NamedTuple):
    """A record found by its timestamp; `leader_epoch` is the leader epoch of its batch, or -1."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def first_record_since(
    file: ReadableFile, position: int, end_position: int, target_ms: int, start_offset: int
) -> FoundRecord | None:
    """Return the first record at or above `start_offset` with a timestamp of at least `target_ms`, or None.

    The batches in [position, end_position) of the file are searched.

    Raises:
        CorruptBatchError: a batch before that record is malformed.
        OSError: the disk failed.
    """
    while (batch := find_in_file(file, position, end_position, BY_TIMESTAMP, target_ms)) is not None:
        for record in records_of(file, batch):
            if record.timestamp_ms >= target_ms and record.offset >= start_offset:
                return record
        position = batch.position + batch.size_bytes
    return None


def first_record_at(file: ReadableFile, position: int, end_position: int, timestamp_ms: int) -> FoundRecord | None:
    """Return the first record with `timestamp_ms` in the first batch whose largest timestamp is `timestamp_ms`.

    Raises:
        CorruptBatchError: a batch before that record is malformed.
        OSError: the disk failed.
    """
    batch = find_in_file(file, position, end_position, BY_EXACT_TIMESTAMP, timestamp_ms)
    if batch is None:
        return None
    return next((record for record in records_of(file, batch) if record.timestamp_ms == timestamp_ms), None)


def records_of(file: ReadableFile, batch: FoundBatch) -> list[FoundRecord]:
    """Return each record of a batch as a `FoundRecord`.

    Raises:
        CorruptBatchError: the batch is malformed; its checksum is not verified.
        OSError: the disk failed.
    """
    entry = file.read(batch.position, batch.size_bytes)
    if entry[MAGIC] < MAGIC_V2:
        return _legacy_records(file, batch, entry)
    head = BATCH_STRUCT.unpack_from(entry)
    base_offset, _, epoch, _, _, attributes, _, base_timestamp, max_timestamp, *_, count = head
    payload = memoryview(entry)[BATCH_HEADER_BYTES:]
    if attributes & CODEC_MASK:
        payload = memoryview(decompress(attributes & CODEC_MASK, payload, limit_bytes=INT32_MAX))
    if not 0 <= count <= len(payload):
        raise _corrupt(file, batch, STATUS_TEXT[BAD_RECORD_COUNT])
    padded = padded_buffer(len(payload))
    padded[: len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    records = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
    status = decode_records(padded.ctypes.data, 0, len(payload), count, records)
    if status != OK:
        raise _corrupt(file, batch, STATUS_TEXT[status])
    timestamps = base_timestamp + records[:, TIMESTAMP_DELTA]
    if attributes & TIMESTAMP_TYPE_BIT:
        timestamps[:] = max_timestamp
    offsets = base_offset + records[:, OFFSET_DELTA]
    return [
        FoundRecord(timestamp_ms, offset, epoch)
        for timestamp_ms, offset in zip(timestamps.tolist(), offsets.tolist(), strict=True)
    ]


def _legacy_records(file: ReadableFile, batch: FoundBatch, entry: bytes) -> list[FoundRecord]:
    if entry[LEGACY_ATTRIBUTES] & CODEC_MASK:
        records = legacy.unwrap(entry, limit_bytes=INT32_MAX).records
    else:
        buffer = np.frombuffer(entry, dtype=np.uint8)
        records = np.zeros((1, RECORD_FIELDS), dtype=np.int64)
        status = legacy.decode_entry(buffer.ctypes.data, 0, batch.size_bytes, records[0])
        if status != OK:
            raise _corrupt(file, batch, STATUS_TEXT[status])
    return [
        FoundRecord(timestamp_ms, offset, NO_LEADER_EPOCH)
        for timestamp_ms, offset in records[:, [TIMESTAMP_DELTA, OFFSET_DELTA]].tolist()
    ]


def _corrupt(file: ReadableFile, batch: FoundBatch, what: str) -> CorruptBatchError:
    return CorruptBatchError(
        what,
        path=str(file.path),
        position=batch.position,
        offset=batch.base_offset,
        advice="restore the segment from a replica or a backup",
    )
