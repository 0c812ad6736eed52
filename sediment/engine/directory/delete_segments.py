"""Removing the segments of a partition that retention lets go, in an order that a crash may cut off anywhere.

    roll                  an empty segment at the log end, with its producer snapshot, where every segment goes
    log start moved       by the caller, durably: no reader is promised an offset that goes
    leader epochs         cut to the new log start
    .deleted              producer snapshots, then logs and indexes ascending: the log tells what is left to do
    unlinked              or left to the next start, which removes them

Invariants: after a crash the log begins at the new log start or holds dead bytes below it, which the next run of the
same rules takes for what they are; a segment that stays is not touched; producers outlive their segments, because the
snapshots of those that stay do.

Source: kafka-log 03 §3, §4.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.leader_epochs import Epochs, truncate_from_start
from sediment.engine.directory.swap import mark_deleted, remove_deleted
from sediment.retention.policy import RetentionPlan
from sediment.segment_io.format.checkpoints import format_leader_epochs
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.producer_state import encode_snapshot

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

_ROLLED = (SegmentFileKind.SNAPSHOT, SegmentFileKind.TIME_INDEX, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.LOG)


def roll_empty(view: LogView, fs: Fs) -> None:
    """Make the empty segment at the log end offset that an append would roll, and the producer snapshot there.

    The `.log` comes last: until then a start removes the indexes as those of no log.  A snapshot that is there already,
    as a clean stop leaves it, stays as it is.

    Raises:
        OwnerNotKeptError: the files cannot be given the owner of the segments that are there.
    """
    directory, base_offset = view.listing.path, view.log_end_offset
    like = directory / segment_file_name(view.listing.segments[-1].base_offset, SegmentFileKind.LOG)
    snapshot = segment_file_name(base_offset, SegmentFileKind.SNAPSHOT)
    for name in rolled_files(view):
        fs.replace_file(directory / name, encode_snapshot(view.producers) if name == snapshot else b"", like=like)


def rolled_files(view: LogView) -> tuple[str, ...]:
    """Return the names of the files that `roll_empty` makes: the `.log` last."""
    names = {kind: segment_file_name(view.log_end_offset, kind) for kind in _ROLLED}
    if view.log_end_offset in view.listing.snapshots:
        del names[SegmentFileKind.SNAPSHOT]
    return tuple(names.values())


def expired_files(view: LogView, plan: RetentionPlan, fs: Fs) -> tuple[str, ...]:
    """Return the names of the files that `expire_log` removes, of those that are there."""
    directory = view.listing.path
    names = (segment_file_name(fate.segment.base_offset, kind) for fate in plan.deleted for kind in SegmentFileKind)
    return tuple(name for name in names if fs.exists(directory / name))


def expire_log(
    view: LogView, plan: RetentionPlan, fs: Fs, *, keep_deleted: bool = False, log_start_is_durable: bool = True
) -> None:
    """Remove the segments that `plan` lets go; where it rolls the active one, `roll_empty` has been done.

    The directory's lock must be held and nothing interrupted be left in `view.listing`.  With `keep_deleted` the files
    stay under their `.deleted` names.  Calling it again with a plan of what a crash left ends in the same directory.

    The log start checkpoint says `plan.log_start_offset` already, unless `log_start_is_durable` is False because a full
    disk had no room for it: then every segment goes durably before the next one, which makes room without leaving a
    gap, and the leader epochs follow.

    Raises:
        CorruptCheckpointError: the leader epochs are malformed; no segment was touched.
        OSError: as the filesystem says; the segments that are left have no gap.
    """
    directory = view.listing.path
    epochs = read_leader_epochs(fs, directory / LEADER_EPOCH_FILE)
    bases = [fate.segment.base_offset for fate in plan.deleted]
    if log_start_is_durable:
        _cut_epochs(directory / LEADER_EPOCH_FILE, epochs, plan.log_start_offset, fs)
    # Snapshots first, unlike Kafka: behind a crash the logs still say that they have to go, and no start needs them.
    names = mark_deleted(directory, bases, fs, kinds=(SegmentFileKind.SNAPSHOT,))
    for some in [bases] if log_start_is_durable else [[base] for base in bases]:
        names += mark_deleted(directory, some, fs)
        if not keep_deleted:
            remove_deleted(directory, names, fs)
    if not log_start_is_durable:
        _cut_epochs(directory / LEADER_EPOCH_FILE, epochs, plan.log_start_offset, fs)


def settle_epochs(view: LogView, fs: Fs) -> None:
    """Cut the leader epochs to the log start, where a run that met a full disk deleted segments and could not.

    Raises:
        CorruptCheckpointError: the leader epochs are malformed.
        OSError: as the filesystem says.
    """
    path = view.listing.path / LEADER_EPOCH_FILE
    _cut_epochs(path, read_leader_epochs(fs, path), view.log_start_offset, fs)


def _cut_epochs(path: Path, epochs: Epochs | None, log_start_offset: int, fs: Fs) -> None:
    if epochs is not None and (wanted := truncate_from_start(epochs, log_start_offset)) != epochs:
        fs.replace_file(path, format_leader_epochs(wanted))


def segments_after(view: LogView, plan: RetentionPlan) -> tuple[int, ...]:
    """Base offsets of the segments that the log has once `plan` is carried out."""
    kept = tuple(fate.segment.base_offset for fate in plan.kept)
    return (*kept, view.log_end_offset) if plan.rolls_active else kept
