"""The task of one segment: two forward scans of its file, and one new segment under `.part` names.

1. Scan the headers.  Find the batches with verdicts, and among them those whose header has to stay.
2. Scan again.  Check every checksum, copy the bytes between those batches, and rewrite them.

A batch that loses all records leaves its header as a batch without records if it is
* the last batch of the segment, so the log end stays even if later segments are deleted;
* among the last five data batches of a producer in the segment: a broker that loads the log remembers these, and
  recognises the last five batches when a client sends them again.  So the producer state at the end of every segment
  stays.

All other such batches are dropped.  Markers always stay, so an aborted transaction keeps its entry in the transaction
index.

Memory is one chunk, the largest decompressed batch, and columns for the batches with verdicts.

Invariant: the checksum of every byte copied was checked; a segment without a change gets no parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sediment.compaction.chunk_reader import SourceFiles
from sediment.compaction.kernels.scan_chunk import scan_chunk
from sediment.compaction.prepared_swap import CleanedGroup, CleanStats
from sediment.compaction.rewrite.batch_rewrite import rewrite_batch
from sediment.compaction.rewrite.plan import (
    Rewrite,
    RewritePlan,
    RewriteStats,
    RewrittenSegment,
    SegmentTask,
    collect_rewrite,
)
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s, NotReached, Reason
from sediment.compaction.source_errors import errors_of_partition
from sediment.segment_io.compiled.status import BAD_LENGTH, CUT_MISSED, DONE, LEGACY_MET
from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError, UsageError
from sediment.segment_io.format.indexes import AbortedTransaction, parse_transaction_index
from sediment.segment_io.format.layout import CODEC_MASK, CONTROL_BIT, MAGIC_V2
from sediment.segment_io.format.names import PartSegment, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_replay import REMEMBERED_BATCHES
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan, Rows, batch_error
from sediment.segment_io.segment.writer import write_segments

Progress = Callable[[int], None]


def rewrite_log(plan: RewritePlan, fs: Fs, *, run_id: str, attempt: str, progress: Progress | None = None) -> Rewrite:
    """Carry out the tasks of `plan` one after another; if one fails, no part of the partition is left.

    Arguments and errors are those of `rewrite_segment`.
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
    """Write the new segment of `task` to synced `.part` files beside its source; if that fails, leave none.

    `progress` is called with the bytes of each chunk of either scan; its exceptions end the rewrite.

    Raises:
        CorruptBatchError: a batch fails its CRC or is malformed, or the segment ends inside a batch.
        CorruptIndexError, UnsupportedDataError: the transaction index, or a legacy codec, cannot be read.
        SourceChangedError: the segment is not the one that was planned.
        UsageError: with its replacements, a batch is larger than a segment can be.
        OwnerNotKeptError, OSError: a part could not be written.
    """
    with ExitStack() as stack, errors_of_partition(task.partition):
        return _SegmentRewrite(task, fs, stack, progress or _no_progress).run(run_id, attempt)


@dataclass(frozen=True, slots=True, eq=False)
class _Targets:
    """The batches with verdicts: their positions in the file, int64[n], and whether their headers stay, bool[n].

    `scanned` are the records of the segment; `not_reached` are verdicts on a batch that stays unchanged.
    """

    positions: Int64s
    keeps_header: npt.NDArray[np.bool_]
    scanned: int
    not_reached: NotReached


@dataclass(slots=True)
class _Counts:
    """Counts of changed records so far, and marks of the verdicts that have a record or a reason."""

    seen: npt.NDArray[np.bool_]
    dropped: int = 0
    tombstoned: int = 0
    replaced: int = 0
    without_key: list[Int64s] = field(default_factory=list)


class _SegmentRewrite:
    """The two scans of one segment."""

    def __init__(self, task: SegmentTask, fs: Fs, stack: ExitStack, progress: Progress) -> None:
        self._task = task
        self._fs = fs
        self._progress = progress
        self._files = SourceFiles(task.directory, fs, stack)
        self._path = self._files.path(task.segment)
        self._counts = _Counts(np.zeros(len(task.verdicts), dtype=np.bool_))

    def run(self, run_id: str, attempt: str) -> RewrittenSegment:
        """Perform both scans; the second only if a batch has a verdict."""
        task, counts = self._task, self._counts
        targets = self._find_targets()
        parts = self._write(targets, run_id, attempt) if targets.positions.size else ()
        stats = RewriteStats(targets.scanned, counts.dropped, counts.tombstoned, counts.replaced)
        if not stats.matched:
            self._remove(parts)
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
        without_key = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *counts.without_key]))
        not_reached = [
            targets.not_reached,
            NotReached.of(offsets[without_key], Reason.NO_KEY),
            NotReached.of(offsets[~counts.seen], Reason.NO_RECORD),
        ]
        return RewrittenSegment(group, stats, NotReached.joined(not_reached))

    # --------------------------------------------------------------------------------------------- the scan of headers
    def _find_targets(self) -> _Targets:
        task, offsets, seen = self._task, self._task.verdicts.offsets, self._counts.seen
        positions: list[Int64s] = []
        not_reached: list[NotReached] = []
        last_of_producers = np.zeros((0, 2), dtype=np.int64)
        scanned, last_offset, last_position = 0, task.segment.base_offset - 1, -1
        for span in self._spans():
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
                    seen[low[index] : high[index]] = True
                    not_reached.append(NotReached.of(offsets[low[index] : high[index]], reason))
            positions.append(rows["position"][is_hit & ~is_control & ~is_beyond])
            is_data = (rows["magic"] >= MAGIC_V2) & ~is_control & ~is_beyond & (rows["producer_id"] >= 0)
            last_of_producers = _last_of_producers(last_of_producers, rows[is_data])
        found = np.concatenate([np.zeros(0, dtype=np.int64), *positions])
        keeps_header = np.isin(found, last_of_producers[:, 1]) | (found == last_position)
        return _Targets(found, keeps_header, scanned, NotReached.joined(not_reached))

    def _spans(self) -> Iterator[BatchSpan]:
        """Yield the chunks of the segment.

        Raises:
            CorruptBatchError: a header is malformed, or the segment ends inside a batch.
        """
        segment = self._task.segment
        scan = HeaderScan(self._path, size_bytes=segment.log_bytes)
        for span in scan.spans(self._files.file(segment)):
            self._progress(span.end - span.start)
            yield span
        if scan.end_position != segment.log_bytes:
            raise CorruptBatchError(
                "the segment ends inside a batch",
                path=str(self._path),
                position=scan.end_position,
                offset=segment.base_offset,
                advice="run `sediment recover`, or restore the segment from a replica or a backup",
            )

    # --------------------------------------------------------------------------------------------- the scan that writes
    def _write(self, targets: _Targets, run_id: str, attempt: str) -> tuple[PartSegment, ...]:
        task = self._task
        return write_segments(
            self._pieces(targets),
            task.directory,
            task.segment.base_offset,
            self._aborted(),
            index_interval_bytes=task.config.index_interval_bytes,
            segment_index_bytes=task.config.segment_index_bytes,
            like=self._path,
            mtime_ns=task.segment.mtime_ns,
            run_id=run_id,
            attempt=attempt,
            fs=self._fs,
        )

    def _aborted(self) -> tuple[AbortedTransaction, ...]:
        """Return the entries of the segment's transaction index, all of which stay."""
        if not self._task.segment.transaction_index_bytes:
            return ()
        path = self._path.with_name(
            segment_file_name(self._task.segment.base_offset, SegmentFileKind.TRANSACTION_INDEX)
        )
        return parse_transaction_index(self._fs.read_bytes(path), path=str(path)).transactions()

    def _pieces(self, targets: _Targets) -> Iterator[ByteArray]:
        """Yield the new batches, a piece for each chunk."""
        for span in self._spans():
            self._check(span)
            low, high = np.searchsorted(targets.positions, [span.position, span.position + span.end - span.start])
            if low == high:
                yield span.buffer[span.start : span.end]
                continue
            parts, copied = [], span.start
            for index in range(low, high):
                row = span.rows[np.searchsorted(span.rows["position"], targets.positions[index])]
                start = span.start + int(row["position"]) - span.position
                end = start + int(row["size_bytes"])
                content = self._rewritten(span.buffer[start:end], row, bool(targets.keeps_header[index]))
                if content is not None:
                    parts += [span.buffer[copied:start], content]
                    copied = end
            yield np.concatenate([*parts, span.buffer[copied : span.end]])

    def _check(self, span: BatchSpan) -> None:
        """Check the lengths, checksums and offsets of a chunk."""
        task = self._task
        positions = np.zeros(span.rows.size, dtype=np.int64)
        status, _, position = scan_chunk(
            span.buffer.ctypes.data, span.start, span.end, task.segment.base_offset, task.end_offset, True, positions
        )
        if status not in (DONE, LEGACY_MET):
            status = BAD_LENGTH if status == CUT_MISSED else status
            raise batch_error(status, self._path, span.position + position - span.start, span.buffer, position)

    def _rewritten(self, batch: ByteArray, row: np.void, keeps_header: bool) -> ByteArray | None:
        """Return the new bytes of one batch; None if it stays unchanged."""
        verdicts, counts = self._task.verdicts, self._counts
        try:
            done = rewrite_batch(
                batch,
                verdicts,
                keeps_header=keeps_header,
                limit_bytes=self._task.config.max_decompressed_batch_bytes,
            )
        except (CorruptBatchError, UnsupportedDataError, UsageError) as error:
            error.path, error.position, error.offset = str(self._path), int(row["position"]), int(row["base_offset"])
            raise
        counts.seen[done.found] = True
        counts.without_key.append(done.without_key)
        counts.dropped += done.dropped
        counts.tombstoned += done.tombstoned
        counts.replaced += done.replaced
        return done.content

    def _remove(self, parts: Iterable[PartSegment]) -> None:
        for part in parts:
            for file in part.files:
                self._fs.unlink(self._task.directory / file.part_name)


def _verdicts_of(rows: Rows, last_offset: int, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Return the range [low, high) of the verdicts that may be on each batch; `last_offset` precedes the batches.

    The first offset of a compressed message of magic 0 or 1 is unknown, but it is after the last offset of the batch
    before.
    """
    first = rows["base_offset"].copy()
    is_wrapper = (rows["magic"] < MAGIC_V2) & (rows["attributes"] & CODEC_MASK != 0)
    before = np.concatenate([[last_offset], rows["last_offset"][:-1]])
    first[is_wrapper] = np.minimum(first, before + 1)[is_wrapper]
    return np.searchsorted(offsets, first), np.searchsorted(offsets, rows["last_offset"], side="right")


def _last_of_producers(before: Int64s, rows: Rows) -> Int64s:
    """Return (producer id, position) of the last five batches of each producer in `before` followed by `rows`."""
    if not rows.size:
        return before
    every = np.concatenate([before, np.stack([rows["producer_id"], rows["position"]], axis=1)])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = np.searchsorted(every[:, 0], every[:, 0], side="right")
    return every[ends - np.arange(len(every)) <= REMEMBERED_BATCHES]


def _no_progress(_size_bytes: int) -> None:
    return None
