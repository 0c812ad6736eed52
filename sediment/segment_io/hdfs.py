"""HDFS as a pyarrow filesystem; its package `hdfs-native` needs neither Java nor Hadoop.

    hdfs://HOST:PORT/PATH      one namenode
    hdfs://NAMESERVICE/PATH    the namenodes that hdfs-site.xml in HADOOP_CONF_DIR lists for a nameservice

The user comes from HADOOP_USER_NAME or a Kerberos ticket; all other settings come from files in HADOOP_CONF_DIR.

Invariant: every error is an OSError with an error number, although `hdfs-native` sets no error number.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from hdfs_native import Client, FileReader, FileStatus, FileWriter, WriteOptions
from pyarrow import NativeFile, PythonFile
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, FileType, PyFileSystem

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import UsageError
from sediment.segment_io.units import NS_PER_MS
from sediment.segment_io.uris import public_uri

_FOLDER_MODE = 0o755
_LINE_BREAK = re.compile(r"\\n|\n")
_NUMBERS: Mapping[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
}


def open_hdfs(uri: str) -> tuple[FileSystem, str]:
    parts = urlsplit(uri)
    if not parts.netloc or "@" in parts.netloc or parts.query:
        raise UsageError(
            "the URI of a directory on HDFS needs a namenode or a nameservice, and must not contain a user or options",
            path=public_uri(uri),
            advice="set the user in HADOOP_USER_NAME, and put options into the files of HADOOP_CONF_DIR",
        )
    return PyFileSystem(_Hdfs(f"hdfs://{parts.netloc}")), unquote(parts.path)


class _Hdfs(FileSystemHandler):  # type: ignore[misc]
    """The filesystem of one namenode or nameservice; the first operation connects to it."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _numbered_errors():
            self._client = Client(url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hdfs) and other._url == self._url

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        """Return the URL, so that the same path in two clusters counts as two directories."""
        return self._url

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        base = selector.base_dir or "/"
        if self._info(base).type != FileType.Directory:
            if selector.allow_not_found:
                return []
            raise _numbered(FileNotFoundError())
        with _numbered_errors():
            return [_file_info(status) for status in self._client.list_status(base, selector.recursive)]

    def create_dir(self, path: str, recursive: bool) -> None:
        with _numbered_errors():
            self._client.mkdirs(path, _FOLDER_MODE, recursive)

    def delete_dir(self, path: str) -> None:
        self._delete(path, recursive=True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        with _numbered_errors():
            for status in list(self._client.list_status(path)):
                self._delete(status.path, recursive=True)

    def delete_root_dir_contents(self) -> None:
        """Refuse, because Sediment never empties a root folder."""
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), "/")

    def delete_file(self, path: str) -> None:
        self._delete(path, recursive=False)

    def move(self, source: str, target: str) -> None:
        with _numbered_errors():
            self._client.rename(source, target, overwrite=True)

    def copy_file(self, source: str, target: str) -> None:
        with self.open_input_stream(source) as reader, self.open_output_stream(target, {}) as writer:
            reader.download(writer)

    def open_input_stream(self, path: str) -> NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> NativeFile:
        with _numbered_errors():
            return PythonFile(_InputFile(self._client.read(path)), mode="r")

    def open_output_stream(self, path: str, metadata: Mapping[str, Any]) -> NativeFile:
        with _numbered_errors():
            return PythonFile(_OutputFile(self._client.create(path, WriteOptions(overwrite=True))), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, Any]) -> NativeFile:
        with _numbered_errors():
            return PythonFile(_OutputFile(self._client.append(path)), mode="w")

    def _info(self, path: str) -> FileInfo:
        try:
            with _numbered_errors():
                return _file_info(self._client.get_file_info(path))
        except (FileNotFoundError, NotADirectoryError):
            return FileInfo(path, FileType.NotFound)

    def _delete(self, path: str, *, recursive: bool) -> None:
        with _numbered_errors():
            if not self._client.delete(path, recursive):
                raise FileNotFoundError


class _InputFile:
    closed = False

    def __init__(self, file: FileReader) -> None:
        self._file = file

    def read(self, size_bytes: int = -1) -> bytes:
        with _numbered_errors():
            return self._file.read(size_bytes)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True


class _OutputFile:
    closed = False

    def __init__(self, file: FileWriter) -> None:
        self._file = file

    def write(self, content: Buffer) -> int:
        with _numbered_errors():
            return self._file.write(content)

    def flush(self) -> None:
        """Do nothing: readers see the complete content only after `close`."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _numbered_errors():
                self._file.close()


def _file_info(status: FileStatus) -> FileInfo:
    kind = FileType.Directory if status.isdir else FileType.File
    return FileInfo(
        status.path,
        kind,
        size=None if status.isdir else status.length,
        mtime_ns=status.modification_time * NS_PER_MS,
    )


@contextmanager
def _numbered_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _numbered(error) from error
    except (RuntimeError, ValueError) as error:
        raise OSError(errno.EIO, _first_line(error)) from error


def _numbered(error: OSError) -> OSError:
    """Return the error with an error number, without the stack trace of the namenode."""
    number = error.errno or next((found for kind, found in _NUMBERS.items() if isinstance(error, kind)), None)
    return OSError(errno.EIO, _first_line(error)) if number is None else OSError(number, os.strerror(number))


def _first_line(error: BaseException) -> str:
    """Return the text before the stack trace; `hdfs-native` writes the line breaks in the text as two characters."""
    return _LINE_BREAK.split(str(error).strip(), maxsplit=1)[0]
