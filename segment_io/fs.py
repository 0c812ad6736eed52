"""The file operations all share: the only caller of os.rename and os.unlink, and where tests inject faults.

Invariants: `rename` replaces atomically and stays in one directory; nothing is durable before `sync_file` and
`sync_directory` returned; no operation changes the bytes of an inode that existed before it (files are written under
new names and renamed over old ones), except that `truncate` cuts off its end and the owner of a live log writes behind
what it holds through an `OpenFile`.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sediment.segment_io.errors import OwnerNotKeptError
from sediment.segment_io.format import MAX_SEGMENT_BYTES

Buffer: TypeAlias = bytes | bytearray | memoryview

_READ_AND_WRITE = 0o666
_PAST_CACHE: int = getattr(os, "O_DIRECT", 0)  # not on every system
_BLOCK_BYTES = 4096  # what addresses, positions and sizes of such writes are multiples of
_DIRECT_WRITE_BYTES = 4 << 20
_LARGE_WRITE_BYTES = 1 << 20
_ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One directory entry; `mtime_ns` is the modification time in nanoseconds since the epoch.

    Neither a directory nor a file is a pipe, a socket, a device, or a link that leads nowhere, whatever its name.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    is_directory: bool
    is_file: bool = True


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_VIEW = ctypes.pythonapi.PyMemoryView_FromMemory
_VIEW.restype = ctypes.py_object
_VIEW.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_TO_READ = 0x100  # PyBUF_READ


class FileMapping:
    """The first bytes of a file as memory to read, at `address`; it lasts as long as this object.

    It holds no descriptor, unlike `mmap.mmap`, which duplicates the one that it is given.
    """

    __slots__ = ("_size_bytes", "address", "memory")

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.address: int = 0
        self._size_bytes = size_bytes
        address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self.address = address
        self.memory: memoryview = _VIEW(address, size_bytes, _TO_READ)

    def __len__(self) -> int:
        return self._size_bytes

    def __del__(self, unmap: Callable[[int, int], int] = _LIBC.munmap) -> None:
        # A default, because globals are gone when the interpreter ends.
        if self.address:
            unmap(self.address, self._size_bytes)
            self.address = 0


class OpenFile:
    """A file of a live log, open for as long as anyone holds it, whatever its name becomes.

    It closes with `close`, or once nobody holds it: who reads of a segment that was deleted meanwhile reads on.
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, *, create: bool) -> None:
        self.descriptor = -1
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def __del__(self) -> None:
        self.close()

    def size_bytes(self) -> int:
        """The length of the file."""
        return os.fstat(self.descriptor).st_size

    def read(self, position: int, count: int) -> bytes:
        """`count` bytes from `position`, fewer at the end of the file."""
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
        """Fill `target` from `position` on; returns the bytes read, fewer at the end of the file."""
        read = 0
        while read < len(target):
            got = os.preadv(self.descriptor, [target[read:]], position + read)
            if got == 0:
                break
            read += got
        return read

    def send(self, target: socket.socket, position: int, count: int) -> int:
        """Send a slice to a socket without copying it through this process; returns the bytes that it took."""
        return os.sendfile(target.fileno(), self.descriptor, position, count)

    def map(self, size_bytes: int) -> FileMapping:
        """The first `size_bytes` of the file as memory to read; what is written later shows there.

        The mapping outlives the file's descriptor.
        """
        return FileMapping(self.descriptor, size_bytes)

    def write(self, content: Buffer, position: int) -> None:
        """Write all of `content` at `position`; not yet durable."""
        written = os.pwrite(self.descriptor, content, position)
        while written < len(content):
            rest = memoryview(content)[written:]
            count = os.pwrite(self.descriptor, rest, position + written)
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
            written += count

    def resize(self, size_bytes: int) -> None:
        """Cut the file, or let it go on with zeros that take no room; not yet durable."""
        os.ftruncate(self.descriptor, size_bytes)

    def sync(self) -> None:
        """Make the content and metadata of the file durable."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file, once."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


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
                    entries.append(_entry(item.name, item.stat()))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
        return sorted(entries, key=lambda entry: entry.name)

    def broken_links(self, directory: Path) -> list[str]:
        """Names of the links in `directory` that lead nowhere, which `scan` leaves out; in name order."""
        with os.scandir(directory) as found:
            return sorted(item.name for item in found if item.is_symlink() and not os.path.exists(item.path))

    def entry(self, path: Path) -> FileEntry | None:
        """What `scan` would say of one path, links followed; None where nothing is there."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return _entry(path.name, status)

    def change_stamp(self, path: Path) -> tuple[int, int, int] | None:
        """Return size in bytes, mtime and ctime in ns of one path, links followed; None if nothing is there.

        The ctime also shows a change that restored size and mtime, and a file that was renamed into place.
        """
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def read_bytes(self, path: Path) -> bytes:
        """The whole content.  No file that is read at once is larger than a segment may be.

        Raises:
            OSError: EFBIG, it is; also as FileNotFoundError, PermissionError, IsADirectoryError.
        """
        with open(open_to_read(path), "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > MAX_SEGMENT_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            return file.readall()

    def read_range(self, path: Path, position: int, count: int) -> bytes:
        """`count` bytes from `position`, fewer at the end of the file."""
        descriptor = self.open_to_read(path)
        try:
            return os.pread(descriptor, count, position)
        finally:
            os.close(descriptor)

    def ends_in_zeros(self, path: Path, position: int) -> bool:
        """True if every byte from `position` on is zero, or none is there; holes are not read."""
        descriptor = self.open_to_read(path)
        try:
            return only_zeros(descriptor, position, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def open_to_read(self, path: Path) -> int:
        """A descriptor of a file to be read in chunks; the caller closes it."""
        return open_to_read(path)

    def open_file(self, path: Path) -> OpenFile:
        """Open a file of a live log for reading and writing."""
        return OpenFile(path, create=False)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        """The same of a file that may be missing: then it gets the owner, group and mode of `like`."""
        is_new = not self.exists(path)
        file = OpenFile(path, create=True)
        if is_new and like != path:
            self.adopt_owner(path, like)
        return file

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        """Create `path` (it must not exist), write `chunks`, return the bytes written.  Not yet durable.

        Large chunks are written past the page cache where the filesystem can do that: who cleans a directory reads
        hundreds of times what a cache holds, and what a broker has there should stay.
        """
        written = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                if len(view) >= _LARGE_WRITE_BYTES and written % _BLOCK_BYTES == 0:
                    count = _write_past_cache(descriptor, view)
                    written += count
                    view = view[count:]
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
        could need a gigabyte that a full disk does not have.  Whoever calls it for a file with several names copies it.
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

    def make_directory(self, path: Path) -> None:
        """Create a directory, durably; what is above it must be there."""
        os.mkdir(path)
        self.sync_directory(path.parent)

    def link(self, source: Path, target: Path) -> None:
        """Give the file at `source` the second name `target`, which must not exist."""
        os.link(source, target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        """Set access and modification time."""
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def adopt_owner(self, path: Path, like: Path) -> None:
        """Give `path` the owner, group and mode of `like`; a file like a directory can be read and written as that can.

        Raises:
            OwnerNotKeptError: this process may not.
        """
        wanted = like.stat()
        have = path.stat()
        wanted_mode, have_mode = stat.S_IMODE(wanted.st_mode), stat.S_IMODE(have.st_mode)
        if stat.S_ISDIR(wanted.st_mode) and not stat.S_ISDIR(have.st_mode):
            wanted_mode &= _READ_AND_WRITE
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

    def require_descriptors(self, count: int) -> None:
        """Check that this process may open `count` more files.

        Raises:
            OSError: EMFILE or ENFILE, it may not.
        """
        opened: list[int] = []
        try:
            for _ in range(count):
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            for descriptor in opened:
                os.close(descriptor)

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

    def link(self, source: Path, target: Path) -> None:
        return None

    def make_directory(self, path: Path) -> None:
        return None

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        return None

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        return None

    def adopt_owner(self, path: Path, like: Path) -> None:
        return None


def is_out_of_descriptors(error: BaseException) -> bool:
    """True if the process or the system may open no more files, which says nothing about a disk."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def open_to_read(path: Path) -> int:
    """A descriptor of a file to be read; the caller closes it.

    Nothing but a regular file is opened: a pipe would be waited for, a device need not have an end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def only_zeros(descriptor: int, position: int, end: int) -> bool:
    """True if the bytes of an open file in [position, end) are zeros.

    Holes are not read: a file may be preallocated, or be sparse and huge.
    """
    while position < end:
        try:
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


def _write_past_cache(descriptor: int, content: memoryview) -> int:
    """Write the whole blocks at the begin of `content` straight to the device.

    Returns the bytes written, which may be fewer or none where the filesystem does not do that; the rest is to be
    written as usual.  The file's position must be at a block.
    """
    whole_bytes = len(content) - len(content) % _BLOCK_BYTES
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    written = 0
    # Memory of its own, since the device wants it at a block's address.
    block = mmap.mmap(-1, min(_DIRECT_WRITE_BYTES, whole_bytes))
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _PAST_CACHE)
        with memoryview(block) as aligned:
            while written < whole_bytes and written % _BLOCK_BYTES == 0:
                size_bytes = min(_DIRECT_WRITE_BYTES, whole_bytes - written)
                aligned[:size_bytes] = content[written : written + size_bytes]
                with aligned[:size_bytes] as wanted:
                    written += os.write(descriptor, wanted)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        block.close()
    return written


def _entry(name: str, status: os.stat_result) -> FileEntry:
    is_directory = stat.S_ISDIR(status.st_mode)
    return FileEntry(name, status.st_size, status.st_mtime_ns, is_directory, stat.S_ISREG(status.st_mode))


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
