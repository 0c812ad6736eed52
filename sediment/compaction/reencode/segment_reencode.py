"""The task of one segment: two forward scans of its file, and one new segment under `.part` names.

1. Scan the headers: find the last five batches of each producer, and check whether any batch may change.
2. Scan again: check every checksum, encode and merge batches, and copy the others.

Messages of magic 0 and 1, control batches such as transaction markers, batches without records, and batches that reach
the bound are copied.  So an aborted transaction keeps its entry in the transaction index.

Memory: one chunk, one decompressed batch, and the batches of a group.

Invariant: the checksum of every copied batch is checked first; an unchanged segment gets no parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import CleanedGroup, CleanStats
from sediment.compaction.reencode.batch_reencode import BatchEncoder
from sediment.compaction.reencode.merging import MergeRule, chosen_batches, encoded_anyway, merge_rule
from sediment.compaction.reencode.plan import (
    Encoding,
    Reencode,
    ReencodedSegment,
    ReencodeStats,
    ReencodeTask,
    collect_reencode,
    plan_reencode,
)
from sediment.compaction.rewrite.last_batches import with_last_of_producers
from sediment.compaction.rewrite.source_segment import Progress, SourceSegment
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.compaction.source_errors import errors_of_partition
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.names import PartSegment
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_view import LogView


def reencode_log(
    view: LogView,
    encoding: Encoding,
    config: CompactionConfig,
    fs: Fs,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
) -> Reencode:
    """Carry out the tasks of a partition one after another; after a failure, leave no part.

    Arguments and errors are those of `plan_reencode` and `reencode_segment`.
    """
    done: list[ReencodedSegment] = []
    try:
        for task in plan_reencode(view, encoding, config):
            done.append(reencode_segment(task, fs, run_id=run_id, attempt=attempt, progress=progress))
    except BaseException:
        for part in collect_reencode(view, done).swap.parts():
            fs.unlink(view.listing.path / part.part_name, missing_ok=True)
        raise
    return collect_reencode(view, done)


def reencode_segment(
    task: ReencodeTask, fs: Fs, *, run_id: str, attempt: str, progress: Progress | None = None
) -> ReencodedSegment:
    """Write the new segment of `task` to synced `.part` files next to its source; after a failure, leave no file.

    `progress` is called with the size of each chunk in either scan; an exception from it ends the re-encoding.

    Raises:
        CorruptBatchError: a batch fails its CRC or is malformed, or the segment ends inside a batch.
        CorruptIndexError: the transaction index cannot be read.
        SourceChangedError: the segment differs from the planned one.
        OwnerNotKeptError, OSError: a part could not be written.
    """
    with ExitStack() as stack, errors_of_partition(task.partition):
        source = SourceSegment(task.directory, task.segment, task.end_offset, fs, stack, progress)
        return _SegmentReencode(task, source).run(run_id, attempt)


@dataclass(frozen=True, slots=True, eq=False)
class _Headers:
    """Result of the first scan: batch count, last batches of each producer, and True if any batch may change."""

    batches: int
    last_of_producers: Int64s
    may_change: bool


class _SegmentReencode:
    """The two scans of one segment."""

    def __init__(self, task: ReencodeTask, source: SourceSegment) -> None:
        self._task = task
        self._source = source

    def run(self, run_id: str, attempt: str) -> ReencodedSegment:
        """Do both scans; the second one only if a batch may change."""
        task = self._task
        headers = self._scan_headers()
        parts: tuple[PartSegment, ...] = ()
        stats = ReencodeStats(headers.batches, headers.batches, 0)
        if headers.may_change:
            encoder = BatchEncoder(
                self._source,
                task.encoding,
                task.config.max_decompressed_batch_bytes,
                task.config.max_message_bytes,
            )
            parts = self._source.write(
                self._pieces(encoder, self._rule(headers.last_of_producers)), task.config, run_id, attempt
            )
            stats = ReencodeStats(headers.batches, encoder.batches_after, encoder.batches_encoded)
            if not stats.batches_encoded:
                self._source.remove(parts)
                parts = ()
        written_bytes = sum(part.files[0].size_bytes for part in parts) if parts else task.segment.log_bytes
        counts = CleanStats(bytes_read=task.segment.log_bytes, bytes_written=written_bytes)
        return ReencodedSegment(CleanedGroup((task.segment,), parts, counts), stats)

    def _rule(self, last: Int64s) -> MergeRule:
        return merge_rule(self._task.encoding, self._task.bound, last)

    def _scan_headers(self) -> _Headers:
        """Do the first scan."""
        last = np.zeros((0, 2), dtype=np.int64)
        batches, may_change = 0, False
        before = np.zeros(0, dtype=BATCH_ROW)
        # Without the last batches of producers, the rule permits at least every batch that may change.
        rule = self._rule(np.zeros(0, dtype=np.int64))
        for span in self._source.spans():
            rows = span.rows
            batches += rows.size
            is_data = rule.may_change(rows) & (rows["producer_id"] >= 0)
            last = with_last_of_producers(last, rows[is_data])
            may_change |= bool((encoded_anyway(rule, self._task.encoding, rows) | rule.may_join(rows, before)).any())
            before = rows[-1:].copy()
        return _Headers(batches, np.sort(last[:, 1]), may_change)

    def _pieces(self, encoder: BatchEncoder, rule: MergeRule) -> Iterator[ByteArray]:
        """Yield the new batches, a piece for each chunk."""
        before = np.zeros(0, dtype=BATCH_ROW)
        for span in self._source.checked_spans():
            wanted, joins = chosen_batches(rule, self._task.encoding, span.rows, before)
            piece = encoder.encode(span, wanted, joins)
            before = span.rows[-1:].copy()
            if piece.size:
                yield piece
        if (piece := encoder.finish()).size:
            yield piece
