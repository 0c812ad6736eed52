r"""The end of a log in use, and the range that READ_COMMITTED consumers read, with the aborted transactions in it.

    newest good snapshot --replay of headers--> open transactions --> last stable offset
            |                                        \-> aborted transactions since the snapshot
    every transaction index ------------------------------> aborted transactions

Invariants: every aborted transaction with records in the range is returned with the range, and no transaction with
records in the range is open.  If the high watermark is known, the range ends at or below the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sediment.segment_io.errors import CorruptBatchError, SourceChangedError, UnsupportedDataError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.transaction_index import AbortedTxn, parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.live_segments import LiveSegment, live_segments
from sediment.segment_io.partition.producer_snapshots import load_producer_state
from sediment.segment_io.partition.producer_state import ProducerEntry, ProducerState, replay
from sediment.segment_io.partition.slices import Bounds, Slice, opened, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment.reader import HeaderScan, Rows

_ATTEMPTS = 5

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """The offsets [first_offset, end_offset) up to the last stable offset, and the aborted transactions among them."""

    first_offset: int
    end_offset: int
    aborted: tuple[AbortedTxn, ...]

    def bounds(self) -> Bounds:
        return Bounds(first_offset=self.first_offset, end_offset=self.end_offset)

    def aborted_within(self, first_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        return tuple(
            entry for entry in self.aborted if entry.last_offset >= first_offset and entry.first_offset < end_offset
        )


def log_end_offset(source: Source, fs: Fs) -> int:
    whole = Source(source.partition, source.directory)

    def find_end() -> int:
        segments = live_segments(whole, fs)
        end = segments[-1].base_offset if segments else 0
        for part in plan_slices(whole, Bounds(first_offset=INT64_MAX - 1), fs, slice_bytes=INT64_MAX):
            for rows in _headers(part):
                end = int(rows["last_offset"][-1]) + 1
        return end

    return _retried(find_end)


def _retried(read: Callable[[], _Found]) -> _Found:
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except SourceChangedError:
            continue
    return read()


def committed_range(source: Source, checkpoints: PartitionCheckpoints, fs: Fs) -> CommittedRange:
    """Return the committed range of the partition of `source`, from all segments of its directory.

    Source: kafka-log 04 §3, §8.
    """
    return _retried(lambda: _committed_range(source, checkpoints, fs))


def open_transactions(source: Source, checkpoints: PartitionCheckpoints, fs: Fs) -> tuple[ProducerEntry, ...]:
    """Return the producers that have an open transaction at the log end, sorted by the first offset of the transaction.

    Raises:
        SedimentError: as in `committed_range`.
    """

    def find_open() -> tuple[ProducerEntry, ...]:
        whole = Source(source.partition, source.directory)
        segments = live_segments(whole, fs)
        log_start = max(checkpoints.log_start or 0, segments[0].base_offset if segments else 0)
        snapshots = set(list_log(source.partition, source.directory, fs).snapshots)
        state, _ = _state_at_log_end(whole, segments, log_start, snapshots, fs)
        found = (entry for entry in state.entries.values() if entry.has_open_transaction)
        return tuple(sorted(found, key=lambda entry: entry.current_txn_first_offset))

    return _retried(find_open)


def _committed_range(source: Source, checkpoints: PartitionCheckpoints, fs: Fs) -> CommittedRange:
    whole = Source(source.partition, source.directory)
    segments = live_segments(whole, fs)
    log_start = max(checkpoints.log_start or 0, segments[0].base_offset if segments else 0)
    indexed = _indexed(whole, segments, fs)
    snapshots = set() if indexed is None else set(list_log(source.partition, source.directory, fs).snapshots)
    state, log_end = _state_at_log_end(whole, segments, log_start, snapshots, fs)
    high_watermark = log_end
    if checkpoints.high_watermark is not None:
        high_watermark = min(max(checkpoints.high_watermark, log_start), log_end)
    # Unlike `log_view`, this module is for logs in use.  The index may still lack an aborted transaction, so aborted
    # transactions that the replay finds are added.
    aborted = {entry.last_offset: entry for entry in (*(indexed or ()), *state.aborted())}
    return CommittedRange(
        log_start,
        state.last_stable_offset(high_watermark, log_start_offset=log_start),
        tuple(entry for _, entry in sorted(aborted.items())),
    )


def _state_at_log_end(
    source: Source, segments: Sequence[LiveSegment], log_start: int, snapshots: set[int], fs: Fs
) -> tuple[ProducerState, int]:
    while True:
        loaded = load_producer_state(
            fs,
            source.directory,
            snapshots,
            log_start_offset=log_start,
            log_end_offset=INT64_MAX,
            now_ms=0,
            expiration_ms=INT64_MAX,
        )
        start_offset = loaded.state.end_offset
        state, log_end = _replayed(loaded.state, source, fs)
        log_end = max(log_end, log_start, segments[-1].base_offset if segments else 0)
        if log_end >= start_offset or start_offset not in snapshots:
            return state, log_end
        snapshots = snapshots - {start_offset}  # the log was truncated below the snapshot


def _replayed(state: ProducerState, source: Source, fs: Fs) -> tuple[ProducerState, int]:
    start_offset = state.end_offset
    log_end = 0
    # The scan begins with the last batch below `state.end_offset`.  So it finds the log end even if no batch follows.
    for part in plan_slices(source, Bounds(first_offset=start_offset - 1), fs, slice_bytes=INT64_MAX):
        for rows in _headers(part):
            log_end = int(rows["last_offset"][-1]) + 1
            state = replay(state, rows[rows["last_offset"] >= start_offset])
    return state, log_end


def _headers(part: Slice) -> Iterator[Rows]:
    with opened(part) as descriptor:
        if descriptor is None:
            raise SourceChangedError(
                "the partition changed while it was read",
                partition=str(part.source.partition),
                path=str(part.path),
                advice="run again; a broker or another tool is at work in this directory",
            )
        scan = HeaderScan(part.path, part.start_position, size_bytes=part.end_position)
        try:
            for span in scan.spans(descriptor):
                yield span.rows
        except CorruptBatchError:
            if not part.segment.is_active:
                raise


def _indexed(source: Source, segments: Sequence[LiveSegment], fs: Fs) -> list[AbortedTxn] | None:
    """Return every indexed aborted transaction; None if an index is corrupt (the caller then replays the whole log)."""
    found: list[AbortedTxn] = []
    for segment in segments:
        if segment.ref.has_endless_transaction_index:
            return None
        path = segment.path(source.directory, SegmentFileKind.TRANSACTION_INDEX)
        try:
            entries = parse_transaction_index(fs.read_bytes(path), path=str(path)).transactions()
        except FileNotFoundError:
            continue
        except UnsupportedDataError:
            return None
        if any(not entry.first_offset < entry.last_offset >= segment.base_offset for entry in entries):
            return None
        found += entries
    return found
