"""A filesystem that knows what a power loss leaves of a whole directory: what was synced, and nothing else.

Next to the directory it keeps a second one, in which a file has its content as of its last sync, and a folder its names
as of its last sync.  A process on this filesystem may be killed at any time; `power_loss` then puts the second one in
the place of the first one.

    files/<inode>      the content of a file as of its last sync
    folders/<number>   the names in a folder as of its last sync: hard links to files, symbolic links to folders

Invariant: a sync has returned only after its effect is in the second directory.  Nothing is really synced.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.fs import Fs, OpenFile

_ROOT = "0"
_CHUNK_BYTES = 1 << 20


def power_loss(root: Path, durable: Path) -> None:
    """Make `root` what it was after its last syncs."""
    shutil.rmtree(root)
    shutil.copytree(durable / "folders" / _ROOT, root)


class UnsyncedFs(Fs):
    """The local filesystem for a process that owns `root`; all files of `root` are durable at first."""

    def __init__(self, root: Path, durable: Path) -> None:
        self._files, self._links = durable / "files", durable / "folders"
        self._lock = threading.RLock()
        self._folders: dict[int, str] = {}
        self._numbers = count()
        shutil.rmtree(durable, ignore_errors=True)
        self._files.mkdir(parents=True)
        for folder, _, files in os.walk(root):
            self._link_of(Path(folder))
            for name in files:
                self.sync_file(Path(folder, name))
        for folder, _, _ in os.walk(root, topdown=False):
            self.sync_directory(Path(folder))

    # ------------------------------------------------------------------------------------------------------------ syncs
    def keep(self, descriptor: int) -> None:
        """Note that the content of a file is durable."""
        status = os.fstat(descriptor)
        with self._lock:
            kept = os.open(self._files / str(status.st_ino), os.O_WRONLY | os.O_CREAT)
            try:
                # In place, and cut at the end: a kill in between leaves every byte that was durable before.
                position = 0
                while part := os.pread(descriptor, _CHUNK_BYTES, position):
                    position += os.pwrite(kept, part, position)
                os.ftruncate(kept, position)
                os.utime(kept, ns=(status.st_mtime_ns, status.st_mtime_ns))
            finally:
                os.close(kept)

    def sync_file(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.keep(descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            kept = self._link_of(path)
            names = set()
            for entry in os.scandir(path):
                names.add(entry.name)
                if entry.is_dir():
                    self._name_folder(kept / entry.name, self._link_of(Path(entry.path)).name)
                else:
                    self._name_file(kept / entry.name, entry.inode())
            for name in set(os.listdir(kept)) - names:
                (kept / name).unlink()

    def _link_of(self, folder: Path) -> Path:
        """Return the folder's counterpart, which has no names before its first sync."""
        inode = folder.stat().st_ino
        if inode not in self._folders:
            self._folders[inode] = str(next(self._numbers))
            (self._links / self._folders[inode]).mkdir(parents=True)
        return self._links / self._folders[inode]

    def _name_folder(self, name: Path, number: str) -> None:
        if not name.is_symlink() or name.readlink() != Path("..", number):
            name.unlink(missing_ok=True)
            name.symlink_to(f"../{number}")

    def _name_file(self, name: Path, inode: int) -> None:
        kept = self._files / str(inode)
        kept.touch()
        if not name.exists() or not name.samefile(kept):
            between = self._links / "between"
            between.unlink(missing_ok=True)
            between.hardlink_to(kept)
            between.rename(name)

    # ---------------------------------------------------------------------------------------------------------- changes
    def open_file(self, path: Path) -> OpenFile:
        return _UnsyncedFile(self, path, create=False)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        with self._lock:
            is_new = not path.exists()
            file = _UnsyncedFile(self, path, create=True)
            if is_new:
                self._forget(path)
        return file

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        with self._lock:
            size_bytes = Fs.write_new(self, path, chunks)
            self._forget(path)
        return size_bytes

    def make_directory(self, path: Path, *, like: Path | None = None) -> None:
        self.make_unsynced_directory(path, like=like or path.parent)
        self.sync_directory(path.parent)

    def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
        with self._lock:
            Fs.make_unsynced_directory(self, path, like=like)
            self._folders.pop(path.stat().st_ino, None)

    def _forget(self, path: Path) -> None:
        """Note that a file is new, although its inode may be that of a file that was removed."""
        (self._files / str(path.stat().st_ino)).unlink(missing_ok=True)


class _UnsyncedFile(OpenFile):
    """An open file of an UnsyncedFs."""

    __slots__ = ("_fs",)

    def __init__(self, fs: UnsyncedFs, path: Path, *, create: bool) -> None:
        self._fs = fs
        OpenFile.__init__(self, path, create=create)

    def sync(self) -> None:
        self._fs.keep(self.descriptor)
