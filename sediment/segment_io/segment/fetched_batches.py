"""Record batches of a fetch as values: the counterpart of `batch_builder.build_batch`.

    bytes of a fetch --verify--> header rows --decode--> record rows (scratch) --slice--> Record, Record, …
                                     |                                                       |
                                     +--------------------> Batch, Batch, … <-------- .batch +

Batches may have any magic and codec.  A fetch may begin below the requested offset and may end inside a batch.

Invariants
* A batch's checksum is verified before any of its records is used.
* If a batch is corrupt, all whole batches before it are yielded, and then `CorruptBatchError` is raised.
* Memory use is one copy of the bytes, one run of records, and one decompressed batch of limited size.

Source: Kafka's MemoryRecords.batches, DefaultRecordBatch, AbstractLegacyRecordBatch and CompletedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_copy
from sediment.segment_io.compiled.status import (
    BAD_CODEC,
    BAD_RECORD_COUNT,
    INCOMPLETE,
    NEEDS_PAYLOAD,
    NEEDS_RECORD_ROOM,
    OK,
    ROWS_FULL,
)
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.batch_builder import Headers
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    LEGACY_ATTRIBUTES,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import decode_entry, unwrap
from sediment.segment_io.format.record_decoder import (
    HEADERS_START,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_FIELDS,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
    decode_records,
    read_varint,
)
from sediment.segment_io.format.timestamps import delete_horizon_ms, record_timestamp
from sediment.segment_io.segment.append_check_kernels import NO_EPOCH_LIMIT, read_verified

LIMIT_BYTES = 256 << 20
"""The default limit on the size of one decompressed batch."""

_ADVICE = "fetch the data again, or restore the segment from a replica"
_CODECS = (*CODEC_NAMES, "5", "6", "7")
_ROWS = 256
_RUN_RECORDS = 4096

ByteArray = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]


# --------------------------------------------------------------------------------------------------------------- values
class ControlType(Enum):
    """The type of a control batch (kafka-log 01 §4)."""

    ABORT = CONTROL_ABORT
    COMMIT = CONTROL_COMMIT
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def _missing_(cls, value: object) -> ControlType:
        return cls.UNKNOWN


class Batch(NamedTuple):
    """The header of a batch, with its position in the bytes that were read.

    A message of magic 0 or 1 is a separate batch.  The header of a compressed message contains only the offset of the
    last record.  So its `base_offset` equals its `last_offset`, and its `record_count` is -1.  Fields that do not exist
    in a magic are -1.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    """The number of records; 0 if a cleaning has removed all of them."""
    stored_control_type: int
    coordinator_epoch: int
    """The coordinator epoch in a transaction marker; -1 in other batches."""
    control_timestamp_ms: int
    """The timestamp of a transaction marker; -1 in other batches."""

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.last_offset + 1

    @property
    def codec(self) -> str:
        """The name of the codec: none, gzip, snappy, lz4 or zstd; for an unknown codec, its number."""
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def is_append_time(self) -> bool:
        """True if the timestamps are of type LogAppendTime."""
        return self.magic > 0 and bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return self.magic >= MAGIC_V2 and bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if the batch contains control records, which a consumer does not see."""
        return self.magic >= MAGIC_V2 and bool(self.attributes & CONTROL_BIT)

    @property
    def control_type(self) -> ControlType | None:
        """The type of a control batch; None for data and for a control batch without records."""
        return ControlType(self.stored_control_type) if self.is_control and self.record_count > 0 else None

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time after which cleaning may remove the batch's tombstones or marker; None if no such time is set."""
        return delete_horizon_ms(self.magic, self.attributes, self.base_timestamp_ms)


assert len(Batch._fields) == len(BATCH_ROW.names or ())


class Record(NamedTuple):
    """A record that was read; a null key or value is None, and a missing timestamp is -1."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    """Pairs (key, value or None); a key is UTF-8."""
    batch: Batch


class RecordRun(NamedTuple):
    """A run of records: `offsets` is int64[n], and `keys` has n keys; a null key is None.

    The value of record i is `content`[values[0, i] : values[1, i]], or null if the end is -1; `values` is int64[2, n].
    The arrays are valid until the next run is requested.
    """

    offsets: Int64s
    keys: list[bytes | None]
    content: bytes
    values: Int64s

    def value(self, index: int) -> bytes | None:
        """Return the value of record `index`."""
        start, end = self.values[:, index].tolist()
        return None if end < 0 else self.content[start:end]


class AbortedTransaction(Protocol):
    """An aborted transaction as a fetch response lists it: its producer, and the offset of its first record."""

    @property
    def producer_id(self) -> int: ...

    @property
    def first_offset(self) -> int: ...


# -------------------------------------------------------------------------------------------------------------- reading
def batches(data: Buffer) -> Iterator[Batch]:
    """Verify the checksum of each whole batch of `data`, and yield its header.

    `data` must begin with a batch.

    Raises:
        CorruptBatchError: a batch is malformed or fails its checksum; the batches before it were yielded.
    """
    buffer = padded_copy(data)
    for rows in _verified(buffer):
        yield from _headers_of(rows)


def next_offset(data: Buffer, from_offset: int) -> int:
    """Return the offset at which the next read begins: the offset after the last whole batch of `data`.

    If that offset is below `from_offset`, return `from_offset`.  The records do not show where the next read begins,
    because a cleaned log has gaps and batches without records.

    Raises:
        CorruptBatchError: a batch is malformed or fails its checksum.
    """
    for rows in _verified(padded_copy(data)):
        from_offset = max(from_offset, int(rows["last_offset"].max()) + 1)
    return from_offset


def read_records(
    data: Buffer,
    *,
    from_offset: int = 0,
    aborted: Iterable[AbortedTransaction] | None = None,
    with_control: bool = False,
    limit_bytes: int = LIMIT_BYTES,
) -> Iterator[Record]:
    """Yield the records of `data`, the bytes of a fetch, as a consumer sees them.

    Args:
        data: begins with a batch and may end inside a batch, which is then left out.
        from_offset: the requested offset; records below it are left out.
        aborted: the aborted transactions of a fetch with isolation level read_committed; their records are left out.
            None means read_uncommitted.
        with_control: also yield control records.
        limit_bytes: the largest size of one decompressed batch.

    Raises:
        CorruptBatchError: a batch is malformed, fails its checksum or expands beyond `limit_bytes`.  The records before
            it were yielded.

    Source: Kafka's CompletedFetch.nextFetchedRecord.
    """
    visible = _Visibility(from_offset, aborted, with_control)
    for run in _runs(data, from_offset, visible, limit_bytes):
        yield from _records(run)


def read_columns(data: Buffer, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[RecordRun]:
    """Yield the data records of `data` as columns, several records at a time.

    Records of aborted transactions are included.  Arguments and errors are the same as for `read_records`.
    """
    for run in _runs(data, 0, _Visibility(0, None, with_control=False), limit_bytes):
        _, _, key_starts, key_ends = run.fields[: _KEY_END + 1].tolist()
        yield RecordRun(
            run.fields[_OFFSET],
            _contents(run.content, key_starts, key_ends),
            run.content,
            run.fields[_VALUE_START:_BATCH],
        )


class _Run(NamedTuple):
    """Records of some batches: `fields` refers to positions in `content` and to the batches in `found`.

    `buffer` is a padded copy of `content`.
    """

    content: bytes
    buffer: ByteArray
    fields: Int64s
    found: list[Batch]


def _runs(data: Buffer, from_offset: int, visible: _Visibility, limit_bytes: int) -> Iterator[_Run]:
    """Yield the visible records of `data` at or above `from_offset`; a run is valid until the next run is requested."""
    buffer = padded_copy(data)
    content = data if isinstance(data, bytes) else bytes(data)
    rooms = _Rooms(_RUN_RECORDS)
    for rows in _verified(buffer):
        found = _headers_of(rows)
        wanted = visible.of(rows)
        at = 0
        while at < len(found):
            status, at, count = _read_plain(
                buffer.ctypes.data, rows, at, wanted, from_offset, rooms.records, rooms.fields
            )
            yield _Run(content, buffer, rooms.fields[:, :count], found)
            if status == NEEDS_RECORD_ROOM:
                if not count:
                    rooms = _Rooms(found[at].record_count)
            elif status == NEEDS_PAYLOAD:
                inflated, fields = _read_compressed(content, rows, at, found[at], from_offset, limit_bytes)
                yield _Run(inflated[:-PADDING_BYTES].tobytes(), inflated, fields, found)
                at += 1
            elif status != OK:
                raise _corrupt(STATUS_TEXT[status], found[at])


def _verified(buffer: ByteArray) -> Iterator[Rows]:
    end = buffer.size - PADDING_BYTES
    start, status = 0, ROWS_FULL
    while status == ROWS_FULL and start < end:
        rows = np.zeros(_ROWS, dtype=BATCH_ROW)
        status, count, used, _ = read_verified(buffer.ctypes.data + start, end - start, NO_EPOCH_LIMIT, rows)
        rows = rows[:count]
        rows["position"] += start
        if count:
            yield rows
        start += used
    if status not in (OK, INCOMPLETE, ROWS_FULL):
        offset = int.from_bytes(buffer[start : start + 8].tobytes(), "big", signed=True)
        raise CorruptBatchError(STATUS_TEXT[status], position=start, offset=offset, advice=_ADVICE)


def _headers_of(rows: Rows) -> list[Batch]:
    return [Batch(*row) for row in rows.tolist()]


class _Visibility:
    """The batches that a consumer sees; call `of` in log order."""

    def __init__(self, from_offset: int, aborted: Iterable[AbortedTransaction] | None, with_control: bool) -> None:
        self._from_offset = from_offset
        self._with_control = with_control
        self._waiting = sorted(((each.first_offset, each.producer_id) for each in aborted or ()), reverse=True)
        self._aborted: set[int] = set()

    def of(self, rows: Rows) -> npt.NDArray[np.bool_]:
        attributes = np.where(rows["magic"] >= MAGIC_V2, rows["attributes"], 0)
        visible = rows["last_offset"] >= self._from_offset
        if not self._with_control:
            visible &= attributes & CONTROL_BIT == 0
        if self._waiting or self._aborted:
            for index in np.flatnonzero(attributes & TRANSACTIONAL_BIT).tolist():
                if self._is_aborted(Batch(*rows[index].item())):
                    visible[index] = False
        return visible

    def _is_aborted(self, batch: Batch) -> bool:
        while self._waiting and self._waiting[-1][0] <= batch.last_offset:
            self._aborted.add(self._waiting.pop()[1])
        if not batch.is_control:
            return batch.producer_id in self._aborted
        if batch.control_type is ControlType.ABORT:
            self._aborted.discard(batch.producer_id)
        return False


# ------------------------------------------------------------------------- fields of read records, int64[_FIELDS, n]
_OFFSET = 0
_TIMESTAMP_MS = 1
_KEY_START = 2
_KEY_END = 3  # -1: null
_VALUE_START = 4
_VALUE_END = 5
_BATCH = 6  # index among the batches
_HEADERS_START = 7  # position of the header count; 0 if there is none
_FIRST_HEADER = 8  # range of the record's headers among the headers of all records
_HEADERS_END = 9
_FIELDS = 10


class _Rooms:
    def __init__(self, count: int) -> None:
        self.records = np.empty((count, RECORD_FIELDS), dtype=np.int64)
        self.fields = np.empty((_FIELDS, count), dtype=np.int64)


@kernel
def _read_plain(
    base: int,
    rows: Rows,
    first: int,
    wanted: npt.NDArray[np.bool_],
    from_offset: int,
    records: Int64s,
    fields: Int64s,
) -> tuple[int, int, int]:
    """Read the wanted batches among rows[first:]; stop at a compressed batch, or when the arrays are full.

    Returns:
        (status, index of the first batch that was not read, number of records).
    """
    done = 0
    for index in range(first, rows.size):
        row = rows[index]
        is_legacy = row["magic"] < MAGIC_V2
        count = 1 if is_legacy else row["record_count"]
        if not wanted[index] or count == 0:
            continue
        if row["attributes"] & CODEC_MASK:
            return NEEDS_PAYLOAD, index, done
        if count > fields.shape[1] - done:
            return NEEDS_RECORD_ROOM, index, done
        position = row["position"]
        end = position + row["size_bytes"]
        if is_legacy:
            status = decode_entry(base, position, row["size_bytes"], records[0])
        else:
            status = decode_records(base, position + BATCH_HEADER_BYTES, end, count, records)
        if status != OK:
            return status, index, done
        done = collect_fields(rows, index, records, count, from_offset, fields, done)
    return OK, rows.size, done


@kernel
def collect_fields(
    rows: Rows, index: int, records: Int64s, count: int, from_offset: int, fields: Int64s, to: int
) -> int:
    """Add `count` decoded records of batch `index` to `fields`, starting at column `to`; return the next free column.

    Records below `from_offset` are left out.
    """
    row = rows[index]
    has_deltas = row["magic"] >= MAGIC_V2
    base_offset = row["base_offset"] if has_deltas else np.int64(0)
    base_timestamp = int(row["base_timestamp"]) if has_deltas else 0
    attributes = int(row["attributes"]) if has_deltas else 0
    max_timestamp = row["max_timestamp"]
    for at in range(count):
        offset = base_offset + records[at, OFFSET_DELTA]
        if offset < from_offset:
            continue
        fields[_OFFSET, to] = offset
        fields[_TIMESTAMP_MS, to] = record_timestamp(
            attributes, base_timestamp, max_timestamp, records[at, TIMESTAMP_DELTA]
        )
        fields[_KEY_START, to] = records[at, KEY_START]
        fields[_KEY_END, to] = records[at, KEY_START] + records[at, KEY_BYTES] if records[at, KEY_BYTES] >= 0 else -1
        fields[_VALUE_START, to] = records[at, VALUE_START]
        fields[_VALUE_END, to] = (
            records[at, VALUE_START] + records[at, VALUE_BYTES] if records[at, VALUE_BYTES] >= 0 else -1
        )
        fields[_BATCH, to] = index
        fields[_HEADERS_START, to] = records[at, HEADERS_START]
        to += 1
    return to


@kernel
def _number_headers(base: int, fields: Int64s) -> int:
    headers = 0
    for at in range(fields.shape[1]):
        fields[_FIRST_HEADER, at] = headers
        if fields[_HEADERS_START, at] > 0:
            count, _ = read_varint(base + fields[_HEADERS_START, at])
            headers += count
        fields[_HEADERS_END, at] = headers
    return headers


@kernel
def _locate_headers(base: int, fields: Int64s, spans: Int64s) -> None:
    """Fill `spans`, int64[4, headers], with key starts, key ends, value starts, and value ends or -1."""
    for at in range(fields.shape[1]):
        if fields[_FIRST_HEADER, at] == fields[_HEADERS_END, at]:
            continue
        _, address = read_varint(base + fields[_HEADERS_START, at])
        for to in range(fields[_FIRST_HEADER, at], fields[_HEADERS_END, at]):
            length, address = read_varint(address)
            spans[0, to] = address - base
            address += length
            spans[1, to] = address - base
            length, address = read_varint(address)
            spans[2, to] = address - base
            address += max(length, 0)
            spans[3, to] = address - base if length >= 0 else -1


def _records(run: _Run) -> Iterator[Record]:
    content, buffer, fields, found = run
    offsets, times, key_starts, key_ends, value_starts, value_ends, batch = fields[: _BATCH + 1].tolist()
    # The columns are joined without Python code for each record, because such code would take twice as long.
    columns = zip(
        offsets,
        times,
        _contents(content, key_starts, key_ends),
        _contents(content, value_starts, value_ends),
        _headers(content, buffer, fields),
        map(found.__getitem__, batch),
        strict=False,
    )
    return map(_new_record, columns)


_new_record = partial(tuple.__new__, Record)


def _contents(content: bytes, starts: list[int], ends: list[int]) -> list[bytes | None]:
    return [None if end < 0 else content[start:end] for start, end in zip(starts, ends, strict=True)]


def _headers(content: bytes, buffer: ByteArray, fields: Int64s) -> Iterable[Headers]:
    """Return the headers of each record; if no record has headers, return an endless iterator of empty tuples."""
    count = _number_headers(buffer.ctypes.data, fields)
    if not count:
        return repeat(())
    spans = np.empty((4, count), dtype=np.int64)
    _locate_headers(buffer.ctypes.data, fields, spans)
    key_starts, key_ends, value_starts, value_ends = spans.tolist()
    keys = [content[start:end] for start, end in zip(key_starts, key_ends, strict=True)]
    pairs = list(zip(keys, _contents(content, value_starts, value_ends), strict=True))
    firsts, ends = fields[_FIRST_HEADER : _HEADERS_END + 1].tolist()
    return [tuple(pairs[first:end]) for first, end in zip(firsts, ends, strict=True)]


# ----------------------------------------------------------------------------------------------------------- compressed
def _read_compressed(
    data: bytes, rows: Rows, index: int, batch: Batch, from_offset: int, limit_bytes: int
) -> tuple[ByteArray, Int64s]:
    entry = data[batch.position : batch.position + batch.size_bytes]
    try:
        if batch.magic < MAGIC_V2:
            inflated, records = _unwrapped(entry, limit_bytes)
        else:
            inflated, records = _inflated(entry, batch, limit_bytes)
    except CorruptBatchError as error:
        raise _corrupt(error.what, batch) from error
    fields = np.empty((_FIELDS, len(records)), dtype=np.int64)
    return inflated, fields[:, : collect_fields(rows, index, records, len(records), from_offset, fields, 0)]


def _unwrapped(entry: bytes, limit_bytes: int) -> tuple[ByteArray, Int64s]:
    if entry[LEGACY_ATTRIBUTES] & CODEC_MASK >= len(CODEC_NAMES):
        raise CorruptBatchError(STATUS_TEXT[BAD_CODEC])
    found = unwrap(entry, limit_bytes=limit_bytes)
    return found.buffer, found.records


def _inflated(entry: bytes, batch: Batch, limit_bytes: int) -> tuple[ByteArray, Int64s]:
    payload = memoryview(entry)[BATCH_HEADER_BYTES:]
    content = padded_copy(decompress(batch.attributes & CODEC_MASK, payload, limit_bytes=limit_bytes))
    size_bytes = content.size - PADDING_BYTES
    if batch.record_count * MIN_RECORD_BYTES > size_bytes:
        raise CorruptBatchError(STATUS_TEXT[BAD_RECORD_COUNT])
    records = np.empty((batch.record_count, RECORD_FIELDS), dtype=np.int64)
    status = decode_records(content.ctypes.data, 0, size_bytes, batch.record_count, records)
    if status != OK:
        raise CorruptBatchError(STATUS_TEXT[status])
    return content, records


def _corrupt(what: str, batch: Batch) -> CorruptBatchError:
    return CorruptBatchError(what, position=batch.position, offset=batch.base_offset, advice=_ADVICE)
