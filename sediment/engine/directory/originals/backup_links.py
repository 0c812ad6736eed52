"""Backups by hard links: to the files that a run replaces or deletes, or to all files of partitions that it changes.

    link_files, BackupLinks                    files that a run removes, with a catalogue (`catalogue`);
                                               options call them originals
    snapshot_log_dir, snapshot_partition       the log directory before a run, for `sediment verify`

Invariants: links are durable before the first rename.  A link shares its inode with the file that is removed, and no
command changes an existing inode, so backups stay unchanged.  Earlier backups are never replaced, and no byte is
copied.  If several runs link a partition into one directory, the links show its state before the first run.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.originals.before_mark import make_mark, read_mark
from sediment.engine.directory.originals.catalogue import (
    DONE,
    Catalogue,
    OriginalFile,
    OriginalPartition,
    catalogue_file,
    segment_file_names,
    write_catalogue,
)
from sediment.engine.directory.swap import replaced_files
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    PART_SUFFIX,
    RECOVERY_POINT_FILE,
    RUN_TOKEN_FILE,
    SWAP_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs

_OTHER_DIRECTORY = "name a directory on the filesystem of the log directory"

BEFORE_OF_FILE = ".sediment-before"
"""File with the `BeforeMark` of a directory made by `snapshot_log_dir`; it is written last."""

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP)
_UNFINISHED = ".linking"  # not a partition name
_NOT_LINKED = frozenset({LOCK_FILE, RUN_TOKEN_FILE})
_MARKS = (
    BEFORE_OF_FILE, META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE
)  # fmt: skip


def check_backup_path(target: Path, log_dir: Path, fs: Fs) -> None:
    """Create `target` and check, before anything changes, that files of `log_dir` can be linked into it.

    Raises:
        UsageError: it is on another filesystem, or not a directory.
    """
    try:
        _make_directories(target, fs)
    except OSError as error:
        raise UsageError(
            f"the directory for the originals cannot be made: {error.strerror}",
            path=str(target),
            advice=_OTHER_DIRECTORY,
        ) from error
    if target.stat().st_dev != log_dir.stat().st_dev:
        raise _other_filesystem(target, log_dir)


def check_originals_path(target: Path, log_dir: Path, fs: Fs) -> None:
    """Check a path for originals by `check_backup_path`, and that it is outside log directories and snapshots.

    Raises:
        UsageError: it is in such a directory or is one, it is on another filesystem, or it is not a directory.
    """
    path = target.resolve()
    for above in (path, *path.parents):
        found = next((name for name in _MARKS if fs.exists(above / name)), None)
        if found is not None:
            raise UsageError(
                f"originals cannot be kept here; {above} is a log directory or shows one, it holds {found}",
                path=str(target),
                advice="name a directory outside all log directories",
            )
    check_backup_path(target, log_dir, fs)


def link_replaced_files(swap: PreparedSwap, target: Path, fs: Fs) -> tuple[Path, ...]:
    """Link the files that `commit(swap)` replaces or removes, as `link_files` does.

    Raises:
        UsageError: as `link_files`.
    """
    source = Path(swap.directory)
    names = [name for group in swap.groups if group.parts for name in replaced_files(source, group, fs)]
    return link_files(swap.partition, source, names, target, fs)


def link_files(partition: TopicPartition, source: Path, names: Sequence[str], target: Path, fs: Fs) -> tuple[Path, ...]:
    """Link files of the directory `source` into target/<topic-partition>, durably; return the links.

    A second call for the same files changes nothing.

    Raises:
        UsageError: other files have the same names there, or the filesystem cannot link to that directory.
    """
    if not names:
        return ()
    folder = target / str(partition)
    _make_directories(folder, fs)
    links = []
    for name in names:
        try:
            fs.link(source / name, folder / name)
        except FileExistsError as error:
            if not (source / name).samefile(folder / name):
                raise UsageError(
                    "originals of an earlier run are kept under this name",
                    partition=str(partition),
                    path=str(folder / name),
                    advice="name another directory with --keep-originals",
                ) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise _other_filesystem(folder, source) from error
        links.append(folder / name)
    fs.sync_directory(folder)
    fs.sync_directory(target)
    return tuple(links)


class BackupLinks:
    """The originals of one run in `target` and their catalogue; the lock of every log directory must be held.

    Call `begin` before the first `keep`, `keep` before the files are removed, and `end` after the last of them.
    """

    def __init__(self, target: Path, catalogue: Catalogue, fs: Fs) -> None:
        self._target = target
        self._catalogue = catalogue
        self._fs = fs

    @property
    def path(self) -> Path:
        """The catalogue's file."""
        return catalogue_file(self._target, self._catalogue.run_id)

    def begin(self) -> None:
        """Write the catalogue durably, with the state `planned`.

        Raises:
            OSError: the catalogue could not be written; no file may be removed then.
        """
        write_catalogue(self._catalogue, self._target, self._fs)

    def keep(self, partition: TopicPartition, source: Path, names: Sequence[str]) -> None:
        """Link files of a partition for this run, as `link_files` does.

        Raises:
            UsageError: as `link_files`.
        """
        link_files(partition, source, names, self._target, self._fs)

    def keep_swap(self, swap: PreparedSwap) -> None:
        """Link the files that a swap replaces for this run, as `link_replaced_files` does.

        Raises:
            UsageError: as `link_files`.
        """
        link_replaced_files(swap, self._target, self._fs)

    def end(self, statuses: Mapping[tuple[str, str], str], finished_ms: int) -> Path | None:
        """Write the catalogue as `done` and return its path; if no file was removed, delete it and return None.

        `statuses` are by log directory and partition.  A file that is still in place loses its link, unless its
        directory holds an interrupted replacement: the next start completes that and removes the file.

        Raises:
            OSError: the catalogue could not be written; its state is still `planned`.
        """
        ended = [self._ended(each, statuses) for each in self._catalogue.partitions]
        changed = tuple(each for each in ended if each.files or each.new_files)
        if not changed:
            self._fs.unlink(self.path)
            return None
        done = replace(self._catalogue, partitions=changed, state=DONE, finished_ms=finished_ms)
        return write_catalogue(done, self._target, self._fs)

    def _ended(self, planned: OriginalPartition, statuses: Mapping[tuple[str, str], str]) -> OriginalPartition:
        source, folder = Path(planned.log_dir, planned.partition), self._target / planned.partition
        stays = not _is_replacement_open(source, self._fs)
        removed = []
        for file in planned.files:
            if not _is_same(folder / file.name, file):
                continue
            if stays and _is_same(source / file.name, file):
                self._fs.unlink(folder / file.name)
            else:
                removed.append(file)
        if not removed:
            with suppress(OSError):
                self._fs.remove_directory(folder)
        return replace(
            planned,
            files=tuple(removed),
            new_files=self._new_files(planned, source),
            status=statuses.get((planned.log_dir, planned.partition)),
        )

    def _new_files(self, planned: OriginalPartition, source: Path) -> tuple[str, ...]:
        if planned.new_files is not None:
            return tuple(name for name in planned.new_files if self._fs.exists(source / name))
        before = {file.name: file for file in planned.files}
        names = segment_file_names(source, self._fs)
        return tuple(name for name in names if name not in before or not _is_same(source / name, before[name]))


def _is_replacement_open(source: Path, fs: Fs) -> bool:
    found = [parse_segment_file(entry.name) for entry in fs.scan(source)]
    return any(name is not None and name.state in (CLEANED_SUFFIX, SWAP_SUFFIX) for name in found)


def _is_same(path: Path, file: OriginalFile) -> bool:
    try:
        return path.stat().st_ino == file.inode
    except FileNotFoundError:
        return False


def snapshot_log_dir(log_dir: Path, target: Path, fs: Fs) -> None:
    """Link the files of `log_dir` outside the partitions, such as checkpoints, into `target`, unless that is done.

    Raises:
        UsageError: `target` shows another log directory, is not empty, or is on another filesystem.
    """
    path = target / BEFORE_OF_FILE
    mark = read_mark(path, fs)
    if mark is not None:
        if mark.log_dir != str(log_dir.resolve()):
            raise UsageError(
                "the directory shows another log directory", path=str(target), advice="name another directory"
            )
        return
    files = [entry.name for entry in fs.scan(log_dir) if not entry.is_directory and entry.name not in _NOT_LINKED]
    if any(entry.name not in files for entry in fs.scan(target)):
        raise UsageError("the directory is not empty", path=str(target), advice="name an empty directory, or a new one")
    # A run that was killed here had changed nothing yet, but its links may be outdated by now.
    for entry in fs.scan(target):
        fs.unlink(target / entry.name)
    _link_all(files, log_dir, target, fs)
    fs.replace_file(path, make_mark(log_dir, fs).to_bytes(), like=log_dir)


def snapshot_partition(partition: TopicPartition, log_dir: Path, target: Path, fs: Fs) -> None:
    """Link all files of a partition into target/<topic-partition>, unless that is done.

    Raises:
        UsageError: the filesystem cannot link to that directory.
    """
    source, folder = log_dir / str(partition), target / str(partition)
    if fs.exists(folder):
        return
    unfinished = folder.with_name(folder.name + _UNFINISHED)
    if fs.exists(unfinished):
        for entry in fs.scan(unfinished):
            fs.unlink(unfinished / entry.name)
    else:
        fs.make_directory(unfinished)
    files = [e.name for e in fs.scan(source) if not e.is_directory and not e.name.endswith(PART_SUFFIX)]
    _link_all(files, source, unfinished, fs)
    fs.rename(unfinished, folder)
    fs.sync_directory(target)


def _link_all(names: Sequence[str], source: Path, target: Path, fs: Fs) -> None:
    for name in names:
        try:
            fs.link(source / name, target / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise _other_filesystem(target, source) from error
    fs.sync_directory(target)


def _make_directories(path: Path, fs: Fs) -> None:
    missing = [each for each in (path, *path.parents) if not fs.is_directory(each)]
    for each in reversed(missing):
        fs.make_directory(each)


def _other_filesystem(target: Path, source: Path) -> UsageError:
    return UsageError(
        f"originals are kept as hard links, which cannot reach {source}: it is on another filesystem, or on one "
        "without links",
        path=str(target),
        advice=_OTHER_DIRECTORY,
    )
