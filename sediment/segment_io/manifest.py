"""The manifest of a copied log directory: it lists all files with digests, and all partitions with offsets.

    run_id, now_ms, sources    the run that made the copy, its time, and its sources
    partitions                 partition, topic_id, log_start_offset, log_end_offset, leader_epoch, damage
    files                      name, size_bytes, sha256; in an incremental copy also held_in and source

The manifest is written last, so a directory without a manifest is not a complete copy.  In an incremental copy, a file
may still be in an earlier copy.

Invariant: a name or `held_in` that leads outside the copies is refused, so a forged manifest does no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

from sediment.segment_io.errors import CorruptDataError, UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import FileStamp
from sediment.segment_io.stores import Store

MANIFEST_FILE = "sediment-manifest.json"

_SCHEMA = 1
_ENTRIES_A_PIECE = 10_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_Value = TypeVar("_Value")
_BESIDE = re.compile(r"\.\./[^/\0]+")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file of a copy, by its name in the copy; `sha256` is in hex, or None if the file was linked instead of read.

    `held_in` is the path `../NAME` of the earlier copy that contains the file; None if this copy contains it.  `source`
    is the stamp of the source file; None if a later copy must read the file again.
    """

    name: str
    size_bytes: int
    sha256: str | None
    held_in: str | None = None
    source: FileStamp | None = None

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    """A partition of a copy, under its name in the copy; values that are unknown in the source are None.

    `damage` describes corruption that was found in the log during the copy.
    """

    partition: str
    topic_id: str | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    leader_epoch: int | None = None
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    run_id: str
    now_ms: int
    sources: tuple[str, ...]
    files: tuple[ManifestFile, ...]
    partitions: tuple[ManifestPartition, ...] = ()


# ------------------------------------------------------------------------------------------------------------- writing
def format_manifest(manifest: Manifest) -> Iterator[bytes]:
    head = {
        "schema": _SCHEMA,
        "run_id": manifest.run_id,
        "now_ms": manifest.now_ms,
        "sources": list(manifest.sources),
    }
    yield json.dumps(head)[:-1].encode()
    # A copy may have a million files.  So the document is written in pieces, and has one line for each partition and
    # each file.
    yield from _list("partitions", map(_partition_row, manifest.partitions))
    yield from _list("files", map(_file_row, manifest.files))
    yield b"}\n"


def _list(key: str, rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    yield f',\n"{key}": ['.encode()
    separator = "\n"
    lines = map(json.dumps, rows)
    while piece := ",\n".join(islice(lines, _ENTRIES_A_PIECE)):
        yield f"{separator}{piece}".encode()
        separator = ",\n"
    yield b"]"


def _partition_row(partition: ManifestPartition) -> dict[str, Any]:
    return asdict(partition)


def _file_row(file: ManifestFile) -> dict[str, Any]:
    row: dict[str, Any] = {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
    if file.held_in is not None:
        row["held_in"] = file.held_in
    if file.source is not None:
        row["source"] = asdict(file.source)
    return row


# ------------------------------------------------------------------------------------------------------------- reading
def read_copy_manifest(copy: Store) -> Manifest:
    """Return the manifest of a complete copy.

    Raises:
        UsageError: the directory has no manifest, so it is not a complete copy.
    """
    document = copy.read(MANIFEST_FILE)
    if document is None:
        raise UsageError(
            f"the directory has no {MANIFEST_FILE}, so it is not a complete copy",
            path=str(copy),
            advice="give a complete copy, or make the copy again",
        )
    return parse_manifest(document, path=str(copy))


def parse_manifest(document: bytes, *, path: str) -> Manifest:
    try:
        content = json.loads(document)
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']!r} is unknown")
        return Manifest(
            run_id=_text(content["run_id"]),
            now_ms=_number(content["now_ms"]),
            sources=tuple(map(_text, content["sources"])),
            files=tuple(map(_file, content["files"])),
            partitions=tuple(map(_partition, content.get("partitions", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDataError(
            f"the manifest cannot be read: {error}",
            path=f"{path}/{MANIFEST_FILE}",
            advice="restore the manifest from a backup, or make the copy again",
        ) from error


def _file(row: Mapping[str, Any]) -> ManifestFile:
    return ManifestFile(
        name=_name(row["name"]),
        size_bytes=_number(row["size_bytes"]),
        sha256=_optional(row["sha256"], _digest),
        held_in=_optional(row.get("held_in"), _beside),
        source=_optional(row.get("source"), _stamp),
    )


def _digest(value: Any) -> str:
    if not _DIGEST.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is not a SHA-256")
    return str(value)


def _beside(value: Any) -> str:
    if not _BESIDE.fullmatch(_text(value)) or value in ("../.", "../.."):
        raise ValueError(f"{value!r} is not a directory beside the copy")
    return str(value)


def _stamp(row: Mapping[str, Any]) -> FileStamp:
    return FileStamp(
        size_bytes=_number(row["size_bytes"]),
        mtime_ns=_integer(row["mtime_ns"]),
        inode=_optional(row.get("inode"), _integer),
        ctime_ns=_optional(row.get("ctime_ns"), _integer),
    )


def _partition(row: Mapping[str, Any]) -> ManifestPartition:
    return ManifestPartition(
        partition=_name(row["partition"]),
        topic_id=_optional(row.get("topic_id"), _text),
        log_start_offset=_optional(row.get("log_start_offset"), _number),
        log_end_offset=_optional(row.get("log_end_offset"), _number),
        leader_epoch=_optional(row.get("leader_epoch"), _number),
        damage=_optional(row.get("damage"), _text),
    )


def _name(value: Any) -> str:
    name = _text(value)
    if any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
        raise ValueError(f"{name!r} is not the name of a file in the copy")
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: Any) -> int:
    if not 0 <= _integer(value) <= INT64_MAX:
        raise ValueError(f"{value!r} is not a size or an offset")
    return int(value)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _optional(value: Any, parse: Callable[[Any], _Value]) -> _Value | None:
    return None if value is None else parse(value)
