"""Rows that `dump` reads, selected by table, sources, conditions on records, and the number of last records to show.

Invariants: a query may be used several times, and each use reads the files again.  A query keeps in memory one batch,
plus the last records if they are requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.jobs.dumping.record_selection import RecordSelection
from sediment.jobs.table_readers.read_rows import read_rows
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import SLICE_BYTES, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import (
    ScanTask,
    TableTask,
    UnreadableRange,
    plan_scan_tasks,
    plan_table,
    scan_tasks_from_end,
)
from sediment.segment_io.tables.schema import TableRequest

if TYPE_CHECKING:
    import pyarrow as pa

_OnUnreadable = Callable[[UnreadableRange], None]


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A request for rows of `sources`, in their order; `selection` and `last` apply to records only.

    `log_dirs` are the log directories in which the table `groups` finds the ends of partitions.
    """

    request: TableRequest
    sources: tuple[Source, ...]
    selection: RecordSelection = field(default_factory=RecordSelection)
    last: int | None = None
    log_dirs: tuple[Path, ...] = ()

    @property
    def is_whole(self) -> bool:
        return self.last is None and self.selection == RecordSelection()

    def tasks(self, fs: Fs) -> list[TableTask]:
        """Return the tasks that read the whole tables; they ignore `selection` and `last`."""
        return plan_table(self.request, self.sources, fs, log_dirs=self.log_dirs)

    def with_columns(self, more: Iterable[str]) -> RowQuery:
        names = (*(column.name for column in self.request.selected()), *more)
        return replace(self, request=replace(self.request, columns=tuple(dict.fromkeys(names))))

    def batches(self, fs: Fs, on_unreadable: _OnUnreadable) -> Iterator[pa.RecordBatch]:
        if self.last is None:
            for task in self.tasks(fs):
                yield from self._read(self._read_request(), task, fs, on_unreadable)
        else:
            for source in self.sources:
                yield from self.of_partition(source, Bounds(), self.last, fs, on_unreadable)

    def of_partition(
        self, source: Source, bounds: Bounds, last: int | None, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        request = self._read_request()
        request = replace(request, bounds=request.bounds & bounds)
        if last is None:
            tasks = plan_scan_tasks(request, source, fs, slice_bytes=SLICE_BYTES)
            yield from self._read(request, _task(*tasks), fs, on_unreadable)
        else:
            yield from self._last(request, source, last, fs, on_unreadable)

    def _last(
        self, request: TableRequest, source: Source, count: int, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        missing, found = count, deque[Sequence["pa.RecordBatch"]]()
        # The last records of a partition are found from its end: its slices are read from last to first, and the slices
        # near the end are small.  Therefore, a large log is read only as far as necessary, and no part of it is read
        # twice.
        tasks = scan_tasks_from_end(request, source, fs)
        while missing and (scan_task := next(tasks, None)) is not None:
            tail = _tail(self._read(request, _task(scan_task), fs, on_unreadable), missing)
            found.appendleft(tail)
            missing -= sum(batch.num_rows for batch in tail)
        for tail in found:
            yield from tail

    def _read(
        self, request: TableRequest, task: TableTask, fs: Fs, on_unreadable: _OnUnreadable
    ) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.request.selected()]
        for batch in read_rows(request, task, fs, on_unreadable=on_unreadable):
            selected = self.selection.apply(batch)
            if selected.num_rows:
                yield selected.select(names)

    def _read_request(self) -> TableRequest:
        needed = self.selection.columns()
        return self.with_columns(needed).request if needed else self.request


def _task(*scan_tasks: ScanTask) -> TableTask:
    return TableTask(scan_tasks=scan_tasks)


def _tail(batches: Iterable[pa.RecordBatch], count: int) -> Sequence[pa.RecordBatch]:
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


def unreadable_text(unreadable: Sequence[UnreadableRange]) -> str:
    size_bytes = sum(each.end_position - each.position for each in unreadable)
    return f"{len(unreadable)} unreadable batches, {size_bytes} bytes; the first: {unreadable[0].error}"
