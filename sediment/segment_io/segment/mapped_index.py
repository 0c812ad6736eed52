"""The common part of the offset index and the time index of open segments: a file of entries, its appends and searches.

Entries are appended with ordinary writes, so a full disk causes an error, not a signal.  Look-ups use a read-only
mapping of the same file, in which new entries are visible immediately.

Most look-ups are near the end of the log.  So the last 8192 bytes of entries are searched first, because they are in
the page cache.  Kafka's AbstractIndex calls them the warm section.  A binary search over the whole file would read
pages that have not been used for hours.

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
* Offsets and timestamps ascend, so every search is a binary search.
"""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i32, load_i64
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.fs import FileMapping, Fs, OpenFile

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
    """The common part of offset and time index: a file of whole entries."""

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
        """True if no slot is free, except reserved slots; the segment is then rolled."""
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
        """Extend the file to its full size and keep it open for appends."""
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
        """Truncate the file after its last entry."""
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
        """Keep the first `entries` entries, and overwrite the other entries with zeros."""
        file, before = self.open(), len(self)
        if entries < before:
            file.write(bytes((before - entries) * self.entry_bytes), entries * self.entry_bytes)
            self._entries = entries
            self._count_room()

    def moved(self, path: Path) -> None:
        """Record that the file was renamed to `path`."""
        self.path = path
        if self._file is not None:
            self._file.path = path

    def close_file(self) -> None:
        """Close the descriptor until the index grows; the mapping remains."""
        self._file = None
        self.room = 0

    def release(self) -> None:
        """Drop the reference to the file; the file is closed when its last reference disappears."""
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
        """The number of entries in the warm section, which a search tries first."""
        return _WARM_BYTES // self.entry_bytes
