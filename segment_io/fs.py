"""The file operations all share: the only caller of os.rename and os.unlink, and where tests inject faults.

Invariants: `rename` replaces atomically and stays in one directory; nothing is durable before `sync_file` and
`sync_directory` returned; no operation changes the bytes of an inode that existed before it (files are written under
new names and renamed over old ones), except that `truncate` cuts off its end.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sediment.segment_io.errors import OwnerNotKeptError

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One directory entry; `mtime_ns` is the modification time in nanoseconds since the epoch."""

    name: str
    size_bytes: int
    mtime_ns: int
    is_directory: bool


class Fs:
    """The local filesystem.  Tests subclass it to fail, tear or lose operations."""

    def is_directory(self, path: Path) -> bool:
        """Whether `path` is a directory, links followed."""
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        """Whether `path` exists."""
        return path.exists()

    def scan(self, directory: Path) -> list[FileEntry]:
        """Entries of `directory` in name order; an entry that vanishes meanwhile is left out."""
        entries = []
        with os.scandir(directory) as found:
            for item in found:
                try:
                    status = item.stat()
                    entries.append(FileEntry(item.name, status.st_size, status.st_mtime_ns, item.is_dir()))
                except FileNotFoundError:
                    continue
        return sorted(entries, key=lambda entry: entry.name)

    def entry(self, path: Path) -> FileEntry | None:
        """What `scan` would say of one path, links followed; None where nothing is there."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return FileEntry(path.name, status.st_size, status.st_mtime_ns, stat.S_ISDIR(status.st_mode))

    def read_bytes(self, path: Path) -> bytes:
        """The whole content."""
        return path.read_bytes()

    def read_range(self, path: Path, position: int, count: int) -> bytes:
        """`count` bytes from `position`, fewer at the end of the file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, count, position)
        finally:
            os.close(descriptor)

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        """Create `path` (it must not exist), write `chunks`, return the bytes written.  Not yet durable."""
        written = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                while view:
                    count = os.write(descriptor, view)
                    written += count
                    view = view[count:]
        finally:
            os.close(descriptor)
        return written

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        """Kafka's way to rewrite a small file: `<path>.tmp`, sync, rename over `path`, sync the directory.

        Where `path` does not exist yet, the new file gets the owner, group and mode of `like`.
        """
        temporary = path.with_name(path.name + ".tmp")
        self.unlink(temporary, missing_ok=True)
        self.write_new(temporary, [content])
        model = path if path.exists() else like
        if model is not None:
            self.adopt_owner(temporary, model)
        self.sync_file(temporary)
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file down to its first `size_bytes`, in place; not yet durable.

        The one change of an existing inode: what a crash tore off the end of a segment goes, and a copy of the rest
        could need a gigabyte that a full disk does not have.
        """
        os.truncate(path, size_bytes)

    def sync_file(self, path: Path) -> None:
        """Make the content and metadata of a file durable."""
        _sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        """Make renames, creations and removals in a directory durable."""
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a directory, replacing `target` atomically."""
        os.rename(source, target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        """Set access and modification time."""
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def adopt_owner(self, path: Path, like: Path) -> None:
        """Give `path` the owner, group and mode of `like`.

        Raises:
            OwnerNotKeptError: this process may not.
        """
        wanted = like.stat()
        have = path.stat()
        try:
            if (have.st_uid, have.st_gid) != (wanted.st_uid, wanted.st_gid):
                os.chown(path, wanted.st_uid, wanted.st_gid)
            if have.st_mode != wanted.st_mode:
                os.chmod(path, wanted.st_mode & 0o7777)
        except PermissionError as error:
            raise OwnerNotKeptError(
                f"new files cannot be given owner {wanted.st_uid} and group {wanted.st_gid}",
                path=str(like),
                advice="run as that user or as root",
            ) from error

    def free_bytes(self, path: Path) -> int:
        """Bytes that may still be written to the filesystem of `path`."""
        return shutil.disk_usage(path).free


class PretendingFs(Fs):
    """Reads for real and only counts what would be written: what a dry run works on."""

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        return sum(memoryview(chunk).nbytes for chunk in chunks)

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        return None

    def truncate(self, path: Path, size_bytes: int) -> None:
        return None

    def sync_file(self, path: Path) -> None:
        return None

    def sync_directory(self, path: Path) -> None:
        return None

    def rename(self, source: Path, target: Path) -> None:
        return None

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        return None

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        return None

    def adopt_owner(self, path: Path, like: Path) -> None:
        return None


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
