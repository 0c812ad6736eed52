"""Compiled loops that gather record batches into columns in Arrow's layout, which pyarrow wraps without a copy.

    chunk of a segment  --decode-->  record rows (scratch)  --gather-->  keys, values, headers: offsets and bytes
         |                                                                offsets, timestamps, sizes, sequences
         +-- header rows -------------- repeated by records per batch --> codec, producer, leader epoch, …

Invariants
* A batch's CRC is checked before any of its records is used.
* All records of a batch are in one table.
* With its status, a kernel asks for work that it cannot do: decompress or unwrap a batch, enlarge an array, or take a
  full table.  When a kernel returns, each batch is in the table completely or not at all.
* pyarrow is imported when the first table is taken, because a process must not load pyarrow before it forks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import copy_bytes, load_u32
from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import NEEDS_PAYLOAD, NEEDS_RECORD_ROOM, NEEDS_TABLE_ROOM, OK
from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.checksum import check_crc
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CRC,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    LEGACY_CRC,
    MIN_RECORD_BYTES,
    NO_SEQUENCE,
)
from sediment.segment_io.format.legacy import check_legacy_crc, decode_entry, unwrap
from sediment.segment_io.format.record_decoder import (
    HEADERS_START,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    RECORD_END,
    RECORD_FIELDS,
    RECORD_START,
    TIMESTAMP_DELTA,
    VALUE_BYTES,
    VALUE_START,
    decode_records,
    read_varint,
)
from sediment.segment_io.format.timestamps import record_timestamp
from sediment.segment_io.segment.reader import BatchSpan, Rows

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS = 1 << 16
TABLE_BYTES = 16 << 20
MAX_RECORDS_BYTES = 1 << 30  # limit for one decompressed batch; a column of a table has at most 2^31 - 1 bytes

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]

_LARGEST_MS = INT64_MAX // 1000

# ------------------------------------------------------------------------------------------------------ wanted columns
WANT_KEY = 1
WANT_VALUE = 2
WANT_HEADERS = 4

# ------------------------------------------------------------------------------------------ bounds, int64[BOUND_FIELDS]
FIRST_OFFSET = 0
END_OFFSET = 1  # exclusive, like all ends; 2^63 - 1 means no end
FIRST_TIMESTAMP_MS = 2
END_TIMESTAMP_MS = 3
BOUND_FIELDS = 4
_EVERYTHING = np.array([INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX], dtype=np.int64)

# --------------------------------------------------------------------------------- columns of a table, by their arrays
OFFSET = 0  # longs, int64[LONG_COLUMNS, rows]
TIMESTAMP_US = 1
LONG_COLUMNS = 2
KEY_OFFSETS = 0  # ints, int32[INT_COLUMNS, rows + 1]
VALUE_OFFSETS = 1
HEADER_OFFSETS = 2
SIZE = 3
SEQUENCE = 4
INT_COLUMNS = 5
KEY_VALID = 0  # flags, uint8[FLAG_COLUMNS, rows]
VALUE_VALID = 1
HEADERS_VALID = 2
FLAG_COLUMNS = 3
HEADER_KEY_OFFSETS = 0  # header_ints, int32[HEADER_INT_COLUMNS, headers + 1]
HEADER_VALUE_OFFSETS = 1
HEADER_INT_COLUMNS = 2

# ----------------------------------------------------------------------------------- registers, int64[STATE_REGISTERS]
ROWS = 0
KEY_USED = 1  # bytes
VALUE_USED = 2
HEADERS = 3
HEADER_KEY_USED = 4
HEADER_VALUE_USED = 5
USED_REGISTERS = 6
NEEDED = 6  # the amounts that a batch adds to the registers above: NEEDED + ROWS, NEEDED + KEY_USED …
RECORDS_NEEDED = 12  # scratch rows that the batch needs
STATE_REGISTERS = 13


class SpanBatches(NamedTuple):
    """The batches of a span, BATCH_ROW[n], without those to `skip`.

    A file position plus `shift` is a position in the buffer at address `base`.
    """

    base: int
    shift: int
    rows: npt.NDArray[np.void]
    skip: npt.NDArray[np.bool_]


class TableArrays(NamedTuple):
    """The arrays of one table, and the registers that count their used part."""

    longs: Int64s
    ints: Int32s
    flags: ByteArray
    key_data: ByteArray
    value_data: ByteArray
    header_ints: Int32s
    header_flags: ByteArray
    header_key_data: ByteArray
    header_value_data: ByteArray
    state: Int64s

    def capacities(self) -> tuple[int, ...]:
        """Return the sizes of the arrays, in the order of the registers."""
        return (
            self.longs.shape[1],
            self.key_data.size,
            self.value_data.size,
            self.header_flags.size,
            self.header_key_data.size,
            self.header_value_data.size,
        )


@kernel
def _header_count(base: int, headers_start: int) -> int:
    if headers_start == 0:
        return 0
    count, _ = read_varint(base + headers_start)
    return count


@kernel
def _timestamp_us(timestamp_ms: int) -> int:
    return max(min(timestamp_ms, _LARGEST_MS), -_LARGEST_MS) * 1000


@kernel
def gather_records(
    base: int,
    records: Int64s,
    count: int,
    row: npt.NDArray[np.void],
    want: int,
    bounds: Int64s,
    table: TableArrays,
) -> int:
    """Append the records within `bounds` of the batch with header `row`; `records` refers to the buffer at `base`.

    Return OK, or NEEDS_TABLE_ROOM if nothing was appended.
    """
    state, longs, ints, flags = table.state, table.longs, table.ints, table.flags
    absolute = row["magic"] < 2
    base_offset = np.int64(0) if absolute else row["base_offset"]
    base_timestamp = np.int64(0) if absolute else row["base_timestamp"]
    attributes = np.int64(0) if absolute else row["attributes"]
    max_timestamp = row["max_timestamp"]
    first_offset, end_offset = bounds[FIRST_OFFSET], bounds[END_OFFSET]
    first_ms, end_ms = bounds[FIRST_TIMESTAMP_MS], bounds[END_TIMESTAMP_MS]
    offsets_end = end_offset != INT64_MAX
    timestamps_end = end_ms != INT64_MAX
    rows = 0
    key_bytes = 0
    value_bytes = 0
    headers = 0
    header_bytes = 0
    for index in range(count):
        offset = base_offset + records[index, OFFSET_DELTA]
        timestamp = record_timestamp(attributes, base_timestamp, max_timestamp, records[index, TIMESTAMP_DELTA])
        is_outside = (
            offset < first_offset
            or timestamp < first_ms
            or (offsets_end and offset >= end_offset)
            or (timestamps_end and timestamp >= end_ms)
        )
        if is_outside:
            records[index, RECORD_END] = -1
            continue
        rows += 1
        key_bytes += max(records[index, KEY_BYTES], 0)
        value_bytes += max(records[index, VALUE_BYTES], 0)
        if want & WANT_HEADERS:
            found = _header_count(base, records[index, HEADERS_START])
            if found > 0:
                headers += found
                header_bytes += records[index, RECORD_END] - records[index, HEADERS_START]
    state[NEEDED + ROWS] = rows
    state[NEEDED + KEY_USED] = key_bytes if want & WANT_KEY else 0
    state[NEEDED + VALUE_USED] = value_bytes if want & WANT_VALUE else 0
    state[NEEDED + HEADERS] = headers
    state[NEEDED + HEADER_KEY_USED] = header_bytes
    state[NEEDED + HEADER_VALUE_USED] = header_bytes
    if (
        state[ROWS] + rows > longs.shape[1]
        or state[KEY_USED] + state[NEEDED + KEY_USED] > table.key_data.size
        or state[VALUE_USED] + state[NEEDED + VALUE_USED] > table.value_data.size
        or state[HEADERS] + headers > table.header_flags.size
        or state[HEADER_KEY_USED] + header_bytes > table.header_key_data.size
        or state[HEADER_VALUE_USED] + header_bytes > table.header_value_data.size
    ):
        return NEEDS_TABLE_ROOM

    to = state[ROWS]
    key_used = state[KEY_USED]
    value_used = state[VALUE_USED]
    base_sequence = row["base_sequence"]
    for index in range(count):
        if records[index, RECORD_END] < 0:
            continue
        delta = records[index, OFFSET_DELTA]
        longs[OFFSET, to] = base_offset + delta
        longs[TIMESTAMP_US, to] = _timestamp_us(
            record_timestamp(attributes, base_timestamp, max_timestamp, records[index, TIMESTAMP_DELTA])
        )
        ints[SIZE, to] = records[index, RECORD_END] - records[index, RECORD_START]
        ints[SEQUENCE, to] = (base_sequence + delta) & INT32_MAX if base_sequence >= 0 else NO_SEQUENCE
        if want & WANT_KEY:
            length = records[index, KEY_BYTES]
            flags[KEY_VALID, to] = length >= 0
            if length > 0:
                copy_bytes(table.key_data.ctypes.data + key_used, base + records[index, KEY_START], length)
                key_used += length
            ints[KEY_OFFSETS, to + 1] = key_used
        if want & WANT_VALUE:
            length = records[index, VALUE_BYTES]
            flags[VALUE_VALID, to] = length >= 0
            if length > 0:
                copy_bytes(table.value_data.ctypes.data + value_used, base + records[index, VALUE_START], length)
                value_used += length
            ints[VALUE_OFFSETS, to + 1] = value_used
        if want & WANT_HEADERS:
            found = _header_count(base, records[index, HEADERS_START])
            flags[HEADERS_VALID, to] = found > 0
            if found > 0:
                _gather_headers(base + records[index, HEADERS_START], found, table)
            ints[HEADER_OFFSETS, to + 1] = state[HEADERS]
        to += 1
    state[ROWS] = to
    state[KEY_USED] = key_used
    state[VALUE_USED] = value_used
    return OK


@kernel
def _gather_headers(address: int, count: int, table: TableArrays) -> None:
    """Append the headers at `address`; `decode_records` has checked their bounds."""
    state, header_ints = table.state, table.header_ints
    _, address = read_varint(address)
    to = state[HEADERS]
    key_used = state[HEADER_KEY_USED]
    value_used = state[HEADER_VALUE_USED]
    for _ in range(count):
        key_bytes, key = read_varint(address)
        value_bytes, value = read_varint(key + key_bytes)
        table.header_flags[to] = value_bytes >= 0
        value_bytes = max(value_bytes, 0)
        copy_bytes(table.header_key_data.ctypes.data + key_used, key, key_bytes)
        copy_bytes(table.header_value_data.ctypes.data + value_used, value, value_bytes)
        address = value + value_bytes
        key_used += key_bytes
        value_used += value_bytes
        to += 1
        header_ints[HEADER_KEY_OFFSETS, to] = key_used
        header_ints[HEADER_VALUE_OFFSETS, to] = value_used
    state[HEADERS] = to
    state[HEADER_KEY_USED] = key_used
    state[HEADER_VALUE_USED] = value_used


@kernel
def gather_batches(
    batches: SpanBatches,
    first: int,
    counts: Int64s,
    records: Int64s,
    want: int,
    bounds: Int64s,
    table: TableArrays,
) -> tuple[int, int]:
    """Append the batches from index `first` on.

    `counts`, int64[batches], receives the number of records that each batch added.

    Returns:
        (OK, the number of batches); otherwise (a request or an error, the index of the batch that caused it).
    """
    base = batches.base
    for index in range(first, batches.rows.size):
        counts[index] = 0
        if batches.skip[index]:
            continue
        row = batches.rows[index]
        at = row["position"] + batches.shift
        size_bytes = row["size_bytes"]
        count = row["record_count"]
        if row["magic"] < 2:
            status = check_legacy_crc(base + at, size_bytes)
            if status != OK:
                return status, index
            if row["attributes"] & CODEC_MASK:
                return NEEDS_PAYLOAD, index
            status = decode_entry(base, at, size_bytes, records[0])
            count = 1
        else:
            status = check_crc(base + at, size_bytes)
            if status != OK:
                return status, index
            if count == 0:
                continue
            if row["attributes"] & CODEC_MASK:
                return NEEDS_PAYLOAD, index
            if count > len(records):
                table.state[RECORDS_NEEDED] = count
                return NEEDS_RECORD_ROOM, index
            status = decode_records(base, at + BATCH_HEADER_BYTES, at + size_bytes, count, records)
        if status != OK:
            return status, index
        before = table.state[ROWS]
        status = gather_records(base, records, count, row, want, bounds, table)
        if status != OK:
            return status, index
        counts[index] = table.state[ROWS] - before
    return OK, batches.rows.size


@kernel
def check_batches(
    base: int, shift: int, headers: npt.NDArray[np.void], valid: npt.NDArray[np.bool_], crcs: Int64s
) -> None:
    for index in range(headers.size):
        address = base + headers[index]["position"] + shift
        size_bytes = headers[index]["size_bytes"]
        if headers[index]["magic"] < 2:
            valid[index] = check_legacy_crc(address, size_bytes) == OK
            crcs[index] = load_u32(address + LEGACY_CRC)
        else:
            valid[index] = check_crc(address, size_bytes) == OK
            crcs[index] = load_u32(address + CRC)


# ----------------------------------------------------------------------------------------------------- growing a table
def _new_table(rows: int, sizes: tuple[int, ...]) -> TableArrays:
    """Return a table of `rows` rows; `sizes` are the sizes of the arrays for keys, values and headers."""
    key_bytes, value_bytes, headers, header_key_bytes, header_value_bytes = sizes
    table = TableArrays(
        longs=np.empty((LONG_COLUMNS, rows), dtype=np.int64),
        ints=np.empty((INT_COLUMNS, rows + 1), dtype=np.int32),
        flags=np.empty((FLAG_COLUMNS, rows), dtype=np.uint8),
        key_data=np.empty(key_bytes, dtype=np.uint8),
        value_data=np.empty(value_bytes, dtype=np.uint8),
        header_ints=np.empty((HEADER_INT_COLUMNS, headers + 1), dtype=np.int32),
        header_flags=np.empty(headers, dtype=np.uint8),
        header_key_data=np.empty(header_key_bytes, dtype=np.uint8),
        header_value_data=np.empty(header_value_bytes, dtype=np.uint8),
        state=np.zeros(STATE_REGISTERS, dtype=np.int64),
    )
    table.ints[:, 0] = 0
    table.header_ints[:, 0] = 0
    return table


_HEADERS_AT_FIRST = TABLE_ROWS


class RecordColumns:
    """`want` is a set of WANT_ bits; only wanted columns can be taken."""

    def __init__(self, want: int) -> None:
        self._want = want
        self._records = np.empty((4096, RECORD_FIELDS), dtype=np.int64)
        self._usual = (
            TABLE_BYTES if want & WANT_KEY else 0,
            TABLE_BYTES if want & WANT_VALUE else 0,
            _HEADERS_AT_FIRST if want & WANT_HEADERS else 0,
            _HEADERS_AT_FIRST * 16 if want & WANT_HEADERS else 0,
            _HEADERS_AT_FIRST * 16 if want & WANT_HEADERS else 0,
        )
        self._start()

    def _start(self) -> None:
        self._arrays = _new_table(TABLE_ROWS, self._usual)
        self._headers: list[Rows] = []
        self._counts: list[Int64s] = []

    def __len__(self) -> int:
        return int(self._arrays.state[ROWS])

    def add(self, span: BatchSpan, first: int, skip: npt.NDArray[np.bool_], bounds: Int64s) -> int:
        """Gather the batches span.rows[first:] that are not in `skip`; return the index after the last gathered batch.

        If the result is below the number of batches, the table is full: `take` it, and call again with the result as
        `first`.

        Raises:
            BadBatchError: a batch is corrupt or of an unknown kind; the batches before it were gathered.
        """
        shift = span.start - span.position
        batches = SpanBatches(span.buffer.ctypes.data, shift, span.rows, skip)
        counts = np.zeros(len(span.rows), dtype=np.int64)
        done = first
        try:
            while done < len(span.rows):
                status, at = gather_batches(
                    batches,
                    done,
                    counts,
                    self._records,
                    self._want,
                    bounds,
                    self._arrays,
                )
                done = at
                if status == NEEDS_PAYLOAD:
                    counts[at], status = self._gather_compressed(span, at, shift, bounds)
                    done += status == OK
                if status == NEEDS_RECORD_ROOM:
                    self._grow_records(int(self._arrays.state[RECORDS_NEEDED]))
                elif status == NEEDS_TABLE_ROOM:
                    if len(self):
                        break
                    self._grow_table()
                elif status != OK:
                    raise BadBatchError(at, CorruptBatchError(STATUS_TEXT[status]))
        finally:
            self._headers.append(span.rows[first:done].copy())
            self._counts.append(counts[first:done])
        return done

    def _grow_records(self, count: int) -> None:
        self._records = np.empty((count, RECORD_FIELDS), dtype=np.int64)

    def _grow_table(self) -> None:
        needed = self._arrays.state[NEEDED : NEEDED + USED_REGISTERS].tolist()
        rows, *sizes = (max(pair) for pair in zip(needed, self._arrays.capacities(), strict=True))
        self._arrays = _new_table(rows, tuple(sizes))

    def _gather_compressed(self, span: BatchSpan, index: int, shift: int, bounds: Int64s) -> tuple[int, int]:
        row = span.rows[index]
        at, size_bytes = int(row["position"]) + shift, int(row["size_bytes"])
        try:
            if row["magic"] >= 2:
                buffer, count = self._decompressed(span, row, at, size_bytes), int(row["record_count"])
                records = self._records
            else:
                unwrapped = unwrap(span.buffer[at : at + size_bytes].tobytes(), limit_bytes=MAX_RECORDS_BYTES)
                buffer, records, count = unwrapped.buffer, unwrapped.records, len(unwrapped.records)
                row["base_offset"] = records[0, OFFSET_DELTA]  # the header contains the last offset
        except SedimentError as error:
            raise BadBatchError(index, error) from error
        before = len(self)
        status = gather_records(buffer.ctypes.data, records, count, row, self._want, bounds, self._arrays)
        return len(self) - before, status

    def _decompressed(self, span: BatchSpan, row: np.void, at: int, size_bytes: int) -> ByteArray:
        payload = span.buffer[at + BATCH_HEADER_BYTES : at + size_bytes].data
        content = decompress(int(row["attributes"]) & CODEC_MASK, payload, limit_bytes=MAX_RECORDS_BYTES)
        size = len(content)
        count = int(row["record_count"])
        if count * MIN_RECORD_BYTES > size:
            raise CorruptBatchError("the record count does not fit the batch")
        if count > len(self._records):
            self._grow_records(count)
        buffer = np.empty(size + PADDING_BYTES, dtype=np.uint8)
        buffer[:size] = np.frombuffer(content, dtype=np.uint8)
        buffer[size:] = 0
        status = decode_records(buffer.ctypes.data, 0, size, count, self._records)
        if status != OK:
            raise CorruptBatchError(STATUS_TEXT[status])
        return buffer

    def take(self) -> RecordTable:
        table = self.take_last()
        self._start()
        return table

    def take_last(self) -> RecordTable:
        headers = np.concatenate(self._headers) if self._headers else np.zeros(0, dtype=np.void)
        counts = np.concatenate(self._counts) if self._counts else np.zeros(0, dtype=np.int64)
        return RecordTable(self._arrays, headers, counts)

    def has_batches(self) -> bool:
        return any(map(len, self._headers))


def readable_tables(spans: Iterable[BatchSpan], want: int) -> Iterator[RecordTable]:
    """Yield the records of `spans` as tables of at least one batch; unreadable batches are skipped."""
    columns = RecordColumns(want)
    for span in spans:
        skip = np.zeros(len(span.rows), dtype=np.bool_)
        done = 0
        while done < len(span.rows):
            try:
                done = columns.add(span, done, skip, _EVERYTHING)
            except BadBatchError as bad:
                skip[bad.index] = True
                done = bad.index
            if done < len(span.rows) and len(columns):
                yield columns.take()
    if columns.has_batches():
        yield columns.take_last()


class BadBatchError(Exception):
    def __init__(self, index: int, error: SedimentError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable:
    """`headers` are the BATCH_ROW rows of the batches; `counts` are the numbers of records in each batch."""

    _arrays: TableArrays
    headers: Rows
    counts: Int64s

    def __len__(self) -> int:
        return int(self._arrays.state[ROWS])

    def per_batch(self, name: str) -> npt.NDArray[np.generic]:
        return np.repeat(self.headers[name], self.counts)

    def offsets(self) -> Int64s:
        return self._arrays.longs[OFFSET, : len(self)]

    def timestamps_us(self) -> Int64s:
        return self._arrays.longs[TIMESTAMP_US, : len(self)]

    def sizes(self) -> Int32s:
        """Return int32[records]: the size of each record in bytes, before compression."""
        return self._arrays.ints[SIZE, : len(self)]

    def sequences(self) -> Int32s:
        """Return int32[records]; -1 without a sequence."""
        return self._arrays.ints[SEQUENCE, : len(self)]

    def has_key(self) -> npt.NDArray[np.bool_]:
        return self._arrays.flags[KEY_VALID, : len(self)].astype(np.bool_)

    def has_value(self) -> npt.NDArray[np.bool_]:
        return self._arrays.flags[VALUE_VALID, : len(self)].astype(np.bool_)

    def keys(self) -> pa.Array:
        arrays = self._arrays
        return _binary(arrays.ints[KEY_OFFSETS], arrays.key_data, arrays.flags[KEY_VALID], len(self))

    def values(self) -> pa.Array:
        arrays = self._arrays
        return _binary(arrays.ints[VALUE_OFFSETS], arrays.value_data, arrays.flags[VALUE_VALID], len(self))

    def headers_of_records(self) -> pa.Array:
        """Return list<element: struct<key: string, value: binary>>, null for records without headers.

        Bytes of keys that are not UTF-8 are replaced by the replacement character, as in a Java client.
        """
        import pyarrow as pa

        arrays = self._arrays
        count = int(arrays.state[HEADERS])
        keys = _utf8(arrays.header_ints[HEADER_KEY_OFFSETS], arrays.header_key_data, count)
        values = _binary(arrays.header_ints[HEADER_VALUE_OFFSETS], arrays.header_value_data, arrays.header_flags, count)
        pairs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        kind = pa.list_(pa.field("element", pairs.type))
        missing, bitmap = _bitmap(arrays.flags[HEADERS_VALID], len(self))
        offsets = pa.py_buffer(arrays.ints[HEADER_OFFSETS, : len(self) + 1])
        return pa.Array.from_buffers(kind, len(self), [bitmap, offsets], missing, children=[pairs])


def _binary(offsets: Int32s, data: ByteArray, valid: ByteArray, count: int) -> pa.Array:
    import pyarrow as pa

    missing, bitmap = _bitmap(valid, count)
    buffers = [bitmap, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(data[: offsets[count]])]
    return pa.Array.from_buffers(pa.binary(), count, buffers, missing)


def _bitmap(valid: ByteArray, count: int) -> tuple[int, pa.Buffer | None]:
    import pyarrow as pa

    missing = count - int(valid[:count].sum(dtype=np.int64))
    return missing, pa.py_buffer(np.packbits(valid[:count], bitorder="little")) if missing else None


def _utf8(offsets: Int32s, data: ByteArray, count: int) -> pa.Array:
    import pyarrow as pa

    used = data[: offsets[count]]
    if used.size and used.max() > 127:
        pieces = (used[start:end].tobytes() for start, end in pairwise(offsets[: count + 1].tolist()))
        return pa.array([piece.decode(errors="replace") for piece in pieces], pa.string())
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(used)])
