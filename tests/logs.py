"""Random partition directories, written with the plain Python twin, on which kernels and cleaners are tested.

A log is reproducible from its seed.  It has interleaved idempotent and transactional producers, aborted, committed and
open transactions, tombstones, null keys, headers, sparse offsets, every codec, both timestamp types and an active
segment that may hold the marker which decides earlier data.  Messages of magic 0 and 1 are among it where asked for,
plain and in compressed wrappers, and its segments were then modified at different times.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.twin.batches import Record, RecordHeader, encode_batch, encode_empty_batch, parse_batch
from tests.twin.indexes import build_indexes, encode_transaction_index
from tests.twin.legacy import encode_legacy
from tests.twin.segments import AnyBatch, file_batches
from tests.twin.snapshots import ProducerStates, encode_snapshot

START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class LogShape:
    """Parameters of a random log; probabilities are per batch or per record."""

    batches: int = 60
    most_records: int = 8
    keys: int = 12
    segment_bytes: int = 2500
    codecs: tuple[int, ...] = (0,)
    transactional: float = 0.4
    idempotent: float = 0.2
    tombstones: float = 0.15
    null_keys: float = 0.05
    headers: float = 0.1
    gaps: float = 0.1
    append_time: float = 0.1
    emptied: float = 0.05
    horizons: float = 0.1
    interval_bytes: int = 300
    index_bytes: int = 10 << 20
    magics: tuple[int, ...] = (2,)


class _Writer:
    def __init__(self, seed: int, shape: LogShape) -> None:
        self.random = random.Random(seed)
        self.shape = shape
        self.offset = self.random.choice([0, 0, 1000])
        self.clock = START_MS
        self.open: dict[int, bool] = {}
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def batch(self) -> bytes:
        if self.open and self.chance(0.25):
            return self._marker()
        return self._data()

    def _marker(self) -> bytes:
        producer_id = self.random.choice(list(self.open))
        del self.open[producer_id]
        key = struct.pack(">hh", 0, self.random.choice([0, 1]))
        record = Record(self.offset, self.clock, key, struct.pack(">hi", 0, 7))
        self.offset += 1
        return encode_batch(
            [record],
            base_offset=record.offset,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=self.epochs[producer_id],
            transactional=True,
            control=True,
        )

    def _record(self, index: int) -> Record:
        shape = self.shape
        key = None if self.chance(shape.null_keys) else b"key-%d" % self.random.randrange(shape.keys)
        if key is not None and self.chance(0.02):
            key = b""
        value = None if self.chance(shape.tombstones) else self.random.choice([b"", b"v" * self.random.randrange(90)])
        headers = (RecordHeader(b"h", self.random.choice([None, b"", b"x"])),) if self.chance(shape.headers) else ()
        timestamp = -1 if self.chance(0.03) else self.clock + self.random.randrange(-200, 200)
        return Record(self.offset + index, timestamp, key, value, headers)

    def _data(self) -> bytes:
        shape = self.shape
        if self.chance(shape.gaps):
            self.offset += self.random.randrange(1, 40)
        records = []
        index = 0
        for _ in range(self.random.randint(1, shape.most_records)):
            records.append(self._record(index))
            index += 1 if not self.chance(shape.gaps) else self.random.randrange(1, 5)
        last = records[-1].offset + (self.random.randrange(4) if self.chance(shape.gaps) else 0)
        self.clock += self.random.randrange(1000)
        magic = 2 if shape.magics == (2,) else self.random.choice(shape.magics)
        if magic < 2:
            return self._legacy(records, magic)
        fields = self._producer(last - self.offset + 1)
        horizon = self.clock + self.random.randrange(-5000, 60_000) if self.chance(shape.horizons) else None
        data = encode_batch(
            records,
            base_offset=self.offset,
            last_offset=last,
            leader_epoch=0,
            codec=self.random.choice(shape.codecs),
            append_time=self.clock if self.chance(shape.append_time) else None,
            delete_horizon_ms=horizon,
            **fields,
        )
        if self.chance(shape.emptied):
            data = encode_empty_batch(parse_batch(data))
        self.offset = last + 1
        return data

    def _legacy(self, records: list[Record], magic: int) -> bytes:
        """Return a compressed wrapper, or as many plain messages as there are records."""
        codec = self.random.choice([codec for codec in self.shape.codecs if codec < 4])
        plain = [Record(r.offset, r.timestamp if magic else -1, r.key, r.value) for r in records]
        append_time = self.clock if magic and self.chance(self.shape.append_time) else None
        self.offset = plain[-1].offset + 1
        return encode_legacy(plain, magic=magic, codec=codec, append_time=append_time)

    def _producer(self, span: int) -> dict[str, int | bool]:
        transactional = self.chance(self.shape.transactional)
        if not transactional and not self.chance(self.shape.idempotent):
            return {}
        producer_id = self.random.choice([11, 12, 13] if transactional else [21, 22])
        if transactional:
            self.open[producer_id] = True
        if producer_id not in self.epochs or (producer_id not in self.open and self.chance(0.1)):
            self.epochs[producer_id] = self.epochs.get(producer_id, -1) + 1
            self.sequences[producer_id] = 0
        sequence = self.sequences[producer_id]
        self.sequences[producer_id] = sequence + span
        return {
            "producer_id": producer_id,
            "producer_epoch": self.epochs[producer_id],
            "base_sequence": sequence,
            "transactional": transactional,
        }


def write_random_log(directory: Path, seed: int, shape: LogShape | None = None) -> int:
    """Write a partition directory; returns its log end offset."""
    shape = shape or LogShape()
    writer = _Writer(seed, shape)
    directory.mkdir(parents=True)
    segments: list[tuple[int, list[AnyBatch]]] = [(writer.offset, [])]
    for _ in range(shape.batches):
        for _, batch in file_batches(writer.batch()):
            base, batches = segments[-1]
            if batches and sum(len(b.data) for b in batches) + len(batch.data) > shape.segment_bytes:
                segments.append((batch.base_offset, []))
            segments[-1][1].append(batch)
    if writer.chance(0.3):
        segments.append((writer.offset, []))
    states = ProducerStates()
    for base, batches in segments:
        (directory / f"{base:020d}.snapshot").write_bytes(encode_snapshot(states.entries))
        write_segment(directory, base, batches, states, shape)
        if shape.magics != (2,):
            modified_ns = (START_MS + writer.random.randrange(-100_000, 200_000)) * 1_000_000
            os.utime(directory / f"{base:020d}.log", ns=(modified_ns, modified_ns))
    (directory / f"{writer.offset:020d}.snapshot").write_bytes(encode_snapshot(states.entries))
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return writer.offset


def write_segment(
    directory: Path, base: int, batches: Sequence[AnyBatch], states: ProducerStates, shape: LogShape
) -> None:
    """Write one segment with its indexes, folding its batches into `states`."""
    aborted = []
    for batch in batches:
        completed = states.fold(batch)
        if completed is not None and completed.is_aborted:
            aborted.append(states.aborted(completed))
    offset_index, time_index = build_indexes(
        batches, base, interval_bytes=shape.interval_bytes, max_index_bytes=shape.index_bytes
    )
    stem = f"{base:020d}"
    (directory / f"{stem}.log").write_bytes(b"".join(batch.data for batch in batches))
    (directory / f"{stem}.index").write_bytes(offset_index)
    (directory / f"{stem}.timeindex").write_bytes(time_index)
    if aborted:
        (directory / f"{stem}.txnindex").write_bytes(encode_transaction_index(aborted))
