"""The search over the batch headers of an open segment file; `search` contains the kernel.

Invariant: memory use is one window for each searching thread, for files and batches of any size.
"""

from __future__ import annotations

import struct
import threading
from typing import NamedTuple

from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.compiled.status import INCOMPLETE, OK
from sediment.segment_io.format.layout import MAGIC
from sediment.segment_io.fs import ReadableFile
from sediment.segment_io.segment.reader import batch_error
from sediment.segment_io.segment.search import find_batch

_WINDOW_BYTES = 8 << 10
_offset_at = struct.Struct(">q").unpack_from


class FoundBatch(NamedTuple):
    """The location of a batch in its segment file; `base_offset` is the value in its header."""

    base_offset: int
    position: int
    size_bytes: int


class _Window(threading.local):
    """A buffer for the headers that a search reads."""

    def __init__(self) -> None:
        buffer = padded_buffer(_WINDOW_BYTES)
        address: int = buffer.ctypes.data
        self.parts = buffer, buffer.data[:_WINDOW_BYTES], address


_window = _Window()


def find_in_file(file: ReadableFile, position: int, end_position: int, kind: int, target: int) -> FoundBatch | None:
    """Return the first batch that a search of `kind` finds at or after `position`, or None.

    Only whole batches that end at or below `end_position` are considered.

    Raises:
        CorruptBatchError: the bytes at `position` are not a batch, or a header before the result is malformed.
        OSError: the disk failed.
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
