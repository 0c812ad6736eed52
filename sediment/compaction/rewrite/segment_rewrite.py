"""The task of one segment: two forward scans of its file, and one new segment under `.part` names.

1. Scan the headers: find the batches with verdicts, and decide which of them must keep their header.
2. Scan again: check every checksum, rewrite the batches with verdicts, and copy all other bytes.

If a batch loses all its records, its header is kept if the batch is one of these:
* the last batch of the segment, so that the log end does not change even if later segments are deleted
* one of the last five data batches of a producer in the segment.  A broker that loads the log keeps the last five in
  memory, to recognise a duplicate from a client.  Keeping these headers leaves the producer state at the end of the
  segment unchanged.

Any other batch that loses all its records is dropped.  Markers are always kept, so an aborted transaction keeps its
entry in the transaction index.

Memory: one chunk, the largest decompressed batch, and columns for the batches with verdicts.

Invariant: the checksum of every batch is checked before the batch is copied; an unchanged segment gets no parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.compaction.prepared_swap import CleanedGroup, CleanStats
from sediment.compaction.rewrite.batch_rewrite import BatchRewriter
from sediment.compaction.rewrite.last_batches import with_last_of_producers
from sediment.compaction.rewrite.plan import (
    Rewrite,
    RewritePlan,
    RewriteStats,
    RewrittenSegment,
    SegmentTask,
    collect_rewrite,
)
from sediment.compaction.rewrite.source_segment import Progress, SourceSegment
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s, NotReached, Reason
from sediment.compaction.source_errors import errors_of_partition
from sediment.segment_io.format.layout import CODEC_MASK, CONTROL_BIT, MAGIC_V2
from sediment.segment_io.format.names import PartSegment
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.reader import Rows


def rewrite_log(plan: RewritePlan, fs: Fs, *, run_id: str, attempt: str, progress: Progress | None = None) -> Rewrite:
    """Carry out the tasks of `plan` one after another; after a failure, leave no part file of the partition.

    Arguments and errors are the same as for `rewrite_segment`.
    """
    done: list[RewrittenSegment] = []
    try:
        for task in plan.tasks:
            done.append(rewrite_segment(task, fs, run_id=run_id, attempt=attempt, progress=progress))
    except BaseException:
        for part in collect_rewrite(plan, done).swap.parts():
            fs.unlink(plan.directory / part.part_name, missing_ok=True)
        raise
    return collect_rewrite(plan, done)


def rewrite_segment(
    task: SegmentTask, fs: Fs, *, run_id: str, attempt: str, progress: Progress | None = None
) -> RewrittenSegment:
    """Write the new segment of `task` to synced `.part` files next to its source; after a failure, leave no file.

    In both scans, `progress` is called with the size of each chunk; an exception from it ends the rewrite.

    Raises:
        CorruptBatchError: a batch fails its CRC or is malformed, or the segment ends inside a batch.
        CorruptIndexError: the transaction index cannot be read.
        SourceChangedError: the segment differs from the planned one.
        UsageError: the replacements would make a batch larger than a segment can be.
        OwnerNotKeptError, OSError: a part could not be written.
    """
    with ExitStack() as stack, errors_of_partition(task.partition):
        source = SourceSegment(task.directory, task.segment, task.end_offset, fs, stack, progress)
        return _SegmentRewrite(task, source).run(run_id, attempt)


@dataclass(frozen=True, slots=True, eq=False)
class _Targets:
    """The batches with verdicts.

    `positions`, int64[n], are their positions in the file; `keeps_header`, bool[n], is True if a batch keeps its
    header.

    `scanned` is the number of records in the segment.  `not_reached` are the verdicts for batches that must not change;
    `excluded`, bool[verdicts], marks the same verdicts.
    """

    positions: Int64s
    keeps_header: npt.NDArray[np.bool_]
    scanned: int
    not_reached: NotReached
    excluded: npt.NDArray[np.bool_]


class _SegmentRewrite:
    """The two scans of one segment."""

    def __init__(self, task: SegmentTask, source: SourceSegment) -> None:
        self._task = task
        self._source = source
        self._rewriter = BatchRewriter(source, task.verdicts, task.config.max_decompressed_batch_bytes)

    def run(self, run_id: str, attempt: str) -> RewrittenSegment:
        """Scan the headers, and scan a second time only if a batch has a verdict."""
        task, rewriter = self._task, self._rewriter
        targets = self._find_targets()
        parts: tuple[PartSegment, ...] = ()
        if targets.positions.size:
            parts = self._source.write(self._pieces(targets), task.config, run_id, attempt)
        stats = RewriteStats(targets.scanned, rewriter.dropped, rewriter.tombstoned, rewriter.replaced)
        if not stats.matched:
            self._source.remove(parts)
            parts = ()
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
        offsets = task.verdicts.offsets
        not_reached = [
            targets.not_reached,
            NotReached.of(offsets[rewriter.without_key], Reason.NO_KEY),
            NotReached.of(offsets[~(rewriter.seen | targets.excluded)], Reason.NO_RECORD),
        ]
        return RewrittenSegment(group, stats, NotReached.joined(not_reached))

    # --------------------------------------------------------------------------------------------- the scan of headers
    def _find_targets(self) -> _Targets:
        task, offsets = self._task, self._task.verdicts.offsets
        is_excluded = np.zeros(offsets.size, dtype=np.bool_)
        positions: list[Int64s] = []
        not_reached: list[NotReached] = []
        last_of_producers = np.zeros((0, 2), dtype=np.int64)
        scanned, last_offset, last_position = 0, task.segment.base_offset - 1, -1
        for span in self._source.spans():
            rows = span.rows
            scanned += int(np.where(rows["magic"] < MAGIC_V2, 1, rows["record_count"]).sum())
            low, high = _verdicts_of(rows, last_offset, offsets)
            last_offset, last_position = int(rows["last_offset"][-1]), int(rows["position"][-1])
            is_hit = (high > low) & (rows["record_count"] != 0)
            is_control = (rows["magic"] >= MAGIC_V2) & (rows["attributes"] & CONTROL_BIT != 0)
            is_beyond = rows["last_offset"] >= task.bound
            for excluded, reason in (
                (is_hit & is_beyond, task.bound_reason),
                (is_hit & is_control & ~is_beyond, Reason.CONTROL_RECORD),
            ):
                for index in np.flatnonzero(excluded):
                    is_excluded[low[index] : high[index]] = True
                    not_reached.append(NotReached.of(offsets[low[index] : high[index]], reason))
            positions.append(rows["position"][is_hit & ~is_control & ~is_beyond])
            is_data = (rows["magic"] >= MAGIC_V2) & ~is_control & ~is_beyond & (rows["producer_id"] >= 0)
            last_of_producers = with_last_of_producers(last_of_producers, rows[is_data])
        found = np.concatenate([np.zeros(0, dtype=np.int64), *positions])
        keeps_header = np.isin(found, last_of_producers[:, 1]) | (found == last_position)
        return _Targets(found, keeps_header, scanned, NotReached.joined(not_reached), is_excluded)

    # --------------------------------------------------------------------------------------------- the scan that writes
    def _pieces(self, targets: _Targets) -> Iterator[ByteArray]:
        """Yield the new batches, one piece for each chunk."""
        for span in self._source.checked_spans():
            low, high = np.searchsorted(targets.positions, [span.position, span.position + span.end - span.start])
            if low == high:
                yield span.buffer[span.start : span.end]
                continue
            ordinals = np.searchsorted(span.rows["position"], targets.positions[low:high])
            wanted, keeps_header = np.zeros((2, span.rows.size), dtype=np.bool_)
            wanted[ordinals] = True
            keeps_header[ordinals] = targets.keeps_header[low:high]
            yield self._rewriter.rewrite(span, wanted, keeps_header)


def _verdicts_of(rows: Rows, last_offset: int, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Return, for each batch, the range [low, high) of verdicts that may apply to it; the batches follow `last_offset`.

    The first offset of a compressed message of magic 0 or 1 is unknown, but it is above the last offset of the previous
    batch.
    """
    first = rows["base_offset"].copy()
    is_wrapper = (rows["magic"] < MAGIC_V2) & (rows["attributes"] & CODEC_MASK != 0)
    before = np.concatenate([[last_offset], rows["last_offset"][:-1]])
    first[is_wrapper] = np.minimum(first, before + 1)[is_wrapper]
    return np.searchsorted(offsets, first), np.searchsorted(offsets, rows["last_offset"], side="right")
