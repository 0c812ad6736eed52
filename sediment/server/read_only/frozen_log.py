"""FrozenLog: a read-only partition directory that answers reads like the leader of its partition.

    listing + checkpoints  --first use-->  log start, high watermark, last stable offset, log end
    read    limit by isolation -> segment -> index -> headers -> slice of the file                 kafka-log 04 §8
    times   first segment with a timestamp at or above the time -> its time index -> its records   04 §9
    epochs  `leader-epoch-checkpoint`, or the headers if it is missing                             04 §4

Invariants
* The cost of a read does not depend on the length of the log, because the log's offsets and its aborted transactions
  are determined only once.
* Only verified batches are returned.  An unreadable batch is skipped with one warning, and the read continues at the
  next good batch.  The offsets then have a gap, as after a compaction.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from sediment.engine.directory.leader_epochs import (
    Epochs,
    assign,
    end_offset_for,
    latest_epoch,
    truncate_from_start,
)
from sediment.engine.live.log.fetched_data import Isolation, TimestampOffsetEpoch
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptCheckpointError,
    OffsetOutOfRangeError,
    OpenFilesLimitError,
    SedimentError,
    StorageError,
)
from sediment.segment_io.format.index_sanity import Int64s
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    MAGIC,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
)
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, SegmentFileKind, TopicPartition
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs, ReadableFile
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_leader_epochs
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.segment_io.partition.listing import LogListing, SegmentRef
from sediment.segment_io.partition.log_view import LogView, open_view
from sediment.segment_io.partition.producer_state import ProducerEntry
from sediment.segment_io.segment.reader import HeaderScan
from sediment.segment_io.segment.search import FoundBatch
from sediment.segment_io.segment.timestamp_search import FoundRecord, WantedTime, find_record
from sediment.server.read_only.frozen_segment import FrozenSegment, UnservedRange
from sediment.server.read_only.open_segments import OpenSegment, OpenSegments, SegmentFiles, read_failed

_LOGGER = logging.getLogger(__name__)

_Found = TypeVar("_Found")


@dataclass(slots=True, eq=False)
class Fetched:
    """The result of a read; `records` begins with a batch, may end inside a batch, and is None without data.

    `aborted` is None unless the isolation level is READ_COMMITTED.
    """

    records: FileSlice | None
    aborted: tuple[AbortedTxn, ...] | None

    @property
    def size_bytes(self) -> int:
        return 0 if self.records is None else self.records.size_bytes


_NOTHING = Fetched(None, None)
_NOTHING_COMMITTED = Fetched(None, ())


class _Limit(NamedTuple):
    offset: int
    segment: int
    position: int


class _Readable(NamedTuple):
    segments: Sequence[FrozenSegment]
    base_offsets: Sequence[int]
    log_start_offset: int
    log_end: _Limit
    high_watermark: _Limit
    last_stable: _Limit


class _AbortedTransactions:
    """`_lowest_first[i]` is the lowest first offset among transaction i and all later transactions.

    So bisection finds both ends of a range.
    """

    def __init__(self, transactions: Sequence[AbortedTxn]) -> None:
        self._transactions = transactions
        self._last_offsets: Int64s = np.array([entry.last_offset for entry in transactions], dtype=np.int64)
        firsts: Int64s = np.array([entry.first_offset for entry in transactions], dtype=np.int64)
        self._lowest_first: Int64s = np.minimum.accumulate(firsts[::-1])[::-1]

    def between(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        if not self._transactions:
            return ()
        first = int(np.searchsorted(self._last_offsets, start_offset))
        end = int(np.searchsorted(self._lowest_first, end_offset))
        return tuple(entry for entry in self._transactions[first:end] if entry.first_offset < end_offset)


class FrozenLog:
    """If the checkpoint file has no high watermark for the log, reads end at the log start.

    If the file does not exist, reads end at the log end. Any thread may call any method.
    """

    def __init__(
        self, listing: LogListing, checkpoints: PartitionCheckpoints, open_segments: OpenSegments, fs: Fs
    ) -> None:
        self.listing = listing
        self._checkpoints = checkpoints
        self._open_segments = open_segments
        self._fs = fs
        self._guard = threading.RLock()
        self._view: LogView | None = None
        self._failure: SedimentError | None = None
        self._readable: _Readable | None = None
        self._aborted: _AbortedTransactions | None = None
        self._epochs_on_file: Epochs | None = None
        self._has_read_epochs = False
        self._rebuilt_epochs: Epochs | None = None
        self._largest_by_segment: Sequence[int] | None = None
        self._unreadable: list[UnservedRange] = []

    @property
    def topic_partition(self) -> TopicPartition:
        return self.listing.partition

    @property
    def directory(self) -> Path:
        return self.listing.path

    @property
    def size_bytes(self) -> int:
        return self.listing.log_bytes()

    @property
    def unreadable(self) -> tuple[UnservedRange, ...]:
        return tuple(self._unreadable)

    @property
    def failure(self) -> SedimentError | None:
        """The error that makes every later read fail; None if there is none."""
        return self._failure

    # ---------------------------------------------------------------------------------------------------------- offsets
    @property
    def view(self) -> LogView:
        return self._view or self._open_view()

    @property
    def log_start_offset(self) -> int:
        return self.view.log_start_offset

    @property
    def high_watermark(self) -> int:
        view = self.view
        return view.log_start_offset if view.high_watermark is None else view.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.view.last_stable_offset

    @property
    def log_end_offset(self) -> int:
        return self.view.log_end_offset

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers with a batch in the log; they do not expire."""
        return self.view.producers

    def end_offset(self, isolation: Isolation) -> int:
        if isolation is Isolation.LOG_END:
            return self.log_end_offset
        return self.high_watermark if isolation is Isolation.HIGH_WATERMARK else self.last_stable_offset

    def readable_range(self, isolation: Isolation) -> tuple[int, int]:
        return self.log_start_offset, self.end_offset(isolation)

    def _open_view(self) -> LogView:
        with self._guard:
            if self._view is None:
                if self._failure is not None:
                    raise self._failure
                self._view = self._attempt(self._read_view)
            return self._view

    def _read_view(self) -> LogView:
        return open_view(
            self.listing,
            self._checkpoints,
            self._fs,
            now_ms=0,
            producer_id_expiration_ms=None,
            on_corruption=self._note_corruption,
        )

    def _attempt(self, read: Callable[[], _Found]) -> _Found:
        try:
            return read()
        except OSError as error:
            raise self._read_failed(error) from error
        except (OpenFilesLimitError, StorageError):
            raise
        except SedimentError as error:
            self._failure = StorageError(
                f"the log cannot be read: {error.what}",
                partition=str(self.topic_partition),
                path=str(self.directory),
                advice="inspect the directory with sediment dump, or serve another copy",
            )
            _LOGGER.error("%s", self._failure)
            raise self._failure from error

    def _note_corruption(self, error: SedimentError) -> None:
        _LOGGER.warning("%s: left out: %s", self.topic_partition, error)

    def _note_unreadable(self, found: UnservedRange) -> None:
        self._unreadable.append(found)
        _LOGGER.warning(
            "%s: bytes %d to %d of %s cannot be read and are skipped, after offset %d: %s",
            self.topic_partition,
            found.start_position,
            found.end_position,
            found.path,
            found.from_offset,
            found.reason,
        )

    # ------------------------------------------------------------------------------------------------------------- read
    def read(self, offset: int, max_bytes: int, *, isolation: Isolation, min_one: bool) -> Fetched:
        """The slice never extends past the end of the segment or past the end offset of reads with `isolation`.

        If the first batch is larger than `max_bytes`, return the whole batch if `min_one` is True, else nothing
        (KIP-74).

        Source: kafka-log 04 §8.
        """
        readable = self._readable or self._open_readable()
        _, base_offsets, log_start_offset, limit, high_watermark, last_stable = readable
        if not log_start_offset <= offset <= limit.offset:
            raise OffsetOutOfRangeError(
                f"the log contains offsets from {log_start_offset} up to {limit.offset}",
                partition=str(self.topic_partition),
                offset=offset,
            )
        is_committed = isolation is Isolation.TXN_COMMITTED
        if is_committed:
            limit = last_stable
        elif isolation is Isolation.HIGH_WATERMARK:
            limit = high_watermark
        limit_offset, last_number, last_position = limit
        number = max(bisect_right(base_offsets, offset) - 1, 0)
        try:
            while offset < limit_offset and number <= last_number:
                segment = readable.segments[number]
                opened = self._open_segments.get(segment.files)
                found = segment.locate(opened, offset)
                if found is None:
                    number += 1
                    continue
                _, position, size_bytes = found
                end_position = segment.end_position if number < last_number else last_position
                if position >= end_position or (size_bytes > max_bytes and not min_one):
                    break
                end = min(end_position, position + max(max_bytes, size_bytes))
                good = segment.verified_end(opened, position, end)
                if good == position:
                    continue
                aborted = self._aborted_in(segment, opened, offset, good) if is_committed else None
                return Fetched(FileSlice(opened.file, position, good - position), aborted)
        except OSError as error:
            raise self._read_failed(error) from error
        return _NOTHING_COMMITTED if is_committed else _NOTHING

    def _locate(self, segment: FrozenSegment, opened: OpenSegment, offset: int) -> FoundBatch | None:
        try:
            return segment.locate(opened, offset)
        except OSError as error:
            raise self._read_failed(error) from error

    def _aborted_in(
        self, segment: FrozenSegment, opened: OpenSegment, start_offset: int, end_position: int
    ) -> tuple[AbortedTxn, ...]:
        aborted = self._aborted
        if aborted is None:
            aborted = self._aborted = _AbortedTransactions(self.view.aborted)
        upper = segment.upper_bound(opened, end_position)
        return aborted.between(start_offset, segment.files.end_offset if upper is None else upper)

    def _open_readable(self) -> _Readable:
        with self._guard:
            if self._readable is None:
                self._readable = self._find_limits()
            return self._readable

    def _find_limits(self) -> _Readable:
        view = self.view
        refs = self.listing.segments
        ends = [*(ref.base_offset for ref in refs[1:]), view.log_end_offset]
        segments = [
            FrozenSegment(self._files(ref, end), self._note_unreadable) for ref, end in zip(refs, ends, strict=False)
        ]
        if segments:
            self._cut_torn_end(segments[-1], view.log_end_offset)
        bases = [ref.base_offset for ref in refs]
        log_end = _Limit(view.log_end_offset, len(segments) - 1, segments[-1].end_position if segments else 0)
        high_watermark = self._limit(segments, bases, self.high_watermark, log_end)
        last_stable = high_watermark
        if view.last_stable_offset < high_watermark.offset:
            last_stable = self._limit(segments, bases, view.last_stable_offset, log_end)
        return _Readable(segments, bases, view.log_start_offset, log_end, high_watermark, last_stable)

    def _files(self, ref: SegmentRef, end_offset: int) -> SegmentFiles:
        listing = self.listing
        return SegmentFiles(
            partition=str(self.topic_partition),
            base_offset=ref.base_offset,
            end_offset=end_offset,
            log=str(listing.file(ref, SegmentFileKind.LOG)),
            offset_index=listing.file(ref, SegmentFileKind.OFFSET_INDEX),
            time_index=listing.file(ref, SegmentFileKind.TIME_INDEX),
            size_bytes=ref.log_bytes,
            mtime_ns=ref.mtime_ns,
        )

    def _cut_torn_end(self, active: FrozenSegment, log_end_offset: int) -> None:
        """End the active segment after its last whole batch: after a crash, zeros or a partial batch may follow."""
        last = None
        if log_end_offset > active.base_offset and active.end_position:
            last = self._locate(active, self._open_segments.get(active.files), log_end_offset - 1)
        active.end_position = 0 if last is None else last.position + last.size_bytes

    def _limit(self, segments: Sequence[FrozenSegment], bases: Sequence[int], offset: int, log_end: _Limit) -> _Limit:
        if offset >= log_end.offset or not segments:
            return log_end
        number = max(bisect_right(bases, offset) - 1, 0)
        segment = segments[number]
        found = self._locate(segment, self._open_segments.get(segment.files), offset)
        return _Limit(offset, number, segment.end_position if found is None else found.position)

    def _read_failed(self, error: OSError) -> OpenFilesLimitError | StorageError:
        return read_failed(error, str(self.topic_partition), str(self.directory))

    # ------------------------------------------------------------------------------------------------------------ times
    def offset_for_time(self, target_ms: int, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
        """Only the first segment with a timestamp at or above the target is searched, as in Kafka.

        Source: kafka-log 04 §9.
        """
        readable = self._readable or self._open_readable()
        largest = self._largest_by_segment
        if largest is None:
            times = [segment.largest_timestamp_ms for segment in self.view.segment_times]
            largest = self._largest_by_segment = list(accumulate(times, max))
        number = bisect_left(largest, target_ms)
        if number == len(readable.segments):
            return None
        segment = readable.segments[number]
        opened = self._open_segments.get(segment.files)
        indexed = self._indexed_offset(segment, opened, target_ms)
        try:
            wanted = WantedTime(target_ms, self.log_start_offset)
            return _found(segment.first_record_since(opened, indexed, wanted, only_quick=only_quick))
        except OSError as error:
            raise self._read_failed(error) from error

    def offset_of_largest_timestamp(self, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
        """Return the first record with the largest timestamp; None if this record was deleted.

        Source: kafka-log 04 §9.
        """
        readable = self._readable or self._open_readable()
        largest = [times.largest_timestamp_ms for times in self.view.segment_times]
        # For a segment without timestamps, this value is the file's modification time, which matches no batch.
        by_time = sorted(enumerate(largest), key=lambda each: -each[1])
        for number, largest_ms in [*by_time, (0, NO_TIMESTAMP)] if by_time else []:
            segment = readable.segments[number]
            opened = self._open_segments.get(segment.files)
            indexed = self._indexed_offset(segment, opened, largest_ms)
            try:
                batch = segment.first_batch_at(opened, indexed, largest_ms)
                if batch is not None:
                    return _found(_first_record_at(opened.file, batch, largest_ms, only_quick=only_quick))
            except OSError as error:
                raise self._read_failed(error) from error
        return None

    def _indexed_offset(self, segment: FrozenSegment, opened: OpenSegment, target_ms: int) -> int:
        entries = self._open_segments.times(segment.files, opened)
        slot = bisect_right(entries.timestamps, target_ms) - 1
        return segment.base_offset + (entries.relative_offsets[slot] if slot >= 0 else 0)

    # ----------------------------------------------------------------------------------------------------------- epochs
    @property
    def leader_epoch(self) -> int:
        epochs = self._checkpointed_epochs()
        epoch = self._last_batch_epoch() if epochs is None else latest_epoch(epochs)
        return max(epoch, 0)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the last point at which this log agrees with a log that ends in `epoch`.

        Return (-1, -1) if no such point exists.

        Source: kafka-log 04 §4 (endOffsetFor).
        """
        found, end_offset = end_offset_for(self._epochs(), epoch, self.log_end_offset)
        return found, min(end_offset, self.log_end_offset)

    def epoch_at_log_start(self) -> int:
        epochs = truncate_from_start(self._epochs(), self.log_start_offset)
        is_known = bool(epochs) and epochs[0].start_offset <= self.log_start_offset
        return epochs[0].epoch if is_known else NO_LEADER_EPOCH

    def _epochs(self) -> Epochs:
        epochs = self._checkpointed_epochs()
        if epochs is not None:
            return epochs
        with self._guard:
            if self._rebuilt_epochs is None:
                self._rebuilt_epochs = self._attempt(self._scan_epochs)
            return self._rebuilt_epochs

    def _checkpointed_epochs(self) -> Epochs | None:
        if not self._has_read_epochs:
            try:
                self._epochs_on_file = read_leader_epochs(self._fs, self.directory / LEADER_EPOCH_FILE)
            except (CorruptCheckpointError, OSError) as error:
                _LOGGER.warning("%s: the leader epochs are read from the batches: %s", self.topic_partition, error)
            self._has_read_epochs = True
        return self._epochs_on_file

    def _scan_epochs(self) -> Epochs:
        epochs: Epochs = ()
        for ref in self.listing.segments:
            try:
                for rows in HeaderScan(self.listing.file(ref, SegmentFileKind.LOG), size_bytes=ref.log_bytes):
                    rows = rows[rows["magic"] >= MAGIC_V2]
                    changed = np.flatnonzero(np.diff(rows["leader_epoch"], prepend=latest_epoch(epochs)))
                    for epoch, offset in rows[["leader_epoch", "base_offset"]][changed].tolist():
                        if epoch > latest_epoch(epochs):
                            epochs = assign(epochs, epoch, offset)
            except CorruptBatchError as error:
                self._note_corruption(error)
        return epochs

    def _last_batch_epoch(self) -> int:
        readable = self._readable or self._open_readable()
        for segment in reversed(readable.segments):
            if segment.end_position:
                opened = self._open_segments.get(segment.files)
                found = self._locate(segment, opened, min(segment.files.end_offset, self.log_end_offset) - 1)
                if found is not None:
                    header = opened.file.read(found.position, BATCH_HEADER_BYTES)
                    return int(BATCH_STRUCT.unpack(header)[2]) if header[MAGIC] >= MAGIC_V2 else NO_LEADER_EPOCH
        return NO_LEADER_EPOCH


def _first_record_at(
    file: ReadableFile, batch: FoundBatch, timestamp_ms: int, *, only_quick: bool
) -> FoundRecord | None:
    if file.read(batch.position + MAGIC, 1)[0] == 0:
        return None
    return find_record(file, batch, WantedTime(timestamp_ms, is_exact=True), only_quick=only_quick)


def _found(record: FoundRecord | None) -> TimestampOffsetEpoch | None:
    if record is None:
        return None
    return TimestampOffsetEpoch(record.timestamp_ms, record.offset, record.leader_epoch)
