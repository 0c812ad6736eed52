"""The task of one segment: one forward scan of its file, and one new segment under `.part` names.

A batch that loses all its records keeps its header if it is one of these:
* the last batch of the segment, so that the log end does not change even if later segments are deleted
* one of the last five data batches of a producer in the segment.  A broker that loads the log keeps these five batches
  in memory, to recognise a duplicate from a client.  Because these headers are kept, the producer state at the end of
  the segment does not change.

Markers are always kept, so an aborted transaction keeps its entry in the transaction index.

Memory: two chunks, the blocks of the file that is being written (8 MiB), the largest decompressed batch, and a few
bytes for each verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from itertools import chain

import numpy as np

from sediment.compaction.prepared_swap import CleanedGroup, CleanStats
from sediment.compaction.rewrite.batch_rewrite import BatchRewriter
from sediment.compaction.rewrite.chunk_verdicts import GivenVerdicts, SearchedVerdicts, SegmentVerdicts
from sediment.compaction.rewrite.plan import (
    KeyVerdicts,
    Rewrite,
    RewritePlan,
    RewriteStats,
    RewrittenSegment,
    SegmentRewriteTask,
    collect_rewrite,
)
from sediment.compaction.rewrite.source_segment import SourceSegment
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s, NotReached, Reason
from sediment.compaction.source_errors import errors_of_partition
from sediment.segment_io.format.layout import CODEC_MASK, CONTROL_BIT, MAGIC_V2
from sediment.segment_io.format.names import Attempt, PartSegment
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_replay import with_last_of_producers
from sediment.segment_io.segment.reader import BatchSpan, Rows


def rewrite_log(plan: RewritePlan, fs: Fs, attempt: Attempt) -> Rewrite:
    done: list[RewrittenSegment] = []
    try:
        for task in plan.tasks:
            done.append(rewrite_segment(task, fs, attempt))
    except BaseException:
        for part in collect_rewrite(plan, done).swap.parts():
            fs.unlink(plan.directory / part.part_name, missing_ok=True)
        raise
    return collect_rewrite(plan, done)


def rewrite_segment(
    task: SegmentRewriteTask,
    fs: Fs,
    attempt: Attempt,
    *,
    by_key: KeyVerdicts | None = None,
) -> RewrittenSegment:
    """Write the new segment of `task` to synced `.part` files next to its source; after a failure, remove the files.

    `by_key` selects the records of a task without verdicts.
    """
    with ExitStack() as stack, errors_of_partition(task.partition):
        source = SourceSegment(task.directory, task.segment, task.end_offset, fs, stack, attempt.progress)
        return _SegmentRewrite(task, source, by_key).run(attempt)


class _SegmentRewrite:
    def __init__(self, task: SegmentRewriteTask, source: SourceSegment, by_key: KeyVerdicts | None) -> None:
        limit_bytes = task.config.max_decompressed_batch_bytes
        self._task = task
        self._source = source
        self._rewriter = BatchRewriter(source, limit_bytes)
        self._verdicts: SegmentVerdicts
        if task.verdicts is not None:
            self._verdicts = GivenVerdicts(task.verdicts)
        else:
            assert by_key is not None, "the task has no verdicts and needs keys"
            self._verdicts = SearchedVerdicts(by_key, source, limit_bytes)
        self._scanned = 0
        self._last_offset = task.segment.base_offset - 1
        self._not_reached: list[NotReached] = []

    def run(self, attempt: Attempt) -> RewrittenSegment:
        task, rewriter = self._task, self._rewriter
        pieces = self._pieces()
        first = next(pieces, None)
        parts: tuple[PartSegment, ...] = ()
        if first is not None:
            parts = self._source.write(chain([first], pieces), task.config, attempt)
        stats = RewriteStats(self._scanned, rewriter.dropped, rewriter.tombstoned, rewriter.replaced)
        written_bytes = sum(part.files[0].size_bytes for part in parts) if parts else task.segment.log_bytes
        group = CleanedGroup(
            (task.segment,),
            parts,
            CleanStats(
                messages_read=stats.scanned,
                messages_written=stats.scanned - stats.dropped,
                bytes_read=task.segment.log_bytes,
                bytes_written=written_bytes,
            ),
        )
        not_reached = NotReached.joined([*self._not_reached, self._verdicts.not_applied()])
        return RewrittenSegment(group, stats, not_reached, self._verdicts.matches())

    def _pieces(self) -> Iterator[ByteArray]:
        is_changed = False
        for span in self._source.checked_spans(zeros_may_follow=self._verdicts.zeros_may_follow):
            piece = self._rewritten(span)
            # Nothing is written until a record changes.  At the first changed record, the chunks before it are read,
            # checked and copied.  Each later chunk is written as soon as it is rewritten.  So a segment without a
            # changed record is read once, and not written.
            if not is_changed and self._rewriter.changed:
                is_changed = True
                for before in self._source.checked_spans(end_position=span.position):
                    yield before.buffer[before.start : before.end]
            if is_changed:
                yield piece
        if is_changed and self._source.zeros_at_end is not None:
            raise self._source.zeros_at_end

    # ------------------------------------------------------------------------------------------------------- one chunk
    def _rewritten(self, span: BatchSpan) -> ByteArray:
        """Return the batches of a checked chunk after the rewrite; they are valid until the next call."""
        rows, last_offset = span.rows, self._last_offset
        is_current = rows["magic"] >= MAGIC_V2
        self._scanned += int(np.where(is_current, rows["record_count"], 1).sum())
        self._last_offset = int(rows["last_offset"][-1])
        table = self._verdicts.on(span)
        if len(table):
            low, high = _verdicts_of(rows, last_offset, table.offsets)
            is_hit = (high > low) & (rows["record_count"] != 0)
            is_control = is_current & (rows["attributes"] & CONTROL_BIT != 0)
            is_beyond = rows["last_offset"] >= self._task.reach.bound
            for index in np.flatnonzero(is_hit & (is_beyond | is_control)):
                table.excluded[low[index] : high[index]] = True
                offsets = table.offsets[low[index] : high[index]]
                self._not_reached.append(
                    self._task.reach.not_reached(offsets)
                    if is_beyond[index]
                    else NotReached.of(offsets, Reason.CONTROL_RECORD)
                )
            wanted = is_hit & ~is_control & ~is_beyond
            if wanted.any():
                may_be_empty = wanted & (~is_current | (high - low >= rows["record_count"]))
                keeps_header = np.zeros(rows.size, dtype=np.bool_)
                # A scan of all headers finds the batches to keep; this scan runs only if a batch may lose all its
                # records.
                if table.may_drop and may_be_empty.any():
                    keeps_header = np.isin(rows["position"], self._needed_headers)
                return self._rewriter.rewrite(span, table.columns, wanted, keeps_header)
        return span.buffer[span.start : span.end]

    @cached_property
    def _needed_headers(self) -> Int64s:
        last_of_producers = np.zeros((0, 2), dtype=np.int64)
        last_position = -1
        for span in self._source.spans():
            rows = span.rows
            is_data = (rows["magic"] >= MAGIC_V2) & (rows["attributes"] & CONTROL_BIT == 0) & (rows["producer_id"] >= 0)
            is_data &= rows["last_offset"] < self._task.reach.bound
            last_of_producers = with_last_of_producers(last_of_producers, rows[is_data])
            last_position = int(rows["position"][-1])
        return np.append(last_of_producers[:, 1], last_position)


def _verdicts_of(rows: Rows, last_offset: int, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Return the range [low, high) of the verdicts that may concern a batch, for each batch after `last_offset`."""
    first = rows["base_offset"].copy()
    is_wrapper = (rows["magic"] < MAGIC_V2) & (rows["attributes"] & CODEC_MASK != 0)
    before = np.concatenate([[last_offset], rows["last_offset"][:-1]])
    # The first offset of a compressed message of magic 0 or 1 is unknown, but it is above the previous batch's last
    # offset.
    first[is_wrapper] = np.minimum(first, before + 1)[is_wrapper]
    return np.searchsorted(offsets, first), np.searchsorted(offsets, rows["last_offset"], side="right")
