"""The recovery scan of a segment (Kafka's LogSegment.recover): one pass verifies checksums and rebuilds both indexes.

An untrusted segment (kafka-log 05 §4) is good up to its first bad batch.  The scan builds index entries for the good
batches by the rule of `format.index_appends`.

An offset that does not fit the segment raises IndexOffsetOverflowError; `loading.split_segment` then splits the
segment.

Invariants
* Nothing is written.  Memory use is one chunk, the largest batch and the two indexes, for files of any size.
* The file is read with pread, up to the size given by the caller.
* An index entry with a lower offset than the previous entry is left out.  On request, the scan ends at the batch of
  such an entry.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64, load_u8
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_buffer
from sediment.segment_io.compiled.status import (
    BAD_CODEC,
    BAD_CRC,
    BAD_LENGTH,
    BAD_MAGIC,
    INCOMPLETE,
    LEGACY_MAGIC,
    OFFSET_BELOW_BASE,
    OFFSET_GOES_BACK,
    OFFSET_IS_LOST,
    OFFSET_OVERFLOW,
    OK,
    ROWS_FULL,
)
from sediment.segment_io.errors import CorruptBatchError, IndexOffsetOverflowError, UnsupportedDataError
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT, batch_at, read_headers
from sediment.segment_io.format.checksum import check_crc
from sediment.segment_io.format.index_appends import (
    LARGEST_TIMESTAMP,
    OFFSET_INDEX_BYTES,
    PROGRESS_FIELDS,
    TIME_INDEX_BYTES,
    IndexEntries,
    add_batch,
    end_time_index,
    entry_goes_back,
    start_indexes,
)
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    INT32_MAX,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_TIMESTAMP,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_V2,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    PRODUCER_ID,
    RECORD_COUNT,
    TIME_ENTRY_BYTES,
)
from sediment.segment_io.format.legacy import check_legacy_crc
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.reader import CHUNK_BYTES, Rows, batch_error, read_into

ByteArray = npt.NDArray[np.uint8]

# ------------------------------------------ further registers of the progress of `format.index_appends`, int64[_FIELDS]
_NEXT_OFFSET = PROGRESS_FIELDS
_PRODUCERS_END_OFFSET = PROGRESS_FIELDS + 1  # after the last batch of magic 2
_LEADER_EPOCH_SO_FAR = PROGRESS_FIELDS + 2
_ROWS = PROGRESS_FIELDS + 3
_EPOCHS = PROGRESS_FIELDS + 4
_REPEATS = PROGRESS_FIELDS + 5  # batches that begin below the end of the batches before them
_REPEAT_POSITION = PROGRESS_FIELDS + 6  # this and the next two: of the first such batch
_REPEAT_OFFSET = PROGRESS_FIELDS + 7
_REPEAT_BELOW = PROGRESS_FIELDS + 8
_FIELDS = PROGRESS_FIELDS + 9

_ROWS_PER_TABLE = 1 << 14
_SECTOR_BYTES = 512  # the unit in which a disk writes
_EPOCHS_PER_TABLE = 64


@kernel
def verified_batch_at(base: int, position: int, end: int) -> tuple[int, int]:
    """Return the result of `batch_at`; for a complete batch that fails verification, return BAD_CRC or BAD_MAGIC.

    BAD_MAGIC means that the checksum is correct, so the magic may be that of a later version.
    """
    status, size_bytes = batch_at(base, position, end)
    address = base + position
    if status == OK:
        return check_crc(address, size_bytes), size_bytes
    if status == LEGACY_MAGIC:
        crc_status = check_legacy_crc(address, size_bytes)
        return (LEGACY_MAGIC if crc_status == OK else BAD_CRC), size_bytes
    if status == BAD_MAGIC:
        if size_bytes > end - position:
            return INCOMPLETE, size_bytes
        if load_i8(address + MAGIC) < 0 or size_bytes < BATCH_HEADER_BYTES or check_crc(address, size_bytes) != OK:
            return BAD_CRC, size_bytes
    return status, size_bytes


@kernel
def _offset_is_lost(address: int, file_position: int, next_offset: int) -> bool:
    """Return True if the disk sector that contains the first bytes of a batch's offset was not written."""
    bytes_left = _SECTOR_BYTES - file_position % _SECTOR_BYTES
    offset = load_i64(address + BASE_OFFSET)
    # No checksum covers the offset.  The lost bytes are at the end of a sector and are zero, so the offset is below
    # `next_offset`.
    if bytes_left > LOG_OVERHEAD_BYTES or offset >= next_offset:
        return False
    if bytes_left >= 8:
        lost: bool = offset == 0
        return lost
    shift = 64 - 8 * bytes_left
    return (offset >> shift) == 0 and (next_offset >> shift) != 0


@kernel
def _scan_batches(
    base: int,
    position: int,
    end: int,
    file_position: int,
    stop_if_offsets_go_back: bool,
    indexes: IndexEntries,
    rows: npt.NDArray[np.void],
    epochs: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Verify and index the complete batches in [position, end) of a buffer that begins at `file_position` of the file.

    The progress of `indexes` has _FIELDS registers.  `rows`, BATCH_ROW[n], receives the headers of the batches with a
    producer, unless it is empty.  `epochs`, int64[n, 2], receives (epoch, base offset) of the first batch of each
    leader epoch.

    Returns:
        (status, position after the last good batch, size of the batch there or 0).  The status is INCOMPLETE at the end
        of the buffer.  It is ROWS_FULL if `rows` or `epochs` is full; the caller must then empty the full array.  Any
        other status is the fault of the batch at the position.
    """
    segment_base_offset, progress = indexes.base_offset, indexes.progress
    wants_rows = rows.size > 0
    while True:
        if (wants_rows and progress[_ROWS] == rows.size) or progress[_EPOCHS] == epochs.shape[0]:
            return ROWS_FULL, position, 0
        status, size_bytes = verified_batch_at(base, position, end)
        if status not in (OK, LEGACY_MAGIC):
            return status, position, size_bytes
        address = base + position
        is_legacy = status == LEGACY_MAGIC
        last_offset = load_i64(address + BASE_OFFSET)
        timestamp = NO_TIMESTAMP
        if not is_legacy:
            last_offset += load_i32(address + LAST_OFFSET_DELTA)
            timestamp = load_i64(address + MAX_TIMESTAMP)
        elif load_i8(address + MAGIC) == 1:
            timestamp = load_i64(address + LEGACY_TIMESTAMP)
        if (
            stop_if_offsets_go_back
            and not is_legacy
            and _offset_is_lost(address, file_position + position, progress[_NEXT_OFFSET])
        ):
            return OFFSET_IS_LOST, position, size_bytes
        if last_offset < segment_base_offset:
            return OFFSET_BELOW_BASE, position, size_bytes
        if last_offset - segment_base_offset > INT32_MAX:
            return OFFSET_OVERFLOW, position, size_bytes

        has_producer = wants_rows and not is_legacy and load_i64(address + PRODUCER_ID) >= 0
        if has_producer:
            row = progress[_ROWS]
            status, filled, _, _ = read_headers(
                base, position, position + size_bytes, file_position, rows[row : row + 1]
            )
            if filled == 0:
                return status, position, size_bytes
        if stop_if_offsets_go_back and entry_goes_back(last_offset, timestamp, indexes.interval_bytes, progress):
            return OFFSET_GOES_BACK, position, size_bytes
        # The base offset of a legacy wrapper is not in its header; its last offset is.
        first_offset = last_offset if is_legacy else load_i64(address + BASE_OFFSET)
        if first_offset < progress[_NEXT_OFFSET]:
            if progress[_REPEATS] == 0:
                progress[_REPEAT_POSITION] = file_position + position
                progress[_REPEAT_OFFSET] = first_offset
                progress[_REPEAT_BELOW] = progress[_NEXT_OFFSET]
            progress[_REPEATS] += 1
        add_batch(
            last_offset,
            timestamp,
            file_position + position,
            size_bytes,
            indexes,
        )
        progress[_NEXT_OFFSET] = last_offset + 1
        if not is_legacy:
            progress[_PRODUCERS_END_OFFSET] = last_offset + 1
            epoch = load_i32(address + LEADER_EPOCH)
            if epoch > progress[_LEADER_EPOCH_SO_FAR]:
                progress[_LEADER_EPOCH_SO_FAR] = epoch
                epochs[progress[_EPOCHS], 0] = epoch
                epochs[progress[_EPOCHS], 1] = load_i64(address + BASE_OFFSET)
                progress[_EPOCHS] += 1
        progress[_ROWS] += has_producer
        position += size_bytes


@kernel
def _scan_for_batches(base: int, position: int, end: int, least_offset: int) -> tuple[int, int, int, int, int]:
    """Find good batches in [position, end); the bytes between them need not be batches.

    Returns:
        (status, position, size of the batch there or 0, number of good batches, last offset of the last good batch or
        -1).  The status is INCOMPLETE if a batch at the position may continue past the buffer.  OK means that no
        further batch is in the buffer.
    """
    good = 0
    last_offset = -1
    while end - position >= BATCH_HEADER_BYTES:
        status, size_bytes = verified_batch_at(base, position, end)
        if status in (OK, LEGACY_MAGIC) and load_i64(base + position + BASE_OFFSET) >= least_offset:
            good += 1
            last_offset = load_i64(base + position + BASE_OFFSET)
            if status == OK:
                last_offset += load_i32(base + position + LAST_OFFSET_DELTA)
            position += size_bytes
            continue
        if status == INCOMPLETE and _looks_like_batch(base + position, least_offset):
            return INCOMPLETE, position, size_bytes, good, last_offset
        if status == BAD_CRC and verified_batch_at(base, position + size_bytes, end)[0] in (OK, LEGACY_MAGIC):
            position += size_bytes
            continue
        position += 1
        while end - position >= BATCH_HEADER_BYTES and not _looks_like_batch(base + position, least_offset):
            position += 1
    return OK, position, 0, good, last_offset


@kernel
def _looks_like_batch(address: int, least_offset: int) -> bool:
    """Return True if a header of magic 2 may begin at `address`; the caller has checked that enough bytes follow."""
    offset = load_i64(address + BASE_OFFSET)
    looks: bool = (
        load_i8(address + MAGIC) == MAGIC_V2
        and load_i32(address + BATCH_LENGTH) >= BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
        and offset >= least_offset
        and offset - least_offset <= INT32_MAX
        and load_u8(address + ATTRIBUTES) == 0
        and load_i32(address + LAST_OFFSET_DELTA) >= 0
        and load_i32(address + RECORD_COUNT) >= 0
    )
    return looks


# ----------------------------------------------------------------------------------------------------------------- scan
@dataclass(frozen=True, slots=True)
class RepeatedOffsets:
    """Offsets that a segment contains twice: `batches` begin below the end of the batches before them.

    The first of these batches is at `position`.  It begins at `first_offset`, although the batches before it end at
    `next_offset`.
    """

    batches: int
    position: int
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The good batches at the start of a segment.

    `stop` is the reason why the next batch is bad; None means that the file ends there.  `is_torn` is True if the rest
    of the file is shorter than any batch, or shorter than the length field of the next batch requires.
    `producers_end_offset` is the offset after the last good batch whose magic has producers.  If the segment has no
    such batch, the offset is the segment's base offset.  `largest_timestamp_ms` is -1 if no batch has a timestamp.
    `offset_index` and `time_index` are the contents of complete files.  `leader_epochs` are the epochs above the known
    epoch, each with the base offset of its first batch.  `goes_back` is True if the next batch is good, but has a lower
    offset.
    """

    good_bytes: int
    next_offset: int
    producers_end_offset: int
    largest_timestamp_ms: int
    offset_index: bytes
    time_index: bytes
    leader_epochs: tuple[tuple[int, int], ...]
    stop: str | None
    is_torn: bool
    goes_back: bool
    repeated: RepeatedOffsets | None


def scan_segment(
    path: Path,
    base_offset: int,
    size_bytes: int,
    *,
    index_interval_bytes: int,
    segment_index_bytes: int,
    known_leader_epoch: int = NO_LEADER_EPOCH,
    stop_if_offsets_go_back: bool = True,
    on_producer_batches: Callable[[Rows], None] | None = None,
    fs: Fs | None = None,
) -> SegmentScan:
    """`on_producer_batches` is called with BATCH_ROW tables of the good batches with a producer, in log order.

    A table is valid only during the call.

    Raises:
        IndexOffsetOverflowError: a batch is more than 2^31 − 1 offsets above the base; the segment must be split.
        CorruptBatchError: a good batch is below the segment's base offset.
        UnsupportedDataError: a batch with a correct checksum has a magic or codec of a later version.

    Source: kafka-log 05 §4, 01 §7.5.
    """
    return _Scan(path, base_offset, size_bytes, index_interval_bytes, segment_index_bytes, known_leader_epoch).run(
        stop_if_offsets_go_back, on_producer_batches, fs or Fs()
    )


class _Scan:
    def __init__(
        self,
        path: Path,
        base_offset: int,
        size_bytes: int,
        index_interval_bytes: int,
        segment_index_bytes: int,
        known_leader_epoch: int,
    ) -> None:
        self._path = path
        self._base_offset = base_offset
        self._size_bytes = size_bytes
        most_entries = size_bytes // max(index_interval_bytes, LOG_OVERHEAD_BYTES) + 2
        offset_entries = _entries(segment_index_bytes, most_entries, OFFSET_ENTRY_BYTES)
        time_entries = _entries(segment_index_bytes, most_entries, TIME_ENTRY_BYTES)
        self._rows = np.zeros(_ROWS_PER_TABLE, dtype=BATCH_ROW)
        self._epochs = np.zeros((_EPOCHS_PER_TABLE, 2), dtype=np.int64)
        self._found_epochs: list[tuple[int, int]] = []
        self._progress = np.zeros(_FIELDS, dtype=np.int64)
        self._progress[_NEXT_OFFSET] = self._progress[_PRODUCERS_END_OFFSET] = base_offset
        start_indexes(self._progress)
        self._progress[_LEADER_EPOCH_SO_FAR] = known_leader_epoch
        self._indexes = IndexEntries(base_offset, index_interval_bytes, self._progress, offset_entries, time_entries)

    def run(
        self, stop_if_offsets_go_back: bool, on_producer_batches: Callable[[Rows], None] | None, fs: Fs
    ) -> SegmentScan:
        descriptor = fs.open_to_read(self._path)
        try:
            position, status = self._read(descriptor, stop_if_offsets_go_back, on_producer_batches)
        finally:
            os.close(descriptor)
        self._hand_out(on_producer_batches)
        end_time_index(self._indexes)
        progress = self._progress.tolist()
        is_whole = position == self._size_bytes
        return SegmentScan(
            good_bytes=position,
            next_offset=progress[_NEXT_OFFSET],
            producers_end_offset=progress[_PRODUCERS_END_OFFSET],
            largest_timestamp_ms=progress[LARGEST_TIMESTAMP],
            offset_index=self._indexes.offset_entries[: progress[OFFSET_INDEX_BYTES]].tobytes(),
            time_index=self._indexes.time_entries[: progress[TIME_INDEX_BYTES]].tobytes(),
            leader_epochs=tuple(self._found_epochs),
            stop=None if is_whole else _STOP_TEXT.get(status) or STATUS_TEXT[status],
            is_torn=not is_whole and status in (INCOMPLETE, BAD_LENGTH),
            goes_back=not is_whole and status == OFFSET_GOES_BACK,
            repeated=RepeatedOffsets(
                progress[_REPEATS], progress[_REPEAT_POSITION], progress[_REPEAT_OFFSET], progress[_REPEAT_BELOW]
            )
            if progress[_REPEATS]
            else None,
        )

    def _read(
        self,
        descriptor: int,
        stop_if_offsets_go_back: bool,
        on_producer_batches: Callable[[Rows], None] | None,
    ) -> tuple[int, int]:
        buffer = padded_buffer(min(CHUNK_BYTES, max(self._size_bytes, LOG_OVERHEAD_BYTES)))
        rows = self._rows if on_producer_batches is not None else self._rows[:0]
        start = 0
        while True:
            wanted = min(buffer.size - PADDING_BYTES, self._size_bytes - start)
            filled = read_into(descriptor, buffer, 0, wanted, start)
            at = 0
            while True:
                status, at, needed = _scan_batches(
                    buffer.ctypes.data,
                    at,
                    filled,
                    start,
                    stop_if_offsets_go_back,
                    self._indexes,
                    rows,
                    self._epochs,
                )
                if status != ROWS_FULL:
                    break
                self._hand_out(on_producer_batches)
            if status != INCOMPLETE:
                self._raise_unless_corrupt(status, buffer, at, start + at)
                return start + at, status
            is_end = filled < wanted or start + filled >= self._size_bytes
            if is_end or needed > self._size_bytes - start - at:
                return start + at, status
            if at == 0:
                buffer = padded_buffer(max(needed, 2 * (buffer.size - PADDING_BYTES)))
            start += at

    def _hand_out(self, on_producer_batches: Callable[[Rows], None] | None) -> None:
        rows, epochs = int(self._progress[_ROWS]), int(self._progress[_EPOCHS])
        if rows and on_producer_batches is not None:
            on_producer_batches(self._rows[:rows])
        for epoch, first_offset in self._epochs[:epochs].tolist():
            self._found_epochs.append((epoch, first_offset))
        self._progress[_ROWS] = self._progress[_EPOCHS] = 0

    def _raise_unless_corrupt(self, status: int, buffer: ByteArray, at: int, position: int) -> None:
        offset = int.from_bytes(buffer[at : at + 8].tobytes(), "big", signed=True)
        if status == OFFSET_OVERFLOW:
            raise IndexOffsetOverflowError(
                f"a batch is more than 2^31 offsets above the segment's base {self._base_offset}",
                path=str(self._path),
                position=position,
                offset=offset,
                advice="split the segment",
            )
        if status == OFFSET_BELOW_BASE:
            raise CorruptBatchError(
                f"a batch with a correct checksum is below the segment's base offset {self._base_offset}",
                path=str(self._path),
                position=position,
                offset=offset,
                advice="find out where the batch belongs; nothing was cut off, because this may be its only copy",
            )
        if status in (BAD_MAGIC, BAD_CODEC):
            error = batch_error(status, self._path, position, buffer, at)
            raise UnsupportedDataError(
                f"{error.what}, and its checksum is correct",
                path=error.path,
                position=position,
                offset=error.offset,
                advice="use a version of Sediment that can read such a batch; nothing was cut off",
            )


_STOP_TEXT = {
    INCOMPLETE: "the last batch is incomplete",
    OFFSET_GOES_BACK: "the offset of the batch is not above the offsets before it",
    OFFSET_IS_LOST: "the offset of the batch did not reach the disk",
}


def _entries(segment_index_bytes: int, most_entries: int, entry_bytes: int) -> ByteArray:
    return np.zeros(min(segment_index_bytes // entry_bytes, most_entries) * entry_bytes, dtype=np.uint8)


# --------------------------------------------------------------------------------------------- after the corruption
@dataclass(frozen=True, slots=True)
class BatchesAfterCorruption:
    """The good batches after the first bad batch of a segment; `last_offset` is -1 if no such batch exists."""

    good_batches: int
    last_offset: int


def find_batches_after(
    path: Path, position: int, size_bytes: int, least_offset: int, fs: Fs | None = None
) -> BatchesAfterCorruption:
    good, last_offset = 0, -1
    buffer = padded_buffer(min(CHUNK_BYTES, max(size_bytes - position, LOG_OVERHEAD_BYTES)))
    descriptor = (fs or Fs()).open_to_read(path)
    try:
        while position < size_bytes:
            wanted = min(buffer.size - PADDING_BYTES, size_bytes - position)
            filled = read_into(descriptor, buffer, 0, wanted, position)
            # If the length of a bad batch is also corrupt, the next good batch is found by its header and its checksum.
            status, at, needed, found, last = _scan_for_batches(buffer.ctypes.data, 0, filled, least_offset)
            good += found
            last_offset = last if found else last_offset
            position += at
            if filled < wanted:
                break
            if status == INCOMPLETE and needed > size_bytes - position:
                position += 1
            elif status == INCOMPLETE and needed > buffer.size - PADDING_BYTES:
                buffer = padded_buffer(needed)
            elif at == 0:
                break
    finally:
        os.close(descriptor)
    return BatchesAfterCorruption(good, last_offset)
