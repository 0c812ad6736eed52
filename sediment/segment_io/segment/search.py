"""Search over batch headers for the first batch that reaches an offset or a timestamp, compiled and in an open file.

Invariants: as in `batch_headers`, lengths are checked before they are used, and the result of the kernel is a status.
Memory use is one window for each searching thread, for files and batches of any size.
"""

from __future__ import annotations

import struct
import threading
from typing import NamedTuple

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i8, load_i32, load_i64
from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.compiled.status import INCOMPLETE, LEGACY_MAGIC, OK
from sediment.segment_io.format.batch_headers import batch_at
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LEGACY_TIMESTAMP,
    MAGIC,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
)
from sediment.segment_io.fs import ReadableFile
from sediment.segment_io.segment.reader import batch_error

# --------------------------------------------------------------------------------------------- kinds of a search
BY_LAST_OFFSET = 0
BY_TIMESTAMP = 1
BY_EXACT_TIMESTAMP = 2


@kernel
def find_batch(base: int, end: int, what: int, target: int) -> tuple[int, int, int]:
    """Find the first batch in [0, end) of a buffer whose last offset or largest timestamp is at least `target`.

    `what` is a kind of search; BY_EXACT_TIMESTAMP requires equality.  The last batch may be incomplete after its
    header.

    Returns:
        (status, position, size of the batch there or 0).  OK: the batch was found; INCOMPLETE: no such batch is in the
        buffer.
    """
    position = 0
    while True:
        status, size_bytes = batch_at(base, position, end)
        header_is_there = end - position >= BATCH_HEADER_BYTES
        if status not in (OK, LEGACY_MAGIC) and not (status == INCOMPLETE and header_is_there):
            return status, position, 0
        if not header_is_there and status != LEGACY_MAGIC:
            return INCOMPLETE, position, 0
        address = base + position
        is_legacy = load_i8(address + MAGIC) < 2
        if what == BY_LAST_OFFSET:
            value = load_i64(address + BASE_OFFSET)
            if not is_legacy:
                value += load_i32(address + LAST_OFFSET_DELTA)
        elif not is_legacy:
            value = load_i64(address + MAX_TIMESTAMP)
        else:
            value = load_i64(address + LEGACY_TIMESTAMP) if load_i8(address + MAGIC) == 1 else NO_TIMESTAMP
        if value == target or (value > target and what != BY_EXACT_TIMESTAMP):
            return OK, position, size_bytes
        position += size_bytes


_WINDOW_BYTES = 8 << 10
_offset_at = struct.Struct(">q").unpack_from


class FoundBatch(NamedTuple):
    """The location of a batch in its segment file; `base_offset` is the value in its header."""

    base_offset: int
    position: int
    size_bytes: int


class _Window(threading.local):
    def __init__(self) -> None:
        buffer = padded_buffer(_WINDOW_BYTES)
        address: int = buffer.ctypes.data
        self.parts = buffer, buffer.data[:_WINDOW_BYTES], address


_window = _Window()


def find_in_file(file: ReadableFile, position: int, end_position: int, kind: int, target: int) -> FoundBatch | None:
    """Return the first batch that a search of `kind` finds at or after `position`, or None.

    Only whole batches that end at or below `end_position` are considered.
    """
    buffer, whole, address = _window.parts
    while (left := end_position - position) >= MAGIC:
        filled = file.read_into(whole if left >= _WINDOW_BYTES else whole[:left], position)
        status, at, size_bytes = find_batch(address, filled, kind, target)
        if status == OK:
            return None if size_bytes > left - at else FoundBatch(_offset_at(whole, at)[0], position + at, size_bytes)
        if status != INCOMPLETE:
            raise batch_error(status, file.path, position + at, buffer, at)
        if at == 0:
            return None
        position += at
    return None
