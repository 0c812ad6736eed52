"""Truncation of a live log, to an offset or completely (kafka-log 04 §10).

1  the new offsets are computed and checked before any file changes
2  segments above the offset are removed, the last one first
3  the segment that contains the offset is cut, with its indexes (`Segment.truncate_to`)
4  offsets, leader epochs and producers are updated; `directory.producer_state_manager` rebuilds the producers from
   snapshots and batches

    offset not below the log end     only epochs that begin there are removed (`leader_epochs.truncate_from_end`)
    offset below the first segment   the whole log is emptied (`truncate_fully`): all snapshots and epochs are removed
    a segment begins at the offset   this segment is kept, but emptied
    log end                          it becomes the offset itself, even if the last batch ends below the offset
    cleaner checkpoint               `log_manager` lowers it (`cleaner_checkpoints`)
"""

from __future__ import annotations

from sediment.engine.directory.leader_epochs import truncate_from_end
from sediment.engine.directory.producer_state_manager import ProducerStateManager, ReplayedSegment, Snapshots
from sediment.engine.live.log.local_log import LocalLog
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.producer_state import ProducerState


def truncate_to(log: LocalLog, offset: int) -> bool:
    """Truncate the log, under its lock, to end at `offset`; return False if it already ends at `offset` or below."""
    if offset >= log.offsets.log_end:
        log.put_epochs(truncate_from_end(log.epochs, log.offsets.log_end))
        return False
    log.truncations += 1
    if log.segments.first_base_offset > offset:
        truncate_fully(log, offset, None)
        return True
    removed = [base for base in log.segments.base_offsets if base > offset]
    if removed:
        log.remove_segments(removed[::-1])
    log.segments.active.truncate_to(offset, now_ms=log.clock())
    log.offsets = log.offsets.truncated_to(offset)
    log.put_epochs(truncate_from_end(log.epochs, offset))
    _rebuild_producers(log, offset)
    return True


def truncate_fully(log: LocalLog, offset: int, log_start_offset: int | None) -> None:
    """The caller holds the lock."""
    offsets = log.offsets.emptied_at(offset, log_start_offset)
    log.truncations += 1
    snapshots = sorted(log.snapshots)
    log.remove_segments(log.segments.base_offsets[::-1], snapshots=False)
    for snapshot in snapshots:
        log.fs.unlink(log.directory / segment_file_name(snapshot, SegmentFileKind.SNAPSHOT), missing_ok=True)
    log.snapshots.clear()
    log.add_segment(offset).reserve_indexes()
    log.put_epochs(())
    log.offsets = offsets
    log.set_producers(ProducerState.at(offset))
    log.last_snapshot_offset = 0
    log.write_snapshot(offset, synced=True)


def _rebuild_producers(log: LocalLog, end_offset: int) -> None:
    """Source: kafka-log 05 §6."""
    found = list_log(log.partition, log.directory, log.fs).snapshots
    snapshots = Snapshots(log.directory, found, log.fs, like=log.segments.active.path, repairs=[])
    manager = ProducerStateManager(snapshots, now_ms=log.clock(), expiration_ms=log.producers.expiration_ms)
    manager.rebuild(
        [ReplayedSegment(segment.base_offset, segment.path(), segment.size_bytes, log.fs) for segment in log.segments],
        log.offsets.log_start,
        end_offset,
        reload_from_clean_shutdown=False,
    )
    snapshots.delete_dropped()
    log.set_snapshots(snapshots.offsets())
    log.set_producers(manager.state)
