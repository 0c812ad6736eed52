"""A filesystem whose reads fail while a test wants them to."""

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
        return super().read_into(target, position)


class FaultyReads(Fs):
    """The local filesystem, whose reads fail while it `is_broken`; it opens `files_left` more files."""

    def __init__(self) -> None:
        self.is_broken = False
        self.files_left = 1 << 20

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
