"""Rows that `dump` reads: a table of some sources, conditions on records, and how many of the last records.

The last records of a partition are found from its end: by their offsets in windows [first, end), each four times as
wide as the one after it.  So a compacted log, in which offsets are missing, is read only as far as needed.

Invariants: a query may be used several times, and each use reads the files again.  Memory is one batch, plus the last
records if they are requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sediment.jobs.dumping.record_selection import RecordSelection
from sediment.jobs.table_readers.read_rows import read_rows
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import SLICE_BYTES, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_ends import end_offset, first_offset
from sediment.segment_io.tables.planning import TableTask, UnreadableRange, plan_scan_tasks, plan_table
from sediment.segment_io.tables.schema import TableRequest

if TYPE_CHECKING:
    import pyarrow as pa

_WIDER = 4
_OnUnreadable = Callable[[UnreadableRange], None]


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A request for rows of `sources`, in their order; `selection` and `last` apply to records only.

    `last` is the number of records of each partition; None for all.
    """

    request: TableRequest
    sources: tuple[Source, ...]
    selection: RecordSelection = field(default_factory=RecordSelection)
    last: int | None = None

    @property
    def is_whole(self) -> bool:
        """True if the query has no conditions on records besides those of its request."""
        return self.last is None and self.selection == RecordSelection()

    def tasks(self, fs: Fs) -> list[TableTask]:
        """Return the tasks that read the whole tables, without regard to `selection` and `last`.

        Raises:
            SedimentError: as `plan_table`.
        """
        return plan_table(self.request, self.sources, fs)

    def with_columns(self, more: Iterable[str]) -> RowQuery:
        """Return the query with further columns after its own."""
        names = (*(column.name for column in self.request.selected()), *more)
        return replace(self, request=replace(self.request, columns=tuple(dict.fromkeys(names))))

    def batches(self, fs: Fs, on_unreadable: _OnUnreadable) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with the columns of the request; no batch is empty.

        Raises:
            SedimentError: as `plan_table` and `read_table`.
        """
        if self.last is None:
            for task in self.tasks(fs):
                yield from self._read(self._read_request(), task, fs, on_unreadable)
        else:
            for source in self.sources:
                yield from self.of_partition(source, Bounds(), self.last, fs, on_unreadable)

    def of_partition(
        self, source: Source, bounds: Bounds, last: int | None, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of one source within `bounds`, only the `last` of them unless that is None.

        Raises:
            SedimentError: as `plan_scan_tasks` and `read_table`.
        """
        request = self._read_request()
        request = replace(request, bounds=request.bounds & bounds)
        if last is None:
            yield from self._within(request, source, fs, on_unreadable)
        else:
            yield from self._last(request, source, last, fs, on_unreadable)

    def _last(
        self, request: TableRequest, source: Source, count: int, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        end = min(request.bounds.end_offset, end_offset(request.isolation, source, fs))
        start = max(request.bounds.first_offset, first_offset(source, fs))
        width, missing, found = count, count, deque[Sequence["pa.RecordBatch"]]()
        while missing and end > start:
            window = Bounds(first_offset=max(start, end - width), end_offset=end)
            within = replace(request, bounds=request.bounds & window)
            tail = _tail(self._within(within, source, fs, on_unreadable), missing)
            found.appendleft(tail)
            missing -= sum(batch.num_rows for batch in tail)
            end, width = window.first_offset, width * _WIDER
        for tail in found:
            yield from tail

    def _within(
        self, request: TableRequest, source: Source, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        tasks = plan_scan_tasks(request, source, fs, slice_bytes=SLICE_BYTES)
        return self._read(request, TableTask(scan_tasks=tuple(tasks)), fs, on_unreadable)

    def _read(
        self, request: TableRequest, task: TableTask, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.request.selected()]
        for batch in read_rows(request, task, fs, on_unreadable=on_unreadable):
            selected = self.selection.apply(batch)
            if selected.num_rows:
                yield selected.select(names)

    def _read_request(self) -> TableRequest:
        """Return the request with the columns that the conditions need."""
        needed = self.selection.columns()
        return self.with_columns(needed).request if needed else self.request


def _tail(batches: Iterable[pa.RecordBatch], count: int) -> Sequence[pa.RecordBatch]:
    """Return the last `count` rows of `batches`."""
    kept: deque[pa.RecordBatch] = deque()
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        while rows - kept[0].num_rows >= count:
            rows -= kept.popleft().num_rows
    if rows > count:
        kept[0] = kept[0].slice(rows - count)
    return kept
