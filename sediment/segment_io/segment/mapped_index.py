"""The offset index and the time index of open segments: files of entries, their appends and searches.

Entries are appended with ordinary writes, so a full disk causes an error, not a signal.  Look-ups use a read-only
mapping of the same file, in which new entries are visible immediately.

    new file             segment.index.bytes, rounded down to whole entries, all zeros     `reserve`
    existing file        every whole entry counts, also a zero one                         `open`
    roll, close          cut after the last entry                                          `trim`
    truncateTo           the dropped entries become zeros                                  `cut`
    full                 no free slot; a time index keeps one in reserve                   `is_full`
    offset out of range  `index_appends.relative_offset` raises IndexOffsetOverflowError

Invariants
* An index file is created when the index is first used.  If an index can grow, its file already has the largest size of
  the index, with zeros after the last entry.
* Only an index that can grow keeps a file descriptor.  Any other index is mapped, and its file is closed.
* `room` is above 0 only if the file is open.
* Only entries are read from a mapping, and the file is never truncated below its entries.
"""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i32, load_i64
from sediment.segment_io.errors import CorruptIndexError, IndexFullError, IndexOrderError, SettingsError
from sediment.segment_io.format.index_appends import relative_offset
from sediment.segment_io.format.layout import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    OFFSET_ENTRY_STRUCT,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.offset_index import OffsetPosition
from sediment.segment_io.format.time_index import TimestampOffset
from sediment.segment_io.fs import FileMapping, Fs, OpenFile

# Most look-ups are near the end of the log.  So the last 8192 bytes of entries are searched first, because they are in
# the page cache.  Kafka's AbstractIndex calls them the warm section.
_WARM_BYTES = 8192


@kernel
def last_at_most_i32(address: int, entry_bytes: int, field: int, entries: int, warm: int, target: int) -> int:
    """Return the index of the last entry whose 32-bit `field` is at most `target`; -1 if there is none."""
    first = max(entries - 1 - warm, 0)
    if load_i32(address + first * entry_bytes + field) > target:
        low, high = -1, first - 1
    else:
        low, high = first, entries - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if load_i32(address + middle * entry_bytes + field) <= target:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def last_at_most_i64(address: int, entry_bytes: int, field: int, entries: int, warm: int, target: int) -> int:
    """Return the index of the last entry whose 64-bit `field` is at most `target`; -1 if there is none."""
    first = max(entries - 1 - warm, 0)
    if load_i64(address + first * entry_bytes + field) > target:
        low, high = -1, first - 1
    else:
        low, high = first, entries - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if load_i64(address + middle * entry_bytes + field) <= target:
            low = middle
        else:
            high = middle - 1
    return low


class MappedIndex:
    entry_bytes: int
    reserved_entries = 0
    """The slots at the end of the file that are not for ordinary entries."""

    def __init__(self, path: Path, base_offset: int, fs: Fs, *, max_bytes: int, entries: int | None = None) -> None:
        """Prepare an index; `entries` is 0 for a new file, and None if all bytes of the file are entries."""
        if max_bytes < self.entry_bytes:
            raise SettingsError(
                f"an index of {max_bytes} bytes has no room for an entry",
                advice="raise segment.index.bytes to at least 12",
            )
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry_bytes
        self._fs = fs
        self._entries = entries
        self.is_reserved = False
        self._file: OpenFile | None = None
        self._mapping: FileMapping | None = None
        self.room = 0
        """The number of entries that fit into the open file.  0 if the file is closed; an append must then open it."""

    def __len__(self) -> int:
        if self._entries is None:
            self.open()
        return self._entries or 0

    @property
    def is_full(self) -> bool:
        return len(self) >= self.max_entries - self.reserved_entries

    def open(self) -> OpenFile:
        """Return the file, and create it if it is missing; the file remains open only if the index can grow."""
        file = self._file
        if file is None:
            file = self._fs.create_file(self.path, like=self.path.with_suffix(SegmentFileKind.LOG))
            if self._entries is None:
                self._entries = file.size_bytes() // self.entry_bytes
            if self.is_reserved:
                self._file = file
                self._count_room()
        return file

    def _count_room(self) -> None:
        most = 0 if self._file is None else self.max_entries - self.reserved_entries
        self.room = max(most - (self._entries or 0), 0)

    def reserve(self) -> None:
        if self._file is not None:
            return
        file = self._file = self.open()
        self._count_room()
        if self.is_reserved:
            return
        self.is_reserved = True
        if file.size_bytes() != self.max_entries * self.entry_bytes:
            self._mapping = None
            file.resize(self.max_entries * self.entry_bytes)

    def trim(self) -> None:
        file = self.open()
        self.is_reserved = False
        self.close_file()
        if file.size_bytes() != len(self) * self.entry_bytes:
            self._mapping = None
            file.resize(len(self) * self.entry_bytes)

    def extend(self, entries: Buffer) -> None:
        """Append whole entries; the caller has checked that they fit into the index and are above the last entry."""
        file, before = self.open(), self._entries or 0
        file.write(entries, before * self.entry_bytes)
        self._entries = before + len(entries) // self.entry_bytes
        self._count_room()

    def cut(self, entries: int) -> None:
        file, before = self.open(), len(self)
        if entries < before:
            file.write(bytes((before - entries) * self.entry_bytes), entries * self.entry_bytes)
            self._entries = entries
            self._count_room()

    def moved(self, path: Path) -> None:
        self.path = path
        if self._file is not None:
            self._file.path = path

    def close_file(self) -> None:
        self._file = None
        self.room = 0

    def release(self) -> None:
        self.close_file()
        self._mapping = None

    def mapped(self) -> FileMapping:
        """Return the mapping of all entries; the index must not be empty."""
        mapping = self._mapping
        if mapping is None or len(mapping) < len(self) * self.entry_bytes:
            file = self.open()
            mapping = self._mapping = file.map(file.size_bytes())
        return mapping

    @property
    def warm_entries(self) -> int:
        return _WARM_BYTES // self.entry_bytes


class MappedOffsetIndex(MappedIndex):
    """The `.index` of an open segment (kafka-log 01 §7.1)."""

    entry_bytes = OFFSET_ENTRY_BYTES

    @property
    def last_offset(self) -> int:
        return self[len(self) - 1].offset if len(self) else self.base_offset

    def __getitem__(self, slot: int) -> OffsetPosition:
        mapping = self.mapped()
        relative_offset, position = OFFSET_ENTRY_STRUCT.unpack_from(mapping.memory, slot * OFFSET_ENTRY_BYTES)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def lookup(self, target_offset: int) -> OffsetPosition:
        slot = self._slot(target_offset - self.base_offset)
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        entry = self[slot]
        # Only this method detects such an entry, because after a clean stop, indexes are opened without a check.
        if entry.position < 0:
            raise CorruptIndexError(
                f"index entry {slot} has position {entry.position}",
                path=str(self.path),
                offset=entry.offset,
                advice="close the log and delete this file; the next start rebuilds it",
            )
        return entry

    def fetch_upper_bound(self, position: int) -> OffsetPosition | None:
        """Return the first entry at or above byte `position`; all batches before it have lower offsets."""
        entries = len(self)
        if not entries:
            return None
        mapping = self.mapped()
        slot = last_at_most_i32(mapping.address, OFFSET_ENTRY_BYTES, 4, entries, self.warm_entries, position - 1) + 1
        return self[slot] if slot < entries else None

    def truncate_to(self, offset: int) -> None:
        self.cut(self._slot(offset - self.base_offset - 1) + 1)

    def _slot(self, target: int) -> int:
        entries = len(self)
        if not entries:
            return -1
        mapping = self.mapped()
        return last_at_most_i32(mapping.address, OFFSET_ENTRY_BYTES, 0, entries, self.warm_entries, target)


class MappedTimeIndex(MappedIndex):
    """The `.timeindex` of an open segment (kafka-log 01 §7.2).

    `index_appends` has the rule for ordinary appends.
    """

    entry_bytes = TIME_ENTRY_BYTES
    reserved_entries = 1  # for the entry of the largest timestamp, when the segment is rolled

    @property
    def last_entry(self) -> TimestampOffset:
        return self[len(self) - 1] if len(self) else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def __getitem__(self, slot: int) -> TimestampOffset:
        mapping = self.mapped()
        timestamp_ms, relative = TIME_ENTRY_STRUCT.unpack_from(mapping.memory, slot * TIME_ENTRY_BYTES)
        return TimestampOffset(timestamp_ms, self.base_offset + relative)

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp_ms` is above the timestamp of the last entry.

        Raises:
            IndexFullError: the index is full; with `skip_full_check`, the entry may use the reserved slot.
            IndexOrderError: `offset` or `timestamp_ms` is below the value in the last entry.
            IndexOffsetOverflowError: `offset` is outside the segment's range.
        """
        if len(self) >= self.max_entries or (self.is_full and not skip_full_check):
            raise IndexFullError(f"index is full with {len(self)} entries", advice="raise segment.index.bytes")
        last = self.last_entry
        if len(self) and offset < last.offset:
            raise IndexOrderError(f"offset is below the last indexed offset, {last.offset}", offset=offset)
        if len(self) and timestamp_ms < last.timestamp_ms:
            raise IndexOrderError(
                f"timestamp {timestamp_ms} is below the last indexed timestamp, {last.timestamp_ms}", offset=offset
            )
        if timestamp_ms > last.timestamp_ms:
            self.extend(TIME_ENTRY_STRUCT.pack(timestamp_ms, relative_offset(offset, self.base_offset)))

    def lookup(self, target_ms: int) -> TimestampOffset:
        entries = len(self)
        if not entries:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        mapping = self.mapped()
        slot = last_at_most_i64(mapping.address, TIME_ENTRY_BYTES, 0, entries, self.warm_entries, target_ms)
        return self[slot] if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        entries = len(self)
        if entries:
            mapping, target = self.mapped(), offset - self.base_offset - 1
            self.cut(last_at_most_i32(mapping.address, TIME_ENTRY_BYTES, 8, entries, self.warm_entries, target) + 1)
