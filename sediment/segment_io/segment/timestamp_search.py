"""Search for records by their timestamps in an open segment file.

    time index -> position -> first batch with a timestamp at or above the target -> its records, one by one

Invariant: memory is used for one decompressed batch, not for each of its records.

Source: kafka-log 04 §9.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_copy
from sediment.segment_io.compiled.status import BAD_RECORD_COUNT, OK
from sediment.segment_io.errors import CorruptBatchError, LongWorkError
from sediment.segment_io.format import legacy
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.compression.batch_payloads import QUICK_BYTES, decompressed_records
from sediment.segment_io.format.layout import (
    BATCH_STRUCT,
    CODEC_MASK,
    LEGACY_ATTRIBUTES,
    MAGIC,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    NO_LEADER_EPOCH,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.record_decoder import (
    OFFSET_DELTA,
    RECORD_FIELDS,
    TIMESTAMP_DELTA,
    decode_next_records,
)
from sediment.segment_io.fs import ReadableFile
from sediment.segment_io.segment.search import BY_EXACT_TIMESTAMP, BY_TIMESTAMP, FoundBatch, find_in_file

_LIMIT_BYTES = 1 << 30
_ROWS = 1024
_NOT_FOUND = -1


class FoundRecord(NamedTuple):
    """A record found by its timestamp; `leader_epoch` is the leader epoch of its batch, or -1."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class WantedTime(NamedTuple):
    """The first record at or above `start_offset` with a timestamp of at least, or exactly, `timestamp_ms`."""

    timestamp_ms: int
    start_offset: int = 0
    is_exact: bool = False


class TimestampSearch(NamedTuple):
    file: ReadableFile
    position: int
    end_position: int
    wanted: WantedTime

    def find(self, *, only_quick: bool = False) -> FoundRecord | None:
        """Return the wanted record, or None.

        Raises:
            LongWorkError: `only_quick` is True, and a large batch must be searched.
        """
        wanted, position = self.wanted, self.position
        kind = BY_EXACT_TIMESTAMP if wanted.is_exact else BY_TIMESTAMP
        while True:
            batch = find_in_file(self.file, position, self.end_position, kind, wanted.timestamp_ms)
            record = None if batch is None else find_record(self.file, batch, wanted, only_quick=only_quick)
            # An exact time is searched only in the first batch whose largest timestamp is this time.
            if batch is None or record is not None or wanted.is_exact:
                return record
            position = batch.position + batch.size_bytes


def find_record(
    file: ReadableFile, batch: FoundBatch, wanted: WantedTime, *, only_quick: bool = False
) -> FoundRecord | None:
    """Return the wanted record in a batch, or None.

    Raises:
        CorruptBatchError: the batch is malformed before that record; its checksum is not verified.
    """
    if only_quick and batch.size_bytes > QUICK_BYTES:
        raise LongWorkError(f"a batch has {batch.size_bytes} bytes")
    entry = padded_copy(file.read(batch.position, batch.size_bytes))
    size_bytes = entry.size - PADDING_BYTES
    if entry[MAGIC] < MAGIC_V2:
        is_compressed = entry[LEGACY_ATTRIBUTES] & CODEC_MASK
        if only_quick and is_compressed:
            raise LongWorkError("a compressed message has an old format")
        return _find_legacy(file, batch, entry[:size_bytes].tobytes(), wanted)
    head = BATCH_STRUCT.unpack(entry[: BATCH_STRUCT.size].tobytes())
    base_offset, _, epoch, _, _, attributes, _, base_timestamp, max_timestamp, *_, count = head
    payload = decompressed_records(
        entry, 0, size_bytes, attributes & CODEC_MASK, limit_bytes=_LIMIT_BYTES, only_quick=only_quick
    )
    payload_bytes = payload.size - PADDING_BYTES
    if not 0 <= count * MIN_RECORD_BYTES <= payload_bytes:
        raise _corrupt(file, batch, STATUS_TEXT[BAD_RECORD_COUNT])
    is_append_time = bool(attributes & TIMESTAMP_TYPE_BIT)
    status, timestamp_ms, offset = _first_since(
        payload.ctypes.data,
        payload_bytes,
        count,
        max_timestamp if is_append_time else base_timestamp,
        is_append_time,
        base_offset,
        wanted,
        np.empty((min(count, _ROWS), RECORD_FIELDS), dtype=np.int64),
    )
    if status != OK:
        raise _corrupt(file, batch, STATUS_TEXT[status])
    return None if offset == _NOT_FOUND else FoundRecord(timestamp_ms, offset, epoch)


@kernel
def _first_since(
    base: int,
    size_bytes: int,
    count: int,
    base_timestamp: int,
    is_append_time: bool,
    base_offset: int,
    wanted: WantedTime,
    records: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Search the `count` records of [0, size_bytes), some rows of `records` at a time.

    Return (status, timestamp, offset), with the offset _NOT_FOUND if there is no such record.
    """
    position = 0
    done = 0
    while done < count:
        rows = min(records.shape[0], count - done)
        status, position = decode_next_records(base, position, size_bytes, rows, records)
        if status != OK:
            return status, 0, _NOT_FOUND
        for index in range(rows):
            timestamp = base_timestamp if is_append_time else base_timestamp + records[index, TIMESTAMP_DELTA]
            offset = base_offset + records[index, OFFSET_DELTA]
            is_late = timestamp == wanted.timestamp_ms or (timestamp > wanted.timestamp_ms and not wanted.is_exact)
            if offset >= wanted.start_offset and is_late:
                return OK, timestamp, offset
        done += rows
    return OK, 0, _NOT_FOUND


def _find_legacy(file: ReadableFile, batch: FoundBatch, entry: bytes, wanted: WantedTime) -> FoundRecord | None:
    if entry[LEGACY_ATTRIBUTES] & CODEC_MASK:
        records = legacy.unwrap(entry, limit_bytes=_LIMIT_BYTES).records
    else:
        buffer = np.frombuffer(entry, dtype=np.uint8)
        records = np.zeros((1, RECORD_FIELDS), dtype=np.int64)
        status = legacy.decode_entry(buffer.ctypes.data, 0, batch.size_bytes, records[0])
        if status != OK:
            raise _corrupt(file, batch, STATUS_TEXT[status])
    timestamps, offsets = records[:, TIMESTAMP_DELTA], records[:, OFFSET_DELTA]
    in_time = timestamps == wanted.timestamp_ms if wanted.is_exact else timestamps >= wanted.timestamp_ms
    found = np.flatnonzero(in_time & (offsets >= wanted.start_offset))
    if not found.size:
        return None
    return FoundRecord(int(timestamps[found[0]]), int(offsets[found[0]]), NO_LEADER_EPOCH)


def _corrupt(file: ReadableFile, batch: FoundBatch, what: str) -> CorruptBatchError:
    return CorruptBatchError(
        what,
        path=str(file.path),
        position=batch.position,
        offset=batch.base_offset,
        advice="restore the segment from a replica or a backup",
    )
