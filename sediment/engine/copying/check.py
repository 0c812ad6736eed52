"""The check of a copy against its manifest: all files exist, with their sizes and digests, and no other file does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from sediment.engine.directory.output import CLAIM_FILE
from sediment.segment_io.copies import read_copy_manifest
from sediment.segment_io.format.names import LOCK_FILE
from sediment.segment_io.manifest import MANIFEST_FILE, Manifest, ManifestFile
from sediment.segment_io.stores import Store

_OWN_FILES = frozenset({MANIFEST_FILE, LOCK_FILE, CLAIM_FILE})


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that differs from the manifest, and how, as a clause."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class CheckedCopy:
    """The result of a check; files without a digest were linked, and only their size was compared."""

    manifest: Manifest
    differences: tuple[Difference, ...]
    read_bytes: int
    files_without_digest: int


def check_file(copy: Store, file: ManifestFile, on_bytes: Callable[[int], None] = lambda count: None) -> str | None:
    """Read one file of a copy, here or in the earlier copy that holds it; return how it differs, None if it does not.

    Raises:
        OSError: it exists and cannot be read.
    """
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
    return None if found.hexdigest() == file.sha256 else "has another content"


def extra_files(copy: Store, manifest: Manifest) -> tuple[Difference, ...]:
    """Return the files in the directory of a copy that its manifest does not name."""
    known = {file.name for file in manifest.files if file.held_in is None} | _OWN_FILES
    return tuple(Difference(name, "is not in the manifest") for name in copy.files() if name not in known)


def check_copy(copy: Store) -> CheckedCopy:
    """Read every file of a copy and compare it with the manifest.

    Raises:
        UsageError, CorruptDataError: as `read_copy_manifest`.
        OSError: a file exists and cannot be read.
    """
    manifest = read_copy_manifest(copy)
    read_bytes = 0

    def count(size_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += size_bytes

    found = [Difference(file.name, what) for file in manifest.files if (what := check_file(copy, file, count))]
    return CheckedCopy(
        manifest,
        (*found, *extra_files(copy, manifest)),
        read_bytes,
        sum(file.sha256 is None for file in manifest.files),
    )
