"""Originals on disk: their size, their pins and their removal.

    DIR/pins.json    the names of the pins, and the run whose originals each pin keeps

Invariants of `remove_originals`: a file is removed only if the catalogue of its run lists the same name, inode, size
and time. The catalogue is removed last, so a second call completes an interrupted removal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from sediment.engine.directory.lock import lock_holder
from sediment.engine.directory.originals.catalogue import (
    NEW_FILES_FILE,
    Catalogue,
    OriginalFile,
    OriginalPartition,
    catalogue_file,
    run_folder,
)
from sediment.engine.directory.originals.history import History
from sediment.engine.directory.originals.kept_files import regular_file
from sediment.segment_io.errors import CorruptDataError, UsageError
from sediment.segment_io.format.names import DirectoryState, parse_partition_directory, parse_segment_file
from sediment.segment_io.fs import Fs

PINS_FILE = "pins.json"


@dataclass(frozen=True, slots=True)
class HeldFiles:
    files: int = 0
    bytes: int = 0
    only_here_bytes: int = 0

    def __add__(self, other: HeldFiles) -> HeldFiles:
        return HeldFiles(
            self.files + other.files, self.bytes + other.bytes, self.only_here_bytes + other.only_here_bytes
        )


def held_files(run: Catalogue, entry: OriginalPartition, target: Path) -> HeldFiles:
    held = HeldFiles()
    for path, file in _listed(run, entry, target):
        status = regular_file(path)
        if status is not None and _is_listed(status, file):
            only_here = status.st_size if status.st_nlink == 1 else 0
            held += HeldFiles(1, status.st_size, only_here)
    return held


def held_without_catalogue(target: Path, fs: Fs) -> dict[str, HeldFiles]:
    """Return the segment files that an earlier version of Sediment kept in partition folders, by partition."""
    found: dict[str, HeldFiles] = {}
    for entry in fs.scan(target):
        if not entry.is_directory or not _is_partition(entry.name) or (target / entry.name).is_symlink():
            continue
        held = HeldFiles()
        for file in fs.scan(target / entry.name):
            status = regular_file(target / entry.name / file.name)
            if status is not None and parse_segment_file(file.name) is not None:
                held += HeldFiles(1, status.st_size, status.st_size if status.st_nlink == 1 else 0)
        found[entry.name] = held
    return found


def bytes_only_in(history: History, target: Path) -> int:
    """Return the bytes of the originals of all runs, without those that a log directory shares.

    A removal of the originals of all runs would free these bytes. Files that no catalogue lists are left out, because
    no vacuum removes them.
    """
    paths = [path for run in history.runs for entry in run.partitions for path, _ in _listed(run, entry, target)]
    links: dict[int, int] = {}
    found = {}
    for path in paths:
        status = regular_file(path)
        if status is not None:
            links[status.st_ino] = links.get(status.st_ino, 0) + 1
            found[status.st_ino] = status
    return sum(status.st_size for inode, status in found.items() if status.st_nlink == links[inode])


def _is_partition(name: str) -> bool:
    try:
        return parse_partition_directory(name)[1] is DirectoryState.LIVE
    except UsageError:
        return False


def is_running(run: Catalogue) -> bool:
    if run.is_done:
        return False
    for log_dir in run.log_dirs:
        with suppress(OSError):
            if lock_holder(Path(log_dir.path)) is not None:
                return True
    return False


def remove_originals(run: Catalogue, target: Path, fs: Fs) -> None:
    """Remove the originals of a run, then its catalogue; the lock of `target` must be held.

    Files and folders that the catalogue does not list are not removed.
    """
    folder = run_folder(target, run.run_id)
    for entry in run.partitions:
        place = folder / entry.partition
        for path, file in _listed(run, entry, target):
            status = regular_file(path)
            if status is not None and _is_listed(status, file):
                fs.unlink(path)
        if not folder.is_symlink() and not place.is_symlink():
            fs.unlink(place / NEW_FILES_FILE, missing_ok=True)
            _remove_if_empty(place, fs)
    if not folder.is_symlink():
        _remove_if_empty(folder, fs)
    fs.sync_directory(target)
    fs.unlink(catalogue_file(target, run.run_id))
    fs.sync_directory(target)


def _listed(run: Catalogue, entry: OriginalPartition, target: Path) -> Iterator[tuple[Path, OriginalFile]]:
    folder = run_folder(target, run.run_id)
    if not folder.is_symlink() and not (folder / entry.partition).is_symlink():
        yield from ((folder / entry.partition / file.name, file) for file in entry.files)


def _is_listed(status: stat_result, file: OriginalFile) -> bool:
    # The inode number alone does not identify a file, because the system may have reused the number for a new file.
    found = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found == (file.inode, file.size_bytes, file.mtime_ns)


def _remove_if_empty(folder: Path, fs: Fs) -> None:
    with suppress(OSError):
        fs.remove_directory(folder)


# ----------------------------------------------------------------------------------------------------------------- pins
def read_pins(target: Path, fs: Fs) -> dict[str, str]:
    path = target / PINS_FILE
    try:
        content = fs.read_bytes(path, follow_links=False)
    except FileNotFoundError:
        return {}
    try:
        pins = json.loads(content)["pins"]
        if not all(isinstance(text, str) for pair in pins.items() for text in pair):
            raise TypeError("a pin or its run is not text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDataError(
            f"the list of pins is malformed: {error}", path=str(path), advice="correct it, or remove it and pin again"
        ) from error
    return dict(pins)


def write_pins(pins: Mapping[str, str], target: Path, fs: Fs) -> None:
    """Replace the list of pins, durably; the lock of `target` must be held."""
    content = json.dumps({"pins": dict(pins)}, indent=1).encode() + b"\n"
    fs.replace_file(target / PINS_FILE, content, like=target)
