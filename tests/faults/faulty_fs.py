"""A filesystem that dies, fails, tears and forgets (after leveldb's fault_injection_test), and the disk below it.

`FaultyFs` does every operation for real, counts those that change or sync something, and at one of them stops the
process, fails, or writes only half.  `Disk` remembers what of a directory is durable: file contents since their last
sync, names since the last sync of the directory.

Invariants: nothing is really synced, the model decides what survives; names reach the disk in the order in which they
changed, so that a loss of power keeps a prefix of the changes since the last sync of the directory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sediment.segment_io.fs import Buffer, Fs

Image = dict[str, tuple[bytes, int]]
"""The files of a directory: name -> content and modification time in nanoseconds."""

_Result = TypeVar("_Result")


def read_image(directory: Path) -> Image:
    """The files of `directory`."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(directory.iterdir())}


def write_image(directory: Path, image: Image) -> None:
    """Make `directory` hold exactly `image`; files that already are right are left alone."""
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
    """A file whatever its name; `durable` is its content and modification time after a loss of power."""

    durable: tuple[bytes, int]


@dataclass(slots=True)
class Disk:
    """What of `directory` survives a loss of power; all that is there when the model begins does."""

    directory: Path
    _names: dict[str, _Inode] = field(init=False)
    _durable_names: dict[str, _Inode] = field(init=False)
    _pending: list[dict[str, _Inode]] = field(init=False)

    def __post_init__(self) -> None:
        self._names = {name: _Inode(durable) for name, durable in read_image(self.directory).items()}
        self._durable_names = dict(self._names)
        self._pending = []

    def created(self, path: Path) -> None:
        """A new file: without a sync its name may be there and half of its content."""
        content = path.read_bytes()
        self._names[path.name] = _Inode((content[: len(content) // 2], path.stat().st_mtime_ns))
        self._changed()

    def renamed(self, source: Path, target: Path) -> None:
        self._names[target.name] = self._names.pop(source.name)
        self._changed()

    def unlinked(self, path: Path) -> None:
        if self._names.pop(path.name, None) is not None:
            self._changed()

    def synced_file(self, path: Path) -> None:
        self._names[path.name].durable = (path.read_bytes(), path.stat().st_mtime_ns)

    def synced_directory(self) -> None:
        self._durable_names = dict(self._names)
        self._pending = []

    def after_power_loss(self) -> list[Image]:
        """What the directory may hold: none of the unsynced changes of names, the first one, … all of them."""
        return [
            {name: inode.durable for name, inode in sorted(names.items())}
            for names in (self._durable_names, *self._pending)
        ]

    def _changed(self) -> None:
        self._pending.append(dict(self._names))


# ----------------------------------------------------------------------------------------------------------- the faults
class Killed(BaseException):
    """The process ended here; nothing but a test may catch it."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop behind operation `number`; with `for_real` the process sends itself SIGKILL."""

    number: int
    for_real: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Operation `number` does nothing and fails with `errno`; with `torn` a write leaves half of its bytes behind."""

    number: int
    errno: int
    torn: bool = False


@dataclass(slots=True)
class FaultyFs(Fs):
    """The local filesystem with one `fault`; `operations` counts what changed or synced something.

    `log` names the operations.  `disk` is told of those in its directory.
    """

    fault: Kill | Fail | None = None
    disk: Disk | None = None
    operations: int = 0
    log: list[str] = field(default_factory=list)

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        content = b"".join(bytes(chunk) for chunk in chunks)
        if isinstance(self.fault, Fail) and self.fault.torn and self.fault.number == self.operations + 1:
            Fs.write_new(self, path, [content[: len(content) // 2]])
            self._tell(lambda disk: disk.created(path), path.parent)
        return self._run(
            f"write {path.name}",
            path.parent,
            lambda: Fs.write_new(self, path, [content]),
            lambda disk: disk.created(path),
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
        self, what: str, directory: Path, operation: Callable[[], _Result], tell: Callable[[Disk], None]
    ) -> _Result:
        self.operations += 1
        self.log.append(what)
        due = self.fault is not None and self.fault.number == self.operations
        if due and isinstance(self.fault, Fail):
            raise OSError(self.fault.errno, os.strerror(self.fault.errno), what)
        result = operation()
        self._tell(tell, directory)
        if due and isinstance(self.fault, Kill):
            if self.fault.for_real:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed(what)
        return result

    def _tell(self, tell: Callable[[Disk], None], directory: Path) -> None:
        if self.disk is not None and directory == self.disk.directory:
            tell(self.disk)
