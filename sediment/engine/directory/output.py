"""Publishing: a complete log directory, written beside the source instead of into it.

    .sediment-output         from the beginning to the end   whose the output is; looked at before every file
    .lock                    on this machine                 no broker, and no second run
    <topic-N>/…              by tasks                        segments, indexes, snapshots, epochs, partition.metadata
    <checkpoints>            by the driver
    sediment-manifest.json   last                            name, size, SHA-256 of every file: the output is complete

Invariants: an output is complete if and only if its manifest is there, and then nothing touches it again; what has
neither manifest nor `.sediment-output` is never written to unless it is empty, nor removed; whatever the manifest lists
was durable before it appeared.  A broker ignores plain files whose names it does not know.

Source: kafka-log 05 §1 step 2e.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import OwnershipError, SourceChangedError, UsageError
from sediment.segment_io.format.names import (
    LOCK_FILE,
    PART_SUFFIX,
    PartFile,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs, open_to_read
from sediment.segment_io.partition.log_dir import LOG_DIRECTORY_FILES
from sediment.segment_io.stores import CHUNK_BYTES, Store

CLAIM_FILE = ".sediment-output"
MANIFEST_FILE = "sediment-manifest.json"

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of the output by its name in it; `sha256` in hex."""

    name: str
    size_bytes: int
    sha256: str


def check_output_path(output: Store, sources: Sequence[Store]) -> None:
    """Make sure that `output` is neither a source nor in one, nor in another log directory, nor complete already.

    Raises:
        UsageError: it is; nothing was touched.
    """
    kind, place = output.identity
    for source in sources:
        source_kind, source_place = source.identity
        if kind == source_kind and place == source_place:
            raise UsageError("the output is the source", path=str(output), advice="name another directory")
        if kind == source_kind and (_is_below(place, source_place) or _is_below(source_place, place)):
            raise UsageError(
                f"the output and the source {source} lie in one another",
                path=str(output),
                advice="name a directory beside it",
            )
    path = output.local_path
    if path is not None:
        for parent in path.resolve().parents:
            if any((parent / name).exists() for name in LOG_DIRECTORY_FILES):
                raise UsageError(
                    f"the output would be inside the log directory {parent}, and a broker does not start on that",
                    path=str(output),
                    advice="name a place outside it",
                )
    if output.is_file():
        raise UsageError("the output is a file", path=str(output), advice="name a directory")
    manifest = output.read(MANIFEST_FILE)
    if manifest is not None:
        raise UsageError(
            f"the output is complete already{_by_whom(manifest)}",
            path=str(output),
            advice="name another directory, or remove this one first",
        )
    if output.read(CLAIM_FILE) is None and any(not _is_of_a_claim(name) for name in output.files()):
        raise UsageError(
            "the output is not empty, and no run of compact began it",
            path=str(output),
            advice="name a directory that is empty or does not exist",
        )


def _is_below(place: str, other: str) -> bool:
    return place.startswith(other.rstrip("/") + "/")


def _is_of_a_claim(name: str) -> bool:
    """Whether a run that had begun nothing else leaves this: the lock, or a claim that a crash cut off."""
    return name == LOCK_FILE or (name.startswith(f"{CLAIM_FILE}.") and name.endswith(PART_SUFFIX))


def _by_whom(document: bytes) -> str:
    run_id = _run_of(document)
    return f" (run {run_id})" if run_id else ""


def _run_of(document: bytes) -> str | None:
    try:
        return str(json.loads(document)["run_id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class Publisher:
    """What one run writes to an output; tasks have copies of it."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = run_id

    def begin(self) -> str | None:
        """Make the output ours, empty; returns the run whose unfinished files had to go, if there were any.

        `check_output_path` comes first, and on this machine the directory is locked.
        """
        self.store.make_folder("")
        claim = self.store.read(CLAIM_FILE)
        before = None
        if claim is not None:
            before = _run_of(claim) or "unknown"
            # Never without a claim: a run that ends in here is started over too.
            self._claim()
            for name in self.store.files():
                if "/" not in name and name not in (CLAIM_FILE, LOCK_FILE):
                    self.store.delete(name)
            for folder in self.store.folders():
                self.store.delete_folder(folder)
        for name in self.store.files():
            if _is_of_a_claim(name) and name != LOCK_FILE:
                self.store.delete(name)
        self._claim()
        return before

    def _claim(self) -> None:
        content = json.dumps({"schema": _SCHEMA, "run_id": self.run_id}).encode() + b"\n"
        self.store.put(CLAIM_FILE, [content], part=f"{CLAIM_FILE}.{self.run_id}{PART_SUFFIX}")
        self.store.sync()

    def check(self) -> None:
        """Make sure that the output is still ours.

        Raises:
            OwnershipError: another run took it over, somebody removed it, or this host has another disk there.
        """
        claim = self.store.read(CLAIM_FILE)
        if claim is None or _run_of(claim) != self.run_id:
            raise OwnershipError(
                "the output does not belong to this run any more, or this host does not see it",
                path=str(self.store),
                advice="let one run at a time write there, and let every host that runs tasks see it",
            )

    def publish(
        self, name: str, chunks: Iterable[Buffer], *, attempt: str, mtime_ns: int | None = None
    ) -> PublishedFile:
        """Write one file; it is durable, though its name is so only once its folder is synced."""
        self.check()
        digest = hashlib.sha256()
        part = f"{name}.{self.run_id}-{attempt}{PART_SUFFIX}"
        written = self.store.put(name, _digested(chunks, digest.update), part=part)
        if mtime_ns is not None:
            self.store.set_mtime_ns(name, mtime_ns)
        return PublishedFile(name, written, digest.hexdigest())

    def finish(self, files: Iterable[PublishedFile], *, sources: Sequence[str], now_ms: int) -> None:
        """Write the manifest of `files`, once all of them are there and nothing else is.

        Raises:
            OwnershipError: the output is not ours, or files in it are not those that were written.
        """
        self.check()
        listed = sorted(files, key=lambda file: file.name)
        found = self.store.files()
        for file in listed:
            there = found.get(file.name)
            if there is None or there.size_bytes != file.size_bytes:
                raise OwnershipError(
                    "a file of the output is not as this run wrote it",
                    path=f"{self.store}/{file.name}",
                    advice="let nobody else write there and run again",
                )
        # Parts of attempts that Spark gave up on.
        for name in found.keys() - {file.name for file in listed} - {CLAIM_FILE, LOCK_FILE}:
            self.store.delete(name)
        for folder in {file.name.rpartition("/")[0] for file in listed}:
            self.store.sync(folder)
        self.store.sync()
        document = {
            "schema": _SCHEMA,
            "run_id": self.run_id,
            "now_ms": now_ms,
            "sources": list(sources),
            "files": [asdict(file) for file in listed],
        }
        content = json.dumps(document, indent=1).encode() + b"\n"
        self.store.put(MANIFEST_FILE, [content], part=f"{MANIFEST_FILE}.{self.run_id}{PART_SUFFIX}")
        self.store.sync()
        self.store.delete(CLAIM_FILE)
        self.store.sync()


def file_chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """The first `size_bytes` of a file of this machine, in pieces.

    Raises:
        SourceChangedError: it is shorter.
    """
    left = size_bytes
    with open(open_to_read(path), "rb", buffering=0) as file:
        while left:
            piece = file.read(min(left, CHUNK_BYTES))
            if not piece:
                raise SourceChangedError(
                    "the file became shorter while it was read",
                    path=str(path),
                    advice="stop the broker or work on a copy; a run with --output takes no lock on its source",
                )
            left -= len(piece)
            yield piece


def _digested(chunks: Iterable[Buffer], update: Callable[[Buffer], object]) -> Iterator[Buffer]:
    for chunk in chunks:
        update(chunk)
        yield chunk


# ---------------------------------------------------------------------------------------------------------- in a task
@dataclass(slots=True)
class _Part:
    """A new file on its way: what of it was written, and the time it is to have."""

    written: PublishedFile
    mtime_ns: int | None = None


class PublishingFs(Fs):
    """The file operations of one task: `.part` files go straight to the output, all else happens in its directory.

    `used` is called with the bytes that go to the output.  Without a publisher they are only counted, for a dry run.
    """

    def __init__(self, publisher: Publisher | None, folder: str, used: Callable[[int], None]) -> None:
        self._publisher = publisher
        self._folder = folder
        self._used = used
        self._parts: dict[str, _Part] = {}

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        """A part is digested on its way to the output."""
        if not _is_part(path):
            return super().write_new(path, chunks)
        if self._publisher is None:
            return sum(memoryview(chunk).nbytes for chunk in chunks)
        self._publisher.check()
        digest = hashlib.sha256()
        name = f"{self._folder}/{path.name}"
        written = self._publisher.store.write(name, _digested(self._counted(chunks), digest.update))
        self._parts[path.name] = _Part(PublishedFile(name, written, digest.hexdigest()))
        return written

    def _counted(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            for start in range(0, len(view), CHUNK_BYTES):
                piece = view[start : start + CHUNK_BYTES]
                yield piece
                self._used(len(piece))

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        """A part gets its time with its final name."""
        if path.name in self._parts:
            self._parts[path.name].mtime_ns = mtime_ns
        elif not _is_part(path):
            super().set_mtime_ns(path, mtime_ns)

    def sync_file(self, path: Path) -> None:
        """A part is durable once it is written."""
        if not _is_part(path):
            super().sync_file(path)

    def adopt_owner(self, path: Path, like: Path) -> None:
        """The output belongs to who runs this."""
        return

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a part from the output, or a name from the working directory."""
        if not _is_part(path):
            super().unlink(path, missing_ok=missing_ok)
        elif self._parts.pop(path.name, None) is not None and self._publisher is not None:
            self._publisher.store.delete(f"{self._folder}/{path.name}")

    def free_bytes(self, path: Path) -> int:
        """Room where parts go."""
        return super().free_bytes(path) if self._publisher is None else self._publisher.store.free_bytes()

    def take(self, part: PartFile) -> PublishedFile:
        """Give a part its final name; durable once the folder is synced."""
        assert self._publisher is not None
        self._publisher.check()
        held = self._parts.pop(part.part_name)
        name = f"{self._folder}/{part.final_name}"
        store = self._publisher.store
        store.move(held.written.name, name)
        if held.mtime_ns is not None:
            store.set_mtime_ns(name, held.mtime_ns)
        return PublishedFile(name, held.written.size_bytes, held.written.sha256)

    def discard(self) -> None:
        """Remove the parts that were not taken."""
        for name in list(self._parts):
            self.unlink(Path(name))


def _is_part(path: Path) -> bool:
    parsed = parse_segment_file(path.name)
    return parsed is not None and parsed.state == PART_SUFFIX
