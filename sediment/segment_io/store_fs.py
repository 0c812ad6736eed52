"""Read-only file operations for the files of one folder of a store; large files are read in ranges.

    local store     files are opened in place
    other store     a file of at most WINDOW_BYTES is read whole; from a larger file, a small read fetches only
                    its own bytes, and any other read fetches a window of WINDOW_BYTES; if positions decrease, as in a
                    sweep, the window ends at the wanted bytes

Invariants: nothing is written, neither locally nor to the store.  An open file keeps one window, or the largest
requested range, in memory.  A file is identified by its name; the directory in its path is ignored.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import FileEntry, FileMapping, ReadableFile
from sediment.segment_io.stores import ListedFs, RangeReader, Store, StoredFile

WINDOW_BYTES = 8 << 20
_FEW_BYTES = 64 << 10


class RangeFile(ReadableFile):
    """A stored file that is read in ranges; `listed` has the file's size and modification time when it was opened."""

    __slots__ = ("_listed", "_ranges", "_start", "_window")

    def __init__(self, path: Path, ranges: RangeReader, listed: StoredFile) -> None:
        ReadableFile.__init__(self, path, -1)
        self._ranges = ranges
        self._listed = listed
        self._start = 0
        self._window: memoryview = memoryview(b"")

    def size_bytes(self) -> int:
        return self._listed.size_bytes

    def change_stamp(self) -> tuple[int, int, int]:
        """A store has no ctime, so the mtime also takes its place."""
        return self._listed.size_bytes, self._listed.mtime_ns, self._listed.mtime_ns

    def read(self, position: int, count: int) -> bytes:
        return bytes(self._range(position, count))

    def read_into(self, target: memoryview, position: int) -> int:
        found = self._range(position, len(target))
        target[: len(found)] = found
        return len(found)

    def has_only_zeros(self, position: int, end: int) -> bool:
        chunks = (self.read(start, min(WINDOW_BYTES, end - start)) for start in range(position, end, WINDOW_BYTES))
        return not any(chunk.strip(b"\0") for chunk in chunks)

    def map(self, size_bytes: int) -> FileMapping:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(self.path))

    def close(self) -> None:
        self._ranges.close()
        self._window = memoryview(b"")

    def _range(self, position: int, count: int) -> memoryview:
        end = min(position + count, self._listed.size_bytes)
        if end <= position:
            return memoryview(b"")
        if not self._start <= position <= end <= self._start + len(self._window):
            if end - position <= _FEW_BYTES and self._listed.size_bytes > WINDOW_BYTES:
                return memoryview(self._ranges.read(position, end - position))
            self._fetch(position, end)
        return self._window[position - self._start : end - self._start]

    def _fetch(self, position: int, end: int) -> None:
        size_bytes = max(WINDOW_BYTES, end - position)
        if self._listed.size_bytes <= WINDOW_BYTES:
            first = 0
        elif position < self._start:
            first = max(end - size_bytes, 0)
        else:
            first = position
        last = min(first + size_bytes, self._listed.size_bytes)
        self._window = memoryview(b"")  # two windows are never in memory at the same time
        self._window, self._start = memoryview(self._ranges.read(first, last - first)), first


class StoreFs(ListedFs):
    """A filesystem of the listed `files` of a folder of `store`; all other files are treated as missing."""

    def __init__(self, store: Store, folder: str, files: Mapping[str, StoredFile]) -> None:
        super().__init__(files)
        self._source = store
        self._source_folder = folder

    def exists(self, path: Path) -> bool:
        return path.name in self._files

    def entry(self, path: Path) -> FileEntry | None:
        file = self._files.get(path.name)
        return None if file is None else FileEntry(path.name, file.size_bytes, file.mtime_ns, False)

    def read_bytes(self, path: Path, *, follow_links: bool = True) -> bytes:
        file = self.open_readable(path)
        try:
            return file.read(0, file.size_bytes())
        finally:
            file.close()

    def read_range(self, path: Path, position: int, count: int) -> bytes:
        file = self.open_readable(path)
        try:
            return file.read(position, count)
        finally:
            file.close()

    def open_readable(self, path: Path) -> ReadableFile:
        """Open a file for reading; if the file was replaced since the listing, its change stamp differs."""
        name = f"{self._source_folder}/{path.name}"
        root = self._source.local_path
        if root is not None:
            return super().open_readable(root / name)
        stamp = self._source.stamp(name) if path.name in self._files else None
        if stamp is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self._source}/{name}")
        return RangeFile(path, self._source.open_ranges(name), StoredFile(stamp.size_bytes, stamp.mtime_ns))

    def free_bytes(self, path: Path) -> int:
        return INT64_MAX

    # ---------------------------------------------------------------------------------------- nothing is ever written
    def open_to_read(self, path: Path) -> int:
        if self._source.local_path is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))
        return super().open_to_read(path)

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        _refuse(path)

    def truncate(self, path: Path, size_bytes: int) -> None:
        _refuse(path)

    def rename(self, source: Path, target: Path) -> None:
        _refuse(source)

    def make_directory(self, path: Path, *, like: Path | None = None) -> None:
        _refuse(path)

    def link(self, source: Path, target: Path) -> None:
        _refuse(target)

    def reflink(self, source: Path, target: Path) -> bool:
        _refuse(target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        _refuse(path)

    def remove_directory(self, path: Path) -> None:
        _refuse(path)

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        _refuse(path)

    def adopt_owner(self, path: Path, like: Path) -> None:
        _refuse(path)

    def set_mode(self, path: Path, mode: int) -> None:
        _refuse(path)


def _refuse(path: Path) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
