"""The two scans that re-encode a segment, or re-encode a cleaned group before it is written.

1. Scan the headers, to see if any batch may change.  If batches may be merged, also find the last five batches of each
   producer.  Otherwise, stop at the first batch that may change.
2. Scan again: encode and merge the batches that may change, and copy all others.

Messages of magic 0 and 1 are copied.  So are control batches such as transaction markers, batches without records, and
batches that end at or above the bound.  Because markers are copied, an aborted transaction keeps its entry in the
transaction index.

Memory: one chunk, one decompressed batch, and the batches of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.batch_reencode import BatchEncoder
from sediment.compaction.reencode.merging import MergeRule
from sediment.compaction.reencode.plan import Encoding, ReencodeStats
from sediment.compaction.rewrite.source_segment import BatchLocator
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.partition.producer_replay import with_last_of_producers
from sediment.segment_io.segment.reader import BatchSpan


class BatchSource(BatchLocator, Protocol):
    """Batches to re-encode, chunk by chunk in log order; each call starts again at the first batch."""

    def spans(self) -> Iterator[BatchSpan]:
        """Yield the chunks; their checksums are not checked."""
        ...

    def checked_spans(self) -> Iterator[BatchSpan]:
        """Yield the chunks; the lengths and checksums of their batches are verified."""
        ...


class ReencodingScans:
    def __init__(self, source: BatchSource, encoding: Encoding, bound: int, config: CompactionConfig) -> None:
        self._source = source
        self._encoding = encoding
        self._bound = bound
        self._batches = 0
        self._last_of_producers: Int64s = np.zeros(0, dtype=np.int64)
        self._encoder = BatchEncoder(source, encoding, config.max_decompressed_batch_bytes, config.max_message_bytes)

    def scan_headers(self) -> bool:
        last = np.zeros((0, 2), dtype=np.int64)
        may_change = False
        before = np.zeros(0, dtype=BATCH_ROW)
        # The last batches of producers are not known yet, so the rule may permit too many batches, but never too few.
        rule = self._rule()
        for span in self._source.spans():
            rows = span.rows
            self._batches += rows.size
            marks = rule.marks(rows, before)
            last = with_last_of_producers(last, rows[marks.changes & (rows["producer_id"] >= 0)])
            may_change |= bool((marks.encoded | marks.joins).any())
            if may_change and self._encoding.batch_bytes is None:
                return True
            before = rows[-1:].copy()
        self._last_of_producers = np.sort(last[:, 1])
        return may_change

    def pieces(self) -> Iterator[ByteArray]:
        """A piece is valid until the next piece is yielded."""
        before = np.zeros(0, dtype=BATCH_ROW)
        rule = self._rule()
        self._batches = 0
        for span in self._source.checked_spans():
            self._batches += span.rows.size
            wanted, joins = rule.chosen(span.rows, before)
            piece = self._encoder.encode(span, wanted, joins)
            before = span.rows[-1:].copy()
            if piece.size:
                yield piece
        if (piece := self._encoder.finish()).size:
            yield piece

    @property
    def stats(self) -> ReencodeStats:
        encoded = self._encoder.batches_encoded
        return ReencodeStats(self._batches, self._encoder.batches_after if encoded else self._batches, encoded)

    def _rule(self) -> MergeRule:
        return MergeRule(self._encoding, self._bound, self._last_of_producers)
