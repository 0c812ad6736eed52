"""Writing rebuilt batches as segment files with indexes, under names that loaders ignore.

Index entries follow the rule of `format.index_appends` (kafka-log 01 §7.5).  If an index is full, Kafka fails.
Sediment does not fail.  `lay_out_segments` keeps the entries that fit, because look-ups also work in an index with
fewer entries.  `write_segments` begins another segment, so that a broker that rebuilds the indexes does not fail,
either.

A batch that would exceed Kafka's limits on file size or offsets begins another segment (`lay_out_segments`).  No file
is preallocated.

Invariant: a file is written once, from start to end, and synced before its name is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64
from sediment.segment_io.format.index_appends import (
    OFFSET_INDEX_BYTES,
    PROGRESS_FIELDS,
    SINCE_ENTRY_BYTES,
    TIME_INDEX_BYTES,
    IndexEntries,
    add_batch,
    end_time_index,
    start_indexes,
)
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    INT32_MAX,
    LAST_OFFSET_DELTA,
    LEGACY_TIMESTAMP,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_SEGMENT_BYTES,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
)
from sediment.segment_io.format.names import (
    Attempt,
    PartFile,
    PartSegment,
    SegmentFileKind,
    part_file_name,
    segment_file_name,
)
from sediment.segment_io.format.transaction_index import AbortedTxn, encode_transaction_index
from sediment.segment_io.fs import Fs

ByteArray = npt.NDArray[np.uint8]

_NOTHING_UNREADABLE = np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SegmentImage:
    base_offset: int
    log: ByteArray
    offset_index: bytes
    time_index: bytes
    transaction_index: bytes

    def files(self) -> Iterator[tuple[SegmentFileKind, memoryview]]:
        """Yield (kind, content) of each file in Kafka's renaming order; leave out an empty transaction index."""
        yield SegmentFileKind.LOG, self.log.data
        yield SegmentFileKind.OFFSET_INDEX, memoryview(self.offset_index)
        yield SegmentFileKind.TIME_INDEX, memoryview(self.time_index)
        if self.transaction_index:
            yield SegmentFileKind.TRANSACTION_INDEX, memoryview(self.transaction_index)


@kernel
def _index_batches(
    base: int,
    size_bytes: int,
    file_position: int,
    max_segment_bytes: int,
    ends_at_full_index: bool,
    unreadable: npt.NDArray[np.int64],
    indexes: IndexEntries,
) -> int:
    """Index the next batches of a segment until a batch does not fit; return the number of indexed log bytes.

    `file_position` is the size of the segment before these batches.  `unreadable`, int64[n, 2], contains (start, end)
    of bytes that are not batches; the log always ends with a batch.  For each segment, call `start_indexes` first and
    `end_time_index` last.  With `ends_at_full_index`, a batch that needs an index entry does not fit if one of the
    indexes is full.
    """
    progress, interval_bytes = indexes.progress, indexes.interval_bytes
    position = 0
    skipped = 0
    while position < size_bytes:
        if skipped < unreadable.shape[0] and position == unreadable[skipped, 0]:
            # Force an entry, because otherwise a look-up of a later offset would have to read across unreadable bytes.
            progress[SINCE_ENTRY_BYTES] = interval_bytes + 1
            position = unreadable[skipped, 1]
            skipped += 1
            continue
        address = base + position
        batch_bytes = load_i32(address + BATCH_LENGTH) + LOG_OVERHEAD_BYTES
        last_offset = load_i64(address + BASE_OFFSET)
        timestamp = NO_TIMESTAMP
        magic = load_i8(address + MAGIC)
        if magic >= 2:
            last_offset += load_i32(address + LAST_OFFSET_DELTA)
            timestamp = load_i64(address + MAX_TIMESTAMP)
        elif magic == 1:
            timestamp = load_i64(address + LEGACY_TIMESTAMP)
        if last_offset - indexes.base_offset > INT32_MAX or file_position + position + batch_bytes > max_segment_bytes:
            break
        if ends_at_full_index and progress[SINCE_ENTRY_BYTES] > interval_bytes:
            has_offset_room = progress[OFFSET_INDEX_BYTES] + OFFSET_ENTRY_BYTES <= indexes.offset_entries.size
            # The last slot of a time index is reserved.
            if not has_offset_room or progress[TIME_INDEX_BYTES] + 2 * TIME_ENTRY_BYTES > indexes.time_entries.size:
                break
        add_batch(
            last_offset,
            timestamp,
            file_position + position,
            batch_bytes,
            indexes,
        )
        position += batch_bytes
    return position


def lay_out_segments(
    batches: ByteArray,
    base_offset: int,
    aborted: Sequence[AbortedTxn],
    *,
    index_interval_bytes: int,
    segment_index_bytes: int,
    max_segment_bytes: int = MAX_SEGMENT_BYTES,
    unreadable: Sequence[tuple[int, int]] = (),
) -> tuple[SegmentImage, ...]:
    """Return the segments of `batches`, uint8[n], which contains whole batches of any magic in log order.

    `aborted` are the transaction index entries to keep, in the order of their markers.  `unreadable` contains (start,
    end) of bytes that are not batches; index entries never refer to them.
    """
    images: list[SegmentImage] = []
    progress = np.zeros(PROGRESS_FIELDS, dtype=np.int64)
    start = 0
    while True:
        rest = batches[start:]
        most_entries = rest.size // max(index_interval_bytes, BATCH_HEADER_BYTES) + 2
        offset_entries = np.zeros(min(segment_index_bytes, most_entries * OFFSET_ENTRY_BYTES), dtype=np.uint8)
        time_limit = segment_index_bytes // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES
        time_entries = np.zeros(min(time_limit, (most_entries + 1) * TIME_ENTRY_BYTES), dtype=np.uint8)
        start_indexes(progress)
        indexes = IndexEntries(base_offset, index_interval_bytes, progress, offset_entries, time_entries)
        taken = _index_batches(
            rest.ctypes.data,
            rest.size,
            0,
            max_segment_bytes,
            False,
            np.array([(low - start, high - start) for low, high in unreadable if low >= start], np.int64).reshape(
                -1, 2
            ),
            indexes,
        )
        end_time_index(indexes)
        following = None if taken == rest.size else _base_offset_at(rest, taken)
        inside = [
            entry
            for entry in aborted
            if entry.last_offset >= base_offset and (following is None or entry.last_offset < following)
        ]
        images.append(
            SegmentImage(
                base_offset,
                rest[:taken],
                offset_entries[: progress[OFFSET_INDEX_BYTES]].tobytes(),
                time_entries[: progress[TIME_INDEX_BYTES]].tobytes(),
                encode_transaction_index(inside),
            )
        )
        if following is None:
            return tuple(images)
        start += taken
        base_offset = following


def _base_offset_at(batches: ByteArray, position: int) -> int:
    return int.from_bytes(batches[position : position + 8].tobytes(), "big", signed=True)


def write_segment(image: SegmentImage, parts: PartFiles) -> tuple[PartFile, ...]:
    """Write and sync the files of `image` in `directory`, under names that only this attempt uses.

    The files get the owner, group and mode of `like`, and the modification time `mtime_ns`.

    Raises:
        OSError: the filesystem failed; files that were already written remain under their `.part` names.
    """
    return tuple(parts.write(image.base_offset, kind, [content]) for kind, content in image.files())


# -------------------------------------------------------------------------------------------- batches piece by piece
def write_segments(
    pieces: Iterable[ByteArray],
    base_offset: int,
    aborted: Sequence[AbortedTxn],
    parts: PartFiles,
    *,
    index_interval_bytes: int,
    segment_index_bytes: int,
    max_segment_bytes: int = MAX_SEGMENT_BYTES,
) -> tuple[PartSegment, ...]:
    """Each piece, uint8[n], contains whole batches of any magic; pieces are in log order.

    The result is the same as with `lay_out_segments` and `write_segment`, with one exception: another segment also
    begins when an index is full.  A piece is used before the next piece is requested, so the caller may reuse the
    piece's memory.  If a write or `pieces` fails, the files that were already written are removed.
    """
    source = _PieceSource(iter(pieces))
    segments: list[PartSegment] = []
    try:
        following: int | None = base_offset
        while following is not None:
            base_offset = following
            indexes = _GrowingIndexes(base_offset, index_interval_bytes, segment_index_bytes, max_segment_bytes)
            log = parts.write(base_offset, SegmentFileKind.LOG, indexes.taken_from(source))
            following = source.next_base_offset()
            inside = [
                entry
                for entry in aborted
                if entry.last_offset >= base_offset and (following is None or entry.last_offset < following)
            ]
            files = [
                parts.write(base_offset, kind, [content])
                for kind, content in indexes.files(encode_transaction_index(inside))
            ]
            segments.append(PartSegment(base_offset, (log, *files)))
    except BaseException:
        parts.remove()
        raise
    return tuple(segments)


class _PieceSource:
    def __init__(self, pieces: Iterator[ByteArray]) -> None:
        self._pieces = pieces
        self._rest: ByteArray | None = None

    def take(self) -> ByteArray | None:
        piece, self._rest = self._rest, None
        return next(self._pieces, None) if piece is None else piece

    def put_back(self, rest: ByteArray) -> None:
        self._rest = rest

    def next_base_offset(self) -> int | None:
        return None if self._rest is None else _base_offset_at(self._rest, 0)


class _GrowingIndexes:
    def __init__(
        self, base_offset: int, index_interval_bytes: int, segment_index_bytes: int, max_segment_bytes: int
    ) -> None:
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._offset_limit = segment_index_bytes
        self._time_limit = segment_index_bytes // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES
        self._max_segment_bytes = max_segment_bytes
        self._offset_entries = np.zeros(0, dtype=np.uint8)
        self._time_entries = np.zeros(0, dtype=np.uint8)
        self._progress = np.zeros(PROGRESS_FIELDS, dtype=np.int64)
        self._log_bytes = 0
        start_indexes(self._progress)

    def taken_from(self, source: _PieceSource) -> Iterator[Buffer]:
        while (piece := source.take()) is not None:
            taken = self._add(piece)
            if taken:
                yield piece[:taken].data
            if taken < piece.size:
                source.put_back(piece[taken:])
                return

    def _add(self, piece: ByteArray) -> int:
        most_entries = piece.size // max(self._interval_bytes, BATCH_HEADER_BYTES) + 2
        filled = self._progress
        self._offset_entries = _with_room(
            self._offset_entries,
            int(filled[OFFSET_INDEX_BYTES]) + most_entries * OFFSET_ENTRY_BYTES,
            self._offset_limit,
        )
        # Space for one more entry, because the last slot is reserved for `end_time_index`.
        self._time_entries = _with_room(
            self._time_entries, int(filled[TIME_INDEX_BYTES]) + (most_entries + 1) * TIME_ENTRY_BYTES, self._time_limit
        )
        taken = _index_batches(
            piece.ctypes.data,
            piece.size,
            self._log_bytes,
            self._max_segment_bytes,
            True,
            _NOTHING_UNREADABLE,
            self._indexes(),
        )
        self._log_bytes += taken
        return taken

    def _indexes(self) -> IndexEntries:
        return IndexEntries(
            self._base_offset, self._interval_bytes, self._progress, self._offset_entries, self._time_entries
        )

    def files(self, transaction_index: bytes) -> Iterator[tuple[SegmentFileKind, Buffer]]:
        self._time_entries = _with_room(
            self._time_entries, int(self._progress[TIME_INDEX_BYTES]) + TIME_ENTRY_BYTES, self._time_limit
        )
        end_time_index(self._indexes())
        yield SegmentFileKind.OFFSET_INDEX, self._offset_entries[: self._progress[OFFSET_INDEX_BYTES]].data
        yield SegmentFileKind.TIME_INDEX, self._time_entries[: self._progress[TIME_INDEX_BYTES]].data
        if transaction_index:
            yield SegmentFileKind.TRANSACTION_INDEX, transaction_index


def _with_room(entries: ByteArray, size_bytes: int, limit_bytes: int) -> ByteArray:
    if entries.size >= min(size_bytes, limit_bytes):
        return entries
    larger = np.zeros(min(2 * size_bytes, limit_bytes), dtype=np.uint8)
    larger[: entries.size] = entries
    return larger


@dataclass(frozen=True, slots=True)
class PartFiles:
    directory: Path
    like: Path
    mtime_ns: int
    attempt: Attempt
    fs: Fs
    _begun: list[Path] = field(default_factory=list)

    def write(self, base_offset: int, kind: SegmentFileKind, chunks: Iterable[Buffer]) -> PartFile:
        path = self.directory / part_file_name(base_offset, kind, self.attempt)
        self._begun.append(path)
        size_bytes = self.fs.write_new(path, chunks)
        self.fs.adopt_owner(path, self.like)
        self.fs.set_mtime_ns(path, self.mtime_ns)
        self.fs.sync_file(path)
        return PartFile(path.name, segment_file_name(base_offset, kind), size_bytes)

    def remove(self) -> None:
        """Remove the files, complete or not, as far as the filesystem permits."""
        for path in self._begun:
            with suppress(OSError):
                self.fs.unlink(path, missing_ok=True)
