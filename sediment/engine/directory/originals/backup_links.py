"""Backups: hard links to the files that a run replaces or deletes, or to all files of the partitions that it changes.

    link_files, BackupLinks                    link the files that a run removes, and write a catalogue (`catalogue`);
                                               the options call these links originals
    snapshot_log_dir, snapshot_partition       link the log directory before a run, for `sediment verify`

Invariants: links are durable before the first rename. A link shares its inode with the removed file. Backups never
change, because no command changes an existing inode. Each run has a separate folder for its originals. If several runs
link a partition into one directory for `--keep-before`, the links show the partition before the first run.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.originals.before_mark import make_mark, read_mark
from sediment.engine.directory.originals.catalogue import (
    DONE,
    NEW_FILES_FILE,
    Catalogue,
    OriginalFile,
    OriginalPartition,
    catalogue_file,
    original_file,
    run_folder,
    segment_file_names,
    write_catalogue,
    write_new_files,
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
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    with_suffix,
)
from sediment.segment_io.fs import Fs, without_links

_OTHER_DIRECTORY = "give a directory on the filesystem of the log directory"

BEFORE_OF_FILE = ".sediment-before"
"""The file with the `BeforeMark` of a directory; `snapshot_log_dir` writes it last."""

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP)
_UNFINISHED = ".linking"  # not a partition name
_NOT_LINKED = frozenset({LOCK_FILE, RUN_TOKEN_FILE})
_MARKS = (
    BEFORE_OF_FILE, META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE
)  # fmt: skip


@contextmanager
def backup_directory(target: Path, log_dir: Path, fs: Fs) -> Iterator[None]:
    """Create `target` and check, before any other change, that files of `log_dir` can be linked into it.

    A new directory is as private as `log_dir`. At the end, remove every directory that was created here and is still
    empty.
    """
    missing = [each for each in (target, *target.parents) if not fs.is_directory(each)]
    try:
        try:
            _make_directories(target, fs, like=log_dir)
        except OSError as error:
            raise UsageError(
                f"the directory for the originals cannot be created: {error.strerror}",
                path=str(target),
                advice=_OTHER_DIRECTORY,
            ) from error
        if target.stat().st_dev != log_dir.stat().st_dev:
            raise _other_filesystem(target, log_dir)
        yield
    finally:
        for each in missing:
            _remove_if_empty(each, fs)


@contextmanager
def originals_directory(target: Path, log_dir: Path, fs: Fs) -> Iterator[None]:
    path = without_links(target)
    for above in (path, *path.parents):
        found = next((name for name in _MARKS if fs.exists(above / name)), None)
        if found is not None:
            raise UsageError(
                f"originals cannot be kept here; {above} is a log directory or a link to one: it contains {found}",
                path=str(target),
                advice="give a directory outside all log directories",
            )
    with backup_directory(target, log_dir, fs):
        yield


def link_replaced_files(swap: PreparedSwap, target: Path, fs: Fs) -> tuple[Path, ...]:
    return link_files(Path(swap.directory), _replaced_names(swap, fs), target, fs)


def _replaced_names(swap: PreparedSwap, fs: Fs) -> list[str]:
    source = Path(swap.directory)
    return [name for group in swap.groups if group.parts for name in replaced_files(source, group, fs)]


def link_files(source: Path, names: Sequence[str], target: Path, fs: Fs) -> tuple[Path, ...]:
    """Link files of the partition directory `source` into target/<its name>, durably; return the links.

    A second call for the same files changes nothing.
    """
    if not names:
        return ()
    for name in names:
        if (source / name).is_symlink():
            raise UsageError(
                "a symbolic link cannot be kept, because only its target has the records",
                partition=source.name,
                path=str(source / name),
                advice="put the file itself in its place",
            )
    folder = target / source.name
    _make_directories(target, fs, like=source.parent)
    _make_directories(folder, fs, like=source)
    links = []
    for name in names:
        try:
            fs.link(source / name, folder / name)
        except FileExistsError as error:
            if not (source / name).samefile(folder / name):
                raise UsageError(
                    "other originals are kept under this name",
                    partition=source.name,
                    path=str(folder / name),
                    advice="if several log directories contain the same partition, run once for each directory",
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

    Call `begin` before the first `keep`. Call `keep` for files before they are removed. Call `end` after the last
    `keep`.
    """

    def __init__(self, target: Path, catalogue: Catalogue, fs: Fs) -> None:
        self._target = target
        self._folder = run_folder(target, catalogue.run_id)
        self._catalogue = catalogue
        self._new: dict[Path, tuple[OriginalFile, ...]] = {}
        self._fs = fs

    @property
    def path(self) -> Path:
        return catalogue_file(self._target, self._catalogue.run_id)

    def begin(self) -> None:
        write_catalogue(self._catalogue, self._target, self._fs)

    def add(self, partition: OriginalPartition) -> None:
        added = replace(self._catalogue, partitions=(*self._catalogue.partitions, partition))
        write_catalogue(added, self._target, self._fs)
        self._catalogue = added

    def keep(self, source: Path, names: Sequence[str], new_files: Sequence[OriginalFile] = ()) -> None:
        """`new_files` are the files that will replace the linked files; they are already in their final state.

        Their list is written durably.
        """
        link_files(source, names, self._folder, self._fs)
        if new_files:
            _make_directories(self._folder, self._fs, like=source.parent)
            _make_directories(self._folder / source.name, self._fs, like=source)
            write_new_files(self._folder / source.name, new_files, self._fs)
            self._new[source] = tuple(new_files)

    def keep_swap(self, swap: PreparedSwap) -> None:
        source = Path(swap.directory)
        # A rename changes neither the inode nor the modification time of a file.
        new = [original_file(source / part.part_name, name=part.final_name) for part in swap.parts()]
        self.keep(source, _replaced_names(swap, self._fs), new)

    def end(self, statuses: Mapping[tuple[str, str], str], finished_ms: int) -> Path | None:
        """If no file was removed, delete the catalogue and return None.

        `statuses` are keyed by log directory and partition. The link of a file that was not removed is deleted. But
        the link is kept if the file's directory contains an interrupted replacement. In this case, the next start
        completes the replacement and removes the file.
        """
        ended = [self._ended(each, statuses) for each in self._catalogue.partitions]
        changed = tuple(each for each in ended if each.files or each.new_files)
        path = None
        if changed:
            done = replace(self._catalogue, partitions=changed, state=DONE, finished_ms=finished_ms)
            path = write_catalogue(done, self._target, self._fs)
        for planned in self._catalogue.partitions:
            self._fs.unlink(self._folder / planned.partition / NEW_FILES_FILE, missing_ok=True)
            _remove_if_empty(self._folder / planned.partition, self._fs)
        _remove_if_empty(self._folder, self._fs)
        if path is None:
            self._fs.unlink(self.path)
        return path

    def _ended(self, planned: OriginalPartition, statuses: Mapping[tuple[str, str], str]) -> OriginalPartition:
        source, folder = Path(planned.log_dir, planned.partition), self._folder / planned.partition
        is_open = _is_replacement_open(source, self._fs)
        removed = []
        for file in planned.files:
            if not _is_same(folder / file.name, file):
                continue
            if not is_open and _is_same(source / file.name, file):
                self._fs.unlink(folder / file.name)
            else:
                removed.append(file)
        names = {file.name for file in removed}
        logs = tuple(file for file in planned.files if file.name.endswith(SegmentFileKind.LOG))
        return replace(
            planned,
            files=tuple(removed),
            new_files=self._new.get(source, ()) if is_open else self._new_files(planned, source),
            unchanged=(*planned.unchanged, *(file for file in logs if file.name not in names)),
            status=statuses.get((planned.log_dir, planned.partition)),
        )

    def _new_files(self, planned: OriginalPartition, source: Path) -> tuple[OriginalFile, ...]:
        before = {file.name: file for file in planned.files}
        if planned.new_files is not None:
            names = [file.name for file in planned.new_files if self._fs.exists(source / file.name)]
        else:
            names = segment_file_names(source, self._fs)
        new = [name for name in names if name not in before or not _is_same(source / name, before[name])]
        return tuple(original_file(source / name) for name in new)


def _remove_if_empty(folder: Path, fs: Fs) -> None:
    with suppress(OSError):
        fs.remove_directory(folder)


def _is_replacement_open(source: Path, fs: Fs) -> bool:
    found = [parse_segment_file(entry.name) for entry in fs.scan(source)]
    return any(name is not None and name.state in (CLEANED_SUFFIX, SWAP_SUFFIX) for name in found)


def _is_same(path: Path, file: OriginalFile) -> bool:
    try:
        return path.stat().st_ino == file.inode
    except FileNotFoundError:
        return False


def snapshot_log_dir(log_dir: Path, target: Path, now_ms: int, fs: Fs) -> None:
    """`now_ms` is the clock of the run.

    If an earlier run has used `target`, its mark keeps the clock of that run.
    """
    path = target / BEFORE_OF_FILE
    mark = read_mark(path, fs)
    if mark is not None:
        if mark.log_dir != str(without_links(log_dir)):
            raise UsageError(
                "the directory is a snapshot of another log directory",
                path=str(target),
                advice="give another directory",
            )
        if not mark.is_reused:
            fs.replace_file(path, replace(mark, is_reused=True).to_bytes(), like=log_dir)
        return
    files = [entry.name for entry in fs.scan(log_dir) if not entry.is_directory and entry.name not in _NOT_LINKED]
    if any(entry.name not in files for entry in fs.scan(target)):
        raise UsageError("the directory is not empty", path=str(target), advice="give an empty directory, or a new one")
    # If a run was killed before it wrote the mark, it has changed nothing, but its links may be outdated.
    for entry in fs.scan(target):
        fs.unlink(target / entry.name)
    _link_all(files, log_dir, target, fs)
    fs.replace_file(path, make_mark(log_dir, now_ms, fs).to_bytes(), like=log_dir)


def snapshot_partition(partition: TopicPartition, log_dir: Path, target: Path, fs: Fs) -> None:
    source, folder = log_dir / str(partition), target / str(partition)
    if fs.exists(folder):
        return
    unfinished = folder.with_name(with_suffix(folder.name, _UNFINISHED))
    if fs.exists(unfinished):
        for entry in fs.scan(unfinished):
            fs.unlink(unfinished / entry.name)
    else:
        fs.make_directory(unfinished, like=source)
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


def _make_directories(path: Path, fs: Fs, *, like: Path) -> None:
    missing = [each for each in (path, *path.parents) if not fs.is_directory(each)]
    for each in reversed(missing):
        fs.make_directory(each, like=like)


def _other_filesystem(target: Path, source: Path) -> UsageError:
    return UsageError(
        f"files are kept as hard links, but {source} is on another filesystem, or on a filesystem without hard links",
        path=str(target),
        advice=_OTHER_DIRECTORY,
    )
