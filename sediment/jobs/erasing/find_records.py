"""Tasks that read the records of partitions and return the records that an erasure needs.

    find_keys      offsets of the records with one of the given keys
    KeysAt         keys of the records at given offsets
    OlderRecords   records that are kept although a later record with the same key is dropped

    driver   segments ───────────> find_keys: a Spark task for some segments ──> arrays, joined by partition
             slices of segments ─> scan: a Spark task for some slices        ──> the same

Control records are not data and never match.

Invariant: keys reach the executors only inside the functions of tasks; no name, description or setting of a Spark job
contains a key.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sediment.compaction.rewrite.key_set import KeySet
from sediment.jobs.rewriting.partition_task import TaskPlace
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failed_task, failure
from sediment.jobs.rewriting.run import why_lost
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_figures import Figures
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing
from sediment.segment_io.partition.slices import ALL, SLICE_BYTES, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import ScanTask, plan_scan_tasks, read_cost
from sediment.segment_io.tables.schema import TableRequest

if TYPE_CHECKING:
    import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Offsets = Mapping[Path, Int64s]
Item = TypeVar("Item", bound="_Item")

_NO_OFFSETS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """`offsets`, int64[n], are the ascending offsets of the matches.

    `keys` are the keys of the matches, if the scan requested keys.
    """

    scanned: int
    offsets: Int64s
    keys: tuple[bytes | None, ...] = ()


class RecordScan(Protocol):
    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the test needs in addition to `offset` and `control`."""
        ...

    def mask(self, partition: Path, batch: pa.RecordBatch) -> Mask:
        """Return bool[records]: True for each match."""
        ...


@dataclass(frozen=True, slots=True)
class KeysAt:
    offsets: Offsets
    columns: tuple[str, ...] = ("key",)

    def mask(self, partition: Path, batch: pa.RecordBatch) -> Mask:
        return np.isin(np.asarray(batch.column("offset")), self.offsets.get(partition, _NO_OFFSETS))


@dataclass(frozen=True, slots=True, repr=False)
class OlderRecords:
    """Records without a verdict that are older than a dropped record with the same key.

    By partition directory, `dropped` contains the largest dropped offset of each key, and `judged` contains the offsets
    with a verdict.
    """

    dropped: Mapping[Path, Mapping[bytes, int]]
    judged: Offsets
    columns: tuple[str, ...] = ("key",)

    def mask(self, partition: Path, batch: pa.RecordBatch) -> Mask:
        import pyarrow as pa
        import pyarrow.compute as pc

        dropped = self.dropped.get(partition, {})
        keys = pa.array(list(dropped), batch.schema.field("key").type)
        ends = np.array([*dropped.values(), -1], dtype=np.int64)
        index = np.asarray(pc.fill_null(pc.index_in(batch.column("key"), value_set=keys), -1))
        offsets = np.asarray(batch.column("offset"))
        result: Mask = (offsets < ends[index]) & ~np.isin(offsets, self.judged.get(partition, _NO_OFFSETS))
        return result


# ----------------------------------------------------------------------------------------------------------- the tasks
class _Item(Protocol):
    @property
    def listing(self) -> LogListing: ...

    def weight(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SegmentItem:
    """The compressed records of one batch may expand to at most `limit_bytes`."""

    listing: LogListing
    place: TaskPlace
    end_offset: int
    limit_bytes: int
    now_ms: int

    def weight(self) -> int:
        return self.listing.log_bytes()


@dataclass(frozen=True, slots=True)
class _KeySearch:
    keys: KeySet

    def __call__(self, item: SegmentItem, _attempt: str) -> FoundRecords | CleaningResult:
        # Imported late, because this module compiles kernels that the driver never needs.
        from sediment.compaction.rewrite.key_matches import find_key_matches

        listing, (segment,) = item.listing, item.listing.segments
        try:
            with item.place.reading(listing) as fs:
                matches = find_key_matches(
                    listing.partition,
                    listing.path,
                    segment,
                    item.end_offset,
                    self.keys,
                    fs,
                    limit_bytes=item.limit_bytes,
                )
        except TASK_ERRORS as error:
            return failed_task(item, error)
        return FoundRecords(matches.scanned, matches.offsets)


@dataclass(frozen=True, slots=True)
class ScanItem:
    listing: LogListing
    scan: ScanTask
    now_ms: int

    def weight(self) -> int:
        return read_cost(self.scan)


@dataclass(frozen=True, slots=True)
class _Planned:
    listing: LogListing
    now_ms: int


@dataclass(frozen=True, slots=True)
class _Scan:
    scan: RecordScan
    with_keys: bool

    def __call__(self, item: ScanItem, _attempt: str) -> FoundRecords | CleaningResult:
        try:
            return self._found(item)
        except TASK_ERRORS as error:
            return failed_task(item, error)

    def _found(self, item: ScanItem) -> FoundRecords:
        # Imported late, because this module compiles kernels that the driver never needs.
        from sediment.segment_io.tables.planning import TableTask
        from sediment.segment_io.tables.readers import read_table

        request = TableRequest(columns=("offset", "control", *self.scan.columns))
        task = TableTask(scan_tasks=(item.scan,))
        scanned = 0
        offsets: list[Int64s] = [_NO_OFFSETS]
        keys: list[bytes | None] = []
        for batch in read_table(request, task, Fs(), follow=False):
            data = batch.filter(_is_data(batch))
            scanned += data.num_rows
            mask = self.scan.mask(item.listing.path, data)
            offsets.append(np.asarray(data.column("offset"))[mask])
            if self.with_keys and mask.any():
                keys += data.column("key").filter(_array(mask)).to_pylist()
        return FoundRecords(scanned, np.concatenate(offsets), tuple(keys))


def _is_data(batch: pa.RecordBatch) -> Any:
    import pyarrow.compute as pc

    return pc.invert(batch.column("control"))


def _array(mask: Mask) -> Any:
    import pyarrow as pa

    return pa.array(mask)


# ------------------------------------------------------------------------------------------------------------ the scans
@dataclass(frozen=True, slots=True)
class ScanRun:
    sc: Any
    run_id: str
    now_ms: int
    stop: threading.Event

    def find_keys(
        self, partitions: Iterable[tuple[LogListing, TaskPlace, int]], keys: KeySet
    ) -> Iterator[tuple[Path, FoundRecords | CleaningResult]]:
        """Yield, for each partition directory, the records with one of `keys`, after all its segments were searched.

        Each of `partitions` has a listing, the source from which tasks read the partition, and a limit on the
        decompressed bytes of one batch.
        """
        items: list[SegmentItem] = []
        for listing, place, limit_bytes in partitions:
            if not listing.segments:
                yield listing.path, FoundRecords(0, _NO_OFFSETS)
            ends = [*(segment.base_offset for segment in listing.segments[1:]), INT64_MAX]
            items += [
                SegmentItem(replace(listing, segments=(segment,)), place, end, limit_bytes, self.now_ms)
                for segment, end in zip(listing.segments, ends, strict=False)
            ]
        yield from self._by_partition(items, _KeySearch(keys))

    def scan(
        self,
        listings: Iterable[LogListing],
        scan: RecordScan,
        *,
        bounds: Mapping[Path, Bounds] | None = None,
        with_keys: bool = False,
    ) -> Iterator[tuple[LogListing, FoundRecords | CleaningResult]]:
        """Yield the result of each partition after all of its slices were scanned.

        `bounds` limits the offsets to scan, by partition directory; partitions without an entry are scanned whole.
        """
        items: list[ScanItem] = []
        by_path: dict[Path, LogListing] = {}
        for listing in listings:
            try:
                scans = _plan_scans(listing, (bounds or {}).get(listing.path, ALL))
            except TASK_ERRORS as error:
                yield listing, failed_task(_Planned(listing, self.now_ms), error)
                continue
            if not scans:
                yield listing, FoundRecords(0, _NO_OFFSETS)
                continue
            by_path[listing.path] = listing
            items += [ScanItem(listing, each, self.now_ms) for each in scans]
        for path, found in self._by_partition(items, _Scan(scan, with_keys)):
            yield by_path[path], found

    def _by_partition(
        self, items: Sequence[Item], perform: Callable[[Item, str], FoundRecords | CleaningResult]
    ) -> Iterator[tuple[Path, FoundRecords | CleaningResult]]:
        left = Counter(item.listing.path for item in items)
        done: dict[Path, list[FoundRecords | CleaningResult]] = {path: [] for path in left}
        for results in run_on_executors(
            self.sc,
            items,
            perform,
            lambda item: item.weight(),
            group=self.run_id,
            is_stopped=self.stop.is_set,
            title=titled("search", lambda item: item.listing.partition),
            figures=_figures,
        ):
            for each in results:
                path = each.item.listing.path
                done[path].append(each.result or failure(*why_lost(self.stop, each.error, "scanned")))
                left[path] -= 1
                if not left[path]:
                    yield path, _joined(done.pop(path))


def _figures(item: _Item, result: FoundRecords | CleaningResult) -> Figures:
    if isinstance(result, CleaningResult):
        return Figures()
    return Figures(bytes_read=item.weight(), records_read=result.scanned)


def _plan_scans(listing: LogListing, bounds: Bounds) -> Sequence[ScanTask]:
    return plan_scan_tasks(
        TableRequest(bounds=bounds), Source(listing.partition, listing.path), Fs(), slice_bytes=SLICE_BYTES
    )


def _joined(results: Sequence[FoundRecords | CleaningResult]) -> FoundRecords | CleaningResult:
    found: list[FoundRecords] = []
    for each in results:
        if isinstance(each, CleaningResult):
            return each
        found.append(each)
    # Parts of one partition do not overlap, so sorting them by their first offset also sorts the keys.
    found.sort(key=lambda each: int(each.offsets[0]) if each.offsets.size else -1)
    return FoundRecords(
        sum(each.scanned for each in found),
        np.concatenate([each.offsets for each in found]),
        tuple(key for each in found for key in each.keys),
    )


def around(offsets: Int64s) -> Bounds:
    if not offsets.size:
        return Bounds(end_offset=ALL.first_offset)
    return Bounds(int(offsets[0]), int(offsets[-1]) + 1)
