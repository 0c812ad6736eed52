"""Buffers with readable padding after the content, because a decoder may read past the end before it checks the end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer

PADDING_BYTES = 64


def padded_buffer(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return zeroed uint8[size_bytes + PADDING_BYTES]; decoders may read the padding."""
    return np.zeros(size_bytes + PADDING_BYTES, dtype=np.uint8)


def unfilled_buffer(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return uint8[size_bytes + PADDING_BYTES] with undefined content, for a caller that reads only what it wrote."""
    return np.empty(size_bytes + PADDING_BYTES, dtype=np.uint8)


def padded_copy(content: Buffer) -> npt.NDArray[np.uint8]:
    data = np.frombuffer(content, dtype=np.uint8)
    buffer = padded_buffer(data.size)
    buffer[: data.size] = data
    return buffer
