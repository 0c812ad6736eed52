"""The earlier copy that an incremental copy continues, with its files by partition.

A chain of copies is flat: if three copies share a file, one copy contains the file, and the manifests of the other two
refer to that copy.  All copies of a chain are in one parent directory, so they can be moved together.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import UsageError
from sediment.segment_io.manifest import MANIFEST_FILE, Manifest, ManifestFile, read_copy_manifest
from sediment.segment_io.stores import Store


@dataclass(frozen=True, slots=True)
class EarlierFiles:
    """The files of one partition in the earlier copy `store`, by their names in the partition's folder.

    `beside` is the path `../NAME` of the earlier copy; None if the new copy must not refer to its files.  `damage`
    describes the corruption that was found in the log during the earlier copy.
    """

    store: Store
    files: Mapping[str, ManifestFile]
    beside: str | None
    damage: str | None = None

    def are(self, files: Iterable[ManifestFile]) -> bool:
        """Compare all files of a partition with the earlier files; return True if names and digests are the same."""
        digests = {name: file.sha256 for name, file in self.files.items()}
        return None not in digests.values() and {name_in_folder(file): file.sha256 for file in files} == digests

    def holder(self, file: ManifestFile) -> str | None:
        """Return the path `../NAME` of the copy that contains `file`; None if the new copy cannot refer to it."""
        return None if self.beside is None else file.held_in or self.beside

    def path(self, file: ManifestFile) -> Path | None:
        """Return the local path of `file`; this copy contains the file, or refers to another copy that contains it.

        Return None if the copy that contains the file is not local.
        """
        root = self.store.local_path
        if root is None:
            return None
        return (root if file.held_in is None else root.parent / Path(file.held_in).name) / file.name


class EarlierCopy:
    """A complete copy and its manifest; the driver opens it once and gives each task the files of its partitions."""

    def __init__(self, store: Store, manifest: Manifest, target: Store) -> None:
        self.manifest = manifest
        self._store = store
        self._beside = name_beside(store, target)
        self._partitions = {partition.partition: partition for partition in manifest.partitions}
        self._files: dict[str, dict[str, ManifestFile]] = {}
        for file in manifest.files:
            self._files.setdefault(file.folder, {})[name_in_folder(file)] = file

    def files_of(self, partition: str, topic_id: str | None) -> EarlierFiles | None:
        """Return the files of a partition.

        Return None if the partition is new, or if its topic was deleted and created again.
        """
        files, known = self._files.get(partition), self._partitions.get(partition)
        if files is None or (None if known is None else known.topic_id) != topic_id:
            return None
        return EarlierFiles(self._store, files, self._beside, None if known is None else known.damage)


def name_in_folder(file: ManifestFile) -> str:
    """Return the name of a file without its directory."""
    return file.name.rpartition("/")[2]


def open_earlier_copy(where: str, target: Store) -> EarlierCopy:
    """Open an earlier copy, which the copy to `target` continues; `where` is the earlier copy's directory or manifest.

    Raises:
        UsageError: the directory has no manifest, so the copy is incomplete; or the directory is the target.
        CorruptDataError: the manifest is malformed.
    """
    path, mark, query = where.partition("?")
    store = Store(path.removesuffix(f"/{MANIFEST_FILE}") + mark + query)
    if store.identity == target.identity:
        raise UsageError(
            "the earlier copy is the output", path=str(store), advice="write the new copy to a directory beside it"
        )
    return EarlierCopy(store, read_copy_manifest(store), target)


def name_beside(store: Store, target: Store) -> str | None:
    """Return the path `../NAME` from `target` to `store`; None if they have different parents."""
    kind, path = store.identity
    target_kind, target_path = target.identity
    folder, name = posixpath.split(path)
    if kind != target_kind or folder != posixpath.dirname(target_path) or not name or path == target_path:
        return None
    return f"../{name}"
