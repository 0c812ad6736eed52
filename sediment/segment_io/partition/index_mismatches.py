"""The check that index files and snapshots match their log, by the rules of DumpLogSegments (kafka-log 01 §7.6, §8).

    offset index        a batch begins at each position; the offset is the last offset of the batch or of its append
    time index          the first batch that ends at or above an entry's offset has the entry's timestamp; earlier
                        batches have smaller timestamps; the last entry of an inactive segment has the largest timestamp
    transaction index   an aborted transaction ends at a control batch of its producer in this segment
    snapshot            its CRC is valid

Invariant: if an index passes, every look-up returns a position from which a scan finds the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format.layout import CONTROL_BIT, NO_TIMESTAMP
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.offset_index import OffsetIndex, parse_offset_index
from sediment.segment_io.format.time_index import TimeIndex, parse_time_index
from sediment.segment_io.format.transaction_index import TransactionIndex, parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.live_segments import LiveSegment, live_segments
from sediment.segment_io.partition.producer_snapshots import parse_snapshot
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment.reader import HeaderScan, Rows, joined

_KEPT = ["position", "base_offset", "last_offset", "max_timestamp", "producer_id", "attributes", "magic"]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The result for one index or snapshot: the number of `problems`, and the first `problem`.

    `entries` is None if the file is missing or unreadable.
    """

    segment: int
    file: str
    entries: int | None
    problems: int
    problem: str | None


def check_indexes(source: Source, fs: Fs) -> Iterator[CheckedFile]:
    for segment in live_segments(source, fs):
        yield from _check_segment(source, segment, fs)
    for offset in list_log(source.partition, source.directory, fs).snapshots:
        if source.base_offset in (None, offset):
            yield _check_snapshot(source, offset, fs)


def _check_segment(source: Source, segment: LiveSegment, fs: Fs) -> Iterator[CheckedFile]:
    batches, end = _batches(source, segment)
    for kind, check in (
        (SegmentFileKind.OFFSET_INDEX, _offset_problems),
        (SegmentFileKind.TIME_INDEX, _time_problems),
        (SegmentFileKind.TRANSACTION_INDEX, _transaction_problems),
    ):
        path = segment.path(source.directory, kind)
        try:
            content = fs.read_bytes(path)
        except FileNotFoundError:
            if kind is not SegmentFileKind.TRANSACTION_INDEX:
                yield CheckedFile(segment.base_offset, path.name, None, 1, "the file is missing; a broker rebuilds it")
            continue
        try:
            entries, problems = check(content, segment, batches)
        except SedimentError as error:
            yield CheckedFile(segment.base_offset, path.name, None, 1, error.what)
            continue
        if end is not None:
            problems = [end, *problems]
        yield CheckedFile(segment.base_offset, path.name, entries, len(problems), problems[0] if problems else None)


def _batches(source: Source, segment: LiveSegment) -> tuple[Rows, str | None]:
    found: list[Rows] = []
    end = None
    scan = HeaderScan(segment.path(source.directory, SegmentFileKind.LOG), size_bytes=segment.ref.log_bytes)
    try:
        for rows in scan:
            found.append(rows[_KEPT].copy())
    except CorruptBatchError as error:
        if not segment.is_active:
            end = f"the log itself cannot be read beyond position {scan.end_position}: {error.what}"
    return joined(found) if found else np.zeros(0, dtype=_empty_rows()), end


def _empty_rows() -> np.dtype[np.void]:
    from sediment.segment_io.format.batch_headers import BATCH_ROW

    return BATCH_ROW[_KEPT]


def _offset_problems(content: bytes, segment: LiveSegment, batches: Rows) -> tuple[int, list[str]]:
    index: OffsetIndex = parse_offset_index(content, segment.base_offset, preallocated=segment.is_active)
    offsets = index.base_offset + index.relative_offsets
    slots = _slots(batches["position"], index.positions)
    lasts = batches["last_offset"]
    wrong = (slots < 0) | (_slots(np.sort(lasts), offsets) < 0)
    wrong[~wrong] = offsets[~wrong] < lasts[slots[~wrong]]
    problems = []
    for number in np.flatnonzero(wrong).tolist():
        entry, slot = index[number], slots[number]
        if slot < 0:
            problems.append(f"entry {number}: no batch begins at position {entry.position}")
        else:
            problems.append(
                f"entry {number}: offset {entry.offset}, but the batch at position {entry.position} "
                f"ends at {lasts[slot]}"
            )
    return len(index), problems


def _slots(sorted_values: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return int64[wanted]: the index of each value in `sorted_values`; -1 if it is missing."""
    if not len(sorted_values):
        return np.full(len(wanted), -1)
    slots = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    return np.where(sorted_values[slots] == wanted, slots, -1)


def _time_problems(content: bytes, segment: LiveSegment, batches: Rows) -> tuple[int, list[str]]:
    index: TimeIndex = parse_time_index(content, segment.base_offset, preallocated=segment.is_active)
    largest = np.maximum.accumulate(np.concatenate([[NO_TIMESTAMP], batches["max_timestamp"]]))
    offsets = index.base_offset + index.relative_offsets
    reached = np.searchsorted(np.maximum.accumulate(batches["last_offset"]), offsets)
    wrong = reached == len(batches)
    found = reached[~wrong]
    wrong[~wrong] = (batches["max_timestamp"][found] != index.timestamps[~wrong]) | (
        largest[found] >= index.timestamps[~wrong]
    )
    problems = []
    for number in np.flatnonzero(wrong).tolist():
        slot, (timestamp, offset) = reached[number], astuple(index[number])
        if slot == len(batches):
            problems.append(f"entry {number}: all batches end below offset {offset}")
        elif batches["max_timestamp"][slot] != timestamp:
            problems.append(
                f"entry {number}: timestamp {timestamp}, but the batch with offset {offset} "
                f"has {batches['max_timestamp'][slot]}"
            )
        else:
            problems.append(f"entry {number}: a batch before offset {offset} has timestamp {largest[slot]}")
    last = index.last_entry.timestamp_ms
    if not segment.is_active and not problems and largest[-1] > last:
        problems.append(f"the largest timestamp, {largest[-1]}, is not indexed")
    return len(index), problems


def _transaction_problems(content: bytes, segment: LiveSegment, batches: Rows) -> tuple[int, list[str]]:
    index: TransactionIndex = parse_transaction_index(content)
    entries = index.transactions()
    slots = _slots(batches["last_offset"], index.last_offsets)
    problems = []
    for number, (slot, entry) in enumerate(zip(slots.tolist(), entries, strict=True)):
        if entry.first_offset >= entry.last_offset or entry.last_offset < segment.base_offset:
            problems.append(
                f"entry {number}: a transaction from offset {entry.first_offset} to {entry.last_offset} "
                f"in a segment that begins at {segment.base_offset}"
            )
        elif not _is_marker(batches, slot, entry.producer_id):
            problems.append(f"entry {number}: no marker of producer {entry.producer_id} at offset {entry.last_offset}")
    return len(index), problems


def _is_marker(batches: Rows, slot: int, producer_id: int) -> bool:
    if slot < 0:
        return False
    row = batches[slot]
    return bool(row["attributes"] & CONTROL_BIT) and int(row["producer_id"]) == producer_id


def _check_snapshot(source: Source, offset: int, fs: Fs) -> CheckedFile:
    name = segment_file_name(offset, SegmentFileKind.SNAPSHOT)
    try:
        entries: Sequence[object] = parse_snapshot(fs.read_bytes(source.directory / name))
    except SedimentError as error:
        return CheckedFile(offset, name, None, 1, error.what)
    return CheckedFile(offset, name, len(entries), 0, None)
