"""Memory in plain and in large pages, and a reserve of it.

A page of memory costs a fault when it is first touched and an entry of the CPU's address cache for as long as it is
used; of 2 MiB pages there are 512 times fewer, which pays where memory is looked at everywhere.  A system without them
gives plain pages.

In a virtual machine whose host takes back what is free, a page's first touch may cost twenty times as much as zeroing
it, a large one's most of all.  A process that cleans one partition after the other therefore uses its memory again.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LARGE_PAGE_BYTES = 2 << 20
_MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def anonymous_memory(size_bytes: int, *, in_large_pages: bool) -> npt.NDArray[np.uint8]:
    """Zeroed uint8[size_bytes], of which only the pages that are touched take room; large ones begin at its start."""
    return _map_pages(max(size_bytes, 1), in_large_pages=in_large_pages).array()


@dataclass(frozen=True, slots=True)
class _Pages:
    """`size_bytes` of `memory` from `start` on."""

    memory: mmap.mmap
    start: int
    size_bytes: int

    def array(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.memory, dtype=np.uint8, count=self.size_bytes, offset=self.start)


def _map_pages(size_bytes: int, *, in_large_pages: bool) -> _Pages:
    ahead_bytes = LARGE_PAGE_BYTES if in_large_pages else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, size_bytes + ahead_bytes, flags=flags)
    if in_large_pages:
        # Not on every system, and where a kernel was built without them this is an error.
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    return _Pages(memory, -address % LARGE_PAGE_BYTES if in_large_pages else 0, size_bytes)


class PageReserve:
    """Memory that is handed out again once nobody looks into it any more.

    It comes back by itself, with the last array that looks into it.

    Invariant: what is in use and what is kept together are never more than what was in use at one time.
    """

    def __init__(self, *, in_large_pages: bool) -> None:
        self._in_large_pages = in_large_pages
        self._lock = threading.Lock()
        # Arrays end on any thread and in the middle of anything, so what comes back is only noted then.
        self._returned: deque[_Pages] = deque()
        self._kept: list[_Pages] = []
        self._in_use_bytes = 0
        self._most_bytes = 0

    def take_zeroed(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed uint8[size_bytes]; large pages begin where it does."""
        memory, is_fresh = self._take(size_bytes, most_bytes=size_bytes)
        if not is_fresh:
            memory[:] = 0
        return memory

    def take_any(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """uint8[size_bytes] with any content, whose end is what was touched before if anything was."""
        memory, _ = self._take(size_bytes, most_bytes=None)
        return memory[memory.size - size_bytes :]

    def kept_bytes(self) -> int:
        """How much is kept, at most: not all of it need have been touched."""
        with self._lock:
            self._settle()
            return sum(pages.size_bytes for pages in self._kept)

    def clear(self) -> None:
        """Give back to the system what is kept."""
        with self._lock:
            self._settle()
            self._kept.clear()
            self._most_bytes = self._in_use_bytes

    def _take(self, size_bytes: int, *, most_bytes: int | None) -> tuple[npt.NDArray[np.uint8], bool]:
        """(memory of at least `size_bytes`, and at most `most_bytes`; whether it is fresh)."""
        with self._lock:
            self._settle()
            fitting = [
                pages
                for pages in self._kept
                if pages.size_bytes >= size_bytes and (most_bytes is None or pages.size_bytes <= most_bytes)
            ]
            found = min(fitting, key=lambda pages: pages.size_bytes, default=None)
            if found is not None:
                self._kept.remove(found)
            pages = found or _map_pages(max(size_bytes, 1), in_large_pages=self._in_large_pages)
            self._in_use_bytes += pages.size_bytes
            self._most_bytes = max(self._most_bytes, self._in_use_bytes)
            self._drop_surplus()
        memory = pages.array()
        weakref.finalize(memory, self._returned.append, pages).atexit = False
        # Views of views look into `memory` itself, which is what the finalizer waits for.
        return memory.view(), found is None

    def _settle(self) -> None:
        while self._returned:
            pages = self._returned.popleft()
            self._in_use_bytes -= pages.size_bytes
            self._kept.append(pages)
        self._drop_surplus()

    def _drop_surplus(self) -> None:
        kept_bytes = sum(pages.size_bytes for pages in self._kept)
        while self._in_use_bytes + kept_bytes > self._most_bytes:
            kept_bytes -= self._kept.pop(0).size_bytes
