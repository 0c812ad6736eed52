"""Forward reading of segment files in chunks, as rows of batch headers.

Invariants: a file is read with pread into padded buffers, and is never mapped.  So a failing disk or a shrinking file
causes an error, not a signal.  Memory use is one chunk and the largest batch, for files of any size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.padding import PADDING_BYTES, unfilled_buffer
from sediment.segment_io.compiled.status import INCOMPLETE, ROWS_FULL
from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError, SourceChangedError
from sediment.segment_io.format import batch_headers
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.layout import BASE_OFFSET, LEGACY_MIN_ENTRY_BYTES, LOG_OVERHEAD_BYTES
from sediment.segment_io.fs import Fs, ReadableFile

CHUNK_BYTES = 1 << 20
ROWS_PER_TABLE = 1 << 14

Rows = npt.NDArray[np.void]
ByteArray = npt.NDArray[np.uint8]


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all `parts`; there is at least one part, and all have the same dtype."""
    dtype = parts[0].dtype
    assert all(part.dtype == dtype for part in parts)
    # `np.concatenate` would compare the dtype of each part field by field, and would take 0.1 ms for each part.
    return np.concatenate([part.view(np.dtype((np.void, dtype.itemsize))) for part in parts]).view(dtype)


def read_into(source: int | ReadableFile, buffer: ByteArray, start: int, count: int, position: int) -> int:
    """Fill buffer[start : start + count] from `position` of a file; return the number of bytes read, fewer at its end.

    `source` is an open file or a local file descriptor.
    """
    view = buffer.data[start : start + count]
    if not isinstance(source, int):
        return source.read_into(view, position)
    read = 0
    while read < count:
        got = os.preadv(source, [view[read:]], position + read)
        if got == 0:
            break
        read += got
    return read


def _size_of(source: int | ReadableFile) -> int:
    return os.fstat(source).st_size if isinstance(source, int) else source.size_bytes()


def batch_error(status: int, path: Path, position: int, buffer: ByteArray, at: int) -> CorruptBatchError:
    """Return the error for a decoder's `status`; the batch is at `position` of `path` and at byte `at` of `buffer`."""
    offset = int.from_bytes(buffer[at + BASE_OFFSET : at + BASE_OFFSET + 8].tobytes(), "big", signed=True)
    return CorruptBatchError(
        batch_headers.STATUS_TEXT[status],
        path=str(path),
        position=position,
        offset=offset,
        advice=RESTORE_OR_LEAVE_OUT,
    )


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """A chunk of a segment: complete batches in buffer[start:end]; the first batch is at `position` of the file."""

    buffer: ByteArray
    start: int
    end: int
    position: int
    rows: Rows


class HeaderScan:
    """The complete batches of a segment after `start_position`, chunk by chunk, with their header rows.

    An iteration yields BATCH_ROW tables; `spans()` yields them with the bytes.  Afterwards, `end_position` is the
    position of the first byte that was not consumed.  This is the end of the file, the start of a torn tail, or the
    start of a bad batch.  The scan ends at `size_bytes`, by default the initial length of the file.

    If `reuses_buffer` is False, each chunk has its own buffer, so the caller may keep several chunks.

    Raises:
        CorruptBatchError: raised during the iteration if a batch has a malformed header (CRCs are not computed).  With
            `unknown_magic_may_be_torn`, a batch with an unknown magic is treated as torn if it ends after the scan's
            end.
        SourceChangedError: raised during the iteration if the file became shorter.
    """

    def __init__(
        self,
        path: Path,
        start_position: int = 0,
        *,
        size_bytes: int | None = None,
        fs: Fs | None = None,
        unknown_magic_may_be_torn: bool = False,
        reuses_buffer: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._path = path
        self._unknown_magic_may_be_torn = unknown_magic_may_be_torn
        self._fs = fs or Fs()
        self._size_bytes = size_bytes
        self._reuses_buffer = reuses_buffer
        self._chunk_bytes = chunk_bytes
        self.end_position = start_position

    def __iter__(self) -> Iterator[Rows]:
        for span in self.spans():
            yield span.rows

    def spans(self, source: int | ReadableFile | None = None) -> Iterator[BatchSpan]:
        """Yield the chunks; with `reuses_buffer`, a span is valid until the next span is requested.

        `source` is an open file or its descriptor, which this method reads and does not close.
        """
        if source is not None:
            size_bytes = _size_of(source) if self._size_bytes is None else self._size_bytes
            yield from self._walk(source, size_bytes)
            return
        opened = self._fs.open_readable(self._path)
        try:
            yield from self.spans(opened)
        finally:
            opened.close()

    def _walk(self, source: int | ReadableFile, size_bytes: int) -> Iterator[BatchSpan]:
        buffer = unfilled_buffer(min(self._chunk_bytes, max(size_bytes, LOG_OVERHEAD_BYTES)))
        is_used = False
        most_rows = max(size_bytes - self.end_position, 0) // LEGACY_MIN_ENTRY_BYTES + 1
        rows = np.zeros(min(ROWS_PER_TABLE, most_rows), dtype=BATCH_ROW)
        while self.end_position < size_bytes:
            if is_used and not self._reuses_buffer:
                buffer = unfilled_buffer(buffer.size - PADDING_BYTES)
            start = self.end_position
            wanted = min(buffer.size - PADDING_BYTES, size_bytes - start)
            filled = read_into(source, buffer, 0, wanted, start)
            at = 0
            while True:
                status, count, end, needed = batch_headers.read_headers(buffer.ctypes.data, at, filled, start, rows)
                if count:
                    self.end_position = start + end
                    is_used = True
                    found = rows[:count] if self._reuses_buffer else rows[:count].copy()
                    yield BatchSpan(buffer, at, end, start + at, found)
                at = end
                if status != ROWS_FULL:
                    break
            if self._unknown_magic_may_be_torn and needed > size_bytes - self.end_position:
                return
            if status != INCOMPLETE:
                raise self._error(status, buffer, at)
            if start + filled >= size_bytes or needed > size_bytes - self.end_position:
                return
            if filled < wanted:
                raise SourceChangedError(
                    "the file became shorter while it was read",
                    path=str(self._path),
                    position=start + filled,
                    advice="run again; a broker or another tool is at work in this directory",
                )
            if at == 0:
                buffer = unfilled_buffer(max(needed, 2 * (buffer.size - PADDING_BYTES)))

    def _error(self, status: int, buffer: ByteArray, at: int) -> CorruptBatchError:
        return batch_error(status, self._path, self.end_position, buffer, at)
