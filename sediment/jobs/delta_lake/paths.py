"""Paths of Delta tables: URIs, paths that deltalake cannot use, and the filesystem of a table's data files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import UsageError

_NO_TABLE_PATH = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\[\]^|\\]|%[0-9A-Fa-f]{2}")


def is_uri(path: str) -> bool:
    """Return True if `path` names a scheme rather than a directory of this machine."""
    return "://" in path


def is_delta_table(path: str) -> bool:
    """Return True if the directory `path` of this machine is a Delta table."""
    return (Path(path) / "_delta_log").is_dir()


def outside_log_dirs(path: str, log_dirs: Iterable[Path]) -> None:
    """Refuse a table inside a log directory.

    Raises:
        UsageError: `path` is or lies in one of `log_dirs`.
    """
    if is_uri(path):
        return
    resolved = Path(path).resolve()
    for log_dir in log_dirs:
        if resolved.is_relative_to(log_dir.resolve()):
            raise UsageError(
                "a broker does not start on a log directory that holds a directory of another kind",
                path=path,
                advice=f"name a path outside {log_dir}",
            )


def check_table_path(path: str) -> None:
    """Refuse a local path with which the Python package deltalake panics or writes to another path.

    Raises:
        UsageError: `path` is not UTF-8, or holds a control character, a bracket, `^`, `|`, a backslash, or `%` with two
            hexadecimal digits.
    """
    if not is_uri(path) and _NO_TABLE_PATH.search(path):
        raise UsageError(
            "no Delta table can have this path",
            path=path,
            advice="use a path of UTF-8 without control characters, [, ], ^, |, backslashes and %41",
        )


def table_filesystem(path: str) -> Any:
    """Return the pyarrow filesystem for the data files of the table at `path`.

    For a local table it is Arrow's own.  With the filesystem of deltalake, which is Python, a thread of Arrow may still
    hold a file when the interpreter ends.  CPython then unwinds that thread, and C++ aborts the process.
    """
    from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

    if not is_uri(path):
        return SubTreeFileSystem(path, LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(path))
