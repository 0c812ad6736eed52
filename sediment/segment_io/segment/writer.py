"""Writing of rebuilt batches as segment files with their indexes, under names that loaders ignore.

Index entries follow the rule of `format.index_entries` (kafka-log 01 §7.5).  Kafka fails if an index is full; here the
entries that fit are kept, because a sparser index answers every look-up.

Invariant: a file is written once, from its first byte to its last, and synced before its name is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64
from sediment.segment_io.format.index_entries import (
    OFFSET_INDEX_BYTES,
    PROGRESS_FIELDS,
    SINCE_ENTRY_BYTES,
    TIME_INDEX_BYTES,
    add_batch,
    end_time_index,
    start_indexes,
)
from sediment.segment_io.format.indexes import AbortedTransaction, encode_transaction_index
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
from sediment.segment_io.format.names import PartFile, SegmentFileKind, part_file_name, segment_file_name
from sediment.segment_io.fs import Fs

ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SegmentImage:
    """The content of one new segment, in memory: `log` is a slice of the rebuilt batches; indexes are complete."""

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
    base_offset: int,
    interval_bytes: int,
    max_segment_bytes: int,
    unreadable: npt.NDArray[np.int64],
    offset_entries: npt.NDArray[np.uint8],
    time_entries: npt.NDArray[np.uint8],
    progress: npt.NDArray[np.int64],
) -> int:
    """Index rebuilt batches until one does not fit the segment; return the number of log bytes indexed.

    `unreadable`, int64[n, 2], are (start, end) of the bytes that are not batches; the last bytes always are a batch.
    `progress`, int64[PROGRESS_FIELDS], has the bytes of both indexes afterwards.
    """
    position = 0
    skipped = 0
    start_indexes(progress)
    while position < size_bytes:
        if skipped < unreadable.shape[0] and position == unreadable[skipped, 0]:
            # So look-ups of later offsets do not have to read across unreadable bytes.
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
        if last_offset - base_offset > INT32_MAX or position + batch_bytes > max_segment_bytes:
            break
        add_batch(
            last_offset,
            timestamp,
            position,
            batch_bytes,
            base_offset,
            interval_bytes,
            progress,
            offset_entries,
            time_entries,
        )
        position += batch_bytes
    end_time_index(base_offset, progress, time_entries)
    return position


def lay_out_segments(
    batches: ByteArray,
    base_offset: int,
    aborted: Sequence[AbortedTransaction],
    *,
    index_interval_bytes: int,
    segment_index_bytes: int,
    max_segment_bytes: int = MAX_SEGMENT_BYTES,
    unreadable: Sequence[tuple[int, int]] = (),
) -> tuple[SegmentImage, ...]:
    """Return the segments of `batches`, uint8[n] of whole batches of any magic in log order.

    The first segment is at `base_offset`.  If a batch would exceed Kafka's limits of file size or offsets, it begins
    another segment, at its own base offset.  `aborted` are the transaction index entries to keep, by the offset of
    their marker.  `unreadable` are (start, end) of the bytes that are not batches; index entries never refer to them.
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
        taken = _index_batches(
            rest.ctypes.data,
            rest.size,
            base_offset,
            index_interval_bytes,
            max_segment_bytes,
            np.array([(low - start, high - start) for low, high in unreadable if low >= start], np.int64).reshape(
                -1, 2
            ),
            offset_entries,
            time_entries,
            progress,
        )
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


def write_segment(
    image: SegmentImage, directory: Path, *, like: Path, mtime_ns: int, run_id: str, attempt: str, fs: Fs
) -> tuple[PartFile, ...]:
    """Write and sync the files of `image` under attempt-unique names in `directory`.

    They get the owner, group and mode of `like` and the modification time `mtime_ns`.

    Raises:
        OwnerNotKeptError: this process may not set the owner, group or mode.
        OSError: the filesystem failed; files written so far stay under their `.part` names.
    """
    written = []
    for kind, content in image.files():
        path = directory / part_file_name(image.base_offset, kind, run_id, attempt)
        size_bytes = fs.write_new(path, [content])
        fs.adopt_owner(path, like)
        fs.set_mtime_ns(path, mtime_ns)
        fs.sync_file(path)
        written.append(PartFile(path.name, segment_file_name(image.base_offset, kind), size_bytes))
    return tuple(written)
