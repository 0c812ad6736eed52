"""Memory between guard pages: a decoder that reads or writes one byte too far crashes at once.

The memory may be that of a file, in which the parent of a dead process finds the batch that killed it.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

_libc = ctypes.CDLL(None, use_errno=True)


class GuardedBuffer:
    """`bytes`, uint8[size_bytes], with a guard page right after its end and one before its first page."""

    def __init__(self, size_bytes: int, path: Path | None = None) -> None:
        page = mmap.PAGESIZE
        inner = -(-size_bytes // page) * page
        if path is None:
            self._map = mmap.mmap(-1, inner + 2 * page)
        else:
            with path.open("w+b") as file:
                file.truncate(inner + 2 * page)
                self._map = mmap.mmap(file.fileno(), inner + 2 * page)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        for start in (whole.ctypes.data, whole.ctypes.data + page + inner):
            if _libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.bytes: npt.NDArray[np.uint8] = whole[page + inner - size_bytes : page + inner]


def saved(path: Path, size_bytes: int) -> bytes:
    """Return the content of the buffer with this file."""
    content = path.read_bytes()
    return content[len(content) - mmap.PAGESIZE - size_bytes : len(content) - mmap.PAGESIZE]
