"""Message sets of magic 0 and 1 (kafka-log 01 §5): decode, compressed wrappers included, and encode for tests.

A `LegacyBatch` is one entry of a log: a single record, or a wrapper around compressed ones.  It answers what a batch of
magic 2 answers, with Kafka's defaults for the fields that the old formats lack.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.twin import framing
from tests.twin.batches import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP_TYPE,
    ControlType,
    Record,
)
from tests.twin.errors import CorruptRecordError, InvalidRecordError
from tests.twin.varints import wrap

MIN_RECORD_BYTES = 14
_CRC_START = LOG_OVERHEAD_BYTES + 4


@dataclass(frozen=True, slots=True)
class LegacyBatch:
    """One entry of magic 0 or 1: `offset` is its record's, or the last inner record's; all its bytes are in `data`."""

    data: bytes
    offset: int
    magic: int
    crc: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    leader_epoch = -1
    producer_id = -1
    producer_epoch = -1
    base_sequence = -1
    last_sequence = -1
    is_transactional = False
    is_control = False
    delete_horizon_ms = None

    @property
    def base_offset(self) -> int:
        return self.records()[0].offset

    @property
    def last_offset(self) -> int:
        return self.offset

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def max_timestamp(self) -> int:
        return self.timestamp

    @property
    def timestamp_type(self) -> str:
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else CREATE_TIME

    @property
    def count(self) -> int:
        return len(self.records())

    def control_type(self) -> ControlType | None:
        """Control batches exist in magic 2 only."""
        raise InvalidRecordError("a legacy batch is no control batch")

    def sequence_of(self, record: Record) -> int:
        """Legacy records have no sequence."""
        return -1

    def is_valid(self) -> bool:
        """Return True if the entry is long enough and its own checksum right; inner checksums are not looked at."""
        return (
            len(self.data) >= LOG_OVERHEAD_BYTES + MIN_RECORD_BYTES and zlib.crc32(self.data[_CRC_START:]) == self.crc
        )

    def records(self) -> tuple[Record, ...]:
        """Return the record, or those inside of a wrapper.

        Raises:
            InvalidRecordError: the wrapper contradicts what it holds (01 §5.1).
            CorruptRecordError: an inner size below 14, or a stream that cannot be decompressed.
        """
        if self.codec == framing.NONE:
            return (Record(self.offset, self.timestamp, self.key, self.value),)
        if self.codec == framing.ZSTD:
            raise InvalidRecordError("zstd in a batch of magic 0 or 1")
        if self.value is None:
            raise InvalidRecordError("a compressed wrapper without a value")
        inner = _inner_entries(framing.decompress(self.codec, self.value, magic=self.magic))
        if not inner:
            raise InvalidRecordError("a compressed wrapper without records")
        if any(entry.codec != framing.NONE for entry in inner):
            raise InvalidRecordError("inner messages must not be compressed")
        base = 0
        if self.magic > 0 and self.offset != 0:
            base = self.offset - inner[-1].offset
            if not 0 <= base < 1 << 63:
                raise InvalidRecordError(f"wrapper offset {self.offset} below inner offset {inner[-1].offset}")
        append_time = self.timestamp_type == LOG_APPEND_TIME
        return tuple(
            Record(
                wrap(base + entry.offset, 64),
                self.timestamp if append_time and entry.magic > 0 else entry.timestamp,
                entry.key,
                entry.value,
            )
            for entry in inner
        )


def _inner_entries(data: bytes) -> list[LegacyBatch]:
    """Return the entries of a decompressed wrapper; an incomplete last one is ignored."""
    entries = []
    position = 0
    while position + LOG_OVERHEAD_BYTES <= len(data):
        (size,) = struct.unpack_from(">i", data, position + 8)
        if size < MIN_RECORD_BYTES:
            raise CorruptRecordError(f"inner record of {size} bytes")
        end = position + LOG_OVERHEAD_BYTES + size
        if end > len(data):
            break
        entries.append(parse_legacy_batch(data[position:end]))
        position = end
    return entries


def parse_legacy_batch(data: bytes) -> LegacyBatch:
    """Return the entry that `data` holds from first to last byte.

    Raises:
        InvalidRecordError: key or value reach beyond it.
    """
    offset, _size, crc, magic, attributes = struct.unpack_from(">qiIbb", data)
    at = LOG_OVERHEAD_BYTES + 6
    timestamp = -1
    if magic > 0:
        (timestamp,) = struct.unpack_from(">q", data, at)
        at += 8
    key, at = _bytes_at(data, at)
    value, at = _bytes_at(data, at)
    return LegacyBatch(data, offset, magic, crc, attributes, timestamp, key, value)


def _bytes_at(data: bytes, position: int) -> tuple[bytes | None, int]:
    if position + 4 > len(data):
        raise InvalidRecordError("a legacy record ends inside a length")
    (size,) = struct.unpack_from(">i", data, position)
    start = position + 4
    if size < 0:
        return None, start
    if start + size > len(data):
        raise InvalidRecordError(f"a legacy record's field of {size} bytes reaches beyond it")
    return data[start : start + size], start + size


# --------------------------------------------------------------------------------------------------------------- encode
def encode_legacy_record(record: Record, *, magic: int, attributes: int = 0) -> bytes:
    """Return one entry, uncompressed unless `attributes` says that its value is a compressed stream."""
    body = struct.pack(">bb", magic, attributes)
    if magic > 0:
        body += struct.pack(">q", record.timestamp)
    for field in (record.key, record.value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", record.offset, len(body) + 4, zlib.crc32(body)) + body


def encode_legacy(
    records: Sequence[Record], *, magic: int, codec: int = framing.NONE, append_time: int | None = None
) -> bytes:
    """Entries of `records`, or one compressed wrapper around them.

    With `append_time` (magic 1) the entries, or the wrapper, are of LogAppendTime and carry it.
    """
    bit = 0 if append_time is None else LOG_APPEND_TIME_BIT

    def stamped(record: Record, timestamp: int | None) -> Record:
        return record if timestamp is None else Record(record.offset, timestamp, record.key, record.value)

    if codec == framing.NONE:
        return b"".join(
            encode_legacy_record(stamped(record, append_time), magic=magic, attributes=bit) for record in records
        )
    base = records[0].offset if magic > 0 else 0
    inner = b"".join(
        encode_legacy_record(Record(record.offset - base, record.timestamp, record.key, record.value), magic=magic)
        for record in records
    )
    timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    wrapper = Record(records[-1].offset, timestamp, None, framing.compress(codec, inner, magic=magic))
    return encode_legacy_record(wrapper, magic=magic, attributes=codec | bit)
