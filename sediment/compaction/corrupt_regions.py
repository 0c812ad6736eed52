"""What of a partition cannot be read, and what must not be dropped because of it (why: docs/trust/corruption.md).

    segment   | batch | batch | unreadable | batch | batch |
                              ^ kept byte for byte; tombstones of this segment and those behind it stay, all markers do

A partition is looked at in this way only after cleaning it met damage and was asked to keep it.  Every batch is read as
a consumer would; what fails is unreadable up to where reading surely goes on: as far as the lengths of batches lead to
one that is good, else to a batch that the offset index knows, else to the segment's end.

Invariants: pure but for reading; nothing is believed of an unreadable batch, not even its header.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction.chunks import CHUNK_BYTES, ByteArray, ChunkBoundaries, Progress, boundaries_between
from sediment.compaction.grouping import CleaningPlan, SegmentGroup
from sediment.compaction.kernels.transactions import DISCARD, LEAVES_HEADER, TOMBSTONES_STAY, UNMAPPED, UNREADABLE
from sediment.compaction.prepared_swap import UnreadableBatch
from sediment.segment_io.compiled.status import BAD_LENGTH, BAD_RECORD_COUNT, LEGACY_MAGIC, OK
from sediment.segment_io.errors import CorruptBatchError, CorruptDataError, UnsupportedDataError
from sediment.segment_io.format import decode
from sediment.segment_io.format.codecs import decompress
from sediment.segment_io.format.decode import BATCH_ROW, RECORD_FIELDS, STATUS_TEXT
from sediment.segment_io.format.indexes import OffsetIndex, parse_offset_index
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    FIRST_MAGIC_WITH_PRODUCERS,
    INT64_MAX,
    LEGACY_ATTRIBUTES,
    MIN_RECORD_BYTES,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import check_legacy_crc, decode_entry
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.upgrade import FIRST_OFFSET, LAST_OFFSET, upgrade_wrapper
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import HeaderScan, padded_buffer, read_into

_UNDECIDED = UNMAPPED | TOMBSTONES_STAY


@dataclass(frozen=True, slots=True)
class CorruptRegions:
    """The unreadable batches of a partition's segments, by base offset and in log order; only segments with some.

    `untouchable` are those of them, by base offset, that a broker cannot walk to a last offset that is surely right:
    they are not replaced, because a start after a crash in the middle of it would go by that offset.
    """

    by_segment: Mapping[int, tuple[UnreadableBatch, ...]]
    untouchable: frozenset[int]

    def of(self, segments: Sequence[SegmentRef]) -> tuple[UnreadableBatch, ...]:
        """Those of `segments`."""
        return tuple(batch for segment in segments for batch in self.by_segment.get(segment.base_offset, ()))


@dataclass(frozen=True, slots=True)
class CorruptLogScan:
    """What a forward walk through a damaged partition gives the sweep.

    `cuts` by base offset of the segment.  `certain_end_offset`: everything below it is as if there were no damage, so
    that a later round need not look at it again; the base offset of a segment.
    """

    cuts: dict[int, ChunkBoundaries]
    certain_end_offset: int


def isolate(groups: Sequence[SegmentGroup], damage: CorruptRegions) -> tuple[SegmentGroup, ...]:
    """`groups` with each damaged segment in a group of its own."""
    isolated: list[SegmentGroup] = []
    for group in groups:
        runs: list[list[SegmentRef]] = []
        for segment in group.segments:
            is_damaged = segment.base_offset in damage.by_segment
            if runs and not is_damaged and runs[-1][-1].base_offset not in damage.by_segment:
                runs[-1].append(segment)
            else:
                runs.append([segment])
        ends = [*(run[0].base_offset - 1 for run in runs[1:]), group.last_offset]
        isolated.extend(SegmentGroup(tuple(run), end) for run, end in zip(runs, ends, strict=True))
    return tuple(isolated)


# ----------------------------------------------------------------------------------------------------- finding damage
def find_corrupt_regions(plan: CleaningPlan, fs: Fs, progress: Progress) -> CorruptRegions:
    """Read every batch of the plan's segments; CRCs, records and compressed streams are all checked.

    Raises:
        OSError: a segment cannot be read from its disk.
    """
    every = plan.view.listing.segments
    ends = {segment.base_offset: following.base_offset for segment, following in pairwise(every)}
    found, untouchable = {}, set()
    for segment in (segment for group in plan.groups for segment in group.segments):
        directory = plan.view.listing.path
        descriptor = fs.open_to_read(directory / _log_name(segment))
        try:
            end_offset = ends.get(segment.base_offset, INT64_MAX)
            limit_bytes = plan.config.max_decompressed_batch_bytes
            reading = _Reading(segment, end_offset, descriptor, _index_of(directory, segment, fs), limit_bytes)
            unreadable = tuple(reading.unreadable())
        finally:
            os.close(descriptor)
        progress(segment.log_bytes)
        if unreadable:
            found[segment.base_offset] = unreadable
            if not reading.is_walkable:
                untouchable.add(segment.base_offset)
    return CorruptRegions(found, frozenset(untouchable))


def first_error(plan: CleaningPlan, damage: CorruptRegions) -> CorruptBatchError:
    """Return the error of the first batch that cannot be read; there is one."""
    first = damage.by_segment[min(damage.by_segment)][0]
    return CorruptBatchError(
        first.what,
        path=str(plan.view.listing.path / segment_file_name(first.segment, SegmentFileKind.LOG)),
        position=first.position,
        offset=first.offset,
        advice="restore the segment from a replica or a backup, or leave this partition out",
    )


def _log_name(segment: SegmentRef) -> str:
    return segment_file_name(segment.base_offset, SegmentFileKind.LOG)


def _index_of(directory: Path, segment: SegmentRef, fs: Fs) -> OffsetIndex | None:
    if not segment.offset_index_bytes:
        return None
    name = segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
    try:
        return parse_offset_index(fs.read_bytes(directory / name), segment.base_offset)
    except CorruptDataError:
        return None


@dataclass(slots=True)
class _Verdict:
    """What reading one batch found: its size where its length may be believed, its offsets, or what is `wrong`."""

    size_bytes: int
    last_offset: int = -1
    wrong: str | None = None


@dataclass(slots=True)
class _Reading:
    """One segment, read batch by batch; its offsets lie below `end_offset`."""

    segment: SegmentRef
    end_offset: int
    descriptor: int
    index: OffsetIndex | None
    limit_bytes: int
    is_walkable: bool = True
    buffer: ByteArray = field(default_factory=lambda: padded_buffer(CHUNK_BYTES))
    start: int = 0
    filled: int = 0
    row: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(1, dtype=BATCH_ROW))
    records: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((1024, RECORD_FIELDS), dtype=np.int64))

    def unreadable(self) -> Iterator[UnreadableBatch]:
        """What cannot be read, in log order; then `is_walkable` says whether lengths lead to a good last batch."""
        position, next_offset = 0, self.segment.base_offset
        while position < self.segment.log_bytes:
            verdict = self._judge(position)
            if verdict.wrong is None:
                position += verdict.size_bytes
                next_offset = verdict.last_offset + 1
                continue
            ends = self._chain_from(position)
            if not ends or ends[-1] == self.segment.log_bytes:
                self.is_walkable = False
            for end in ends or [self._indexed_behind(position)]:
                what = self._judge(position).wrong or decode.STATUS_TEXT[BAD_LENGTH]
                yield UnreadableBatch(self.segment.base_offset, position, end - position, next_offset, what)
                position = end

    def _chain_from(self, position: int) -> list[int]:
        """Where the bad batches from `position` on end, if their lengths lead to a good one or the segment's end."""
        ends: list[int] = []
        while position < self.segment.log_bytes:
            verdict = self._judge(position)
            if verdict.wrong is None:
                break
            if not verdict.size_bytes:
                return []
            position += verdict.size_bytes
            ends.append(position)
        return ends

    def _indexed_behind(self, position: int) -> int:
        """Where the first good batch behind `position` lies that the offset index knows; else the segment's end."""
        if self.index is not None:
            for slot in range(len(self.index)):
                offset, indexed = self.index[slot].offset, self.index[slot].position
                if position < indexed < self.segment.log_bytes:
                    verdict = self._judge(indexed)
                    if verdict.wrong is None and verdict.last_offset == offset:
                        return indexed
        return self.segment.log_bytes

    def _hold(self, position: int, count: int) -> int:
        """Where `position` of the file lies in the buffer, once it holds `count` bytes from there or the file's end."""
        count = min(count, self.segment.log_bytes - position)
        if not self.start <= position <= position + count <= self.start + self.filled:
            if self.buffer.size < count + decode.PADDING_BYTES:
                self.buffer = padded_buffer(count)
            wanted = min(self.buffer.size - decode.PADDING_BYTES, self.segment.log_bytes - position)
            self.start, self.filled = position, read_into(self.descriptor, self.buffer, 0, wanted, position)
        return position - self.start

    def _judge(self, position: int) -> _Verdict:
        at = self._hold(position, BATCH_HEADER_BYTES)
        rest = self.segment.log_bytes - position
        status, size_bytes = decode.batch_at(self.buffer.ctypes.data, at, at + rest)
        if status not in (OK, LEGACY_MAGIC):
            what = decode.STATUS_TEXT.get(status, "the segment ends inside a batch")
            return _Verdict(size_bytes if 0 < size_bytes <= rest else 0, wrong=what)
        at = self._hold(position, size_bytes)
        try:
            first, last = self._read_legacy(at, size_bytes) if status == LEGACY_MAGIC else self._read(at, size_bytes)
        except (CorruptBatchError, UnsupportedDataError) as error:
            return _Verdict(size_bytes, wrong=error.what)
        if not self.segment.base_offset <= first <= last < self.end_offset:
            return _Verdict(size_bytes, wrong=f"its offsets {first} to {last} are not those of its segment")
        return _Verdict(size_bytes, last)

    def _read(self, at: int, size_bytes: int) -> tuple[int, int]:
        """(first, last offset) of a batch of magic 2 that can be read."""
        address = self.buffer.ctypes.data
        _check(decode.check_crc(address + at, size_bytes))
        status, filled, _, _ = decode.read_headers(address, at, at + size_bytes, 0, self.row)
        if filled == 0:
            _check(status)
        row = self.row[0]
        count, codec = int(row["record_count"]), int(row["attributes"]) & CODEC_MASK
        if count > 0:
            payload = self.buffer[at + BATCH_HEADER_BYTES : at + size_bytes]
            content = np.frombuffer(decompress(codec, payload.data, limit_bytes=self.limit_bytes), dtype=np.uint8)
            if count * MIN_RECORD_BYTES > content.size:
                _check(BAD_RECORD_COUNT)
            padded = padded_buffer(content.size)
            padded[: content.size] = content
            if len(self.records) < count:
                self.records = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
            _check(decode.decode_records(padded.ctypes.data, 0, content.size, count, self.records))
        return int(row["base_offset"]), int(row["last_offset"])

    def _read_legacy(self, at: int, size_bytes: int) -> tuple[int, int]:
        address = self.buffer.ctypes.data
        _check(check_legacy_crc(address + at, size_bytes))
        if self.buffer[at + LEGACY_ATTRIBUTES] & CODEC_MASK:
            wrapper = self.buffer[at : at + size_bytes].tobytes()
            known = upgrade_wrapper(wrapper, limit_bytes=self.limit_bytes).known
            return int(known[FIRST_OFFSET]), int(known[LAST_OFFSET])
        _check(decode_entry(address, at, size_bytes, self.records[0]))
        offset = int.from_bytes(self.buffer[at + BASE_OFFSET : at + BASE_OFFSET + 8].tobytes(), "big", signed=True)
        return offset, offset


def _check(status: int) -> None:
    if status != OK:
        raise CorruptBatchError(STATUS_TEXT[status])


# ---------------------------------------------------------------------------------------------- what stays for its sake
@dataclass(frozen=True, slots=True)
class _Event:
    """What decides transactions, in log order: data or a marker of `producer_id`, or (None) something unreadable."""

    segment: int
    ordinal: int
    producer_id: int | None
    control_type: int | None
    last_offset: int


def scan_corrupt_log(
    plan: CleaningPlan, segments: Sequence[SegmentRef], damage: CorruptRegions, progress: Progress
) -> CorruptLogScan:
    """Cuts and verdicts for a partition of which `damage` is all that cannot be read.

    Raises:
        CorruptBatchError: the segments are not those in which the damage was found.
    """
    walks: dict[int, _SegmentWalk] = {}
    events: list[_Event] = []
    is_behind = False
    for segment in segments:
        walk = _SegmentWalk(plan.view.listing.path, segment, damage.of([segment]))
        is_behind = is_behind or bool(walk.damage)
        events.extend(walk.run(is_behind, progress))
        walks[segment.base_offset] = walk
    certain_end = _judge_transactions(plan, walks, events)
    _keep_producers(plan, walks)
    following = {a.base_offset: b.base_offset for a, b in pairwise(plan.view.listing.segments)}
    cuts = {base: walk.cuts(plan, following.get(base, INT64_MAX)) for base, walk in walks.items()}
    return CorruptLogScan(cuts, min([certain_end, *damage.by_segment]))


def _keep_producers(plan: CleaningPlan, walks: Mapping[int, _SegmentWalk]) -> None:
    """Let the last batch of each active producer that can be read leave a header; its very last may be unreadable."""
    waiting = {entry.producer_id for entry in plan.view.producers}
    for base in sorted(walks, reverse=True):
        for producer_id in waiting & walks[base].last_batches.keys():
            walks[base].verdicts[walks[base].last_batches[producer_id]] |= LEAVES_HEADER
        waiting -= walks[base].last_batches.keys()


class _SegmentWalk:
    """The headers of one segment's readable batches, and the pieces that its unreadable bytes are read in.

    `verdicts` are uint8[batches and pieces]; `last_batches` is the index there of a producer's last batch.
    """

    def __init__(self, directory: Path, segment: SegmentRef, damage: Sequence[UnreadableBatch]) -> None:
        self.segment = segment
        self.damage = damage
        self._path = directory / _log_name(segment)
        self._positions = [0]
        self._ordinals = [0]
        self._pieces: list[tuple[int, int]] = []
        self._verdicts: list[ByteArray] = []
        self._batches = 0
        self.last_batches: dict[int, int] = {}
        self.verdicts = np.zeros(0, dtype=np.uint8)

    def run(self, is_behind: bool, progress: Progress) -> Iterator[_Event]:
        """Walk; `is_behind` says that something unreadable precedes the segment, or is in it."""
        start = 0
        for bad in (*self.damage, None):
            end = self.segment.log_bytes if bad is None else bad.position
            yield from self._readable(start, end, is_behind, progress)
            if bad is not None:
                yield _Event(self.segment.base_offset, self._batches, None, None, -1)
                start = bad.position + bad.size_bytes
                self._unreadable(bad.position, start)
        if self._verdicts:
            self.verdicts = np.concatenate(self._verdicts)
        if self.damage and not self.verdicts[-1] & UNREADABLE:
            # What a broker finds last in the cleaned segment has to be readable too.
            self.verdicts[-1] |= LEAVES_HEADER

    def _readable(self, start: int, end: int, is_behind: bool, progress: Progress) -> Iterator[_Event]:
        walk = HeaderScan(self._path, start, size_bytes=end)
        for rows in walk:
            progress(int(rows["size_bytes"].sum()))
            self._note(rows["position"])
            self._verdicts.append(np.full(len(rows), TOMBSTONES_STAY if is_behind else 0, dtype=np.uint8))
            modern = rows["magic"] >= FIRST_MAGIC_WITH_PRODUCERS
            told = modern & (rows["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT) != 0)
            for index in np.flatnonzero(told).tolist():
                row = rows[index]
                control = int(row["control_type"]) if row["attributes"] & CONTROL_BIT else None
                yield _Event(
                    self.segment.base_offset,
                    self._batches + index,
                    int(row["producer_id"]),
                    control,
                    int(row["last_offset"]),
                )
            # The first of the reversed is the last.
            producers, from_end = np.unique(rows["producer_id"][::-1], return_index=True)
            ordinals = self._batches + len(rows) - 1 - from_end
            self.last_batches.update(zip(producers.tolist(), ordinals.tolist(), strict=True))
            self._batches += len(rows)
        if walk.end_position != end:
            raise CorruptBatchError("the segment ends inside a batch", path=str(self._path), position=walk.end_position)

    def _unreadable(self, start: int, end: int) -> None:
        starts = np.arange(start, end, CHUNK_BYTES, dtype=np.int64)
        self._pieces.extend((int(piece), min(int(piece) + CHUNK_BYTES, end)) for piece in starts)
        self._note(starts)
        self._verdicts.append(np.full(starts.size, UNREADABLE, dtype=np.uint8))
        self._batches += starts.size

    def _note(self, positions: npt.NDArray[np.int64]) -> None:
        for index in boundaries_between(positions, self._positions[-1]):
            self._positions.append(int(positions[index]))
            self._ordinals.append(self._batches + int(index))

    def cuts(self, plan: CleaningPlan, end_offset: int) -> ChunkBoundaries:
        """What the walk found; every transaction index entry of the segment lives on, as its marker does."""
        base = self.segment.base_offset
        kept = sorted((e for e in plan.aborted if base <= e.last_offset < end_offset), key=lambda e: e.last_offset)
        return ChunkBoundaries(
            np.array([*self._positions, self.segment.log_bytes], dtype=np.int64),
            np.array([*self._ordinals, self._batches], dtype=np.int64),
            self.verdicts,
            tuple(kept),
            tuple(self._pieces),
        )


def _judge_transactions(plan: CleaningPlan, walks: Mapping[int, _SegmentWalk], events: Sequence[_Event]) -> int:
    """Set the verdicts on transactional data, newest first; returns the base of the first segment with undecided data.

    Data is decided by the next marker of its producer, if nothing unreadable lies between.  An aborted transaction is
    one whose marker says so and the transaction index too.
    """
    aborted = {(entry.producer_id, entry.last_offset) for entry in plan.aborted}
    certain_end = INT64_MAX
    outcomes: dict[int, int] = {}
    for event in reversed(events):
        if event.producer_id is None:
            outcomes.clear()
        elif event.control_type is not None:
            is_aborted = (event.producer_id, event.last_offset) in aborted
            outcomes[event.producer_id] = _outcome(event.control_type, is_aborted)
        else:
            outcome = outcomes.get(event.producer_id, _UNDECIDED)
            walks[event.segment].verdicts[event.ordinal] |= outcome
            if outcome == _UNDECIDED:
                certain_end = min(certain_end, event.segment)
    return certain_end


def _outcome(control_type: int, is_aborted: bool) -> int:
    if control_type == CONTROL_COMMIT and not is_aborted:
        return 0
    if control_type == CONTROL_ABORT and is_aborted:
        return DISCARD | UNMAPPED
    return _UNDECIDED
