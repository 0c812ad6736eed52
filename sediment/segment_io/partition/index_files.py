"""Entries of an index file before its zero tail.

A broker preallocates the index of the active segment, so the file ends in megabytes of zeros.  Bisection finds the end
of the entries; each step reads one entry.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from pathlib import Path

from sediment.segment_io.fs import Fs, ReadableFile

_NO_REGULAR_FILE = frozenset({errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.EINVAL})


def read_entries(path: Path, entry_bytes: int) -> bytes:
    """Return the entries of an index file without its zero tail; none if no regular file has this name."""
    try:
        file = Fs().open_readable(path)
    except OSError as error:
        if error.errno in _NO_REGULAR_FILE:
            return b""
        raise
    try:
        return file.read(0, _written_entries(file, entry_bytes) * entry_bytes)
    finally:
        file.close()


def read_last_entry(path: Path, entry_bytes: int, fs: Fs) -> bytes | None:
    """Return the last entry before the zero tail of an index file; None if the file has no entry.

    If the file has a single entry, this entry is returned even if all its bytes are zero.
    """
    file = fs.open_readable(path)
    try:
        count = 1 if file.size_bytes() // entry_bytes == 1 else _written_entries(file, entry_bytes)
        if count == 0:
            return None
        return file.read((count - 1) * entry_bytes, entry_bytes).ljust(entry_bytes, b"\0")
    finally:
        file.close()


def _written_entries(file: ReadableFile, entry_bytes: int) -> int:
    def is_zero(slot: int) -> bool:
        return not any(file.read(slot * entry_bytes, entry_bytes))

    count = file.size_bytes() // entry_bytes
    if count and is_zero(count - 1):
        return bisect_left(range(count), True, key=is_zero)
    return count
