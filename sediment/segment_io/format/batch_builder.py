"""Building record batches of magic 2 from values, for appends and for rewritten batches.

    records -> one array of numbers, one string of bytes -> kernel -> encoded records -> codec -> header and checksum

Invariant: the offset deltas of a new batch are 0, 1, 2 …; its base timestamp is the timestamp of its first record.

Source: kafka-log 01 §3, §4.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import copy_bytes, store_i8
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.batch_rebuild import varlong_bytes, write_varlong
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    CODEC_NONE,
    CONTROL_BIT,
    INT32_MAX,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

Headers = tuple[tuple[bytes, bytes | None], ...]

# Length, attributes, timestamp delta, offset delta, key length, value length, header count
_MOST_FIXED_BYTES = 1 + MAX_VARLONG_BYTES + 5 * MAX_VARINT_BYTES
_NULL_BYTES = -1


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written; a null key or value is None, and headers are pairs (key, value or None)."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordContent(Protocol):
    """The fields of a record that a batch stores; the offset is not among them.

    `NewRecord` and records that were read have these fields.
    """

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970; -1 means no timestamp."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Headers: ...


@dataclass(frozen=True, slots=True)
class BatchHead:
    """The fields in the header of a batch whose values cannot be derived from its records."""

    base_offset: int = 0
    leader_epoch: int = NO_LEADER_EPOCH
    codec: int = CODEC_NONE
    level: int | None = None
    append_time_ms: int | None = None
    """The time of a LogAppendTime batch.  None means CreateTime."""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False


def build_batch(records: Sequence[RecordContent], head: BatchHead | None = None) -> bytes:
    """Return one batch of `records`, which must not be empty."""
    timestamps = [record.timestamp_ms for record in records]
    payload = encode_records(records)
    return batch_of(payload, len(records), timestamps[0], max(timestamps), head or BatchHead())


def check_timestamps(records: Sequence[RecordContent]) -> None:
    """Refuse a timestamp below -1, as Kafka's MemoryRecordsBuilder does (kafka-log 01 §3.2)."""
    try:
        refused = next((record.timestamp_ms for record in records if record.timestamp_ms < NO_TIMESTAMP), None)
    except TypeError:
        return  # `build_batch` refuses a timestamp that is not a number
    if refused is not None:
        raise UsageError(
            f"the timestamp of a record is {refused}",
            advice=f"give milliseconds since 1970, or {NO_TIMESTAMP} for none",
        )


def encode_records(records: Sequence[RecordContent]) -> Buffer:
    headers = [record.headers for record in records]
    contents = [record.key for record in records]
    contents += [record.value for record in records]
    try:
        contents += [content for pairs in headers for key, value in pairs for content in (key, value)]
        numbers = array("q", [record.timestamp_ms for record in records])
        numbers.extend(map(len, headers))
        numbers.extend([_NULL_BYTES if content is None else len(content) for content in contents])
        # Null and empty fields take no bytes.
        joined = b"".join(filter(None, contents))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"a record cannot be encoded: {error}", advice="give bytes or None, and timestamps in the range of int64"
        ) from error
    target = np.empty(_most_bytes(len(records), len(contents), len(joined)), dtype=np.uint8)
    fields = np.frombuffer(numbers, dtype=np.int64)
    source = np.frombuffer(joined, dtype=np.uint8)
    size_bytes = _write_records(fields, len(records), source.ctypes.data, source.size, target.ctypes.data)
    if size_bytes < 0:
        raise UsageError("a record header has no key, or a key or value is not bytes", advice="give bytes or None")
    return target[:size_bytes].data


def _most_bytes(records: int, contents: int, content_bytes: int) -> int:
    size_bytes = records * _MOST_FIXED_BYTES + contents * MAX_VARINT_BYTES + content_bytes
    if size_bytes > INT32_MAX:
        raise UsageError(f"a batch may have {INT32_MAX} bytes, not {size_bytes}", advice="build several batches")
    return size_bytes


# ------------------------------------------------------- fields of `count` records, int64[4 * count + 2 * headers]
# timestamps | numbers of headers | bytes of keys | bytes of values | bytes of the key and of the value of each header
_FIELDS_PER_RECORD = 4


@kernel
def _write_records(fields: npt.NDArray[np.int64], count: int, contents: int, content_bytes: int, target: int) -> int:
    """Write `count` records at the address `target`; return the number of bytes, or -1 if sizes are inconsistent.

    `contents` is the address of the bytes of all keys, then of all values, then of the headers.
    """
    first_header = _FIELDS_PER_RECORD * count
    used = 0
    for at in range(2 * count, fields.size):
        used += max(fields[at], 0)
    for at in range(first_header, fields.size, 2):
        if fields[at] < 0:
            return -1
    if used != content_bytes:
        return -1
    key = contents
    value = key
    for at in range(2 * count, 3 * count):
        value += max(fields[at], 0)
    header_content = value
    for at in range(3 * count, first_header):
        header_content += max(fields[at], 0)
    header = first_header
    address = target
    for index in range(count):
        timestamp_delta = fields[index] - fields[0]
        headers = fields[count + index]
        key_bytes = fields[2 * count + index]
        value_bytes = fields[3 * count + index]
        body_bytes = (
            1
            + varlong_bytes(timestamp_delta)
            + varlong_bytes(index)
            + _sized_bytes(key_bytes)
            + _sized_bytes(value_bytes)
            + varlong_bytes(headers)
        )
        for at in range(header, header + 2 * headers):
            body_bytes += _sized_bytes(fields[at])
        address = write_varlong(address, body_bytes)
        store_i8(address, 0)
        address = write_varlong(address + 1, timestamp_delta)
        address = write_varlong(address, index)
        address = _write_sized(address, key, key_bytes)
        key += max(key_bytes, 0)
        address = _write_sized(address, value, value_bytes)
        value += max(value_bytes, 0)
        address = write_varlong(address, headers)
        for at in range(header, header + 2 * headers):
            address = _write_sized(address, header_content, fields[at])
            header_content += max(fields[at], 0)
        header += 2 * headers
    return address - target


@kernel
def _sized_bytes(count: int) -> int:
    return varlong_bytes(count) + max(count, 0)


@kernel
def _write_sized(address: int, content: int, count: int) -> int:
    """Write a length and the `count` bytes at `content` (length -1: null); return the address after these bytes."""
    address = write_varlong(address, count)
    if count > 0:
        copy_bytes(address, content, count)
        address += count
    return address


def batch_of(payload: Buffer, count: int, base_timestamp_ms: int, largest_ms: int, head: BatchHead) -> bytes:
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
    crc = google_crc32c.extend(google_crc32c.value(header[ATTRIBUTES:]), content)
    return b"".join((header[: ATTRIBUTES - 4], crc.to_bytes(4, "big"), header[ATTRIBUTES:], content))
