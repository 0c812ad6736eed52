"""The decompressed records of one batch of magic 2, in a padded buffer that compiled code can read.

Kernels decompress the usual framings without the interpreter lock; `batch_codecs` decompresses the others, and reports
the errors.

Invariant: memory is used only for records that were decompressed, not for sizes that a stream states.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_copy, unfilled_buffer
from sediment.segment_io.errors import ExpandsTooFarError, LongWorkError
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.compression.decompress_fast_path import (
    NOT_DECOMPRESSED,
    decompress_batches,
    find_tools,
)
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CODEC_NONE

QUICK_BYTES = 2 << 20
"""The largest batch, before compression, that is quick to decompress and to check; a producer's default is 1 MiB."""

_QUICK_COMPRESSED_BYTES = 64 << 10
"""The largest compressed batch that `batch_codecs` may read if others wait for the thread."""

_AREA_BYTES = 64 << 10
_AREA_GROWTH = 8
_ALL = np.zeros(1, dtype=np.int64)


class _State(threading.local):
    """The contexts of the codecs' libraries, and the arguments of the kernel, of one thread."""

    def __init__(self) -> None:
        self.tools = find_tools()
        self.positions = np.zeros(1, dtype=np.int64)
        self.payloads = np.zeros((1, 2), dtype=np.int64)


_state = _State()


def decompressed_records(
    buffer: npt.NDArray[np.uint8],
    position: int,
    size_bytes: int,
    codec: int,
    *,
    limit_bytes: int,
    only_quick: bool = False,
) -> npt.NDArray[np.uint8]:
    """Return the records of the batch at `position` in a padded buffer, uint8[n + PADDING_BYTES].

    For a batch that is not compressed, the result is a view of the buffer.

    Raises:
        LongWorkError: `only_quick` is True, and the batch is not quick to decompress.
    """
    start, end = position + BATCH_HEADER_BYTES, position + size_bytes
    if only_quick and end - start > QUICK_BYTES:
        raise LongWorkError(f"a batch has {end - start} bytes")
    if codec == CODEC_NONE:
        return buffer[start : end + PADDING_BYTES]
    most_bytes = min(limit_bytes, QUICK_BYTES) if only_quick else limit_bytes
    state = _state
    state.positions[0] = position
    area_bytes = min(most_bytes, max(_AREA_BYTES, _AREA_GROWTH * size_bytes))
    while True:
        area = unfilled_buffer(area_bytes)
        state.payloads[0, 1] = NOT_DECOMPRESSED
        decompress_batches(
            buffer.ctypes.data,
            state.positions,
            _ALL,
            most_bytes,
            state.tools,
            area.ctypes.data,
            area_bytes,
            state.payloads,
        )
        found_bytes = int(state.payloads[0, 1])
        if found_bytes != NOT_DECOMPRESSED:
            return area[: found_bytes + PADDING_BYTES]
        if area_bytes == most_bytes:
            break
        area_bytes = min(most_bytes, _AREA_GROWTH * area_bytes)
    content = buffer[start:end].data
    # While `batch_codecs` reads many tiny blocks, other threads run only between them.  So a thread on which others
    # wait passes `only_quick`, and the batch is then decompressed only if this takes a few milliseconds.
    if only_quick and len(content) > _QUICK_COMPRESSED_BYTES:
        raise LongWorkError(f"a compressed batch has {len(content)} bytes")
    try:
        return padded_copy(decompress(codec, content, limit_bytes=most_bytes))
    except ExpandsTooFarError:
        if most_bytes == limit_bytes:
            raise
        raise LongWorkError(f"a compressed batch expands beyond {most_bytes} bytes") from None
