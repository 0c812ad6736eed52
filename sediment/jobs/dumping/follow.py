"""Records of a directory that a broker writes to, as they are appended.

    round    look up the partitions and their ends -> read each from its last end to its new end -> wait
    first    the records that the query selects, or the last of them
    later    every record that was appended; a new partition from its beginning

Invariant: a record is returned once.  Only complete batches are read, so a batch in progress waits for a later round.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sediment.jobs.dumping.row_query import RowQuery
from sediment.segment_io.errors import NotALogDirectoryError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_ends import LogEnds, first_offset
from sediment.segment_io.tables.planning import UnreadableRange

if TYPE_CHECKING:
    import pyarrow as pa

_POLL_SECONDS = 0.2


class Follower:
    """Reader of the records of growing logs; `on_notice` gets a sentence for each unusual change of a partition."""

    def __init__(
        self,
        query: RowQuery,
        ends: LogEnds,
        *,
        on_unreadable: Callable[[UnreadableRange], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._query = query
        self._ends = ends
        self._on_unreadable = on_unreadable
        self._on_notice = on_notice
        self._next: dict[str, int] = {}
        self._fs = Fs()

    def batches(self, stop: threading.Event) -> Iterator[pa.RecordBatch]:
        """Yield the records until `stop` is set.

        Raises:
            SedimentError: a path was removed, or a file cannot be read.
        """
        last = self._query.last
        while not stop.is_set():
            for batch in self._round(last):
                yield batch
                if stop.is_set():
                    return
            last = None
            # Event.wait may block forever if a signal handler of the same thread sets the event.
            time.sleep(_POLL_SECONDS)

    def _round(self, last: int | None) -> Iterator[pa.RecordBatch]:
        sources = self._ends.sources()
        for name in self._next.keys() - sources.keys():
            del self._next[name]
            self._on_notice(f"{name} was removed")
        for source, end in self._ends.of(sources.values()).items():
            with contextlib.suppress(NotALogDirectoryError):  # the next round says that it was removed
                yield from self._partition(source, end, last)

    def _partition(self, source: Source, end: int, last: int | None) -> Iterator[pa.RecordBatch]:
        name = str(source.partition)
        start = self._next.get(name)
        self._next[name] = end
        if start is None:
            yield from self._read(source, Bounds(end_offset=end), last)
        elif end < start:
            self._on_notice(f"{name} was truncated to offset {end}")
        elif end > start:
            begins = min(first_offset(source, self._fs), end)
            if begins > start:
                self._on_notice(f"{name}: offsets {start} to {begins - 1} were removed before they were read")
            yield from self._read(source, Bounds(first_offset=start, end_offset=end), None)

    def _read(self, source: Source, bounds: Bounds, last: int | None) -> Iterator[pa.RecordBatch]:
        return self._query.of_partition(source, bounds, last, self._fs, self._on_unreadable)
