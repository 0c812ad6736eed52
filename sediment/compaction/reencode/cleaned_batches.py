"""The batches of a cleaned group in memory, as the source of a re-encoding.

Invariant: the sweep checked the checksums of all copied batches, and wrote the checksums of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sediment.compaction.rewrite.verdicts import ByteArray
from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.fs import ReadableFile
from sediment.segment_io.segment.reader import BatchSpan, HeaderScan, batch_error


class CleanedBatches:
    """Whole batches, uint8[n]; errors contain `path`, the `.log` of the group's last source segment."""

    def __init__(self, batches: ByteArray, path: Path) -> None:
        self._file = _InMemory(batches, path)
        self._path = path

    def spans(self) -> Iterator[BatchSpan]:
        """Yield the chunks, each copied to a padded buffer, because kernels may read past the end of a batch."""
        scan = HeaderScan(self._path)
        yield from scan.spans(self._file)
        if scan.end_position != self._file.size_bytes():
            raise CorruptBatchError("the cleaned segment ends inside a batch", path=str(self._path))

    def checked_spans(self) -> Iterator[BatchSpan]:
        return self.spans()

    def locate(self, error: SedimentError, span: BatchSpan, ordinal: int) -> None:
        error.path, error.offset = str(self._path), int(span.rows["base_offset"][ordinal])

    def error(self, status: int, span: BatchSpan, ordinal: int) -> CorruptBatchError:
        position = int(span.rows["position"][ordinal])
        return batch_error(status, self._path, position, span.buffer, span.start + position - span.position)


class _InMemory(ReadableFile):
    __slots__ = ("_content",)

    def __init__(self, content: ByteArray, path: Path) -> None:
        ReadableFile.__init__(self, path, -1)
        self._content = content

    def size_bytes(self) -> int:
        return self._content.size

    def read_into(self, target: memoryview, position: int) -> int:
        found = self._content[position : position + len(target)]
        target[: found.size] = found.data
        return found.size
