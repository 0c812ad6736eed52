"""Recovery of segments during a load: verify batches, rebuild indexes, and cut off incomplete bytes at the end.

    recover_unverified   after an unclean stop, every segment from the recovery point on      kafka-log 05 §3
    check_trusted        after a clean stop, the end of the log, or on request every batch
    recover_segment      one segment: scan, leader epochs, snapshot, indexes, cut              kafka-log 05 §4

Invariants
* Segments after a cut are removed before the cut, and the offset index is written last.  So the next load after a crash
  in between completes the work.
* From a trusted segment only a tail without a batch is cut off; other corruption is reported and stays.

Source: Kafka's LogLoader.recoverLog, LogSegment.recover.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.engine.directory.interrupted_swaps import Repair
from sediment.engine.directory.leader_epochs import assign, latest_epoch
from sediment.engine.directory.load_state import LoadCorruption, LoadingSegment, LoadState
from sediment.engine.directory.segment_end import end_by_headers
from sediment.segment_io.errors import CorruptDataError, IndexOffsetOverflowError, UnsupportedDataError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.segment_io.format.names import SegmentFileKind, part_file_name
from sediment.segment_io.format.transaction_index import encode_transaction_index
from sediment.segment_io.segment.reader import Rows
from sediment.segment_io.segment.recovery_scan import SegmentScan, find_batches_after

_COPIED_BYTES = 1 << 20
_OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX = (
    SegmentFileKind.OFFSET_INDEX,
    SegmentFileKind.TIME_INDEX,
    SegmentFileKind.TRANSACTION_INDEX,
)
_MOST_BATCHES_AHEAD = 1 << 18


class _TooManyBatchesError(Exception):
    """A scan ahead of its turn would have to hold too many batches in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class _ScannedAhead:
    """A scan made before the earlier segments were verified, with the batches of producers, in BATCH_ROW tables."""

    scan: SegmentScan
    tables: tuple[Rows, ...]

    def after_epoch(self, known_leader_epoch: int) -> SegmentScan:
        """Return the scan in the form that it has if that leader epoch was known before."""
        epochs = tuple(found for found in self.scan.leader_epochs if found[0] > known_leader_epoch)
        return replace(self.scan, leader_epochs=epochs)


def recover_unverified(state: LoadState) -> None:
    """Verify the segment with the recovery point and all later ones; end the log before the first corrupt batch.

    Source: kafka-log 05 §3.
    """
    first = state.unverified_from([segment.base_offset for segment in state.segments])
    unverified = state.segments[first:]
    threads = min(state.threads, len(unverified))
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="sediment-verify") as pool:
        scans: deque[Future[_ScannedAhead | None]] = deque()
        for index, segment in enumerate(unverified):
            if threads > 1:
                following = unverified[index + len(scans) : index + threads]
                scans.extend(pool.submit(_scan_ahead, state, one) for one in following)
            ahead = scans.popleft().result() if scans else None
            if recover_segment(state, segment, cut=True, reason="it did not match its log", ahead=ahead):
                for scan in scans:
                    scan.cancel()
                return


def _scan_ahead(state: LoadState, segment: LoadingSegment) -> _ScannedAhead | None:
    """Return a scan with its batches of producers; None if the segment must be scanned in its turn.

    That is so if the scan finds corruption, or too many batches to hold in memory.
    """
    tables: list[Rows] = []

    def keep(rows: Rows) -> None:
        if len(rows) + sum(map(len, tables)) > _MOST_BATCHES_AHEAD:
            raise _TooManyBatchesError
        tables.append(rows.copy())

    try:
        scan = state.scan(segment, keep, NO_LEADER_EPOCH, stop_if_offsets_go_back=True)
    except (CorruptDataError, UnsupportedDataError, _TooManyBatchesError):
        return None
    return _ScannedAhead(scan, tuple(tables))


def recover_segment(
    state: LoadState, segment: LoadingSegment, *, cut: bool, reason: str, ahead: _ScannedAhead | None = None
) -> bool:
    """Verify one segment and rebuild its indexes; return True if its end was cut off.

    With `cut` the log ends before the first bad batch.  The loaded segments after this one are removed first, so after
    a crash in between, start-up finds the corruption again.  Without `cut` only a tail without a batch is cut off;
    other corruption stays, and the indexes end before it.

    Source: kafka-log 05 §4.
    """
    manager = state.producer_manager()
    counted = state.snapshots.offsets()
    manager.rebuild(
        [state.replayed(other) for other in state.segments],
        state.log_start_checkpoint,
        segment.base_offset,
        reload_from_clean_shutdown=False,
    )
    manager.forget_completed()
    if ahead is None:
        scan = state.scan(segment, manager.replay_aborted, latest_epoch(state.epochs), stop_if_offsets_go_back=cut)
    else:
        scan = ahead.after_epoch(latest_epoch(state.epochs))
        with state.naming_partition():
            for rows in ahead.tables:
                manager.replay_aborted(rows)
    is_corrupt = scan.good_bytes < segment.ref.log_bytes
    cuts = is_corrupt and (cut or _is_torn_tail(state, segment, scan))
    if is_corrupt and not cuts:
        _note_corruption(state, segment, scan)
        state.snapshots.restore(counted)
    else:
        epochs = state.epochs
        for epoch, start_offset in scan.leader_epochs:
            epochs = assign(epochs, epoch, start_offset)
        state.put_epochs(epochs)
        manager.map_end_offset = scan.producers_end_offset
        manager.take_snapshot()
    if cuts and cut and segment in state.segments:
        why = f"the log ends at offset {scan.next_offset}, in segment {segment.base_offset}"
        state.remove_segments(state.segments[state.segments.index(segment) + 1 :], why)
    aborted = encode_transaction_index(manager.state.aborted())
    if aborted or segment.ref.transaction_index_bytes is not None:
        state.put(segment, _TRANSACTION_INDEX, aborted, reason)
    state.put(segment, _TIME_INDEX, scan.time_index, reason)
    state.put(segment, _OFFSET_INDEX, scan.offset_index, reason)
    segment.scan = scan
    if cuts:
        _cut(state, segment, scan)
    state.fs.sync_file(state.path(segment))
    return cuts


def _cut(state: LoadState, segment: LoadingSegment, scan: SegmentScan) -> None:
    """Cut a log after its last good batch.

    The file is truncated in place, because a copy of the good batches could need a gigabyte that the disk does not
    have.  If the file has a second link, a backup of a run, it is replaced instead, so the link keeps its bytes.
    """
    path, before = state.path(segment), segment.ref.log_bytes
    lost = find_batches_after(path, scan.good_bytes, before, scan.next_offset, state.fs)
    why = f"{scan.stop}; the log ends at offset {scan.next_offset}"
    if lost.good_batches:
        why += f", and {lost.good_batches} good batches after it, up to offset {lost.last_offset}, were cut off too"
    if path.stat().st_nlink > 1:
        _replace_by_copy(state, path, scan.good_bytes)
    else:
        state.fs.truncate(path, scan.good_bytes)
    state.repairs.append(Repair(f"cut from {before} to {scan.good_bytes} bytes", path.name, why))
    segment.ref = replace(segment.ref, log_bytes=scan.good_bytes, mtime_ns=state.mtime_ns(path))


def _replace_by_copy(state: LoadState, path: Path, size_bytes: int) -> None:
    part = path.with_name(part_file_name(int(path.stem), SegmentFileKind.LOG, "recover", "0"))
    state.fs.unlink(part, missing_ok=True)
    state.fs.write_new(part, _beginning(path, size_bytes))
    state.fs.adopt_owner(part, path)
    state.fs.sync_file(part)
    state.fs.rename(part, path)
    state.fs.sync_directory(path.parent)


def check_trusted(state: LoadState) -> None:
    """Check the log after a clean stop: with `verify_trusted` every batch, otherwise its end.

    A broker does not check the end: it finds the last complete batch, and appends after the torn bytes that follow.
    """
    for segment in state.segments:
        if segment.scan is not None:
            continue
        is_last = segment.following_base_offset is None
        is_torn = is_last and end_by_headers(state, segment)[1] < segment.ref.log_bytes
        if not (is_torn or state.verify_trusted):
            continue
        try:
            scan = state.scan(segment, None, 0, stop_if_offsets_go_back=False)
        except IndexOffsetOverflowError as error:
            _note_overflow(state, segment, error)
            continue
        if _is_torn_tail(state, segment, scan):
            if is_last:
                recover_segment(state, segment, cut=False, reason="it did not match its log")
            else:
                _cut(state, segment, scan)
                state.fs.sync_file(state.path(segment))
        elif scan.good_bytes < segment.ref.log_bytes:
            _note_corruption(state, segment, scan)


def _is_torn_tail(state: LoadState, segment: LoadingSegment, scan: SegmentScan) -> bool:
    """Return True if the bytes after the good batches contain no batch, so cutting them off loses nothing.

    If another segment follows, it also has to begin at the next offset.
    """
    if not scan.is_torn or segment.following_base_offset not in (None, scan.next_offset):
        return False
    path = state.path(segment)
    return not find_batches_after(path, scan.good_bytes, segment.ref.log_bytes, scan.next_offset, state.fs).good_batches


def _note_corruption(state: LoadState, segment: LoadingSegment, scan: SegmentScan) -> None:
    path = state.path(segment)
    after = find_batches_after(path, scan.good_bytes, segment.ref.log_bytes, scan.next_offset, state.fs)
    what = f"{scan.stop}; {after.good_batches} good batches follow in this segment"
    state.corruption.append(LoadCorruption(segment.name(), scan.good_bytes, scan.next_offset, what))


def _note_overflow(state: LoadState, segment: LoadingSegment, overflow: IndexOffsetOverflowError) -> None:
    state.corruption.append(LoadCorruption(segment.name(), overflow.position or 0, overflow.offset or 0, overflow.what))


def _beginning(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the first `size_bytes` of a file, in chunks."""
    with path.open("rb") as file:
        while size_bytes > 0 and (chunk := file.read(min(size_bytes, _COPIED_BYTES))):
            yield chunk
            size_bytes -= len(chunk)
