"""One partition: a cleaning plan -> prepared files.  The only file of this package that does I/O.

    chunks, newest first  ->  sweep (judge, emit)  ->  one output buffer a group  ->  indexes  ->  synced .part files
    (a reader thread             (this thread)                                       (a writer thread, one group behind)
     reads one chunk ahead)

Three ways through a partition, each taken when the one before it finds that it does not hold:
* plain: chunks are cut where the offset index says that batches begin, and nothing is known of transactions;
* walked: a forward walk of headers and control keys gives verified cuts and the verdicts of the transaction rules;
* filled: a map with offsets is filled forward first, because it is bounded (map-full is a forward rule) or because
  offsets in the log do not increase; then the log is filtered against it.

Memory: the map, two output buffers (one being written) that hold only what survives, two chunks, and the largest batch.
Nothing is renamed here, and whatever is read is checked to be what was planned.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction import sweep
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import CleaningPlan, SegmentGroup, group_segments
from sediment.compaction.handoff import CleanedGroup, CleanStats, PartSegment, PreparedSwap
from sediment.compaction.offset_map import OffsetMap
from sediment.compaction.transactions import DISCARD, UNMAPPED, ActiveProducers, TransactionWalk
from sediment.segment_io import decode
from sediment.segment_io.codecs import compress, decompress
from sediment.segment_io.errors import (
    CorruptBatchError,
    MapFullError,
    SedimentError,
    SourceChangedError,
    UnsupportedDataError,
)
from sediment.segment_io.format import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_BIT,
    INT64_MAX,
    LOG_OVERHEAD_BYTES,
    OFFSET_ENTRY_BYTES,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.hashing import draw_seed, hash_secrets
from sediment.segment_io.indexes import AbortedTransaction, parse_offset_index
from sediment.segment_io.listing import SegmentRef
from sediment.segment_io.names import SegmentFileKind, segment_file_name
from sediment.segment_io.reader import HeaderWalk, batch_error, padded_buffer, read_into
from sediment.segment_io.writer import SegmentImage, lay_out_segments, write_segment

CHUNK_BYTES = 2 << 20
_LARGEST_INDEX_GAP = 8 * CHUNK_BYTES
_MAP_SLOT_BYTES = 24  # what Kafka counts a key as: log.cleaner.dedupe.buffer.size is given in these
_FIRST_RECORDS = 4096
_MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on

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


class _WayDoesNotHoldError(Exception):
    """The way taken through the partition does not hold; `status` is the sweep's reason."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def clean_log(
    plan: CleaningPlan, fs: Fs, *, run_id: str, attempt: str, progress: Progress | None = None
) -> PreparedSwap:
    """Clean the groups of `plan` into synced `.part` files beside their sources.

    `progress` is called with the bytes of each chunk that was swept.

    Raises:
        CorruptBatchError: a batch fails its CRC or is malformed; nothing of the partition may be dropped then.
        UnsupportedDataError: a message format or codec that this version does not read.
        SourceChangedError: the segments are not those that were planned.
        MapFullError: the bounded offset map does not hold two keys.

    Source: kafka-log 02 §3-§6.
    """
    report = progress or (lambda _bytes: None)
    walked = _may_hold_transactions(plan)
    filled = plan.config.dedupe_buffer_bytes is not None
    try:
        while True:
            written: list[Path] = []
            try:
                with ExitStack() as stack:
                    cleaning = _Cleaning(plan, fs, run_id, attempt, report, written, stack)
                    return cleaning.run(walked=walked, filled=filled)
            except _WayDoesNotHoldError as broken:
                # The groups that were finished before it broke; the writer has ended with the stack.
                for path in written:
                    fs.unlink(path, missing_ok=True)
                if broken.status == sweep.OFFSETS_NOT_INCREASING:
                    filled = True
                walked = True
    except SedimentError as error:
        if error.partition is None:
            error.partition = str(plan.view.listing.partition)
        raise


def _may_hold_transactions(plan: CleaningPlan) -> bool:
    """Whether anything outside the log says so; the log itself is asked by the sweep."""
    return (
        bool(plan.aborted)
        or any(segment.transaction_index_bytes for segment in plan.view.listing.segments)
        or any(entry.coordinator_epoch >= 0 or entry.current_txn_first_offset >= 0 for entry in plan.view.producers)
    )


class _Cleaning:
    """One attempt at one partition, in one of the three ways."""

    def __init__(
        self,
        plan: CleaningPlan,
        fs: Fs,
        run_id: str,
        attempt: str,
        progress: Progress,
        written: list[Path],
        stack: ExitStack,
    ) -> None:
        self._plan = plan
        self._config: CompactionConfig = plan.config
        self._fs = fs
        self._run_id = run_id
        self._attempt = attempt
        self._progress = progress
        self._written = written
        self._directory = plan.view.listing.path
        self._files = _SourceFiles(self._directory, stack)
        self._reader = _lazy_pool(stack, "sediment-read")
        self._writer = _lazy_pool(stack, "sediment-write")
        self._seed = draw_seed()
        self._secrets = hash_secrets(self._seed)
        self._producers = _active_producers(plan)
        self._scratch = _Scratch()
        self._state = np.zeros(sweep.STATE_REGISTERS, dtype=np.int64)
        self._rules = np.zeros(sweep.RULE_REGISTERS, dtype=np.int64)

    def run(self, *, walked: bool, filled: bool) -> PreparedSwap:
        plan = self._plan
        end_offset = plan.end_offset
        groups = plan.groups
        segments = [segment for group in groups for segment in group.segments]
        cuts = self._walk(segments) if walked else {}
        self._map = OffsetMap(with_offsets=filled)
        if filled:
            end_offset = self._fill_map(segments, cuts)
            groups = group_segments(
                plan.view.listing.segments, end_offset, plan.range.first_uncleanable_offset, plan.config
            )
        self._set_rules(end_offset, filled=filled)
        self._state[sweep.LAST_BASE_OFFSET] = INT64_MAX
        pending: list[Future[CleanedGroup]] = []
        for group in reversed(groups):
            output = self._sweep_group(group, cuts)
            if len(pending) > 1:
                pending[-1].result()
            pending.append(self._writer().submit(output.finish))
        cleaned = tuple(future.result() for future in reversed(pending))
        return PreparedSwap(plan.view.listing.partition, str(self._directory), cleaned, end_offset)

    def _set_rules(self, end_offset: int, *, filled: bool) -> None:
        now_ms = self._plan.now_ms
        self._rules[sweep.FIRST_MAPPED_OFFSET] = self._plan.range.first_dirty_offset
        self._rules[sweep.MAP_LATEST_OFFSET] = end_offset - 1
        self._rules[sweep.UPPER_BOUND_OFFSET] = self._plan.range.first_uncleanable_offset
        self._rules[sweep.NOW_MS] = now_ms
        self._rules[sweep.NEXT_HORIZON_MS] = now_ms + self._config.delete_retention_ms
        self._rules[sweep.BY_OFFSET] = int(filled)

    # ------------------------------------------------------------------------------------------------ the forward walk
    def _walk(self, segments: Sequence[SegmentRef]) -> dict[int, SegmentCuts]:
        """Verified cuts, verdicts and living transaction index entries of every segment, by base offset."""
        aborted = self._plan.aborted
        dirty_base = self._dirty_base(segments)
        filtering = TransactionWalk(aborted)
        mapped = max(dirty_base, self._plan.view.log_start_offset)
        mapping = TransactionWalk(entry for entry in aborted if entry.last_offset >= mapped)
        cuts = {}
        for segment in segments:
            # Kafka's second state begins where the offset index leads for the first dirty offset, not at the segment's
            # first batch; of a transaction whose marker lies between it remembers only the index entry.
            mapped_from = self._dirty_position(segment) if segment.base_offset == dirty_base else 0
            in_map = mapping if segment.base_offset >= dirty_base else None
            cuts[segment.base_offset] = self._walk_segment(segment, filtering, in_map, mapped_from)
        return cuts

    def _dirty_base(self, segments: Sequence[SegmentRef]) -> int:
        """Base offset of the segment that contains the first dirty offset."""
        first_dirty = self._plan.range.first_dirty_offset
        return max((s.base_offset for s in segments if s.base_offset <= first_dirty), default=0)

    def _dirty_position(self, segment: SegmentRef) -> int:
        """Where the offset index of the first dirty segment leads for the first dirty offset."""
        if not segment.offset_index_bytes:
            return 0
        name = segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
        index = parse_offset_index(self._fs.read_bytes(self._directory / name), segment.base_offset)
        return index.lookup(self._plan.range.first_dirty_offset).position

    def _walk_segment(
        self, segment: SegmentRef, filtering: TransactionWalk, mapping: TransactionWalk | None, mapped_from: int
    ) -> SegmentCuts:
        path = self._files.path(segment)
        walk = HeaderWalk(path, size_bytes=segment.log_bytes)
        verdicts: list[ByteArray] = []
        kept_aborts: list[AbortedTransaction] = []
        positions, ordinals = [0], [0]
        batches = 0
        for rows in walk:
            judged, kept = filtering.judge(rows)
            if mapping is not None:
                mapped = rows["position"] >= mapped_from
                aborted, _ = mapping.judge(rows[mapped])
                data = (rows["attributes"][mapped] & CONTROL_BIT) == 0
                judged[np.flatnonzero(mapped)[(aborted & DISCARD != 0) & data]] |= UNMAPPED
            verdicts.append(judged)
            kept_aborts.extend(kept)
            for index in _cuts_between(rows["position"], positions[-1]):
                positions.append(int(rows["position"][index]))
                ordinals.append(batches + int(index))
            batches += len(rows)
        if walk.end_position != segment.log_bytes:
            raise CorruptBatchError(
                "the segment ends inside a batch",
                path=str(path),
                position=walk.end_position,
                offset=segment.base_offset,
                advice="restore the segment from a replica or a backup, or leave this partition out",
            )
        every = np.concatenate(verdicts) if verdicts else np.zeros(0, dtype=np.uint8)
        return SegmentCuts(
            np.array([*positions, segment.log_bytes], dtype=np.int64),
            np.array([*ordinals, batches], dtype=np.int64),
            every,
            tuple(kept_aborts),
        )

    # ------------------------------------------------------------------------------------------- filling a map forward
    def _fill_map(self, segments: Sequence[SegmentRef], cuts: dict[int, SegmentCuts]) -> int:
        """Fill the map over the dirty range; returns the end offset of the round (kafka-log 02 §4.2)."""
        plan = self._plan
        first_dirty, upper = plan.range.first_dirty_offset, plan.range.first_uncleanable_offset
        self._rules[sweep.FIRST_MAPPED_OFFSET] = first_dirty
        self._rules[sweep.MAP_LIMIT] = _map_limit(self._config)
        state = self._state
        state[sweep.LATEST_OFFSET] = -1
        state[sweep.MAPPED] = 0
        dirty_base = self._dirty_base(segments)
        dirty = [segment for segment in segments if segment.base_offset >= dirty_base]
        for segment, following in zip(dirty, [*dirty[1:], None], strict=True):
            for chunk in self._chunks([segment], cuts, newest_first=False):
                state[sweep.CURSOR] = 0
                state[sweep.PAYLOAD_BYTES] = -1
                if not self._drive(chunk, self._fill_call):
                    return self._end_offset()
            state[sweep.LATEST_OFFSET] = (following.base_offset if following else upper) - 1
        return self._end_offset()

    def _end_offset(self) -> int:
        end_offset = int(self._state[sweep.LATEST_OFFSET]) + 1
        if end_offset <= self._plan.range.first_dirty_offset:
            raise MapFullError(
                "the offset map is too small for the first batch of the dirty range",
                path=str(self._directory),
                offset=self._plan.range.first_dirty_offset,
                advice="raise log.cleaner.dedupe.buffer.size or leave it out",
            )
        return end_offset

    def _fill_call(self, chunk: _Chunk) -> int:
        scratch = self._scratch
        return int(
            sweep.fill_map(
                chunk.buffer,
                chunk.positions,
                chunk.verdicts,
                scratch.payload,
                self._rules,
                np.uint64(self._seed),
                self._secrets,
                self._map.directory,
                scratch.records,
                scratch.hashes,
                self._state,
            )
        )

    # ------------------------------------------------------------------------------------------------ sweeping a group
    def _sweep_group(self, group: SegmentGroup, cuts: dict[int, SegmentCuts]) -> _GroupOutput:
        output = _GroupOutput(self, group, cuts)
        state = self._state
        state[sweep.OUT_START] = output.buffer.size
        for register in (sweep.MESSAGES_READ, sweep.MESSAGES_WRITTEN, sweep.CHANGED):
            state[register] = 0
        for chunk in self._chunks(group.segments, cuts, newest_first=True):
            state[sweep.CURSOR] = chunk.positions.size
            state[sweep.PAYLOAD_BYTES] = -1
            self._drive(chunk, lambda chunk: self._sweep_call(chunk, output.buffer), output)
            self._progress(chunk.size_bytes)
        output.take(state)
        return output

    def _sweep_call(self, chunk: _Chunk, output: ByteArray) -> int:
        scratch = self._scratch
        return int(
            sweep.sweep_chunk(
                chunk.buffer,
                chunk.positions,
                chunk.verdicts,
                scratch.payload,
                self._producers.producer_ids,
                self._producers.last_offsets,
                self._producers.epochs,
                self._rules,
                np.uint64(self._seed),
                self._secrets,
                self._map.directory,
                scratch.records,
                scratch.hashes,
                scratch.kept,
                scratch.raw,
                output,
                self._state,
            )
        )

    def _drive(self, chunk: _Chunk, call: Callable[[_Chunk], int], output: _GroupOutput | None = None) -> bool:
        """Call a resumable kernel until the chunk is done, giving it what it asks for; False if the map is full."""
        state = self._state
        while True:
            status = call(chunk) if output is None else self._sweep_call(chunk, output.buffer)
            if status == sweep.DONE:
                return True
            if status == sweep.MAP_FULL:
                return False
            needed = int(state[sweep.NEEDED])
            if status == sweep.NEEDS_PAYLOAD:
                self._decompress(chunk, forward=output is None)
            elif status == sweep.NEEDS_COMPRESSION and output is not None:
                self._compress(chunk, output)
            elif status == sweep.NEEDS_MAP_ROOM:
                self._map.reserve(needed)
            elif status == sweep.NEEDS_RECORD_ROOM:
                self._scratch.make_records_room(needed)
            elif status == sweep.NEEDS_RAW_ROOM:
                self._scratch.make_raw_room(needed)
            elif status == sweep.NEEDS_OUTPUT_ROOM and output is not None:
                output.grow(state, needed)
            elif status == sweep.OFFSETS_NOT_INCREASING:
                raise _WayDoesNotHoldError(status)
            else:
                raise self._error(status, chunk, self._current(chunk, forward=output is None))

    def _current(self, chunk: _Chunk, *, forward: bool) -> int:
        cursor = int(self._state[sweep.CURSOR])
        return int(chunk.positions[cursor if forward else cursor - 1])

    def _decompress(self, chunk: _Chunk, *, forward: bool) -> None:
        position = self._current(chunk, forward=forward)
        codec, payload = chunk.payload_at(position)
        try:
            content = decompress(codec, payload, limit_bytes=self._config.max_decompressed_batch_bytes)
        except CorruptBatchError as error:
            raise self._located(error, chunk, position) from error
        self._state[sweep.PAYLOAD_BYTES] = self._scratch.hold_payload(content)

    def _compress(self, chunk: _Chunk, output: _GroupOutput) -> None:
        codec, _ = chunk.payload_at(self._current(chunk, forward=False))
        raw = self._scratch.raw.data[: int(self._state[sweep.RAW_BYTES])]
        compressed = np.frombuffer(compress(codec, raw), dtype=np.uint8)
        while True:
            status = sweep.emit_compressed(chunk.buffer, chunk.positions, compressed, output.buffer, self._state)
            if status == sweep.DONE:
                return
            output.grow(self._state, int(self._state[sweep.NEEDED]))

    # -------------------------------------------------------------------------------------------------- reading chunks
    def _chunks(
        self, segments: Sequence[SegmentRef], cuts: dict[int, SegmentCuts], *, newest_first: bool
    ) -> Iterator[_Chunk]:
        """The chunks of `segments`, each scanned, with the next one being read meanwhile."""
        jobs = [
            (segment, which, index)
            for segment in segments
            for which in [cuts.get(segment.base_offset) or self._cuts_from_index(segment)]
            for index in range(which.positions.size - 1)
        ]
        if newest_first:
            jobs.reverse()
        ahead: Future[ByteArray] | None = None
        for number, (segment, which, index) in enumerate(jobs):
            start, end = int(which.positions[index]), int(which.positions[index + 1])
            buffer = ahead.result() if ahead is not None else self._read(segment, start, end, number)
            ahead = None
            if number + 1 < len(jobs):
                following, their, at = jobs[number + 1]
                ahead = self._reader().submit(
                    self._read, following, int(their.positions[at]), int(their.positions[at + 1]), number + 1
                )
            yield self._scan(segment, which, index, buffer)

    def _read(self, segment: SegmentRef, start: int, end: int, number: int) -> ByteArray:
        buffer = self._scratch.chunk_buffer(number, end - start)
        if read_into(self._files.descriptor(segment), buffer, 0, end - start, start) < end - start:
            raise SourceChangedError(
                "the segment is shorter than when it was listed",
                path=str(self._files.path(segment)),
                offset=segment.base_offset,
                advice="another process writes to this directory; stop it and run again",
            )
        return buffer

    def _scan(self, segment: SegmentRef, cuts: SegmentCuts, index: int, buffer: ByteArray) -> _Chunk:
        start, end = int(cuts.positions[index]), int(cuts.positions[index + 1])
        with_verdicts = cuts.ordinals.size > 0
        while True:
            scratch = self._scratch.positions
            status, count, position = sweep.scan_chunk(buffer.ctypes.data, 0, end - start, with_verdicts, scratch)
            if status != sweep.NEEDS_RECORD_ROOM:
                break
            self._scratch.make_positions_room()
        chunk = _Chunk(segment, start, end - start, buffer, scratch[:count], np.zeros(0, dtype=np.uint8))
        if status in (sweep.CUT_MISSED, sweep.TRANSACTIONS_MET) and not with_verdicts:
            raise _WayDoesNotHoldError(status)
        if status != sweep.DONE:
            raise self._error(status, chunk, position)
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
                positions.extend(int(found[index]) for index in _cuts_between(found, 0))
        positions.append(segment.log_bytes)
        if max(np.diff(positions), default=0) > _LARGEST_INDEX_GAP:
            raise _WayDoesNotHoldError(sweep.CUT_MISSED)
        nothing = np.zeros(0, dtype=np.uint8)
        return SegmentCuts(np.array(positions, dtype=np.int64), np.zeros(0, dtype=np.int64), nothing, ())

    # ---------------------------------------------------------------------------------------------------------- errors
    def _error(self, status: int, chunk: _Chunk, position: int) -> SedimentError:
        path, at = self._files.path(chunk.segment), chunk.position + position
        if status == sweep.CUT_MISSED:
            status = decode.BAD_LENGTH
        error = batch_error(status, path, at, chunk.buffer, position)
        if status == decode.LEGACY_MAGIC:
            return UnsupportedDataError(
                error.what, path=error.path, position=at, offset=error.offset, advice="leave this partition out"
            )
        return error

    def _located(self, error: CorruptBatchError, chunk: _Chunk, position: int) -> SedimentError:
        there = self._error(decode.BAD_RECORD_COUNT, chunk, position)
        return CorruptBatchError(
            error.what, path=there.path, position=there.position, offset=there.offset, advice=there.advice
        )

    # ------------------------------------------------------------------------------------------------ finishing a group
    def finish_group(
        self,
        group: SegmentGroup,
        batches: ByteArray,
        changed: bool,
        aborted: Sequence[AbortedTransaction],
        stats: CleanStats,
    ) -> CleanedGroup:
        """Index and write what survived of `group`, unless its files would come out as they are."""
        images = lay_out_segments(
            batches,
            group.segments[0].base_offset,
            aborted,
            index_interval_bytes=self._config.index_interval_bytes,
            segment_index_bytes=self._config.segment_index_bytes,
        )
        if len(group.segments) == 1 and not changed and self._equals_source(group.segments[0], images):
            return CleanedGroup(group.segments, (), stats)
        parts = tuple(self._write(image, group.segments[-1]) for image in images)
        return CleanedGroup(group.segments, parts, stats)

    def _write(self, image: SegmentImage, last: SegmentRef) -> PartSegment:
        files = write_segment(
            image,
            self._directory,
            like=self._files.path(last),
            mtime_ns=last.mtime_ns,
            run_id=self._run_id,
            attempt=self._attempt,
            fs=self._fs,
        )
        self._written.extend(self._directory / file.part_name for file in files)
        return PartSegment(image.base_offset, files)

    def _equals_source(self, segment: SegmentRef, images: Sequence[SegmentImage]) -> bool:
        """Whether the indexes would come out as they are too; the log does, since no batch changed."""
        (image,) = images if len(images) == 1 else (None,)
        if image is None or image.log.size != segment.log_bytes:
            return False
        sizes = {
            SegmentFileKind.OFFSET_INDEX: (segment.offset_index_bytes, image.offset_index),
            SegmentFileKind.TIME_INDEX: (segment.time_index_bytes, image.time_index),
            SegmentFileKind.TRANSACTION_INDEX: (segment.transaction_index_bytes or 0, image.transaction_index),
        }
        if any(size != len(content) for size, content in sizes.values()):
            return False
        return all(
            not content
            or self._fs.read_bytes(self._directory / segment_file_name(segment.base_offset, kind)) == content
            for kind, (_, content) in sizes.items()
        )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Whole, checked batches of `segment`; `positions` are where they begin in `buffer`, `position` where it lies."""

    segment: SegmentRef
    position: int
    size_bytes: int
    buffer: ByteArray
    positions: npt.NDArray[np.int64]
    verdicts: ByteArray

    def payload_at(self, position: int) -> tuple[int, memoryview]:
        """Codec and compressed payload of the batch at `position` of the buffer."""
        view = self.buffer.data
        size_bytes = int.from_bytes(view[position + BATCH_LENGTH : position + BATCH_LENGTH + 4], "big")
        codec = view[position + ATTRIBUTES + 1] & CODEC_MASK
        return codec, view[position + BATCH_HEADER_BYTES : position + LOG_OVERHEAD_BYTES + size_bytes]


class _GroupOutput:
    """The output of one group, filled downward in anonymous memory, of which only what is used takes room."""

    def __init__(self, cleaning: _Cleaning, group: SegmentGroup, cuts: dict[int, SegmentCuts]) -> None:
        self._cleaning = cleaning
        self._group = group
        self._aborted = [
            entry for s in group.segments if s.base_offset in cuts for entry in cuts[s.base_offset].kept_aborts
        ]
        self.buffer = _anonymous(group.log_bytes + CHUNK_BYTES)
        self._start = self.buffer.size
        self._changed = False
        self._stats = CleanStats()

    def grow(self, state: npt.NDArray[np.int64], needed: int) -> None:
        """Move what is there to the end of a larger buffer in which `needed` bytes are free."""
        start = int(state[sweep.OUT_START])
        used = self.buffer[start:]
        larger = _anonymous(2 * self.buffer.size + needed)
        state[sweep.OUT_START] = larger.size - used.size
        larger[larger.size - used.size :] = used
        self.buffer = larger

    def take(self, state: npt.NDArray[np.int64]) -> None:
        """Note what the sweep left in its registers."""
        self._start = int(state[sweep.OUT_START])
        self._changed = bool(state[sweep.CHANGED])
        self._stats = CleanStats(
            messages_read=int(state[sweep.MESSAGES_READ]),
            messages_written=int(state[sweep.MESSAGES_WRITTEN]),
            bytes_read=self._group.log_bytes,
            bytes_written=self.buffer.size - self._start,
        )

    def finish(self) -> CleanedGroup:
        """Write the group's files and let go of the memory."""
        batches, self.buffer = self.buffer[self._start :], np.zeros(0, dtype=np.uint8)
        return self._cleaning.finish_group(self._group, batches, self._changed, self._aborted, self._stats)


class _Scratch:
    """Buffers that kernels work in; each grows to what the largest batch needs."""

    def __init__(self) -> None:
        self.payload = padded_buffer(0)
        self.raw = padded_buffer(0)
        self.positions = np.zeros(_FIRST_RECORDS, dtype=np.int64)
        self._chunks: dict[int, ByteArray] = {}
        self.make_records_room(_FIRST_RECORDS)

    def make_records_room(self, rows: int) -> None:
        rows = 1 << (rows - 1).bit_length()
        self.records = np.zeros((rows, decode.RECORD_FIELDS), dtype=np.int64)
        self.hashes = np.zeros((rows, 2), dtype=np.uint64)
        self.kept = np.zeros(rows, dtype=np.uint8)

    def make_raw_room(self, size_bytes: int) -> None:
        self.raw = padded_buffer(2 * size_bytes)

    def make_positions_room(self) -> None:
        self.positions = np.zeros(2 * self.positions.size, dtype=np.int64)

    def hold_payload(self, content: bytes | bytearray | memoryview) -> int:
        """Copy decompressed records to where kernels may read past their end; returns their size."""
        size_bytes = memoryview(content).nbytes
        if self.payload.size < size_bytes + decode.PADDING_BYTES:
            self.payload = padded_buffer(2 * size_bytes)
        self.payload[:size_bytes] = np.frombuffer(content, dtype=np.uint8)
        return size_bytes

    def chunk_buffer(self, number: int, size_bytes: int) -> ByteArray:
        """One of two buffers, so that one chunk can be read while the other is swept."""
        buffer = self._chunks.get(number % 2)
        if buffer is None or buffer.size < size_bytes + decode.PADDING_BYTES:
            buffer = self._chunks[number % 2] = padded_buffer(size_bytes)
        return buffer


class _SourceFiles:
    """Open source segments; each is checked to be the one that was listed when it is opened."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._open: tuple[SegmentRef, int] | None = None
        stack.callback(self._close)

    def path(self, segment: SegmentRef) -> Path:
        return self._directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)

    def descriptor(self, segment: SegmentRef) -> int:
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


def _lazy_pool(stack: ExitStack, name: str) -> Callable[[], ThreadPoolExecutor]:
    """One thread, made when first asked for and joined when the stack unwinds."""
    made: list[ThreadPoolExecutor] = []

    def pool() -> ThreadPoolExecutor:
        if not made:
            made.append(stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix=name)))
        return made[0]

    return pool


def _anonymous(size_bytes: int) -> ByteArray:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=flags)
    return np.frombuffer(memory, dtype=np.uint8)


def _cuts_between(positions: npt.NDArray[np.int64], last_cut: int) -> Iterator[int]:
    """Indexes into ascending `positions` that are CHUNK_BYTES or more behind the cut before them."""
    while True:
        index = int(np.searchsorted(positions, last_cut + CHUNK_BYTES))
        if index >= positions.size:
            return
        yield index
        last_cut = int(positions[index])


def _active_producers(plan: CleaningPlan) -> ActiveProducers:
    entries = sorted(plan.view.producers, key=lambda entry: entry.producer_id)
    return ActiveProducers(
        np.array([entry.producer_id for entry in entries], dtype=np.int64),
        np.array([entry.last_offset for entry in entries], dtype=np.int64),
        np.array([entry.producer_epoch for entry in entries], dtype=np.int64),
    )


def _map_limit(config: CompactionConfig) -> int:
    """Keys that a bounded map may hold: Kafka's slots times the load factor, truncated."""
    if config.dedupe_buffer_bytes is None:
        return INT64_MAX
    return int(config.dedupe_buffer_bytes // _MAP_SLOT_BYTES * config.dedupe_load_factor)
