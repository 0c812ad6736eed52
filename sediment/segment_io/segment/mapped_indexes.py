"""Indexes of an open segment: entries are appended by writes to the file, and searched in a memory mapping.

Entries are appended with ordinary writes, so a full disk causes an error, not a signal.  Look-ups use a read-only
mapping of the same file, which shows new entries at once.

Most look-ups are for the end of the log.  Therefore the last 8192 bytes of entries are searched first (the warm section
of Kafka's AbstractIndex): they stay in the page cache.  A binary search over the whole file would touch pages that have
been cold for hours.

Invariants
* An index file is created when the index is first needed.  While an index grows, its file has its full size, with zeros
  after the last entry.
* Only an index that grows keeps a descriptor; an index that is only searched is mapped and its file is closed.
* Only the bytes of entries are read from a mapping, and nothing here cuts a file below its entries.
* Offsets and timestamps ascend, so every search is a binary search.
"""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i32, load_i64
from sediment.segment_io.errors import (
    CorruptIndexError,
    IndexFullError,
    IndexOffsetOverflowError,
    IndexOrderError,
    SettingsError,
)
from sediment.segment_io.format.indexes import (
    OffsetPosition,
    TimestampOffset,
)
from sediment.segment_io.format.layout import (
    INT32_MAX,
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    OFFSET_ENTRY_STRUCT,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.fs import FileMapping, Fs, OpenFile

_WARM_BYTES = 8192


@kernel
def last_at_most_i32(address: int, entry_bytes: int, field: int, entries: int, warm: int, target: int) -> int:
    """Return the last of `entries` whose 32-bit `field` is not above `target`; -1 if there is none."""
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
    """Return the last of `entries` whose 64-bit `field` is not above `target`; -1 if there is none."""
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


class _MappedIndex:
    """The common part of offset and time index: a file of whole entries."""

    entry_bytes: int

    def __init__(self, path: Path, base_offset: int, fs: Fs, *, max_bytes: int, entries: int | None = None) -> None:
        """Prepare an index; `entries` is 0 for a new file, and None for a file of entries without zeros after them."""
        if max_bytes < self.entry_bytes:
            raise SettingsError(
                f"an index of {max_bytes} bytes cannot hold an entry", advice="raise segment.index.bytes to at least 12"
            )
        self.path = path
        self.base_offset = base_offset
        self.max_entries = max_bytes // self.entry_bytes
        self._fs = fs
        self._entries = entries
        self.is_reserved = False
        self._file: OpenFile | None = None
        self._mapping: FileMapping | None = None

    def __len__(self) -> int:
        if self._entries is None:
            self.open()
        return self._entries or 0

    def open(self) -> OpenFile:
        """Return the file, created if it is missing; only an index that grows keeps it open."""
        file = self._file
        if file is None:
            file = self._fs.create_file(self.path, like=self.path.with_suffix(SegmentFileKind.LOG))
            if self._entries is None:
                self._entries = file.size_bytes() // self.entry_bytes
            if self.is_reserved:
                self._file = file
        return file

    def reserve(self) -> None:
        """Extend the file to its full size and keep it open for appends."""
        if self._file is not None:
            return
        file = self._file = self.open()
        if self.is_reserved:
            return
        self.is_reserved = True
        if file.size_bytes() != self.max_entries * self.entry_bytes:
            self._mapping = None
            file.resize(self.max_entries * self.entry_bytes)

    def trim(self) -> None:
        """Truncate the file after its last entry."""
        file = self.open()
        self.is_reserved = False
        self._file = None
        if file.size_bytes() != len(self) * self.entry_bytes:
            self._mapping = None
            file.resize(len(self) * self.entry_bytes)

    def extend(self, entries: bytes) -> None:
        """Append whole entries; the caller has checked that they fit and follow the last one."""
        self.open().write(entries, len(self) * self.entry_bytes)
        self._entries = len(self) + len(entries) // self.entry_bytes

    def cut(self, entries: int) -> None:
        """Keep the first `entries` and overwrite the others with zeros."""
        file, before = self.open(), len(self)
        if entries < before:
            file.write(bytes((before - entries) * self.entry_bytes), entries * self.entry_bytes)
            self._entries = entries

    def moved(self, path: Path) -> None:
        """Note the new name of the file."""
        self.path = path
        if self._file is not None:
            self._file.path = path

    def close_file(self) -> None:
        """Close the descriptor until the index grows again; the mapping stays."""
        self._file = None

    def release(self) -> None:
        """Drop the file, which closes with its last reference."""
        self._file = self._mapping = None

    def _mapped(self) -> FileMapping:
        """Return the mapping of all entries; the index is not empty."""
        mapping = self._mapping
        if mapping is None or len(mapping) < len(self) * self.entry_bytes:
            file = self.open()
            mapping = self._mapping = file.map(file.size_bytes())
        return mapping


class MappedOffsetIndex(_MappedIndex):
    """The `.index` of an open segment (kafka-log 01 §7.1)."""

    entry_bytes = OFFSET_ENTRY_BYTES

    @property
    def is_full(self) -> bool:
        """True if no further entry fits, which is a reason to roll the segment."""
        return len(self) >= self.max_entries

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if the index is empty."""
        return self[len(self) - 1].offset if len(self) else self.base_offset

    def __getitem__(self, slot: int) -> OffsetPosition:
        mapping = self._mapped()
        relative_offset, position = OFFSET_ENTRY_STRUCT.unpack_from(mapping.memory, slot * OFFSET_ENTRY_BYTES)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def lookup(self, target_offset: int) -> OffsetPosition:
        """Return the entry with the largest offset ≤ `target_offset`; (base offset, 0) if there is none.

        Raises:
            CorruptIndexError: its position is negative; after a clean stop, indexes are not checked when they are
                opened.
        """
        slot = self._slot(target_offset - self.base_offset)
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        entry = self[slot]
        if entry.position < 0:
            raise CorruptIndexError(
                f"index entry {slot} has position {entry.position}",
                path=str(self.path),
                offset=entry.offset,
                advice="close the log and delete this file; the next start rebuilds it",
            )
        return entry

    def fetch_upper_bound(self, position: int) -> OffsetPosition | None:
        """Return the first entry at or above byte `position`; a fetch that ends there has only lower offsets."""
        entries = len(self)
        if not entries:
            return None
        mapping = self._mapped()
        slot = last_at_most_i32(mapping.address, OFFSET_ENTRY_BYTES, 4, entries, _warm(self), position - 1) + 1
        return self[slot] if slot < entries else None

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        self.cut(self._slot(offset - self.base_offset - 1) + 1)

    def _slot(self, target: int) -> int:
        entries = len(self)
        if not entries:
            return -1
        mapping = self._mapped()
        return last_at_most_i32(mapping.address, OFFSET_ENTRY_BYTES, 0, entries, _warm(self), target)


class MappedTimeIndex(_MappedIndex):
    """The `.timeindex` of an open segment (kafka-log 01 §7.2)."""

    entry_bytes = TIME_ENTRY_BYTES

    @property
    def is_full(self) -> bool:
        """True if only the slot for the last entry is left, which is a reason to roll the segment."""
        return len(self) >= self.max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The entry with the largest timestamp; (−1, base offset) if the index is empty."""
        return self[len(self) - 1] if len(self) else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def __getitem__(self, slot: int) -> TimestampOffset:
        mapping = self._mapped()
        timestamp_ms, relative = TIME_ENTRY_STRUCT.unpack_from(mapping.memory, slot * TIME_ENTRY_BYTES)
        return TimestampOffset(timestamp_ms, self.base_offset + relative)

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp_ms` exceeds the last one.

        Raises:
            IndexFullError: the index is full; `skip_full_check` allows the reserved slot.
            IndexOrderError: `offset` or `timestamp_ms` is below the last entry's.
            IndexOffsetOverflowError: `offset` is out of the segment's range.
        """
        if len(self) >= self.max_entries or (self.is_full and not skip_full_check):
            raise IndexFullError(f"index is full with {len(self)} entries", advice="raise segment.index.bytes")
        last = self.last_entry
        if len(self) and offset < last.offset:
            raise IndexOrderError(f"offset is below the last one indexed, {last.offset}", offset=offset)
        if len(self) and timestamp_ms < last.timestamp_ms:
            raise IndexOrderError(
                f"timestamp {timestamp_ms} is below the last one indexed, {last.timestamp_ms}", offset=offset
            )
        if timestamp_ms > last.timestamp_ms:
            self.extend(TIME_ENTRY_STRUCT.pack(timestamp_ms, relative_offset(offset, self.base_offset)))

    def lookup(self, target_ms: int) -> TimestampOffset:
        """Return the entry with the largest timestamp ≤ `target_ms`; (−1, base offset) if there is none."""
        entries = len(self)
        if not entries:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        mapping = self._mapped()
        slot = last_at_most_i64(mapping.address, TIME_ENTRY_BYTES, 0, entries, _warm(self), target_ms)
        return self[slot] if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Keep the entries whose offset is below `offset`."""
        entries = len(self)
        if entries:
            mapping, target = self._mapped(), offset - self.base_offset - 1
            self.cut(last_at_most_i32(mapping.address, TIME_ENTRY_BYTES, 8, entries, _warm(self), target) + 1)


def _warm(index: _MappedIndex) -> int:
    return _WARM_BYTES // index.entry_bytes


def relative_offset(offset: int, base_offset: int) -> int:
    """Return `offset` relative to the base offset of its segment, as stored in an index entry.

    Raises:
        IndexOffsetOverflowError: it is out of the segment's range.
    """
    relative = offset - base_offset
    if not 0 <= relative <= INT32_MAX:
        raise IndexOffsetOverflowError(
            f"offset is not within 2^31 of the segment's base offset {base_offset}",
            offset=offset,
            advice="split the segment",
        )
    return relative
