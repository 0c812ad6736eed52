"""The driver of the re-encoding loop: it calls the kernel until a chunk is done, and does the requested work.

kernel returns          driver
NEEDS_PAYLOAD           decompresses the batch, and some of the following batches
NEEDS_COMPRESSION       compresses the records of the group and writes the group
NEEDS_..._ROOM          enlarges an array
any other status        raises the decoder's error for the batch
"""

from __future__ import annotations

import numpy as np

from sediment.compaction.reencode import reencode_kernels as kernels
from sediment.compaction.reencode.merging import Flags
from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.rewrite.open_batches import BatchOpener
from sediment.compaction.rewrite.source_segment import BatchLocator
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.segment_io.compiled.status import (
    DONE,
    NEEDS_COMPRESSION,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
    OK,
)
from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.compression.compress_fast_path import COMPRESSOR_REGISTERS, find_compressors
from sediment.segment_io.format.layout import ATTRIBUTES, CODEC_MASK
from sediment.segment_io.format.record_decoder import RECORD_FIELDS
from sediment.segment_io.segment.reader import BatchSpan

_FIRST_RECORDS = 4096
_FIRST_BYTES = 256 << 10


class BatchEncoder:
    """The encoder for the chunks of one segment or group; `source` adds the positions of batches to errors.

    Compressed records of a batch may expand to `limit_bytes`.  `max_message_bytes` limits the uncompressed size of
    merged batches.  It also limits the size of a batch that becomes larger than its original.
    """

    def __init__(self, source: BatchLocator, encoding: Encoding, limit_bytes: int, max_message_bytes: int) -> None:
        self._source = source
        self._encoding = encoding
        self._opener = BatchOpener(limit_bytes)
        self._rules: Int64s = np.zeros(kernels.RULE_REGISTERS, dtype=np.int64)
        self._rules[kernels.CODEC] = kernels.KEEP_CODEC if encoding.codec is None else encoding.codec
        self._rules[kernels.ENCODES_SAME_CODEC] = encoding.level is not None
        self._rules[kernels.JOINED_BYTES] = min(encoding.batch_bytes or 0, max_message_bytes)
        self._rules[kernels.BATCH_BYTES] = max_message_bytes
        self._state: Int64s = np.zeros(kernels.REGISTERS, dtype=np.int64)
        self._memory = kernels.MergeMemory(
            np.zeros(_FIRST_BYTES, dtype=np.uint8),
            np.zeros(_FIRST_BYTES, dtype=np.uint8),
            np.zeros((_FIRST_RECORDS, RECORD_FIELDS), dtype=np.int64),
        )
        self._output = np.zeros(0, dtype=np.uint8)
        self._compressors = np.zeros(COMPRESSOR_REGISTERS, dtype=np.int64)

    @property
    def batches_after(self) -> int:
        return int(self._state[kernels.BATCHES_AFTER])

    @property
    def batches_encoded(self) -> int:
        """The number of batches encoded so far, without copied batches."""
        return int(self._state[kernels.BATCHES_ENCODED])

    def encode(self, span: BatchSpan, wanted: Flags, joins: Flags) -> ByteArray:
        """Encode a checked chunk; return the new batches of the open group and of the chunk.

        The result is valid until the next call.

        `wanted` marks the batches that may change, and `joins` marks the batches that may join the previous batch.  The
        last group of the chunk remains open; the call for the next chunk, or `finish`, returns this group.
        """
        state = self._state
        batches = self._opener.begin(span, wanted)
        state[kernels.CURSOR], state[kernels.OUT_END] = 0, 0
        if self._output.size < span.end - span.start:
            self._reserve_output(span.end - span.start)
        while True:
            status = kernels.reencode_batches(
                batches, joins, self._rules, self._memory, self._output, self._compressors, state
            )
            if status == DONE:
                return self._output[: state[kernels.OUT_END]]
            ordinal = int(state[kernels.CURSOR])
            if status == NEEDS_PAYLOAD:
                try:
                    self._opener.open_batch(ordinal)
                except (CorruptBatchError, UnsupportedDataError) as error:
                    self._source.locate(error, span, ordinal)
                    raise
            elif not self._provides(status):
                raise self._source.error(status, span, ordinal)

    def finish(self) -> ByteArray:
        """The result is valid until the next call."""
        self._state[kernels.OUT_END] = 0
        while True:
            status = kernels.end_group(self._rules, self._memory, self._output, self._compressors, self._state)
            if status == OK:
                return self._output[: self._state[kernels.OUT_END]]
            assert self._provides(status)

    def _provides(self, status: int) -> bool:
        needed = int(self._state[kernels.NEEDED])
        if status == NEEDS_COMPRESSION:
            self._compress()
        elif status == NEEDS_OUTPUT_ROOM:
            self._reserve_output(needed)
        elif status == NEEDS_RAW_ROOM:
            self._memory = self._memory._replace(
                raw=_enlarged(self._memory.raw, needed), originals=_enlarged(self._memory.originals, needed)
            )
        elif status == NEEDS_RECORD_ROOM:
            count = 1 << (needed - 1).bit_length()
            self._memory = self._memory._replace(records=np.zeros((count, RECORD_FIELDS), dtype=np.int64))
        else:
            return False
        return True

    def _compress(self) -> None:
        if not self._compressors.any():
            # These tools are loaded at the first request. Then the kernel compresses groups itself, if possible.
            self._compressors = find_compressors(self._encoding.codec, self._encoding.level)
        codec = self._encoding.codec
        if codec is None:
            codec = int(self._memory.originals[ATTRIBUTES + 1]) & CODEC_MASK
        raw = self._memory.raw.data[: int(self._state[kernels.RAW_BYTES])]
        compressed = np.frombuffer(compress(codec, raw, level=self._encoding.level), dtype=np.uint8)
        while kernels.place_compressed(self._rules, compressed, self._memory, self._output, self._state) != OK:
            self._reserve_output(int(self._state[kernels.NEEDED]))

    def _reserve_output(self, size_bytes: int) -> None:
        self._output = _enlarged(self._output, size_bytes)


def _enlarged(memory: ByteArray, size_bytes: int) -> ByteArray:
    larger = np.empty(max(2 * size_bytes, memory.size), dtype=np.uint8)
    larger[: memory.size] = memory
    return larger
