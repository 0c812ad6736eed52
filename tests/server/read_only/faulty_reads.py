"""A filesystem that counts the bytes that are read, and whose reads fail while a test wants them to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sediment.segment_io.fs import Fs, ReadableFile


class FailingFile(ReadableFile):
    """A file whose disk fails while the Fs `is_broken`."""

    __slots__ = ("fs",)
    fs: FaultyReads

    def read_into(self, target: memoryview, position: int) -> int:
        self.fs.check()
        count = super().read_into(target, position)
        self.fs.bytes_read += count
        return count


class FaultyReads(Fs):
    """The local filesystem, whose reads fail while it `is_broken`; it opens `files_left` more files.

    `bytes_read` counts the bytes that were read.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self.files_left = 1 << 20
        self.bytes_read = 0

    def check(self) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open_readable(self, path: Path) -> ReadableFile:
        self.check()
        if self.files_left <= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        self.files_left -= 1
        file = FailingFile(path, self.open_to_read(path))
        file.fs = self
        return file
