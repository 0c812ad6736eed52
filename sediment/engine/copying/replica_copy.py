"""The copy of one replica into a folder of a clone, by one task or by several.

    whole    one task lists the replica's files, copies them, and lists them again
    split    the driver lists the files and divides them into pieces; for each piece, a task copies its files into one
             shared folder; the task of the partition takes over this folder, and lists the files again

A piece consists of whole files, because the manifest has one digest for each file.

Invariant: an attempt takes over a shared folder only if the folder contains all files of all pieces; any other file in
the folder is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.engine.copying.earlier_copy import EarlierFiles
from sediment.engine.copying.partition_copy import (
    CopiedFile,
    CopyMethod,
    CopyRules,
    PartitionCopy,
    closed_files,
    copy_partition,
    in_pieces,
)
from sediment.engine.directory.output import Publisher
from sediment.engine.replicas import Replica
from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.format.layout import MAX_SEGMENT_BYTES
from sediment.segment_io.format.names import (
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    PART_SUFFIX,
    SegmentFileKind,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.stores import Store, StoredFile

PRIVATE_FOLDER = 0o700
"""The permissions of the folder while a task works in it."""

_INDEXES = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX)
_LEFT_BEHIND = (DELETED_SUFFIX, PART_SUFFIX)


@dataclass(frozen=True, slots=True)
class ReplicaCopy:
    """`closed` names the files that may be linked; `earlier` are the files of the partition in the earlier clone."""

    replica: Replica
    files: Mapping[str, StoredFile]
    closed: frozenset[str]
    to: Path
    folder: str
    run_id: str
    earlier: EarlierFiles | None
    rules: CopyRules

    def weight(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def copied(self, attempt: str) -> tuple[CopiedFile, ...]:
        work = PartitionCopy(
            source=self.replica.directory.store,
            folder=str(self.replica.partition),
            files=self.files,
            target=self.folder,
            closed=self.closed,
            earlier=self.earlier,
            rules=self.rules,
            folder_mode=PRIVATE_FOLDER,
        )
        publisher = Publisher(Store(str(self.to)), self.run_id)
        return copy_partition(work, publisher, attempt=attempt, on_bytes=_ignore)

    def pieces(self) -> list[ReplicaCopy]:
        pieces = in_pieces(self.files, self.files)
        return [replace(self, files={name: self.files[name] for name in names}) for names in pieces]

    def check_listing(self, fs: Fs) -> None:
        if files_to_copy(self.replica.listed_again(), fs).keys() != self.files.keys():
            raise SourceChangedError(
                "files were added or removed while the partition was cloned",
                partition=str(self.replica.partition),
                path=self.replica.shown,
                advice="stop the broker, or clone a snapshot or a copy; a clone takes no lock on its source",
            )


@dataclass(frozen=True, slots=True)
class CopiedPieces:
    copy: ReplicaCopy
    files: tuple[CopiedFile, ...]

    def taken_over(self, folder: str, fs: Fs) -> bool:
        # A late attempt of a piece may have made the folder again. The folder then lacks the other pieces, and is
        # removed.
        target = self.copy.to / folder
        try:
            fs.rename(self.copy.to / self.copy.folder, target)
        except FileNotFoundError:
            return False
        wanted = {
            each.file.name.rpartition("/")[2]: each.file.size_bytes
            for each in self.files
            if each.method is not CopyMethod.HELD
        }
        found = {entry.name: entry.size_bytes for entry in fs.scan(target)}
        if wanted.items() - found.items():
            shutil.rmtree(target)
            return False
        for name in found.keys() - wanted.keys():
            fs.unlink(target / name)
        return True


def replica_copy(
    replica: Replica, fs: Fs, *, to: Path, folder: str, run_id: str, earlier: EarlierFiles | None, rules: CopyRules
) -> ReplicaCopy:
    files = files_to_copy(replica, fs)
    closed = closed_files(files, below_offset=_linkable_end(replica.checkpoints))
    return ReplicaCopy(replica, files, closed, to, folder, run_id, earlier, rules)


def files_to_copy(replica: Replica, fs: Fs) -> dict[str, StoredFile]:
    """Files of an interrupted replacement are also copied, and the load of the copy completes or undoes it.

    After an unclean stop, the active segment's indexes may still be preallocated. These indexes are not copied, and
    neither is an index larger than any that a broker opens; the load of the copy rebuilds them.
    """
    entries = {entry.name: entry for entry in replica.fs(fs).scan(replica.path) if entry.is_file}
    parsed = {name: found for name in entries if (found := parse_segment_file(name)) is not None}
    logs = [file.base_offset for file in parsed.values() if file.kind is SegmentFileKind.LOG and not file.state]
    active = max(logs, default=-1)
    is_trusted = is_loaded_unverified(replica.checkpoints)
    left_out = {
        name
        for name, file in parsed.items()
        if file.state in _LEFT_BEHIND
        or (
            file.kind in _INDEXES
            and (entries[name].size_bytes > MAX_SEGMENT_BYTES or (file.base_offset == active and not is_trusted))
        )
    }
    wanted = (parsed.keys() - left_out) | ({LEADER_EPOCH_FILE} & entries.keys())
    return {name: StoredFile(entries[name].size_bytes, entries[name].mtime_ns) for name in sorted(wanted)}


def is_loaded_unverified(checkpoints: PartitionCheckpoints) -> bool:
    return checkpoints.clean_shutdown or checkpoints.recovery_point is None


def _linkable_end(checkpoints: PartitionCheckpoints) -> int:
    bounds = [each for each in (checkpoints.recovery_point, checkpoints.high_watermark) if each is not None]
    return min(bounds, default=0)


def _ignore(_count: int) -> None:
    return None
