"""Publication of a result as a new, complete log directory; the source is not changed.

    file                     written                 content
    .sediment-output         first, removed last     the run that owns the output; it is checked before every file
    .lock                    only on a local disk    the lock, which excludes a broker and a second run
    <topic-N>/…              by tasks                segments, indexes, snapshots, epochs, partition.metadata
    <checkpoints>            by the driver           offsets of the partitions
    sediment-manifest.json   after all files         name, size and SHA-256 of every file; the output is then complete

Invariants: an output is complete if and only if its manifest exists; nothing changes it afterwards. If a non-empty
directory has neither a manifest nor `.sediment-output`, no file is written to it. A directory that has neither is never
removed. All files in the manifest were durable before the manifest appeared. A broker ignores regular files with
unknown names.

Source: kafka-log 05 §1 step 2e.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sediment.segment_io.buffers import Buffer, count_bytes
from sediment.segment_io.errors import OwnershipError, SourceChangedError, UsageError
from sediment.segment_io.format.names import (
    LOCK_FILE,
    PART_SUFFIX,
    PartFile,
    parse_segment_file,
)
from sediment.segment_io.fs import FileStamp, Fs, open_to_read, without_links
from sediment.segment_io.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    ManifestPartition,
    format_manifest,
)
from sediment.segment_io.partition.checkpoint_files import LOG_DIRECTORY_FILES
from sediment.segment_io.store_fs import StoreFs
from sediment.segment_io.stores import CHUNK_BYTES, Modes, Store, StoredFile

CLAIM_FILE = ".sediment-output"

_SCHEMA = 1
_AS_UMASK = Modes()
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


class LinkKind(StrEnum):
    """A reflink is a separate file that shares disk blocks until either file changes.

    A hard link is a second name of the same file.
    """

    REFLINK = "reflink"
    HARD = "hard"


def check_output_path(output: Store, sources: Sequence[Store]) -> None:
    kind, path_name = output.identity
    for source in sources:
        source_kind, source_name = source.identity
        if kind == source_kind and path_name == source_name:
            raise UsageError("the output is the source", path=str(output), advice="name another directory")
        if kind == source_kind and (_is_below(path_name, source_name) or _is_below(source_name, path_name)):
            raise UsageError(
                f"the output is inside the source {source}, or contains it",
                path=str(output),
                advice="give a directory beside the source",
            )
    path = output.local_path
    if path is not None:
        for parent in without_links(path).parents:
            if any((parent / name).exists() for name in LOG_DIRECTORY_FILES):
                raise UsageError(
                    f"the output would be inside the log directory {parent}, and a broker would not start on such a "
                    "directory",
                    path=str(output),
                    advice="give a directory outside it",
                )
    if output.is_file():
        raise UsageError("the output is a file", path=str(output), advice="name a directory")
    if path is not None:
        blocking = next((each for each in (path, *path.parents) if os.path.lexists(each) and not each.is_dir()), None)
        if blocking is not None:
            raise UsageError(f"{blocking} is not a directory", path=str(output), advice="name another directory")
    manifest = output.read(MANIFEST_FILE)
    if manifest is not None:
        raise UsageError(
            f"the output is already complete{_by_run(manifest)}",
            path=str(output),
            advice="give another directory, or remove this one first",
        )
    if output.read(CLAIM_FILE) is None and any(not _is_claim_file(name) for name in output.files()):
        raise UsageError(
            "the output is not empty, and no unfinished run wrote it",
            path=str(output),
            advice="give a directory that is empty or does not exist",
        )


def _is_below(name: str, other: str) -> bool:
    return name.startswith(other.rstrip("/") + "/")


def _is_claim_file(name: str) -> bool:
    return name == LOCK_FILE or (name.startswith(f"{CLAIM_FILE}.") and name.endswith(PART_SUFFIX))


def _by_run(document: bytes) -> str:
    run_id = _run_of(document)
    return f" (run {run_id})" if run_id else ""


def _run_of(document: bytes) -> str | None:
    try:
        return str(json.loads(document)["run_id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class Publisher:
    def __init__(self, store: Store, run_id: str, modes: Modes = _AS_UMASK) -> None:
        self.store = store
        self.run_id = run_id
        self.modes = modes
        self._fs = Fs()

    def begin(self) -> str | None:
        """Call `check_output_path` first, and lock the directory if it is local."""
        self.make_directory()
        claim = self.store.read(CLAIM_FILE)
        before = None
        if claim is not None:
            before = _run_of(claim) or "unknown"
            # A claim file always exists, so a later run can start again if this run is killed here.
            self._claim()
            for name in self.store.files():
                if "/" not in name and name not in (CLAIM_FILE, LOCK_FILE):
                    self.store.delete(name)
            for folder in self.store.folders():
                self.store.delete_folder(folder)
        for name in self.store.files():
            if _is_claim_file(name) and name != LOCK_FILE:
                self.store.delete(name)
        self._claim()
        return before

    def make_directory(self) -> None:
        self.store.make_folder("", self.modes.folder)

    def _claim(self) -> None:
        content = json.dumps({"schema": _SCHEMA, "run_id": self.run_id}).encode() + b"\n"
        part = f"{CLAIM_FILE}.{self.run_id}{PART_SUFFIX}"
        self.store.put(CLAIM_FILE, [content], part=part, mode=self.modes.file)
        self.store.sync()

    def withdraw(self) -> None:
        self._claim()
        self.store.delete(MANIFEST_FILE)
        self.store.sync()

    def check(self) -> None:
        claim = self.store.read(CLAIM_FILE)
        if claim is None or _run_of(claim) != self.run_id:
            raise OwnershipError(
                "the output no longer belongs to this run, or is not mounted on this host",
                path=str(self.store),
                advice="run one command at a time on this output, and mount it on every host that runs tasks",
            )

    def publish(
        self,
        name: str,
        chunks: Iterable[Buffer],
        *,
        attempt: str,
        mtime_ns: int | None = None,
        source: FileStamp | None = None,
        mode: int | None = None,
    ) -> ManifestFile:
        """The file gets the permissions `mode`, by default those of `modes`.

        `source` is recorded in the manifest, for a later incremental copy.
        """
        self.check()
        digest = hashlib.sha256()
        part = f"{name}.{self.run_id}-{attempt}{PART_SUFFIX}"
        wanted = self.modes.file if mode is None else mode
        written = self.store.put(name, _digested(chunks, digest.update), part=part, mode=wanted)
        if mtime_ns is not None:
            self.store.set_mtime_ns(name, mtime_ns)
        return ManifestFile(name, written, digest.hexdigest(), source=source)

    def link(self, name: str, source: Path, kind: LinkKind, *, attempt: str) -> bool:
        """The name is durable only after the folder is synced.

        Links need a local output.
        """
        root = self.store.local_path
        if root is None:
            return False
        self.check()
        target = root / name
        if kind is LinkKind.HARD:
            # An earlier attempt may have created the link.
            self._fs.unlink(target, missing_ok=True)
            try:
                self._fs.link(without_links(source), target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return False
            return True
        part = root / f"{name}.{self.run_id}-{attempt}{PART_SUFFIX}"
        if not self._fs.reflink(source, part):
            return False
        self._fs.set_mode(part, self._fs.mode(source) or 0)
        self._fs.set_mtime_ns(part, source.stat().st_mtime_ns)
        self._fs.sync_file(part)
        self._fs.rename(part, target)
        return True

    def finish(
        self,
        files: Iterable[ManifestFile],
        *,
        sources: Sequence[str],
        now_ms: int,
        partitions: Iterable[ManifestPartition] = (),
    ) -> None:
        """Files that are in an earlier copy (`held_in`) are not checked."""
        self.check()
        listed = sorted(files, key=lambda file: file.name)
        here = [file for file in listed if file.held_in is None]
        found = self.store.files()
        for file in here:
            present = found.get(file.name)
            if present is None or present.size_bytes != file.size_bytes:
                raise OwnershipError(
                    "a file of the output is missing, or its size is not the one that this run wrote",
                    path=f"{self.store}/{file.name}",
                    advice="make sure that no other process changes the output and run again",
                )
        # These are parts of abandoned attempts.
        for name in found.keys() - {file.name for file in here} - {CLAIM_FILE, LOCK_FILE}:
            self.store.delete(name)
        for folder in {file.folder for file in here}:
            self.store.sync(folder)
        self.store.sync()
        manifest = Manifest(
            run_id=self.run_id,
            now_ms=now_ms,
            sources=tuple(sources),
            files=tuple(listed),
            partitions=tuple(sorted(partitions, key=lambda partition: partition.partition)),
        )
        part = f"{MANIFEST_FILE}.{self.run_id}{PART_SUFFIX}"
        self.store.put(MANIFEST_FILE, format_manifest(manifest), part=part, mode=self.modes.file)
        self.store.sync()
        self.store.delete(CLAIM_FILE)
        self.store.sync()


def file_chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    with open(open_to_read(path), "rb", buffering=0) as file:
        while left:
            chunk = file.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise SourceChangedError(
                    "the file became shorter while it was read",
                    path=str(path),
                    advice="stop the broker or work on a copy; a run with --output takes no lock on its source",
                )
            left -= len(chunk)
            yield chunk


def sha256_of(path: Path, size_bytes: int) -> str:
    digest = hashlib.sha256()
    for chunk in file_chunks(path, size_bytes):
        digest.update(chunk)
    return digest.hexdigest()


def _digested(chunks: Iterable[Buffer], update: Callable[[Buffer], object]) -> Iterator[Buffer]:
    for chunk in chunks:
        update(chunk)
        yield chunk


# ---------------------------------------------------------------------------------------------------------- in a task
@dataclass(slots=True)
class _Part:
    written: ManifestFile
    mtime_ns: int | None = None


class PublishingFs(Fs):
    """`used` is called with the number of bytes written to the output.

    A file of the output gets the permissions of the file of the same name in the same folder of `source`, and otherwise
    those of the publisher's modes.
    """

    def __init__(self, publisher: Publisher | None, folder: str, used: Callable[[int], None], *, source: Store) -> None:
        self._publisher = publisher
        self._folder = folder
        self._used = used
        self._like = source
        self._parts: dict[str, _Part] = {}

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        if not _is_part(path):
            return super().write_new(path, chunks)
        if self._publisher is None:
            return sum(memoryview(chunk).nbytes for chunk in chunks)
        self._publisher.check()
        digest = hashlib.sha256()
        name = f"{self._folder}/{path.name}"
        pieces = count_bytes(chunks, self._used, most_bytes=CHUNK_BYTES)
        written = self._publisher.store.write(name, _digested(pieces, digest.update))
        self._parts[path.name] = _Part(ManifestFile(name, written, digest.hexdigest()))
        return written

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        if path.name in self._parts:
            self._parts[path.name].mtime_ns = mtime_ns
        elif not _is_part(path):
            super().set_mtime_ns(path, mtime_ns)

    def sync_file(self, path: Path) -> None:
        """Sync a file, unless it is a part, which is already durable when it has been written."""
        if not _is_part(path):
            super().sync_file(path)

    def adopt_owner(self, path: Path, like: Path) -> None:
        """Do nothing: the output belongs to the user of the run."""
        return

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if not _is_part(path):
            super().unlink(path, missing_ok=missing_ok)
        elif self._parts.pop(path.name, None) is not None and self._publisher is not None:
            self._publisher.store.delete(f"{self._folder}/{path.name}")

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self._publisher is None else self._publisher.store.free_bytes()

    def take(self, part: PartFile) -> ManifestFile:
        assert self._publisher is not None
        self._publisher.check()
        held = self._parts.pop(part.part_name)
        name = f"{self._folder}/{part.final_name}"
        store = self._publisher.store
        mode = self._like.mode(name)
        store.set_mode(held.written.name, self._publisher.modes.file if mode is None else mode)
        store.move(held.written.name, name)
        if held.mtime_ns is not None:
            store.set_mtime_ns(name, held.mtime_ns)
        return ManifestFile(name, held.written.size_bytes, held.written.sha256)

    def discard(self) -> None:
        for name in list(self._parts):
            self.unlink(Path(name))


class SourcePublishingFs(PublishingFs, StoreFs):
    def __init__(
        self,
        publisher: Publisher | None,
        source: Store,
        folder: str,
        files: Mapping[str, StoredFile],
        used: Callable[[int], None],
    ) -> None:
        StoreFs.__init__(self, source, folder, files)
        PublishingFs.__init__(self, publisher, folder, used, source=source)


def _is_part(path: Path) -> bool:
    parsed = parse_segment_file(path.name)
    return parsed is not None and parsed.state == PART_SUFFIX
