"""A filesystem with injected faults (after leveldb's fault_injection_test), and a model of the disk below it.

`FaultyFs` does every operation for real and counts those that change or sync something.  At one of them it stops the
process, fails, or writes only half.  `Disk` models the durable state of a directory: file contents as of their last
sync, names as of the last sync of the directory.

Invariants: nothing is really synced, and the model decides which data survives.  Names reach the disk in the order of
their changes, so that a power loss keeps a prefix of the changes since the last sync of the directory.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.fs import Fs, OpenFile

Image = dict[str, tuple[bytes, int]]
"""The files of a directory: name -> content and modification time in nanoseconds."""

PAGE_BYTES = 512  # small, so that small files have several

_Result = TypeVar("_Result")


def read_image(directory: Path) -> Image:
    """Return the files of `directory`, without those of its sub-directories."""
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    return {name: read_file(f"{directory}/{name}") for name in names}


def read_file(path: str) -> tuple[bytes, int]:
    """Return the content of a file and its modification time in nanoseconds.

    Fault tests read thousands of directories, so this makes the fewest system calls, on a path without a `Path`.
    """
    with open(path, "rb", buffering=0) as file:
        return file.readall(), os.fstat(file.fileno()).st_mtime_ns


def write_image(directory: Path, image: Image) -> None:
    """Make `directory` hold exactly `image`; files that are correct already stay untouched."""
    directory.mkdir(parents=True, exist_ok=True)
    present = read_image(directory)
    for name in present.keys() - image.keys():
        (directory / name).unlink()
    for name, (content, mtime_ns) in image.items():
        if present.get(name) != (content, mtime_ns):
            (directory / name).write_bytes(content)
            os.utime(directory / name, ns=(mtime_ns, mtime_ns))


# ------------------------------------------------------------------------------------------------------------- the disk
@dataclass(slots=True, eq=False)
class _Inode:
    """A file, whatever its name; `durable` is its content and modification time after a power loss.

    `content` is its unsynced content after writes to the open file, page by page on its way to the disk; None without.
    """

    durable: tuple[bytes, int]
    content: bytes | None = None

    def survivor(self, chance: random.Random) -> tuple[bytes, int]:
        """Return `durable` with random pages of `content`, which reached the disk; the tail may be zeros."""
        if self.content is None:
            return self.durable
        before, mtime_ns = self.durable
        length = chance.choice(
            (len(before), len(self.content), chance.randint(*sorted((len(before), len(self.content)))))
        )
        survived = bytearray(before[:length].ljust(length, b"\0"))
        for start in range(0, length, PAGE_BYTES):
            if chance.random() < 0.5:
                page = self.content[start : min(start + PAGE_BYTES, length)]
                survived[start : start + len(page)] = page
        return bytes(survived), mtime_ns


@dataclass(slots=True)
class Disk:
    """The part of `directory` that survives a power loss, at first all files in it.

    If it `is_new`, none of its files was ever synced.
    """

    directory: Path
    is_new: bool = False
    _names: dict[str, _Inode] = field(init=False)
    _durable_names: dict[str, _Inode] = field(init=False)
    _pending: list[dict[str, _Inode]] = field(init=False)

    def __post_init__(self) -> None:
        image = {} if self.is_new else read_image(self.directory)
        self._names = {name: _Inode(durable) for name, durable in image.items()}
        self._durable_names = dict(self._names)
        self._pending = []

    def created(self, path: Path) -> None:
        """Note a new file: without a sync its name may survive with half of its content."""
        content = path.read_bytes()
        self._names[path.name] = _Inode((content[: len(content) // 2], path.stat().st_mtime_ns))
        self._changed()

    def renamed(self, source: Path, target: Path) -> None:
        self._names[target.name] = self._names.pop(source.name)
        self._changed()

    def unlinked(self, path: Path) -> None:
        if self._names.pop(path.name, None) is not None:
            self._changed()

    def linked(self, disk: Disk, source: Path, target: Path) -> None:
        """Note a second name for a file that `disk` knows."""
        self._names[target.name] = disk._names[source.name]
        self._changed()

    def moved(self, directory: Path) -> Disk:
        """Note a durable new name of the directory."""
        self.directory = directory
        return self

    def names(self) -> set[str]:
        """Return the names of the files now."""
        return set(self._names)

    def opened(self, path: Path) -> None:
        """Note an opened file, which may be new; without a sync its name may survive without content."""
        if path.name not in self._names:
            self._names[path.name] = _Inode((b"", path.stat().st_mtime_ns))
            self._changed()

    def written(self, path: Path) -> None:
        """Note a write to an open file, or its new size."""
        inode = self._names.get(path.name)
        if inode is not None:
            inode.content = path.read_bytes()

    def synced_file(self, path: Path) -> None:
        inode = self._names.get(path.name)
        if inode is not None:
            inode.durable = (path.read_bytes(), path.stat().st_mtime_ns)
            inode.content = None

    def synced_directory(self) -> None:
        self._durable_names = dict(self._names)
        self._pending = []

    def after_power_loss(self) -> list[Image]:
        """Return the possible states: without the unsynced changes of names, with the first one, … with all of them."""
        return [
            {name: inode.durable for name, inode in sorted(names.items())}
            for names in (self._durable_names, *self._pending)
        ]

    def after_random_power_loss(self, chance: random.Random) -> Image:
        """Return a random possible state, with random unsynced pages of open files."""
        names = chance.choice((self._durable_names, *self._pending))
        return {name: inode.survivor(chance) for name, inode in sorted(names.items())}

    def _changed(self) -> None:
        self._pending.append(dict(self._names))


# ----------------------------------------------------------------------------------------------------------- the faults
class Killed(BaseException):
    """The process ended here; only a test may catch this."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop after operation `number`; with `for_real` the process sends itself SIGKILL.

    With `torn` a write to an open file leaves half of its bytes.
    """

    number: int
    for_real: bool = False
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail operation `number` with `errno`, without effect; with `torn` a write leaves half of its bytes."""

    number: int
    errno: int
    torn: bool = False


@dataclass(slots=True)
class FaultyFs(Fs):
    """The local filesystem with one `fault`; `operations` counts changes and syncs.

    `log` names the operations.  `disk` notes those in its directory.  `after_each` is called after each one.
    """

    fault: Kill | Fail | None = None
    disk: Disk | None = None
    after_each: Callable[[], None] | None = None
    operations: int = 0
    log: list[str] = field(default_factory=list)

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        content = b"".join(bytes(chunk) for chunk in chunks)
        if isinstance(self.fault, Fail) and self.fault.torn and self.fault.number == self.operations + 1:
            Fs.write_new(self, path, [content[: len(content) // 2]])
            self._note(lambda disk: disk.created(path), path.parent)
        return self._run(
            f"write {path.name}",
            path.parent,
            lambda: Fs.write_new(self, path, [content]),
            lambda disk: disk.created(path),
        )

    def open_file(self, path: Path) -> OpenFile:
        return FaultyFile(self, path, create=False)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        return self._run(
            f"create {path.name}",
            path.parent,
            lambda: FaultyFile(self, path, create=True),
            lambda disk: disk.opened(path),
        )

    def truncate(self, path: Path, size_bytes: int) -> None:
        self._run(
            f"truncate {path.name}",
            path.parent,
            lambda: Fs.truncate(self, path, size_bytes),
            lambda disk: disk.written(path),
        )

    def sync_file(self, path: Path) -> None:
        self._run(f"sync {path.name}", path.parent, path.stat, lambda disk: disk.synced_file(path))

    def sync_directory(self, path: Path) -> None:
        self._run(f"sync {path.name}/", path, path.stat, lambda disk: disk.synced_directory())

    def rename(self, source: Path, target: Path) -> None:
        self._run(
            f"rename {source.name} {target.name}",
            source.parent,
            lambda: Fs.rename(self, source, target),
            lambda disk: disk.renamed(source, target),
        )

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._run(
            f"unlink {path.name}",
            path.parent,
            lambda: Fs.unlink(self, path, missing_ok=missing_ok),
            lambda disk: disk.unlinked(path),
        )

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        self._run(f"touch {path.name}", path.parent, lambda: Fs.set_mtime_ns(self, path, mtime_ns), lambda disk: None)

    def adopt_owner(self, path: Path, like: Path) -> None:
        self._run(f"chown {path.name}", path.parent, lambda: Fs.adopt_owner(self, path, like), lambda disk: None)

    def _run(
        self, what: str, directory: Path, operation: Callable[[], _Result], note: Callable[[Disk], None]
    ) -> _Result:
        self.operations += 1
        self.log.append(what)
        due = self.fault is not None and self.fault.number == self.operations
        if due and isinstance(self.fault, Fail):
            raise OSError(self.fault.errno, os.strerror(self.fault.errno), what)
        result = operation()
        self._note(note, directory)
        if self.after_each is not None:
            self.after_each()
        if due and isinstance(self.fault, Kill):
            if self.fault.for_real:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed(what)
        return result

    def _note(self, note: Callable[[Disk], None], directory: Path) -> None:
        if self.disk is not None and directory == self.disk.directory:
            note(self.disk)

    def is_torn_next(self) -> bool:
        """Return True if the fault tears the next operation."""
        return self.fault is not None and self.fault.torn and self.fault.number == self.operations + 1


class FaultyFile(OpenFile):
    """An open file of a FaultyFs; its writes and syncs count as operations."""

    __slots__ = ("_fs",)

    def __init__(self, fs: FaultyFs, path: Path, *, create: bool) -> None:
        self._fs = fs
        OpenFile.__init__(self, path, create=create)

    def write(self, content: Buffer, position: int) -> None:
        if self._fs.is_torn_next():
            OpenFile.write(self, bytes(content[: len(content) // 2]), position)
            self._note_write()
            whole = isinstance(self._fs.fault, Fail)
            self._run("write", lambda: OpenFile.write(self, content, position) if whole else None)
        else:
            self._run("write", lambda: OpenFile.write(self, content, position))

    def resize(self, size_bytes: int) -> None:
        self._run("resize", lambda: OpenFile.resize(self, size_bytes))

    def sync(self) -> None:
        self._fs._run(
            f"sync {self.path.name}", self.path.parent, lambda: None, lambda disk: disk.synced_file(self.path)
        )

    def _run(self, what: str, operation: Callable[[], None]) -> None:
        self._fs._run(f"{what} {self.path.name}", self.path.parent, operation, lambda disk: disk.written(self.path))

    def _note_write(self) -> None:
        self._fs._note(lambda disk: disk.written(self.path), self.path.parent)
