"""Restore of a partition's files to their state before a run, with the steps that other changes also use.

    1  parts              create part files from the originals: link closed logs, copy other files
    2  originals          keep the files that this run removes as originals of this run
    3  insert             insert segments before the first segment, or after the last segment (`swap.insert`)
    4  commit             replace the segments of the undone run, group by group (`swap.commit`)
    5  remove             remove segments at the start, and empty ones at the end (`delete_segments.mark_deleted`)
    6  snapshots          put back whole producer snapshots, and remove the snapshots that the undone run made
    7  leader epochs      write the epochs from before the undone run, and the epochs added after it

The caller holds the lock of the log directory, and has finished interrupted replacements. The caller makes
`log_start_first` durable before step 3, and writes the other checkpoint entries after step 7.

Invariants: after a crash at any step, Sediment and a broker can load the directory, because every operation used here
guarantees this. Only closed logs share inodes with their originals, because a broker changes the active segment and the
indexes in place. The only exception is an active segment that a recovery had removed entirely: it also shares an inode.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PreparedSwap
from sediment.engine.directory.delete_segments import mark_deleted, remove_deleted
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import BackupLinks
from sediment.engine.directory.originals.catalogue import (
    Catalogue,
    OriginalFile,
    OriginalPartition,
    described,
    original_file,
    run_folder,
    segment_file_names,
)
from sediment.engine.directory.originals.history import History
from sediment.engine.directory.originals.kept_files import (
    begins_with_batch,
    foreign_entry,
    kept_files,
    regular_file,
)
from sediment.engine.directory.originals.restore_plan import (
    ORIGINALS_MISSING,
    Files,
    Refusal,
    RestoredFile,
    RestoredSegment,
    RestorePlan,
    merged_epochs,
    plan_restore,
)
from sediment.engine.directory.swap import commit, discard_parts, insert, replaced_files
from sediment.segment_io.errors import SedimentError, SourceChangedError
from sediment.segment_io.format.checkpoints import format_leader_epochs, parse_leader_epochs
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    SWAP_SUFFIX,
    Attempt,
    PartFile,
    PartSegment,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    part_file_name,
    segment_file_name,
)
from sediment.segment_io.fs import Fs, open_to_read, without_links
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.listing import LogListing, list_log

_SNAPSHOT = SegmentFileKind.SNAPSHOT
_COPIED_BYTES = 1 << 20
_ATTEMPT = "0"
_OF_DAMAGED_LOGS = ("recover", "restore")


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    partition: TopicPartition
    directory: Path
    entry: OriginalPartition
    folder: Path
    plan: RestorePlan

    def removed_names(self, fs: Fs) -> tuple[str, ...]:
        listing = list_log(self.partition, self.directory, fs)
        names = [name for group in _groups(self, listing, {}) for name in replaced_files(self.directory, group, fs)]
        for base in (*self.plan.removed, *self.plan.emptied):
            names += [segment_file_name(base, kind) for kind in SegmentFileKind if kind is not _SNAPSHOT]
        names += [*self.plan.stray_snapshots, *(each.file.name for each in self.plan.snapshots)]
        return tuple(name for name in dict.fromkeys(names) if fs.exists(self.directory / name))

    def new_names(self) -> tuple[str, ...]:
        files = [each for segment in self.plan.segments() for each in segment.files]
        return tuple(each.file.name for each in (*files, *self.plan.snapshots))


def listed_files(directory: Path, fs: Fs) -> dict[str, OriginalFile]:
    if not fs.is_directory(directory):
        return {}
    return {name: original_file(directory / name) for name in segment_file_names(directory, fs)}


def plan_partition_restore(
    catalogue: Catalogue,
    entry: OriginalPartition,
    live: Files,
    target: Path,
    fs: Fs,
    *,
    log_start_checkpoint: int | None,
) -> RestorePlan | Refusal:
    """Originals that are links, or that do not begin with a batch, are refused.

    A run that accepts damaged logs may have removed a log without a batch; its originals are put back as they are.
    """
    folder = run_folder(target, catalogue.run_id) / entry.partition
    foreign = foreign_entry(target, catalogue.run_id, entry.partition, tuple(file.name for file in entry.files))
    if foreign is not None:
        return Refusal(ORIGINALS_MISSING, f"{foreign} is a symbolic link or another kind of file, not an original")
    kept = kept_files(folder)
    plan = plan_restore(
        entry,
        live,
        kept,
        copies=_copies(live, kept, Path(entry.log_dir, entry.partition), folder, fs),
        is_done=catalogue.is_done,
        log_start_checkpoint=log_start_checkpoint,
    )
    if isinstance(plan, Refusal) or _accepts_damage(catalogue):
        return plan
    for segment in plan.segments():
        log = segment.files[0] if segment.files else None
        is_original = log is not None and log.is_kept and log.file.name.endswith(SegmentFileKind.LOG)
        if log is not None and is_original and not begins_with_batch(folder / log.file.name, segment.base_offset):
            return Refusal(ORIGINALS_MISSING, f"{log.file.name} does not begin with a batch of its segment")
    return plan


def _accepts_damage(catalogue: Catalogue) -> bool:
    """Return True for a run that may have kept a damaged log: a recovery, its undoing, or one told how to treat it."""
    return catalogue.command in _OF_DAMAGED_LOGS or any(
        argument.startswith("--on-corruption") for argument in catalogue.arguments
    )


def _copies(live: Files, kept: Files, directory: Path, folder: Path, fs: Fs) -> frozenset[str]:
    return frozenset(
        name
        for name, file in kept.items()
        if name in live
        and live[name] != file
        and (live[name].size_bytes, live[name].mtime_ns) == (file.size_bytes, file.mtime_ns)
        and fs.exists(directory / name)
        and original_file(directory / name) == live[name]
        and filecmp.cmp(directory / name, folder / name, shallow=False)  # `kept` has no links
    )


def restore_partition(
    restore: PartitionRestore, run_id: str, originals: BackupLinks | None, lock: DirectoryLock, fs: Fs
) -> None:
    directory, plan, partition = restore.directory, restore.plan, restore.partition
    epochs = _epochs_to_write(restore, fs)
    listing = list_log(partition, directory, fs)
    removed = restore.removed_names(fs)
    try:
        parts = {segment.base_offset: _prepare(segment, restore, run_id, fs) for segment in plan.segments()}
        snapshots = [_prepare_file(each, restore, run_id, fs) for each in plan.snapshots]
    except (SedimentError, OSError):
        discard_parts(directory, run_id, fs, attempt=_ATTEMPT)
        raise
    swap = PreparedSwap(partition, str(directory), _groups(restore, listing, parts), 0)
    if originals is not None:
        lock.check()
        prepared = [*(file for segment in parts.values() for file in segment.files), *snapshots]
        new = [original_file(directory / part.part_name, name=part.final_name) for part in prepared]
        originals.keep(directory, removed, new)
    first = min((segment.base_offset for segment in listing.segments), default=0)
    lower = [segment.base_offset for segment in plan.inserted if segment.base_offset < first]
    upper = [segment.base_offset for segment in plan.inserted if segment.base_offset >= first]
    order = [*reversed(lower), *upper]
    insert(partition, directory, [parts[base] for base in order], fs, before_segment=lock.check)
    commit(swap, fs, before_group=lock.check)
    lock.check()
    names = mark_deleted(directory, reversed(plan.emptied), fs)
    names += mark_deleted(directory, plan.removed, fs)
    remove_deleted(directory, names, fs)
    _settle_snapshots(restore, snapshots, fs)
    if epochs is not None:
        fs.replace_file(directory / LEADER_EPOCH_FILE, epochs)


# ---------------------------------------------------------------------------------------------------------------- parts
def _prepare(segment: RestoredSegment, restore: PartitionRestore, run_id: str, fs: Fs) -> PartSegment:
    files = (_prepare_file(each, restore, run_id, fs, may_link=not segment.is_active) for each in segment.files)
    return PartSegment(segment.base_offset, tuple(files))


def _prepare_file(
    each: RestoredFile, restore: PartitionRestore, run_id: str, fs: Fs, *, may_link: bool = True
) -> PartFile:
    parsed = parse_segment_file(each.file.name)
    assert parsed is not None, each.file.name
    part = restore.directory / part_file_name(parsed.base_offset, parsed.kind, Attempt(run_id, _ATTEMPT))
    source = (restore.folder if each.is_kept else restore.directory) / each.file.name
    fs.unlink(part, missing_ok=True)
    is_linked = not each.is_kept or (may_link and parsed.kind is SegmentFileKind.LOG)
    if is_linked:
        fs.link(source, part)
    else:
        fs.write_new(part, _chunks(source))
        fs.adopt_owner(part, source)
        fs.set_mtime_ns(part, each.file.mtime_ns)
    status = regular_file(part if is_linked else source)
    if each.is_kept and (status is None or described(each.file.name, status) != each.file):
        fs.unlink(part)
        raise SourceChangedError(
            "an original changed while it was put back",
            partition=restore.directory.name,
            path=str(source),
            advice="let no other program write to the originals, and run again",
        )
    return PartFile(part.name, each.file.name, each.file.size_bytes)


def _chunks(path: Path) -> Iterator[bytes]:
    with open(open_to_read(path, follow_links=False), "rb", buffering=0) as file:
        while chunk := file.read(_COPIED_BYTES):
            yield chunk


def _groups(restore: PartitionRestore, listing: LogListing, parts: dict[int, PartSegment]) -> tuple[CleanedGroup, ...]:
    sources = {segment.base_offset: segment for segment in listing.segments}
    return tuple(
        CleanedGroup(
            tuple(sources[base] for base in group.sources if base in sources),
            tuple(parts.get(segment.base_offset, PartSegment(segment.base_offset, ())) for segment in group.segments),
            CleanStats(),
        )
        for group in restore.plan.groups
    )


# ------------------------------------------------------------------------------------------------- snapshots and epochs
def _settle_snapshots(restore: PartitionRestore, parts: Iterable[PartFile], fs: Fs) -> None:
    directory = restore.directory
    found = (parse_segment_file(name) for name in restore.plan.stray_snapshots)
    names = mark_deleted(directory, [parsed.base_offset for parsed in found if parsed], fs, kinds=(_SNAPSHOT,))
    remove_deleted(directory, names, fs)
    prepared = list(parts)
    for part in prepared:
        fs.sync_file(directory / part.part_name)
        fs.rename(directory / part.part_name, directory / part.final_name)
    if prepared:
        fs.sync_directory(directory)


def _epochs_to_write(restore: PartitionRestore, fs: Fs) -> bytes | None:
    text = restore.entry.leader_epochs
    if text is None or not restore.plan.restores_epochs:
        return None
    path = restore.directory / LEADER_EPOCH_FILE
    before = text.encode(errors="surrogateescape")
    known = parse_leader_epochs(before, path=str(path))
    now = read_leader_epochs(fs, path)
    if now == known:
        return None
    wanted = merged_epochs(known, now or ()) if restore.plan.is_appended else known
    return before if wanted == known else format_leader_epochs(wanted)


@dataclass(frozen=True, slots=True)
class InterruptedRestore:
    """`new_logs` names `.log.swap` files that equal their originals."""

    run: Catalogue
    entry: OriginalPartition
    new_logs: frozenset[str]


def interrupted_restores(history: History, directory: Path, target: Path, fs: Fs) -> tuple[InterruptedRestore, ...]:
    # A restore also puts back a log that a recovery had cut, so the new log may have a torn end or a wrong checksum. A
    # load cannot distinguish such a log from a file that has lost data, so it refuses the partition. A new log with the
    # same bytes as its original is complete; every byte is compared, unless the log is a link to its original.
    runs = history.runs_of(str(without_links(directory.parent)), directory.name)
    by_id = {run.run_id: (run, entry) for run, entry in runs}
    found = []
    for restore, made in runs:
        if restore.restores not in by_id:
            continue
        run, entry = by_id[restore.restores]
        originals = run_folder(target, run.run_id) / entry.partition
        if foreign_entry(target, run.run_id, entry.partition, ()) is not None:
            continue
        names = [file.name for file in made.new_files or () if file.name.endswith(SegmentFileKind.LOG)]
        complete = (name + SWAP_SUFFIX for name in names if _is_equal(directory, originals, name, fs))
        if new_logs := frozenset(complete):
            found.append(InterruptedRestore(run, entry, new_logs))
    return tuple(found)


def _is_equal(directory: Path, originals: Path, name: str, fs: Fs) -> bool:
    new, original = directory / (name + SWAP_SUFFIX), originals / name
    entry = fs.entry(new)
    if entry is None or not entry.is_file or regular_file(original) is None:
        return False
    return new.samefile(original) or filecmp.cmp(new, original, shallow=False)
