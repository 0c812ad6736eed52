"""The error for the limit on open files; it is not a StorageError, because the disk is healthy."""

from __future__ import annotations

import errno

from sediment.segment_io.errors import OpenFilesLimitError
from sediment.segment_io.fs import Fs

SPARE_DESCRIPTORS = 16
"""The largest number of files that a change of several steps opens."""


def require_spare_descriptors(fs: Fs) -> None:
    try:
        fs.require_descriptors(SPARE_DESCRIPTORS)
    except OSError as error:
        raise open_files_limit(error) from error


def open_files_limit(error: OSError, partition: str | None = None) -> OpenFilesLimitError:
    if error.errno == errno.ENFILE:
        what, advice = "the system may open no more files", "raise fs.file-max"
    else:
        what, advice = "this process may open no more files", "raise ulimit -n"
    return OpenFilesLimitError(
        what,
        partition=partition,
        path=error.filename,
        advice=f"{advice}; the engine needs 3 files for each log that it appends to",
    )
