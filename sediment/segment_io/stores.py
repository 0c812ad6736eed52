"""Directories that pyarrow.fs can access: on this machine, on HDFS (see `hdfs`), and in object stores such as S3.

Names are relative to the directory of a store, with `/` between folders.

Invariants
* A file under its final name is complete.  If a store shows incomplete files, an incomplete file has a different name.
* A new local file is private until it is complete.
* In a local store, the results of `write` and `move` are durable after `sync` of their folder.
* Errors are OSError with the file's full name, without the credentials of a URI.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import FileEntry, FileStamp, Fs, without_links
from sediment.segment_io.uris import public_uri

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

CHUNK_BYTES = 8 << 20
_ATTEMPTS = 10

_OWNER_WRITES_FILE, _OWNER_WRITES_FOLDER = 0o600, 0o700
_ALL_OF_FILE, _ALL_OF_FOLDER = 0o666, 0o777

_LOCAL = "local"
_ATOMIC = frozenset({"s3", "gcs", "abfs"})  # an object becomes visible when complete, and a rename copies it
_SCHEME = "://"
_HDFS = "hdfs://"
_LIBHDFS = "libhdfs"
_SINGLE_PUTS = "allow_delayed_open"


@dataclass(frozen=True, slots=True)
class StoredFile:
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Modes:
    folder: int | None = None
    file: int | None = None


def modes_of(sources: Iterable[Store], folder: str = "") -> Modes:
    """Return modes that let nobody read a new file who cannot read every file directly in `folder` of the `sources`."""
    folder_mode, file_mode = _ALL_OF_FOLDER, _ALL_OF_FILE
    paths = [path / folder for source in sources if (path := source.local_path) is not None]
    for path in paths:
        folder_mode &= stat.S_IMODE(path.stat().st_mode)
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(OSError):  # it was removed, or is a dangling link
                    if entry.is_file():
                        file_mode &= stat.S_IMODE(entry.stat().st_mode)
    # The owner may write to the new files and folders.  Sources that are not on this machine have no modes.
    if not paths:
        return Modes()
    return Modes(folder_mode | _OWNER_WRITES_FOLDER, (file_mode & folder_mode) | _OWNER_WRITES_FILE)


def by_folder(files: Mapping[str, StoredFile]) -> dict[str, dict[str, StoredFile]]:
    folders: dict[str, dict[str, StoredFile]] = {}
    for name, file in files.items():
        folder, _, rest = name.rpartition("/")
        folders.setdefault(folder, {})[rest] = file
    return folders


class Store:
    """One directory, given by its path or URI; the connection is made on first use, and again after unpickling."""

    def __init__(self, where: str) -> None:
        self.where = where if _SCHEME in where else str(Path(where).absolute())
        self._fs = Fs()

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.where,)

    def __str__(self) -> str:
        return self.where if self.is_path else public_uri(self.where)

    @cached_property
    def _opened(self) -> tuple[FileSystem, str]:
        import pyarrow as pa

        try:
            filesystem, base = _open_filesystem(self.where)
        except pa.ArrowException as error:
            raise self._unusable(error) from error
        except UnicodeEncodeError as error:
            raise UsageError(
                "this path is not UTF-8, so pyarrow cannot read or write it",
                path=str(self),
                advice="rename the directory, or mount it under another path",
            ) from error
        except OSError as error:
            raise _named(error, str(self), _public_text(error, self.where)) from error
        return _with_retries(filesystem), base.rstrip("/")

    @property
    def is_path(self) -> bool:
        return _SCHEME not in self.where

    @property
    def local_path(self) -> Path | None:
        filesystem, base = self._opened
        return Path(base or "/") if filesystem.type_name == _LOCAL else None

    @property
    def identity(self) -> tuple[str, str]:
        """The kind of filesystem, and the path in it; stores of the same directory have equal identities."""
        filesystem, base = self._opened
        return filesystem.type_name, str(without_links(Path(base))) if filesystem.type_name == _LOCAL else base

    def beside(self, name: str) -> Store:
        path, mark, query = self.where.partition("?")
        return Store(f"{path.rstrip('/').rpartition('/')[0]}/{name.removeprefix('../')}{mark}{query}")

    # ------------------------------------------------------------------------------------------------------ reading
    def files(self, folder: str = "") -> dict[str, StoredFile]:
        """Return every file below a folder, sorted by name; empty if the folder does not exist."""
        from pyarrow.fs import FileSelector, FileType

        filesystem, base = self._opened
        with self._named_errors(folder):
            found = filesystem.get_file_info(FileSelector(self._path(folder), allow_not_found=True, recursive=True))
        return {
            info.path[len(base) :].lstrip("/"): StoredFile(info.size, info.mtime_ns or 0)
            # Files whose path is not UTF-8 are left out, because pyarrow cannot represent these paths.  Kafka does not
            # use such names.
            for info in sorted(filter(_has_text_path, found), key=lambda info: info.path)
            if info.type == FileType.File
        }

    def folders(self) -> list[str]:
        """Return the direct subfolders; in an object store, a folder exists only if it contains an object."""
        from pyarrow.fs import FileSelector, FileType

        filesystem, _ = self._opened
        with self._named_errors(""):
            found = filesystem.get_file_info(FileSelector(self._path(""), allow_not_found=True))
        return sorted(info.base_name for info in found if _has_text_path(info) and info.type == FileType.Directory)

    def is_file(self) -> bool:
        from pyarrow.fs import FileType

        filesystem, base = self._opened
        with self._named_errors(""):
            return bool(filesystem.get_file_info(base or "/").type == FileType.File)

    def stamp(self, name: str) -> FileStamp | None:
        from pyarrow.fs import FileType

        filesystem, _ = self._opened
        if self.local_path is not None:
            return self._fs.file_stamp(self.local_path / name)
        with self._named_errors(name):
            info = filesystem.get_file_info(self._path(name))
        return FileStamp(info.size, info.mtime_ns or 0) if info.type == FileType.File else None

    def mode(self, name: str) -> int | None:
        path = self.local_path
        found = None if path is None else self._fs.mode(path / name)
        return None if found is None else (found & _ALL_OF_FOLDER) | _OWNER_WRITES_FILE

    def read(self, name: str) -> bytes | None:
        try:
            return b"".join(self.chunks(name))
        except FileNotFoundError:
            return None

    def chunks(self, name: str) -> Iterator[bytes]:
        filesystem, _ = self._opened
        with self._named_errors(name), filesystem.open_input_stream(self._path(name)) as source:
            while piece := source.read(CHUNK_BYTES):
                yield piece

    def open_ranges(self, name: str) -> RangeReader:
        filesystem, _ = self._opened
        with self._named_errors(name):
            return RangeReader(filesystem.open_input_file(self._path(name)), f"{self}/{name}")

    # ------------------------------------------------------------------------------------------------------ writing
    @property
    def shows_incomplete_files(self) -> bool:
        filesystem, _ = self._opened
        return filesystem.type_name not in _ATOMIC

    def make_folder(self, folder: str, mode: int | None = None) -> None:
        """Create a folder and its parents; do nothing in an object store, where folders are only parts of names.

        A local folder that did not exist gets the permissions `mode`, or those that the umask allows.
        """
        filesystem, _ = self._opened
        path = self.local_path
        if path is not None and mode is not None and not (path / folder).is_dir():
            with self._named_errors(folder):
                filesystem.create_dir(str((path / folder).parent), recursive=True)
            with suppress(FileExistsError):  # another task has made it meanwhile
                (path / folder).mkdir(_OWNER_WRITES_FOLDER)
                self._fs.set_mode(path / folder, mode)
        elif self.shows_incomplete_files:
            with self._named_errors(folder):
                filesystem.create_dir(self._path(folder), recursive=True)

    def write(self, name: str, chunks: Iterable[Buffer]) -> int:
        """Write `chunks` to a file, replacing an existing file; return the number of bytes written.

        A local file is private until `set_mode`.
        """
        filesystem, _ = self._opened
        path = self.local_path
        if path is not None:
            with self._named_errors(name):
                written = self._fs.write_over(path / name, chunks)
            self._fs.sync_file(path / name)
            return written
        written = 0
        with self._named_errors(name), filesystem.open_output_stream(self._path(name)) as target:
            for chunk in chunks:
                written += target.write(memoryview(chunk).cast("B"))
        return written

    def put(self, name: str, chunks: Iterable[Buffer], *, part: str, mode: int | None = None) -> int:
        """Write a file under the name `part`, and rename the complete file; `mode` is that of `set_mode`."""
        if not self.shows_incomplete_files:
            return self.write(name, chunks)
        written = self.write(part, chunks)
        self.set_mode(part, mode)
        self.move(part, name)
        return written

    def set_mode(self, name: str, mode: int | None) -> None:
        """Set the permissions of a file or folder on a local store; None means those that the umask allows."""
        if self.local_path is None:
            return
        if mode is None:
            self._fs.share(self.local_path / name)
        else:
            self._fs.set_mode(self.local_path / name, mode)

    def move(self, name: str, target: str) -> None:
        if self.local_path is not None:
            self._fs.rename(self.local_path / name, self.local_path / target)
            return
        filesystem, _ = self._opened
        with self._named_errors(name):
            if self.shows_incomplete_files:
                self.delete(target)
            filesystem.move(self._path(name), self._path(target))

    def set_mtime_ns(self, name: str, mtime_ns: int) -> None:
        if self.local_path is not None:
            self._fs.set_mtime_ns(self.local_path / name, mtime_ns)

    def delete(self, name: str) -> None:
        filesystem, _ = self._opened
        try:
            with self._named_errors(name):
                filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            return

    def delete_folder(self, folder: str) -> None:
        """Remove a folder with its content, even while another process removes files in it."""
        filesystem, _ = self._opened
        while self._is_folder(folder):
            try:
                with self._named_errors(folder):
                    filesystem.delete_dir(self._path(folder))
            except FileNotFoundError:
                continue

    def _is_folder(self, folder: str) -> bool:
        from pyarrow.fs import FileType

        filesystem, _ = self._opened
        with self._named_errors(folder):
            return bool(filesystem.get_file_info(self._path(folder)).type == FileType.Directory)

    def sync(self, folder: str = "") -> None:
        """Make the names in a folder of a local store durable; other stores need no sync."""
        if self.local_path is not None:
            self._fs.sync_directory(self.local_path / folder)

    def allocated_bytes(self, name: str) -> int | None:
        path = self.local_path
        return None if path is None else self._fs.allocated_bytes(path / name)

    def free_bytes(self) -> int:
        """Return the bytes that may still be written, even if the directory does not exist yet.

        The result is 2^63 - 1 for a store without a limit.
        """
        path = self.local_path
        if path is None:
            return INT64_MAX
        return shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free

    # ------------------------------------------------------------------------------------------------------- helpers
    def _path(self, name: str) -> str:
        _, base = self._opened
        return f"{base}/{name}" if name else base or "/"

    @contextmanager
    def _named_errors(self, name: str) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except OSError as error:
            raise _named(error, f"{self}/{name}" if name else str(self)) from error
        except pa.ArrowInvalid as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> UsageError:
        return UsageError(
            f"the URI cannot be used: {_public_text(error, self.where)}",
            path=str(self),
            advice="give a directory by its path or by a file://, s3://, gs://, abfs:// or hdfs:// URI",
        )


class RangeReader:
    """An open file of a store; each read is one request for a range of bytes."""

    def __init__(self, file: NativeFile, name: str) -> None:
        self._file = file
        self._name = name

    def read(self, position: int, count: int) -> bytes:
        try:
            return bytes(self._file.read_at(count, position))
        except OSError as error:
            raise _named(error, self._name) from error

    def close(self) -> None:
        self._file.close()


def _has_text_path(info: FileInfo) -> bool:
    try:
        return bool(info.path)
    except UnicodeDecodeError:
        return False


class ListedFs(Fs):
    def __init__(self, files: Mapping[str, StoredFile]) -> None:
        self._files = files

    def is_directory(self, path: Path) -> bool:
        return True

    def scan(self, directory: Path) -> list[FileEntry]:
        return [FileEntry(name, file.size_bytes, file.mtime_ns, False) for name, file in self._files.items()]

    def special_files(self, directory: Path) -> list[str]:
        return []


def _check_components(where: str) -> None:
    """Refuse a URI whose path may be a second name of a directory; an object store does not resolve `.` and `..`."""
    scheme, is_uri, rest = where.partition("?")[0].partition(_SCHEME)
    path = rest.partition("/")[2].removesuffix("/")
    if is_uri and scheme != "file" and path and not {"", ".", ".."}.isdisjoint(unquote(path).split("/")):
        raise UsageError(
            "the path of the URI contains //, . or .., so it may be another name of a directory in use",
            path=public_uri(where),
            advice="write the path without them",
        )


def _open_filesystem(where: str) -> tuple[FileSystem, str]:
    if _SCHEME in where and "#" in where:  # pyarrow would use the path before the #, which is another directory
        raise UsageError(
            "the URI contains a #, which ends the path of a URI",
            path=public_uri(where),
            advice="write %23 for a # in a name",
        )
    _check_components(where)
    if where.startswith(_HDFS) and find_spec("hdfs_native") is not None:
        from sediment.segment_io.hdfs import open_hdfs

        return open_hdfs(where)
    from pyarrow.fs import FileSystem

    try:
        opened: tuple[FileSystem, str] = FileSystem.from_uri(_with_single_puts(where))
    except OSError as error:
        if where.startswith(_HDFS) and _LIBHDFS in str(error):
            raise UsageError(
                f"the URI cannot be used: {_public_text(error, where)}",
                path=public_uri(where),
                advice=f"{install_command('hdfs')}, or set ARROW_LIBHDFS_DIR and CLASSPATH for a Hadoop installation",
            ) from error
        raise
    return opened


def _with_single_puts(where: str) -> str:
    """Return `where` with an option that uploads a small object in one request instead of three."""
    if not where.startswith("s3://") or _SINGLE_PUTS in where:
        return where
    return f"{where}{'&' if '?' in where else '?'}{_SINGLE_PUTS}=true"


def _with_retries(filesystem: FileSystem) -> FileSystem:
    """Return the filesystem; for S3, it retries with growing pauses if a server is busy or drops the connection."""
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    _, (options,) = filesystem.__reduce__()
    return S3FileSystem._reconstruct(
        # Without these retries, pyarrow gives up after about six seconds.  Each part of an upload is sent before
        # `write` returns, because otherwise pyarrow could queue any number of parts in memory.
        {**options, "background_writes": False, "retry_strategy": AwsStandardS3RetryStrategy(_ATTEMPTS)}
    )


def _named(error: OSError, name: str, text: str | None = None) -> OSError:
    """Return the error with `name`; errors of pyarrow do not contain the file name, and some have no error number.

    `text` replaces the text of an error that has no number.
    """
    if error.filename is not None:
        return error
    number = error.errno or errno.EIO
    return OSError(number, error.strerror or text or _first_line(str(error)), name)


def _public_text(error: BaseException, where: str) -> str:
    """Return the first line of pyarrow's error text; if the text quotes the URI, show the URI's public form."""
    return _first_line(
        str(error).replace(_with_single_puts(where), public_uri(where)).replace(where, public_uri(where))
    )


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]
