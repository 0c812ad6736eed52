"""Marks that show later whether a log is still the one of which the records below an offset were read.

A log may have been deleted and created again under the same name.  It may also be a copy at the same path: a backup
that was restored, a clone, or a replica that a broker moved to another disk.  Compaction and retention change neither.

Invariants: the mark of a topic with an id needs no reading of the log.  A mark contains a checksum of a record, and
nothing else of its content.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import google_crc32c

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import TableTask, plan_scan_tasks, scan_tasks_from_end
from sediment.segment_io.tables.schema import SKIP, TableRequest

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTHS = struct.Struct("<qqq")


class LogMatch(Enum):
    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """Neither is proved, so readers treat the log as the same one as long as it reaches their offset."""


@dataclass(frozen=True, slots=True)
class RecordMark:
    offset: int
    crc: int


@dataclass(frozen=True, slots=True)
class LogMark:
    """A mark of a log; without a `topic_id`, `directory` and `record` take its place.

    `record` is the last record below the offset up to which the log was read, or None if there was none.
    """

    topic_id: str | None = None
    directory: str | None = None
    record: RecordMark | None = None

    def match(self, now: PartitionIdentity, crc_at: Callable[[int], int | None]) -> LogMatch:
        """Compare with the log of the partition `now`; `crc_at` returns the checksum of its record at an offset.

        The checksum is None if the log has no record there, for example after compaction.
        """
        # Topic ids decide, if the mark and the directory both have one.
        if self.topic_id is not None and now.topic_id is not None:
            return LogMatch.SAME if self.topic_id == now.topic_id else LogMatch.OTHER
        if self.directory == now.directory:
            return LogMatch.SAME
        if self.record is None or (crc := crc_at(self.record.offset)) is None:
            return LogMatch.UNKNOWN
        # Offsets are never used twice, so another record at the offset of the last record proves another log.
        return LogMatch.SAME if crc == self.record.crc else LogMatch.OTHER


def mark_of(source: Source, identity: PartitionIdentity, end_offset: int, fs: Fs) -> LogMark:
    if identity.topic_id is not None:
        return LogMark(topic_id=identity.topic_id)
    return LogMark(directory=identity.directory, record=_last_record(source, end_offset, fs))


def match_log(mark: LogMark, source: Source, identity: PartitionIdentity, fs: Fs) -> LogMatch:
    return mark.match(identity, lambda offset: _crc_at(source, offset, fs))


def _last_record(source: Source, end_offset: int, fs: Fs) -> RecordMark | None:
    request = _request(Bounds(end_offset=end_offset))
    for scan_task in scan_tasks_from_end(request, source, fs):
        last = None
        for batch in _read(request, TableTask(scan_tasks=(scan_task,)), fs):
            last = batch
        if last is not None:
            return _mark(last, last.num_rows - 1)
    return None


def _crc_at(source: Source, offset: int, fs: Fs) -> int | None:
    request = _request(Bounds(first_offset=offset, end_offset=offset + 1))
    task = TableTask(scan_tasks=tuple(plan_scan_tasks(request, source, fs, slice_bytes=1 << 20)))
    return next((_mark(batch, 0).crc for batch in _read(request, task, fs)), None)


def _request(bounds: Bounds) -> TableRequest:
    return TableRequest(columns=("offset", "timestamp", "key", "value"), bounds=bounds, on_corruption=SKIP)


def _read(request: TableRequest, task: TableTask, fs: Fs) -> Iterator[pa.RecordBatch]:
    # Imported late, because a process that only plans does not need the compiled code that the import loads.
    from sediment.segment_io.tables.readers import read_table

    return read_table(request, task, fs)


def _mark(batch: pa.RecordBatch, row: int) -> RecordMark:
    offset, timestamp, key, value = (column[row] for column in batch.columns)
    parts = [None if part.as_py() is None else bytes(part.as_py()) for part in (key, value)]
    lengths = _LENGTHS.pack(timestamp.value, *(-1 if part is None else len(part) for part in parts))
    return RecordMark(offset.as_py(), google_crc32c.value(lengths + b"".join(part or b"" for part in parts)))
