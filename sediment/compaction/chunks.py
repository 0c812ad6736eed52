"""Segments as chunks: read, checked and decompressed ahead of the sweep, in either direction.

    log       | batch | batch | batch | batch | batch | batch |
    chunks    |        chunk 0        |        chunk 1        |     cut where batches begin, about CHUNK_BYTES each,
                                                                    twice that where nothing is to be decompressed

A thread makes the next chunk ready while the caller works on one.  Where the cuts come from the offset index, the scan
of a chunk finds out whether batches begin there; where they come from a forward walk they are known, and so is a
verdict on each batch, and which bytes are none that can be read.  Messages of magic 0 and 1 come as the batches of
magic 2 that say the same.

Invariants: a chunk holds whole batches whose lengths and checksums were verified; what is read is what was listed.
Memory: two chunks, of messages in both formats, and of each as many records decompressed as _AHEAD_CHUNKS chunks have
bytes.  Most are decompressed by compiled loops, without the interpreter, by the reading thread and one more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels import sweep
from sediment.compaction.kernels.transactions import DISCARD, LEGACY, TOMBSTONES_GO, UNREADABLE
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.status import (
    BAD_LENGTH,
    BAD_RECORD_COUNT,
    CUT_MISSED,
    DONE,
    LEGACY_MET,
    NEEDS_RECORD_ROOM,
    TRANSACTIONS_MET,
)
from sediment.segment_io.errors import CorruptBatchError, SedimentError, SourceChangedError, UnsupportedDataError
from sediment.segment_io.format import decode
from sediment.segment_io.format.codecs import decompress
from sediment.segment_io.format.decompress import NOT_DECOMPRESSED, decompress_batches, find_tools
from sediment.segment_io.format.indexes import AbortedTransaction
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    INT64_MAX,
    LEGACY_ATTRIBUTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    OFFSET_ENTRY_BYTES,
)
from sediment.segment_io.format.layout import FIRST_MAGIC_WITH_PRODUCERS as _MAGIC
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.upgrade import UpgradedWrapper, no_wrappers, upgrade_batches, upgrade_wrapper
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import batch_error, padded_buffer, read_into
from sediment.segment_io.units import NS_PER_MS

CHUNK_BYTES = 2 << 20
_PLAIN_CHUNKS = 2  # of CHUNK_BYTES in one, where the records in it need no room of their own
_LARGEST_INDEX_GAP = 8 * CHUNK_BYTES
_AHEAD_CHUNKS = 8
_FIRST_BATCHES = 4096
_NO_PAYLOADS = np.zeros((0, 2), dtype=np.int64)

ByteArray = npt.NDArray[np.uint8]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ChunkBoundaries:
    """Where the chunks of a segment begin, ascending and ending with its size; `ordinals` are the batches before each.

    `verdicts`, uint8[batches] or empty, and `kept_aborts` come from a forward walk.  `unreadable` are the bytes, from
    and to, that stand as one batch each, of verdict UNREADABLE.
    """

    positions: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int64]
    verdicts: ByteArray
    kept_aborts: tuple[AbortedTransaction, ...]
    unreadable: tuple[tuple[int, int], ...] = ()


class FallbackRequiredError(Exception):
    """The way taken through the partition does not hold; `status` is the sweep's reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole, checked batches of `segment`; `positions` are where they begin in `buffer`.

    `source` holds the `size_bytes` that were read at `position` of the file, and batch n of it begins at `origins`[n].
    `buffer` is the same where there are no messages of magic 0 and 1, else holds what became of them; of a compressed
    one it has the header only.  Records that were decompressed ahead are where `payloads`, int64[batches, 2], says
    (address and bytes, or NOT_DECOMPRESSED; empty where nothing is compressed), else in `decompressed`, by ordinal.
    """

    segment: SegmentRef
    position: int
    size_bytes: int
    source: ByteArray
    origins: npt.NDArray[np.int64]
    buffer: ByteArray
    positions: npt.NDArray[np.int64]
    verdicts: ByteArray
    payloads: npt.NDArray[np.int64]
    decompressed: dict[int, Buffer]

    def source_of(self, ordinal: int) -> ByteArray:
        """The bytes that batch `ordinal` was read from."""
        following = self.origins[ordinal + 1] if ordinal + 1 < self.origins.size else self.size_bytes
        return self.source[self.origins[ordinal] : following]

    def ordinal_at(self, position: int) -> int:
        """Which batch lies at `position` of the buffer."""
        return int(np.searchsorted(self.positions, position, side="right")) - 1

    def payload_at(self, position: int) -> tuple[int, memoryview]:
        """Codec and compressed payload of the batch at `position` of the buffer."""
        view = self.buffer.data
        size_bytes = int.from_bytes(view[position + BATCH_LENGTH : position + BATCH_LENGTH + 4], "big")
        codec = view[position + ATTRIBUTES + 1] & CODEC_MASK
        return codec, view[position + BATCH_HEADER_BYTES : position + LOG_OVERHEAD_BYTES + size_bytes]


class ChunkReader:
    """Reads the segments of one partition; a chunk holds until the one two after it is made ready.

    `every` are all segments of the partition: where the offsets of one end, those of the next begin.
    `decompressed_limit_bytes` bounds the records of one batch.  `legacy_horizon_ms`: the tombstones of magic 0 and 1 of
    segments that were not modified since have expired.
    """

    def __init__(
        self,
        directory: Path,
        every: Sequence[SegmentRef],
        fs: Fs,
        decompressed_limit_bytes: int,
        legacy_horizon_ms: int,
        stack: ExitStack,
    ) -> None:
        self._directory = directory
        self._end_offsets = {segment.base_offset: following.base_offset for segment, following in pairwise(every)}
        self._fs = fs
        self._limit_bytes = decompressed_limit_bytes
        self._legacy_horizon_ms = legacy_horizon_ms
        self._files = SourceFiles(directory, fs, stack)
        self._thread = lazy_pool(stack, "sediment-read")
        self._buffers = [padded_buffer(0), padded_buffer(0)]
        self._positions = [np.zeros(_FIRST_BATCHES, dtype=np.int64) for _ in range(2)]
        self._upgraded_bytes = [0, 0]
        self._areas = [padded_buffer(0), padded_buffer(0)]
        self._area_bytes = [0, 0]
        self._helper = lazy_pool(stack, "sediment-decompress")
        self._tools: tuple[npt.NDArray[np.int64], ...] = ()
        self._living: ByteArray | None = None
        self._records = 0

    def leave_dead_compressed(self, living: ByteArray) -> None:
        """Decompress no batch ahead of which no record lives; `living` is as in `sweep_chunk`."""
        self._living = living

    def size_bytes(self) -> int:
        """Memory of its buffers."""
        read_bytes = sum(buffer.nbytes for buffer in self._buffers)
        positions_bytes = sum(found.nbytes for found in self._positions)
        return read_bytes + positions_bytes + sum(self._upgraded_bytes) + sum(self._area_bytes)

    def chunks(
        self, segments: Sequence[SegmentRef], cuts: dict[int, ChunkBoundaries], *, newest_first: bool
    ) -> Iterator[Chunk]:
        """The chunks of `segments`, each scanned, with the next one being made ready meanwhile."""
        jobs = [
            (segment, which, index)
            for segment in segments
            for which in [cuts.get(segment.base_offset) or self._cuts_from_index(segment)]
            for index in range(which.positions.size - 1)
        ]
        if newest_first:
            jobs.reverse()
        ahead: Future[Chunk] | None = None
        for number, job in enumerate(jobs):
            chunk = ahead.result() if ahead is not None else self._make_ready(*job, number, newest_first)
            ahead = None
            if number + 1 < len(jobs):
                ahead = self._thread().submit(self._make_ready, *jobs[number + 1], number + 1, newest_first)
            yield chunk

    def _make_ready(
        self, segment: SegmentRef, cuts: ChunkBoundaries, index: int, number: int, newest_first: bool
    ) -> Chunk:
        """Read, scan and decompress a chunk; it holds until the chunk two numbers later is made ready."""
        start, end = int(cuts.positions[index]), int(cuts.positions[index + 1])
        chunk, holds_legacy = self._scan(segment, cuts, index, self._read(segment, start, end, number), number)
        self._upgraded_bytes[number % 2] = 0
        if holds_legacy:
            chunk = self._upgrade(chunk, newest_first)
            self._upgraded_bytes[number % 2] = chunk.buffer.nbytes
        return self._decompress_ahead(chunk, number, newest_first)

    def _upgrade(self, chunk: Chunk, newest_first: bool) -> Chunk:
        """The chunk with its messages as batches of magic 2; decompressed are those that are wanted first."""
        starts = chunk.origins
        sizes = np.diff(starts, append=chunk.size_bytes)
        verdicts = chunk.verdicts.copy() if chunk.verdicts.size else np.zeros(starts.size, dtype=np.uint8)
        unreadable = verdicts & UNREADABLE != 0
        is_legacy = (chunk.source[starts + MAGIC] < _MAGIC) & ~unreadable
        has_expired = chunk.segment.mtime_ns // NS_PER_MS <= self._legacy_horizon_ms
        verdicts[is_legacy] |= LEGACY | (TOMBSTONES_GO if has_expired else 0)

        wrapped = np.flatnonzero(is_legacy & (chunk.source[starts + LEGACY_ATTRIBUTES] & CODEC_MASK != 0))
        wrappers = no_wrappers(starts.size)
        payloads: dict[int, Buffer] = {}
        room_bytes = _AHEAD_CHUNKS * CHUNK_BYTES
        for ordinal in map(int, reversed(wrapped) if newest_first else wrapped):
            upgraded = self._unwrapped(chunk, ordinal)
            wrappers[ordinal] = upgraded.known
            if room_bytes > 0:
                room_bytes -= len(upgraded.payload)
                payloads[ordinal] = upgraded.payload
        try:
            buffer, positions = upgrade_batches(chunk.source, chunk.size_bytes, starts, sizes, unreadable, wrappers)
        except CorruptBatchError as error:
            raise self._located(error, chunk, error.position or 0) from error
        return replace(
            chunk,
            buffer=buffer,
            positions=positions,
            verdicts=verdicts,
            decompressed=payloads,
        )

    def _unwrapped(self, chunk: Chunk, ordinal: int) -> UpgradedWrapper:
        try:
            return upgrade_wrapper(chunk.source_of(ordinal).tobytes(), limit_bytes=self._limit_bytes)
        except (CorruptBatchError, UnsupportedDataError) as error:
            raise self._located(error, chunk, int(chunk.positions[ordinal])) from error

    def _decompress_ahead(self, chunk: Chunk, number: int, newest_first: bool) -> Chunk:
        """Decompress the batches that are wanted first, until their records fill _AHEAD_CHUNKS chunks."""
        wanted = chunk.buffer[chunk.positions + (ATTRIBUTES + 1)] & CODEC_MASK != 0
        has_compressed = wanted.any()
        if self._living is not None:
            wanted &= self._living_batches(chunk, self._living)
        if not has_compressed:
            return chunk
        chunk = replace(chunk, payloads=np.full((wanted.size, 2), NOT_DECOMPRESSED, dtype=np.int64))
        if chunk.verdicts.size:
            wanted &= chunk.verdicts & (DISCARD | LEGACY | UNREADABLE) == 0
        ordinals = np.flatnonzero(wanted)
        if newest_first:
            ordinals = ordinals[::-1].copy()
        room_bytes = _AHEAD_CHUNKS * CHUNK_BYTES - self._decompress_many(chunk, number, ordinals)
        for ordinal in map(int, ordinals[chunk.payloads[ordinals, 1] == NOT_DECOMPRESSED]):
            if room_bytes <= 0:
                break
            content = self.decompress(chunk, ordinal)
            room_bytes -= memoryview(content).nbytes
            chunk.decompressed[ordinal] = content
        return chunk

    def _living_batches(self, chunk: Chunk, living: ByteArray) -> npt.NDArray[np.bool_]:
        alive = np.empty(chunk.positions.size, dtype=np.bool_)
        self._records = sweep.find_survivors(
            chunk.buffer.ctypes.data, chunk.positions, chunk.verdicts, living, self._records, alive
        )
        return alive

    def _decompress_many(self, chunk: Chunk, number: int, ordinals: npt.NDArray[np.int64]) -> int:
        """Set the payloads of those of `ordinals` that compiled loops can decompress; returns the bytes of these."""
        if not self._tools:
            self._tools = (find_tools(), find_tools())
        half_bytes = _AHEAD_CHUNKS * CHUNK_BYTES // 2 + decode.PADDING_BYTES
        if self._areas[number % 2].size < 2 * half_bytes:
            self._areas[number % 2] = np.empty(2 * half_bytes, dtype=np.uint8)
        area = self._areas[number % 2].ctypes.data

        def half(which: int) -> int:
            middle = ordinals.size // 2
            return decompress_batches(
                chunk.buffer.ctypes.data,
                chunk.positions,
                ordinals[middle:] if which else ordinals[:middle],
                self._limit_bytes,
                self._tools[which],
                area + which * half_bytes,
                half_bytes - decode.PADDING_BYTES,
                chunk.payloads,
            )

        other = self._helper().submit(half, 1)
        used_bytes = half(0) + other.result()
        self._area_bytes[number % 2] = max(used_bytes, self._area_bytes[number % 2])
        return used_bytes

    def _read(self, segment: SegmentRef, start: int, end: int, number: int) -> ByteArray:
        buffer = self._buffers[number % 2]
        if buffer.size < end - start + decode.PADDING_BYTES:
            buffer = self._buffers[number % 2] = padded_buffer(end - start)
        if read_into(self._files.descriptor(segment), buffer, 0, end - start, start) < end - start:
            raise SourceChangedError(
                "the segment is shorter than when it was listed",
                path=str(self._files.path(segment)),
                offset=segment.base_offset,
                advice="another process writes to this directory; stop it and run again",
            )
        return buffer

    def _scan(
        self, segment: SegmentRef, cuts: ChunkBoundaries, index: int, buffer: ByteArray, number: int
    ) -> tuple[Chunk, bool]:
        """The chunk as it was read, and whether there are messages of magic 0 or 1 in it."""
        start, end = int(cuts.positions[index]), int(cuts.positions[index + 1])
        with_verdicts = cuts.ordinals.size > 0
        unreadable = [(low - start, high - start) for low, high in cuts.unreadable if start <= low < end]
        offsets = segment.base_offset, self._end_offsets.get(segment.base_offset, INT64_MAX)
        while True:
            positions = self._positions[number % 2]
            status, count, position = _scan_stretches(
                buffer, end - start, unreadable, offsets, with_verdicts, positions
            )
            if status != NEEDS_RECORD_ROOM:
                break
            self._positions[number % 2] = np.zeros(2 * positions.size, dtype=np.int64)
        found, nothing = positions[:count], np.zeros(0, dtype=np.uint8)
        chunk = Chunk(segment, start, end - start, buffer, found, buffer, found, nothing, _NO_PAYLOADS, {})
        if status in (CUT_MISSED, TRANSACTIONS_MET) and not with_verdicts:
            raise FallbackRequiredError(status)
        if status not in (DONE, LEGACY_MET):
            raise self.error(status, chunk, position)
        if with_verdicts:
            first = int(cuts.ordinals[index])
            chunk = replace(chunk, verdicts=cuts.verdicts[first : first + count])
        return chunk, status == LEGACY_MET

    def _cuts_from_index(self, segment: SegmentRef) -> ChunkBoundaries:
        """Cuts where the offset index says that batches begin; the scan finds out whether they do."""
        positions = [0]
        if segment.log_bytes > CHUNK_BYTES and segment.offset_index_bytes:
            name = segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
            content = self._fs.read_bytes(self._directory / name)
            entries = np.frombuffer(content[: len(content) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES], dtype=">i4")
            found = entries.reshape(-1, 2)[:, 1].astype(np.int64)
            found = found[(found > 0) & (found < segment.log_bytes)]
            if found.size and np.all(np.diff(found) > 0):
                times = _PLAIN_CHUNKS if self._begins_plain(segment) else 1
                positions.extend(int(found[index]) for index in boundaries_between(found, 0, times=times))
        positions.append(segment.log_bytes)
        if max(np.diff(positions), default=0) > _LARGEST_INDEX_GAP:
            raise FallbackRequiredError(CUT_MISSED)
        nothing = np.zeros(0, dtype=np.uint8)
        return ChunkBoundaries(np.array(positions, dtype=np.int64), np.zeros(0, dtype=np.int64), nothing, ())

    def _begins_plain(self, segment: SegmentRef) -> bool:
        """Whether the first batch is not compressed, as then most likely no other is."""
        header = padded_buffer(BATCH_HEADER_BYTES)
        read_into(self._files.descriptor(segment), header, 0, BATCH_HEADER_BYTES, 0)
        return bool(header[MAGIC] >= _MAGIC and header[ATTRIBUTES + 1] & CODEC_MASK == 0)

    def error(self, status: int, chunk: Chunk, position: int) -> SedimentError:
        """What a kernel's status says of the batch at `position` of a chunk's buffer."""
        if status == CUT_MISSED:
            status = BAD_LENGTH
        at = position if chunk.buffer is chunk.source else int(chunk.origins[chunk.ordinal_at(position)])
        return batch_error(status, self._files.path(chunk.segment), chunk.position + at, chunk.source, at)

    def _located(self, error: SedimentError, chunk: Chunk, position: int) -> SedimentError:
        there = self.error(BAD_RECORD_COUNT, chunk, position)
        return CorruptBatchError(
            error.what, path=there.path, position=there.position, offset=there.offset, advice=there.advice
        )

    def decompress(self, chunk: Chunk, ordinal: int) -> Buffer:
        """The records of batch `ordinal` of a chunk.

        Raises:
            CorruptBatchError: they cannot be had, or expand beyond the limit.
        """
        if chunk.buffer is not chunk.source and chunk.verdicts[ordinal] & LEGACY:
            return self._unwrapped(chunk, ordinal).payload
        position = int(chunk.positions[ordinal])
        codec, payload = chunk.payload_at(position)
        try:
            return decompress(codec, payload, limit_bytes=self._limit_bytes)
        except CorruptBatchError as error:
            raise self._located(error, chunk, position) from error


def _scan_stretches(
    buffer: ByteArray,
    size_bytes: int,
    unreadable: Sequence[tuple[int, int]],
    offsets: tuple[int, int],
    with_verdicts: bool,
    positions: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Scan what is readable of the first `size_bytes` of `buffer`; `offsets` are (first, end) of the segment."""
    done, count, start = DONE, 0, 0
    for low, high in (*unreadable, (size_bytes, size_bytes)):
        status, found, position = sweep.scan_chunk(
            buffer.ctypes.data, start, low, *offsets, with_verdicts, positions[count:]
        )
        count += found
        if status not in (DONE, LEGACY_MET):
            return status, count, position
        done = max(done, status)
        if high > low:
            if count == positions.size:
                return NEEDS_RECORD_ROOM, count, low
            positions[count] = low
            count += 1
        start = high
    return done, count, size_bytes


class SourceFiles:
    """Open source segments; each is checked to be the one that was listed when it is opened."""

    def __init__(self, directory: Path, fs: Fs, stack: ExitStack) -> None:
        self._directory = directory
        self._fs = fs
        self._stack = stack
        self._open: tuple[SegmentRef, int] | None = None
        stack.callback(self._close)

    def path(self, segment: SegmentRef) -> Path:
        """Its log."""
        return self._directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)

    def descriptor(self, segment: SegmentRef) -> int:
        """An open descriptor of its log, good until another segment is asked for.

        Raises:
            SourceChangedError: the file is not the one that was listed.
        """
        if self._open is not None and self._open[0] == segment:
            return self._open[1]
        self._close()
        descriptor = self._fs.open_to_read(self.path(segment))
        self._open = segment, descriptor
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (segment.log_bytes, segment.mtime_ns):
            raise SourceChangedError(
                "the segment is not the one that was listed",
                path=str(self.path(segment)),
                offset=segment.base_offset,
                advice="another process writes to this directory; stop it and run again",
            )
        return descriptor

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def lazy_pool(stack: ExitStack, name: str) -> Callable[[], ThreadPoolExecutor]:
    """One thread, made when first asked for and joined when the stack unwinds."""
    made: list[ThreadPoolExecutor] = []

    def pool() -> ThreadPoolExecutor:
        if not made:
            made.append(stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix=name)))
        return made[0]

    return pool


def boundaries_between(positions: npt.NDArray[np.int64], last_cut: int, *, times: int = 1) -> Iterator[int]:
    """Indexes into ascending `positions` that are CHUNK_BYTES, `times` times, or more behind the cut before them."""
    while True:
        index = int(np.searchsorted(positions, last_cut + times * CHUNK_BYTES))
        if index >= positions.size:
            return
        yield index
        last_cut = int(positions[index])
