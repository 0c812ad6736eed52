"""The earlier copy that an incremental copy continues: its files, by partition, for the tasks that copy.

A chain of copies is flat: a file that three copies share is in one of them, and the manifests of the others name that
one.  Copies of a chain are directories beside one another, so they can be moved together.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.copies import read_copy_manifest
from sediment.segment_io.errors import UsageError
from sediment.segment_io.manifest import MANIFEST_FILE, Manifest, ManifestFile
from sediment.segment_io.stores import Store


@dataclass(frozen=True, slots=True)
class EarlierFiles:
    """The files of one partition in the earlier copy `store`, by their names in its folder.

    `beside` is the name of that copy, as `../NAME`, if the new copy may leave files there, else None.  `damage` is what
    the earlier copy found in the log.
    """

    store: Store
    files: Mapping[str, ManifestFile]
    beside: str | None
    damage: str | None = None

    def are(self, files: Iterable[ManifestFile]) -> bool:
        """Return True if `files`, all of a partition, have the names and digests of these."""
        digests = {name: file.sha256 for name, file in self.files.items()}
        return None not in digests.values() and {name_in_folder(file): file.sha256 for file in files} == digests

    def holder(self, file: ManifestFile) -> str | None:
        """Return the copy that has the content of `file`, as `../NAME`; None if the new copy cannot refer to it."""
        return None if self.beside is None else file.held_in or self.beside

    def path(self, file: ManifestFile) -> Path | None:
        """Return the path of `file` if this machine has it, in this copy or in the one that holds it."""
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
        """Return the files of a partition; None if it is new, or if its topic was deleted and created again."""
        files, known = self._files.get(partition), self._partitions.get(partition)
        if files is None or (None if known is None else known.topic_id) != topic_id:
            return None
        return EarlierFiles(self._store, files, self._beside, None if known is None else known.damage)


def name_in_folder(file: ManifestFile) -> str:
    """Return the name of a file without that of its directory."""
    return file.name.rpartition("/")[2]


def open_earlier_copy(where: str, target: Store) -> EarlierCopy:
    """Open the copy at `where`, a directory or the manifest in it, that the copy to `target` continues.

    Raises:
        UsageError: the directory lacks a manifest, so it is not a complete copy; or it is the target.
        CorruptDataError: the manifest is not one.
    """
    path, mark, query = where.partition("?")
    store = Store(path.removesuffix(f"/{MANIFEST_FILE}") + mark + query)
    if store.identity == target.identity:
        raise UsageError(
            "the earlier copy is the output", path=str(store), advice="write the new copy to a directory beside it"
        )
    return EarlierCopy(store, read_copy_manifest(store), target)


def name_beside(store: Store, target: Store) -> str | None:
    """Return `../NAME` of `store` as seen from `target`; None if they are not beside one another."""
    kind, path = store.identity
    target_kind, target_path = target.identity
    folder, name = posixpath.split(path)
    if kind != target_kind or folder != posixpath.dirname(target_path) or not name or path == target_path:
        return None
    return f"../{name}"
