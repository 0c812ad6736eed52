"""Analysis of the bytes to append: complete batches with correct checksums (kafka-log 04 §1.1).

    batch at the end is incomplete         it is left out
    checksum, length or magic is wrong     the append is refused (`segment.recovery_scan.verified_batch_at`)
    base offset of a client is not 0       the append is refused for magic 2
    batch is above max.message.bytes       the append is refused, except for a follower
    given offsets do not ascend            the append of a follower or a Raft leader is refused
    follower: epoch above the leader's     this batch and all later ones are left out
    Raft leader: batch of another epoch    the append is refused

Invariant: the caller's bytes are not changed, because each thread works in its own buffers.

Source: Kafka's UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_buffer, padded_copy
from sediment.segment_io.compiled.status import (
    BAD_CONTROL_RECORD,
    BAD_LAST_OFFSET,
    BAD_RECORD_COUNT,
    INCOMPLETE,
    ROWS_FULL,
)
from sediment.segment_io.errors import (
    CorruptBatchError,
    InvalidRecordError,
    OffsetsOutOfOrderError,
    RecordTooLargeError,
)
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT
from sediment.segment_io.format.layout import (
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.record_decoder import (
    RECORD_FIELDS,
)
from sediment.segment_io.segment.append_check_kernels import (
    NO_EPOCH_LIMIT,
    RECORD_ERROR_FIELDS,
    read_verified,
)
from sediment.segment_io.segment.append_run_kernels import MOST_IN_RUN
from sediment.segment_io.segment.reader import Rows

ByteArray = npt.NDArray[np.uint8]
MAX_RECORD_ERRORS = 1000
"""The number of bad records that the error of a batch names; a producer treats the others as it treats these."""

_MOST_KEPT_BYTES = 4 << 20
_MOST_RECORDS = 64 << 10
_INVALID_STATUSES = frozenset({BAD_RECORD_COUNT, BAD_LAST_OFFSET, BAD_CONTROL_RECORD})


class BatchFields(NamedTuple):
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    control_type: int
    coordinator_epoch: int
    control_timestamp: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return self.magic >= MAGIC_V2 and bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return self.magic >= MAGIC_V2 and bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_append_time(self) -> bool:
        return self.magic > 0 and bool(self.attributes & TIMESTAMP_TYPE_BIT)


assert BatchFields._fields == BATCH_ROW.names


class Summary(NamedTuple):
    """A summary of several headers; `has_producer` is True if at least one of the batches has a producer."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    has_producer: bool


@dataclass(slots=True, eq=False)
class CompleteBatches:
    """Complete batches in buffer[:size_bytes], with their header rows, BATCH_ROW[n]."""

    buffer: ByteArray
    size_bytes: int
    rows: Rows

    def fields(self) -> Iterator[BatchFields]:
        for row in self.rows.tolist():
            yield BatchFields(*row)

    def first(self) -> BatchFields:
        return BatchFields(*self.rows[0].item())

    def summary(self) -> Summary:
        """Return a summary of all headers; a single row is summarised without numpy's reductions, which are slower."""
        first = self.first()
        if len(self.rows) == 1:
            return Summary(first.base_offset, first.last_offset, first.max_timestamp, first.producer_id >= 0)
        return Summary(
            first.base_offset,
            int(self.rows["last_offset"][-1]),
            int(self.rows["max_timestamp"].max()),
            bool((self.rows["producer_id"] >= 0).any()),
        )


class AppendBuffers:
    """Buffers for the appends of one thread, which performs one append at a time.

    The buffers stay as long as their thread, so they grow only up to a bound; a larger batch has its own buffer.
    """

    def __init__(self) -> None:
        self._replace_buffer(128 << 10)
        self.rows = np.zeros(16, dtype=BATCH_ROW)
        self.all_records = np.zeros((256, RECORD_FIELDS), dtype=np.int64)
        self.errors = np.zeros((MAX_RECORD_ERRORS, RECORD_ERROR_FIELDS), dtype=np.int64)
        self.offset_entries = np.zeros(MOST_IN_RUN * OFFSET_ENTRY_BYTES, dtype=np.uint8)
        self.time_entries = np.zeros((MOST_IN_RUN + 1) * TIME_ENTRY_BYTES, dtype=np.uint8)
        """The index entries of a run of plain batches; after the entries of the time index, one slot is reserved."""

    def _replace_buffer(self, size_bytes: int) -> None:
        self._buffer = padded_buffer(size_bytes)
        self.content = self._buffer.data[:size_bytes]
        """The buffer without its padding."""
        self.address = self._buffer.ctypes.data

    def copy_of(self, records: Buffer) -> tuple[ByteArray, int]:
        source = np.frombuffer(records, dtype=np.uint8)
        if source.size > _MOST_KEPT_BYTES:
            return padded_copy(records), source.size
        if source.size > self._buffer.size - PADDING_BYTES:
            self._replace_buffer(min(2 * source.size, _MOST_KEPT_BYTES))
        self._buffer[: source.size] = source
        return self._buffer, source.size

    def more_rows(self) -> None:
        self.rows = np.zeros(2 * self.rows.size, dtype=BATCH_ROW)

    def records(self, count: int) -> npt.NDArray[np.int64]:
        """Return int64[n, RECORD_FIELDS] with rows for `count` records, or for a part of them if there are many."""
        if len(self.all_records) < min(count, _MOST_RECORDS):
            self.all_records = np.zeros((min(2 * count, _MOST_RECORDS), RECORD_FIELDS), dtype=np.int64)
        return self.all_records


# -------------------------------------------------------------------------------------------------------- whole batches
def read_batches(
    records: Buffer, buffers: AppendBuffers, *, origin: AppendOrigin, leader_epoch: int, max_message_bytes: int
) -> CompleteBatches:
    """Return the complete batches of an append; leave out a partial batch at the end.

    For a follower, also leave out the first batch with a leader epoch above `leader_epoch`, and all batches after it.

    Source: kafka-log 04 §1.1.
    """
    is_follower = origin is AppendOrigin.REPLICATION
    first_bytes = _first_size_bytes(records)
    if not is_follower and max_message_bytes < first_bytes <= len(records):
        raise too_large(first_bytes, max_message_bytes)
    buffer, size_bytes = buffers.copy_of(records)
    epoch_limit = leader_epoch if is_follower else NO_EPOCH_LIMIT
    while True:
        status, count, end, _ = read_verified(buffer.ctypes.data, size_bytes, epoch_limit, buffers.rows)
        if status != ROWS_FULL or end == size_bytes:
            break
        buffers.more_rows()
    rows = buffers.rows[:count]
    if status not in (INCOMPLETE, ROWS_FULL):
        _refuse_batch(status, buffer, end, origin)
    if not is_follower and end > max_message_bytes and int(rows["size_bytes"].max()) > max_message_bytes:
        raise too_large(int(rows["size_bytes"].max()), max_message_bytes)
    if origin is AppendOrigin.CLIENT:
        _check_no_offsets(rows)
    if origin is AppendOrigin.RAFT_LEADER and (rows["leader_epoch"] != leader_epoch).any():
        raise InvalidRecordError(f"a batch does not have leader epoch {leader_epoch}")
    if not origin.assigns_offsets and count > 1 and (np.diff(rows["last_offset"]) <= 0).any():
        raise OffsetsOutOfOrderError(
            "the offsets of the batches do not ascend",
            offset=int(rows["base_offset"][0]),
            advice="fetch from the leader again",
        )
    return CompleteBatches(buffer, end, rows)


def _first_size_bytes(records: Buffer) -> int:
    if len(records) < LOG_OVERHEAD_BYTES:
        return 0
    length = int.from_bytes(memoryview(records)[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
    return LOG_OVERHEAD_BYTES + length


def _check_no_offsets(rows: Rows) -> None:
    for magic, base_offset in zip(rows["magic"].tolist(), rows["base_offset"].tolist(), strict=True):
        if magic >= MAGIC_V2 and base_offset != 0:
            raise InvalidRecordError(
                f"the batch of a client has base offset {base_offset}, not 0", advice="let the log assign the offsets"
            )


def _refuse_batch(status: int, buffer: ByteArray, position: int, origin: AppendOrigin) -> NoReturn:
    what = STATUS_TEXT[status]
    advice = "produce or fetch the batch again"
    if status in _INVALID_STATUSES and origin.assigns_offsets:
        raise InvalidRecordError(what, position=position, advice=advice)
    offset = int.from_bytes(buffer[position : position + 8].tobytes(), "big", signed=True)
    raise CorruptBatchError(what, position=position, offset=offset, advice=advice)


def too_large(size_bytes: int, max_message_bytes: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a batch of {size_bytes} bytes is larger than max.message.bytes, {max_message_bytes}",
        advice="produce smaller batches or raise max.message.bytes",
    )
