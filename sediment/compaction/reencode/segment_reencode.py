"""The task of one segment: two forward scans of its file, and one new segment under `.part` names.

Invariants: the checksum of every batch is checked before the batch is copied.
"""

from __future__ import annotations

from contextlib import ExitStack

from sediment.compaction.prepared_swap import CleanedGroup, CleanStats
from sediment.compaction.reencode.plan import ReencodedSegment, ReencodeTask
from sediment.compaction.reencode.scans import ReencodingScans
from sediment.compaction.rewrite.source_segment import SourceSegment
from sediment.compaction.source_errors import errors_of_partition
from sediment.segment_io.format.names import Attempt, PartSegment
from sediment.segment_io.fs import Fs


def reencode_segment(task: ReencodeTask, fs: Fs, attempt: Attempt) -> ReencodedSegment:
    """Write the new segment of `task` to synced `.part` files next to its source; after a failure, remove the files.

    Both scans report their chunks to the progress of `attempt`.
    """
    with ExitStack() as stack, errors_of_partition(task.partition):
        source = SourceSegment(task.directory, task.segment, task.end_offset, fs, stack, attempt.progress)
        scans = ReencodingScans(source, task.encoding, task.bound, task.config)
        parts: tuple[PartSegment, ...] = ()
        if scans.scan_headers():
            parts = source.write(scans.pieces(), task.config, attempt)
            if not scans.stats.batches_encoded:
                source.remove(parts)
                parts = ()
        written_bytes = sum(part.files[0].size_bytes for part in parts) if parts else task.segment.log_bytes
        counts = CleanStats(bytes_read=task.segment.log_bytes, bytes_written=written_bytes)
        return ReencodedSegment(CleanedGroup((task.segment,), parts, counts), scans.stats)
