"""Reading of the records that a broker appends to logs, soon after the broker has written them.

* Each round looks up the partitions and their ends, reads each partition from its last end to its new end, and waits.
* The first round returns the records that the query selects, or the last of them.
* Later rounds return every record that was appended.  A new partition is read from its beginning.

Invariants: each record is returned exactly once.  Only complete batches are read, so a batch that the broker is still
writing is read in a later round.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sediment.jobs.dumping.row_query import RowQuery
from sediment.jobs.process.cancellation import RunStopped, interruptible
from sediment.segment_io.errors import NotALogDirectoryError, SourceChangedError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_ends import LogEnds, end_offset, first_offset
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import READ_UNCOMMITTED

if TYPE_CHECKING:
    import pyarrow as pa

_POLL_SECONDS = 0.2


class Follower:
    """Reader of the records of growing logs.

    `on_notice` is called with a sentence for each unusual change of a partition.  `before_wait` is called after each
    round; an error that it raises ends the reading.
    """

    def __init__(
        self,
        query: RowQuery,
        ends: LogEnds,
        *,
        on_unreadable: Callable[[UnreadableRange], None],
        on_notice: Callable[[str], None],
        before_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._query = query
        self._ends = ends
        self._on_unreadable = on_unreadable
        self._on_notice = on_notice
        self._before_wait = before_wait
        self._next: dict[str, int] = {}
        self._identities: dict[str, PartitionIdentity] = {}
        self._fs = Fs()

    def batches(self, stop: threading.Event) -> Iterator[pa.RecordBatch]:
        last = self._query.last
        while not stop.is_set():
            batches = self._round(last)
            # A signal ends the reading immediately, even if no record is selected.
            while (batch := _next_unless_stopped(batches)) is not None:
                yield batch
                if stop.is_set():
                    return
            if stop.is_set():
                return
            last = None
            self._before_wait()
            # Event.wait may block forever if a signal handler of the same thread sets the event.
            time.sleep(_POLL_SECONDS)

    def _round(self, last: int | None) -> Iterator[pa.RecordBatch]:
        sources = self._ends.sources()
        for name in self._next.keys() - sources.keys():
            del self._next[name]
            self._identities.pop(name, None)
            self._on_notice(f"{name} was removed")
        # Identify the partitions before reading their ends: otherwise, records of a partition that is created in
        # between could be skipped.
        for name, source in sources.items():
            with contextlib.suppress(FileNotFoundError):
                self._identify(name, self._ends.identities.of(source))
        for source, end in self._ends.of(sources.values()).items():
            try:
                yield from self._partition(source, end, last)
            except (NotALogDirectoryError, SourceChangedError, FileNotFoundError):
                # If a partition is deleted, even while it is being read, the reading of the others continues.
                if self._is_present(source):
                    raise
                self._on_removed(source, end)

    def _identify(self, name: str, found: PartitionIdentity) -> None:
        known = self._identities.get(name)
        self._identities[name] = found
        # A partition that was deleted and created again has another topic id or another directory, and is read as a new
        # partition.
        if known is not None and not known.is_same(found) and self._next.pop(name, None) is not None:
            self._on_notice(f"{name} was created again and is read from its beginning")

    def _is_present(self, source: Source) -> bool:
        known = self._identities.get(str(source.partition))
        try:
            return known is None or known.is_same(self._ends.identities.of(source))
        except FileNotFoundError:
            return False

    def _on_removed(self, source: Source, end: int) -> None:
        name = str(source.partition)
        del self._next[name]
        self._identities.pop(name, None)
        self._on_notice(f"{name} was removed while it was read; records below offset {end} may be missing")

    def _partition(self, source: Source, end: int, last: int | None) -> Iterator[pa.RecordBatch]:
        name = str(source.partition)
        start = self._next.get(name)
        if start is not None and end < start:
            self._go_back(source, start)
            return
        self._next[name] = end
        if start is None:
            yield from self._read(source, Bounds(end_offset=end), last)
        elif end > start:
            begins = min(first_offset(source, self._fs), end)
            if begins > start:
                self._on_notice(f"{name}: offsets {start} to {begins - 1} were removed before they were read")
            yield from self._read(source, Bounds(first_offset=start, end_offset=end), None)

    def _go_back(self, source: Source, start: int) -> None:
        name, log_end = str(source.partition), end_offset(READ_UNCOMMITTED, source, self._fs)
        # A last stable offset below `start` does not prove a truncation.  The high watermark can decrease.  A broker
        # may also write a high watermark to its checkpoint after this process has read records above that high
        # watermark.
        if log_end < start:
            self._next[name] = log_end
            self._on_notice(f"{name} was truncated to offset {log_end}")

    def _read(self, source: Source, bounds: Bounds, last: int | None) -> Iterator[pa.RecordBatch]:
        return self._query.of_partition(source, bounds, last, self._fs, self._on_unreadable)


def _next_unless_stopped(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        with interruptible():
            return next(batches, None)
    except RunStopped:
        return None
