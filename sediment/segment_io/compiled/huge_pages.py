"""Memory in plain pages and in huge pages, and a reserve that keeps freed memory for its next use."""

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
_MAP_NORESERVE = 0x4000  # Linux's value; the module `mmap` has the constant only since Python 3.13


def anonymous_memory(size_bytes: int, *, in_large_pages: bool) -> npt.NDArray[np.uint8]:
    """Return zeroed uint8[size_bytes], in huge pages if requested and possible.

    A page occupies physical memory only after its first use.
    """
    return _map_pages(max(size_bytes, 1), in_large_pages=in_large_pages).array()


@dataclass(frozen=True, slots=True)
class _Pages:
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
        # The first access to a page causes a page fault, and each page in use occupies an entry of the TLB.  Random
        # access is faster with pages of 2 MiB, because there are 512 times fewer pages than with 4 KiB.
        # Some systems do not have the flag, and a Linux kernel without huge pages returns an error.
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    return _Pages(memory, -address % LARGE_PAGE_BYTES if in_large_pages else 0, size_bytes)


class PageReserve:
    """Memory that is reused when no array refers to it any more.

    Invariant: the memory in use plus the kept memory never exceeds the largest amount that was ever in use.
    """

    def __init__(self, *, in_large_pages: bool) -> None:
        self._in_large_pages = in_large_pages
        self._lock = threading.Lock()
        # Any thread may free an array at any time. So when an array is freed, its pages are only put on a list.
        self._returned: deque[_Pages] = deque()
        self._kept: list[_Pages] = []
        self._in_use_bytes = 0
        self._most_bytes = 0

    def take_zeroed(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        memory, is_fresh = self._take(size_bytes, most_bytes=size_bytes)
        if not is_fresh:
            memory[:] = 0
        return memory

    def take_any(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return uint8[size_bytes] with undefined content; pages that were used before are at the end of the array."""
        memory, _ = self._take(size_bytes, most_bytes=None)
        return memory[memory.size - size_bytes :]

    def kept_bytes(self) -> int:
        with self._lock:
            self._settle()
            return sum(pages.size_bytes for pages in self._kept)

    def clear(self) -> None:
        with self._lock:
            self._settle()
            self._kept.clear()
            self._most_bytes = self._in_use_bytes

    def _take(self, size_bytes: int, *, most_bytes: int | None) -> tuple[npt.NDArray[np.uint8], bool]:
        """Return (memory, True if the memory is new); the memory has at least `size_bytes` and at most `most_bytes`."""
        with self._lock:
            self._settle()
            fitting = [
                pages
                for pages in self._kept
                if pages.size_bytes >= size_bytes and (most_bytes is None or pages.size_bytes <= most_bytes)
            ]
            # On a virtual machine whose host reclaims free memory, the first access to a page is slow.  It can take
            # twenty times as long as zeroing an existing page, especially with huge pages.  Therefore a process that
            # cleans several partitions in turn reuses its memory.
            found = min(fitting, key=lambda pages: pages.size_bytes, default=None)
            if found is not None:
                self._kept.remove(found)
            pages = found or _map_pages(max(size_bytes, 1), in_large_pages=self._in_large_pages)
            self._in_use_bytes += pages.size_bytes
            self._most_bytes = max(self._most_bytes, self._in_use_bytes)
            self._drop_surplus()
        memory = pages.array()
        weakref.finalize(memory, self._returned.append, pages).atexit = False
        # Views of views refer to `memory` itself, so the finalizer waits for all of them.
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


TABLE_PAGES = PageReserve(in_large_pages=True)
"""The pages of all key tables in this process."""
