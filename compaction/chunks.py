"""Segments as chunks: read, checked and decompressed ahead of the sweep, in either direction.

    log       | batch | batch | batch | batch | batch | batch |
    chunks    |        chunk 0        |        chunk 1        |     cut where batches begin, about CHUNK_BYTES each

A thread makes the next chunk ready while the caller works on one.  Where the cuts come from the offset index, the scan
of a chunk finds out whether batches begin there; where they come from a forward walk they are known, and so is a
verdict on each batch.

Invariants: a chunk holds whole batches whose lengths and checksums were verified; what is read is what was listed.
Memory: two chunks, and of each as many records decompressed as _AHEAD_CHUNKS chunks have bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction import sweep
from sediment.compaction.transactions import DISCARD
from sediment.segment_io import decode
from sediment.segment_io.codecs import decompress
from sediment.segment_io.errors import CorruptBatchError, SedimentError, SourceChangedError, UnsupportedDataError
from sediment.segment_io.format import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    LOG_OVERHEAD_BYTES,
    OFFSET_ENTRY_BYTES,
)
from sediment.segment_io.fs import Buffer, Fs
from sediment.segment_io.indexes import AbortedTransaction
from sediment.segment_io.listing import SegmentRef
from sediment.segment_io.names import SegmentFileKind, segment_file_name
from sediment.segment_io.reader import batch_error, padded_buffer, read_into

CHUNK_BYTES = 2 << 20
_LARGEST_INDEX_GAP = 8 * CHUNK_BYTES
_AHEAD_CHUNKS = 8
_FIRST_BATCHES = 4096

ByteArray = npt.NDArray[np.uint8]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SegmentCuts:
    """Where the chunks of a segment begin, ascending and ending with its size; `ordinals` are the batches before each.

    `verdicts`, uint8[batches] or empty, and `kept_aborts` come from a forward walk.
    """

    positions: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int64]
    verdicts: ByteArray
    kept_aborts: tuple[AbortedTransaction, ...]


class WayDoesNotHoldError(Exception):
    """The way taken through the partition does not hold; `status` is the sweep's reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole, checked batches of `segment`; `positions` are where they begin in `buffer`, `position` where it lies.

    `decompressed` holds the records of batches that were decompressed ahead, by position in `buffer`.
    """

    segment: SegmentRef
    position: int
    size_bytes: int
    buffer: ByteArray
    positions: npt.NDArray[np.int64]
    verdicts: ByteArray
    decompressed: dict[int, Buffer]

    def payload_at(self, position: int) -> tuple[int, memoryview]:
        """Codec and compressed payload of the batch at `position` of the buffer."""
        view = self.buffer.data
        size_bytes = int.from_bytes(view[position + BATCH_LENGTH : position + BATCH_LENGTH + 4], "big")
        codec = view[position + ATTRIBUTES + 1] & CODEC_MASK
        return codec, view[position + BATCH_HEADER_BYTES : position + LOG_OVERHEAD_BYTES + size_bytes]


class ChunkReader:
    """Reads the segments of one partition; a chunk holds until the one two after it is made ready.

    `decompressed_limit_bytes` bounds the records of one batch.
    """

    def __init__(self, directory: Path, fs: Fs, decompressed_limit_bytes: int, stack: ExitStack) -> None:
        self._directory = directory
        self._fs = fs
        self._limit_bytes = decompressed_limit_bytes
        self._files = SourceFiles(directory, stack)
        self._thread = lazy_pool(stack, "sediment-read")
        self._buffers = [padded_buffer(0), padded_buffer(0)]
        self._positions = [np.zeros(_FIRST_BATCHES, dtype=np.int64) for _ in range(2)]

    def size_bytes(self) -> int:
        """Memory of its buffers."""
        return sum(buffer.nbytes for buffer in self._buffers) + sum(found.nbytes for found in self._positions)

    def chunks(
        self, segments: Sequence[SegmentRef], cuts: dict[int, SegmentCuts], *, newest_first: bool
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

    def _make_ready(self, segment: SegmentRef, cuts: SegmentCuts, index: int, number: int, newest_first: bool) -> Chunk:
        """Read, scan and decompress a chunk; it holds until the chunk two numbers later is made ready."""
        start, end = int(cuts.positions[index]), int(cuts.positions[index + 1])
        chunk = self._scan(segment, cuts, index, self._read(segment, start, end, number), number)
        self._decompress_ahead(chunk, newest_first)
        return chunk

    def _decompress_ahead(self, chunk: Chunk, newest_first: bool) -> None:
        """Decompress the batches that are wanted first, until their records fill _AHEAD_CHUNKS chunks."""
        room_bytes = _AHEAD_CHUNKS * CHUNK_BYTES
        wanted = chunk.buffer[chunk.positions + (ATTRIBUTES + 1)] & CODEC_MASK != 0
        if chunk.verdicts.size:
            wanted &= chunk.verdicts & DISCARD == 0
        positions = chunk.positions[wanted]
        for position in map(int, reversed(positions) if newest_first else positions):
            if room_bytes <= 0:
                return
            content = self.decompress(chunk, position)
            room_bytes -= memoryview(content).nbytes
            chunk.decompressed[position] = content

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

    def _scan(self, segment: SegmentRef, cuts: SegmentCuts, index: int, buffer: ByteArray, number: int) -> Chunk:
        start, end = int(cuts.positions[index]), int(cuts.positions[index + 1])
        with_verdicts = cuts.ordinals.size > 0
        while True:
            positions = self._positions[number % 2]
            status, count, position = sweep.scan_chunk(buffer.ctypes.data, 0, end - start, with_verdicts, positions)
            if status != sweep.NEEDS_RECORD_ROOM:
                break
            self._positions[number % 2] = np.zeros(2 * positions.size, dtype=np.int64)
        chunk = Chunk(segment, start, end - start, buffer, positions[:count], np.zeros(0, dtype=np.uint8), {})
        if status in (sweep.CUT_MISSED, sweep.TRANSACTIONS_MET) and not with_verdicts:
            raise WayDoesNotHoldError(status)
        if status != sweep.DONE:
            raise self.error(status, chunk, position)
        if not with_verdicts:
            return chunk
        first = int(cuts.ordinals[index])
        return replace(chunk, verdicts=cuts.verdicts[first : first + count])

    def _cuts_from_index(self, segment: SegmentRef) -> SegmentCuts:
        """Cuts where the offset index says that batches begin; the scan finds out whether they do."""
        positions = [0]
        if segment.log_bytes > CHUNK_BYTES and segment.offset_index_bytes:
            name = segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
            content = self._fs.read_bytes(self._directory / name)
            entries = np.frombuffer(content[: len(content) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES], dtype=">i4")
            found = entries.reshape(-1, 2)[:, 1].astype(np.int64)
            found = found[(found > 0) & (found < segment.log_bytes)]
            if found.size and np.all(np.diff(found) > 0):
                positions.extend(int(found[index]) for index in cuts_between(found, 0))
        positions.append(segment.log_bytes)
        if max(np.diff(positions), default=0) > _LARGEST_INDEX_GAP:
            raise WayDoesNotHoldError(sweep.CUT_MISSED)
        nothing = np.zeros(0, dtype=np.uint8)
        return SegmentCuts(np.array(positions, dtype=np.int64), np.zeros(0, dtype=np.int64), nothing, ())

    def error(self, status: int, chunk: Chunk, position: int) -> SedimentError:
        """What a kernel's status says of the batch at `position` of a chunk's buffer."""
        path, at = self._files.path(chunk.segment), chunk.position + position
        if status == sweep.CUT_MISSED:
            status = decode.BAD_LENGTH
        error = batch_error(status, path, at, chunk.buffer, position)
        if status == decode.LEGACY_MAGIC:
            return UnsupportedDataError(
                error.what, path=error.path, position=at, offset=error.offset, advice="leave this partition out"
            )
        return error

    def _located(self, error: CorruptBatchError, chunk: Chunk, position: int) -> SedimentError:
        there = self.error(decode.BAD_RECORD_COUNT, chunk, position)
        return CorruptBatchError(
            error.what, path=there.path, position=there.position, offset=there.offset, advice=there.advice
        )

    def decompress(self, chunk: Chunk, position: int) -> Buffer:
        """The records of the batch at `position` of a chunk's buffer.

        Raises:
            CorruptBatchError: they cannot be had, or expand beyond the limit.
        """
        codec, payload = chunk.payload_at(position)
        try:
            return decompress(codec, payload, limit_bytes=self._limit_bytes)
        except CorruptBatchError as error:
            raise self._located(error, chunk, position) from error


class SourceFiles:
    """Open source segments; each is checked to be the one that was listed when it is opened."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
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
        descriptor = os.open(self.path(segment), os.O_RDONLY | os.O_CLOEXEC)
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


def cuts_between(positions: npt.NDArray[np.int64], last_cut: int) -> Iterator[int]:
    """Indexes into ascending `positions` that are CHUNK_BYTES or more behind the cut before them."""
    while True:
        index = int(np.searchsorted(positions, last_cut + CHUNK_BYTES))
        if index >= positions.size:
            return
        yield index
        last_cut = int(positions[index])
