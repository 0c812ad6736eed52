"""Rows of any table: `segment_io.tables` reads tables of files, and this package reads tables of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Slice
from sediment.segment_io.tables.planning import TableTask, UnreadableRange
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import CLUSTER_TABLES, TableRequest

if TYPE_CHECKING:
    import pyarrow as pa


def read_rows(
    request: TableRequest,
    task: TableTask,
    fs: Fs,
    *,
    on_unreadable: Callable[[UnreadableRange], None] = lambda _unreadable: None,
    on_lost: Callable[[Slice, int], None] | None = None,
    follow: bool = True,
) -> Iterator[pa.RecordBatch]:
    if request.what not in CLUSTER_TABLES:
        yield from read_table(request, task, fs, on_unreadable=on_unreadable, on_lost=on_lost, follow=follow)
        return
    # Imported late, because each of these readers loads modules that no other table needs.
    if request.what == "topics":
        from sediment.jobs.table_readers.topics import read_topics

        yield from read_topics(request, task, fs)
        return
    from sediment.jobs.table_readers.groups import read_groups

    yield from read_groups(request, task, fs, on_unreadable)
