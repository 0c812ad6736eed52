"""The check of a copy against its manifest: every file exists with its size and digest, and no other file exists."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sediment.engine.directory.output import CLAIM_FILE
from sediment.segment_io.format.names import LOCK_FILE
from sediment.segment_io.manifest import MANIFEST_FILE, Manifest, ManifestFile, read_copy_manifest
from sediment.segment_io.stores import Store

_THREADS = 4
_OWN_FILES = frozenset({MANIFEST_FILE, LOCK_FILE, CLAIM_FILE})


@dataclass(frozen=True, slots=True)
class FileDifference:
    name: str
    what: str

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class CheckedCopy:
    """The result of a check; files without a digest were linked, and only their size was compared."""

    manifest: Manifest
    differences: tuple[FileDifference, ...]
    read_bytes: int
    files_without_digest: int


def _ignore(count: int) -> None: ...
def check_file(copy: Store, file: ManifestFile, on_bytes: Callable[[int], None] = _ignore) -> str | None:
    holder = copy if file.held_in is None else copy.beside(file.held_in)
    stamp = holder.stamp(file.name)
    if stamp is None:
        return f"does not exist in {holder}"
    if stamp.size_bytes != file.size_bytes:
        return f"has {stamp.size_bytes} bytes instead of {file.size_bytes}"
    if file.sha256 is None:
        return None
    found = hashlib.sha256()
    for chunk in holder.chunks(file.name):
        found.update(chunk)
        on_bytes(len(chunk))
    return None if found.hexdigest() == file.sha256 else "has different content"


def extra_files(copy: Store, manifest: Manifest) -> tuple[FileDifference, ...]:
    known = {file.name for file in manifest.files if file.held_in is None} | _OWN_FILES
    found = copy.files()
    folders = {name.partition("/")[0] for name in (*found, *(file.name for file in manifest.files))}
    return (
        *(FileDifference(name, "is not in the manifest") for name in found if name not in known),
        *(FileDifference(f"{name}/", "is not in the manifest") for name in copy.folders() if name not in folders),
    )


def check_copy(
    copy: Store,
    manifest: Manifest | None = None,
    *,
    on_bytes: Callable[[int], None] = _ignore,
    on_folder: Callable[[int], None] = _ignore,
) -> CheckedCopy:
    """A file that cannot be read is reported as a difference.

    Several threads call `on_bytes` with the size of each chunk that they have read. An error that `on_bytes` raises
    ends the check. `on_folder` is called with the size of each folder that was checked.
    """
    manifest = read_copy_manifest(copy) if manifest is None else manifest
    folders: dict[str, list[ManifestFile]] = {}
    for file in manifest.files:
        folders.setdefault(file.folder, []).append(file)
    differences = [
        FileDifference(f"{each.partition}/", "contains no file of the manifest")
        for each in manifest.partitions
        if each.partition not in folders
    ]
    read_bytes = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="sediment-check") as pool:
        checked = pool.map(lambda files: _check_folder(copy, files, on_bytes), folders.values())
        for files, (found, count) in zip(folders.values(), checked, strict=True):
            differences += found
            read_bytes += count
            on_folder(sum(file.size_bytes for file in files))
    return CheckedCopy(
        manifest,
        (*differences, *extra_files(copy, manifest)),
        read_bytes,
        sum(file.sha256 is None for file in manifest.files),
    )


def _check_folder(
    copy: Store, files: Sequence[ManifestFile], on_bytes: Callable[[int], None]
) -> tuple[list[FileDifference], int]:
    found: list[FileDifference] = []
    read_bytes = 0

    def count(size_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += size_bytes
        on_bytes(size_bytes)

    for file in files:
        try:
            what = check_file(copy, file, count)
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
        if what is not None:
            found.append(FileDifference(file.name, what))
    return found, read_bytes
