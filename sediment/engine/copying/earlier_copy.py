"""The earlier copy that an incremental copy continues, with its files by partition.

A chain of copies is flat: if three copies share a file, one copy contains the file, and the manifests of the other two
refer to that copy.
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
    """`beside` is the path `../NAME` of the earlier copy; None if the new copy must not refer to its files."""

    store: Store
    files: Mapping[str, ManifestFile]
    beside: str | None
    damage: str | None = None

    def are(self, files: Iterable[ManifestFile]) -> bool:
        digests = {name: file.sha256 for name, file in self.files.items()}
        return None not in digests.values() and {name_in_folder(file): file.sha256 for file in files} == digests

    def holder(self, file: ManifestFile) -> str | None:
        return None if self.beside is None else file.held_in or self.beside

    def path(self, file: ManifestFile) -> Path | None:
        """Return None if the copy that contains the file is not local."""
        root = self.store.local_path
        if root is None:
            return None
        return (root if file.held_in is None else root.parent / Path(file.held_in).name) / file.name


class EarlierCopy:
    def __init__(self, store: Store, manifest: Manifest, target: Store) -> None:
        self.manifest = manifest
        self._store = store
        self._beside = name_beside(store, target)
        self._partitions = {partition.partition: partition for partition in manifest.partitions}
        self._files: dict[str, dict[str, ManifestFile]] = {}
        for file in manifest.files:
            self._files.setdefault(file.folder, {})[name_in_folder(file)] = file

    def files_of(self, partition: str, topic_id: str | None) -> EarlierFiles | None:
        """Return None if the partition is new, or if its topic was deleted and created again."""
        files, known = self._files.get(partition), self._partitions.get(partition)
        if files is None or (None if known is None else known.topic_id) != topic_id:
            return None
        return EarlierFiles(self._store, files, self._beside, None if known is None else known.damage)


def name_in_folder(file: ManifestFile) -> str:
    return file.name.rpartition("/")[2]


def open_earlier_copy(where: str, target: Store) -> EarlierCopy:
    path, mark, query = where.partition("?")
    store = Store(path.removesuffix(f"/{MANIFEST_FILE}") + mark + query)
    if store.identity == target.identity:
        raise UsageError(
            "the earlier copy is the output", path=str(store), advice="write the new copy to a directory beside it"
        )
    return EarlierCopy(store, read_copy_manifest(store), target)


def name_beside(store: Store, target: Store) -> str | None:
    kind, path = store.identity
    target_kind, target_path = target.identity
    folder, name = posixpath.split(path)
    if kind != target_kind or folder != posixpath.dirname(target_path) or not name or path == target_path:
        return None
    return f"../{name}"
