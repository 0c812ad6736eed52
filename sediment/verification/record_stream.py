"""The second pass over a log: blocks of readable batches and their records, in offset order.

The pass leaves out the batches that the first pass found unreadable.

A log whose batches do not ascend is read in several windows of offsets, each sorted in memory.

Invariants: batches and records of all blocks ascend.  If the batches ascend, memory use is one chunk, one block and the
largest batches; otherwise, memory use is one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_copy
from sediment.segment_io.compiled.status import NEEDS_PAYLOAD, NEEDS_RECORD_ROOM, OK
from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    INT64_MAX,
    INT64_MIN,
    MAGIC_V2,
    MIN_RECORD_BYTES,
)
from sediment.segment_io.format.legacy import unwrap
from sediment.segment_io.format.record_decoder import RECORD_FIELDS, decode_records
from sediment.segment_io.fs import Fs, open_to_read
from sediment.segment_io.segment.columns import MAX_RECORDS_BYTES, SpanBatches
from sediment.segment_io.segment.reader import BatchSpan, Rows, joined
from sediment.segment_io.tables.planning import ScanTask, UnreadableRange
from sediment.segment_io.tables.scan import SHOWN_UNREADABLE_BYTES
from sediment.verification import record_kernels as k
from sediment.verification.header_scan import HeaderFacts, complete_legacy, entry_bytes, spans_of
from sediment.verification.rules import BATCH

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

WINDOW_BYTES = 64 << 20
_RECORDS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Batches, rows of `rules.BATCH`, and their records, int64[n, WALKED_FIELDS]; `buffers` contain the bytes.

    `is_first` is True for batches that no earlier block contained.
    """

    batches: npt.NDArray[np.void]
    records: Int64s
    buffers: list[npt.NDArray[np.uint8]]
    is_first: Mask


@dataclass(slots=True)
class _Room:
    records: Int64s = field(default_factory=lambda: _new_records(_RECORDS_AT_ONCE))

    def grow(self, count: int, filled: int) -> None:
        larger = _new_records(max(filled + count, 2 * len(self.records)))
        larger[:filled] = self.records[:filled]
        self.records = larger


def _new_records(count: int) -> Int64s:
    return np.empty((count, k.WALKED_FIELDS), dtype=np.int64)


_NO_ROOM = _Room(_new_records(0))


@dataclass(frozen=True, slots=True)
class HashSeed:
    seed: int
    secrets: npt.NDArray[np.uint8]


class RecordStream:
    """The blocks of a log, or of its batches with offsets in [`low`, `high`) if the batches ascend.

    After all blocks are read, `corrupt` contains a hash of each unreadable batch.  If a batch is only partly in the
    range, the blocks end before this batch, and `is_cut` is True.
    """

    def __init__(
        self,
        tasks: Sequence[ScanTask],
        facts: HeaderFacts,
        fs: Fs,
        hash_seed: HashSeed | None,
        low: int = INT64_MIN,
        high: int = INT64_MAX,
    ) -> None:
        self._tasks = tasks
        self._facts = facts
        self._fs = fs
        self._hash_seed = hash_seed
        self._low, self._high = low, high
        self._cuts = {low, high} - {INT64_MIN, INT64_MAX}
        self._room = _Room()
        self._wrong = {(batch.segment, batch.position) for batch in facts.unreadable if batch.crc is not None}
        self.corrupt: set[bytes] = set()
        self.is_cut = False

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks; none is empty, and each is valid until the next one."""
        for block in self._unhashed():
            if self._hash_seed is not None:
                k.hash_keys(block.records, len(block.records), self._hash_seed.seed, self._hash_seed.secrets)
            yield block

    def _unhashed(self) -> Iterator[Block]:
        if self._facts.is_ordered():
            for span, segment in self._spans():
                if any(_crosses(span.rows, offset) for offset in self._cuts):
                    self.is_cut = True
                    return
                yield from self._blocks_of(span, segment, self._low, self._high)
            return
        for low, high in self._windows():
            yield from self._window(low, high)

    def _windows(self) -> Iterator[tuple[int, int]]:
        size_bytes = sum(task.slice.size_bytes for task in self._tasks)
        sample = np.sort(np.array(self._facts.sample, dtype=np.int64))
        count = min(size_bytes // WINDOW_BYTES + 1, max(len(sample), 1))
        cuts = np.unique(sample[np.arange(1, count) * len(sample) // count]).tolist() if count > 1 else []
        yield from zip([INT64_MIN, *cuts], [*cuts, INT64_MAX], strict=True)

    def _window(self, low: int, high: int) -> Iterator[Block]:
        parts: list[Block] = []
        for span, segment in self._spans():
            if span.rows["last_offset"].max() < low:
                continue
            for block in self._blocks_of(span, segment, low, high):
                records = block.records.copy()
                records[:, k.BATCH_INDEX] += sum(len(part.batches) for part in parts)
                parts.append(replace(block, records=records))
        if not parts:
            return
        batches = joined([part.batches for part in parts])
        records = np.concatenate([part.records for part in parts])
        records = records[(records[:, k.OFFSET] >= low) & (records[:, k.OFFSET] < high)]
        order = np.argsort(batches["base"], kind="stable")
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        records[:, k.BATCH_INDEX] = places[records[:, k.BATCH_INDEX]]
        yield Block(
            batches[order],
            records[np.argsort(records[:, k.OFFSET], kind="stable")],
            [buffer for part in parts for buffer in part.buffers],
            (batches["base"][order] >= low) & (batches["base"][order] < high),
        )

    def _spans(self) -> Iterator[tuple[BatchSpan, int]]:
        for found in spans_of(self._tasks, self._fs, reuses_buffer=self._facts.is_ordered()):
            if isinstance(found, UnreadableRange):
                self._note_range(found)
            else:
                task, span = found
                yield span, task.slice.segment.base_offset

    def _note_range(self, found: UnreadableRange) -> None:
        with open(open_to_read(found.scan_task.slice.path), "rb") as log:
            log.seek(found.position)
            self._note(log.read(min(found.end_position - found.position, SHOWN_UNREADABLE_BYTES)))

    def _note(self, content: bytes) -> None:
        self.corrupt.add(blake2b(content[:SHOWN_UNREADABLE_BYTES], digest_size=16).digest())

    # ----------------------------------------------------------------------------------------------------- of one span
    def _blocks_of(self, span: BatchSpan, segment: int, low: int, high: int) -> Iterator[Block]:
        rows = self._readable(span, segment)
        is_wrapper = (rows["magic"] < MAGIC_V2) & (rows["attributes"] & CODEC_MASK != 0)
        skip = (rows["last_offset"] < low) | ~is_wrapper & (rows["base_offset"] >= high)
        if skip.all():
            return
        decoded = _Decoded(span, rows, skip)
        first = 0
        while first < len(rows):
            end, filled = decoded.run(first, self._room)
            for index in decoded.take_unreadable():
                self._note(entry_bytes(rows[index], span))
            batches = self._batches(rows, first, end, skip, decoded, segment)
            records = self._room.records[:filled]
            if len(batches):
                if first or skip.any():
                    places = np.cumsum(~skip[first:end]) - 1
                    records[:, k.BATCH_INDEX] = places[records[:, k.BATCH_INDEX] - first]
                buffers = [span.buffer, *decoded.buffers]
                yield Block(batches, _sorted(batches, records), buffers, np.ones(len(batches), dtype=np.bool_))
            first = end

    def _readable(self, span: BatchSpan, segment: int) -> Rows:
        rows = span.rows
        if self._wrong:
            wrong = np.array([(segment, position) in self._wrong for position in rows["position"].tolist()])
            for row in rows[wrong]:
                self._note(entry_bytes(row, span))
            rows = rows[~wrong]
        if len(rows) and rows["magic"].min() < MAGIC_V2:
            completed = complete_legacy(rows, span)
            for row in rows[~np.isin(rows["position"], completed["position"])]:
                self._note(entry_bytes(row, span))
            return completed
        return rows

    def _batches(
        self, rows: Rows, first: int, end: int, skip: Mask, decoded: _Decoded, segment: int
    ) -> npt.NDArray[np.void]:
        batches = np.empty(end - first, dtype=BATCH)
        count = k.describe_batches(rows, first, end, skip, decoded.contents, decoded.unreadable, segment, batches)
        batches, transactions = batches[:count], self._facts.transactions
        if len(transactions.bases):
            batches["marker"], batches["outcome"] = transactions.decisions(batches["base"])
        return batches


def _crosses(rows: Rows, offset: int) -> bool:
    return bool(((rows["base_offset"] < offset) & (rows["last_offset"] >= offset)).any())


def _sorted(batches: npt.NDArray[np.void], records: Int64s) -> Int64s:
    return records[np.argsort(records[:, k.OFFSET], kind="stable")] if batches["descending"].any() else records


class _Decoded:
    def __init__(self, span: BatchSpan, rows: Rows, skip: Mask) -> None:
        self._span = span
        self._rows = rows
        self._room = _NO_ROOM
        self._skip = skip.copy()
        self._counts = np.zeros(len(rows), dtype=np.int64)
        self.contents = np.zeros((len(rows), k.CONTENT_FIELDS), dtype=np.int64)
        self.unreadable = np.zeros(len(rows), dtype=np.bool_)
        self.buffers: list[npt.NDArray[np.uint8]] = []
        self._new: list[int] = []

    def run(self, first: int, room: _Room) -> tuple[int, int]:
        self._room = room
        span, at, filled = self._span, first, 0
        batches = SpanBatches(span.buffer.ctypes.data, span.start - span.position, self._rows, self._skip)
        self.buffers = []
        while True:
            status, at, filled = k.decode_batches(
                batches,
                at,
                self._room.records,
                filled,
                self._counts,
                self.contents,
            )
            if status == OK:
                return at, filled
            if status == NEEDS_RECORD_ROOM:
                if filled:
                    return at, filled
                self._room.grow(int(self._rows[at]["record_count"]), 0)
                continue
            if status == NEEDS_PAYLOAD:
                if filled >= _RECORDS_AT_ONCE:
                    return at, filled
                filled += self._add_compressed(at, filled)
            else:
                self._leave_out(at)
            at += 1

    def take_unreadable(self) -> list[int]:
        found, self._new = self._new, []
        return found

    def _leave_out(self, index: int) -> None:
        self.unreadable[index] = True
        self._new.append(index)

    def _add_compressed(self, index: int, filled: int) -> int:
        row = self._rows[index]
        try:
            if row["magic"] < MAGIC_V2:
                unwrapped = unwrap(entry_bytes(row, self._span), limit_bytes=MAX_RECORDS_BYTES)
                buffer, count = unwrapped.buffer, len(unwrapped.records)
                self._ensure(count, filled)
                self._room.records[filled : filled + count, :RECORD_FIELDS] = unwrapped.records
            else:
                count = int(row["record_count"])
                buffer = self._decompressed(row, count, filled)
        except SedimentError:
            self._leave_out(index)
            return 0
        self.buffers.append(buffer)
        k.complete_records(buffer.ctypes.data, row, index, self._room.records, filled, count, self.contents)
        return count

    def _decompressed(self, row: np.void, count: int, filled: int) -> npt.NDArray[np.uint8]:
        payload = memoryview(entry_bytes(row, self._span))[BATCH_HEADER_BYTES:]
        buffer = padded_copy(decompress(int(row["attributes"]) & CODEC_MASK, payload, limit_bytes=MAX_RECORDS_BYTES))
        size_bytes = buffer.size - PADDING_BYTES
        if count * MIN_RECORD_BYTES > size_bytes:
            raise CorruptBatchError("the record count does not fit the batch")
        self._ensure(count, filled)
        status = decode_records(buffer.ctypes.data, 0, size_bytes, count, self._room.records[filled:])
        if status != OK:
            raise CorruptBatchError(STATUS_TEXT[status])
        return buffer

    def _ensure(self, count: int, filled: int) -> None:
        if filled + count > len(self._room.records):
            self._room.grow(count, filled)


assert RECORD_FIELDS < k.WALKED_FIELDS
assert BATCH_ROW.names is not None
