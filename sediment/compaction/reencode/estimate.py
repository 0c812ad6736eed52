"""An estimate of the log size after re-encoding, from a sample of batches that are encoded in memory.

1. Take chunks of whole batches, spread evenly over the log (`segment_io.partition.sample`).
2. Encode the batches of each chunk again, and merge batches of the same chunk, as `reencode_segment` does.
3. Assume that the segments that `reencode` reads shrink in the same proportion as the sample.

The estimate differs from a run of `reencode` in three ways.  Batches of different chunks are not merged.  The last five
batches of each producer, which a run does not merge, are treated like all other batches.  A chunk with an unreadable
batch is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.batch_reencode import BatchEncoder
from sediment.compaction.reencode.merging import MergeRule
from sediment.compaction.reencode.plan import Encoding, ReencodeTask, plan_reencode
from sediment.compaction.rewrite.source_segment import SourceSegment
from sediment.segment_io.errors import CorruptDataError, UnsupportedDataError
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_view import LogView
from sediment.segment_io.partition.sample import sampled_batches
from sediment.segment_io.segment.reader import BatchSpan


@dataclass(frozen=True, slots=True)
class ReencodeEstimate:
    log_bytes: int
    sampled_bytes: int


def estimate_reencode(
    view: LogView, encoding: Encoding, config: CompactionConfig, fs: Fs, *, sample_bytes: int
) -> ReencodeEstimate:
    tasks = plan_reencode(view, encoding, config)
    segments = [task.segment for task in tasks]
    bases = [segment.base_offset for segment in segments]
    chunks: list[_SampledChunk] = []
    with ExitStack() as stack:
        # If the whole log is read, its last batch may be incomplete; the sample ends before that batch.
        with suppress(CorruptDataError):
            for span in sampled_batches(view.listing.path, segments, fs, budget_bytes=sample_bytes):
                if not chunks or not chunks[-1].continues(span):
                    index = max(bisect_right(bases, int(span.rows["base_offset"][0])) - 1, 0)
                    chunks.append(_SampledChunk(tasks[index], fs, stack))
                chunks[-1].add(span)
        for chunk in chunks:
            chunk.finish()
    readable = [chunk for chunk in chunks if chunk.is_readable]
    sampled_bytes = sum(chunk.bytes_before for chunk in readable)
    saved_bytes = sampled_bytes - sum(chunk.bytes_after for chunk in readable)
    total_bytes = sum(segment.log_bytes for segment in segments)
    saving = saved_bytes * total_bytes // sampled_bytes if sampled_bytes else 0
    return ReencodeEstimate(view.listing.log_bytes() - saving, sampled_bytes)


class _SampledChunk:
    def __init__(self, task: ReencodeTask, fs: Fs, stack: ExitStack) -> None:
        encoding, config = task.encoding, task.config
        self._task = task
        self._source = SourceSegment(task.directory, task.segment, task.end_offset, fs, stack)
        self._rule = MergeRule(encoding, task.bound, np.zeros(0, dtype=np.int64))
        self._encoder = BatchEncoder(
            self._source, encoding, config.max_decompressed_batch_bytes, config.max_message_bytes
        )
        self._before = np.zeros(0, dtype=BATCH_ROW)
        self._end_position = -1
        self.is_readable = True
        self.bytes_before = 0
        self.bytes_after = 0

    def continues(self, span: BatchSpan) -> bool:
        return span.position == self._end_position

    def add(self, span: BatchSpan) -> None:
        self._end_position = span.position + span.end - span.start
        if not self.is_readable:
            return
        try:
            self._source.check(span)
            wanted, joins = self._rule.chosen(span.rows, self._before)
            self.bytes_after += self._encoder.encode(span, wanted, joins).size
        except (CorruptDataError, UnsupportedDataError):
            self.is_readable = False
        self.bytes_before += span.end - span.start
        self._before = span.rows[-1:].copy()

    def finish(self) -> None:
        if self.is_readable:
            self.bytes_after += self._encoder.finish().size
