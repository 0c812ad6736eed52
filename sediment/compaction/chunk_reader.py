"""The reader that prepares chunks of segments for the sweep: it reads, checks and decompresses them.

    log       | batch | batch | batch | batch | batch | batch |
    chunks    |        chunk 0        |        chunk 1        |     whole batches of about CHUNK_BYTES, or
                                                                    twice that if they are not compressed

A thread prepares the next chunk while the caller works on the current one.  Chunk boundaries come from one of two
sources:
* the offset index; the scan of each chunk then checks that a batch begins at each of these boundaries;
* a forward scan, which also finds the flags of each batch and the unreadable bytes.
A chunk always contains whole batches, even a batch that is larger than CHUNK_BYTES or max.message.bytes.

Invariants: the lengths and the checksums of all batches in a chunk were verified.

Memory: two chunks, and for each of them up to _AHEAD_CHUNKS * CHUNK_BYTES of decompressed records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.cleaned_transaction_metadata import DISCARD, LEGACY, TOMBSTONES_GO, UNREADABLE
from sediment.compaction.kernels.delete_horizon import legacy_tombstones_have_expired
from sediment.compaction.kernels.record_retention import find_survivors
from sediment.compaction.kernels.scan_chunk import scan_chunk
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled import padding
from sediment.segment_io.compiled.padding import padded_buffer
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
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED, decompress_batches, find_tools
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    INT64_MAX,
    LEGACY_ATTRIBUTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_V2,
    OFFSET_ENTRY_BYTES,
)
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.format.upgrade import UpgradedWrapper, no_wrappers, upgrade_batches, upgrade_wrapper
from sediment.segment_io.fs import Fs, ReadableFile
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import batch_error, read_into

CHUNK_BYTES = 2 << 20
_PLAIN_CHUNKS = 2  # size of a chunk that needs no decompression, in multiples of CHUNK_BYTES
_LARGEST_INDEX_GAP = 8 * CHUNK_BYTES
_AHEAD_CHUNKS = 8
_FIRST_BATCHES = 4096
_NO_PAYLOADS = np.zeros((0, 2), dtype=np.int64)

ByteArray = npt.NDArray[np.uint8]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ChunkBoundaries:
    """The positions at which the chunks of a segment begin, in ascending order, and the segment's size.

    `ordinals`, `batch_flags` and `kept_aborts` come from a forward scan; without such a scan, they are empty.
    `ordinals` counts the batches before each position; `batch_flags` is uint8[batches].  `unreadable` lists byte ranges
    [from, to).  Each range is treated as one batch that has the flag UNREADABLE.
    """

    positions: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.int64]
    batch_flags: ByteArray
    kept_aborts: tuple[AbortedTxn, ...]
    unreadable: tuple[tuple[int, int], ...] = ()


class FallbackRequiredError(Exception):
    """A pass cannot clean the partition, so the cleaner must try another kind of pass; `status` is the reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole, checked batches of `segment`; they begin at `positions` of `buffer`.

    `source` contains `size_bytes` bytes of the file, read from `position`.  Batch n begins at `origins`[n] of `source`.
    If the chunk has no message of magic 0 or 1, `buffer` is the same memory as `source`.  Otherwise `buffer` contains
    the converted batches.  There, a compressed message is only a header without records.

    `payloads`, int64[batches, 2], contains the address and the size in bytes of each batch's decompressed records;
    NOT_DECOMPRESSED marks a batch without an address.  If a batch without an address is already decompressed,
    `decompressed` maps its ordinal to its records.
    """

    segment: SegmentRef
    position: int
    size_bytes: int
    source: ByteArray
    origins: npt.NDArray[np.int64]
    buffer: ByteArray
    positions: npt.NDArray[np.int64]
    batch_flags: ByteArray
    payloads: npt.NDArray[np.int64]
    decompressed: dict[int, Buffer]

    def source_of(self, ordinal: int) -> ByteArray:
        following = self.origins[ordinal + 1] if ordinal + 1 < self.origins.size else self.size_bytes
        return self.source[self.origins[ordinal] : following]

    def ordinal_at(self, position: int) -> int:
        return int(np.searchsorted(self.positions, position, side="right")) - 1

    def payload_at(self, position: int) -> tuple[int, memoryview]:
        view = self.buffer.data
        size_bytes = int.from_bytes(view[position + BATCH_LENGTH : position + BATCH_LENGTH + 4], "big")
        codec = view[position + ATTRIBUTES + 1] & CODEC_MASK
        return codec, view[position + BATCH_HEADER_BYTES : position + LOG_OVERHEAD_BYTES + size_bytes]


class ChunkReader:
    """The reader of one partition's segments; chunk n + 2 reuses the memory of chunk n.

    `decompressed_limit_bytes` limits the records of one batch.  Before a chunk is yielded, `progress` is called with
    its size.
    """

    def __init__(
        self,
        directory: Path,
        every: Sequence[SegmentRef],
        fs: Fs,
        decompressed_limit_bytes: int,
        legacy_horizon_ms: int,
        progress: Progress,
        stack: ExitStack,
    ) -> None:
        self._directory = directory
        # `every` contains all segments of the partition, because the offsets of a segment end at the base offset of the
        # next segment.
        self._end_offsets = {segment.base_offset: following.base_offset for segment, following in pairwise(every)}
        self._fs = fs
        self._limit_bytes = decompressed_limit_bytes
        self._legacy_horizon_ms = legacy_horizon_ms
        self._progress = progress
        self._files = SourceFiles(directory, fs, stack)
        self._thread = lazy_pool(stack, "sediment-read")
        self._buffers = [padded_buffer(0), padded_buffer(0)]
        self._positions = [np.zeros(_FIRST_BATCHES, dtype=np.int64) for _ in range(2)]
        self._upgraded_bytes = [0, 0]
        self._areas = [padded_buffer(0), padded_buffer(0)]
        self._area_bytes = [0, 0]
        self._helper = lazy_pool(stack, "sediment-decompress")
        self._tools: tuple[npt.NDArray[np.int64], ...] = ()
        self._survivors: ByteArray | None = None
        self._records = 0

    def skip_batches_without_survivors(self, survivors: ByteArray) -> None:
        self._survivors = survivors

    def size_bytes(self) -> int:
        read_bytes = sum(buffer.nbytes for buffer in self._buffers)
        positions_bytes = sum(found.nbytes for found in self._positions)
        return read_bytes + positions_bytes + sum(self._upgraded_bytes) + sum(self._area_bytes)

    def chunks(
        self, segments: Sequence[SegmentRef], boundaries: dict[int, ChunkBoundaries], *, newest_first: bool
    ) -> Iterator[Chunk]:
        jobs = [
            (segment, which, index)
            for segment in segments
            for which in [boundaries.get(segment.base_offset) or self._boundaries_from_index(segment)]
            for index in range(which.positions.size - 1)
        ]
        if newest_first:
            jobs.reverse()
        ahead: Future[Chunk] | None = None
        for number, job in enumerate(jobs):
            chunk = ahead.result() if ahead is not None else self._prepare(*job, number, newest_first)
            ahead = None
            if number + 1 < len(jobs):
                ahead = self._thread().submit(self._prepare, *jobs[number + 1], number + 1, newest_first)
            self._progress(chunk.size_bytes)
            yield chunk

    def _prepare(
        self, segment: SegmentRef, boundaries: ChunkBoundaries, index: int, number: int, newest_first: bool
    ) -> Chunk:
        """Read, scan and decompress a chunk; the chunk is valid until chunk `number` + 2 is prepared."""
        start, end = int(boundaries.positions[index]), int(boundaries.positions[index + 1])
        chunk, holds_legacy = self._scan(segment, boundaries, index, self._read(segment, start, end, number), number)
        self._upgraded_bytes[number % 2] = 0
        if holds_legacy:
            chunk = self._upgrade(chunk, newest_first)
            self._upgraded_bytes[number % 2] = chunk.buffer.nbytes
        return self._decompress_ahead(chunk, number, newest_first)

    def _upgrade(self, chunk: Chunk, newest_first: bool) -> Chunk:
        starts = chunk.origins
        sizes = np.diff(starts, append=chunk.size_bytes)
        batch_flags = chunk.batch_flags.copy() if chunk.batch_flags.size else np.zeros(starts.size, dtype=np.uint8)
        unreadable = batch_flags & UNREADABLE != 0
        is_legacy = (chunk.source[starts + MAGIC] < MAGIC_V2) & ~unreadable
        has_expired = legacy_tombstones_have_expired(chunk.segment, self._legacy_horizon_ms)
        batch_flags[is_legacy] |= LEGACY | (TOMBSTONES_GO if has_expired else 0)

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
            batch_flags=batch_flags,
            decompressed=payloads,
        )

    def _unwrapped(self, chunk: Chunk, ordinal: int) -> UpgradedWrapper:
        try:
            return upgrade_wrapper(chunk.source_of(ordinal).tobytes(), limit_bytes=self._limit_bytes)
        except (CorruptBatchError, UnsupportedDataError) as error:
            raise self._located(error, chunk, int(chunk.positions[ordinal])) from error

    def _decompress_ahead(self, chunk: Chunk, number: int, newest_first: bool) -> Chunk:
        wanted = chunk.buffer[chunk.positions + (ATTRIBUTES + 1)] & CODEC_MASK != 0
        has_compressed = wanted.any()
        if self._survivors is not None:
            wanted &= self._surviving_batches(chunk, self._survivors)
        if not has_compressed:
            return chunk
        chunk = replace(chunk, payloads=np.full((wanted.size, 2), NOT_DECOMPRESSED, dtype=np.int64))
        if chunk.batch_flags.size:
            wanted &= chunk.batch_flags & (DISCARD | LEGACY | UNREADABLE) == 0
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

    def _surviving_batches(self, chunk: Chunk, survivors: ByteArray) -> npt.NDArray[np.bool_]:
        surviving = np.empty(chunk.positions.size, dtype=np.bool_)
        self._records = find_survivors(
            chunk.buffer.ctypes.data, chunk.positions, chunk.batch_flags, survivors, self._records, surviving
        )
        return surviving

    def _decompress_many(self, chunk: Chunk, number: int, ordinals: npt.NDArray[np.int64]) -> int:
        if not self._tools:
            self._tools = (find_tools(), find_tools())
        half_bytes = _AHEAD_CHUNKS * CHUNK_BYTES // 2 + padding.PADDING_BYTES
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
                half_bytes - padding.PADDING_BYTES,
                chunk.payloads,
            )

        # Most records are decompressed by kernels, which release the interpreter lock; these kernels run on the reading
        # thread and on one more thread.
        other = self._helper().submit(half, 1)
        used_bytes = half(0) + other.result()
        self._area_bytes[number % 2] = max(used_bytes, self._area_bytes[number % 2])
        return used_bytes

    def _read(self, segment: SegmentRef, start: int, end: int, number: int) -> ByteArray:
        buffer = self._buffers[number % 2]
        if buffer.size < end - start + padding.PADDING_BYTES:
            buffer = self._buffers[number % 2] = padded_buffer(end - start)
        if read_into(self._files.file(segment), buffer, 0, end - start, start) < end - start:
            raise SourceChangedError(
                "the segment is shorter than when it was listed",
                path=str(self._files.path(segment)),
                offset=segment.base_offset,
                advice="another process writes to this directory; stop it and run again",
            )
        return buffer

    def _scan(
        self, segment: SegmentRef, boundaries: ChunkBoundaries, index: int, buffer: ByteArray, number: int
    ) -> tuple[Chunk, bool]:
        """Return the scanned chunk, and True if the chunk has messages of magic 0 or 1."""
        start, end = int(boundaries.positions[index]), int(boundaries.positions[index + 1])
        with_flags = boundaries.ordinals.size > 0
        unreadable = [(low - start, high - start) for low, high in boundaries.unreadable if start <= low < end]
        offsets = segment.base_offset, self._end_offsets.get(segment.base_offset, INT64_MAX)
        while True:
            positions = self._positions[number % 2]
            status, count, position = _scan_readable(buffer, end - start, unreadable, offsets, with_flags, positions)
            if status != NEEDS_RECORD_ROOM:
                break
            self._positions[number % 2] = np.zeros(2 * positions.size, dtype=np.int64)
        found, nothing = positions[:count], np.zeros(0, dtype=np.uint8)
        chunk = Chunk(segment, start, end - start, buffer, found, buffer, found, nothing, _NO_PAYLOADS, {})
        if status in (CUT_MISSED, TRANSACTIONS_MET) and not with_flags:
            raise FallbackRequiredError(status)
        if status not in (DONE, LEGACY_MET):
            raise self.error(status, chunk, position)
        if with_flags:
            first = int(boundaries.ordinals[index])
            chunk = replace(chunk, batch_flags=boundaries.batch_flags[first : first + count])
        return chunk, status == LEGACY_MET

    def _boundaries_from_index(self, segment: SegmentRef) -> ChunkBoundaries:
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
        """Return True if the first batch is not compressed, because then probably no batch is compressed."""
        header = padded_buffer(BATCH_HEADER_BYTES)
        read_into(self._files.file(segment), header, 0, BATCH_HEADER_BYTES, 0)
        return bool(header[MAGIC] >= MAGIC_V2 and header[ATTRIBUTES + 1] & CODEC_MASK == 0)

    def error(self, status: int, chunk: Chunk, position: int) -> SedimentError:
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
        if chunk.buffer is not chunk.source and chunk.batch_flags[ordinal] & LEGACY:
            return self._unwrapped(chunk, ordinal).payload
        position = int(chunk.positions[ordinal])
        codec, payload = chunk.payload_at(position)
        try:
            return decompress(codec, payload, limit_bytes=self._limit_bytes)
        except CorruptBatchError as error:
            raise self._located(error, chunk, position) from error


def _scan_readable(
    buffer: ByteArray,
    size_bytes: int,
    unreadable: Sequence[tuple[int, int]],
    offsets: tuple[int, int],
    with_flags: bool,
    positions: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """`offsets` is the range (first, end) of offsets that batches of the segment may have."""
    done, count, start = DONE, 0, 0
    for low, high in (*unreadable, (size_bytes, size_bytes)):
        status, found, position = scan_chunk(buffer.ctypes.data, start, low, *offsets, with_flags, positions[count:])
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
    """The files of the source segments; only one of them is open at a time.

    Each file is checked against the listing when it is opened.
    """

    def __init__(self, directory: Path, fs: Fs, stack: ExitStack) -> None:
        self._directory = directory
        self._fs = fs
        self._stack = stack
        self._open: tuple[SegmentRef, ReadableFile] | None = None
        stack.callback(self._close)

    def path(self, segment: SegmentRef) -> Path:
        return self._directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)

    def file(self, segment: SegmentRef) -> ReadableFile:
        if self._open is not None and self._open[0] == segment:
            return self._open[1]
        self._close()
        file = self._fs.open_readable(self.path(segment))
        self._open = segment, file
        if file.change_stamp()[:2] != (segment.log_bytes, segment.mtime_ns):
            raise SourceChangedError(
                "the segment differs from the one that was listed",
                path=str(self.path(segment)),
                offset=segment.base_offset,
                advice="another process writes to this directory; stop it and run again",
            )
        return file

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


def lazy_pool(stack: ExitStack, name: str) -> Callable[[], ThreadPoolExecutor]:
    made: list[ThreadPoolExecutor] = []

    def pool() -> ThreadPoolExecutor:
        if not made:
            made.append(stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix=name)))
        return made[0]

    return pool


def boundaries_between(positions: npt.NDArray[np.int64], last_boundary: int, *, times: int = 1) -> Iterator[int]:
    """Yield the indexes of boundaries chosen from ascending `positions`, at least `times` * CHUNK_BYTES apart."""
    while True:
        index = int(np.searchsorted(positions, last_boundary + times * CHUNK_BYTES))
        if index >= positions.size:
            return
        yield index
        last_boundary = int(positions[index])
