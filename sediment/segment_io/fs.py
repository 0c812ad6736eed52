"""Shared file operations: only this module calls os.rename and os.unlink, and tests inject faults here.

Invariants
* `rename` replaces the target atomically, and only within one directory.
* Nothing is durable until `sync_file` and `sync_directory` have returned.
* A new file can be read only by its owner until `adopt_owner` or `share` gives it its final mode.
* The bytes of an existing inode never change: a file is written under a new name, and renamed over the old file.  There
  are two exceptions: `truncate` removes the end of a file, and the owner of a live log appends with `OpenFile`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import OwnerNotKeptError
from sediment.segment_io.format.names import BOOTSTRAP_FILE
from sediment.segment_io.units import NS_PER_SECOND

_MAX_READ_BYTES = (1 << 31) - 1  # the largest file that Kafka opens
_READ_AND_WRITE = 0o666
_SHARED_FILE, _SHARED_FOLDER = 0o644, 0o755
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
_SECRET_FILES = (BOOTSTRAP_FILE,)  # it contains the keys of SCRAM users
_PAST_CACHE: int = getattr(os, "O_DIRECT", 0)  # not every system has this flag
_BLOCK_BYTES = 4096  # addresses, positions and sizes of direct writes are multiples of this
_DIRECT_WRITE_BYTES = 2 << 20
_BLOCKS = 4  # of _DIRECT_WRITE_BYTES
_LARGE_WRITE_BYTES = 256 << 10
_ZEROS = bytes(1 << 20)
_STAT_BLOCK_BYTES = 512  # the unit of st_blocks, on every filesystem
_HOLE_BYTES = 64 << 10  # shorter runs of zeros are written
_FICLONE = 0x40049409  # linux/fs.h
_NO_REFLINK = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One directory entry; `mtime_ns` is the modification time in nanoseconds since the epoch.

    Pipes, sockets, devices and dangling links are neither directories nor files.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    is_directory: bool
    is_file: bool = True


@dataclass(frozen=True, slots=True)
class FileStamp:
    """The state of a file, without its content; times are in nanoseconds since the epoch.

    Every change to a file also changes its ctime, and programs cannot set a ctime.  Inode and ctime are None for stores
    without them.
    """

    size_bytes: int
    mtime_ns: int
    inode: int | None = None
    ctime_ns: int | None = None


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_VIEW = ctypes.pythonapi.PyMemoryView_FromMemory
_VIEW.restype = ctypes.py_object
_VIEW.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_TO_READ = 0x100  # PyBUF_READ
_STATX = getattr(_LIBC, "statx", None)  # Linux only; Python has os.statx only from 3.15
_CURRENT_DIRECTORY = -100  # AT_FDCWD
_OF_DESCRIPTOR = 0x1000  # AT_EMPTY_PATH
_CREATION_TIME = 0x800  # STATX_BTIME
_STATX_BYTES = 256
_STATX_MASK = struct.Struct("@I")
_STATX_CREATED = struct.Struct("@qI")
_STATX_CREATED_AT = 80


class FileMapping:
    """The first bytes of a file, which are mapped at `address` as readable memory as long as this object exists.

    The mapping keeps no file descriptor open.
    """

    __slots__ = ("_size_bytes", "address", "memory")

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.address: int = 0
        self._size_bytes = size_bytes
        # `mmap.mmap` would keep a duplicate of the descriptor.
        address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address = address
        self.memory: memoryview = _VIEW(address, size_bytes, _TO_READ)

    def __len__(self) -> int:
        return self._size_bytes

    def __del__(self, unmap: Callable[[int, int], int] = _LIBC.munmap) -> None:
        # `unmap` is a default value, because globals may no longer exist when the interpreter exits.
        if self.address:
            unmap(self.address, self._size_bytes)
            self.address = 0


class ReadableFile:
    """An open file with its `descriptor`; the file can be read even after it is renamed or deleted.

    The file is closed by `close`, or when the last reference to it disappears.  So readers of a deleted segment can
    finish.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self.path = path

    def __del__(self) -> None:
        self.close()

    def size_bytes(self) -> int:
        return os.fstat(self.descriptor).st_size

    def change_stamp(self) -> tuple[int, int, int]:
        """Return size in bytes, mtime and ctime in ns; a rename or a removal also changes the ctime."""
        status = os.fstat(self.descriptor)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def read(self, position: int, count: int) -> bytes:
        first = os.pread(self.descriptor, count, position)
        if len(first) == count or not first:
            return first
        parts = [first]
        while first and (count := count - len(first)):
            position += len(first)
            first = os.pread(self.descriptor, count, position)
            parts.append(first)
        return b"".join(parts)

    def read_into(self, target: memoryview, position: int) -> int:
        """Fill `target` with the bytes at `position`; return the number of bytes read, fewer at the end of the file."""
        read = got = os.preadv(self.descriptor, [target], position)
        while got and read < len(target):
            got = os.preadv(self.descriptor, [target[read:]], position + read)
            read += got
        return read

    def has_only_zeros(self, position: int, end: int) -> bool:
        return only_zeros(self.descriptor, position, end)

    def send(self, target: socket.socket, position: int, count: int) -> int:
        return os.sendfile(target.fileno(), self.descriptor, position, count)

    def map(self, size_bytes: int) -> FileMapping:
        """Map the first `size_bytes` of the file read-only; later writes to the file are visible in the mapping.

        The mapping stays valid after the descriptor is closed.
        """
        return FileMapping(self.descriptor, size_bytes)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OpenFile(ReadableFile):
    __slots__ = ()

    def __init__(self, path: Path, *, create: bool) -> None:
        self.descriptor = -1  # for `close`, if the file cannot be opened
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        ReadableFile.__init__(self, path, os.open(path, flags, _PRIVATE_FILE))

    def write(self, content: Buffer, position: int) -> None:
        """Write all of `content` at `position`; the bytes are not durable until a sync."""
        written = os.pwrite(self.descriptor, content, position)
        while written < len(content):
            rest = memoryview(content)[written:]
            count = os.pwrite(self.descriptor, rest, position + written)
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
            written += count

    def resize(self, size_bytes: int) -> None:
        """Truncate the file, or extend it with a hole; the change is not durable until a sync."""
        os.ftruncate(self.descriptor, size_bytes)

    def sync(self) -> None:
        os.fsync(self.descriptor)


class Fs:
    """The local filesystem.  Tests use subclasses in which operations fail, stop halfway, or have no lasting effect."""

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def scan(self, directory: Path) -> list[FileEntry]:
        """Return the entries of `directory`, sorted by name, without entries that disappear during the call."""
        entries = []
        with os.scandir(directory) as found:
            for item in found:
                try:
                    entries.append(_entry(item.name, item.stat()))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
        return sorted(entries, key=lambda entry: entry.name)

    def file_names(self, directory: Path) -> list[str]:
        """Return the sorted names of regular files and of links to them; unlike `scan`, ask for no file's status."""
        with os.scandir(directory) as found:
            return sorted(item.name for item in found if _is_regular(item))

    def special_files(self, directory: Path) -> list[str]:
        """Return the names of what is neither a file nor a directory, dangling links among them, sorted."""
        with os.scandir(directory) as found:
            return sorted(item.name for item in found if _is_special(item))

    def broken_links(self, directory: Path) -> list[str]:
        """Return the names of dangling links in `directory`, sorted; `scan` leaves them out."""
        with os.scandir(directory) as found:
            return sorted(item.name for item in found if item.is_symlink() and not os.path.exists(item.path))

    def linked_directories(self, directory: Path) -> list[str]:
        """Return the names of links to directories in `directory`, sorted."""
        with os.scandir(directory) as found:
            return sorted(item.name for item in found if item.is_symlink() and os.path.isdir(item.path))

    def entry(self, path: Path) -> FileEntry | None:
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return _entry(path.name, status)

    def change_stamp(self, path: Path) -> tuple[int, int, int] | None:
        """Return (size in bytes, mtime in ns, ctime in ns) of one path, following links; None if it does not exist.

        The ctime also changes if a program restores size and mtime, or if a different file is renamed to this path.
        """
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def identity(self, path: str) -> tuple[int, int, int] | None:
        """Return inode, size in bytes and mtime in ns of the file at `path`, following links; None if it is missing."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def created_ns(self, path: Path) -> int | None:
        return created_ns(path)

    def file_stamp(self, path: Path) -> FileStamp | None:
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return FileStamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    def allocated_bytes(self, path: Path) -> int:
        """Return the bytes of a file that are on the disk, at most its size; holes do not count."""
        status = path.stat()
        return min(status.st_size, status.st_blocks * _STAT_BLOCK_BYTES)

    def read_bytes(self, path: Path, *, follow_links: bool = True) -> bytes:
        """Return the whole content of a file, which must not exceed the largest size of a segment.

        Raises:
            OSError: EFBIG for a larger file; ELOOP for a link, without `follow_links`; also FileNotFoundError,
                PermissionError, IsADirectoryError.
        """
        with open(open_to_read(path, follow_links=follow_links), "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > _MAX_READ_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            return file.readall()

    def read_range(self, path: Path, position: int, count: int) -> bytes:
        descriptor = self.open_to_read(path)
        try:
            return os.pread(descriptor, count, position)
        finally:
            os.close(descriptor)

    def ends_in_zeros(self, path: Path, position: int) -> bool:
        descriptor = self.open_to_read(path)
        try:
            return only_zeros(descriptor, position, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def open_to_read(self, path: Path) -> int:
        return open_to_read(path)

    def open_readable(self, path: Path) -> ReadableFile:
        return ReadableFile(path, self.open_to_read(path))

    def open_file(self, path: Path) -> OpenFile:
        return OpenFile(path, create=False)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        """Open a file of a live log; if the file is missing, create it with the owner, group and mode of `like`."""
        is_new = not self.exists(path)
        file = OpenFile(path, create=True)
        if is_new and like == path:
            self.share(path)
        elif is_new:
            self.adopt_owner(path, like)
        return file

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        """Create `path`, which must not exist, and write `chunks`; return the number of bytes written.

        The file is private, and not durable until a sync.  A chunk is written or copied before the next chunk is
        requested, so the caller may reuse the chunk's memory.  Long runs of zeros become holes, so the copy of a sparse
        or preallocated file needs no more space than the file.
        """
        return _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE), chunks)

    def write_over(self, path: Path, chunks: Iterable[Buffer]) -> int:
        """Do the same as `write_new` with a file that may exist; its old content is lost, and its mode is private."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE_FILE)
        os.fchmod(descriptor, _PRIVATE_FILE)
        return _write(descriptor, chunks)

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        """Rewrite a small file as Kafka does: write `<path>.tmp`, sync, rename over `path`, sync the directory.

        If `path` does not exist, the new file gets the owner, group and mode of `like`, or the mode that the umask
        allows.
        """
        temporary = path.with_name(path.name + ".tmp")
        self.unlink(temporary, missing_ok=True)
        self.write_new(temporary, [content])
        model = path if path.exists() else like
        if model is not None:
            self.adopt_owner(temporary, model)
        else:
            self.share(temporary)
        self.sync_file(temporary)
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Truncate a file to `size_bytes`, in place; the change is not durable until a sync.

        Use it to cut off the torn end of a segment after a crash, because the disk may not have space for a copy.  If a
        file has several names (`has_other_names`), the caller must copy the remaining part instead.
        """
        os.truncate(path, size_bytes)

    def has_other_names(self, path: Path) -> bool:
        status = os.lstat(path)
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1

    def sync_file(self, path: Path) -> None:
        _sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within a directory, replacing `target` atomically.

        If both names are links to the same file, rename(2) does nothing; this method then removes `source`.
        """
        os.rename(source, target)
        if os.path.lexists(source) and os.path.samefile(source, target):
            os.unlink(source)

    def make_directory(self, path: Path, *, like: Path | None = None) -> None:
        """Create a directory, durably, with the owner, group and mode of `like`, if given; its parent must exist."""
        if like is None:
            os.mkdir(path)
        else:
            os.mkdir(path, _PRIVATE_FOLDER)
            self.adopt_owner(path, like)
        self.sync_directory(path.parent)

    def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
        """Create a directory with the owner, group and mode of `like`; its parent must exist.  Not yet durable."""
        os.mkdir(path, _PRIVATE_FOLDER)
        self.adopt_owner(path, like)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def reflink(self, source: Path, target: Path) -> bool:
        """Make `target` a new file that shares the blocks of `source`; return False if reflinks are not supported.

        `target` must not exist, and is private.  A later change of one file does not change the other.  The content is
        not yet durable.
        """
        opened = open_to_read(source)
        try:
            made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
            try:
                fcntl.ioctl(made, _FICLONE, opened)
            except OSError as error:
                os.unlink(target)
                if error.errno not in _NO_REFLINK:
                    raise
                return False
            finally:
                os.close(made)
        finally:
            os.close(opened)
        return True

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def adopt_owner(self, path: Path, like: Path) -> None:
        """Give `path` the owner, group and mode of `like`.

        If `like` is a directory, a file gets only the read and write bits of the directory.  A file with secrets stays
        private, whatever the mode of `like` is.

        Raises:
            OwnerNotKeptError: this process may not change owner, group or mode.
        """
        wanted = like.stat()
        have = path.stat()
        wanted_mode, have_mode = stat.S_IMODE(wanted.st_mode), stat.S_IMODE(have.st_mode)
        if stat.S_ISDIR(wanted.st_mode) and not stat.S_ISDIR(have.st_mode):
            wanted_mode &= _READ_AND_WRITE
        wanted_mode = _without_secrets(path, wanted_mode)
        try:
            if (have.st_uid, have.st_gid) != (wanted.st_uid, wanted.st_gid):
                os.chown(path, wanted.st_uid, wanted.st_gid)
            if have_mode != wanted_mode:
                os.chmod(path, wanted_mode)
        except PermissionError as error:
            raise OwnerNotKeptError(
                f"new files cannot be given owner {wanted.st_uid} and group {wanted.st_gid}",
                path=str(like),
                advice="run as that user or as root",
            ) from error

    def share(self, path: Path) -> None:
        """Give a new file or folder the mode that programs give to new files: what the umask allows."""
        mode = _SHARED_FOLDER if path.is_dir() else _SHARED_FILE
        self.set_mode(path, mode & ~_umask())

    def set_mode(self, path: Path, mode: int) -> None:
        """Set the permissions of a file or folder; a file with secrets stays private."""
        os.chmod(path, _without_secrets(path, mode))

    def mode(self, path: Path) -> int | None:
        try:
            return stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return None

    def require_descriptors(self, count: int) -> None:
        """Check that this process may open `count` more files.

        Raises:
            OSError: the process (EMFILE) or the system (ENFILE) has reached its limit of open files.
        """
        opened: list[int] = []
        try:
            for _ in range(count):
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free


class DryRunFs(Fs):
    """A filesystem for dry runs: reads work as usual, but writes only count their bytes."""

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

    def link(self, source: Path, target: Path) -> None:
        return None

    def reflink(self, source: Path, target: Path) -> bool:
        return True

    def make_directory(self, path: Path, *, like: Path | None = None) -> None:
        return None

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        return None

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        return None

    def adopt_owner(self, path: Path, like: Path) -> None:
        return None

    def set_mode(self, path: Path, mode: int) -> None:
        return None


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return True if the process or the system has no free descriptors; the disk may be healthy."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def open_to_read(path: Path, *, follow_links: bool = True) -> int:
    """Open a regular file for reading; the caller closes the returned descriptor.

    Other files are refused, because a pipe would block and a device may have no end.
    """
    flags = 0 if follow_links else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def without_links(path: Path) -> Path:
    """Return the absolute path without the links on the way; a link that leads to itself stays.

    `Path.resolve` raises RuntimeError for such a link, although a user may name one.
    """
    return Path(os.path.realpath(path))


def created_ns(file: Path | int) -> int | None:
    """Return when a file or directory, or that of a descriptor, was created; None if the system does not tell.

    The time is in ns since the epoch.  Programs cannot set it, and a copy has its own.
    """
    if _STATX is None:
        seconds = getattr(os.stat(file), "st_birthtime", None)  # macOS and BSD
        return None if seconds is None else int(seconds * 1e9)
    found = ctypes.create_string_buffer(_STATX_BYTES)
    place = (file, b"", _OF_DESCRIPTOR) if isinstance(file, int) else (_CURRENT_DIRECTORY, os.fsencode(file), 0)
    if _STATX(*place, _CREATION_TIME, found) != 0:
        return None
    (known,) = _STATX_MASK.unpack_from(found)
    seconds, nanoseconds = _STATX_CREATED.unpack_from(found, _STATX_CREATED_AT)
    return seconds * NS_PER_SECOND + nanoseconds if known & _CREATION_TIME else None


def only_zeros(descriptor: int, position: int, end: int) -> bool:
    while position < end:
        try:
            # Holes are not read, because a file may be preallocated, or sparse and very large.
            position = os.lseek(descriptor, position, os.SEEK_DATA)
            hole = os.lseek(descriptor, position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return True
            raise
        chunk = os.pread(descriptor, min(len(_ZEROS), max(min(hole, end) - position, 0)), position)
        if not _ZEROS.startswith(chunk):
            return False
        position += max(len(chunk), 1)
    return True


class _FileWriter:
    """The writer of one new file.

        chunks   --copy-->   | block being filled |   | full blocks |   --direct write, on a thread-->   device

    Small chunks are written at once, through the page cache.  At the first large chunk, the writer tries to set
    O_DIRECT.  If this succeeds, all later bytes are copied to aligned blocks.  A thread writes full blocks while the
    caller fills another block.

    If the device refuses a direct write or writes less than requested, the rest of this block and all later bytes are
    written through the page cache.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ends_in_hole = False
        self._written = 0  # bytes passed to the system or to the thread
        self._may_be_direct = bool(_PAST_CACHE)
        # The first block is being filled; the thread has received the last blocks.
        self._blocks: deque[mmap.mmap] = deque()
        self._filled = 0
        self._thread: ThreadPoolExecutor | None = None
        self._of_thread = descriptor  # a duplicate once a thread exists, so that no later file gets the same number
        self._has_failed = False
        self._pending: deque[Future[None]] = deque()  # one for each block that the thread received, oldest first

    def __enter__(self) -> _FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)  # after this call, the thread uses neither blocks nor descriptor
            os.close(self._of_thread)
        for block in self._blocks:
            block.close()

    def write(self, content: memoryview) -> None:
        # From the first large chunk on, the bytes bypass the page cache if the filesystem supports this.  A cleaning
        # reads and writes much more than fits into the cache.  Without the bypass, it would evict the pages that a
        # broker needs.
        if not self._blocks and not (self._may_be_direct and self._is_worth_blocks(content) and self._begin_blocks()):
            self._written += self._write_or_skip(self._descriptor, content)
            return
        while content:
            if self._filled == _DIRECT_WRITE_BYTES:
                self._flush()
            count = min(len(content), _DIRECT_WRITE_BYTES - self._filled)
            self._blocks[0][self._filled : self._filled + count] = content[:count]
            self._filled += count
            content = content[count:]

    def finish(self) -> int:
        if self._filled:
            self._flush()
        while self._pending:
            self._pending.popleft().result()
        if self._ends_in_hole:
            os.ftruncate(self._descriptor, self._written)
        return self._written

    def _write_or_skip(self, descriptor: int, content: memoryview) -> int:
        self._ends_in_hole = _is_hole(content)
        if self._ends_in_hole:
            # A chunk or a block that contains only zeros is not written, but skipped.
            os.lseek(descriptor, len(content), os.SEEK_CUR)
            return len(content)
        return _write_all(descriptor, content)

    def _is_worth_blocks(self, content: memoryview) -> bool:
        return len(content) >= _LARGE_WRITE_BYTES and self._written % _BLOCK_BYTES == 0

    def _begin_blocks(self) -> bool:
        self._may_be_direct = _set_direct(self._descriptor, is_direct=True)
        if self._may_be_direct:
            # Each block is a separate mapping, because direct writes need addresses that are multiples of the block
            # size.
            self._blocks.extend(mmap.mmap(-1, _DIRECT_WRITE_BYTES) for _ in range(_BLOCKS))
            self._of_thread = os.dup(self._descriptor)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sediment-file")
        return self._may_be_direct

    def _flush(self) -> None:
        assert self._thread is not None
        self._pending.append(self._thread.submit(self._write_block, self._blocks[0], self._filled))
        self._written += self._filled
        self._blocks.rotate(-1)
        self._filled = 0
        if len(self._pending) == _BLOCKS:
            self._pending.popleft().result()

    def _write_block(self, block: mmap.mmap, size_bytes: int) -> None:
        """After a failure, later blocks are not written, because their positions would be wrong."""
        if self._has_failed:
            return
        self._has_failed = True  # until this block is written
        written = 0
        with memoryview(block) as aligned:
            with aligned[:size_bytes] as filled:
                self._ends_in_hole = _is_hole(filled)
            if self._ends_in_hole:
                os.lseek(self._of_thread, size_bytes, os.SEEK_CUR)
                written = size_bytes
            elif self._may_be_direct:
                with aligned[: size_bytes - size_bytes % _BLOCK_BYTES] as whole:
                    written = _write_direct(self._of_thread, whole)
            if written < size_bytes:
                # Bytes after this position cannot be written directly: the position is not a multiple of a block, or
                # the device refused the write.
                if self._may_be_direct:
                    self._may_be_direct = False
                    _set_direct(self._of_thread, is_direct=False)
                with aligned[written:size_bytes] as rest:
                    _write_all(self._of_thread, rest)
        self._has_failed = False


def _set_direct(descriptor: int, *, is_direct: bool) -> bool:
    """Set or clear O_DIRECT; return False if the filesystem does not support the flag."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _PAST_CACHE if is_direct else flags & ~_PAST_CACHE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _write_direct(descriptor: int, content: memoryview) -> int:
    """Write `content`; return the number of bytes written, fewer than its length if the device does not take all."""
    written = 0
    try:
        while written < len(content) and written % _BLOCK_BYTES == 0:
            with content[written:] as rest:
                written += os.write(descriptor, rest)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return written


def _write(descriptor: int, chunks: Iterable[Buffer]) -> int:
    try:
        with _FileWriter(descriptor) as writer:
            for chunk in chunks:
                writer.write(memoryview(chunk).cast("B"))
            return writer.finish()
    finally:
        os.close(descriptor)


def _is_hole(content: memoryview) -> bool:
    """Return True if the content is long and has only zeros; data differs in its first bytes."""
    if len(content) < _HOLE_BYTES:
        return False
    positions = range(0, len(content), _HOLE_BYTES)
    return all(_ZEROS.startswith(content[at : at + _HOLE_BYTES].tobytes()) for at in positions)


def _write_all(descriptor: int, content: memoryview) -> int:
    written = 0
    while written < len(content):
        with content[written:] as rest:
            written += os.write(descriptor, rest)
    return written


def _is_regular(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_file()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def _is_special(item: os.DirEntry[str]) -> bool:
    try:
        return not item.is_file() and not item.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return True


def _entry(name: str, status: os.stat_result) -> FileEntry:
    is_directory = stat.S_ISDIR(status.st_mode)
    return FileEntry(name, status.st_size, status.st_mtime_ns, is_directory, stat.S_ISREG(status.st_mode))


def _without_secrets(path: Path, mode: int) -> int:
    return mode & _PRIVATE_FILE if path.name.startswith(_SECRET_FILES) and not path.is_dir() else mode


def _umask() -> int:
    """Return the umask of this process; only the system's own files show it without changing it for other threads."""
    try:
        with open("/proc/self/status", "rb") as status:
            return int(next(line for line in status if line.startswith(b"Umask:")).split()[1], 8)
    except (OSError, StopIteration):
        return 0o022


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
