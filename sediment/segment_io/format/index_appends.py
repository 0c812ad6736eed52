"""Kafka's rule for appends to the offset index and the time index, as kernels (kafka-log 01 §7.5).

The steps for each batch are:

1. If the batch's timestamp is larger than all earlier timestamps, it becomes the largest timestamp.  The batch's last
   offset is stored with it.
2. If more than `interval_bytes` of batches follow the last entry, the batch gets an offset index entry (last offset,
   position).  The largest timestamp then gets a time index entry, unless it already has such an entry.  The first batch
   never gets an entry.
3. The batch's bytes count towards the next entry.

Invariants: an entry is left out if its index is full, or if its offset is not above the last entry's offset.  Look-ups
also work in an index with fewer entries.  The last slot of a time index is reserved for `end_time_index`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import store_i32, store_i64
from sediment.segment_io.errors import IndexOffsetOverflowError
from sediment.segment_io.format.layout import INT32_MAX, NO_TIMESTAMP, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES

Int64s = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

# ------------------------------------------------------------------------------ progress, int64[>= PROGRESS_FIELDS]
SINCE_ENTRY_BYTES = 0  # bytes of batches since the last entry
LARGEST_TIMESTAMP = 1
LARGEST_TIMESTAMP_OFFSET = 2  # last offset of the first batch with that timestamp
INDEXED_TIMESTAMP = 3  # the timestamp in the last time index entry
INDEXED_TIMESTAMP_OFFSET = 4
INDEXED_OFFSET = 5  # the offset in the last offset index entry
OFFSET_INDEX_BYTES = 6  # filled bytes
TIME_INDEX_BYTES = 7
PROGRESS_FIELDS = 8

_NO_OFFSET = -1


class IndexEntries(NamedTuple):
    """The indexes of the segment at `base_offset`, to which entries are appended.

    `offset_entries` and `time_entries` are the free parts of the indexes, including the reserved slot of the time
    index; entries fill them from their first byte.  `progress`, int64[PROGRESS_FIELDS], is the same for all batches of
    the segment.
    """

    base_offset: int
    interval_bytes: int
    progress: Int64s
    offset_entries: ByteArray
    time_entries: ByteArray


def fits_segment(offset: int, base_offset: int) -> bool:
    """An entry has 4 bytes for an offset, so an offset in a segment is at most 2^31 - 1 above the base offset.

    Source: Kafka's LogSegment.canConvertToRelativeOffset.
    """
    return 0 <= offset - base_offset <= INT32_MAX


def relative_offset(offset: int, base_offset: int) -> int:
    """Return `offset` relative to the base offset of its segment, as stored in an index entry.

    Raises:
        IndexOffsetOverflowError: the offset is outside the segment's range.

    Source: Kafka's AbstractIndex.relativeOffset.
    """
    if not fits_segment(offset, base_offset):
        raise IndexOffsetOverflowError(
            f"offset is not within 2^31 of the segment's base offset {base_offset}",
            offset=offset,
            advice="split the segment",
        )
    return offset - base_offset


@kernel
def start_indexes(progress: Int64s) -> None:
    progress[SINCE_ENTRY_BYTES] = 0
    progress[LARGEST_TIMESTAMP] = NO_TIMESTAMP
    progress[LARGEST_TIMESTAMP_OFFSET] = _NO_OFFSET
    progress[INDEXED_TIMESTAMP] = NO_TIMESTAMP
    start_entry_arrays(progress)


@kernel
def start_entry_arrays(progress: Int64s) -> None:
    """Set `progress` for empty entry arrays, whose entries will be appended to the existing indexes of a segment.

    `progress` does not contain the offsets of the existing entries, so the caller must check that the next offset is
    above them.
    """
    progress[INDEXED_TIMESTAMP_OFFSET] = _NO_OFFSET
    progress[INDEXED_OFFSET] = _NO_OFFSET
    progress[OFFSET_INDEX_BYTES] = 0
    progress[TIME_INDEX_BYTES] = 0


@kernel
def entry_goes_back(last_offset: int, timestamp: int, interval_bytes: int, progress: Int64s) -> bool:
    if progress[SINCE_ENTRY_BYTES] <= interval_bytes:
        return False
    if last_offset <= progress[INDEXED_OFFSET]:
        return True
    largest, largest_offset = progress[LARGEST_TIMESTAMP], progress[LARGEST_TIMESTAMP_OFFSET]
    if timestamp > largest:
        largest, largest_offset = timestamp, last_offset
    return bool(largest > progress[INDEXED_TIMESTAMP] and largest_offset < progress[INDEXED_TIMESTAMP_OFFSET])


@kernel
def add_batch(
    last_offset: int,
    timestamp: int,
    position: int,
    size_bytes: int,
    indexes: IndexEntries,
) -> None:
    """Count the batch at byte `position` of a segment, and append the index entries that it needs."""
    progress, offset_entries = indexes.progress, indexes.offset_entries
    if timestamp > progress[LARGEST_TIMESTAMP]:
        progress[LARGEST_TIMESTAMP] = timestamp
        progress[LARGEST_TIMESTAMP_OFFSET] = last_offset
    if progress[SINCE_ENTRY_BYTES] > indexes.interval_bytes:
        filled = progress[OFFSET_INDEX_BYTES]
        if filled + OFFSET_ENTRY_BYTES <= offset_entries.size and last_offset > progress[INDEXED_OFFSET]:
            store_i32(offset_entries.ctypes.data + filled, last_offset - indexes.base_offset)
            store_i32(offset_entries.ctypes.data + filled + 4, position)
            progress[OFFSET_INDEX_BYTES] = filled + OFFSET_ENTRY_BYTES
            progress[INDEXED_OFFSET] = last_offset
        _append_time_entry(indexes, indexes.time_entries.size - TIME_ENTRY_BYTES)
        progress[SINCE_ENTRY_BYTES] = 0
    progress[SINCE_ENTRY_BYTES] += size_bytes


@kernel
def add_batches(
    rows: npt.NDArray[np.void],
    position: int,
    base_offset: int,
    interval_bytes: int,
    progress: Int64s,
    offset_entries: ByteArray,
    time_entries: ByteArray,
) -> None:
    """The batches begin at byte `position` of a segment.  Afterwards, `progress` has the number of bytes filled."""
    # Python takes a microsecond longer to pass these as one value.
    indexes = IndexEntries(base_offset, interval_bytes, progress, offset_entries, time_entries)
    start_entry_arrays(progress)
    for row in rows:
        size_bytes = row["size_bytes"]
        add_batch(
            row["last_offset"],
            row["max_timestamp"],
            position,
            size_bytes,
            indexes,
        )
        position += size_bytes


@kernel
def end_time_index(indexes: IndexEntries) -> None:
    """Append the last entry of a time index; this entry may use the reserved slot."""
    _append_time_entry(indexes, indexes.time_entries.size)


@kernel
def _append_time_entry(indexes: IndexEntries, room_bytes: int) -> None:
    """Append an entry for the largest timestamp, unless one exists, offsets would descend, or the index is full."""
    progress, time_entries = indexes.progress, indexes.time_entries
    filled = progress[TIME_INDEX_BYTES]
    largest = progress[LARGEST_TIMESTAMP]
    largest_offset = progress[LARGEST_TIMESTAMP_OFFSET]
    if filled + TIME_ENTRY_BYTES > room_bytes or largest <= progress[INDEXED_TIMESTAMP]:
        return
    if largest_offset < progress[INDEXED_TIMESTAMP_OFFSET]:
        return
    store_i64(time_entries.ctypes.data + filled, largest)
    store_i32(time_entries.ctypes.data + filled + 8, largest_offset - indexes.base_offset)
    progress[TIME_INDEX_BYTES] = filled + TIME_ENTRY_BYTES
    progress[INDEXED_TIMESTAMP] = largest
    progress[INDEXED_TIMESTAMP_OFFSET] = largest_offset
