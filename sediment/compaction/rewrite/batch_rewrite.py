"""One batch of which some records are dropped, become tombstones, or get another key or value.

1. Convert a message of magic 0 or 1 to a batch of magic 2, as the cleaner does (kafka-log 02 §6.4).
2. Decompress and decode its records, and find their verdicts.
3. Write the records that stay, with their edits, and compress them with the batch's own codec.
4. Write the header.

    field                                               after a rewrite
    offsets, leader epoch, producer, sequence, flags    unchanged
    base timestamp, max timestamp                       as in a cleaning: from the records that stay
    delete horizon                                      unchanged; none if the batch got a new tombstone
    record count, length, CRC                           recomputed

A batch with a new tombstone loses its delete horizon, so the next cleaning gives it a new one.  With its old horizon,
the tombstone could be dropped before any consumer has had time to read it.

Invariant: a batch of which no record changes is not rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.compaction.rewrite.verdicts import Action, ByteArray, Int64s, Verdicts
from sediment.segment_io.compiled.status import BAD_RECORD_COUNT, OK
from sediment.segment_io.errors import CorruptBatchError, UsageError
from sediment.segment_io.format import decode
from sediment.segment_io.format.compression.batch_codecs import compress, decompress
from sediment.segment_io.format.decode import (
    BATCH_ROW,
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    PADDING_BYTES,
    RECORD_FIELDS,
    STATUS_TEXT,
    VALUE_BYTES,
    VALUE_START,
    decode_records,
)
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CODEC_NONE,
    DELETE_HORIZON_BIT,
    MAGIC_V2,
    MAX_SEGMENT_BYTES,
    MIN_RECORD_BYTES,
)
from sediment.segment_io.format.padding import padded_copy
from sediment.segment_io.format.rebuild import (
    EDIT_FIELDS,
    NEW_KEY_BYTES,
    NEW_KEY_START,
    NEW_VALUE_BYTES,
    NEW_VALUE_START,
    UNCHANGED,
    edited_bound,
    kept_timestamps,
    write_edited_records,
    write_empty_batch,
    write_header,
)
from sediment.segment_io.format.upgrade import no_wrappers, upgrade_batches, upgrade_wrapper

_NULL = -1


@dataclass(frozen=True, slots=True, eq=False)
class RewrittenBatch:
    """The result for one batch.

    `content`, uint8[n], is the new batch, empty if the batch is dropped, and None if no record changed.  `dropped`,
    `tombstoned` and `replaced` count records.  `found` and `without_key`, int64[], are indexes of the given verdicts.
    `found` are the verdicts that have a record; `without_key` are the verdicts in `found` that would turn a record
    without a key into a tombstone.
    """

    content: ByteArray | None
    dropped: int
    tombstoned: int
    replaced: int
    found: Int64s
    without_key: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A batch of magic 2: its header in `header`, uint8[], and its uncompressed records in `payload`, both padded.

    `payload_bytes` does not count the padding; `first_byte` is the start of the records in `payload`.
    """

    header: ByteArray
    payload: ByteArray
    first_byte: int
    payload_bytes: int
    row: np.void

    @property
    def records_address(self) -> int:
        """Address of the first record."""
        return int(self.payload.ctypes.data) + self.first_byte

    @property
    def codec(self) -> int:
        """Codec of the batch on disk."""
        return int(self.row["attributes"]) & CODEC_MASK


def rewrite_batch(batch: ByteArray, verdicts: Verdicts, *, keeps_header: bool, limit_bytes: int) -> RewrittenBatch:
    """Carry out `verdicts` on `batch`, uint8[n] of one batch of any magic whose checksum was checked.

    A batch that loses all records is written as a batch without records if it `keeps_header`; otherwise it is dropped.
    Compressed records may expand to `limit_bytes`.

    Raises:
        CorruptBatchError: the records cannot be decompressed or decoded.
        UnsupportedDataError: a compressed message of magic 0 or 1 has an unknown codec.
        UsageError: with its replacements, the batch is larger than a segment can be.
    """
    opened = _open(batch, limit_bytes)
    records = _decoded(opened)
    offsets = opened.row["base_offset"] + records[:, OFFSET_DELTA]
    at = np.minimum(np.searchsorted(verdicts.offsets, offsets), len(verdicts) - 1)
    rows = np.flatnonzero(verdicts.offsets[at] == offsets)
    found = at[rows]
    actions = verdicts.actions[found]

    has_no_key = (actions == Action.TOMBSTONE) & (records[rows, KEY_BYTES] < 0)
    tombstoned = (actions == Action.TOMBSTONE) & ~has_no_key & (records[rows, VALUE_BYTES] >= 0)
    differs = [_differs(opened, records[row], verdicts, index) for row, index in zip(rows, found, strict=True)]
    replaced = np.array(differs, dtype=np.bool_)
    dropped = actions == Action.DROP
    edits = np.full((len(records), EDIT_FIELDS), UNCHANGED, dtype=np.int64)
    edits[rows[tombstoned], NEW_VALUE_BYTES] = _NULL
    for action, start, size in (
        (Action.REPLACE_KEY, NEW_KEY_START, NEW_KEY_BYTES),
        (Action.REPLACE_VALUE, NEW_VALUE_START, NEW_VALUE_BYTES),
    ):
        chosen = replaced & (actions == action)
        edits[rows[chosen], start] = verdicts.edges[found[chosen]]
        edits[rows[chosen], size] = verdicts.edges[found[chosen] + 1] - verdicts.edges[found[chosen]]

    content = None
    if tombstoned.any() or replaced.any() or dropped.any():
        kept = np.ones(len(records), dtype=np.bool_)
        kept[rows[dropped]] = False
        if kept.any():
            content = _written(opened, records[kept], edits[kept], verdicts.replacements, bool(tombstoned.any()))
        else:
            content = _emptied(opened) if keeps_header else np.zeros(0, dtype=np.uint8)
    return RewrittenBatch(
        content, int(dropped.sum()), int(tombstoned.sum()), int(replaced.sum()), found, found[has_no_key]
    )


def _differs(batch: _Batch, record: Int64s, verdicts: Verdicts, index: int) -> bool:
    """Return True if a verdict replaces the key or value of a record with other bytes."""
    match verdicts.actions[index]:
        case Action.REPLACE_KEY:
            start, size_bytes = record[KEY_START], record[KEY_BYTES]
        case Action.REPLACE_VALUE:
            start, size_bytes = record[VALUE_START], record[VALUE_BYTES]
        case _:
            return False
    start += batch.first_byte
    if size_bytes != verdicts.edges[index + 1] - verdicts.edges[index]:
        return True
    return batch.payload[start : start + size_bytes].tobytes() != verdicts.replacement(index)


def _open(batch: ByteArray, limit_bytes: int) -> _Batch:
    """Return the batch with its records decompressed, in magic 2."""
    payload: bytes | None = None
    header = padded_copy(batch.data)
    row = _row_of(header, batch.size)
    if row["magic"] < MAGIC_V2:
        wrappers = no_wrappers(1)
        if row["attributes"] & CODEC_MASK:
            upgraded = upgrade_wrapper(batch.tobytes(), limit_bytes=limit_bytes)
            payload, wrappers[0] = upgraded.payload, upgraded.known
        one = np.zeros(1, dtype=np.int64)
        header, _ = upgrade_batches(
            header, batch.size, one, np.array([batch.size], dtype=np.int64), np.zeros(1, dtype=np.bool_), wrappers
        )
        row = _row_of(header, header.size - PADDING_BYTES)
    codec = int(row["attributes"]) & CODEC_MASK
    if codec == CODEC_NONE:
        return _Batch(header, header, BATCH_HEADER_BYTES, int(row["size_bytes"]) - BATCH_HEADER_BYTES, row)
    if payload is None:
        compressed = header[BATCH_HEADER_BYTES : int(row["size_bytes"])].data
        payload = bytes(decompress(codec, compressed, limit_bytes=limit_bytes))
    return _Batch(header, padded_copy(payload), 0, len(payload), row)


def _row_of(header: ByteArray, size_bytes: int) -> np.void:
    rows = np.zeros(1, dtype=BATCH_ROW)
    status, count, _, _ = decode.read_headers(header.ctypes.data, 0, size_bytes, 0, rows)
    if count == 0:
        raise CorruptBatchError(STATUS_TEXT[status])
    found: np.void = rows[0]
    return found


def _decoded(batch: _Batch) -> npt.NDArray[np.int64]:
    """Return the records' rows, int64[records, RECORD_FIELDS]."""
    count = int(batch.row["record_count"])
    if count * MIN_RECORD_BYTES > batch.payload_bytes:
        raise CorruptBatchError(STATUS_TEXT[BAD_RECORD_COUNT])
    records = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
    status = decode_records(batch.records_address, 0, batch.payload_bytes, count, records)
    if status != OK:
        raise CorruptBatchError(STATUS_TEXT[status])
    return records


def _written(
    batch: _Batch, records: npt.NDArray[np.int64], edits: npt.NDArray[np.int64], replacements: ByteArray, forgets: bool
) -> ByteArray:
    """Return the batch of `records` with their `edits`; if `forgets` is set, without its delete horizon."""
    header, count = batch.header.ctypes.data, len(records)
    added = np.maximum(edits[:, [NEW_KEY_BYTES, NEW_VALUE_BYTES]], 0).sum()
    bound = edited_bound(batch.payload_bytes, count, int(added))
    if bound + BATCH_HEADER_BYTES > MAX_SEGMENT_BYTES:
        raise UsageError(
            "a batch with its replacements is larger than a segment can be; replace fewer records or use shorter bytes",
            offset=int(batch.row["base_offset"]),
        )
    has_horizon = bool(batch.row["attributes"] & DELETE_HORIZON_BIT) and not forgets
    base_timestamp, max_timestamp = kept_timestamps(header, records, count)
    if has_horizon:
        base_timestamp = int(batch.row["base_timestamp"])
    target = np.empty(BATCH_HEADER_BYTES + bound, dtype=np.uint8)
    start = target.ctypes.data + BATCH_HEADER_BYTES
    end = write_edited_records(
        start, header, batch.records_address, records, count, edits, replacements.ctypes.data, base_timestamp
    )
    if batch.codec == CODEC_NONE:
        target = target[: BATCH_HEADER_BYTES + end - start]
    else:
        packed = compress(batch.codec, target[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + end - start].data)
        target = np.empty(BATCH_HEADER_BYTES + len(packed), dtype=np.uint8)
        target[BATCH_HEADER_BYTES:] = np.frombuffer(packed, dtype=np.uint8)
    write_header(target.ctypes.data, header, target.size, count, base_timestamp, max_timestamp, has_horizon)
    return target


def _emptied(batch: _Batch) -> ByteArray:
    target = np.empty(BATCH_HEADER_BYTES, dtype=np.uint8)
    write_empty_batch(target.ctypes.data, batch.header.ctypes.data)
    return target
