"""One segment that a rewrite reads and replaces: chunks of headers, chunks of checked batches, and new parts.

Invariants: the file is the listed file.  The file consists of whole batches.  Zeros may follow them only if the caller
accepts zeros.  In a checked chunk, the lengths, checksums and offsets of all batches were verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np

from sediment.compaction.chunk_reader import SourceFiles
from sediment.compaction.config import CompactionConfig
from sediment.compaction.kernels.scan_chunk import scan_chunk
from sediment.compaction.rewrite.verdicts import ByteArray
from sediment.segment_io.compiled.status import BAD_LENGTH, CUT_MISSED, DONE, LEGACY_MET
from sediment.segment_io.errors import CorruptBatchError, CorruptIndexError, SedimentError
from sediment.segment_io.format.names import Attempt, PartSegment, SegmentFileKind, segment_file_name
from sediment.segment_io.format.transaction_index import AbortedTxn, parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan, batch_error
from sediment.segment_io.segment.writer import PartFiles, write_segments

Progress = Callable[[int], None]


class BatchLocator(Protocol):
    def locate(self, error: SedimentError, span: BatchSpan, ordinal: int) -> None: ...

    def error(self, status: int, span: BatchSpan, ordinal: int) -> CorruptBatchError: ...


class SourceSegment:
    """A segment of `directory` with offsets below `end_offset`; the segment is open until `stack` closes it.

    `progress` is called with the size of each chunk, checked or not, before the chunk is yielded.
    """

    def __init__(
        self,
        directory: Path,
        segment: SegmentRef,
        end_offset: int,
        fs: Fs,
        stack: ExitStack,
        progress: Progress | None = None,
    ) -> None:
        self._directory = directory
        self._segment = segment
        self._end_offset = end_offset
        self._fs = fs
        self._progress = progress
        self._files = SourceFiles(directory, fs, stack)
        self.path = self._files.path(segment)
        self.zeros_at_end: CorruptBatchError | None = None
        """The error for zeros after the last batch; it is set if a scan that accepts zeros finds them."""

    # ---------------------------------------------------------------------------------------------------------- reading
    def spans(self, *, zeros_may_follow: bool = False, end_position: int | None = None) -> Iterator[BatchSpan]:
        """Yield the chunks of the segment, or only the chunks before the batch at `end_position`.

        Checksums are not checked.  With `zeros_may_follow`, the last batch may be followed by zeros, as in a
        preallocated file.
        """
        size_bytes = self._segment.log_bytes if end_position is None else end_position
        scan = HeaderScan(self.path, size_bytes=size_bytes)
        file = self._files.file(self._segment)
        try:
            for span in scan.spans(file):
                if self._progress is not None:
                    self._progress(span.end - span.start)
                yield span
            if scan.end_position != size_bytes:
                raise CorruptBatchError(
                    "the segment ends inside a batch",
                    path=str(self.path),
                    position=scan.end_position,
                    offset=self._segment.base_offset,
                    advice="run `sediment recover`, or restore the segment from a replica or a backup",
                )
        except CorruptBatchError as error:
            if not (zeros_may_follow and file.has_only_zeros(scan.end_position, size_bytes)):
                raise
            self.zeros_at_end = error

    def checked_spans(self, *, zeros_may_follow: bool = False, end_position: int | None = None) -> Iterator[BatchSpan]:
        for span in self.spans(zeros_may_follow=zeros_may_follow, end_position=end_position):
            self.check(span)
            yield span

    def check(self, span: BatchSpan) -> None:
        positions = np.zeros(span.rows.size, dtype=np.int64)
        status, _, position = scan_chunk(
            span.buffer.ctypes.data,
            span.start,
            span.end,
            self._segment.base_offset,
            self._end_offset,
            True,
            positions,
        )
        if status not in (DONE, LEGACY_MET):
            status = BAD_LENGTH if status == CUT_MISSED else status
            raise batch_error(status, self.path, span.position + position - span.start, span.buffer, position)

    def locate(self, error: SedimentError, span: BatchSpan, ordinal: int) -> None:
        row = span.rows[ordinal]
        error.path, error.position, error.offset = str(self.path), int(row["position"]), int(row["base_offset"])

    def error(self, status: int, span: BatchSpan, ordinal: int) -> CorruptBatchError:
        position = int(span.rows["position"][ordinal])
        return batch_error(status, self.path, position, span.buffer, span.start + position - span.position)

    # ---------------------------------------------------------------------------------------------------------- writing
    def write(self, pieces: Iterable[ByteArray], config: CompactionConfig, attempt: Attempt) -> tuple[PartSegment, ...]:
        """Write and sync the segments that replace this segment; see `write_segments`.

        The new segments keep all entries of the transaction index, so `pieces` must contain every transaction marker.
        """
        return write_segments(
            pieces,
            self._segment.base_offset,
            self._aborted(),
            PartFiles(self._directory, self.path, self._segment.mtime_ns, attempt, self._fs),
            index_interval_bytes=config.index_interval_bytes,
            segment_index_bytes=config.segment_index_bytes,
        )

    def _aborted(self) -> tuple[AbortedTxn, ...]:
        if not self._segment.transaction_index_bytes:
            return ()
        path = self.path.with_name(segment_file_name(self._segment.base_offset, SegmentFileKind.TRANSACTION_INDEX))
        if self._segment.has_endless_transaction_index:
            raise CorruptIndexError(
                "the transaction index has more entries than the log has batches",
                path=str(path),
                advice="run `sediment recover`, which rebuilds it",
            )
        return parse_transaction_index(self._fs.read_bytes(path), path=str(path)).transactions()

    def remove(self, parts: Iterable[PartSegment]) -> None:
        for part in parts:
            for file in part.files:
                self._fs.unlink(self._directory / file.part_name)
