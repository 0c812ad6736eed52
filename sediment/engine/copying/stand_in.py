"""A local stand-in for a log directory at a URI: its folders, and the small files that describe it.

Invariant: only the metadata log, `partition.metadata` and files outside the partitions are fetched, never a segment of
a partition.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import BOOTSTRAP_FILE, METADATA_PARTITION, PARTITION_METADATA_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.partition_directories import find_partitions
from sediment.segment_io.stores import Store, StoredFile


def placeholder_files(names: Iterable[str], folders: Container[str], *, topic_ids: bool = False) -> list[str]:
    """`partition.metadata` is included if `topic_ids` is True, or if a metadata log or a `bootstrap.checkpoint` exists.

    A bucket may contain objects of any name, so only files directly in the directory or in one of `folders` are
    returned.
    """
    listed = [(name, *name.rpartition("/")) for name in names]
    metadata = str(METADATA_PARTITION)
    takes_ids = topic_ids or any(folder == metadata or name == BOOTSTRAP_FILE for name, folder, _, _ in listed)
    found = []
    for name, folder, slash, file in listed:
        is_beside = not slash and name not in folders
        is_inside = folder in folders and (folder == metadata or (takes_ids and file == PARTITION_METADATA_FILE))
        if (is_beside or is_inside) and file not in ("", ".", ".."):
            found.append(name)
    return found


def make_stand_in(store: Store, files: Mapping[str, StoredFile], path: Path, *, topic_ids: bool = False) -> None:
    fs = Fs()
    there = store.folders()
    folders = {*find_partitions(store, there), str(METADATA_PARTITION)}.intersection(there)
    for folder in folders:
        (path / folder).mkdir()
    for name in placeholder_files(files, folders, topic_ids=topic_ids):
        fs.write_new(path / name, store.chunks(name))


@contextmanager
def errors_naming(shown: str, work: Path) -> Iterator[None]:
    try:
        yield
    except SedimentError as error:
        if error.path is not None:
            error.path = error.path.replace(str(work), shown)
        raise
    except OSError as error:
        if isinstance(error.filename, str):
            error.filename = error.filename.replace(str(work), shown)
        raise
