"""Open segments of read-only logs, which are opened on first use and closed to make room for others.

* Each use checks that inode, size and modification time of the file are unchanged.

The check uses the open file, because this is cheaper than a check of the path. This is sufficient, because a rename or
a removal changes the file's ctime.

Invariants
* If the offset index is missing, a scan up to the first bad batch creates an index in memory each time the file is
  opened.
* Files are opened for reading only.  Indexes are read and never mapped, because this process would crash if another
  process truncated a mapped file.
* At most `max_files` files are open, and at most `max_index_bytes` of indexes are in memory, for any number of logs.
  The least recently used segments are closed first.  A slice keeps its file open until the slice is sent.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import CorruptBatchError, OpenFilesLimitError, SourceChangedError, StorageError
from sediment.segment_io.format.index_sanity import Int64s
from sediment.segment_io.format.layout import INT32_MAX, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.format.time_index import parse_time_index
from sediment.segment_io.fs import Fs, ReadableFile, is_out_of_descriptors
from sediment.segment_io.partition.index_files import read_entries
from sediment.segment_io.segment.columns import check_batches
from sediment.segment_io.segment.reader import HeaderScan, Rows

_LOGGER = logging.getLogger(__name__)

INDEX_INTERVAL_BYTES = 4096
"""The distance between the entries of an offset index that is created in memory; this is Kafka's default."""


@dataclass(slots=True, eq=False)
class SegmentFiles:
    """The files of one segment; `end_offset` is the base offset of the next segment, or the log end offset."""

    partition: str
    base_offset: int
    end_offset: int
    log: str
    offset_index: Path
    time_index: Path
    size_bytes: int
    mtime_ns: int
    inode: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetEntries:
    """An offset index in memory: relative offsets and byte positions, both int32[n] and sorted."""

    relative_offsets: memoryview
    positions: memoryview

    @property
    def size_bytes(self) -> int:
        return self.relative_offsets.nbytes + self.positions.nbytes


@dataclass(frozen=True, slots=True)
class TimeEntries:
    """A time index in memory: timestamps in ms, int64[n], and relative offsets, int32[n]; both are sorted."""

    timestamps: memoryview
    relative_offsets: memoryview

    @property
    def size_bytes(self) -> int:
        return self.timestamps.nbytes + self.relative_offsets.nbytes


@dataclass(slots=True, eq=False)
class OpenSegment:
    file: ReadableFile
    change_stamp: tuple[int, int, int]
    offsets: OffsetEntries
    times: TimeEntries | None = None

    @property
    def index_bytes(self) -> int:
        return self.offsets.size_bytes + (0 if self.times is None else self.times.size_bytes)


class OpenSegments:
    """The open segments of all logs, up to a limit; any thread may call the methods."""

    def __init__(self, fs: Fs, *, max_files: int, max_index_bytes: int) -> None:
        self._fs = fs
        self._max_files = max_files
        self._max_index_bytes = max_index_bytes
        self._opened: OrderedDict[SegmentFiles, OpenSegment] = OrderedDict()
        self._index_bytes = 0
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._opened)

    def get(self, files: SegmentFiles) -> OpenSegment:
        opened = self._opened.get(files)
        if opened is None:
            return self._open(files)
        if (stamp := opened.file.change_stamp()) != opened.change_stamp:
            if self._fs.identity(files.log) != (files.inode, files.size_bytes, files.mtime_ns):
                raise _changed(files)
            opened.change_stamp = stamp  # only the link count or the mode has changed
        with suppress(KeyError):  # another thread has closed the segment
            self._opened.move_to_end(files)
        return opened

    def times(self, files: SegmentFiles, opened: OpenSegment) -> TimeEntries:
        if opened.times is None:
            times = _time_entries(files)
            with self._guard:
                if opened.times is None:
                    opened.times = times
                    if self._opened.get(files) is opened:
                        self._index_bytes += times.size_bytes
                        self._give_up()
        return opened.times

    def close(self) -> None:
        with self._guard:
            self._opened.clear()
            self._index_bytes = 0

    def _open(self, files: SegmentFiles) -> OpenSegment:
        try:
            file = self._open_file(files)
            stamp = file.change_stamp()
            identity = self._fs.identity(files.log)
            if identity is None or identity != (files.inode or identity[0], files.size_bytes, files.mtime_ns):
                raise _changed(files)
            opened = OpenSegment(file, stamp, _offset_entries(files, file))
        except (FileNotFoundError, SourceChangedError) as error:
            raise _changed(files) from error
        except OSError as error:
            raise read_failed(error, files.partition, files.log) from error
        with self._guard:
            known = self._opened.get(files)
            if known is not None:
                return known
            files.inode = identity[0]
            self._opened[files] = opened
            self._index_bytes += opened.index_bytes
            self._give_up()
        return opened

    def _open_file(self, files: SegmentFiles) -> ReadableFile:
        try:
            return self._fs.open_readable(Path(files.log))
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
        with self._guard:
            for _ in range((len(self._opened) + 1) // 2):
                self._pop()
        return self._fs.open_readable(Path(files.log))

    def _give_up(self) -> None:
        while len(self._opened) > 1 and (
            len(self._opened) > self._max_files or self._index_bytes > self._max_index_bytes
        ):
            self._pop()

    def _pop(self) -> None:
        _, opened = self._opened.popitem(last=False)
        self._index_bytes -= opened.index_bytes


def read_failed(error: OSError, partition: str, path: str) -> OpenFilesLimitError | StorageError:
    path = str(error.filename or path)
    if is_out_of_descriptors(error):
        return OpenFilesLimitError(
            "this process may open no more files", partition=partition, path=path, advice="raise ulimit -n"
        )
    return StorageError(
        f"the segment cannot be read: {error.strerror}",
        partition=partition,
        path=path,
        advice="check the disk and its permissions",
    )


def _changed(files: SegmentFiles) -> StorageError:
    return StorageError(
        "the segment was changed or removed after the server opened it",
        partition=files.partition,
        path=files.log,
        advice="stop the process that writes to this directory, then start the server again",
    )


def _offset_entries(files: SegmentFiles, file: ReadableFile) -> OffsetEntries:
    # If the index has no such entry, create entries from the batches.
    content = _content(files, files.offset_index, OFFSET_ENTRY_BYTES)
    index = parse_offset_index(content, files.base_offset, preallocated=True)
    inside = _inside(index.relative_offsets, files)
    inside = min(inside, int(np.searchsorted(index.positions, files.size_bytes)))
    if not inside and files.size_bytes > INDEX_INTERVAL_BYTES:
        return _scanned_entries(files, file)
    return OffsetEntries(int32s(index.relative_offsets[:inside]), int32s(index.positions[:inside]))


def _content(files: SegmentFiles, index: Path, entry_bytes: int) -> bytes:
    try:
        return read_entries(index, entry_bytes)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise
        _LOGGER.warning("%s: ignored index %s: %s; batches are searched", files.partition, index, error.strerror)
        return b""


def _scanned_entries(files: SegmentFiles, file: ReadableFile) -> OffsetEntries:
    relative_offsets: list[int] = []
    positions: list[int] = []
    previous_offset = files.base_offset - 1
    with suppress(CorruptBatchError):
        for span in HeaderScan(Path(files.log), size_bytes=files.size_bytes).spans(file.descriptor):
            address, shift = span.buffer.ctypes.data, span.start - span.position
            count = good_rows(address, shift, span.rows, previous_offset, files.end_offset)
            rows = span.rows[:count]
            found_offsets, found_positions = sparse_entries(rows, files.base_offset)
            relative_offsets += found_offsets.tolist()
            positions += found_positions.tolist()
            if count < len(span.rows):
                break
            previous_offset = int(rows["last_offset"][-1])
    return OffsetEntries(int32s(relative_offsets), int32s(positions))


def good_rows(address: int, shift: int, rows: Rows, previous_offset: int, end_offset: int) -> int:
    """The batch of each row begins at byte `position + shift` of the buffer at `address`."""
    if not len(rows):
        return 0
    valid = np.zeros(len(rows), dtype=np.bool_)
    check_batches(address, shift, rows, valid, np.zeros(len(rows), dtype=np.int64))
    last_offsets = rows["last_offset"]
    valid &= last_offsets < end_offset
    valid[0] &= last_offsets[0] > previous_offset
    valid[1:] &= last_offsets[1:] > last_offsets[:-1]
    return len(rows) if valid.all() else int(valid.argmin())


def sparse_entries(rows: Rows, base_offset: int) -> tuple[Int64s, Int64s]:
    """Return (relative last offsets, positions) of the first batch of `rows` in each interval of the index.

    A batch gets no entry if its offset is too far from the base offset for an index.
    """
    rows = rows[rows["last_offset"] - base_offset <= INT32_MAX]
    _, firsts = np.unique(rows["position"] // INDEX_INTERVAL_BYTES, return_index=True)
    return rows["last_offset"][firsts] - base_offset, rows["position"][firsts]


def _time_entries(files: SegmentFiles) -> TimeEntries:
    content = _content(files, files.time_index, TIME_ENTRY_BYTES)
    index = parse_time_index(content, files.base_offset, preallocated=True)
    inside = _inside(index.relative_offsets, files)
    timestamps = np.ascontiguousarray(index.timestamps[:inside])
    return TimeEntries(timestamps.data, int32s(index.relative_offsets[:inside]))


def _inside(relative_offsets: Int64s, files: SegmentFiles) -> int:
    return int(np.searchsorted(relative_offsets, min(files.end_offset - files.base_offset, INT32_MAX + 1)))


def int32s(column: npt.ArrayLike) -> memoryview:
    """Convert a column to int32[n]; all values must fit."""
    return np.ascontiguousarray(column, dtype=np.int32).data
