"""Mutated batches through the decoders written in Python, compared with the plain twin.

For any bytes a decoder returns records or raises a SedimentError.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sediment.engine.live.log.append_analysis import AppendBuffers, read_batches
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.engine.live.log.validation import validate_batches
from sediment.engine.log_config import LogConfig
from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.batch_headers import BATCH_ROW, read_headers
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.upgrade import upgrade_wrapper
from sediment.segment_io.internal_topics.coordinator_records import (
    COORDINATOR_TOPICS,
    decode_control_record,
    decode_coordinator_record,
)
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record
from sediment.segment_io.partition.producer_state import ProducerState, replay
from sediment.segment_io.segment.columns import (
    BOUND_FIELDS,
    WANT_HEADERS,
    WANT_KEY,
    WANT_VALUE,
    BadBatchError,
    RecordColumns,
)
from sediment.segment_io.segment.reader import BatchSpan
from tests.twin import framing
from tests.twin.batches import Batch, Record, sign_batch
from tests.twin.errors import TwinError
from tests.twin.legacy import encode_legacy_record
from tests.twin.segments import file_batches

NOW_MS = 1_700_000_000_000
_ORIGINS = (AppendOrigin.CLIENT, AppendOrigin.REPLICATION, AppendOrigin.COORDINATOR)
_BOUNDS = np.array([-INT64_MAX - 1, INT64_MAX, -INT64_MAX - 1, INT64_MAX], dtype=np.int64)
assert _BOUNDS.size == BOUND_FIELDS


class DisagreementError(AssertionError):
    """A decoder and the twin disagree."""


class PythonDecoders:
    """The decoders; each batch is written to `note` before it is decoded, and `outcomes` counts the results."""

    def __init__(self, seed: int, note: Path) -> None:
        self._random = random.Random(seed)
        self._note = note
        self._buffers = AppendBuffers()
        self.outcomes: Counter[str] = Counter()
        self.fed = 0
        self.compared = 0

    def feed(self, batches: Sequence[bytes], count: int) -> None:
        """Decode `count` of `batches`: as they are, compressed, or wrapped."""
        if not batches:
            return
        for _ in range(count):
            data = self._random.choice(batches)
            kind = self._random.randrange(3)
            if kind == 1 and data[16] == 2 and not data[22] & 7:
                data = self.compressed(data)
            elif kind == 2 and data[16] < 2:
                data = self.wrapped(data)
            self._note.write_bytes(data)
            self.one(data)
            self.fed += 1
        self._note.unlink(missing_ok=True)

    def compressed(self, data: bytes) -> bytes:
        """Return the batch with its records compressed by a random codec; the stream may be corrupt too."""
        codec = self._random.randrange(1, 5)
        stream = self._corrupted(framing.compress(codec, data[61:]))
        head = bytearray(data[:61])
        head[22] = head[22] & 0xF8 | codec
        struct.pack_into(">i", head, 8, 49 + len(stream))
        return sign_batch(bytes(head) + stream)

    def wrapped(self, data: bytes) -> bytes:
        """Return a wrapper around the message."""
        magic, codec = data[16], self._random.randrange(1, 4)
        stream = self._corrupted(framing.compress(codec, data * self._random.randrange(1, 4), magic=magic))
        offset = self._random.choice([0, 1, 5, 1 << 40, -1, INT64_MAX])
        return encode_legacy_record(Record(offset, 5, None, stream), magic=magic, attributes=codec)

    def _corrupted(self, stream: bytes) -> bytes:
        changed = bytearray(stream)
        for _ in range(self._random.choice([0, 0, 1, 3])):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        if self._random.randrange(8) == 0:
            del changed[self._random.randrange(len(changed)) :]
        return bytes(changed)

    def one(self, data: bytes) -> None:
        """Run every decoder on one batch."""
        rows, ours = self._read(data)
        for row in rows:
            self._fold(row)
        self._append(data)
        self._values(ours)
        if data[16] < 2 and len(data) >= 26:
            self._guarded("upgrade", lambda: upgrade_wrapper(data, limit_bytes=1 << 24))
        self._compare(data, ours)

    def _guarded(self, what: str, call: Any) -> Any:
        try:
            result = call()
        except SedimentError as error:
            self.outcomes[f"{what}: {type(error).__name__}"] += 1
            return None
        self.outcomes[f"{what}: ok"] += 1
        return result

    def _read(self, data: bytes) -> tuple[np.ndarray, list[tuple[Any, ...]] | None]:
        """Return the header rows, and the records as (offset, key, value, headers) or None if they cannot be read."""
        buffer = padded_buffer(len(data))
        buffer[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        rows = np.zeros(1, dtype=BATCH_ROW)
        _, count, end, _ = read_headers(buffer.ctypes.data, 0, len(data), 0, rows)
        rows = rows[:count]
        if not count:
            return rows, None
        columns = RecordColumns(WANT_KEY | WANT_VALUE | WANT_HEADERS)
        try:
            columns.add(BatchSpan(buffer, 0, end, 0, rows), 0, np.zeros(1, dtype=np.bool_), _BOUNDS)
        except BadBatchError as bad:
            self.outcomes[f"columns: {type(bad.error).__name__}"] += 1
            return rows, None
        self.outcomes["columns: ok"] += 1
        table = columns.take()
        for array in (table.keys(), table.values(), table.headers_of_records()):
            array.validate(full=True)
        headers = [
            tuple((pair["key"], pair["value"]) for pair in pairs or ())
            for pairs in table.headers_of_records().to_pylist()
        ]
        keys, values = table.keys().to_pylist(), table.values().to_pylist()
        return rows, list(zip(table.offsets().tolist(), keys, values, headers, strict=True))

    def _fold(self, row: np.void) -> None:
        if row["producer_id"] >= 0:
            self._guarded("producers", lambda: replay(ProducerState.at(0), np.array([row], dtype=BATCH_ROW)))

    def _append(self, data: bytes) -> None:
        """Validate the batch as an append to a live log."""
        for origin in _ORIGINS:
            batches = self._guarded(
                "append",
                lambda origin=origin: read_batches(
                    data, self._buffers, origin=origin, leader_epoch=3, max_message_bytes=1 << 20
                ),
            )
            if batches is not None and len(batches.rows) and origin is not AppendOrigin.REPLICATION:
                self._guarded(
                    "validate",
                    lambda batches=batches, origin=origin: validate_batches(
                        batches, self._buffers, LogConfig(), origin=origin, now_ms=NOW_MS
                    ).assigned(first_offset=10, leader_epoch=3, now_ms=NOW_MS),
                )

    def _values(self, records: list[tuple[Any, ...]] | None) -> None:
        for _, key, value, _ in (records or ())[:4]:
            decode_control_record(key, value)
            for topic in COORDINATOR_TOPICS:
                decode_coordinator_record(topic, key, value)
            self._guarded("metadata", lambda value=value: decode_metadata_record(value))

    def _compare(self, data: bytes, ours: list[tuple[Any, ...]] | None) -> None:
        """Compare with the twin, which must read the same but refuses less."""
        try:
            _, batch = next(file_batches(data), (0, None))
            theirs = batch.records() if batch is not None and batch.is_valid() else None
        except (TwinError, struct.error):
            theirs = None
        self.compared += 1
        if theirs is None and ours is None:
            return
        if ours is None:
            if not _refused_on_purpose(batch):
                raise DisagreementError(f"the twin reads what we refuse: {theirs}")
            return
        if theirs is None:
            if batch is not None and batch.codec:
                return  # Kafka tolerates what may follow a stream, and the twin does not
            raise DisagreementError(f"we read what the twin refuses: {ours}")
        expected = [
            (r.offset, r.key, r.value, tuple((h.key.decode(errors="replace"), h.value) for h in r.headers))
            for r in theirs
        ]
        if ours != expected:
            raise DisagreementError(f"we read {ours}\nthe twin {expected}")


def _refused_on_purpose(batch: Any) -> bool:
    """Return True for a batch that only the reader of headers refuses; Kafka's reader of records does not check it."""
    if not isinstance(batch, Batch):
        return bool(batch.codec)  # a wrapper may hold entries of a magic that Kafka takes for one of its own
    return batch.last_offset_delta < 0 or batch.magic != 2 or batch.is_control
