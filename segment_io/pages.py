"""Memory in large pages, for what is filled at once or looked at everywhere.

A page of memory costs a fault when it is first touched and an entry of the CPU's address cache for as long as it is
used; of 2 MiB pages there are 512 times fewer.  A system without them gives plain pages.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

LARGE_PAGE_BYTES = 2 << 20
_MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def anonymous_memory(size_bytes: int, *, in_large_pages: bool) -> npt.NDArray[np.uint8]:
    """Zeroed uint8[size_bytes], of which only the pages that are touched take room; large ones begin at its start."""
    ahead_bytes = LARGE_PAGE_BYTES if in_large_pages else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, max(size_bytes, 1) + ahead_bytes, flags=flags)
    if in_large_pages:
        # Not on every system, and where a kernel was built without them this is an error.
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    start = -whole.ctypes.data % LARGE_PAGE_BYTES if in_large_pages else 0
    return whole[start : start + max(size_bytes, 1)]
