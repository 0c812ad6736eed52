"""The driver of the rewriting loop: it calls the kernel until a chunk is done, and does the requested work.

kernel returns          driver
NEEDS_PAYLOAD           decompresses the batch, or converts a message of magic 0 or 1
NEEDS_COMPRESSION       compresses the records and emits the batch
NEEDS_..._ROOM          enlarges an array
BATCH_TOO_LARGE         raises UsageError
any other status        raises the decoder's error for the batch
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.rewrite import rewrite_kernels as kernels
from sediment.compaction.rewrite.open_batches import BatchOpener, ChunkBatches
from sediment.compaction.rewrite.rewrite_kernels import VerdictColumns
from sediment.compaction.rewrite.source_segment import SourceSegment
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.segment_io.compiled.status import (
    BATCH_TOO_LARGE,
    DONE,
    NEEDS_COMPRESSION,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
)
from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError, UsageError
from sediment.segment_io.format.batch_rebuild import EDIT_FIELDS
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.compression.compress_fast_path import COMPRESSOR_REGISTERS, find_compressors
from sediment.segment_io.format.layout import CODEC_MASK
from sediment.segment_io.format.record_decoder import RECORD_FIELDS
from sediment.segment_io.segment.reader import BatchSpan

_FIRST_RECORDS = 4096


class BatchRewriter:
    """The rewriter for the chunks of one segment; compressed records of a batch may expand to `limit_bytes`."""

    def __init__(self, source: SourceSegment, limit_bytes: int) -> None:
        self._source = source
        self._opener = BatchOpener(limit_bytes)
        self._state: Int64s = np.zeros(kernels.REGISTERS, dtype=np.int64)
        self._output = np.zeros(0, dtype=np.uint8)
        self._raw = np.zeros(0, dtype=np.uint8)
        self._compressors = np.zeros(COMPRESSOR_REGISTERS, dtype=np.int64)
        self._reserve_rows(_FIRST_RECORDS)

    @property
    def changed(self) -> bool:
        return bool(self.dropped or self.tombstoned or self.replaced)

    @property
    def dropped(self) -> int:
        return int(self._state[kernels.DROPPED])

    @property
    def tombstoned(self) -> int:
        return int(self._state[kernels.TOMBSTONED])

    @property
    def replaced(self) -> int:
        return int(self._state[kernels.REPLACED])

    def rewrite(
        self,
        span: BatchSpan,
        verdicts: VerdictColumns,
        wanted: npt.NDArray[np.bool_],
        keeps_header: npt.NDArray[np.bool_],
    ) -> ByteArray:
        """Apply `verdicts` to a checked chunk and return the resulting batches.

        The result is valid until the next call.

        `wanted` marks the batches with verdicts.  `keeps_header` marks the batches that keep their header even if they
        lose all records.
        """
        state = self._state
        batches = self._opener.begin(span, wanted)
        state[kernels.CURSOR], state[kernels.OUT_END], state[kernels.COPIED] = 0, 0, batches.edges[0]
        if self._output.size < span.end - span.start:
            self._reserve_output(span.end - span.start)
        while True:
            status = kernels.rewrite_batches(
                batches,
                keeps_header,
                verdicts,
                self._rows,
                self._raw,
                self._output,
                self._compressors,
                state,
            )
            if status == DONE:
                return self._output[: state[kernels.OUT_END]]
            self._provide(status, span, batches)

    def _provide(self, status: int, span: BatchSpan, batches: ChunkBatches) -> None:
        ordinal, needed = int(self._state[kernels.CURSOR]), int(self._state[kernels.NEEDED])
        if status == NEEDS_PAYLOAD:
            try:
                self._opener.open_batch(ordinal)
            except (CorruptBatchError, UnsupportedDataError) as error:
                self._source.locate(error, span, ordinal)
                raise
        elif status == NEEDS_COMPRESSION:
            self._compress(batches, int(span.rows["attributes"][ordinal]) & CODEC_MASK)
        elif status == NEEDS_RECORD_ROOM:
            self._reserve_rows(needed)
        elif status == NEEDS_RAW_ROOM:
            self._raw = np.zeros(2 * needed, dtype=np.uint8)
        elif status == NEEDS_OUTPUT_ROOM:
            self._reserve_output(needed)
        elif status == BATCH_TOO_LARGE:
            refused = UsageError(
                "a batch with its replacements is larger than a segment can be; replace fewer records or use shorter "
                "bytes"
            )
            self._source.locate(refused, span, ordinal)
            raise refused
        else:
            raise self._source.error(status, span, ordinal)

    def _compress(self, batches: ChunkBatches, codec: int) -> None:
        if not self._compressors.any():
            # These tools are loaded at the first request to compress. Then the kernel compresses batches itself, if
            # possible.
            self._compressors = find_compressors()
        raw = self._raw.data[: int(self._state[kernels.RAW_BYTES])]
        compressed = np.frombuffer(compress(codec, raw), dtype=np.uint8)
        while kernels.emit_rewritten(batches, compressed, self._output, self._state) != DONE:
            self._reserve_output(int(self._state[kernels.NEEDED]))

    def _reserve_rows(self, count: int) -> None:
        count = 1 << (count - 1).bit_length()
        self._rows = kernels.RewriteMemory(
            np.zeros((count, RECORD_FIELDS), dtype=np.int64), np.zeros((count, EDIT_FIELDS), dtype=np.int64)
        )

    def _reserve_output(self, size_bytes: int) -> None:
        larger = np.empty(2 * size_bytes, dtype=np.uint8)
        used = int(self._state[kernels.OUT_END])
        larger[:used] = self._output[:used]
        self._output = larger
