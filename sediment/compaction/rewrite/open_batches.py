"""Batches of a chunk, decompressed and converted to magic 2, for kernels that read batches in order.

    edges      int64[batches + 1]  the address in the chunk at which each batch begins, and the end of the last batch
    headers    int64[batches]      the address of each batch's header of magic 2
    payloads   int64[batches, 2]   (address, bytes) of each batch's uncompressed records, or NOT_DECOMPRESSED
    wanted     bool[batches]       True for the batches that the kernel opens

Uncompressed batches are open from the start.  If a kernel reaches a wanted batch without a payload, the kernel returns
NEEDS_PAYLOAD, and the caller opens the batch.  At the same time, kernels decompress the next batches, until a buffer of
the size of a CPU cache is full.

Invariant: the payload of a batch is valid until a later batch is opened.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.segment_io.compiled.padding import PADDING_BYTES, padded_buffer, padded_copy
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format import batch_headers
from sediment.segment_io.format.batch_headers import BATCH_ROW, STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import decompress
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED, decompress_batches, find_tools
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CODEC_MASK, MAGIC_V2
from sediment.segment_io.format.upgrade import no_wrappers, upgrade_batches, upgrade_wrapper
from sediment.segment_io.segment.reader import BatchSpan

_AREA_BYTES = 1 << 20


class ChunkBatches(NamedTuple):
    edges: Int64s
    headers: Int64s
    payloads: Int64s
    wanted: npt.NDArray[np.bool_]


class BatchOpener:
    """An opener of batches, one chunk after another; compressed records may expand to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._area = padded_buffer(0)
        self._tools: npt.NDArray[np.int64] | None = None
        self._held: list[ByteArray] = []

    def begin(self, span: BatchSpan, wanted: npt.NDArray[np.bool_]) -> ChunkBatches:
        """Return the batches of a checked chunk; the chunk's buffer is valid until the next chunk is requested."""
        rows = span.rows
        self._span = span
        self._positions = rows["position"] + (span.start - span.position)
        first, past_last = span.buffer.ctypes.data, span.buffer.ctypes.data + span.end
        headers = first + self._positions
        is_compressed = rows["attributes"] & CODEC_MASK != 0
        is_current = rows["magic"] >= MAGIC_V2
        payloads = np.stack([headers + BATCH_HEADER_BYTES, rows["size_bytes"] - BATCH_HEADER_BYTES], axis=1)
        payloads[is_compressed | ~is_current] = NOT_DECOMPRESSED
        self._compressed = np.flatnonzero(wanted & is_compressed & is_current)
        self._kernels_reached = -1
        self.batches = ChunkBatches(np.append(headers, past_last), headers, payloads, wanted)
        return self.batches

    def open_batch(self, ordinal: int) -> None:
        """Set the payloads of batch `ordinal` and some of the next batches; batch `ordinal` must have no payload yet.

        Raises:
            UnsupportedDataError: the batch has an unknown codec.
        """
        payloads = self.batches.payloads
        self._held.clear()
        if self._span.rows["magic"][ordinal] < MAGIC_V2:
            self._convert(ordinal)
            return
        if ordinal > self._kernels_reached:
            self._decompress_ahead(ordinal)
        if payloads[ordinal, 1] == NOT_DECOMPRESSED:
            start = int(self._positions[ordinal])
            row = self._span.rows[ordinal]
            compressed = self._span.buffer[start + BATCH_HEADER_BYTES : start + int(row["size_bytes"])]
            self._hold(
                ordinal,
                padded_copy(
                    decompress(int(row["attributes"]) & CODEC_MASK, compressed.data, limit_bytes=self._limit_bytes)
                ),
            )

    def _decompress_ahead(self, ordinal: int) -> None:
        if self._tools is None:
            self._tools = find_tools()
            self._area = padded_buffer(_AREA_BYTES)
        ahead = self._compressed[np.searchsorted(self._compressed, ordinal) :]
        decompress_batches(
            self._span.buffer.ctypes.data,
            self._positions,
            ahead,
            self._limit_bytes,
            self._tools,
            self._area.ctypes.data,
            _AREA_BYTES,
            self.batches.payloads,
        )
        opened = ahead[self.batches.payloads[ahead, 1] != NOT_DECOMPRESSED]
        self._kernels_reached = max(ordinal, int(opened[-1]) if opened.size else -1)

    def _convert(self, ordinal: int) -> None:
        start, size_bytes = int(self._positions[ordinal]), int(self._span.rows["size_bytes"][ordinal])
        message = padded_copy(self._span.buffer[start : start + size_bytes].data)
        wrappers, payload = no_wrappers(1), None
        if self._span.rows["attributes"][ordinal] & CODEC_MASK:
            upgraded = upgrade_wrapper(message[:size_bytes].tobytes(), limit_bytes=self._limit_bytes)
            payload, wrappers[0] = padded_copy(upgraded.payload), upgraded.known
        header, _ = upgrade_batches(
            message,
            size_bytes,
            np.zeros(1, dtype=np.int64),
            np.array([size_bytes], dtype=np.int64),
            np.zeros(1, dtype=np.bool_),
            wrappers,
        )
        rows = np.zeros(1, dtype=BATCH_ROW)
        status, count, _, _ = batch_headers.read_headers(header.ctypes.data, 0, header.size - PADDING_BYTES, 0, rows)
        if count == 0:
            raise CorruptBatchError(STATUS_TEXT[status])
        self._held.append(header)
        self.batches.headers[ordinal] = header.ctypes.data
        if payload is None:
            payload = padded_copy(header[BATCH_HEADER_BYTES:-PADDING_BYTES].data)
        self._hold(ordinal, payload)

    def _hold(self, ordinal: int, payload: ByteArray) -> None:
        self._held.append(payload)
        self.batches.payloads[ordinal] = payload.ctypes.data, payload.size - PADDING_BYTES
