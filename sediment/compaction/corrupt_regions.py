"""The corrupt regions of a partition, and the records that must not be dropped because of them.

    segment   | batch | batch | unreadable | batch | batch |
                              ^ kept byte for byte; all markers, and tombstones from this segment on, are also kept

docs/trust/corruption.md explains why.  This module is used if the cleaner finds a corrupt batch and the caller wants to
keep such batches.

After an unreadable region, reading continues at:
1. the next good batch, if the lengths in the bad batches lead to it
2. otherwise, the next good batch that has an offset index entry
3. otherwise, the end of the segment

Invariants: this module only reads files.  It trusts nothing in an unreadable batch, not even the header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction.chunk_reader import CHUNK_BYTES, ByteArray, ChunkBoundaries, Progress, boundaries_between
from sediment.compaction.grouping import CleaningPlan
from sediment.compaction.kernels.cleaned_transaction_metadata import (
    DISCARD,
    LEAVES_HEADER,
    TOMBSTONES_STAY,
    UNMAPPED,
    UNREADABLE,
)
from sediment.compaction.prepared_swap import UnreadableBatch
from sediment.compaction.transaction_scan import aborted_of_round
from sediment.segment_io.compiled import padding
from sediment.segment_io.compiled.padding import padded_buffer, padded_copy
from sediment.segment_io.compiled.status import BAD_LENGTH, BAD_RECORD_COUNT, LEGACY_MAGIC, OK
from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError, CorruptDataError, UnsupportedDataError
from sediment.segment_io.format import batch_headers, record_decoder
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT
from sediment.segment_io.format.checksum import check_crc
from sediment.segment_io.format.compression.batch_codecs import decompress
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
from sediment.segment_io.format.offset_index import OffsetIndex, parse_offset_index
from sediment.segment_io.format.record_decoder import RECORD_FIELDS
from sediment.segment_io.format.upgrade import FIRST_OFFSET, LAST_OFFSET, upgrade_wrapper
from sediment.segment_io.fs import Fs, ReadableFile
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import HeaderScan, read_into

_UNDECIDED = UNMAPPED | TOMBSTONES_STAY


@dataclass(frozen=True, slots=True)
class CorruptRegions:
    """The unreadable batches of a partition in log order, keyed by the base offset of their segment.

    `untouchable` contains the base offsets of segments that must not be replaced.
    """

    by_segment: Mapping[int, tuple[UnreadableBatch, ...]]
    untouchable: frozenset[int]

    def of(self, segments: Sequence[SegmentRef]) -> tuple[UnreadableBatch, ...]:
        return tuple(batch for segment in segments for batch in self.by_segment.get(segment.base_offset, ()))


NOTHING_CORRUPT = CorruptRegions({}, frozenset())


@dataclass(frozen=True, slots=True)
class CorruptLogScan:
    """The result of a forward scan of a partition with corrupt regions.

    `certain_end_offset` is the base offset of a segment.  Below this offset, corruption does not change the result, so
    a later round need not read the records below it again.
    """

    boundaries: dict[int, ChunkBoundaries]
    certain_end_offset: int


# ------------------------------------------------------------------------------------------ finding corrupt regions
def find_corrupt_regions(plan: CleaningPlan, fs: Fs, progress: Progress) -> CorruptRegions:
    every = plan.view.listing.segments
    ends = {segment.base_offset: following.base_offset for segment, following in pairwise(every)}
    found, untouchable = {}, set()
    for segment in plan.segments:
        directory, end_offset = plan.view.listing.path, ends.get(segment.base_offset, INT64_MAX)
        index = _index_of(directory, segment, fs)
        with closing(fs.open_readable(directory / _log_name(segment))) as file:
            reading = _SegmentReading(segment, end_offset, file, index, plan.config.max_decompressed_batch_bytes)
            unreadable = tuple(reading.unreadable())
        progress(segment.log_bytes)
        if unreadable:
            found[segment.base_offset] = unreadable
            if not reading.is_scannable:
                # A broker may read a wrong last offset from the batch headers of such a segment.  If a crash
                # interrupted the replacement, a broker would use the wrong offset at its next start.
                untouchable.add(segment.base_offset)
    return CorruptRegions(found, frozenset(untouchable))


def first_error(plan: CleaningPlan, corrupt: CorruptRegions) -> CorruptBatchError:
    first = corrupt.by_segment[min(corrupt.by_segment)][0]
    return CorruptBatchError(
        first.what,
        path=str(plan.view.listing.path / segment_file_name(first.segment, SegmentFileKind.LOG)),
        position=first.position,
        offset=first.offset,
        advice=RESTORE_OR_LEAVE_OUT,
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
class _BatchCheck:
    size_bytes: int
    last_offset: int = -1
    problem: str | None = None


@dataclass(slots=True)
class _SegmentReading:
    segment: SegmentRef
    end_offset: int
    file: ReadableFile
    index: OffsetIndex | None
    limit_bytes: int
    is_scannable: bool = True
    buffer: ByteArray = field(default_factory=lambda: padded_buffer(CHUNK_BYTES))
    start: int = 0
    filled: int = 0
    row: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(1, dtype=BATCH_ROW))
    records: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((1024, RECORD_FIELDS), dtype=np.int64))

    def unreadable(self) -> Iterator[UnreadableBatch]:
        """Set `is_scannable` to False if the lengths of the batches do not lead to a good last batch."""
        position, next_offset = 0, self.segment.base_offset
        while position < self.segment.log_bytes:
            check = self._check_batch(position)
            if check.problem is None:
                position += check.size_bytes
                next_offset = check.last_offset + 1
                continue
            ends = self._chain_from(position)
            if not ends or ends[-1] == self.segment.log_bytes:
                self.is_scannable = False
            for end in ends or [self._indexed_after(position)]:
                what = self._check_batch(position).problem or batch_headers.STATUS_TEXT[BAD_LENGTH]
                yield UnreadableBatch(self.segment.base_offset, position, end - position, next_offset, what)
                position = end

    def _chain_from(self, position: int) -> list[int]:
        """The list is empty if the length of a bad batch cannot be trusted."""
        ends: list[int] = []
        while position < self.segment.log_bytes:
            check = self._check_batch(position)
            if check.problem is None:
                break
            if not check.size_bytes:
                return []
            position += check.size_bytes
            ends.append(position)
        return ends

    def _indexed_after(self, position: int) -> int:
        if self.index is not None:
            for slot in range(len(self.index)):
                offset, indexed = self.index[slot].offset, self.index[slot].position
                if position < indexed < self.segment.log_bytes:
                    check = self._check_batch(indexed)
                    if check.problem is None and check.last_offset == offset:
                        return indexed
        return self.segment.log_bytes

    def _hold(self, position: int, count: int) -> int:
        count = min(count, self.segment.log_bytes - position)
        if not self.start <= position <= position + count <= self.start + self.filled:
            if self.buffer.size < count + padding.PADDING_BYTES:
                self.buffer = padded_buffer(count)
            wanted = min(self.buffer.size - padding.PADDING_BYTES, self.segment.log_bytes - position)
            self.start, self.filled = position, read_into(self.file, self.buffer, 0, wanted, position)
        return position - self.start

    def _check_batch(self, position: int) -> _BatchCheck:
        at = self._hold(position, BATCH_HEADER_BYTES)
        rest = self.segment.log_bytes - position
        status, size_bytes = batch_headers.batch_at(self.buffer.ctypes.data, at, at + rest)
        if status not in (OK, LEGACY_MAGIC):
            what = batch_headers.STATUS_TEXT.get(status, "the segment ends inside a batch")
            return _BatchCheck(size_bytes if 0 < size_bytes <= rest else 0, problem=what)
        at = self._hold(position, size_bytes)
        try:
            first, last = self._read_legacy(at, size_bytes) if status == LEGACY_MAGIC else self._read(at, size_bytes)
        except (CorruptBatchError, UnsupportedDataError) as error:
            return _BatchCheck(size_bytes, problem=error.what)
        if not self.segment.base_offset <= first <= last < self.end_offset:
            return _BatchCheck(size_bytes, problem=f"its offsets {first} to {last} are outside its segment")
        return _BatchCheck(size_bytes, last)

    def _read(self, at: int, size_bytes: int) -> tuple[int, int]:
        address = self.buffer.ctypes.data
        _raise_unless_ok(check_crc(address + at, size_bytes))
        status, filled, _, _ = batch_headers.read_headers(address, at, at + size_bytes, 0, self.row)
        if filled == 0:
            _raise_unless_ok(status)
        row = self.row[0]
        count, codec = int(row["record_count"]), int(row["attributes"]) & CODEC_MASK
        if count > 0:
            payload = self.buffer[at + BATCH_HEADER_BYTES : at + size_bytes]
            content = decompress(codec, payload.data, limit_bytes=self.limit_bytes)
            if count * MIN_RECORD_BYTES > len(content):
                _raise_unless_ok(BAD_RECORD_COUNT)
            padded = padded_copy(content)
            if len(self.records) < count:
                self.records = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
            _raise_unless_ok(record_decoder.decode_records(padded.ctypes.data, 0, len(content), count, self.records))
        return int(row["base_offset"]), int(row["last_offset"])

    def _read_legacy(self, at: int, size_bytes: int) -> tuple[int, int]:
        address = self.buffer.ctypes.data
        _raise_unless_ok(check_legacy_crc(address + at, size_bytes))
        if self.buffer[at + LEGACY_ATTRIBUTES] & CODEC_MASK:
            wrapper = self.buffer[at : at + size_bytes].tobytes()
            known = upgrade_wrapper(wrapper, limit_bytes=self.limit_bytes).known
            return int(known[FIRST_OFFSET]), int(known[LAST_OFFSET])
        _raise_unless_ok(decode_entry(address, at, size_bytes, self.records[0]))
        offset = int.from_bytes(self.buffer[at + BASE_OFFSET : at + BASE_OFFSET + 8].tobytes(), "big", signed=True)
        return offset, offset


def _raise_unless_ok(status: int) -> None:
    if status != OK:
        raise CorruptBatchError(STATUS_TEXT[status])


# ------------------------------------------------------------------------------------ records kept due to corruption
@dataclass(frozen=True, slots=True)
class _Event:
    """A batch that can affect a transaction: data or a marker of `producer_id`.

    `producer_id` is None for an unreadable batch.
    """

    segment: int
    ordinal: int
    producer_id: int | None
    control_type: int | None
    last_offset: int


def scan_corrupt_log(plan: CleaningPlan, corrupt: CorruptRegions, fs: Fs, progress: Progress) -> CorruptLogScan:
    scans: dict[int, _SegmentScan] = {}
    events: list[_Event] = []
    is_after_corruption = False
    for segment in plan.segments:
        scan = _SegmentScan(plan.view.listing.path, segment, corrupt.of([segment]), fs)
        is_after_corruption = is_after_corruption or bool(scan.unreadable)
        events.extend(scan.run(is_after_corruption, progress))
        scans[segment.base_offset] = scan
    certain_end = _decide_transactions(plan, scans, events)
    _keep_producers(plan, scans)
    following = {a.base_offset: b.base_offset for a, b in pairwise(plan.view.listing.segments)}
    boundaries = {base: scan.boundaries(plan, following.get(base, INT64_MAX)) for base, scan in scans.items()}
    return CorruptLogScan(boundaries, min([certain_end, *corrupt.by_segment]))


def _keep_producers(plan: CleaningPlan, scans: Mapping[int, _SegmentScan]) -> None:
    """Keep the header of each active producer's last readable batch."""
    waiting = {entry.producer_id for entry in plan.view.producers}
    for base in sorted(scans, reverse=True):
        for producer_id in waiting & scans[base].last_batches.keys():
            scans[base].batch_flags[scans[base].last_batches[producer_id]] |= LEAVES_HEADER
        # The producer's very last batch may be one of the unreadable batches.
        waiting -= scans[base].last_batches.keys()


class _SegmentScan:
    """`batch_flags` has one uint8 for each batch and one for each piece of an unreadable range.

    `last_batches` maps a producer id to the index of the producer's last batch.
    """

    def __init__(self, directory: Path, segment: SegmentRef, unreadable: Sequence[UnreadableBatch], fs: Fs) -> None:
        self.segment = segment
        self.unreadable = unreadable
        self._fs = fs
        self._path = directory / _log_name(segment)
        self._positions = [0]
        self._ordinals = [0]
        self._pieces: list[tuple[int, int]] = []
        self._batch_flags: list[ByteArray] = []
        self._batches = 0
        self.last_batches: dict[int, int] = {}
        self.batch_flags = np.zeros(0, dtype=np.uint8)

    def run(self, is_after_corruption: bool, progress: Progress) -> Iterator[_Event]:
        start = 0
        for bad in (*self.unreadable, None):
            end = self.segment.log_bytes if bad is None else bad.position
            yield from self._readable(start, end, is_after_corruption, progress)
            if bad is not None:
                yield _Event(self.segment.base_offset, self._batches, None, None, -1)
                start = bad.position + bad.size_bytes
                self._note_unreadable(bad.position, start)
        if self._batch_flags:
            self.batch_flags = np.concatenate(self._batch_flags)
        if self.unreadable and not self.batch_flags[-1] & UNREADABLE:
            # A broker reads the last batch of the cleaned segment, so a readable batch must be last.
            self.batch_flags[-1] |= LEAVES_HEADER

    def _readable(self, start: int, end: int, is_after_corruption: bool, progress: Progress) -> Iterator[_Event]:
        headers = HeaderScan(self._path, start, size_bytes=end, fs=self._fs)
        for rows in headers:
            progress(int(rows["size_bytes"].sum()))
            self._note(rows["position"])
            self._batch_flags.append(np.full(len(rows), TOMBSTONES_STAY if is_after_corruption else 0, dtype=np.uint8))
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
            # In reversed order, the first batch of a producer is the producer's last batch.
            producers, from_end = np.unique(rows["producer_id"][::-1], return_index=True)
            ordinals = self._batches + len(rows) - 1 - from_end
            self.last_batches.update(zip(producers.tolist(), ordinals.tolist(), strict=True))
            self._batches += len(rows)
        if headers.end_position != end:
            raise CorruptBatchError(
                "the segment ends inside a batch", path=str(self._path), position=headers.end_position
            )

    def _note_unreadable(self, start: int, end: int) -> None:
        starts = np.arange(start, end, CHUNK_BYTES, dtype=np.int64)
        self._pieces.extend((int(piece), min(int(piece) + CHUNK_BYTES, end)) for piece in starts)
        self._note(starts)
        self._batch_flags.append(np.full(starts.size, UNREADABLE, dtype=np.uint8))
        self._batches += starts.size

    def _note(self, positions: npt.NDArray[np.int64]) -> None:
        for index in boundaries_between(positions, self._positions[-1]):
            self._positions.append(int(positions[index]))
            self._ordinals.append(self._batches + int(index))

    def boundaries(self, plan: CleaningPlan, end_offset: int) -> ChunkBoundaries:
        """Return the result of the scan, with all transaction index entries, because all markers are kept."""
        base = self.segment.base_offset
        kept = sorted(
            (e for e in aborted_of_round(plan) if base <= e.last_offset < end_offset), key=lambda e: e.last_offset
        )
        return ChunkBoundaries(
            np.array([*self._positions, self.segment.log_bytes], dtype=np.int64),
            np.array([*self._ordinals, self._batches], dtype=np.int64),
            self.batch_flags,
            tuple(kept),
            tuple(self._pieces),
        )


def _decide_transactions(plan: CleaningPlan, scans: Mapping[int, _SegmentScan], events: Sequence[_Event]) -> int:
    """Set the flags of transactional data batches, newest first.

    Return the base offset of the first segment with data whose transaction has an unknown outcome.

    The producer's next marker after the data decides this outcome.
    """
    aborted = {(entry.producer_id, entry.last_offset) for entry in aborted_of_round(plan)}
    certain_end = INT64_MAX
    outcomes: dict[int, int] = {}
    for event in reversed(events):
        if event.producer_id is None:
            # If an unreadable batch is between the data and the marker, the outcome is unknown.
            outcomes.clear()
        elif event.control_type is not None:
            # A transaction is treated as aborted only if it has both an ABORT marker and an entry in the transaction
            # index.
            is_aborted = (event.producer_id, event.last_offset) in aborted
            outcomes[event.producer_id] = _outcome(event.control_type, is_aborted)
        else:
            outcome = outcomes.get(event.producer_id, _UNDECIDED)
            scans[event.segment].batch_flags[event.ordinal] |= outcome
            if outcome == _UNDECIDED:
                certain_end = min(certain_end, event.segment)
    return certain_end


def _outcome(control_type: int, is_aborted: bool) -> int:
    if control_type == CONTROL_COMMIT and not is_aborted:
        return 0
    if control_type == CONTROL_ABORT and is_aborted:
        return DISCARD | UNMAPPED
    return _UNDECIDED
