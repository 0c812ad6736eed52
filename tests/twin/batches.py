"""Record batches of magic 2 and their records (kafka-log 01 §3, §4): decode with the checks of Kafka's reader, encode.

A `Batch` keeps its bytes; `records()` decodes them anew at each call.  CRCs are checked only by `is_valid()`, because
neither Kafka's reader of records nor its cleaner looks at them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import google_crc32c

from tests.twin import framing
from tests.twin.errors import CorruptRecordError, InvalidRecordError
from tests.twin.varints import decode_varint, decode_varlong, encode_varint, encode_varlong, wrap

LOG_OVERHEAD_BYTES = 12
HEADER_BYTES = 61
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_POSITION = 17
_CRC_START = 21

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
NO_TIMESTAMP_TYPE = "NoTimestampType"


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A header of a record; the key is UTF-8 and kept as bytes."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Record:
    """A record with its absolute offset and its timestamp in ms; a None key or value is null, b"" is not."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...] = ()


class ControlType(IntEnum):
    """The type in the key of a control record (01 §4)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


def crc32c_of(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`."""
    return int(google_crc32c.value(bytes(data)))


def increment_sequence(sequence: int, delta: int) -> int:
    """`sequence` + `delta`, wrapping to 0 after 2^31 - 1 (01 §3.3)."""
    return delta - (INT32_MAX - sequence) - 1 if sequence > INT32_MAX - delta else sequence + delta


def decrement_sequence(sequence: int, delta: int) -> int:
    """`sequence` - `delta`, wrapping to 2^31 - 1 below 0 (01 §3.3)."""
    return INT32_MAX - (delta - sequence) + 1 if sequence < delta else sequence - delta


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of magic 2: the fields of its header, and all its bytes in `data`."""

    data: bytes
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> str:
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        return -1 if self.base_sequence < 0 else increment_sequence(self.base_sequence, self.last_offset_delta)

    def sequence_of(self, record: Record) -> int:
        """Sequence of one of the batch's records, -1 where the batch has none."""
        return (
            -1 if self.base_sequence < 0 else increment_sequence(self.base_sequence, record.offset - self.base_offset)
        )

    def is_valid(self) -> bool:
        """Return True if the batch is long enough and its checksum right."""
        return len(self.data) >= HEADER_BYTES and crc32c_of(self.data[_CRC_START:]) == self.crc

    def records(self) -> tuple[Record, ...]:
        """Return the records, decoded with the checks of 01 §3.4.

        Raises:
            InvalidRecordError: a count or a record contradicts the bytes.
            CorruptRecordError, UnsupportedCodecError: the payload cannot be decompressed.
        """
        if self.count < 0:
            raise InvalidRecordError(f"record count {self.count} of the batch at offset {self.base_offset}")
        if self.count == 0:
            return ()
        payload = framing.decompress(self.codec, self.data[HEADER_BYTES:])
        append_time = self.max_timestamp if self.attributes & LOG_APPEND_TIME_BIT else None
        records = []
        position = 0
        for _ in range(self.count):
            record, position = decode_record(payload, position, self.base_offset, self.base_timestamp, append_time)
            records.append(record)
        if position != len(payload):
            raise InvalidRecordError(f"records still remaining after the {self.count} of the batch")
        return tuple(records)

    def control_type(self) -> ControlType | None:
        """Return the type of the first control record, None for a control batch that compaction emptied."""
        records = self.records()
        return parse_control_key(records[0].key) if records else None


def parse_batch(data: bytes) -> Batch:
    """Return the batch that `data` holds from first to last byte; only its framing is checked."""
    if len(data) < HEADER_BYTES:
        raise CorruptRecordError(f"a batch of {len(data)} bytes is shorter than its header")
    base_offset, length, *rest = _HEADER.unpack_from(data)
    if length != len(data) - LOG_OVERHEAD_BYTES:
        raise CorruptRecordError(f"batch length {length} in {len(data)} bytes")
    return Batch(data, base_offset, length, *rest)


def decode_record(
    data: bytes, position: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, int]:
    """Return (the record at `position`, position after it); `append_time` replaces the record's own timestamp.

    Raises:
        InvalidRecordError: by the reader's checks of 01 §3.4.
    """
    size, start = decode_varint(data, position)
    if size < 0 or size > len(data) - start:
        raise InvalidRecordError(f"record body of {size} bytes where {len(data) - start} are left")
    if size == 0:
        raise InvalidRecordError("record body of 0 bytes")
    end = start + size
    timestamp_delta, at = decode_varlong(data, start + 1)
    offset_delta, at = decode_varint(data, at)
    key, at = _decode_bytes(data, at)
    value, at = _decode_bytes(data, at)
    header_count, at = decode_varint(data, at)
    if header_count < 0 or header_count > len(data) - at:
        raise InvalidRecordError(f"{header_count} headers where {len(data) - at} bytes are left")
    headers = []
    for _ in range(header_count):
        header_key, at = _decode_bytes(data, at)
        if header_key is None:
            raise InvalidRecordError("a header's key is null")
        header_value, at = _decode_bytes(data, at)
        headers.append(RecordHeader(header_key, header_value))
    if at != end:
        raise InvalidRecordError(f"record of {size} bytes took {at - start}")
    timestamp = wrap(base_timestamp + timestamp_delta, 64) if append_time is None else append_time
    return Record(wrap(base_offset + offset_delta, 64), timestamp, key, value, tuple(headers)), end


def _decode_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, start = decode_varint(data, position)
    if size < 0:
        return None, start
    if size > len(data) - start:
        raise InvalidRecordError(f"premature end of data: {size} bytes where {len(data) - start} are left")
    return data[start : start + size], start + size


def parse_control_key(key: bytes | None) -> ControlType:
    """Return the type of a control record; versions above 0 and extra bytes are tolerated.

    Raises:
        InvalidRecordError: no key, a key below 4 bytes, a negative version.
    """
    if key is None or len(key) < 4:
        raise InvalidRecordError("a control record's key is shorter than 4 bytes")
    version, type_id = struct.unpack_from(">hh", key)
    if version < 0:
        raise InvalidRecordError(f"control record key of version {version}")
    return ControlType(type_id) if type_id in list(ControlType) else ControlType.UNKNOWN


def parse_end_transaction_marker(value: bytes | None) -> int:
    """Return the coordinator epoch of an ABORT or COMMIT marker.

    Raises:
        InvalidRecordError: no value, fewer than 6 bytes, a negative version.
    """
    if value is None or len(value) < 6:
        raise InvalidRecordError("an end transaction marker is shorter than 6 bytes")
    version, coordinator_epoch = struct.unpack_from(">hi", value)
    if version < 0:
        raise InvalidRecordError(f"end transaction marker of version {version}")
    return int(coordinator_epoch)


# --------------------------------------------------------------------------------------------------------------- encode
def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Return the record as it stands in a batch, its length first."""
    body = bytearray(b"\x00")
    body += encode_varlong(wrap(record.timestamp - base_timestamp, 64))
    body += encode_varint(record.offset - base_offset)
    body += _encode_bytes(record.key) + _encode_bytes(record.value)
    body += encode_varint(len(record.headers))
    for header in record.headers:
        body += _encode_bytes(header.key) + _encode_bytes(header.value)
    return encode_varint(len(body)) + bytes(body)


def _encode_bytes(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    codec: int = framing.NONE,
    append_time: int | None = None,
    delete_horizon_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Return a batch of at least one record, as Kafka's builder writes it.

    Deltas are relative to `delete_horizon_ms`, else to the first record's timestamp.  `append_time` makes the batch one
    of LogAppendTime; it is its maxTimestamp.  `last_offset` defaults to the last record's.
    """
    base_timestamp = records[0].timestamp if delete_horizon_ms is None else delete_horizon_ms
    max_timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    payload = b"".join(encode_record(record, base_offset, base_timestamp) for record in records)
    attributes = (
        codec
        | (LOG_APPEND_TIME_BIT if append_time is not None else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    return assemble_batch(
        framing.compress(codec, payload),
        base_offset=base_offset,
        last_offset=records[-1].offset if last_offset is None else last_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )


def encode_empty_batch(batch: Batch) -> bytes:
    """Return the header that stays of a batch without records: no codec, no horizon, baseTimestamp -1 (§3.2)."""
    return assemble_batch(
        b"",
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        attributes=batch.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
        base_timestamp=-1,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        count=0,
    )


def assemble_batch(
    payload: bytes,
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """Header fields as given, over `payload` as given, with the right length and checksum; for damaged batches too."""
    header = _HEADER.pack(
        base_offset,
        HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload),
        leader_epoch,
        2,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return sign_batch(header + payload)


def sign_batch(data: bytes) -> bytes:
    """Return the same batch with a right checksum."""
    return data[:_CRC_POSITION] + struct.pack(">I", crc32c_of(data[_CRC_START:])) + data[_CRC_START:]


def encode_marker(
    control_type: ControlType,
    *,
    offset: int,
    timestamp: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> bytes:
    """Return a transaction marker: a control batch of one record, 78 bytes (§4)."""
    key = struct.pack(">hh", 0, control_type)
    value = struct.pack(">hi", 0, coordinator_epoch)
    return encode_batch(
        [Record(offset, timestamp, key, value)],
        base_offset=offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
