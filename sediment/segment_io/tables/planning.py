"""Tasks that read a table: each reads slices of segments up to a total size, or small files of several partitions.

Invariant: together, the tasks of `plan_table` return the rows of the table, in the order of sources and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.packing import pack_in_order
from sediment.segment_io.partition.listing import check_segments_are_files
from sediment.segment_io.partition.slices import ALL, SLICE_BYTES, Bounds, Slice, plan_slices, slices_from_end
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.schema import CLUSTER_TABLES, READ_COMMITTED, SLICED_TABLES, WHOLE_TABLES, TableRequest

if TYPE_CHECKING:
    from sediment.segment_io.partition.read_committed import CommittedRange

BATCHES_TASK_BYTES = 512 << 20  # larger than for records, because only headers are decoded
OPEN_SEGMENT_BYTES = 1 << 20  # opening a segment takes as long as reading this many bytes
SOURCES_PER_TASK = 64

_NO_BOUNDS: Mapping[Source, Bounds] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A slice to read; only its records within `bounds` are wanted.

    If `committed`, control records and the records of aborted transactions are left out.  With `topic_id`, a reader
    that follows new files reads only files of this topic, not of a later topic with the same name.
    """

    slice: Slice
    bounds: Bounds
    committed: bool = False
    aborted: tuple[AbortedTxn, ...] = ()
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class TableTask:
    """The work of one Spark task: `scan_tasks` of records or batches, or the small files of `sources`.

    `log_dirs` are the log directories of the whole query, in which the table `groups` finds the ends of partitions.
    """

    sources: tuple[Source, ...] = ()
    scan_tasks: tuple[ScanTask, ...] = ()
    log_dirs: tuple[Path, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(scan_task.slice.size_bytes for scan_task in self.scan_tasks)


def plan_table(
    request: TableRequest,
    sources: Sequence[Source],
    fs: Fs,
    *,
    task_bytes: int | None = None,
    bounds: Mapping[Source, Bounds] = _NO_BOUNDS,
    log_dirs: Sequence[Path] = (),
) -> list[TableTask]:
    """A task reads about `task_bytes` of segments; None means the table's default.

    `bounds` contains bounds for single sources, in addition to the bounds of the request.
    """
    wanted = [source for source in sources if request.selects(source)]
    if task_bytes is None:
        task_bytes = BATCHES_TASK_BYTES if request.what == "batches" else SLICE_BYTES
    if request.what not in SLICED_TABLES:
        count = max(len(wanted), 1) if request.what in WHOLE_TABLES else SOURCES_PER_TASK
        found = tuple(log_dirs) if request.what in CLUSTER_TABLES else ()
        return [
            TableTask(sources=tuple(wanted[start : start + count]), log_dirs=found)
            for start in range(0, len(wanted), count)
        ]
    return pack_scan_tasks(
        [
            scan_task
            for source in wanted
            for scan_task in plan_scan_tasks(
                replace(request, bounds=request.bounds & bounds.get(source, ALL)), source, fs, slice_bytes=task_bytes
            )
        ],
        task_bytes,
    )


def plan_scan_tasks(request: TableRequest, source: Source, fs: Fs, *, slice_bytes: int) -> list[ScanTask]:
    bounds, committed = _bounds(request, source, fs)
    slices = plan_slices(source, bounds, fs, slice_bytes=slice_bytes)
    return [_scan_task(found, bounds, committed) for found in slices]


def scan_tasks_from_end(request: TableRequest, source: Source, fs: Fs) -> Iterator[ScanTask]:
    """Yield the scan tasks of one partition or segment in reverse order; the tasks that are yielded first are small."""
    bounds, committed = _bounds(request, source, fs)
    for found in slices_from_end(source, bounds, fs):
        yield _scan_task(found, bounds, committed)


def _bounds(request: TableRequest, source: Source, fs: Fs) -> tuple[Bounds, CommittedRange | None]:
    if source.base_offset is None:
        check_segments_are_files(source.partition, source.directory, fs)
    if request.isolation != READ_COMMITTED:
        return request.bounds, None
    # Imported here, because the import loads compiled code for records, which the rest of planning does not need.
    from sediment.segment_io.partition.checkpoint_files import read_checkpoints
    from sediment.segment_io.partition.read_committed import committed_range

    checkpoints = read_checkpoints(source.directory.parent, fs).of(source.partition)
    committed = committed_range(source, checkpoints, fs)
    return request.bounds & committed.bounds(), committed


def _scan_task(found: Slice, bounds: Bounds, committed: CommittedRange | None) -> ScanTask:
    if committed is None:
        return ScanTask(found, bounds)
    return ScanTask(found, bounds, True, committed.aborted_within(found.start_offset, found.end_offset))


def pack_scan_tasks(scan_tasks: Sequence[ScanTask], task_bytes: int) -> list[TableTask]:
    packed = pack_in_order(scan_tasks, read_cost, task_bytes + OPEN_SEGMENT_BYTES)
    return [TableTask(scan_tasks=tuple(each)) for each in packed]


def read_cost(scan_task: ScanTask) -> int:
    return scan_task.slice.size_bytes + OPEN_SEGMENT_BYTES


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    scan_task: ScanTask
    position: int
    end_position: int
    error: SedimentError


def parse_range(text: str | None, name: str) -> tuple[int, int]:
    """Parse `A:B` as (A, B); an empty A or B means no bound.  If `text` is None, neither bound exists."""
    first, end = ALL.first_offset, ALL.end_offset
    if text is None:
        return first, end
    try:
        left, colon, right = text.partition(":")
        if not colon:
            raise ValueError(text)
        first, end = int(left) if left.strip() else first, int(right) if right.strip() else end
    except ValueError as error:
        raise UsageError(
            f"{name} {text!r} is not a range", advice="write A:B, from A to below B; either side may be empty"
        ) from error
    if first > end:
        raise UsageError(f"{name} {text!r} ends before it begins", advice="write A:B, from A to below B")
    return first, end
