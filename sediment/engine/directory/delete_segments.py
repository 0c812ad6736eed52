"""Deletion of segments, in an order that is safe if a crash interrupts any step.

`expire_log` deletes the segments past their retention limits:

    1  roll               if every segment will be deleted, create an empty one and a snapshot at the log end
    2  log start raised   the caller raises it durably, so that readers are not offered a deleted offset
    3  leader epochs      truncate them to the new log start
    4  .deleted           rename producer snapshots, then logs with their indexes, in ascending order of base offsets
    5  unlinked           unlink the renamed files, or leave them for the next start, which removes them

Invariants: after a crash, the log begins at the new log start, or still contains expired segments below the new log
start. A kept segment is not changed. Producer state survives, because each kept segment keeps its snapshot.

Source: kafka-log 03 §3, §4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.leader_epochs import Epochs, truncate_from_start
from sediment.retention.policy import RetentionPlan
from sediment.segment_io.format.checkpoints import format_leader_epochs
from sediment.segment_io.format.names import (
    DELETED_SUFFIX,
    INDEX_KINDS,
    LEADER_EPOCH_FILE,
    SegmentFileKind,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.producer_snapshots import encode_snapshot

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

_LOG_AND_INDEXES = (SegmentFileKind.LOG, *INDEX_KINDS)
_ROLLED = (SegmentFileKind.SNAPSHOT, SegmentFileKind.TIME_INDEX, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.LOG)


def mark_deleted(
    directory: Path, base_offsets: Iterable[int], fs: Fs, *, kinds: Sequence[SegmentFileKind] = _LOG_AND_INDEXES
) -> tuple[str, ...]:
    """Rename the files of segments to `.deleted`, segment by segment in the given order, and sync the directory.

    Pass segments at the start of a log in ascending order, and segments at its end in descending order, so that a crash
    leaves no gap. The log of a segment is renamed before its indexes. If only the log was renamed, the next start
    removes the indexes; if only an index was renamed, the next start would rebuild it.

    Source: kafka-log 03 §3, 05 §3 step 2.
    """
    renamed = []
    for base_offset in base_offsets:
        for kind in kinds:
            path = directory / segment_file_name(base_offset, kind)
            if fs.exists(path):
                fs.rename(path, path.with_name(path.name + DELETED_SUFFIX))
                renamed.append(path.name + DELETED_SUFFIX)
    if renamed:
        fs.sync_directory(directory)
    return tuple(renamed)


def remove_deleted(directory: Path, names: Iterable[str], fs: Fs) -> None:
    """Unlink files that `mark_deleted` renamed; the next start removes any that remain."""
    for name in names:
        fs.unlink(directory / name, missing_ok=True)


def roll_empty(view: LogView, fs: Fs) -> None:
    """Create an empty segment and a producer snapshot at the log end offset, as in a roll.

    The `.log` is written last; without it, the next start removes the indexes as orphans. An existing snapshot, for
    example from a clean stop, is not changed.
    """
    directory, base_offset = view.listing.path, view.log_end_offset
    like = directory / segment_file_name(view.listing.segments[-1].base_offset, SegmentFileKind.LOG)
    snapshot = segment_file_name(base_offset, SegmentFileKind.SNAPSHOT)
    for name in rolled_files(view):
        fs.replace_file(directory / name, encode_snapshot(view.producers) if name == snapshot else b"", like=like)


def rolled_files(view: LogView) -> tuple[str, ...]:
    names = {kind: segment_file_name(view.log_end_offset, kind) for kind in _ROLLED}
    if view.log_end_offset in view.listing.snapshots:
        del names[SegmentFileKind.SNAPSHOT]
    return tuple(names.values())


def expired_files(view: LogView, plan: RetentionPlan, fs: Fs) -> tuple[str, ...]:
    directory = view.listing.path
    names = (
        segment_file_name(decision.segment.base_offset, kind) for decision in plan.deleted for kind in SegmentFileKind
    )
    return tuple(name for name in names if fs.exists(directory / name))


def expire_log(
    view: LogView, plan: RetentionPlan, fs: Fs, *, keep_deleted: bool = False, log_start_is_durable: bool = True
) -> None:
    """The directory's lock must be held, and `view.listing` must not contain files of interrupted changes.

    After a crash, a second call with a new plan leads to the same result.

    The log start checkpoint must already be at `plan.log_start_offset`. If the disk was too full to write this
    checkpoint, pass `log_start_is_durable=False`. Each segment is then deleted durably before the next one; this frees
    space and leaves no gap. The leader epochs are truncated last.
    """
    directory = view.listing.path
    epochs = read_leader_epochs(fs, directory / LEADER_EPOCH_FILE)
    bases = [decision.segment.base_offset for decision in plan.deleted]
    if log_start_is_durable:
        _truncate_epochs(directory / LEADER_EPOCH_FILE, epochs, plan.log_start_offset, fs)
    # Unlike Kafka, remove the snapshots first: after a crash, the remaining logs show which segments are still to be
    # deleted.  No start needs these snapshots.
    names = mark_deleted(directory, bases, fs, kinds=(SegmentFileKind.SNAPSHOT,))
    for some in [bases] if log_start_is_durable else [[base] for base in bases]:
        names += mark_deleted(directory, some, fs)
        if not keep_deleted:
            remove_deleted(directory, names, fs)
    if not log_start_is_durable:
        _truncate_epochs(directory / LEADER_EPOCH_FILE, epochs, plan.log_start_offset, fs)


def settle_epochs(view: LogView, fs: Fs) -> None:
    """Truncate the leader epochs to the log start, if an earlier run could not do so because the disk was full."""
    path = view.listing.path / LEADER_EPOCH_FILE
    _truncate_epochs(path, read_leader_epochs(fs, path), view.log_start_offset, fs)


def _truncate_epochs(path: Path, epochs: Epochs | None, log_start_offset: int, fs: Fs) -> None:
    if epochs is not None and (wanted := truncate_from_start(epochs, log_start_offset)) != epochs:
        fs.replace_file(path, format_leader_epochs(wanted))


def bases_after(view: LogView, plan: RetentionPlan) -> tuple[int, ...]:
    kept = tuple(decision.segment.base_offset for decision in plan.kept)
    return (*kept, view.log_end_offset) if plan.rolls_active else kept
