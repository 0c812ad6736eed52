"""Directories that pyarrow.fs reaches: of this machine, HDFS, S3 and its like.

Names are relative to the directory of a store, with `/` between folders.

Invariants: a file under its final name is whole, because stores whose writes show before they are complete get it
under another name first; on a local store what `write` and `move` made is durable once `sync` returned for its folder.
Errors are OSError with the file's full name, without the credentials that a URI may hold.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import FileEntry, Fs

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

CHUNK_BYTES = 8 << 20
_ATTEMPTS = 10

_LOCAL = "local"
_ATOMIC = frozenset({"s3", "gcs", "abfs"})  # where an object shows once it is complete, and renaming copies
_SCHEME = "://"
_SINGLE_PUTS = "allow_delayed_open"
_CREDENTIALS = re.compile(r"(?<=://)[^/?]*@|\?.*")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a store lists it; `mtime_ns` is the modification time in nanoseconds since the epoch."""

    size_bytes: int
    mtime_ns: int


class Store:
    """One directory, by its path or URI; it connects at the first use, and again wherever it is unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where if _SCHEME in where else str(Path(where).absolute())
        self._fs = Fs()

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.where,)

    def __str__(self) -> str:
        return _CREDENTIALS.sub("", self.where)

    @cached_property
    def _opened(self) -> tuple[FileSystem, str]:
        import pyarrow as pa
        from pyarrow.fs import FileSystem

        try:
            filesystem, base = FileSystem.from_uri(_with_single_puts(self.where))
        except pa.ArrowException as error:
            raise UsageError(
                f"this URI cannot be used: {_first_line(error)}",
                path=str(self),
                advice="name a directory, or one behind file://, s3://, gs://, abfs:// or hdfs://",
            ) from error
        except UnicodeEncodeError as error:
            raise UsageError(
                "this path is not UTF-8, so it cannot be read or written through pyarrow",
                path=str(self),
                advice="rename the directory, or mount it under another path",
            ) from error
        except OSError as error:
            raise _named(error, str(self)) from error
        return _patient(filesystem), base.rstrip("/")

    @property
    def is_path(self) -> bool:
        """Whether it was given as a directory of this machine, whose files can be opened where they are."""
        return _SCHEME not in self.where

    @property
    def local_path(self) -> Path | None:
        """The directory itself where this machine has it."""
        filesystem, base = self._opened
        return Path(base or "/") if filesystem.type_name == _LOCAL else None

    @property
    def identity(self) -> tuple[str, str]:
        """Kind of the filesystem and the path in it, for comparisons."""
        filesystem, base = self._opened
        return filesystem.type_name, str(Path(base).resolve()) if filesystem.type_name == _LOCAL else base

    # ------------------------------------------------------------------------------------------------------ reading
    def files(self, folder: str = "") -> dict[str, StoredFile]:
        """Every file below a folder, in the order of names; empty where there is no such folder.

        Files whose path is not UTF-8 are left out: pyarrow cannot name them, and none of Kafka's is called so.
        """
        from pyarrow.fs import FileSelector, FileType

        filesystem, base = self._opened
        with self._telling(folder):
            found = filesystem.get_file_info(FileSelector(self._path(folder), allow_not_found=True, recursive=True))
        return {
            info.path[len(base) :].lstrip("/"): StoredFile(info.size, info.mtime_ns or 0)
            for info in sorted(filter(_has_text_path, found), key=lambda info: info.path)
            if info.type == FileType.File
        }

    def folders(self) -> list[str]:
        """The folders directly in this one; of object stores those that hold an object."""
        from pyarrow.fs import FileSelector, FileType

        filesystem, _ = self._opened
        with self._telling(""):
            found = filesystem.get_file_info(FileSelector(self._path(""), allow_not_found=True))
        return sorted(info.base_name for info in found if _has_text_path(info) and info.type == FileType.Directory)

    def is_file(self) -> bool:
        """Whether a file is where the directory should be."""
        from pyarrow.fs import FileType

        filesystem, base = self._opened
        with self._telling(""):
            return bool(filesystem.get_file_info(base or "/").type == FileType.File)

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None where there is none."""
        try:
            return b"".join(self.chunks(name))
        except FileNotFoundError:
            return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a file, in pieces of at most `CHUNK_BYTES`."""
        filesystem, _ = self._opened
        with self._telling(name), filesystem.open_input_stream(self._path(name)) as source:
            while piece := source.read(CHUNK_BYTES):
                yield piece

    # ------------------------------------------------------------------------------------------------------ writing
    @property
    def shows_incomplete_files(self) -> bool:
        """Whether a file that is being written is there already."""
        filesystem, _ = self._opened
        return filesystem.type_name not in _ATOMIC

    def make_folder(self, folder: str) -> None:
        """Create a folder and those above it; without effect where folders are nothing but names."""
        filesystem, _ = self._opened
        if self.shows_incomplete_files:
            with self._telling(folder):
                filesystem.create_dir(self._path(folder), recursive=True)

    def write(self, name: str, chunks: Iterable[Buffer]) -> int:
        """Write `chunks` to a new file or over an old one; returns the bytes written."""
        filesystem, _ = self._opened
        written = 0
        with self._telling(name), filesystem.open_output_stream(self._path(name)) as target:
            for chunk in chunks:
                written += target.write(memoryview(chunk).cast("B"))
        if self.local_path is not None:
            self._fs.sync_file(self.local_path / name)
        return written

    def put(self, name: str, chunks: Iterable[Buffer], *, part: str) -> int:
        """Write a file that is under its name as a whole or not at all; `part` is its name until then."""
        if not self.shows_incomplete_files:
            return self.write(name, chunks)
        written = self.write(part, chunks)
        self.move(part, name)
        return written

    def move(self, name: str, target: str) -> None:
        """Give a file another name, over a file that has it."""
        if self.local_path is not None:
            self._fs.rename(self.local_path / name, self.local_path / target)
            return
        filesystem, _ = self._opened
        with self._telling(name):
            if self.shows_incomplete_files:
                self.delete(target)
            filesystem.move(self._path(name), self._path(target))

    def set_mtime_ns(self, name: str, mtime_ns: int) -> None:
        """Set the modification time, where the store lets us."""
        if self.local_path is not None:
            self._fs.set_mtime_ns(self.local_path / name, mtime_ns)

    def delete(self, name: str) -> None:
        """Remove a file; without effect where it is not there."""
        filesystem, _ = self._opened
        try:
            with self._telling(name):
                filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            return

    def delete_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it, also where somebody else is removing from it."""
        filesystem, _ = self._opened
        while folder in self.folders():
            try:
                with self._telling(folder):
                    filesystem.delete_dir(self._path(folder))
            except FileNotFoundError:
                continue

    def sync(self, folder: str = "") -> None:
        """Make the names in a folder durable, where the store does not do that by itself."""
        if self.local_path is not None:
            self._fs.sync_directory(self.local_path / folder)

    def free_bytes(self) -> int:
        """Bytes that may still be written; more than enough where a store does not tell."""
        return INT64_MAX if self.local_path is None else shutil.disk_usage(self.local_path).free

    # ------------------------------------------------------------------------------------------------------- helpers
    def _path(self, name: str) -> str:
        _, base = self._opened
        return f"{base}/{name}" if name else base or "/"

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _named(error, f"{self}/{name}" if name else str(self)) from error


def _has_text_path(info: FileInfo) -> bool:
    try:
        return bool(info.path)
    except UnicodeDecodeError:
        return False


class ListedFs(Fs):
    """What a store listed of one folder, as `list_log` looks at a directory."""

    def __init__(self, files: Mapping[str, StoredFile]) -> None:
        self._files = files

    def is_directory(self, path: Path) -> bool:
        """It was listed."""
        return True

    def scan(self, directory: Path) -> list[FileEntry]:
        """The files in the order in which they were listed."""
        return [FileEntry(name, file.size_bytes, file.mtime_ns, False) for name, file in self._files.items()]


def _with_single_puts(where: str) -> str:
    """A small object is one request instead of three, and an empty one no upload of a part without bytes."""
    if not where.startswith("s3://") or _SINGLE_PUTS in where:
        return where
    return f"{where}{'&' if '?' in where else '?'}{_SINGLE_PUTS}=true"


def _patient(filesystem: FileSystem) -> FileSystem:
    """The same filesystem; of S3 one that waits longer and longer for a server that is busy or cuts off connections.

    pyarrow's own patience with a filesystem of a URI ends after some six seconds.
    """
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    _, (options,) = filesystem.__reduce__()
    return S3FileSystem._reconstruct({**options, "retry_strategy": AwsStandardS3RetryStrategy(_ATTEMPTS)})


def _named(error: OSError, name: str) -> OSError:
    """The same error about `name`: pyarrow tells neither file nor, of a server's answer, a number."""
    if error.filename is not None:
        return error
    number = error.errno or errno.EIO
    return OSError(number, error.strerror or _first_line(error), name)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
