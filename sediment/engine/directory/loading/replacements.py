"""Checks of an interrupted replacement: are the new segments whole, and which records do the old segments contain?

    whole      each batch has a correct checksum, no bytes follow the last one, and no index has an offset past the log;
               if the log is empty, both its indexes exist and are empty, and it does not replace a segment with records
    framed     the lengths of the batches lead to the end of the file, and no index has an offset past the log

After a crash, all new segments are whole, because they are synced before their first rename. A segment is not whole
only if a disk or filesystem lost data, or if the file was copied into the directory by hand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.segment_io.errors import CorruptBatchError, IndexOffsetOverflowError
from sediment.segment_io.format.layout import INT32_MAX, OFFSET_ENTRY_STRUCT, TIME_ENTRY_STRUCT
from sediment.segment_io.format.names import SWAP_SUFFIX, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.batch_boundaries import batch_ends

if TYPE_CHECKING:
    from sediment.segment_io.segment.recovery_scan import SegmentScan


@dataclass(frozen=True, slots=True)
class NewSegment:
    """`good_bytes` counts the bytes before the first bad batch.

    `problem` is a clause that describes the first problem; None for a whole segment.
    """

    name: str
    base_offset: int
    next_offset: int
    log_bytes: int
    good_bytes: int
    is_framed: bool
    problem: str | None


def read_new_segment(directory: Path, base_offset: int, fs: Fs, *, replaces_records: bool) -> NewSegment:
    path = directory / (segment_file_name(base_offset, SegmentFileKind.LOG) + SWAP_SUFFIX)
    size_bytes = _size_bytes(path, fs)
    good_bytes, problem = 0, None
    try:
        scan = _scan(path, base_offset, fs)
        good_bytes, problem = scan.good_bytes, scan.stop
    except (CorruptBatchError, IndexOffsetOverflowError) as error:
        problem = error.what
    next_offset, framed_bytes = _framed_end(path, base_offset, fs)
    is_framed = framed_bytes == size_bytes
    for kind in (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX):
        mismatch = _index_problem(
            _index_swap(directory, base_offset, kind), kind, base_offset, next_offset, size_bytes, fs
        )
        if mismatch is not None:
            is_framed, problem = False, problem or mismatch
    if size_bytes == 0 and problem is None:
        if replaces_records:
            problem = "it is empty, and the segment that it replaces is not"
        elif not _has_empty_indexes(directory, base_offset, fs):
            is_framed, problem = False, "it is empty, and its indexes are missing or have entries"
    return NewSegment(path.name, base_offset, next_offset, size_bytes, good_bytes, is_framed, problem)


def _scan(path: Path, base_offset: int, fs: Fs) -> SegmentScan:
    # Imported late, because the module compiles kernels that are needed only after an interrupted replacement.
    from sediment.segment_io.segment.recovery_scan import scan_segment

    return scan_segment(
        path,
        base_offset,
        _size_bytes(path, fs),
        index_interval_bytes=INT32_MAX,
        segment_index_bytes=0,
        stop_if_offsets_go_back=False,
        fs=fs,
    )


def _framed_end(path: Path, base_offset: int, fs: Fs) -> tuple[int, int]:
    offset, position = base_offset, 0
    with suppress(CorruptBatchError):
        for last_offset, end in batch_ends(path, fs):
            offset, position = last_offset + 1, end
    return offset, position


def _size_bytes(path: Path, fs: Fs) -> int:
    entry = fs.entry(path)
    return 0 if entry is None else entry.size_bytes


def _index_swap(directory: Path, base_offset: int, kind: SegmentFileKind) -> Path:
    return directory / (segment_file_name(base_offset, kind) + SWAP_SUFFIX)


def _has_empty_indexes(directory: Path, base_offset: int, fs: Fs) -> bool:
    kinds = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX)
    found = [fs.entry(_index_swap(directory, base_offset, kind)) for kind in kinds]
    return all(entry is not None and entry.size_bytes == 0 for entry in found)


def _index_problem(
    path: Path, kind: SegmentFileKind, base_offset: int, next_offset: int, log_bytes: int, fs: Fs
) -> str | None:
    entry = OFFSET_ENTRY_STRUCT if kind is SegmentFileKind.OFFSET_INDEX else TIME_ENTRY_STRUCT
    count = _size_bytes(path, fs) // entry.size
    if not count:
        return None
    fields = entry.unpack(fs.read_range(path, (count - 1) * entry.size, entry.size))
    relative_offset, position = fields if kind is SegmentFileKind.OFFSET_INDEX else (fields[1], 0)
    offset = base_offset + relative_offset
    if relative_offset and not (base_offset <= offset < next_offset and 0 <= position < log_bytes):
        return f"the log ends at offset {next_offset}, and an index has offset {offset} at position {position}"
    return None


def index_mismatch(directory: Path, base_offset: int, kind: SegmentFileKind, fs: Fs) -> str | None:
    # If a log has a torn end, its index may describe batches in that end. The recovery that cuts the log also rebuilds
    # the index and removes the later segments. If the index were deleted, the log would be cut earlier, and the later
    # segments would remain after a gap.
    log = directory / segment_file_name(base_offset, SegmentFileKind.LOG)
    next_offset, framed_bytes = _framed_end(log, base_offset, fs)
    log_bytes = _size_bytes(log, fs)
    if framed_bytes < log_bytes:
        return None
    return _index_problem(_index_swap(directory, base_offset, kind), kind, base_offset, next_offset, log_bytes, fs)


class OldSegments:
    def __init__(self, directory: Path, names: Mapping[int, str], fs: Fs) -> None:
        self._directory = directory
        self._names = names
        self._fs = fs
        self._ends: dict[int, int] = {}

    @cached_property
    def _bases(self) -> list[int]:
        return sorted(self._names)

    def have_records(self, base_offset: int) -> bool:
        name = self._names.get(base_offset)
        return name is not None and _size_bytes(self._directory / name, self._fs) > 0

    def have_records_of(self, new: NewSegment) -> bool:
        bases = [base for base in self._bases if base == new.base_offset or new.base_offset < base < new.next_offset]
        return any(self.have_records(base) for base in bases)

    def reach(self, base_offset: int) -> bool:
        index = bisect_right(self._bases, base_offset)
        if index == 0:
            return False
        base = self._bases[index - 1]
        return _framed_end(self._directory / self._names[base], base, self._fs)[0] > base_offset or (
            self.have_records(base_offset)
        )

    def hold(self, new: NewSegment) -> bool:
        """Return True if the old logs contain good batches for the whole range of the new segment's good batches.

        A cleaning copies a corrupt batch unchanged, so the first batch of a new segment may be bad.
        In this case, also return True if an old log with the same base offset reaches the new segment's end offset.
        This log is followed from batch to batch by the lengths in the batch headers alone.
        """
        if new.good_bytes == 0 and new.base_offset in self._names:
            path = self._directory / self._names[new.base_offset]
            if _framed_end(path, new.base_offset, self._fs)[0] >= new.next_offset and (
                new.log_bytes == 0 or _size_bytes(path, self._fs) > 0
            ):
                return True
        if not self._reaches(new.base_offset):
            return False
        path = self._directory / new.name
        return all(self._reaches(last) for last, _ in batch_ends(path, self._fs, size_bytes=new.good_bytes))

    def _reaches(self, offset: int) -> bool:
        index = bisect_right(self._bases, offset)
        return index > 0 and self._good_end(self._bases[index - 1]) > offset

    def _good_end(self, base_offset: int) -> int:
        if base_offset not in self._ends:
            self._ends[base_offset] = base_offset
            with suppress(CorruptBatchError, IndexOffsetOverflowError):
                scan = _scan(self._directory / self._names[base_offset], base_offset, self._fs)
                self._ends[base_offset] = scan.next_offset
        return self._ends[base_offset]
