"""One segment of a live log: its file and its indexes; append, read, search, truncate.

    <base>.log          batches, one after the other                               kafka-log 01 §2
    <base>.index        last offset -> position, one entry per index.interval.bytes        01 §7.1, §7.5
    <base>.timeindex    largest timestamp so far -> its offset, after the same batches     01 §7.2, §7.5
    <base>.txnindex     aborted transactions whose marker is in this segment               01 §7.4

    preallocate           a new `.log` has segment.bytes bytes (`LocalLog.add_segment`); a roll or a close trims it
    first_timestamp_ms    the largest timestamp of the first batch, which is Kafka's rolling based timestamp
    largest_timestamp_ms  the largest timestamp of the appends; before them, that of the last time index entry; without
                          an entry, the modification time
    append                after an opening or a truncation, the bytes up to the next index entry are counted from 0
    become_inactive       a roll and a clean close write the last time index entry, then trim indexes and log
    truncate_to           a batch that spans the offset is removed completely; the indexes get their full size again

Invariants
* `size_bytes` counts only complete writes.  Reads end at this size, and the next append begins there, even if a failed
  write left bytes after it.
* Files are opened when they are first used, so a log with many segments uses no descriptor until it is read.  A segment
  keeps one descriptor if it is only read, and three if it is appended to; `close_idle` closes them.
* The log's lock serialises writers; a reader finds positions under the lock and reads bytes without the lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sediment.engine.live.log.append_analysis import AppendBuffers, CompleteBatches
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.index_appends import (
    INDEXED_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LARGEST_TIMESTAMP_OFFSET,
    OFFSET_INDEX_BYTES,
    PROGRESS_FIELDS,
    SINCE_ENTRY_BYTES,
    TIME_INDEX_BYTES,
    add_batches,
    fits_segment,
)
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    LAST_OFFSET_DELTA,
    LEGACY_TIMESTAMP,
    MAGIC,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    OFFSET_ENTRY_STRUCT,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.offset_index import OffsetPosition
from sediment.segment_io.format.time_index import TimestampOffset
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs, OpenFile
from sediment.segment_io.partition.log_view import largest_timestamp_or_mtime_ms
from sediment.segment_io.segment.append_run_kernels import RunRows, place_plain_run
from sediment.segment_io.segment.mapped_index import MappedOffsetIndex, MappedTimeIndex
from sediment.segment_io.segment.open_transaction_index import OpenTransactionIndex
from sediment.segment_io.segment.search import BY_LAST_OFFSET, BY_TIMESTAMP, FoundBatch, find_in_file
from sediment.segment_io.segment.timestamp_search import TimestampSearch, WantedTime

_LOG, _OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX, _ = SegmentFileKind


class CheckedRun(NamedTuple):
    """A run of plain batches that `check_plain_run` has checked, with its base offset."""

    batches: int
    size_bytes: int
    records: int
    max_timestamp_ms: int
    base_offset: int


class Segment:
    """Without timestamps in its records, a segment's age counts from `created_ms`, when this object was created."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        fs: Fs,
        *,
        size_bytes: int,
        created_ms: int,
        jitter_ms: int = 0,
        is_new: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.directory = directory
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self._fs = fs
        self._interval_bytes = config.compaction.index_interval_bytes
        self._file: OpenFile | None = None
        self._was_used = False
        entries = 0 if is_new else None
        max_bytes = config.compaction.segment_index_bytes
        self.offset_index = MappedOffsetIndex(
            self.path(_OFFSET_INDEX), base_offset, fs, max_bytes=max_bytes, entries=entries
        )
        self.time_index = MappedTimeIndex(self.path(_TIME_INDEX), base_offset, fs, max_bytes=max_bytes, entries=entries)
        self.transaction_index = OpenTransactionIndex(self.path(_TRANSACTION_INDEX), fs)
        self._progress = np.zeros(PROGRESS_FIELDS, dtype=np.int64)
        self._fields = self._progress.data  # a view of the same memory; its items are plain ints
        self._knows_timestamps = is_new
        self._progress[LARGEST_TIMESTAMP] = self._progress[INDEXED_TIMESTAMP] = NO_TIMESTAMP
        self._first_timestamp_ms: int | None = None

    def path(self, kind: SegmentFileKind = _LOG) -> Path:
        return self.directory / segment_file_name(self.base_offset, kind)

    @property
    def file(self) -> OpenFile:
        self._was_used = True
        file = self._file
        if file is None:
            file = self._file = self._fs.open_file(self.path())
        return file

    def create(self, *, like: Path, preallocated_bytes: int = 0) -> None:
        self._file = self._fs.create_file(self.path(), like=like)
        self.preallocate(preallocated_bytes)

    def preallocate(self, size_bytes: int) -> None:
        if size_bytes:
            self.file.resize(size_bytes)

    def reserve_indexes(self) -> None:
        self.offset_index.reserve()
        self.time_index.reserve()

    def open_to_append(self, last_offset: int) -> bool:
        """Return False if the segment must be rolled before an append that ends at `last_offset`.

        This is so if an index is full, or if the offset is out of the segment's range.
        """
        offset_index, time_index = self.offset_index, self.time_index
        if not (offset_index.room and time_index.room and self._file is not None):
            self.reserve_indexes()
            if self._file is None:
                _ = self.file
            if not (offset_index.room and time_index.room):
                return False
        return fits_segment(last_offset, self.base_offset)

    def close_idle(self, *, is_durable: bool) -> None:
        """The `.log` and `.txnindex` are closed only if `is_durable`, which means that the segment was flushed."""
        if self._was_used:
            self._was_used = False
            return
        self.offset_index.close_file()
        self.time_index.close_file()
        if is_durable:
            self._file = None
            self.transaction_index.close_file()

    # ----------------------------------------------------------------------------------------------------------- append
    def append(self, batches: CompleteBatches) -> None:
        """Source: kafka-log 01 §7.5."""
        rows = batches.rows
        if len(rows) == 1:
            first = batches.first()
            self.append_one(batches.buffer.data[: batches.size_bytes], first.last_offset, first.max_timestamp)
            return
        self._learn_timestamps()
        position = self.size_bytes
        self.file.write(batches.buffer.data[: batches.size_bytes], position)
        self._append_entries(batches, position)
        self.size_bytes = position + batches.size_bytes

    def append_one(self, batch: memoryview, last_offset: int, timestamp_ms: int) -> None:
        if not self._knows_timestamps:
            self._learn_timestamps()
        position, size_bytes, fields = self.size_bytes, len(batch), self._fields
        self.file.write(batch, position)
        if timestamp_ms > fields[LARGEST_TIMESTAMP]:
            fields[LARGEST_TIMESTAMP] = timestamp_ms
            fields[LARGEST_TIMESTAMP_OFFSET] = last_offset
        since_entry_bytes = fields[SINCE_ENTRY_BYTES]
        if since_entry_bytes > self._interval_bytes:
            self._append_entry(last_offset, position)
            since_entry_bytes = 0
        fields[SINCE_ENTRY_BYTES] = since_entry_bytes + size_bytes
        self.size_bytes = position + size_bytes

    def has_index_room(self, batches: int, size_bytes: int) -> bool:
        most = min(batches, size_bytes // max(self._interval_bytes, 1) + 1)
        return self.offset_index.room >= most and self.time_index.room >= most

    def append_run(self, buffers: AppendBuffers, rows: RunRows, run: CheckedRun, leader_epoch: int) -> None:
        """Call this only after `has_index_room` has returned True.

        If the append raises an error, the log goes offline, so the state of this object is not used any more.
        """
        if not self._knows_timestamps:
            self._learn_timestamps()
        position, fields = self.size_bytes, self._fields
        place_plain_run(
            buffers.address,
            run.batches,
            run.base_offset,
            leader_epoch,
            position,
            self.base_offset,
            self._interval_bytes,
            rows,
            self._progress,
            buffers.offset_entries,
            buffers.time_entries,
        )
        self.file.write(buffers.content[: run.size_bytes], position)
        if fields[OFFSET_INDEX_BYTES]:
            self.offset_index.extend(buffers.offset_entries.data[: fields[OFFSET_INDEX_BYTES]])
        if fields[TIME_INDEX_BYTES]:
            self.time_index.extend(buffers.time_entries.data[: fields[TIME_INDEX_BYTES]])
        self.size_bytes = position + run.size_bytes

    def _append_entry(self, last_offset: int, position: int) -> None:
        # Append the index entries of one batch, by the same rule as `add_batch`, whose call would take longer.
        offset_index, time_index, fields = self.offset_index, self.time_index, self._fields
        if not offset_index.is_full:
            offset_index.extend(OFFSET_ENTRY_STRUCT.pack(last_offset - self.base_offset, position))
        largest_ms = fields[LARGEST_TIMESTAMP]
        if largest_ms > fields[INDEXED_TIMESTAMP] and not time_index.is_full:
            offset = fields[LARGEST_TIMESTAMP_OFFSET]
            time_index.extend(TIME_ENTRY_STRUCT.pack(largest_ms, offset - self.base_offset))
            fields[INDEXED_TIMESTAMP] = largest_ms

    def _append_entries(self, batches: CompleteBatches, position: int) -> None:
        offset_index, time_index = self.offset_index, self.time_index
        most = batches.size_bytes // max(self._interval_bytes, 1) + 1
        most = min(most, len(batches.rows))
        offset_capacity = min(offset_index.max_entries - len(offset_index), most)
        time_capacity = min(max(time_index.max_entries - len(time_index), 0), most + 1)
        offset_entries = np.empty(offset_capacity * OFFSET_ENTRY_BYTES, dtype=np.uint8)
        time_entries = np.empty(time_capacity * TIME_ENTRY_BYTES, dtype=np.uint8)
        add_batches(
            batches.rows,
            position,
            self.base_offset,
            self._interval_bytes,
            self._progress,
            offset_entries,
            time_entries,
        )
        offset_bytes, time_bytes = self._progress[OFFSET_INDEX_BYTES], self._progress[TIME_INDEX_BYTES]
        if offset_bytes:
            offset_index.extend(offset_entries[:offset_bytes].tobytes())
        if time_bytes:
            time_index.extend(time_entries[:time_bytes].tobytes())

    def add_aborted(self, transactions: tuple[AbortedTxn, ...]) -> None:
        self.transaction_index.append(transactions)

    # ------------------------------------------------------------------------------------------------------- timestamps
    def _learn_timestamps(self) -> None:
        if not self._knows_timestamps:
            last = self.time_index.last_entry
            self._progress[LARGEST_TIMESTAMP] = self._progress[INDEXED_TIMESTAMP] = last.timestamp_ms
            self._progress[LARGEST_TIMESTAMP_OFFSET] = last.offset
            self._knows_timestamps = True

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp of the batches, or -1, and the last offset of the first batch with this timestamp."""
        self._learn_timestamps()
        return TimestampOffset(int(self._progress[LARGEST_TIMESTAMP]), int(self._progress[LARGEST_TIMESTAMP_OFFSET]))

    @property
    def largest_timestamp_ms(self) -> int:
        largest_ms = self.largest.timestamp_ms
        entry = self._fs.entry(self.path()) if largest_ms < 0 else None
        return largest_timestamp_or_mtime_ms(largest_ms, 0 if entry is None else entry.mtime_ns)

    def first_timestamp_ms(self) -> int:
        """Source: kafka-log 04 §6 (rolling based timestamp)."""
        if self._first_timestamp_ms is None:
            if not self.size_bytes:
                return NO_TIMESTAMP
            header = self.file.read(0, BATCH_HEADER_BYTES)
            at = MAX_TIMESTAMP if header[MAGIC] >= 2 else LEGACY_TIMESTAMP
            has_timestamp = header[MAGIC] > 0
            self._first_timestamp_ms = (
                int.from_bytes(header[at : at + 8], "big", signed=True) if has_timestamp else NO_TIMESTAMP
            )
        return self._first_timestamp_ms

    # ------------------------------------------------------------------------------------------------------------- roll
    def become_inactive(self) -> None:
        self._end_time_index()
        self.offset_index.trim()
        self.time_index.trim()
        if self.file.size_bytes() != self.size_bytes:
            self.file.resize(self.size_bytes)

    def _end_time_index(self) -> None:
        largest = self.largest
        last = self.time_index.last_entry
        has_capacity = len(self.time_index) < self.time_index.max_entries
        if largest.timestamp_ms > last.timestamp_ms and largest.offset >= last.offset and has_capacity:
            self.time_index.maybe_append(largest.timestamp_ms, largest.offset, skip_full_check=True)
            self._progress[INDEXED_TIMESTAMP] = largest.timestamp_ms

    def files(self) -> list[OpenFile]:
        files = [self.file, self.offset_index.open(), self.time_index.open()]
        transactions = self.transaction_index.changed_file()
        return files if transactions is None else [*files, transactions]

    # ------------------------------------------------------------------------------------------------------------- read
    def find(self, offset: int, *, from_position: int | None = None) -> FoundBatch | None:
        start = self.offset_index.lookup(offset).position if from_position is None else from_position
        return self._scan(start, BY_LAST_OFFSET, offset)

    def _scan(self, position: int, what: int, target: int) -> FoundBatch | None:
        return find_in_file(self.file, position, self.size_bytes, what, target)

    def timestamp_search(self, target_ms: int, start_offset: int) -> TimestampSearch:
        """Source: kafka-log 04 §9."""
        indexed = self.time_index.lookup(target_ms).offset
        position = self.offset_index.lookup(max(indexed, start_offset)).position
        return TimestampSearch(self.file, position, self.size_bytes, WantedTime(target_ms, start_offset))

    def largest_timestamp_search(self) -> TimestampSearch:
        """Source: kafka-log 04 §9."""
        largest = self.largest
        position = self.offset_index.lookup(largest.offset).position
        wanted = WantedTime(largest.timestamp_ms, is_exact=True)
        return TimestampSearch(self.file, position, self.size_bytes, wanted)

    def upper_bound(self, position: int) -> OffsetPosition | None:
        return self.offset_index.fetch_upper_bound(position)

    # --------------------------------------------------------------------------------------------------------- truncate
    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Source: kafka-log 04 §10 step 2."""
        batch = self.find(offset)
        largest_known = self.largest.timestamp_ms >= 0
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self.reserve_indexes()
        if batch is not None:
            self.size_bytes = batch.position
            self.file.resize(batch.position)
            self.file.sync()
        if not self.size_bytes:
            self.created_ms = now_ms
            self._first_timestamp_ms = None
        self._progress[SINCE_ENTRY_BYTES] = 0
        if largest_known:
            self._recompute_largest()

    def _recompute_largest(self) -> None:
        last = self.time_index.last_entry
        largest = last
        position = self.offset_index.lookup(last.offset).position
        while (batch := self._scan(position, BY_TIMESTAMP, largest.timestamp_ms + 1)) is not None:
            header = self.file.read(batch.position, BATCH_HEADER_BYTES)
            if header[MAGIC] >= 2:
                timestamp_ms = int.from_bytes(header[MAX_TIMESTAMP : MAX_TIMESTAMP + 8], "big", signed=True)
                delta = int.from_bytes(header[LAST_OFFSET_DELTA : LAST_OFFSET_DELTA + 4], "big", signed=True)
            else:
                timestamp_ms = int.from_bytes(header[LEGACY_TIMESTAMP : LEGACY_TIMESTAMP + 8], "big", signed=True)
                delta = 0
            largest = TimestampOffset(timestamp_ms, batch.base_offset + delta)
            position = batch.position + batch.size_bytes
        self._progress[LARGEST_TIMESTAMP], self._progress[LARGEST_TIMESTAMP_OFFSET] = (
            largest.timestamp_ms,
            largest.offset,
        )
        self._progress[INDEXED_TIMESTAMP] = last.timestamp_ms

    def next_offset(self) -> int:
        position = self.offset_index.lookup(self.offset_index.last_offset).position
        last_offset = self.base_offset - 1
        while (batch := self._scan(position, BY_LAST_OFFSET, last_offset + 1)) is not None:
            header = self.file.read(batch.position, BATCH_HEADER_BYTES)
            delta = int.from_bytes(header[LAST_OFFSET_DELTA : LAST_OFFSET_DELTA + 4], "big", signed=True)
            last_offset = batch.base_offset + (delta if header[MAGIC] >= 2 else 0)
            position = batch.position + batch.size_bytes
        return last_offset + 1

    # -------------------------------------------------------------------------------------------------------------- end
    def moved(self, directory: Path) -> None:
        self.directory = directory
        if self._file is not None:
            self._file.path = self.path()
        self.offset_index.moved(self.path(_OFFSET_INDEX))
        self.time_index.moved(self.path(_TIME_INDEX))
        self.transaction_index.moved(self.path(_TRANSACTION_INDEX))

    def release(self) -> None:
        """Release the files; each file is closed when its last reader has finished."""
        self._file = None
        self.offset_index.release()
        self.time_index.release()
        self.transaction_index.release()
