"""Recovery of one segment during a load: verify batches, rebuild indexes, and cut off an incomplete or corrupt end.

    verify_segment   1 producers   restore the producers at the base of the segment (`directory.producer_state_manager`)
                     2 scan        verify every batch up to the first bad one (`segment.recovery_scan`)
                     3 state       update the leader epochs and write a snapshot, from the good batches
    repair_segment   4 indexes     write the transaction index, the time index, then the offset index; `recovery_scan`
                                   makes their entries, and `index_appends.end_time_index` adds the last time entry
                     5 cut         cut off the bytes after the last good batch

Invariants
* The offset index is written last, so if a crash interrupts the recovery, the next load completes it.
* In a trusted segment, only a tail without a batch is cut off; other corruption is reported and left in place.

Source: Kafka's LogLoader.recoverSegment, LogSegment.recover (kafka-log 05 §4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.engine.directory.leader_epochs import assign, latest_epoch
from sediment.engine.directory.loading.load_state import LoadCorruption, LoadingSegment, LoadState, end_by_headers
from sediment.engine.directory.missing_records import LogCut
from sediment.engine.directory.repair import Repair
from sediment.segment_io.format.names import Attempt, SegmentFileKind, part_file_name
from sediment.segment_io.format.transaction_index import AbortedTxn, encode_transaction_index
from sediment.segment_io.segment.reader import Rows
from sediment.segment_io.segment.recovery_scan import SegmentScan, find_batches_after

NO_MATCH = "it did not match its log"
"""The reason for rebuilding the indexes of a verified segment."""

_COPIED_BYTES = 1 << 20
_OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX = (
    SegmentFileKind.OFFSET_INDEX,
    SegmentFileKind.TIME_INDEX,
    SegmentFileKind.TRANSACTION_INDEX,
)


@dataclass(frozen=True, slots=True, eq=False)
class ScannedAhead:
    scan: SegmentScan
    tables: tuple[Rows, ...]

    def after_epoch(self, known_leader_epoch: int) -> SegmentScan:
        epochs = tuple(found for found in self.scan.leader_epochs if found[0] > known_leader_epoch)
        return replace(self.scan, leader_epochs=epochs)


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedSegment:
    scan: SegmentScan
    aborted: tuple[AbortedTxn, ...]
    cuts: bool


def recover_segment(state: LoadState, segment: LoadingSegment, *, cut: bool, reason: str) -> None:
    """Source: kafka-log 05 §4."""
    verified = verify_segment(state, segment, cut=cut)
    if verified.cuts:
        announce_cut(state, segment, verified.scan, ())
    repair_segment(state, segment, verified, reason)


def announce_cut(
    state: LoadState, segment: LoadingSegment, scan: SegmentScan, following: Sequence[LoadingSegment]
) -> None:
    least_offset = segment.base_offset if scan.goes_back else scan.next_offset
    size_bytes = segment.ref.log_bytes
    lost = find_batches_after(state.path(segment), scan.good_bytes, size_bytes, least_offset, state.fs)
    reached = [end_by_headers(state, other)[0] for other in following[-1:]]
    cut = LogCut(
        name=segment.name(),
        log_end_offset=scan.next_offset,
        stop=scan.stop or "",
        good_batches=lost.good_batches,
        last_offset=lost.last_offset,
        removed=tuple(other.name() for other in following),
        removed_bytes=sum(other.ref.log_bytes for other in following),
        next_offset=max(scan.next_offset, lost.last_offset + 1, *reached),
        following_offset=None if following else segment.following_base_offset,
    )
    if state.on_cut is not None:
        state.on_cut(cut)
    state.cuts[cut.name] = cut


def verify_segment(
    state: LoadState, segment: LoadingSegment, *, cut: bool, ahead: ScannedAhead | None = None
) -> VerifiedSegment:
    """With `cut`, the log ends before the first bad batch.

    Without `cut`, only a tail without a batch is cut off; other corruption is recorded, and the indexes end before it.
    """
    manager = state.producer_manager()
    counted = state.snapshots.offsets()
    manager.rebuild(
        state.all_replayed(),
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
    cuts = is_corrupt and (cut or is_torn_tail(state, segment, scan))
    if is_corrupt and not cuts:
        note_corruption(state, segment, scan)
        state.snapshots.restore(counted)
    else:
        epochs = state.epochs
        for epoch, start_offset in scan.leader_epochs:
            epochs = assign(epochs, epoch, start_offset)
        state.put_epochs(epochs)
        manager.map_end_offset = scan.producers_end_offset
        manager.take_snapshot()
    return VerifiedSegment(scan, manager.state.aborted(), cuts)


def repair_segment(state: LoadState, segment: LoadingSegment, verified: VerifiedSegment, reason: str) -> None:
    scan = verified.scan
    aborted = encode_transaction_index(verified.aborted)
    if aborted or segment.ref.transaction_index_bytes is not None:
        state.put(segment, _TRANSACTION_INDEX, aborted, reason)
    state.put(segment, _TIME_INDEX, scan.time_index, reason)
    state.put(segment, _OFFSET_INDEX, scan.offset_index, reason)
    segment.scan = scan
    if verified.cuts:
        cut_log(state, segment, scan)
    state.fs.sync_file(state.path(segment))


def cut_log(state: LoadState, segment: LoadingSegment, scan: SegmentScan) -> None:
    """The file is truncated in place, because the disk may not have space for a copy of the good batches.

    If the file has a second link, this link is the backup of a run. The file is then replaced instead, so that the
    backup keeps its bytes. A symbolic link is replaced too, because its target may be any file of the machine.
    """
    path, before = state.path(segment), segment.ref.log_bytes
    why = f"{scan.stop}; the log ends at offset {scan.next_offset}"
    lost = state.cuts.get(segment.name())
    if lost is not None and lost.good_batches:
        why += f", and {lost.good_batches} good batches after it, up to offset {lost.last_offset}, were cut off too"
    if state.fs.has_other_names(path):
        _replace_by_copy(state, path, scan.good_bytes)
    else:
        state.fs.truncate(path, scan.good_bytes)
    state.repairs.append(Repair(f"cut from {before} to {scan.good_bytes} bytes", path.name, why))
    segment.ref = replace(segment.ref, log_bytes=scan.good_bytes, mtime_ns=state.mtime_ns(path))


def _replace_by_copy(state: LoadState, path: Path, size_bytes: int) -> None:
    part = path.with_name(part_file_name(int(path.stem), SegmentFileKind.LOG, Attempt("recover", "0")))
    state.fs.unlink(part, missing_ok=True)
    state.fs.write_new(part, _beginning(path, size_bytes))
    state.fs.adopt_owner(part, path)
    state.fs.sync_file(part)
    state.fs.rename(part, path)
    state.fs.sync_directory(path.parent)


def is_torn_tail(state: LoadState, segment: LoadingSegment, scan: SegmentScan) -> bool:
    """If another segment follows, that segment must begin at the next offset."""
    if not scan.is_torn or segment.following_base_offset not in (None, scan.next_offset):
        return False
    path = state.path(segment)
    return not find_batches_after(path, scan.good_bytes, segment.ref.log_bytes, scan.next_offset, state.fs).good_batches


def note_corruption(state: LoadState, segment: LoadingSegment, scan: SegmentScan) -> None:
    path = state.path(segment)
    after = find_batches_after(path, scan.good_bytes, segment.ref.log_bytes, scan.next_offset, state.fs)
    what = f"{scan.stop}; {after.good_batches} good batches follow in this segment"
    state.corruption.append(LoadCorruption(segment.name(), scan.good_bytes, scan.next_offset, what))


def _beginning(path: Path, size_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while size_bytes > 0 and (chunk := file.read(min(size_bytes, _COPIED_BYTES))):
            yield chunk
            size_bytes -= len(chunk)
