"""The output of a group: a buffer that the sweep fills downward, then the files of the cleaned segments.

A group with unreadable batches keeps its encoding.

New files get the modification time of the group's last source.  If no batch survives, the cleaned segment is an empty
log with empty indexes.

Invariant: parts are written only if the log or an index differs from the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sediment.compaction.chunk_reader import CHUNK_BYTES, ByteArray
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import SegmentGroup
from sediment.compaction.kernels import registers
from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PartSegment, UnreadableBatch
from sediment.compaction.write_behind import WriteBehind
from sediment.segment_io.compiled.huge_pages import PageReserve, anonymous_memory
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt, SegmentFileKind, part_file_name, segment_file_name
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.writer import PartFiles, SegmentImage, lay_out_segments, write_segment, write_segments

if TYPE_CHECKING:
    from sediment.compaction.reencode.plan import Encoding

ENCODER_BYTES = 8 << 20
"""Memory for re-encoding: a chunk, its re-encoded form, and the records of the batches that are merged."""

OUTPUT_PAGES = PageReserve(in_large_pages=False)  # shared by all groups of this process


@dataclass(frozen=True, slots=True)
class PartWriter:
    directory: Path
    config: CompactionConfig
    fs: Fs
    write_behind: WriteBehind
    attempt: Attempt
    encoding: Encoding | None = None
    written: list[Path] = field(default_factory=list)

    def finish(
        self,
        group: SegmentGroup,
        batches: ByteArray,
        changed: bool,
        aborted: Sequence[AbortedTxn],
        stats: CleanStats,
        unreadable: Sequence[tuple[int, int]] = (),
    ) -> CleanedGroup:
        """`unreadable` are byte ranges [from, to) of `batches` that cannot be parsed."""
        if self.encoding is not None and not unreadable:
            encoded = self._encoded(group, batches, aborted, stats, self.encoding)
            if encoded is not None:
                return encoded
        images = lay_out_segments(
            batches,
            group.segments[0].base_offset,
            aborted,
            index_interval_bytes=self.config.index_interval_bytes,
            segment_index_bytes=self.config.segment_index_bytes,
            unreadable=unreadable,
        )
        if len(group.segments) == 1 and not changed and self._equals_source(group.segments[0], images):
            return CleanedGroup(group.segments, (), stats)
        try:
            parts = tuple(self._write(image, group.segments[-1]) for image in images)
        # If a write fails, all parts of the partition are removed, because the next writer needs the disk space.
        except BaseException:
            with suppress(OSError):
                self.remove_all()
            raise
        return CleanedGroup(group.segments, parts, stats)

    def _encoded(
        self,
        group: SegmentGroup,
        batches: ByteArray,
        aborted: Sequence[AbortedTxn],
        stats: CleanStats,
        encoding: Encoding,
    ) -> CleanedGroup | None:
        """If no batch changes, return None and remove the parts."""
        # Imported late, because these kernels are rarely needed.
        from sediment.compaction.reencode.cleaned_batches import CleanedBatches
        from sediment.compaction.reencode.scans import ReencodingScans

        last = group.segments[-1]
        like = self.directory / segment_file_name(last.base_offset, SegmentFileKind.LOG)
        # Every batch may change, because cleaning ends below the last stable offset.
        scans = ReencodingScans(CleanedBatches(batches, like), encoding, INT64_MAX, self.config)
        try:
            if not scans.scan_headers():
                return None
            parts = write_segments(
                scans.pieces(),
                group.segments[0].base_offset,
                aborted,
                PartFiles(self.directory, like, last.mtime_ns, self.attempt, self.fs),
                index_interval_bytes=self.config.index_interval_bytes,
                segment_index_bytes=self.config.segment_index_bytes,
            )
            paths = [self.directory / file.part_name for part in parts for file in part.files]
            self.written.extend(paths)
            if not scans.stats.batches_encoded:
                for path in paths:
                    self.fs.unlink(path, missing_ok=True)
                return None
        except BaseException:
            with suppress(OSError):
                self.remove_all()
            raise
        written_bytes = sum(part.files[0].size_bytes for part in parts)
        encoded = scans.stats.batches_encoded
        return CleanedGroup(group.segments, parts, replace(stats, bytes_written=written_bytes, batches_encoded=encoded))

    def remove_all(self) -> None:
        for path in self.written:
            self.fs.unlink(path, missing_ok=True)

    def _write(self, image: SegmentImage, last: SegmentRef) -> PartSegment:
        names = [part_file_name(image.base_offset, kind, self.attempt) for kind, _ in image.files()]
        self.written.extend(map(self.directory.joinpath, names))
        like = self.directory / segment_file_name(last.base_offset, SegmentFileKind.LOG)
        files = PartFiles(self.directory, like, last.mtime_ns, self.attempt, self.fs)
        return PartSegment(image.base_offset, write_segment(image, files))

    def _equals_source(self, segment: SegmentRef, images: Sequence[SegmentImage]) -> bool:
        (image,) = images if len(images) == 1 else (None,)
        if image is None or image.log.size != segment.log_bytes:
            return False
        if segment.transaction_index_bytes == 0:
            return False  # the index exists but is empty; a cleaned segment has no empty transaction index
        sizes = {
            SegmentFileKind.OFFSET_INDEX: (segment.offset_index_bytes, image.offset_index),
            SegmentFileKind.TIME_INDEX: (segment.time_index_bytes, image.time_index),
            SegmentFileKind.TRANSACTION_INDEX: (segment.transaction_index_bytes or 0, image.transaction_index),
        }
        if any(size != len(content) for size, content in sizes.values()):
            return False
        return all(
            not content or self.fs.read_bytes(self.directory / segment_file_name(segment.base_offset, kind)) == content
            for kind, (_, content) in sizes.items()
        )


class GroupOutput:
    """The output of one group, filled downward in anonymous memory; only the used part occupies physical memory."""

    def __init__(
        self,
        group: SegmentGroup,
        aborted: Sequence[AbortedTxn],
        writer: PartWriter,
        state: npt.NDArray[np.int64],
        unreadable: Sequence[UnreadableBatch] = (),
        *,
        is_untouchable: bool = False,
    ) -> None:
        """Copy the `unreadable` batches of `group` unchanged; if the group `is_untouchable`, keep its sources.

        Until `take` is called, `state` contains the registers of the sweep that fills the output.
        """
        self._group = group
        self._unreadable = tuple(unreadable)
        self._is_untouchable = is_untouchable
        self._kept_ends: list[tuple[int, int]] = []
        self._aborted = aborted
        self._writer = writer
        self.buffer = self._memory(group.log_bytes + CHUNK_BYTES)
        self._start = self.buffer.size
        self._changed = False
        self._stats = CleanStats()
        self._state = state
        state[registers.OUT_START] = self.buffer.size
        state[[registers.MESSAGES_READ, registers.MESSAGES_WRITTEN, registers.CHANGED]] = 0
        state[[registers.TOMBSTONES_WAITING, registers.WITHOUT_HORIZON, registers.WITHOUT_KEY]] = 0
        state[registers.FIRST_HORIZON_MS], state[registers.LAST_HORIZON_MS] = INT64_MAX, 0

    def grow(self, needed: int) -> None:
        state = self._state
        start = int(state[registers.OUT_START])
        used = self.buffer[start:]
        larger = self._memory(2 * self.buffer.size + needed)
        state[registers.OUT_START] = larger.size - used.size
        larger[larger.size - used.size :] = used
        self.buffer = larger

    def place_original(self, source: ByteArray, *, is_unreadable: bool) -> None:
        state = self._state
        if state[registers.OUT_START] < source.size:
            self.grow(source.size)
        state[registers.OUT_START] -= source.size
        start = int(state[registers.OUT_START])
        self.buffer[start : start + source.size] = source
        if is_unreadable:
            self._kept_ends.append((self.buffer.size - start, source.size))
        state[registers.CURSOR] -= 1

    def take(self) -> None:
        state = self._state
        self._start = int(state[registers.OUT_START])
        self._changed = bool(state[registers.CHANGED])
        is_stated = self._writer.config.delete_retention_ms is not None
        self._stats = CleanStats(
            messages_read=int(state[registers.MESSAGES_READ]),
            messages_written=int(state[registers.MESSAGES_WRITTEN]),
            bytes_read=self._group.log_bytes,
            bytes_written=self.buffer.size - self._start,
            corrupt_batches=len(self._unreadable),
            tombstones_waiting=int(state[registers.TOMBSTONES_WAITING]),
            first_horizon_ms=max(int(state[registers.FIRST_HORIZON_MS]), 0),
            last_horizon_ms=int(state[registers.LAST_HORIZON_MS]),
            batches_without_horizon=0 if is_stated else int(state[registers.WITHOUT_HORIZON]),
            records_without_key=int(state[registers.WITHOUT_KEY]),
        )

    def used_bytes(self) -> int:
        encoder_bytes = 0 if self._writer.encoding is None else ENCODER_BYTES
        return self.buffer.size - self._start + encoder_bytes

    def finish(self) -> CleanedGroup:
        batches, self.buffer = self.buffer[self._start :], np.zeros(0, dtype=np.uint8)
        if self._is_untouchable:
            kept = replace(
                self._stats,
                messages_written=self._stats.messages_read,
                bytes_written=self._group.log_bytes,
                records_without_key=0,
            )
            return CleanedGroup(self._group.segments, (), kept, self._unreadable)
        starts = [(batches.size - from_end, size) for from_end, size in reversed(self._kept_ends)]
        spans = [(start, start + size) for start, size in starts]
        cleaned = self._writer.finish(self._group, batches, self._changed, self._aborted, self._stats, spans)
        return replace(cleaned, unreadable=self._unreadable)

    def _memory(self, size_bytes: int) -> ByteArray:
        if self._writer.config.task_memory_bytes == INT64_MAX:
            return OUTPUT_PAGES.take_any(size_bytes)
        # If the task has a memory limit, the buffer is always newly mapped, because unused pages of a new mapping
        # occupy no memory.
        return anonymous_memory(size_bytes, in_large_pages=False)
