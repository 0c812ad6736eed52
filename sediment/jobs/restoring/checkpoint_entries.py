"""Checkpoint entries of restored partitions, before their segments change and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sediment.engine.directory.originals.catalogue import Catalogue, OriginalPartition, offsets_by_file
from sediment.engine.directory.originals.restore import PartitionRestore
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import (
    read_checkpoints,
    read_offset_checkpoint,
    update_offset_checkpoint,
)
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.segment_end import find_segment_end

RECOVER = "recover"
_MAY_BE_ABSENT = (CLEANER_FILE, LOG_START_FILE)
"""Checkpoint files that may be missing: a missing file means the same as an empty file."""


def write_first_entries(run: Catalogue, log_dir: Path, restores: Sequence[PartitionRestore], fs: Fs) -> None:
    """Write the checkpoint entries that must be durable before the segments change."""
    now = offsets_by_file(read_checkpoints(log_dir, fs))
    cleaner = now[CLEANER_FILE] or {}
    starts = {each.partition: each.plan.log_start_first for each in restores if each.plan.moves_log_start}
    lowered = {
        each.partition: _lowest(cleaner.get(each.partition), each.entry.checkpoints.get(CLEANER_FILE))
        for each in restores
    }
    changed = {each.partition: each.entry for each in restores if not each.plan.is_empty}
    if changed and brings_back_unclean_logs(run, log_dir):
        mark_unclean(log_dir, changed, fs)
    _write_entries(log_dir, LOG_START_FILE, starts, fs)
    _write_entries(log_dir, CLEANER_FILE, lowered, fs)


def mark_unclean(log_dir: Path, entries: Mapping[TopicPartition, OriginalPartition], fs: Fs) -> None:
    """Lower recovery points and remove the marker of a clean stop, so that the next start verifies the logs."""
    recovery_points = offsets_by_file(read_checkpoints(log_dir, fs))[RECOVERY_POINT_FILE] or {}
    lowered = {
        partition: _lowest(recovery_points.get(partition), entry.checkpoints.get(RECOVERY_POINT_FILE))
        for partition, entry in entries.items()
    }
    fs.unlink(log_dir / CLEAN_SHUTDOWN_FILE, missing_ok=True)
    fs.sync_directory(log_dir)
    _write_entries(log_dir, RECOVERY_POINT_FILE, lowered, fs)


def write_last_entries(run: Catalogue, log_dir: Path, restores: Sequence[PartitionRestore], fs: Fs) -> None:
    """Restore the old checkpoint entries; remove a file without entries if the undone run created it."""
    starts = {each.partition: each.plan.log_start_last for each in restores if each.plan.moves_log_start}
    _write_entries(log_dir, LOG_START_FILE, starts, fs)
    cleaner = {each.partition: each.entry.checkpoints.get(CLEANER_FILE) for each in restores}
    _write_entries(log_dir, CLEANER_FILE, cleaner, fs)
    for name in (HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE):
        lowered = dict(_beyond_log_end(log_dir, name, restores, fs))
        _write_entries(log_dir, name, lowered, fs)
    were = [each.checkpoint_files for each in run.log_dirs if without_links(Path(each.path)) == without_links(log_dir)]
    for name in _MAY_BE_ABSENT:
        path = log_dir / name
        if were and name not in were[0] and read_offset_checkpoint(fs, path) == {}:
            fs.unlink(path)
            fs.sync_directory(log_dir)


def _beyond_log_end(
    log_dir: Path, name: str, restores: Sequence[PartitionRestore], fs: Fs
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield new entries for those that the undone run raised above the end of the restored log.

    An entry that was above it before the run shows a loss, and stays.
    """
    now = offsets_by_file(read_checkpoints(log_dir, fs))[name] or {}
    for each in restores:
        before, current = each.entry.checkpoints.get(name) or 0, now.get(each.partition, 0)
        if each.plan.is_empty or current <= before:
            continue
        listing = list_log(each.partition, log_dir / str(each.partition), fs)
        if not listing.segments:
            continue
        end, _ = find_segment_end(listing.path, listing.segments[-1], fs)
        if max(before, end) < current:
            yield each.partition, max(before, end)


def _write_entries(log_dir: Path, name: str, offsets: Mapping[TopicPartition, int | None], fs: Fs) -> None:
    entries = {partition: offset for partition, offset in offsets.items() if offset is not None}
    update_offset_checkpoint(fs, log_dir / name, entries, offsets.keys() - entries.keys(), like=log_dir / LOCK_FILE)


def brings_back_unclean_logs(run: Catalogue, log_dir: Path) -> bool:
    """Return True if undoing the run restores records that a recovery after an unclean stop has truncated."""
    stops = [each.clean_shutdown for each in run.log_dirs if without_links(Path(each.path)) == without_links(log_dir)]
    return run.command == RECOVER and not all(stops)


def _lowest(now: int | None, before: int | None) -> int | None:
    """Return the lower of two checkpoint entries; None means no entry, and counts as the lowest."""
    return None if now is None or before is None else min(now, before)
