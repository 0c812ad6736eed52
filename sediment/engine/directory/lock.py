"""Ownership of a log directory: Kafka's own `.lock`, and the token by which tasks recognise the directory.

A JVM's FileChannel.tryLock takes a POSIX record lock on the whole file. `DirectoryLock` takes the same kind of lock, so
a broker and a run exclude each other. POSIX locks belong to a process, not to a descriptor: closing any descriptor of
the file drops the locks of the process.

Invariants: a lock has one descriptor from acquisition to release, and this process never opens a second one. `.lock` is
never removed. Otherwise, one process could lock the removed file, which it still has open, while another process locks
a new file.

Source: kafka-log 04 §12 and §14.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
import threading
from pathlib import Path
from types import TracebackType

from sediment.segment_io.errors import (
    DirectoryInUseError,
    LockLostError,
    NotALogDirectoryError,
    OwnerNotKeptError,
    OwnershipError,
    SourceChangedError,
)
from sediment.segment_io.format.names import LOCK_FILE, META_PROPERTIES_FILE, RUN_TOKEN_FILE
from sediment.segment_io.fs import Fs, open_to_read
from sediment.segment_io.partition.checkpoint_files import read_meta_properties

_ATTEMPTS = 10
_NO_FILE = (errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.ELOOP)
_FLOCK = struct.Struct("hhqqi0q")  # struct flock of Linux: type, origin, start, length, pid
_LOCAL = Fs()

_guard = threading.Lock()
_held: dict[tuple[int, int], int] = {}
"""The process that locked each log directory, by device and inode; a fork inherits this table.

It contains the directory and its lock file, because a second name of the file may be in another directory.
"""


# ------------------------------------------------------------------------------------------------------------- the lock
class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LOCK_FILE
        self._keys: tuple[tuple[int, int], ...] = ()
        self._descriptor = -1
        self._process = -1

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        with _guard:
            keys = [self._identity(), *_identity_of(self._path)]
            if any(_held.get(key) == os.getpid() for key in keys):
                raise self._in_use("this process already holds the lock of this log directory")
            self._descriptor = self._open_locked()
            self._keys, self._process = (keys[0], _key(os.fstat(self._descriptor))), os.getpid()
            _held.update(dict.fromkeys(self._keys, self._process))

    def check(self) -> None:
        """Check that this process still owns the directory; call this before each change that cannot be undone."""
        if self._descriptor < 0 or self._process != os.getpid():
            raise LockLostError("this process does not hold the lock of the log directory", path=str(self._path))
        if not self._is_current(self._descriptor):
            raise LockLostError(
                "the lock file was removed or replaced while this process held it",
                path=str(self._path),
                advice="look for another process that works on this directory before running again",
            )

    def release(self) -> None:
        with _guard:
            if self._descriptor < 0:
                return
            os.close(self._descriptor)
            self._descriptor = -1
            for key in self._keys:
                if _held.get(key) == self._process == os.getpid():
                    del _held[key]

    def _identity(self) -> tuple[int, int]:
        try:
            status = self._directory.stat()
        except PermissionError as error:
            raise OwnershipError(
                "no permission to enter the log directory",
                path=str(self._directory),
                advice="run as the broker's user or as root",
            ) from error
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise NotALogDirectoryError("no such log directory", path=str(self._directory))
        return _key(status)

    def _open_locked(self) -> int:
        for _ in range(_ATTEMPTS):
            try:
                descriptor = self._open()
            except FileExistsError:
                continue
            if self._try_lock(descriptor):
                return descriptor
        if self._path.is_symlink() and not self._path.exists():
            raise OwnershipError(
                "the lock file is a link to a file that does not exist",
                path=str(self._path),
                advice="remove the link; a run creates the file",
            )
        raise self._in_use("the lock file of this log directory is replaced repeatedly")

    def _try_lock(self, descriptor: int) -> bool:
        """Return False if the path now refers to another file, for example because a broker has stopped."""
        locked = False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = self._is_current(descriptor)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise OwnershipError(
                    f"the lock file cannot be locked: {error.strerror}",
                    path=str(self._path),
                    advice="work on a filesystem with POSIX locks",
                ) from error
            process = _holder(descriptor)
            holder = "another process" if process is None else f"process {process}"
            raise self._in_use(f"{holder} holds the lock of this log directory") from error
        finally:
            if not locked:
                os.close(descriptor)
        return locked

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            try:
                return os.open(self._path, flags)
            except FileNotFoundError:
                return self._create(flags)
        except PermissionError as error:
            raise OwnershipError(
                "no permission to open the lock file",
                path=str(self._path),
                advice="run as the broker's user or as root",
            ) from error
        except OSError as error:
            if error.errno in _NO_FILE:
                raise OwnershipError(
                    f"the lock file cannot be opened: {error.strerror}",
                    path=str(self._path),
                    advice="remove what is there; a run creates the file",
                ) from error
            if error.errno != errno.EROFS:
                raise
            raise OwnershipError(
                "the log directory is on a read-only filesystem",
                path=str(self._path),
                advice="mount it writable, or use a command that leaves the source untouched",
            ) from error

    def _create(self, flags: int) -> int:
        wanted = self._directory.stat()
        if os.geteuid() not in (0, wanted.st_uid):
            raise self._owner_not_kept(wanted)
        descriptor = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        have = os.fstat(descriptor)
        if (have.st_uid, have.st_gid) != (wanted.st_uid, wanted.st_gid):
            try:
                os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
            except PermissionError as error:
                os.close(descriptor)
                raise self._owner_not_kept(wanted) from error
        return descriptor

    def _owner_not_kept(self, wanted: os.stat_result) -> OwnerNotKeptError:
        return OwnerNotKeptError(
            f"a new lock file cannot be given owner {wanted.st_uid} and group {wanted.st_gid}",
            path=str(self._path),
            advice="run as the broker's user or as root; otherwise the broker could not open the file",
        )

    def _is_current(self, descriptor: int) -> bool:
        try:
            named = self._path.stat()
        except OSError:
            return False
        return _key(named) == _key(os.fstat(descriptor))

    def _in_use(self, what: str) -> DirectoryInUseError:
        return DirectoryInUseError(
            what,
            path=str(self._path),
            advice="stop the broker or wait for the other run to end",
        )


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _identity_of(path: Path) -> list[tuple[int, int]]:
    """Return the device and inode of a file as the only item; empty if it does not exist."""
    try:
        return [_key(path.stat())]
    except OSError:
        return []


def _holder(descriptor: int) -> int | None:
    return _conflict(descriptor) or None


def _conflict(descriptor: int) -> int | None:
    """Return the process whose lock conflicts with ours: 0 if that process is unknown, None if no lock conflicts."""
    if sys.platform != "linux":
        return None
    try:
        asked = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    kind, _, _, _, process = _FLOCK.unpack(asked)
    return None if kind == fcntl.F_UNLCK else max(process, 0)


def is_locked(directory: Path) -> bool:
    return lock_holder(directory) is not None


def lock_holder(directory: Path) -> int | None:
    """Return the process that holds the lock of a log directory; 0 if the process is unknown.

    The call neither locks nor changes anything.
    """
    with _guard:
        try:
            keys = [_key(directory.stat()), *_identity_of(directory / LOCK_FILE)]
            if any(_held.get(key) == os.getpid() for key in keys):
                return os.getpid()
            descriptor = open_to_read(directory / LOCK_FILE)
        except FileNotFoundError:
            return None
        try:
            return _conflict(descriptor)
        finally:
            os.close(descriptor)


# -------------------------------------------------------------------------------------------------------- the run token
def place_run_token(directory: Path, run_id: str, fs: Fs = _LOCAL) -> None:
    """Write the token of run `run_id` into the log directory, for the tasks of the run; the lock must be held.

    The token of a run that has ended is replaced.
    """
    path = directory / RUN_TOKEN_FILE
    fs.unlink(path, missing_ok=True)
    fs.write_new(path, [_token(directory, run_id, fs)])
    fs.share(path)
    fs.sync_file(path)


def check_run_token(directory: Path, run_id: str, fs: Fs = _LOCAL) -> None:
    path = directory / RUN_TOKEN_FILE
    try:
        is_ours = fs.read_bytes(path) == _token(directory, run_id, fs)
    except (FileNotFoundError, NotADirectoryError):
        is_ours = False
    if not is_ours:
        raise SourceChangedError(
            "this host has another disk at this path, or the run of this task has ended",
            path=str(path),
            advice="mount the log directory at the same path on every host that runs tasks",
        )


def remove_run_token(directory: Path, fs: Fs = _LOCAL) -> None:
    """Remove the token; tasks that start later then fail."""
    fs.unlink(directory / RUN_TOKEN_FILE, missing_ok=True)


def _token(directory: Path, run_id: str, fs: Fs) -> bytes:
    meta = read_meta_properties(fs, directory / META_PROPERTIES_FILE)
    directory_id = "" if meta is None else meta.directory_id or ""
    return f"run.id={run_id}\ndirectory.id={directory_id}\n".encode()
