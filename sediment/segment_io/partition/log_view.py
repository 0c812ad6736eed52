"""LogView: offsets, times, producers and aborted transactions of one partition, read from its files.

    checkpoints ----------------> log start, high watermark, first dirty, end of the verified data
    last offset index entry ----> scan of the active segment's headers --> log end
    newest good snapshot -------> replay of headers to the log end ------> producers, last stable offset
    every .txnindex ------------> aborted transactions

Invariants: nothing is written.  Only names, sizes and times of files are trusted without a check.  A snapshot is used
only if its CRC is valid.  If an offset index or a snapshot is missing or corrupt, the headers of the batches are
scanned.  After a clean stop, a view needs only a few small reads, even for large segments.

In three cases, a broker that loads the same files gets a different result, because in these cases it does not scan the
batches (kafka-log 05 §3, §6):

    files                               broker                                this module
    no snapshot, clean stop             empty producer state                  the log is replayed
    torn batch at the end, clean stop   ignores the whole tail                the log ends after the last whole batch
    no `.timeindex`                     modification time of the file         timestamps of the batches
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sediment.segment_io.errors import (
    CorruptBatchError,
    SedimentError,
    SourceChangedError,
    UnsupportedDataError,
)
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    INT32_MAX,
    INT64_MAX,
    LEGACY_TIMESTAMP,
    MAGIC,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    OFFSET_ENTRY_STRUCT,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.transaction_index import AbortedTxn, parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.index_files import read_last_entry
from sediment.segment_io.partition.listing import LogListing, SegmentRef
from sediment.segment_io.partition.producer_snapshots import load_producer_state
from sediment.segment_io.partition.producer_state import ProducerEntry, ProducerState, replay
from sediment.segment_io.segment.reader import HeaderScan, Rows
from sediment.segment_io.units import NS_PER_MS


# ------------------------------------------------------------------------------------------------------------ view
@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """The times of one segment in ms since the epoch.

    `largest_timestamp_ms` is the largest timestamp of the records, or the file's modification time if no record has a
    timestamp.  `first_batch_timestamp_ms` is the maxTimestamp of the segment's first batch.  It is -1 if the segment
    has no batch or is active, or if the value was not requested.
    """

    largest_timestamp_ms: int
    first_batch_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LogView:
    """The state of a partition as a broker would load it; offsets are absolute, and ends are exclusive.

    `high_watermark` is None if the checkpoint file exists but does not list the partition.  After an unclean stop,
    `unverified_from_offset` is the base offset of the first unverified segment; otherwise it is None.  `producers` and
    `last_stable_offset` do not cover unverified segments.

    `aborted` contains all aborted transactions of the log, in the order of their markers.  Most segments have no
    transaction index, so a missing index is noticed only if the log is replayed.
    """

    listing: LogListing
    segment_times: tuple[SegmentTimes, ...]
    first_dirty_checkpoint: int | None
    log_start_offset: int
    high_watermark: int | None
    last_stable_offset: int
    log_end_offset: int
    unverified_from_offset: int | None
    producers: tuple[ProducerEntry, ...]
    aborted: tuple[AbortedTxn, ...]


def open_view(
    listing: LogListing,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    producer_id_expiration_ms: int | None,
    first_batch_timestamps: bool = False,
    on_corruption: Callable[[SedimentError], None] | None = None,
) -> LogView:
    """If `producer_id_expiration_ms` is None, producers never expire.

    Set `first_batch_timestamps` if `max.compaction.lag.ms` is set.  `on_corruption` is called with the error of a
    corrupt batch, and the scan continues with the next segment.  With `on_corruption`, an unreadable transaction index
    is treated as corrupt.

    Source: kafka-log 05 §3, §6; 04 §3, §5.
    """
    try:
        return _Opening(listing, fs, on_corruption).view(
            checkpoints,
            now_ms=now_ms,
            producer_id_expiration_ms=producer_id_expiration_ms,
            first_batch_timestamps=first_batch_timestamps,
        )
    except FileNotFoundError as error:
        raise SourceChangedError(
            "a file of the partition was removed while it was read",
            partition=str(listing.partition),
            path=str(error.filename),
            advice="run again; a broker or another tool is at work in this directory",
        ) from error
    except SedimentError as error:
        error.partition = str(listing.partition)
        raise


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of the active segment: the offset after the last whole batch, and the largest timestamp or -1."""

    log_end_offset: int
    largest_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Opening:
    listing: LogListing
    fs: Fs
    on_corruption: Callable[[SedimentError], None] | None

    def view(
        self,
        checkpoints: PartitionCheckpoints,
        *,
        now_ms: int,
        producer_id_expiration_ms: int | None,
        first_batch_timestamps: bool,
    ) -> LogView:
        segments = self.listing.segments
        log_start = max(checkpoints.log_start or 0, segments[0].base_offset if segments else 0)
        tail = self._tail(segments[-1]) if segments else _Tail(log_start, NO_TIMESTAMP)
        log_end = tail.log_end_offset
        high_watermark = _high_watermark(checkpoints, log_start, log_end)
        unverified_from = self._unverified_from(checkpoints)
        verified_end = log_end if unverified_from is None else max(log_start, unverified_from)
        indexed = self._indexed_aborted()
        state = load_producer_state(
            self.fs,
            self.listing.path,
            () if None in indexed.values() else self.listing.snapshots,
            log_start_offset=log_start,
            log_end_offset=verified_end,
            now_ms=now_ms,
            expiration_ms=producer_id_expiration_ms,
        ).state
        state = self._replayed(state, verified_end)
        known_replicated = log_start if high_watermark is None else high_watermark
        last_stable = known_replicated
        unstable = state.first_unstable_offset(known_replicated, log_start_offset=log_start)
        if unstable is not None:
            # A transaction may have been open below the log start offset.  Then the first unstable offset is the base
            # offset of the first batch that a read at the log start offset returns.  If offsets are missing at the log
            # start, this batch can be far above the log start offset.
            last_stable = min(last_stable, self._first_batch_from(log_start) if unstable == log_start else unstable)
        return LogView(
            listing=self.listing,
            segment_times=self._segment_times(tail, first_batch_timestamps),
            first_dirty_checkpoint=checkpoints.first_dirty,
            log_start_offset=log_start,
            high_watermark=high_watermark,
            last_stable_offset=min(last_stable, verified_end),
            log_end_offset=log_end,
            unverified_from_offset=unverified_from,
            producers=tuple(state.without_expired(now_ms, producer_id_expiration_ms).entries.values()),
            aborted=self._all_aborted(indexed, state),
        )

    def _path(self, segment: SegmentRef, kind: SegmentFileKind) -> Path:
        return self.listing.file(segment, kind)

    def _holding(self, offset: int) -> int:
        bases = [segment.base_offset for segment in self.listing.segments]
        return max(bisect_right(bases, offset) - 1, 0)

    def _batches(self, segment: SegmentRef, position: int = 0) -> Iterator[Rows]:
        """Yield header rows after `position`; in the active segment, end at the first bytes that are not a batch."""
        if segment.log_bytes == 0:
            return
        try:
            log = self._path(segment, SegmentFileKind.LOG)
            yield from HeaderScan(log, position, size_bytes=segment.log_bytes, fs=self.fs)
        except CorruptBatchError as error:
            if segment is not self.listing.segments[-1]:
                self._met(error)

    def _met(self, error: CorruptBatchError | UnsupportedDataError) -> None:
        if self.on_corruption is None:
            raise error
        self.on_corruption(error)

    # ------------------------------------------------------------------------------------------------------- offsets
    def _unverified_from(self, checkpoints: PartitionCheckpoints) -> int | None:
        if checkpoints.clean_shutdown or checkpoints.recovery_point is None or not self.listing.segments:
            return None
        return self.listing.segments[self._holding(checkpoints.recovery_point)].base_offset

    def _tail(self, active: SegmentRef) -> _Tail:
        indexed_ms = self._indexed_timestamp_ms(active, active.base_offset + INT32_MAX)
        if active.offset_index_bytes and indexed_ms is not None and indexed_ms >= 0:
            entry = _last_entry(self._path(active, SegmentFileKind.OFFSET_INDEX), OFFSET_ENTRY_STRUCT, self.fs)
            if entry is not None and entry[1] > 0:
                tail = self._scanned_tail(active, entry[1], active.base_offset + entry[0])
                if tail is not None:
                    return _Tail(tail.log_end_offset, max(tail.largest_timestamp_ms, indexed_ms))
        return self._scanned_tail(active, 0, INT64_MAX) or _Tail(active.base_offset, NO_TIMESTAMP)

    def _scanned_tail(self, active: SegmentRef, position: int, indexed_offset: int) -> _Tail | None:
        """Return the end of the segment, scanned from `position`.

        Return None if no batch begins at `position`, or if the batch there ends above `indexed_offset`.
        """
        tail = None
        for rows in self._batches(active, position):
            first, last = int(rows["base_offset"][0]), int(rows["last_offset"][0])
            # An offset index entry is used only if a batch with the entry's offset is at the entry's position.
            if tail is None and not active.base_offset <= first <= last <= indexed_offset:
                return None
            largest_ms = max(int(rows["max_timestamp"].max()), tail.largest_timestamp_ms if tail else NO_TIMESTAMP)
            tail = _Tail(int(rows["last_offset"][-1]) + 1, largest_ms)
        return tail

    def _first_batch_from(self, offset: int) -> int:
        for segment in self.listing.segments[self._holding(offset) :]:
            for rows in self._batches(segment):
                reaching = rows["base_offset"][rows["last_offset"] >= offset]
                if reaching.size:
                    return int(reaching[0])
        return offset

    # --------------------------------------------------------------------------------------------------------- times
    def _segment_times(self, tail: _Tail, first_batch_timestamps: bool) -> tuple[SegmentTimes, ...]:
        segments = self.listing.segments
        times = []
        for segment, following in pairwise(segments):
            largest_ms = self._indexed_timestamp_ms(segment, following.base_offset - 1)
            if largest_ms is None:
                largest_ms = max((int(r["max_timestamp"].max()) for r in self._batches(segment)), default=NO_TIMESTAMP)
            first_ms = NO_TIMESTAMP
            if first_batch_timestamps:
                first_ms = _first_batch_timestamp_ms(self._path(segment, SegmentFileKind.LOG), self.fs)
            times.append(SegmentTimes(largest_timestamp_or_mtime_ms(largest_ms, segment.mtime_ns), first_ms))
        if segments:
            largest_ms = largest_timestamp_or_mtime_ms(tail.largest_timestamp_ms, segments[-1].mtime_ns)
            times.append(SegmentTimes(largest_ms, NO_TIMESTAMP))
        return tuple(times)

    def _indexed_timestamp_ms(self, segment: SegmentRef, last_offset: int) -> int | None:
        """Return the timestamp of the last entry of the time index; -1 if the index is empty.

        Return None if the index is missing or invalid.
        """
        if segment.time_index_bytes == 0 or segment.log_bytes == 0:
            return NO_TIMESTAMP
        if segment.time_index_bytes is None:
            return None
        entry = _last_entry(self._path(segment, SegmentFileKind.TIME_INDEX), TIME_ENTRY_STRUCT, self.fs)
        if entry is None or entry[0] < 0 or not 0 <= entry[1] <= last_offset - segment.base_offset:
            return None
        return entry[0]

    # ------------------------------------------------------------------------------------------------- producers
    def _replayed(self, state: ProducerState, end_offset: int) -> ProducerState:
        start_offset = state.end_offset
        if start_offset >= end_offset:
            return state
        for segment in self.listing.segments[self._holding(start_offset) :]:
            if segment.base_offset >= end_offset:
                break
            for rows in self._batches(segment):
                try:
                    state = replay(state, rows[rows["last_offset"] >= start_offset])
                except CorruptBatchError as error:
                    self._met(error)
        return state

    def _indexed_aborted(self) -> dict[int, tuple[AbortedTxn, ...] | None]:
        return {
            segment.base_offset: self._aborted_in(segment)
            for segment in self.listing.segments
            if segment.transaction_index_bytes is not None
        }

    def _aborted_in(self, segment: SegmentRef) -> tuple[AbortedTxn, ...] | None:
        if segment.has_endless_transaction_index:
            return None
        path = self._path(segment, SegmentFileKind.TRANSACTION_INDEX)
        try:
            found = parse_transaction_index(self.fs.read_bytes(path), path=str(path)).transactions()
        except UnsupportedDataError as error:
            self._met(error)
            return None
        ranges = [(entry.first_offset, entry.last_offset) for entry in found]
        return found if all(first < last >= segment.base_offset for first, last in ranges) else None

    def _all_aborted(
        self, indexed: Mapping[int, tuple[AbortedTxn, ...] | None], state: ProducerState
    ) -> tuple[AbortedTxn, ...]:
        found = [entry for entries in indexed.values() for entry in entries or ()]
        for entry in state.aborted():
            base_offset = self.listing.segments[self._holding(entry.last_offset)].base_offset
            if indexed.get(base_offset) is None:
                found.append(entry)
        return tuple(sorted(found, key=lambda entry: entry.last_offset))


def _high_watermark(checkpoints: PartitionCheckpoints, log_start: int, log_end: int) -> int | None:
    if checkpoints.high_watermark is None:
        return None if checkpoints.high_watermark_file else log_end
    return min(max(checkpoints.high_watermark, log_start), log_end)


def _last_entry(path: Path, entry: struct.Struct, fs: Fs) -> tuple[int, int] | None:
    found = read_last_entry(path, entry.size, fs)
    return None if found is None else entry.unpack(found)


def _first_batch_timestamp_ms(log: Path, fs: Fs) -> int:
    header = fs.read_range(log, 0, BATCH_HEADER_BYTES)
    position = {1: LEGACY_TIMESTAMP, 2: MAX_TIMESTAMP}.get(header[MAGIC] if len(header) > MAGIC else 0)
    if position is None or len(header) < position + 8:
        return NO_TIMESTAMP
    return int.from_bytes(header[position : position + 8], "big", signed=True)


def largest_timestamp_or_mtime_ms(timestamp_ms: int, mtime_ns: int) -> int:
    """Return the largest timestamp of a segment's batches; if no batch has one, the `.log`'s modification time.

    The result determines the segment's age (kafka-log 03 §2.4).

    Source: Kafka's LogSegment.largestTimestamp.
    """
    return timestamp_ms if timestamp_ms >= 0 else mtime_ns // NS_PER_MS
