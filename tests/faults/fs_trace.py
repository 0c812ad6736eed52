"""A trace of the file operations of this process below a directory, with the states that a crash can leave.

An `FsTrace` sits below `Fs` and `Store`, so that a whole command with its tasks runs on it unchanged.  It does one of
three things: it records for every step the files after a kill, a torn step or a power loss; it lets one step fail while
the command goes on; or it kills the process for real.

Invariants: a step is one operation that changes or syncs something.  Writes that bypass `Fs` count as written and not
synced when the next step begins.  A new directory survives every crash.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.fs import Fs, OpenFile
from sediment.segment_io.stores import Store
from tests.faults.faulty_fs import Disk, read_file
from tests.faults.inline_spark import ATTEMPTS, ExecutorLostError

Tree = dict[str, tuple[bytes, int]]
"""The files below a directory: path -> content and modification time in nanoseconds; directories end with a slash."""

_NO_INODE = (b"", 0)


class Crash(StrEnum):
    """The kind of crash that ended a run at a step."""

    KILLED = "SIGKILL"
    TORN_WRITE = "torn write"
    TORN_RENAME = "torn rename"
    POWER_LOST = "lost unsynced data"


class Failure(StrEnum):
    """The failure of a step: once, of it and every later write, or by the loss of the task's executor."""

    EIO = "EIO"
    ENOSPC = "ENOSPC"
    EXECUTOR_LOST = "executor lost"


@dataclass(frozen=True, slots=True)
class CrashImage:
    """The files after `crash` at step `number`, which was `what`."""

    number: int
    what: str
    crash: Crash
    tree: Tree

    def __str__(self) -> str:
        return f"{self.crash} at step {self.number} ({self.what})"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of step `number`; with ENOSPC a write leaves half of its bytes, and every later write fails too."""

    number: int
    failure: Failure

    def hits(self, number: int, grows: bool) -> bool:
        """Return True if that step fails; `grows` is True if it needs space on the disk."""
        if self.failure is Failure.ENOSPC:
            return number >= self.number and grows
        return number == self.number

    def error(self, path: Path) -> Exception:
        if self.failure is Failure.EXECUTOR_LOST:
            ATTEMPTS.is_lost = True
            return ExecutorLostError(str(path))
        code = errno.EIO if self.failure is Failure.EIO else errno.ENOSPC
        return OSError(code, os.strerror(code), str(path))


# ---------------------------------------------------------------------------------------------------------------- trees
def read_tree(root: Path) -> Tree:
    """Return all files and directories below `root`, without lock files."""
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        above = f"{folder}/".removeprefix(f"{root}/")
        tree |= {f"{above}{name}/": _NO_INODE for name in folders}
        tree |= {f"{above}{name}": read_file(f"{folder}/{name}") for name in files if name != ".lock"}
    return tree


def write_tree(root: Path, tree: Tree) -> None:
    """Make `root` hold exactly `tree`; files that are correct already stay untouched."""
    root.mkdir(parents=True, exist_ok=True)
    present = read_tree(root)
    for name in sorted(present.keys() - tree.keys(), reverse=True):
        if not name.endswith("/"):
            (root / name).unlink()
        elif (root / name).is_dir():
            shutil.rmtree(root / name)
    for name, (content, mtime_ns) in sorted(tree.items()):
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        elif present.get(name) != (content, mtime_ns):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a second link keeps its content
            path.write_bytes(content)
            os.utime(path, ns=(mtime_ns, mtime_ns))


def contents(tree: Tree) -> dict[str, bytes]:
    """Return the files of a tree without their times."""
    return {name: content for name, (content, _) in tree.items() if not name.endswith("/")}


# ---------------------------------------------------------------------------------------------------------------- trace
class FsTrace:
    """A context that counts the steps below `root`; `steps` names them, `images` holds the recorded states."""

    def __init__(
        self, root: Path, *, records: bool = False, fault: Fault | None = None, kill_after: int | None = None
    ) -> None:
        self.steps: list[str] = []
        self.growing: set[int] = set()
        self.of_tasks: set[int] = set()
        self.images: list[CrashImage] = []
        self._root = root
        self._records = records
        self._fault = fault
        self._kill_after = kill_after
        self._lock = _FairLock()
        self._disks: dict[Path, Disk] = {}
        self._seen: set[tuple[Crash, frozenset[tuple[str, bytes]]]] = set()
        self._patches = ExitStack()

    def __enter__(self) -> FsTrace:
        if self._records:
            for folder, _, _ in os.walk(self._root):
                self._disks[Path(folder)] = Disk(Path(folder))
        for owner, name, wrapper in (
            (Fs, "write_new", self._write_new),
            (Fs, "truncate", self._truncate),
            (Fs, "sync_file", self._sync_file),
            (Fs, "sync_directory", self._sync_directory),
            (Fs, "rename", self._rename),
            (Fs, "make_directory", self._make_directory),
            (Fs, "make_unsynced_directory", self._make_directory),
            (Fs, "link", self._link),
            (Fs, "reflink", self._reflink),
            (Fs, "unlink", self._unlink),
            (Fs, "set_mtime_ns", self._other),
            (Fs, "adopt_owner", self._other),
            (OpenFile, "write", self._append),
            (OpenFile, "resize", self._resize),
            (OpenFile, "sync", self._sync_open_file),
            (Store, "write", self._store_write),
            (Store, "delete", self._store_delete),
        ):
            self._patches.enter_context(mock.patch.object(owner, name, _method(wrapper, getattr(owner, name))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    # ------------------------------------------------------------------------------------------------------- operations
    def _write_new(self, real: Callable[..., int], fs: Fs, path: Path, chunks: Iterable[Buffer]) -> int:
        content = b"".join(bytes(chunk) for chunk in chunks)
        return self._written(path, content, lambda part: real(fs, path, [part]), lambda disk: disk.created(path))

    def _store_write(self, real: Callable[..., int], store: Store, name: str, chunks: Iterable[Buffer]) -> int:
        assert store.local_path is not None
        content = b"".join(bytes(chunk) for chunk in chunks)
        # A store syncs the file before it returns; that sync is a step of its own.
        return self._written(
            store.local_path / name, content, lambda part: real(store, name, [part]), lambda disk: None
        )

    def _written(self, path: Path, content: bytes, write: Callable[[bytes], int], note: Callable[[Disk], None]) -> int:
        return self._step(
            f"write {path.name}",
            path,
            lambda: write(content),
            note,
            torn=(Crash.TORN_WRITE, lambda: {self._name(path): (content[: len(content) // 2], 0)}),
            when_full=lambda: write(content[: len(content) // 2]),
        )

    def _truncate(self, real: Callable[..., None], fs: Fs, path: Path, size_bytes: int) -> None:
        self._step(f"truncate {path.name}", path, lambda: real(fs, path, size_bytes), lambda disk: disk.written(path))

    def _append(self, real: Callable[..., None], file: OpenFile, content: Buffer, position: int) -> None:
        half = bytes(content)[: len(content) // 2]
        self._step(
            f"append {file.path.name}",
            file.path,
            lambda: real(file, content, position),
            lambda disk: disk.written(file.path),
            when_full=lambda: real(file, half, position),
        )

    def _resize(self, real: Callable[..., None], file: OpenFile, size_bytes: int) -> None:
        what = f"resize {file.path.name}"
        self._step(what, file.path, lambda: real(file, size_bytes), lambda disk: disk.written(file.path))

    def _sync_open_file(self, real: Callable[..., None], file: OpenFile) -> None:
        self._step(f"sync {file.path.name}", file.path, file.path.stat, lambda disk: disk.synced_file(file.path))

    def _sync_file(self, real: Callable[..., None], fs: Fs, path: Path) -> None:
        self._step(f"sync {path.name}", path, path.stat, lambda disk: disk.synced_file(path))

    def _sync_directory(self, real: Callable[..., None], fs: Fs, path: Path) -> None:
        self._step(f"sync {path.name}/", path / "*", path.stat, lambda disk: disk.synced_directory())

    def _rename(self, real: Callable[..., None], fs: Fs, source: Path, target: Path) -> None:
        def note(disk: Disk) -> None:
            if target.is_dir():
                self._disks[target] = self._disks.pop(source).moved(target)
            else:
                disk.renamed(source, target)

        def both() -> Tree:
            return {self._name(target): (source.read_bytes(), source.stat().st_mtime_ns)} if source.is_file() else {}

        self._step(
            f"rename {source.name} {target.name}",
            source,
            lambda: real(fs, source, target),
            note,
            torn=(Crash.TORN_RENAME, both),
        )

    def _make_directory(self, real: Callable[..., None], fs: Fs, path: Path, **named: Any) -> None:
        self._step(
            f"make {path.name}/", path, lambda: real(fs, path, **named), lambda disk: None, when_full=lambda: None
        )

    def _link(self, real: Callable[..., None], fs: Fs, source: Path, target: Path) -> None:
        def note(disk: Disk) -> None:
            disk.linked(self._disk(source.parent), source, target)

        self._step(f"link {target.name}", target, lambda: real(fs, source, target), note, when_full=lambda: None)

    def _reflink(self, real: Callable[..., bool], fs: Fs, source: Path, target: Path) -> bool:
        def note(disk: Disk) -> None:
            if target.exists():
                disk.created(target)

        made = self._step(f"reflink {target.name}", target, lambda: real(fs, source, target), note)
        return bool(made)

    def _unlink(self, real: Callable[..., None], fs: Fs, path: Path, *, missing_ok: bool = False) -> None:
        self._step(
            f"unlink {path.name}",
            path,
            lambda: real(fs, path, missing_ok=missing_ok),
            lambda disk: disk.unlinked(path),
        )

    def _store_delete(self, real: Callable[..., None], store: Store, name: str) -> None:
        assert store.local_path is not None
        path = store.local_path / name
        self._step(f"delete {path.name}", path, lambda: real(store, name), lambda disk: disk.unlinked(path))

    def _other(self, real: Callable[..., None], fs: Fs, path: Path, *arguments: Any) -> None:
        self._step(f"touch {path.name}", path, lambda: real(fs, path, *arguments), lambda disk: None)

    # ------------------------------------------------------------------------------------------------------------ steps
    def _step(
        self,
        what: str,
        path: Path,
        operation: Callable[[], Any],
        note: Callable[[Disk], None],
        *,
        torn: tuple[Crash, Callable[[], Tree]] | None = None,
        when_full: Callable[[], Any] | None = None,
    ) -> Any:
        if not path.is_relative_to(self._root):
            return operation()
        with self._lock:
            if ATTEMPTS.runs and ATTEMPTS.is_lost:
                raise ExecutorLostError(str(path))
            self.steps.append(what)
            number = len(self.steps)
            if ATTEMPTS.runs:
                self.of_tasks.add(number)
            if when_full is not None:
                self.growing.add(number)
            if self._fault is not None and self._fault.hits(number, when_full is not None):
                if when_full is not None and self._fault.failure is not Failure.EIO:
                    when_full()
                raise self._fault.error(path)
            if self._records:
                self._note_bypassing_writes()
                if torn is not None:
                    crash, half = torn
                    self._keep(number, what, crash, read_tree(self._root) | half())
            result = operation()
            if self._records:
                note(self._disk(path.parent))
                now = read_tree(self._root)
                self._keep(number, what, Crash.KILLED, now)
                for survivors in self._after_power_loss(now):
                    self._keep(number, what, Crash.POWER_LOST, survivors)
            if number == self._kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

    def _keep(self, number: int, what: str, crash: Crash, tree: Tree) -> None:
        key = crash, frozenset(contents(tree).items())
        if key not in self._seen:
            self._seen.add(key)
            self.images.append(CrashImage(number, what, crash, tree))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    # ------------------------------------------------------------------------------------------------------------- disk
    def _disk(self, directory: Path) -> Disk:
        if directory not in self._disks:
            self._disks[directory] = Disk(directory)
        return self._disks[directory]

    def _note_bypassing_writes(self) -> None:
        """Note files that appeared or vanished without a traced operation."""
        for folder, _, files in os.walk(self._root):
            directory = Path(folder)
            present = {name for name in files if name != ".lock"}
            if directory not in self._disks:
                self._disks[directory] = Disk(directory, is_new=True)
            disk = self._disks[directory]
            for name in disk.names() - present:
                disk.unlinked(directory / name)
            for name in sorted(present - disk.names()):
                disk.created(directory / name)
        for directory in [directory for directory in self._disks if not directory.is_dir()]:
            del self._disks[directory]

    def _after_power_loss(self, now: Tree) -> Iterator[Tree]:
        folders = {name: entry for name, entry in now.items() if name.endswith("/")}
        below = [(self._name(directory), disk.after_power_loss()) for directory, disk in self._disks.items()]
        for images in itertools.product(*(images for _, images in below)):
            tree = dict(folders)
            for (folder, _), image in zip(below, images, strict=True):
                above = "" if folder == "." else f"{folder}/"
                tree |= {f"{above}{name}": entry for name, entry in image.items() if name != ".lock"}
            yield tree


class _FairLock:
    """A lock that threads get in the order in which they ask, so that the steps of several commits alternate.

    The thread that holds it may take it again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[int] = []  # the thread that holds the lock is the first
        self._depth = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            if thread not in self._waiting:
                self._waiting.append(thread)
            self._changed.wait_for(lambda: self._waiting[0] == thread)
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                del self._waiting[0]
                self._changed.notify_all()


def _method(wrapper: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, which binds as a method, unlike a partial of `wrapper`."""
    traced = partial(wrapper, real)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return traced(self, *arguments, **named)

    return method
