"""Copies of a partition's files, each with its digest for the manifest.

To put a file into a copy, the methods that `CopyRules` allows are tried in this order, until one succeeds:

    held      a file that is unchanged since the earlier copy is not copied; the manifest names the earlier copy
    linked    the file becomes a reflink or a hard link: to the source's file, or to the earlier copy's unchanged file
    copied    the file is read once, digested and written

A file is unchanged if the earlier copy has a file of the same name, partition, topic id and size, and if one of the
following checks succeeds:

    trusted   size, modification time, inode and ctime equal the earlier copy's stamp of the file; the file is not read
    compared  the SHA-256 is the same as in the earlier copy; the file is read but not written

Only files of closed segments are trusted or compared. An object store has no inode and no ctime, so there a file is
trusted by its size and by the modification time that the server sets.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sediment.engine.copying.earlier_copy import EarlierFiles
from sediment.engine.directory.output import LinkKind, Publisher
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptDataError, NoSpaceError, SourceChangedError
from sediment.segment_io.format.layout import INT64_MAX, MAX_SEGMENT_BYTES
from sediment.segment_io.format.names import SegmentFileKind, parse_segment_file
from sediment.segment_io.fs import FileStamp
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.packing import pack_in_order
from sediment.segment_io.stores import Store, StoredFile

OnBytes = Callable[[int], None]
"""A callback that gets the number of bytes after each read.  It may wait, or raise an error to end the copy."""

_PIECE_BYTES = 256 << 20

SETTLED_NS = 2_000_000_000
"""A stamp is stored only if the last change is at least this old; filesystem clocks tick at least every second."""


class CopyMethod(StrEnum):
    COPIED = "copied"
    REFLINKED = "reflinked"
    HARD_LINKED = "hard-linked"
    HELD = "held"


_METHOD_OF_LINK = {LinkKind.REFLINK: CopyMethod.REFLINKED, LinkKind.HARD: CopyMethod.HARD_LINKED}


@dataclass(frozen=True, slots=True)
class CopyRules:
    """Only closed segments get hard links.

    Without `digests_links`, linked files are not read. The manifest then contains the digest of a linked file only if
    the earlier copy has it. With `holds_unchanged`, unchanged files stay in the earlier copy only.
    """

    links: tuple[LinkKind, ...] = ()
    earlier_links: tuple[LinkKind, ...] = ()
    digests_links: bool = True
    holds_unchanged: bool = False


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """`closed` names the files that no broker will change again (`closed_files`).

    `folder_mode` are the permissions of a new folder, or None for those that the umask allows. A copied file gets the
    permissions of its source.
    """

    source: Store
    folder: str
    files: Mapping[str, StoredFile]
    target: str
    closed: frozenset[str] = frozenset()
    earlier: EarlierFiles | None = None
    rules: CopyRules = field(default_factory=CopyRules)
    folder_mode: int | None = None

    def weight(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True, slots=True)
class CopiedFile:
    file: ManifestFile
    method: CopyMethod
    read_bytes: int
    written_bytes: int


def closed_files(names: Iterable[str], *, below_offset: int = INT64_MAX) -> frozenset[str]:
    """For hard links, `below_offset` is the lower of the recovery point and the high watermark.

    A broker may truncate segments above this offset in place.
    """
    parsed = [(name, file) for name in names if (file := parse_segment_file(name)) is not None and not file.state]
    bases = sorted(file.base_offset for _, file in parsed if file.kind is SegmentFileKind.LOG)
    ends = [base for base in bases[1:] if base <= below_offset]
    end_offset = max(ends, default=0)
    return frozenset(name for name, file in parsed if file.base_offset < end_offset)


def in_pieces(names: Iterable[str], files: Mapping[str, StoredFile]) -> list[list[str]]:
    return pack_in_order(names, lambda name: files[name].size_bytes, _PIECE_BYTES)


def copy_partition(
    work: PartitionCopy, publisher: Publisher, *, attempt: str, on_bytes: OnBytes
) -> tuple[CopiedFile, ...]:
    _check_sizes(work)
    if not work.rules.links and work.earlier is None:
        _check_space(work, publisher.store)
    publisher.store.make_folder(work.target, work.folder_mode)
    copied = tuple(_FileCopy(work, name, publisher, attempt, on_bytes).made() for name in work.files)
    publisher.store.sync(work.target)
    return copied


def _check_sizes(work: PartitionCopy) -> None:
    for name, file in work.files.items():
        if file.size_bytes > MAX_SEGMENT_BYTES:
            raise CorruptDataError(
                f"a file of {file.size_bytes} bytes is larger than any file of a log that a broker opens",
                partition=work.folder or None,
                path=f"{work.source}/{work.folder}/{name}",
                advice="restore it from a replica or a backup",
            )


def _check_space(work: PartitionCopy, target: Store) -> None:
    needed, free = sum(_allocated_bytes(work, name) for name in work.files), target.free_bytes()
    if needed > free:
        raise NoSpaceError(
            f"the files to copy need {needed} bytes, and {free} bytes are free",
            partition=work.folder or None,
            path=str(target),
            advice="free space, or name a directory on a larger disk",
        )


def _allocated_bytes(work: PartitionCopy, name: str) -> int:
    """Return the bytes that a copy of a file needs on a disk; the holes of a local file stay holes."""
    try:
        found = work.source.allocated_bytes(f"{work.folder}/{name}")
    except FileNotFoundError:
        return 0  # the copy of the file will report this
    return work.files[name].size_bytes if found is None else found


@dataclass(slots=True)
class _FileCopy:
    work: PartitionCopy
    file_name: str
    publisher: Publisher
    attempt: str
    on_bytes: OnBytes
    read_bytes: int = 0

    def made(self) -> CopiedFile:
        # A broker still writes to the files of the other segments. It maps their indexes into memory, so their
        # modification times may be updated late.
        work, is_closed = self.work, self.file_name in self.work.closed
        stamp = self._stamp()
        kept = stamp if is_closed and _is_settled(stamp) else None
        earlier = work.earlier.files.get(self.file_name) if work.earlier is not None and is_closed else None
        digest = None
        if earlier is not None and earlier.sha256 is not None and earlier.size_bytes == stamp.size_bytes:
            if earlier.source is not None and earlier.source == stamp:
                digest = earlier.sha256
            elif work.rules.holds_unchanged or work.rules.earlier_links:
                digest = self._digest()
        unchanged = earlier if earlier is not None and digest == earlier.sha256 else None
        if unchanged is not None and (held := self._held(unchanged, kept)) is not None:
            return held
        linked = self._linked(stamp, kept, digest) or (self._linked_to_earlier(unchanged, kept) if unchanged else None)
        return linked or self._copied(stamp, kept)

    @property
    def _source_name(self) -> str:
        return f"{self.work.folder}/{self.file_name}" if self.work.folder else self.file_name

    @property
    def _target_name(self) -> str:
        return f"{self.work.target}/{self.file_name}" if self.work.target else self.file_name

    def _stamp(self) -> FileStamp:
        stamp, listed = self.work.source.stamp(self._source_name), self.work.files[self.file_name]
        if stamp is None or (stamp.size_bytes, stamp.mtime_ns) != (listed.size_bytes, listed.mtime_ns):
            raise self._changed("is not the file that the driver listed")
        return stamp

    def _changed(self, what: str) -> SourceChangedError:
        return SourceChangedError(
            f"the file {what}",
            partition=self.work.folder or None,
            path=f"{self.work.source}/{self._source_name}",
            advice="stop the broker or work on a snapshot; a copy takes no lock on its source",
        )

    def _held(self, unchanged: ManifestFile, kept: FileStamp | None) -> CopiedFile | None:
        assert self.work.earlier is not None
        holder = self.work.earlier.holder(unchanged)
        if not self.work.rules.holds_unchanged or holder is None:
            return None
        file = ManifestFile(self._target_name, unchanged.size_bytes, unchanged.sha256, holder, kept)
        return CopiedFile(file, CopyMethod.HELD, self.read_bytes, 0)

    def _linked(self, stamp: FileStamp, kept: FileStamp | None, digest: str | None) -> CopiedFile | None:
        work = self.work
        root = work.source.local_path if work.rules.links else None
        if root is None:
            return None
        for kind in self._allowed(work.rules.links):
            if self.publisher.link(self._target_name, root / self._source_name, kind, attempt=self.attempt):
                if digest is None and work.rules.digests_links:
                    digest = self._digest()
                # Every hard link changes the ctime, including links that later copies add, so the stamp would not
                # match.
                stamped = kept if kind is LinkKind.REFLINK else None
                file = ManifestFile(self._target_name, stamp.size_bytes, digest, source=stamped)
                return CopiedFile(file, _METHOD_OF_LINK[kind], self.read_bytes, 0)
        return None

    def _linked_to_earlier(self, unchanged: ManifestFile, kept: FileStamp | None) -> CopiedFile | None:
        assert self.work.earlier is not None
        path = self.work.earlier.path(unchanged)
        for kind in self._allowed(self.work.rules.earlier_links) if path is not None else ():
            assert path is not None
            if self.publisher.link(self._target_name, path, kind, attempt=self.attempt):
                file = ManifestFile(self._target_name, unchanged.size_bytes, unchanged.sha256, source=kept)
                return CopiedFile(file, _METHOD_OF_LINK[kind], self.read_bytes, 0)
        return None

    def _allowed(self, kinds: Iterable[LinkKind]) -> Iterator[LinkKind]:
        return (kind for kind in kinds if kind is LinkKind.REFLINK or self.file_name in self.work.closed)

    def _copied(self, stamp: FileStamp, kept: FileStamp | None) -> CopiedFile:
        made = self.publisher.publish(
            self._target_name,
            self._chunks(),
            attempt=self.attempt,
            mtime_ns=stamp.mtime_ns,
            source=kept,
            mode=self.work.source.mode(self._source_name),
        )
        after = self._stamp()
        if made.size_bytes != stamp.size_bytes or after.inode != stamp.inode:
            raise self._changed("changed while it was read")
        return CopiedFile(made, CopyMethod.COPIED, self.read_bytes, made.size_bytes)

    def _digest(self) -> str:
        found = hashlib.sha256()
        for chunk in self._chunks():
            found.update(chunk)
        self._stamp()
        return found.hexdigest()

    def _chunks(self) -> Iterator[Buffer]:
        left = self.work.files[self.file_name].size_bytes
        for chunk in self.work.source.chunks(self._source_name):
            left -= len(chunk)
            if left < 0:
                raise self._changed("grew while it was read")
            self.read_bytes += len(chunk)
            yield chunk
            self.on_bytes(len(chunk))


def _is_settled(stamp: FileStamp) -> bool:
    # Otherwise, a later change may get the same time from the filesystem's clock, and the stamp would not show it.
    changed_ns = max(stamp.mtime_ns, stamp.ctime_ns or 0)
    return time.time_ns() - changed_ns >= SETTLED_NS
